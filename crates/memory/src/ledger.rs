//! The ledger: what is promised and what is in use, charged before memory is touched.

use crate::reservation::Reservation;
use crate::{Class, Domain, Limit, Owner, Reach};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many owners a snapshot or an error names.
const LARGEST: usize = 8;

/// The account of one domain. A handle: clones share the account.
///
/// Two sums stay at or below the limit. *Promised* is everything committed, whether there is memory behind it
/// or not, so that admitted requests can finish. *Mapped* is everything that has memory behind it, so that
/// the process survives. They differ because KV is promised at its smallest precision and, while there is
/// room, kept in a larger one. If the limit falls below a sum, nothing is added to it until enough was
/// released.
#[derive(Debug, Clone)]
pub struct Ledger {
    account: Arc<Mutex<Account>>,
}

/// Bytes of one owner or class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// Reserved, whether mapped or not.
    pub reserved: u64,
    /// Of these, with memory behind them.
    pub mapped: u64,
}

impl Bytes {
    pub(crate) fn plus(self, more: Self) -> Self {
        Self { reserved: self.reserved + more.reserved, mapped: self.mapped + more.mapped }
    }

    pub(crate) fn less(self, part: Self) -> Self {
        Self { reserved: self.reserved - part.reserved, mapped: self.mapped - part.mapped }
    }
}

/// The account at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Which memory.
    pub domain: Domain,
    /// The limit, and where it comes from.
    pub limit: Limit,
    /// Bytes of each class.
    pub classes: BTreeMap<Class, Bytes>,
    /// The largest owners, largest first: name and reserved bytes.
    pub largest: Vec<(Owner, u64)>,
}

/// The sums of the account at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// The limit in bytes.
    pub limit: u64,
    /// Of these, bytes kept free.
    pub margin: u64,
    /// Bytes that are committed.
    pub promised: u64,
    /// Of these, bytes of KV.
    pub kv_promised: u64,
    /// Bytes with memory behind them.
    pub mapped: u64,
    /// Bytes that don't depend on the requests.
    pub stationary: u64,
}

impl Totals {
    /// Bytes within reach.
    pub fn within(&self, reach: Reach) -> u64 {
        reach.of(self.limit, self.margin)
    }
}

/// There is no room for a reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{owner} needs {need} bytes for {class} on {domain} and {available} are available of {limit}; largest \
     owners: {}; unload a model, ask for less context or raise the memory budget",
    list(.largest)
)]
pub struct OverBudget {
    /// Which memory.
    pub domain: Domain,
    /// Who asked.
    pub owner: Owner,
    /// What for.
    pub class: Class,
    /// Bytes asked for.
    pub need: u64,
    /// Bytes that could have been had.
    pub available: u64,
    /// The limit, and where it comes from.
    pub limit: Limit,
    /// The largest owners, largest first: name and reserved bytes.
    pub largest: Vec<(Owner, u64)>,
}

fn list(owners: &[(Owner, u64)]) -> String {
    let named: Vec<String> = owners.iter().map(|(owner, bytes)| format!("{owner} {bytes} bytes")).collect();
    if named.is_empty() { "none".into() } else { named.join(", ") }
}

#[derive(Debug)]
pub(crate) struct Account {
    domain: Domain,
    limit: Limit,
    entries: BTreeMap<(Owner, Class), Bytes>,
    promised: u64,
    mapped: u64,
    /// Reserved bytes of [`Class::KvFloor`].
    kv_promised: u64,
    /// Reserved bytes of the classes that don't depend on the requests.
    stationary: u64,
}

/// How a reservation changes the two sums.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Charge {
    pub(crate) promised: u64,
    pub(crate) mapped: u64,
}

impl Ledger {
    /// An empty account.
    pub fn new(domain: Domain, limit: Limit) -> Self {
        let account = Account {
            domain,
            limit,
            entries: BTreeMap::new(),
            promised: 0,
            mapped: 0,
            kv_promised: 0,
            stationary: 0,
        };
        Self { account: Arc::new(Mutex::new(account)) }
    }

    /// Moves the limit. What is reserved stays, even if it is more.
    pub fn set_limit(&self, limit: Limit) {
        self.lock().limit = limit;
    }

    /// Reserves bytes, and leaves the margin alone. The drop of the reservation gives them back.
    ///
    /// # Errors
    /// If there is no room. Nothing is reserved then.
    pub fn reserve(&self, owner: &Owner, class: Class, bytes: u64) -> Result<Reservation, OverBudget> {
        self.reserve_within(owner, class, bytes, Reach::Budget)
    }

    /// Reserves bytes within the budget, or within the margin too: that is for the one sequence that must be
    /// able to go on.
    ///
    /// # Errors
    /// If there is no room. Nothing is reserved then.
    pub fn reserve_within(
        &self,
        owner: &Owner,
        class: Class,
        bytes: u64,
        reach: Reach,
    ) -> Result<Reservation, OverBudget> {
        let mut reservation = Reservation::empty(self.clone(), owner.clone(), class);
        reservation.grow_within(bytes, reach)?;
        Ok(reservation)
    }

    /// The sums now. Cheap, and allocates nothing.
    pub fn totals(&self) -> Totals {
        let account = self.lock();
        Totals {
            limit: account.limit.bytes,
            margin: account.limit.margin,
            promised: account.promised,
            kv_promised: account.kv_promised,
            mapped: account.mapped,
            stationary: account.stationary,
        }
    }

    /// The account now.
    pub fn snapshot(&self) -> Snapshot {
        let account = self.lock();
        let mut classes: BTreeMap<Class, Bytes> =
            Class::ALL.into_iter().map(|class| (class, Bytes::default())).collect();
        for ((_, class), bytes) in &account.entries {
            let sum = classes.entry(*class).or_default();
            *sum = sum.plus(*bytes);
        }
        Snapshot { domain: account.domain, limit: account.limit.clone(), classes, largest: account.largest() }
    }

    // An account is whole at every moment at which its holder could panic, so a poisoned lock is no reason to
    // stop.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Whether a charge has room, as an error if not. A charge of nothing always has.
    pub(crate) fn check(
        &self,
        owner: &Owner,
        class: Class,
        charge: Charge,
        reach: Reach,
    ) -> Result<(), OverBudget> {
        let limit = self.limit.within(reach);
        let promise = limit.saturating_sub(self.promised);
        let room = limit.saturating_sub(self.mapped);
        if charge.promised <= promise && charge.mapped <= room {
            return Ok(());
        }
        let available = match (charge.promised, charge.mapped) {
            (0, _) => room,
            (_, 0) => promise,
            _ => promise.min(room),
        };
        Err(self.refusal(owner, class, charge.promised.max(charge.mapped), available))
    }

    pub(crate) fn refusal(&self, owner: &Owner, class: Class, need: u64, available: u64) -> OverBudget {
        OverBudget {
            domain: self.domain,
            owner: owner.clone(),
            class,
            need,
            available,
            limit: self.limit.clone(),
            largest: self.largest(),
        }
    }

    /// Replaces what one reservation holds: `old` goes and `new` comes.
    pub(crate) fn replace(&mut self, owner: &Owner, old: (Class, Bytes), new: (Class, Bytes)) {
        let (gone, come) = (charge(old.0, old.1), charge(new.0, new.1));
        self.promised = self.promised - gone.promised + come.promised;
        self.mapped = self.mapped - gone.mapped + come.mapped;
        for (class, gone, come) in [(old.0, old.1, Bytes::default()), (new.0, Bytes::default(), new.1)] {
            if !class.is_dynamic() {
                self.stationary = self.stationary - gone.reserved + come.reserved;
            } else if class == Class::KvFloor {
                self.kv_promised = self.kv_promised - gone.reserved + come.reserved;
            }
            let entry = self.entries.entry((owner.clone(), class)).or_default();
            *entry = entry.less(gone).plus(come);
        }
        for class in [old.0, new.0] {
            let key = (owner.clone(), class);
            if self.entries.get(&key) == Some(&Bytes::default()) {
                self.entries.remove(&key);
            }
        }
    }

    fn largest(&self) -> Vec<(Owner, u64)> {
        let mut owners: BTreeMap<&Owner, u64> = BTreeMap::new();
        for ((owner, _), bytes) in &self.entries {
            *owners.entry(owner).or_default() += bytes.reserved;
        }
        let mut largest: Vec<(Owner, u64)> =
            owners.into_iter().map(|(owner, bytes)| (owner.clone(), bytes)).collect();
        largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        largest.truncate(LARGEST);
        largest
    }
}

/// What bytes of a class add to the two sums.
pub(crate) fn charge(class: Class, bytes: Bytes) -> Charge {
    Charge { promised: if class.is_revocable() { 0 } else { bytes.reserved }, mapped: bytes.mapped }
}

impl Snapshot {
    /// Bytes of one class.
    pub fn class(&self, class: Class) -> Bytes {
        self.classes.get(&class).copied().unwrap_or_default()
    }

    /// Bytes that are committed.
    pub fn promised(&self) -> u64 {
        self.classes.iter().map(|(class, bytes)| charge(*class, *bytes).promised).sum()
    }

    /// Bytes with memory behind them.
    pub fn mapped(&self) -> u64 {
        self.classes.values().map(|bytes| bytes.mapped).sum()
    }

    /// Bytes that don't depend on the requests: all but KV, caches and checkpoints.
    pub fn stationary(&self) -> u64 {
        let stationary = self.classes.iter().filter(|(class, _)| !class.is_dynamic());
        stationary.map(|(_, bytes)| bytes.reserved).sum()
    }

    /// Bytes of KV, caches and checkpoints with memory behind them.
    pub fn dynamic(&self) -> u64 {
        let dynamic = self.classes.iter().filter(|(class, _)| class.is_dynamic());
        dynamic.map(|(_, bytes)| bytes.mapped).sum()
    }
}
