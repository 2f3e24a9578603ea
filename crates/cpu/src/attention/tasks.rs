//! How the queries of a batch are shared out.

use super::ROWS;
use lichen_op::Span;
use std::ops::Range;

/// Query heads of one task: enough to be worth handing out, few enough to balance a causal triangle.
const QUERIES: usize = 8 * ROWS;

/// Query heads of some tokens that share a KV head.
pub(crate) struct Task {
    /// The place of their sequence in the batch.
    pub(crate) span: usize,
    pub(crate) kv_head: usize,
    /// Counts `token * group + head`, where `group` query heads share a KV head.
    pub(crate) queries: Range<usize>,
}

/// Makes `tasks` those of all query heads of a batch.
pub(crate) fn share_out(spans: &[Span], kv_heads: usize, group: usize, tasks: &mut Vec<Task>) {
    tasks.clear();
    for (span, rows) in spans.iter().enumerate() {
        for kv_head in 0..kv_heads {
            let queries = rows.len * group;
            let starts = (0..queries).step_by(QUERIES);
            let task = |start: usize| Task { span, kv_head, queries: start..queries.min(start + QUERIES) };
            tasks.extend(starts.map(task));
        }
    }
}
