//! What the prefix cache gives up goes to a colder tier, and comes back from there.
//!
//! A thread of its own writes. The bytes on their way to it are in the ledger, and there are never many of them: where
//! memory is short, pages leave one by one.

use crate::lock;
use crate::memory::Member;
use lichen_backend::{Executor, KvPrecision, PageError, PageId};
use lichen_memory::{Class, Reach, Reservation};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Most bytes on their way to the tier.
const MOST_LEAVING: u64 = 64 << 20;
/// Shorter texts are computed again sooner than they are worth a file.
const LEAST_PAGES: usize = 2;

/// Where state goes that the cache gives up. What goes wrong there is its own to tell: nothing depends on it but time.
pub trait ColdTier: Send + Sync {
    /// How many of the first of these tokens can be read back, in whole pages.
    fn find(&self, tokens: &[u32]) -> usize;

    /// Keeps the state of these tokens. `pages` gives full pages in order, of `sizes` bytes; it may wait for them, and
    /// end before all have come. What came is then the state of fewer tokens.
    fn write(&self, tokens: &[u32], sizes: &[u64], pages: &mut dyn Iterator<Item = LeavingPage>);

    /// Gives up what it keeps of these tokens and of their beginnings.
    fn forget(&self, tokens: &[u32]);

    /// Gives `take` the pages of the first of these tokens in order, until it wants no more. Returns whether all that
    /// it gave is sound and was taken; if not, it forgets them and they must not be used.
    fn read(&self, tokens: &[u32], take: &mut TakePage<'_>) -> bool;
}

/// Takes a page, and says whether it wants another.
pub type TakePage<'a> = dyn FnMut(KvPrecision, &[u8]) -> Result<bool, PageError> + 'a;

/// A page on its way to the tier. Its bytes are in the ledger until it is dropped.
pub struct LeavingPage {
    /// How it is stored.
    pub precision: KvPrecision,
    /// Its bytes, as [`Executor::import_page`] takes them.
    pub bytes: Vec<u8>,
    _room: Room,
}

/// What the thread of the tier does, in order.
enum Order {
    Write(Text),
    Forget(Vec<u32>),
}

/// A text on its way to the tier.
struct Text {
    tokens: Vec<u32>,
    sizes: Vec<u64>,
    pages: Receiver<LeavingPage>,
}

/// The tier of an engine. Dropping it waits until everything is written.
pub(crate) struct Spill {
    tier: Arc<dyn ColdTier>,
    page_tokens: usize,
    orders: Option<Sender<Order>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    leaving: Mutex<Leaving>,
    freed: Condvar,
}

#[derive(Default)]
struct Leaving {
    bytes: u64,
    /// What the ledger knows of them, if there is one.
    reservation: Option<Reservation>,
    /// The texts that they belong to, the one that is being written first.
    texts: VecDeque<Vec<u32>>,
}

/// The room of a page that leaves.
struct Room {
    bytes: u64,
    shared: Arc<Shared>,
}

impl Spill {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(
        tier: Arc<dyn ColdTier>,
        page_tokens: usize,
        member: Option<&Member>,
    ) -> std::io::Result<Self> {
        let reservation = member.map(|member| {
            let empty = member.ledger().reserve(&member.owner, Class::Emergency, 0);
            empty.expect("nothing always has room")
        });
        let leaving = Mutex::new(Leaving { reservation, ..Leaving::default() });
        let shared = Arc::new(Shared { leaving, freed: Condvar::new() });
        let (orders, incoming) = channel::<Order>();
        let (writer, done) = (tier.clone(), shared.clone());
        let thread = std::thread::Builder::new().name("lichen-spill".to_owned()).spawn(move || {
            for order in incoming {
                match order {
                    Order::Write(text) => {
                        write(&*writer, text);
                        lock(&done.leaving).texts.pop_front();
                    }
                    Order::Forget(tokens) => writer.forget(&tokens),
                }
            }
        })?;
        Ok(Self { tier, page_tokens, orders: Some(orders), shared, thread: Some(thread) })
    }

    /// How many of the first of these tokens can be read back.
    pub(crate) fn find(&self, tokens: &[u32]) -> usize {
        self.tier.find(tokens)
    }

    /// See [`ColdTier::read`].
    pub(crate) fn read(&self, tokens: &[u32], take: &mut TakePage<'_>) -> bool {
        self.tier.read(tokens, take)
    }

    /// Sends the full pages of a text to the tier, unless it has them. Pages for which there is no room until
    /// `deadline` stay behind.
    pub(crate) fn write(&self, executor: &dyn Executor, tokens: &[u32], pages: &[PageId], deadline: Instant) {
        let full = tokens.len() / self.page_tokens;
        let (tokens, pages) = (&tokens[..full * self.page_tokens], &pages[..full]);
        if full < LEAST_PAGES || self.knows(tokens) {
            return;
        }
        let sizes: Vec<u64> = pages.iter().map(|&page| executor.page_size(page)).collect();
        // Nothing is queued before there is room for some of it, so that a slow disk makes no long queue.
        let room = |bytes| Shared::room(&self.shared, bytes, deadline);
        let Some(first) = room(sizes[0]) else { return };
        let (outgoing, incoming) = channel();
        let text = Text { tokens: tokens.to_vec(), sizes: sizes.clone(), pages: incoming };
        lock(&self.shared.leaving).texts.push_back(tokens.to_vec());
        if self.orders().send(Order::Write(text)).is_err() {
            // The thread has broken down; the panic hook has said so.
            lock(&self.shared.leaving).texts.pop_back();
            return;
        }
        let mut first = Some(first);
        for (&page, &bytes) in pages.iter().zip(&sizes) {
            let Some(room) = first.take().or_else(|| room(bytes)) else { return };
            let Some((precision, bytes)) = executor.export_page(page) else { return };
            if outgoing.send(LeavingPage { precision, bytes, _room: room }).is_err() {
                return;
            }
        }
    }

    /// See [`ColdTier::forget`]. What is on its way is forgotten too.
    pub(crate) fn forget(&self, tokens: &[u32]) {
        let full = tokens.len() / self.page_tokens * self.page_tokens;
        // If the thread has broken down, the panic hook has said so.
        let _ = self.orders().send(Order::Forget(tokens[..full].to_vec()));
    }

    fn orders(&self) -> &Sender<Order> {
        self.orders.as_ref().expect("it lives until the spill is dropped")
    }

    /// Whether these tokens are there, or on their way.
    fn knows(&self, tokens: &[u32]) -> bool {
        let coming = lock(&self.shared.leaving).texts.iter().any(|text| text.starts_with(tokens));
        coming || self.tier.find(tokens) == tokens.len()
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Writes a text of which any page comes.
fn write(tier: &dyn ColdTier, text: Text) {
    let Text { tokens, sizes, pages } = text;
    let mut pages = pages.into_iter().peekable();
    if pages.peek().is_some() {
        tier.write(&tokens, &sizes, &mut pages);
    }
}

impl Shared {
    /// Waits until so many bytes may leave.
    fn room(shared: &Arc<Self>, bytes: u64, deadline: Instant) -> Option<Room> {
        let mut leaving = lock(&shared.leaving);
        loop {
            if leaving.take(bytes) {
                return Some(Room { bytes, shared: shared.clone() });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // If nothing is on its way, nothing will make room.
            if leaving.bytes == 0 || left.is_zero() {
                return None;
            }
            let waited = shared.freed.wait_timeout(leaving, left);
            leaving = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Leaving {
    fn take(&mut self, bytes: u64) -> bool {
        // The first page may reach into the margin, so that there is a way out of a full memory.
        let reach = if self.bytes == 0 { Reach::Margin } else { Reach::Budget };
        let fits = self.bytes == 0 || self.bytes.saturating_add(bytes) <= MOST_LEAVING;
        let taken =
            fits && self.reservation.as_mut().is_none_or(|ledger| ledger.grow_within(bytes, reach).is_ok());
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut leaving = lock(&self.shared.leaving);
        leaving.bytes -= self.bytes;
        if let Some(reservation) = &mut leaving.reservation {
            reservation.shrink(self.bytes);
        }
        self.shared.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pages_wait_for_room_until_their_deadline() {
        let shared = Arc::new(Shared::default());
        let soon = || Instant::now() + Duration::from_millis(20);
        let whole = Shared::room(&shared, 2 * MOST_LEAVING, soon()).expect("one page always goes");
        assert!(Shared::room(&shared, 1, soon()).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let late = Instant::now() + Duration::from_secs(20);
                Shared::room(&shared, MOST_LEAVING, late).is_some()
            });
            drop(whole);
            assert!(waiting.join().is_ok_and(|came| came));
        });
        assert_eq!(lock(&shared.leaving).bytes, 0);
    }

    #[test]
    fn pages_stay_behind_where_the_ledger_has_no_room() {
        let limit = lichen_memory::Limit { bytes: 100, margin: 40, source: lichen_memory::Source::Host };
        let ledger = lichen_memory::Ledger::new(lichen_memory::Domain::Host, limit);
        let owner = lichen_memory::Owner::new("model", 0);
        let reservation = ledger.reserve(&owner, Class::Emergency, 0).ok();
        let leaving = Mutex::new(Leaving { reservation, ..Leaving::default() });
        let shared = Arc::new(Shared { leaving, freed: Condvar::new() });
        assert!(Shared::room(&shared, 101, Instant::now() + Duration::from_secs(20)).is_none(), "at once");
        let first = Shared::room(&shared, 70, Instant::now());
        assert!(first.is_some(), "the first page may reach into the margin");
        assert!(Shared::room(&shared, 1, Instant::now()).is_none(), "the next one may not");
        drop(first);
        assert_eq!(ledger.totals().mapped, 0);
    }
}
