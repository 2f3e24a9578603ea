//! The encoders of `lichen-tensor` against model files that llama.cpp quantised without importance weights.
#![expect(clippy::unwrap_used, reason = "what fails is a failed test")]

use std::path::PathBuf;

use lichen_format::Checkpoint;
use lichen_tensor::DType;
use lichen_tensor::quant::{decode, encode};

fn open(file: &str) -> Checkpoint {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data");
    Checkpoint::open(&data.join(file)).unwrap()
}

/// Number of tensors of `dtype` in `quantised` whose bytes are the encoded values of `source`.
fn compare(source: &Checkpoint, quantised: &Checkpoint, dtype: DType) -> usize {
    let tensors = quantised.tensors.iter().filter(|tensor| tensor.dtype == dtype);
    let compared = tensors.map(|tensor| {
        let from = source.tensor(&tensor.name).unwrap();
        let mut values = vec![0.0; from.shape.iter().product::<u64>() as usize];
        decode(from.dtype, &source.data(from), &mut values).unwrap();
        let expected = quantised.data(tensor);
        let mut bytes = vec![0; expected.len()];
        encode(dtype, &values, &mut bytes).unwrap();
        let wrong = (0..bytes.len()).find(|&at| bytes[at] != expected[at]);
        assert_eq!(wrong, None, "{dtype}, {}: first wrong byte of {}", tensor.name, bytes.len());
    });
    compared.count()
}

#[test]
fn every_encoder_gives_the_bytes_of_ggml() {
    let source = open("llama/model-f32.gguf");
    let types = [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Iq4Nl];
    for dtype in [DType::F32, DType::F16, DType::BF16].into_iter().chain(types) {
        let quantised = open(&format!("llama/model-{dtype}.gguf"));
        let compared = compare(&source, &quantised, dtype);
        assert!(compared >= 10, "{dtype}: only {compared} tensors");
    }
}
