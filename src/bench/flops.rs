//! What a row costs, counted from the circuit and not from what some kernel happens to do.

use crate::circuit::{Circuit, NodeKind, ParamId, ParamKind};

/// Operations of one weight and row: a multiplication and an addition in the forward pass, in the backward pass, and in
/// the parameter's flows.
const FLOPS_PER_WEIGHT: u64 = 6;

/// Floating-point operations that learning from one row takes in the matrix products of the sums: 6·units·cols for
/// every use of a block of weights. Products, inputs and updates are not counted: they are memory, not arithmetic.
pub fn flops_per_row(circuit: &Circuit) -> u64 {
    let weights = |param: ParamId| {
        let block = &circuit.params()[param.index()];
        match block.kind {
            ParamKind::Sum { cols } => (block.units * cols) as u64,
            ParamKind::Input(_) => 0,
        }
    };
    let groups = circuit.nodes().iter().filter_map(|node| match &node.kind {
        NodeKind::Sum { groups } => Some(groups),
        NodeKind::Input { .. } | NodeKind::Product { .. } => None,
    });
    FLOPS_PER_WEIGHT * groups.flatten().map(|group| weights(group.param)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::Categorical;
    use crate::structure::{HcltOptions, PdOptions, Tree, Tying, hclt, hmm, hmm_with, monarch_hmm, pd};

    #[test]
    fn counts_are_those_made_by_hand() {
        let coin = || Categorical::new(2).unwrap();
        // Nine transitions of 4×4 and the initial row, whether tied or not.
        for tying in [Tying::Homogeneous, Tying::Inhomogeneous] {
            assert_eq!(flops_per_row(&hmm_with(10, 4, coin(), tying).unwrap()), 6 * (9 * 16 + 4));
        }
        assert_eq!(flops_per_row(&hmm(1, 4, coin()).unwrap()), 6 * 4);
        // Four transitions of three 2×2 blocks and two 3×3 blocks, and the initial row over six states.
        assert_eq!(flops_per_row(&monarch_hmm(5, (2, 3), coin()).unwrap()), 6 * (4 * (3 * 4 + 2 * 9) + 6));
        // 0 ← 1 ← 2, 0 ← 3: variable 1 has a sum of 5×5, the root one row, leaves none.
        let tree = Tree::from_parents(&[None, Some(0), Some(1), Some(0)]).unwrap();
        assert_eq!(flops_per_row(&hclt(&tree, 5, |_| coin(), HcltOptions::default()).unwrap()), 6 * (25 + 5));
        // Two boxes of one variable each have a 2×2 sum over their inputs; the root mixes the one product of them.
        assert_eq!(flops_per_row(&pd(&[2], &PdOptions::new(vec![1], 2), |_| coin()).unwrap()), 6 * (2 * 4 + 2));
    }
}
