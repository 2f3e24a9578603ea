//! How engines live with the memory that there is: one governor per process watches it, and each engine keeps the
//! account of its pages and frees what it is asked to.

mod account;
mod governor;
mod reliever;
mod report;

pub(crate) use account::{Account, Use};
pub use governor::{Governor, GovernorConfig, GovernorError};
pub(crate) use governor::{Member, Relief};
pub use reliever::{Enlisted, Reliever};
pub use report::{MemoryReport, RungReport};

use lichen_backend::KvPrecision;

/// The ladder's name for a precision. Single precision is outside of the ladder and counts with its own bytes
/// everywhere.
pub(crate) fn rank(precision: KvPrecision) -> lichen_memory::KvPrecision {
    match precision {
        KvPrecision::F32 | KvPrecision::F16 => lichen_memory::KvPrecision::F16,
        KvPrecision::Q8 => lichen_memory::KvPrecision::Q8,
        KvPrecision::Q5 => lichen_memory::KvPrecision::Q5,
        KvPrecision::Q4 => lichen_memory::KvPrecision::Q4,
    }
}

/// The backend's name for a precision of the plan.
pub(crate) fn precision(precision: lichen_memory::KvPrecision) -> KvPrecision {
    match precision {
        lichen_memory::KvPrecision::F16 => KvPrecision::F16,
        lichen_memory::KvPrecision::Q8 => KvPrecision::Q8,
        lichen_memory::KvPrecision::Q5 => KvPrecision::Q5,
        lichen_memory::KvPrecision::Q4 => KvPrecision::Q4,
    }
}
