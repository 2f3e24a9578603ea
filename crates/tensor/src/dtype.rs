//! The element types a weight can have, with the numbers that GGUF gives them.

/// How the values of a tensor are stored.
///
/// Block formats hold `block_len` values in `block_bytes` bytes; plain formats are blocks of one value.
/// Names and ids follow ggml (`ggml.h`, `enum ggml_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an F32.
    BF16,
    /// 4 bits, one scale per 32.
    Q4_0,
    /// 4 bits, one scale and one minimum per 32.
    Q4_1,
    /// 5 bits, one scale per 32.
    Q5_0,
    /// 5 bits, one scale and one minimum per 32.
    Q5_1,
    /// 8 bits, one scale per 32.
    Q8_0,
    /// 2 bits, scale and minimum per 16, super-blocks of 256.
    Q2K,
    /// 3 bits, scale per 16, super-blocks of 256.
    Q3K,
    /// 4 bits, scale and minimum per 32, super-blocks of 256.
    Q4K,
    /// 5 bits, scale and minimum per 32, super-blocks of 256.
    Q5K,
    /// 6 bits, scale per 16, super-blocks of 256.
    Q6K,
    /// 4 bits through a table of 16 values, one scale per 32.
    Iq4Nl,
    /// 4 bits through a table of 16 values, scale per 32, super-blocks of 256.
    Iq4Xs,
}

#[derive(Clone, Copy)]
struct Row {
    dtype: DType,
    id: u32,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
}

const fn row(dtype: DType, id: u32, name: &'static str, block_len: usize, block_bytes: usize) -> Row {
    Row { dtype, id, name, block_len, block_bytes }
}

const TABLE: [Row; 15] = [
    row(DType::F32, 0, "f32", 1, 4),
    row(DType::F16, 1, "f16", 1, 2),
    row(DType::BF16, 30, "bf16", 1, 2),
    row(DType::Q4_0, 2, "q4_0", 32, 18),
    row(DType::Q4_1, 3, "q4_1", 32, 20),
    row(DType::Q5_0, 6, "q5_0", 32, 22),
    row(DType::Q5_1, 7, "q5_1", 32, 24),
    row(DType::Q8_0, 8, "q8_0", 32, 34),
    row(DType::Q2K, 10, "q2_k", 256, 84),
    row(DType::Q3K, 11, "q3_k", 256, 110),
    row(DType::Q4K, 12, "q4_k", 256, 144),
    row(DType::Q5K, 13, "q5_k", 256, 176),
    row(DType::Q6K, 14, "q6_k", 256, 210),
    row(DType::Iq4Nl, 20, "iq4_nl", 32, 18),
    row(DType::Iq4Xs, 23, "iq4_xs", 256, 136),
];

impl DType {
    /// Every type, plain ones first.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.dtype)
    }

    /// The type with this ggml number, if it is one we can read.
    pub fn from_ggml(id: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.id == id).map(|row| row.dtype)
    }

    const fn row(self) -> Row {
        TABLE[self as usize]
    }

    /// The ggml number of this type.
    pub fn ggml_id(self) -> u32 {
        self.row().id
    }

    /// The lower-case name, as tools of the field print it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Values in a block.
    pub const fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of `values` consecutive values, or `None` if they don't fill whole blocks or overflow.
    pub fn bytes_for(self, values: u64) -> Option<u64> {
        let len = self.block_len() as u64;
        if !values.is_multiple_of(len) {
            return None;
        }
        (values / len).checked_mul(self.block_bytes() as u64)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for dtype in DType::all() {
            assert_eq!(dtype.row().dtype, dtype);
            assert_eq!(DType::from_ggml(dtype.ggml_id()), Some(dtype));
        }
    }

    #[test]
    fn a_partial_block_has_no_size() {
        assert_eq!(DType::Q4_0.bytes_for(64), Some(36));
        assert_eq!(DType::Q4_0.bytes_for(33), None);
        assert_eq!(DType::F32.bytes_for(u64::MAX), None);
    }
}
