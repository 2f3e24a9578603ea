//! What computes: a plan and the stored weights bound to this machine.

use std::sync::Arc;

use anyhow::{Context, Result};
use lichen_backend::Executor;
use lichen_cpu::{CpuConfig, CpuExecutor, ReadObserver, Weight};
use lichen_format::Checkpoint;
use lichen_op::Plan;

/// Binds a plan to the weights of its checkpoint, which stay where the file has them. The observer is told which
/// of them are read.
///
/// # Errors
/// A tensor is missing, or the backend refuses the plan.
pub(crate) fn executor(
    plan: Plan,
    checkpoint: &Checkpoint,
    config: CpuConfig,
    observer: Option<Arc<dyn ReadObserver>>,
) -> Result<Box<dyn Executor>> {
    let weights = plan.weights.iter().map(|decl| {
        let info = checkpoint
            .tensor(&decl.name)
            .with_context(|| format!("tensor {} is missing; the file is incomplete", decl.name))?;
        Ok(Weight { dtype: info.dtype, bytes: checkpoint.data(info) })
    });
    let weights = weights.collect::<Result<Vec<_>>>()?;
    let executor = CpuExecutor::new(plan, weights, config)?;
    Ok(Box::new(match observer {
        Some(observer) => executor.with_observer(observer),
        None => executor,
    }))
}
