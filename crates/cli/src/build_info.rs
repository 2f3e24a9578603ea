//! What this binary is.

/// What it computes with.
pub(crate) const BACKEND: &str = "cpu";

/// The commit that it was built from.
pub(crate) const COMMIT: &str = env!("LICHEN_COMMIT");

/// Version and commit, for `build=`.
pub(crate) const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("LICHEN_COMMIT"));

/// What `--version` prints after the name.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (cpu, ", env!("LICHEN_COMMIT"), ")");
