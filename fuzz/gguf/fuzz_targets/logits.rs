//! `cargo +nightly fuzz run --fuzz-dir . logits` in `fuzz/gguf`.
#![no_main]

use lichen_format::LogitsReader;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut reader) = LogitsReader::new(bytes, bytes.len() as u64) {
        let vocabulary = reader.header().vocabulary as usize;
        while let Ok(Some(row)) = reader.row() {
            assert_eq!(row.len(), vocabulary);
            assert!(row.iter().all(|logit| logit.is_finite()));
        }
    }
});
