//! Pages as sequences and others have them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::table;
use lichen_op::{KvLayer, KvLayout};
use std::sync::Arc;

const HEAD_DIM: usize = 64;

struct Pages {
    kv: Kv,
    team: Arc<Team>,
    layers: usize,
}

impl Pages {
    fn new(layers: usize) -> Self {
        let layer = KvLayer { kv_heads: 2, head_dim: HEAD_DIM, window: None };
        let layout = Layout::new(&KvLayout { layers: vec![layer; layers] });
        Self { kv: Kv::new(layout, KvPrecision::F16), team: Team::of(1).unwrap(), layers }
    }

    fn converter(&self) -> (Arc<Team>, &'static Kernels) {
        let best = table::instruction_sets().next().unwrap();
        (self.team.clone(), table::kernels(best).unwrap())
    }

    /// Writes tokens `past..past + more`.
    fn write(&mut self, sequence: u64, past: usize, more: usize) {
        let (team, kernels) = self.converter();
        self.kv.reserve(sequence, past, more, Converter { team: &team, kernels }).unwrap();
        for token in past..past + more {
            for layer in 0..self.layers {
                let numbers: Vec<f32> = (0..2 * HEAD_DIM)
                    .map(|i| (token as f32 * 0.37 + i as f32 * 1.1 + layer as f32).sin())
                    .collect();
                self.kv.store(sequence, token, layer, &numbers, &numbers);
            }
        }
    }

    fn requantise(&mut self, pages: PageSet, precision: KvPrecision) -> u64 {
        let (team, kernels) = self.converter();
        self.kv.requantise(pages, precision, Converter { team: &team, kernels }).unwrap()
    }

    /// The precisions of a sequence's pages.
    fn precisions(&self, sequence: u64) -> Vec<&'static str> {
        let pages = self.kv.sequence_pages(sequence).iter();
        pages.map(|page| self.kv.export(*page).unwrap().0.name()).collect()
    }
}

#[test]
fn a_page_has_the_bytes_of_its_layout() {
    // Qwen2.5 0.5B: 12288, 6528, 3840 and 3456 bytes a token.
    let pages = Pages::new(24);
    let bytes = |precision| pages.kv.layout().page_bytes(precision) / PAGE_TOKENS;
    assert_eq!(KvPrecision::ALL.map(bytes), [3456, 3840, 6528, 12288, 24576]);
}

#[test]
fn full_pages_behind_the_newest_are_sealed_and_the_first_never() {
    let mut pages = Pages::new(1);
    pages.kv.seal_in(KvPrecision::Q4);
    pages.write(1, 0, 300);
    assert_eq!(pages.precisions(1), ["f16"; 5], "what a step writes is sealed by a later one");
    pages.write(1, 300, 1);
    assert_eq!(pages.precisions(1), ["f16", "q4", "q4", "f16", "f16"]);
    pages.kv.seal_in(KvPrecision::Q8);
    pages.write(1, 301, 19);
    pages.write(1, 320, 1);
    assert_eq!(pages.precisions(1), ["f16", "q4", "q4", "q8", "f16", "f16"], "coarser pages stay");
    let sizes = [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q4].map(|p| pages.kv.layout().page_bytes(p));
    assert_eq!(pages.kv.bytes(), (3 * sizes[0] + sizes[1] + 2 * sizes[2]) as u64);
}

#[test]
fn going_back_within_the_window_finds_open_pages() {
    let mut pages = Pages::new(1);
    pages.kv.seal_in(KvPrecision::Q4);
    pages.write(1, 0, 256);
    pages.write(1, 256, 8);
    let before = pages.kv.sequence_pages(1)[3];
    assert_eq!(pages.precisions(1), ["f16", "q4", "q4", "f16", "f16"]);
    pages.write(1, 200, 3);
    assert_eq!(pages.kv.sequence_pages(1)[3], before, "the page is the same");
    // Into a sealed page: it is opened again.
    pages.write(1, 150, 3);
    assert_eq!(pages.precisions(1), ["f16", "q4", "f16"]);
    assert_eq!(pages.kv.len(1), 153);
}

#[test]
fn pages_only_become_coarser_and_give_back_what_that_saves() {
    let mut pages = Pages::new(3);
    pages.write(1, 0, 256);
    let size = |pages: &Pages, precision| pages.kv.layout().page_bytes(precision) as u64;
    let mut precision = KvPrecision::F16;
    for (asked, becomes) in [
        (KvPrecision::F32, KvPrecision::F16),
        (KvPrecision::Q8, KvPrecision::Q8),
        (KvPrecision::F16, KvPrecision::Q8),
        (KvPrecision::Q5, KvPrecision::Q5),
        (KvPrecision::Q4, KvPrecision::Q4),
        (KvPrecision::Q5, KvPrecision::Q4),
        (KvPrecision::Q4, KvPrecision::Q4),
    ] {
        let (before, ids) = (pages.kv.bytes(), pages.kv.sequence_pages(1).to_vec());
        let given_back = pages.requantise(PageSet::Sequence(1), asked);
        assert_eq!(given_back, 2 * (size(&pages, precision) - size(&pages, becomes)), "to {asked}");
        assert_eq!(pages.kv.bytes(), before - given_back);
        assert_eq!(pages.kv.sequence_pages(1), ids, "pages keep their names");
        assert_eq!(pages.precisions(1), ["f16", becomes.name(), becomes.name(), "f16"]);
        precision = becomes;
    }
}

#[test]
fn whoever_has_a_page_sees_it_requantised() {
    let mut pages = Pages::new(1);
    pages.write(1, 0, 256);
    let held = pages.kv.hold(1);
    pages.kv.adopt(2, &held, 250);
    assert_eq!(pages.requantise(PageSet::Page(held[3]), KvPrecision::Q4), 0, "one sequence is still at it");
    assert!(pages.requantise(PageSet::Page(held[1]), KvPrecision::Q4) > 0);
    for sequence in [1, 2] {
        assert_eq!(pages.precisions(sequence), ["f16", "q4", "f16", "f16"]);
    }
    pages.kv.drop_sequence(1);
    pages.kv.drop_sequence(2);
    pages.requantise(PageSet::Held, KvPrecision::Q5);
    pages.kv.adopt(3, &held, 256);
    assert_eq!(pages.precisions(3), ["f16", "q4", "q5", "q5"]);
    // A page that others have is written in a copy.
    pages.write(3, 200, 1);
    assert_eq!(pages.precisions(3), ["f16", "q4", "q5", "f16"]);
    assert_eq!((pages.kv.live(), pages.kv.export(held[3]).unwrap().0), (5, KvPrecision::Q5));
    pages.kv.drop_sequence(3);
    held.into_iter().for_each(|page| pages.kv.release(page));
    assert_eq!((pages.kv.live(), pages.kv.bytes()), (0, 0));
}

#[test]
fn an_exported_page_comes_back_as_it_was() {
    let mut pages = Pages::new(2);
    pages.write(1, 0, 256);
    pages.requantise(PageSet::Page(pages.kv.sequence_pages(1)[1]), KvPrecision::Q8);
    pages.requantise(PageSet::Page(pages.kv.sequence_pages(1)[2]), KvPrecision::Q4);
    let stored: Vec<_> =
        pages.kv.sequence_pages(1).iter().map(|page| pages.kv.export(*page).unwrap()).collect();
    let mut other = Pages::new(2);
    let import = |(precision, bytes): &(KvPrecision, Vec<u8>)| other.kv.import(*precision, bytes).unwrap();
    let imported: Vec<PageId> = stored.iter().map(import).collect();
    assert_eq!(other.requantise(PageSet::Held, KvPrecision::Q4), 0, "nobody has said which tokens they are");
    other.kv.adopt(9, &imported, 250);
    let again: Vec<_> = imported.iter().map(|page| other.kv.export(*page).unwrap()).collect();
    assert!(again == stored);
    other.write(9, 250, 10);
    assert_eq!(other.precisions(9), ["f16", "q8", "q4", "f16", "f16"]);
}

#[test]
fn bytes_that_are_no_page_are_refused() {
    let mut pages = Pages::new(1);
    for precision in [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4] {
        let len = pages.kv.layout().page_bytes(precision);
        for wrong in [0, 1, len - 1, len + 1, 2 * len] {
            let refused = pages.kv.import(precision, &vec![0; wrong]);
            assert!(matches!(refused, Err(PageError::Length { got, .. }) if got == wrong), "{precision}");
        }
        // All bits set is no number in half precision.
        let refused = pages.kv.import(precision, &vec![0xff; len]);
        assert!(matches!(refused, Err(PageError::NotFinite(_))), "{precision}");
        assert_eq!(pages.kv.live(), 0);
        let zeros = pages.kv.import(precision, &vec![0; len]).unwrap();
        pages.kv.release(zeros);
    }
    let single = vec![0; pages.kv.layout().page_bytes(KvPrecision::F32)];
    assert!(matches!(pages.kv.import(KvPrecision::F32, &single), Err(PageError::Unsupported(_))));
}

/// Memory of this process that is resident, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn memory_goes_back_to_the_system() {
    // In a process of its own: others' memory would count.
    const ALONE: &str = "LICHEN_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["kv::tests::memory_goes_back_to_the_system", "--exact"]).env(ALONE, "1");
        let output = alone.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let mut pages = Pages::new(24);
    pages.write(1, 0, 4096);
    let (before, bytes) = (resident(), pages.kv.bytes());
    assert_eq!(bytes, 4096 * 12288);
    let given_back = pages.requantise(PageSet::Sequence(1), KvPrecision::Q4);
    assert_eq!(given_back, 62 * 64 * (12288 - 3456));
    let fell = before.saturating_sub(resident());
    assert!(fell > given_back * 9 / 10, "{fell} of {given_back} bytes");
    pages.kv.drop_sequence(1);
    let fell = before.saturating_sub(resident());
    assert!(fell > bytes * 9 / 10, "{fell} of {bytes} bytes");
}
