//! Places activations in one arena: two tensors share bytes where their lifetimes do not meet.

use super::{Graph, Rows, TensorId};

/// Alignment of every tensor: that of a workspace in the backend interface.
const ALIGN: u64 = 256;

/// Offsets of all tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferPlan {
    offsets: Vec<Option<u64>>,
    /// Bytes of the arena.
    pub bytes: u64,
}

impl BufferPlan {
    /// Plans for steps of up to `tokens` tokens, of which up to `samples` are followed by a draw. Tensors that no
    /// operation names take no space.
    pub fn new(graph: &Graph, tokens: u32, samples: u32) -> Self {
        let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; graph.tensors.len()];
        for (step, node) in graph.nodes.iter().enumerate() {
            for id in node.op.reads().into_iter().chain(node.op.writes()) {
                let lifetime = lifetimes[id.0 as usize].get_or_insert((step, step));
                lifetime.1 = step;
            }
        }
        let size = |index: usize| {
            let tensor = &graph.tensors[index];
            let rows = if tensor.rows == Rows::Tokens { tokens } else { samples };
            (tensor.row_bytes() * u64::from(rows.max(1))).next_multiple_of(ALIGN)
        };
        let mut order: Vec<usize> =
            (0..graph.tensors.len()).filter(|index| lifetimes[*index].is_some()).collect();
        // Large ones first: the small ones fit into the gaps.
        order.sort_by_key(|index| (std::cmp::Reverse(size(*index)), *index));
        let mut offsets = vec![None; graph.tensors.len()];
        let mut bytes = 0;
        for index in order {
            let mut taken: Vec<(u64, u64)> = (0..graph.tensors.len())
                .filter(|other| overlap(lifetimes[index], lifetimes[*other]))
                .filter_map(|other| offsets[other].map(|offset| (offset, offset + size(other))))
                .collect();
            taken.sort_unstable();
            let mut offset = 0;
            for (start, end) in taken {
                if offset + size(index) <= start {
                    break;
                }
                offset = offset.max(end);
            }
            offsets[index] = Some(offset);
            bytes = bytes.max(offset + size(index));
        }
        Self { offsets, bytes }
    }

    /// Offset of a tensor in the arena; `None` where no operation names it.
    pub fn offset(&self, id: TensorId) -> Option<u64> {
        self.offsets.get(id.0 as usize).copied().flatten()
    }
}

fn overlap(a: Option<(usize, usize)>, b: Option<(usize, usize)>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.0 <= b.1 && b.0 <= a.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build;
    use crate::test_model::{config, options};

    #[test]
    fn tensors_that_live_together_never_share_bytes_and_layers_reuse_them() {
        let graph = build(&config(), &options());
        let plan = BufferPlan::new(&graph, 100, 10);
        // Walk the list: whoever wrote a byte last before it is read must be the tensor that is read.
        let size = |id: TensorId| {
            let tensor = graph.tensor(id);
            tensor.row_bytes() * if tensor.rows == Rows::Tokens { 100 } else { 10 }
        };
        let mut owner: Vec<(TensorId, u64, u64)> = Vec::new();
        for node in &graph.nodes {
            for id in node.op.reads() {
                assert!(owner.iter().any(|entry| entry.0 == id), "{} was overwritten", graph.tensor(id).name);
            }
            for id in node.op.writes() {
                let start = plan.offset(id).unwrap();
                let end = start + size(id);
                assert!(end <= plan.bytes && start.is_multiple_of(ALIGN));
                owner.retain(|entry| entry.0 != id && (entry.2 <= start || end <= entry.1));
                owner.push((id, start, end));
            }
        }
        let all: u64 = (0..graph.tensors.len() as u32).map(|index| size(TensorId(index))).sum();
        assert!(plan.bytes < all / 2, "{} of {all}", plan.bytes);
    }
}
