//! Keys and values in pages of 64 tokens.
//!
//! A page holds all layers of its tokens. Within a layer and a head, keys lie `[dimension][token]` and values
//! `[token][dimension]`, dimensions padded to a multiple of 8, so that attention reads both along its vectors.

use half::f16;
use lichen_backend::PageId;
use lichen_op::KvLayout;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 64;

/// How the numbers of a page are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvPrecision {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// The numbers of one page; its precision is its own.
#[derive(Debug, Clone)]
pub(crate) enum Numbers {
    F16(Box<[u16]>),
    F32(Box<[f32]>),
}

/// One page. Whoever holds it together with others only reads it.
#[derive(Debug)]
pub(crate) struct Page {
    id: PageId,
    pub(crate) numbers: Numbers,
    /// How many pages there are.
    live: Arc<AtomicUsize>,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A page that is held besides the sequences.
#[derive(Debug)]
struct Held {
    page: Arc<Page>,
    times: usize,
}

/// Where one layer lies in a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerPlace {
    offset: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// `head_dim`, padded.
    pub(crate) stride: usize,
}

impl LayerPlace {
    /// Where the keys of a head begin.
    pub(crate) fn keys(&self, head: usize) -> usize {
        self.offset + head * 2 * self.stride * PAGE_TOKENS
    }

    /// Where the values of a head begin.
    pub(crate) fn values(&self, head: usize) -> usize {
        self.keys(head) + self.stride * PAGE_TOKENS
    }
}

/// The pages of one sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceKv {
    pub(crate) pages: Vec<Arc<Page>>,
    len: usize,
}

/// The pages of all sequences of a model.
#[derive(Debug)]
pub(crate) struct Kv {
    places: Vec<LayerPlace>,
    page_numbers: usize,
    precision: KvPrecision,
    sequences: HashMap<u64, SequenceKv>,
    held: HashMap<PageId, Held>,
    next_page: u64,
    live: Arc<AtomicUsize>,
}

impl Kv {
    pub(crate) fn new(layout: &KvLayout, precision: KvPrecision) -> Self {
        let mut offset = 0;
        let mut place = |layer: &lichen_op::KvLayer| {
            let stride = layer.head_dim.next_multiple_of(8);
            let place = LayerPlace { offset, kv_heads: layer.kv_heads, head_dim: layer.head_dim, stride };
            offset += layer.kv_heads * 2 * stride * PAGE_TOKENS;
            place
        };
        let places = layout.layers.iter().map(&mut place).collect();
        Self {
            places,
            page_numbers: offset,
            precision,
            sequences: HashMap::new(),
            held: HashMap::new(),
            next_page: 0,
            live: Arc::default(),
        }
    }

    pub(crate) fn place(&self, layer: usize) -> LayerPlace {
        self.places[layer]
    }

    /// Tokens stored of a sequence.
    pub(crate) fn len(&self, sequence: u64) -> usize {
        self.sequences.get(&sequence).map_or(0, |kv| kv.len)
    }

    /// Makes room for tokens `past..past + more` of a sequence and forgets what lies beyond `past`.
    pub(crate) fn reserve(&mut self, sequence: u64, past: usize, more: usize) {
        let mut kv = self.sequences.remove(&sequence).unwrap_or_default();
        kv.len = past + more;
        let pages = kv.len.div_ceil(PAGE_TOKENS);
        kv.pages.truncate(pages);
        let first_written = past / PAGE_TOKENS;
        for page in kv.pages.iter_mut().skip(first_written) {
            if Arc::get_mut(page).is_none() {
                *page = self.page(page.numbers.clone());
            }
        }
        while kv.pages.len() < pages {
            let numbers = match self.precision {
                KvPrecision::F16 => Numbers::F16(vec![0; self.page_numbers].into_boxed_slice()),
                KvPrecision::F32 => Numbers::F32(vec![0.0; self.page_numbers].into_boxed_slice()),
            };
            kv.pages.push(self.page(numbers));
        }
        self.sequences.insert(sequence, kv);
    }

    fn page(&mut self, numbers: Numbers) -> Arc<Page> {
        let id = PageId(self.next_page);
        self.next_page += 1;
        self.live.fetch_add(1, Ordering::Relaxed);
        Arc::new(Page { id, numbers, live: self.live.clone() })
    }

    /// Pages that exist.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Takes a reference on each page of a sequence.
    pub(crate) fn hold(&mut self, sequence: u64) -> Vec<PageId> {
        let Some(kv) = self.sequences.get(&sequence) else { return Vec::new() };
        let hold = |page: &Arc<Page>| {
            self.held.entry(page.id).or_insert_with(|| Held { page: page.clone(), times: 0 }).times += 1;
            page.id
        };
        kv.pages.iter().map(hold).collect()
    }

    /// Begins a sequence with the first `tokens` tokens of held pages.
    pub(crate) fn adopt(&mut self, sequence: u64, pages: &[PageId], tokens: usize) {
        let page = |id: &PageId| self.held.get(id).expect("adopted pages are held").page.clone();
        let pages = pages.iter().take(tokens.div_ceil(PAGE_TOKENS)).map(page).collect();
        self.sequences.insert(sequence, SequenceKv { pages, len: tokens });
    }

    /// Gives back one reference.
    pub(crate) fn release(&mut self, page: PageId) {
        let Some(held) = self.held.get_mut(&page) else { return };
        held.times -= 1;
        if held.times == 0 {
            self.held.remove(&page);
        }
    }

    /// Sequences that have this held page.
    pub(crate) fn users(&self, page: PageId) -> usize {
        self.held.get(&page).map_or(0, |held| Arc::strong_count(&held.page) - 1)
    }

    pub(crate) fn drop_sequence(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }

    pub(crate) fn pages(&self, sequence: u64) -> &[Arc<Page>] {
        self.sequences.get(&sequence).map_or(&[], |kv| &kv.pages)
    }

    /// Stores keys and values `[kv_heads, head_dim]` of one token.
    pub(crate) fn store(&mut self, sequence: u64, index: usize, layer: usize, keys: &[f32], values: &[f32]) {
        let place = self.places[layer];
        let Some(kv) = self.sequences.get_mut(&sequence) else { return };
        let page =
            Arc::get_mut(&mut kv.pages[index / PAGE_TOKENS]).expect("reserved pages are the sequence's own");
        let (page, token) = (&mut page.numbers, index % PAGE_TOKENS);
        for head in 0..place.kv_heads {
            let (key_at, value_at) = (place.keys(head) + token, place.values(head) + token * place.stride);
            for dim in 0..place.head_dim {
                let at = head * place.head_dim + dim;
                page.set(key_at + dim * PAGE_TOKENS, keys[at]);
                page.set(value_at + dim, values[at]);
            }
        }
    }
}

impl Numbers {
    fn set(&mut self, at: usize, value: f32) {
        match self {
            Self::F16(numbers) => numbers[at] = f16::from_f32(value).to_bits(),
            Self::F32(numbers) => numbers[at] = value,
        }
    }
}
