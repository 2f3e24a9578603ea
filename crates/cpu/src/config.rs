//! How the backend runs, and why it can't.

/// How numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numerics {
    /// Activations in 8 bits against the weights' own blocks, KV in half precision.
    Fast,
    /// Weights decoded, everything in single precision: slow, for comparison.
    Float32,
}

/// How the backend runs.
///
/// Nothing here but `numerics` changes a bit of the result: every kernel of every instruction set sums in one order,
/// whatever else is in the batch.
#[derive(Debug, Clone)]
pub struct CpuConfig {
    /// Threads that compute.
    pub threads: usize,
    /// How numbers are computed.
    pub numerics: Numerics,
    /// An instruction set by name; `None` takes the best.
    pub isa: Option<&'static str>,
}

impl Default for CpuConfig {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, numerics: Numerics::Fast, isa: None }
    }
}

/// Why a model can't run here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The plan is inconsistent.
    #[error(transparent)]
    Plan(#[from] lichen_op::PlanError),
    /// A weight is missing or has another size than the plan says.
    #[error("weight {name} has {got} bytes of type {dtype}, its shape needs {needed}")]
    Weight {
        /// Its name.
        name: String,
        /// Its type.
        dtype: lichen_tensor::DType,
        /// Bytes given.
        got: usize,
        /// Bytes needed, or that its rows are no whole blocks.
        needed: String,
    },
    /// The plan needs other weights.
    #[error("the plan has {needed} weights and {got} were given")]
    Count {
        /// Of the plan.
        needed: usize,
        /// Given.
        got: usize,
    },
    /// An unknown or missing instruction set.
    #[error("this processor can't run {0}; `lichen kernels` lists what it can")]
    Isa(String),
    /// The system gives no thread.
    #[error("can't start compute threads: {0}; give fewer with --threads")]
    Threads(#[from] std::io::Error),
}
