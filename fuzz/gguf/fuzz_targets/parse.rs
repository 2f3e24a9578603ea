//! `cargo +nightly fuzz run --fuzz-dir . parse` in `fuzz/gguf`; oracle/data/llama/*.gguf make a good first corpus.
#![no_main]

use lichen_format::Checkpoint;
use lichen_tensor::SharedBytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(checkpoint) = Checkpoint::parse(SharedBytes::from(bytes.to_vec())) {
        for tensor in &checkpoint.tensors {
            let expected = tensor.dtype.bytes_for(tensor.shape.iter().product());
            assert_eq!(expected, Some(checkpoint.data(tensor).len() as u64));
        }
    }
});
