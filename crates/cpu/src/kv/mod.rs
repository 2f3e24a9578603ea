//! Keys and values in pages of 64 tokens, each with a precision of its own.
//!
//! A page is written in the open precision. Once it is full and behind the newest full page of every sequence that has
//! it, it is sealed: converted to a coarser one. The first page of a sequence is never sealed, since attention keeps
//! returning to its tokens. Each page is a mapping of its own, so that a page that goes gives its memory to the system.

pub(crate) mod codec;
mod layout;

pub(crate) use layout::{GROUP, Head, HeadShape, Layout};
pub use layout::{PAGE_TOKENS, page_bytes};

use crate::table::Kernels;
use crate::team::Team;
use foldhash::fast::FixedState;
use half::f16;
use lichen_backend::{KvPrecision, PageError, PageId, PageSet};
use memmap2::MmapMut;
use std::collections::HashMap;
use std::sync::Mutex;

/// Tokens before the newest one that are never sealed.
const RECENT_TOKENS: usize = PAGE_TOKENS;

/// One page.
#[derive(Debug)]
pub(crate) struct Page {
    precision: KvPrecision,
    bytes: MmapMut,
    /// Which page of its sequences it is.
    index: usize,
    /// Tokens stored.
    tokens: usize,
    /// Sequences that have it.
    sequences: usize,
    /// References besides them.
    holds: usize,
}

impl Page {
    /// One head; `head` counts within the layer.
    pub(crate) fn head(&self, layout: &Layout, layer: usize, head: usize) -> Head<'_> {
        let shape = layout.shape(layer);
        let bytes = shape.bytes(self.precision);
        let at = layout.offset(self.precision, layer) + head * bytes;
        Head::new(self.precision, shape, &self.bytes[at..][..bytes])
    }
}

/// The pages of one sequence.
#[derive(Debug, Default)]
struct SequenceKv {
    pages: Vec<PageId>,
    len: usize,
}

/// What converts pages.
#[derive(Clone, Copy)]
pub(crate) struct Converter<'c> {
    pub(crate) team: &'c Team,
    pub(crate) kernels: &'static Kernels,
}

impl Converter<'_> {
    /// The bytes of a page in another precision.
    fn convert(&self, layout: &Layout, page: &Page, precision: KvPrecision) -> Result<MmapMut, PageError> {
        let mut bytes = MmapMut::map_anon(layout.page_bytes(precision))?;
        let (mut from, mut to) = (&page.bytes[..], &mut bytes[..]);
        let mut tasks = Vec::new();
        for shape in layout.heads() {
            let head = from.split_off(..shape.bytes(page.precision)).expect("a page is all its heads");
            let out = to.split_off_mut(..shape.bytes(precision)).expect("a page is all its heads");
            tasks.push((Head::new(page.precision, shape, head), shape, Mutex::new(out)));
        }
        self.team.run(tasks.len(), |task, _| {
            let (head, shape, out) = &tasks[task];
            (self.kernels.convert)(head, *shape, precision, &mut out.lock().expect("each head is one task"));
        });
        Ok(bytes)
    }
}

/// The pages of all sequences of a model.
#[derive(Debug)]
pub(crate) struct Kv {
    layout: Layout,
    /// Of pages that are being written.
    open: KvPrecision,
    /// Of pages sealed from now on.
    sealed: KvPrecision,
    /// Found for each page and few query rows of attention, so by a quick hash: names are numbers of our own.
    pages: HashMap<PageId, Page, FixedState>,
    sequences: HashMap<u64, SequenceKv>,
    next_page: u64,
}

impl Kv {
    pub(crate) fn new(layout: Layout, open: KvPrecision) -> Self {
        let (pages, sequences) = (HashMap::default(), HashMap::new());
        Self { layout, open, sealed: open, pages, sequences, next_page: 0 }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The precision that pages are sealed in.
    pub(crate) fn sealed(&self) -> KvPrecision {
        self.sealed
    }

    /// Seals pages in this precision from now on, or not at all if it isn't coarser than that of open pages.
    pub(crate) fn seal_in(&mut self, precision: KvPrecision) {
        self.sealed = precision.min(self.open);
    }

    /// Tokens stored of a sequence.
    pub(crate) fn len(&self, sequence: u64) -> usize {
        self.sequences.get(&sequence).map_or(0, |kv| kv.len)
    }

    /// Makes room for tokens `past..past + more` of a sequence and forgets what lies beyond `past`. Full pages far
    /// enough behind are sealed.
    pub(crate) fn reserve(
        &mut self,
        sequence: u64,
        past: usize,
        more: usize,
        converter: Converter<'_>,
    ) -> Result<(), PageError> {
        let mut pages = std::mem::take(&mut self.sequence_mut(sequence).pages);
        let kept = past.div_ceil(PAGE_TOKENS).min(pages.len());
        pages.drain(kept..).for_each(|page| self.leave(page));
        // What this step is going to write can't be sealed yet.
        *self.sequence_mut(sequence) = SequenceKv { pages, len: past };
        if self.sealed < self.open {
            self.requantise(PageSet::Sequence(sequence), self.sealed, converter)?;
        }
        let mut pages = std::mem::take(&mut self.sequence_mut(sequence).pages);
        let grown = self.grow(&mut pages, past, past + more, converter);
        let len = if grown.is_ok() { past + more } else { past };
        *self.sequence_mut(sequence) = SequenceKv { pages, len };
        grown
    }

    /// A sequence, which has nothing if it is new.
    fn sequence_mut(&mut self, sequence: u64) -> &mut SequenceKv {
        self.sequences.entry(sequence).or_default()
    }

    /// Gives a sequence pages of its own for tokens `past..len`.
    fn grow(
        &mut self,
        pages: &mut Vec<PageId>,
        past: usize,
        len: usize,
        converter: Converter<'_>,
    ) -> Result<(), PageError> {
        for index in past / PAGE_TOKENS..len.div_ceil(PAGE_TOKENS) {
            match pages.get(index) {
                Some(&page) => {
                    let own = self.own(page, converter)?;
                    pages[index] = own;
                }
                None => {
                    let bytes = MmapMut::map_anon(self.layout.page_bytes(self.open))?;
                    pages.push(self.insert(self.open, bytes, index));
                }
            }
            let page = self.pages.get_mut(&pages[index]).expect("pages of sequences exist");
            page.tokens = PAGE_TOKENS.min(len - index * PAGE_TOKENS);
        }
        Ok(())
    }

    /// The page itself if only one sequence has it and it is open, else an open copy.
    fn own(&mut self, id: PageId, converter: Converter<'_>) -> Result<PageId, PageError> {
        let page = &self.pages[&id];
        let (shared, index) = (page.sequences + page.holds > 1, page.index);
        if !shared && page.precision == self.open {
            return Ok(id);
        }
        let bytes = if page.precision == self.open {
            let mut bytes = MmapMut::map_anon(page.bytes.len())?;
            bytes.copy_from_slice(&page.bytes);
            bytes
        } else {
            converter.convert(&self.layout, page, self.open)?
        };
        self.leave(id);
        Ok(self.insert(self.open, bytes, index))
    }

    /// A new page that one sequence has.
    fn insert(&mut self, precision: KvPrecision, bytes: MmapMut, index: usize) -> PageId {
        let id = PageId(self.next_page);
        self.next_page += 1;
        self.pages.insert(id, Page { precision, bytes, index, tokens: 0, sequences: 1, holds: 0 });
        id
    }

    fn page_mut(&mut self, id: PageId) -> &mut Page {
        self.pages.get_mut(&id).expect("pages of sequences and held pages exist")
    }

    /// One sequence less has a page.
    fn leave(&mut self, id: PageId) {
        self.page_mut(id).sequences -= 1;
        self.drop_unused(id);
    }

    fn drop_unused(&mut self, id: PageId) {
        let page = self.page_mut(id);
        if page.sequences + page.holds == 0 {
            self.pages.remove(&id);
        }
    }

    /// Whether a page is full, not the first, and not among the newest of any sequence.
    fn may_be_sealed(&self, id: PageId, page: &Page) -> bool {
        let newest = (page.index + 1) * PAGE_TOKENS + RECENT_TOKENS;
        let recent = |kv: &SequenceKv| kv.pages.get(page.index) == Some(&id) && kv.len < newest;
        page.index > 0 && page.tokens == PAGE_TOKENS && !self.sequences.values().any(recent)
    }

    /// Makes pages coarser where that is allowed, and returns the bytes given back.
    pub(crate) fn requantise(
        &mut self,
        pages: PageSet,
        precision: KvPrecision,
        converter: Converter<'_>,
    ) -> Result<u64, PageError> {
        let finer = |id: &PageId| {
            let page = self.pages.get(id);
            page.is_some_and(|page| page.precision > precision && self.may_be_sealed(*id, page))
        };
        let ids: Vec<PageId> = match pages {
            PageSet::Page(page) => Some(page).into_iter().filter(finer).collect(),
            PageSet::Sequence(sequence) => {
                self.sequence_pages(sequence).iter().copied().filter(finer).collect()
            }
            PageSet::Held => {
                let held = self.pages.iter().filter(|(_, page)| page.holds > 0);
                held.map(|(&id, _)| id).filter(finer).collect()
            }
        };
        let mut given_back = 0;
        for id in ids {
            let page = &self.pages[&id];
            let bytes = converter.convert(&self.layout, page, precision)?;
            given_back += (page.bytes.len() - bytes.len()) as u64;
            let page = self.page_mut(id);
            (page.precision, page.bytes) = (precision, bytes);
        }
        Ok(given_back)
    }

    /// Pages that exist.
    pub(crate) fn live(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of all pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.values().map(|page| page.bytes.len() as u64).sum()
    }

    /// Bytes of a page.
    pub(crate) fn size(&self, page: PageId) -> u64 {
        self.pages.get(&page).map_or(0, |page| page.bytes.len() as u64)
    }

    /// Takes a reference on each page of a sequence.
    pub(crate) fn hold(&mut self, sequence: u64) -> Vec<PageId> {
        let pages = self.sequence_pages(sequence).to_vec();
        pages.iter().for_each(|&id| self.page_mut(id).holds += 1);
        pages
    }

    /// Begins a sequence with the first `tokens` tokens of held pages.
    pub(crate) fn adopt(&mut self, sequence: u64, pages: &[PageId], tokens: usize) {
        self.drop_sequence(sequence);
        let pages = pages[..tokens.div_ceil(PAGE_TOKENS).min(pages.len())].to_vec();
        for (index, id) in pages.iter().enumerate() {
            let page = self.pages.get_mut(id).filter(|page| page.holds > 0).expect("adopted pages are held");
            page.sequences += 1;
            page.index = index;
            page.tokens = page.tokens.max(PAGE_TOKENS.min(tokens - index * PAGE_TOKENS));
        }
        let len = tokens.min(pages.len() * PAGE_TOKENS);
        self.sequences.insert(sequence, SequenceKv { pages, len });
    }

    /// Gives back one reference.
    pub(crate) fn release(&mut self, id: PageId) {
        if self.pages.get(&id).is_some_and(|page| page.holds > 0) {
            self.page_mut(id).holds -= 1;
            self.drop_unused(id);
        }
    }

    /// Sequences that have this page.
    pub(crate) fn users(&self, page: PageId) -> usize {
        self.pages.get(&page).map_or(0, |page| page.sequences)
    }

    pub(crate) fn drop_sequence(&mut self, sequence: u64) {
        let pages = self.sequences.remove(&sequence).map(|kv| kv.pages).unwrap_or_default();
        pages.into_iter().for_each(|page| self.leave(page));
    }

    pub(crate) fn sequence_pages(&self, sequence: u64) -> &[PageId] {
        self.sequences.get(&sequence).map_or(&[], |kv| &kv.pages)
    }

    /// One head of a layer in a page.
    pub(crate) fn head(&self, page: PageId, layer: usize, head: usize) -> Head<'_> {
        self.pages[&page].head(&self.layout, layer, head)
    }

    /// A page as it is stored.
    pub(crate) fn export(&self, page: PageId) -> Option<(KvPrecision, Vec<u8>)> {
        self.pages.get(&page).map(|page| (page.precision, page.bytes.to_vec()))
    }

    /// A held page from stored bytes.
    pub(crate) fn import(&mut self, precision: KvPrecision, bytes: &[u8]) -> Result<PageId, PageError> {
        let needed = self.layout.page_bytes(precision);
        if bytes.len() != needed {
            return Err(PageError::Length { precision, got: bytes.len(), needed: needed as u64 });
        }
        if precision > self.open {
            return Err(PageError::Unsupported(precision));
        }
        let mut mapped = MmapMut::map_anon(needed)?;
        mapped[..needed].copy_from_slice(bytes);
        let mut rest = &mapped[..];
        for shape in self.layout.heads() {
            let head = rest.split_off(..shape.bytes(precision)).expect("the length was compared");
            if !is_finite(&Head::new(precision, shape, head)) {
                return Err(PageError::NotFinite(precision));
            }
        }
        let id = self.insert(precision, mapped, 0);
        let page = self.page_mut(id);
        (page.sequences, page.holds) = (0, 1);
        Ok(id)
    }

    /// Stores keys and values `[kv_heads, head_dim]` of one token.
    pub(crate) fn store(&mut self, sequence: u64, index: usize, layer: usize, keys: &[f32], values: &[f32]) {
        let Some(kv) = self.sequences.get(&sequence) else { return };
        let page = self.pages.get_mut(&kv.pages[index / PAGE_TOKENS]).expect("pages of sequences exist");
        debug_assert!(page.sequences + page.holds == 1, "reserved pages are the sequence's own");
        let (precision, shape, token) = (page.precision, self.layout.shape(layer), index % PAGE_TOKENS);
        let offset = self.layout.offset(precision, layer);
        let heads = page.bytes[offset..].chunks_exact_mut(shape.bytes(precision));
        let numbers = keys.chunks_exact(shape.head_dim).zip(values.chunks_exact(shape.head_dim));
        for (head, (keys, values)) in heads.zip(numbers) {
            let (stored_keys, stored_values) = head.split_at_mut(head.len() / 2);
            match precision {
                KvPrecision::F32 => {
                    put(keys, values, stored_keys, stored_values, shape, token, |number| number);
                }
                _ => {
                    let half = |number| f16::from_f32(number).to_bits();
                    put(keys, values, stored_keys, stored_values, shape, token, half);
                }
            }
        }
    }
}

/// Writes one token of a head whose numbers are stored one by one.
fn put<T: bytemuck::Pod>(
    keys: &[f32],
    values: &[f32],
    stored_keys: &mut [u8],
    stored_values: &mut [u8],
    shape: HeadShape,
    token: usize,
    stored: impl Fn(f32) -> T,
) {
    let stored_keys: &mut [T] = bytemuck::cast_slice_mut(stored_keys);
    let stored_values: &mut [T] = bytemuck::cast_slice_mut(stored_values);
    for (dim, (&key, &value)) in keys.iter().zip(values).enumerate() {
        stored_keys[dim * PAGE_TOKENS + token] = stored(key);
        stored_values[token * shape.stride + dim] = stored(value);
    }
}

/// Whether all numbers that are no codes are finite.
fn is_finite(head: &Head<'_>) -> bool {
    let halves = |halves: &[u16]| halves.iter().all(|&bits| f16::from_bits(bits).is_finite());
    let floats = |floats: &[f32]| floats.iter().all(|number| number.is_finite());
    let parts = &head.parts;
    let numbers = match head.precision {
        KvPrecision::F32 => [parts.keys, parts.values].map(bytemuck::cast_slice).into_iter().all(floats),
        KvPrecision::F16 => [parts.keys, parts.values].map(bytemuck::cast_slice).into_iter().all(halves),
        KvPrecision::Q8 | KvPrecision::Q5 | KvPrecision::Q4 => true,
    };
    numbers && [parts.steps, parts.minimums, parts.scales].into_iter().all(halves)
}

#[cfg(test)]
mod tests;
