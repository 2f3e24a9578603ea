//! Pages of keys and values: their names, how precise they are, and which ones a call is about.

/// The name of a page of keys and values, the same for all who hold it and never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u64);

/// How the numbers of a page are stored, from coarse to fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KvPrecision {
    /// Keys in 4 bits with a scale and a minimum per channel of a page (KIVI, arXiv 2402.02750), values in 4 bits with
    /// a scale per token and 32 values after a Hadamard transform (QuaRot, arXiv 2404.00456).
    Q4,
    /// As [`KvPrecision::Q4`] with keys in 5 bits.
    Q5,
    /// Keys in 8 bits with a scale and a minimum per channel, values in 8 bits with a scale per token and 32 values.
    Q8,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvPrecision {
    /// All of them, from coarse to fine.
    pub const ALL: [Self; 5] = [Self::Q4, Self::Q5, Self::Q8, Self::F16, Self::F32];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4 => "q4",
            Self::Q5 => "q5",
            Self::Q8 => "q8",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

impl std::fmt::Display for KvPrecision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for KvPrecision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| format!("{text:?} is no precision of keys and values; give f16, q8, q5 or q4"))
    }
}

/// Which pages a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSet {
    /// This one.
    Page(PageId),
    /// Those of a sequence.
    Sequence(u64),
    /// Those that are held besides the sequences.
    Held,
}

/// Why the stored bytes of a page are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The backend has no pages, or not of this precision.
    #[error("this backend can't take pages in {0}; compute the tokens again")]
    Unsupported(KvPrecision),
    /// Not the length of a page of this model.
    #[error("a page in {precision} has {needed} bytes and {got} were given; they are of another model")]
    Length {
        /// What they are said to be.
        precision: KvPrecision,
        /// Bytes given.
        got: usize,
        /// Bytes of a page.
        needed: u64,
    },
    /// A number or a scale is infinite or no number.
    #[error("a page in {0} holds a number that isn't finite; the bytes are damaged")]
    NotFinite(KvPrecision),
    /// The system gives no memory.
    #[error("no memory for a page of keys and values: {0}")]
    Memory(#[from] std::io::Error),
}
