//! Sums over all shards whose bits do not depend on who has which shard.
//!
//! Shards are the leaves of a fixed binary tree: a range of them is cut in the middle, and the sum of a range is that
//! of its left part plus that of its right part. A rank has a contiguous range of shards, which is made of a few whole
//! subtrees; it adds those up itself ([`partials`]) and sends each rank its slice of every partial sum. The owner of a
//! slice adds up the partial sums of all ranks in the order of the tree, and the finished slices are spread. So a
//! number is added up in one order, whether one rank or five have the shards (docs/MATH.md, "Sums over shards").

use std::collections::HashMap;
use std::ops::{AddAssign, Range};

use super::{Cluster, shards_of};
use crate::error::Result;

/// A number that flows are kept as.
pub trait Number: Copy + Default + AddAssign + Send + Sync + 'static {
    /// All to all, in this precision.
    fn exchange(
        cluster: &mut dyn Cluster,
        send: &[Self],
        send_counts: &[usize],
        receive: &mut [Self],
        receive_counts: &[usize],
    ) -> Result<()>;

    /// Gather to all in place, in this precision.
    fn spread(cluster: &mut dyn Cluster, numbers: &mut [Self], counts: &[usize]) -> Result<()>;
}

impl Number for f32 {
    fn exchange(c: &mut dyn Cluster, send: &[f32], to: &[usize], receive: &mut [f32], from: &[usize]) -> Result<()> {
        c.exchange_f32(send, to, receive, from)
    }

    fn spread(c: &mut dyn Cluster, numbers: &mut [f32], counts: &[usize]) -> Result<()> {
        c.spread_f32(numbers, counts)
    }
}

impl Number for f64 {
    fn exchange(c: &mut dyn Cluster, send: &[f64], to: &[usize], receive: &mut [f64], from: &[usize]) -> Result<()> {
        c.exchange_f64(send, to, receive, from)
    }

    fn spread(c: &mut dyn Cluster, numbers: &mut [f64], counts: &[usize]) -> Result<()> {
        c.spread_f64(numbers, counts)
    }
}

/// The largest whole subtrees of the tree over `0..num_shards` that a contiguous range of shards is made of, in order.
pub fn subtrees(range: Range<usize>, num_shards: usize) -> Vec<Range<usize>> {
    fn walk(node: Range<usize>, range: &Range<usize>, found: &mut Vec<Range<usize>>) {
        if node.end <= range.start || range.end <= node.start {
            return;
        }
        if range.start <= node.start && node.end <= range.end {
            found.push(node);
            return;
        }
        let middle = middle(&node);
        walk(node.start..middle, range, found);
        walk(middle..node.end, range, found);
    }
    let mut found = Vec::new();
    walk(0..num_shards, &range, &mut found);
    found
}

fn middle(node: &Range<usize>) -> usize {
    node.start.midpoint(node.end)
}

/// The sum of a subtree, by whatever gives the vector of a shard. Shards are asked for in order, and few vectors are
/// held at a time.
pub fn sum_of<T: Number>(node: Range<usize>, shard: &mut dyn FnMut(usize) -> Result<Vec<T>>) -> Result<Vec<T>> {
    if node.len() == 1 {
        return shard(node.start);
    }
    let middle = middle(&node);
    let mut left = sum_of(node.start..middle, shard)?;
    let right = sum_of(middle..node.end, shard)?;
    add(&mut left, &right);
    Ok(left)
}

/// The partial sums of a rank: one vector per subtree of its range.
pub fn partials<T: Number>(
    range: Range<usize>,
    num_shards: usize,
    shard: &mut dyn FnMut(usize) -> Result<Vec<T>>,
) -> Result<Vec<Vec<T>>> {
    subtrees(range, num_shards).into_iter().map(|node| sum_of(node, shard)).collect()
}

fn add<T: Number>(into: &mut [T], more: &[T]) {
    into.iter_mut().zip(more).for_each(|(x, &y)| *x += y);
}

/// The sum over all shards, on every rank to the same bits, from this rank's partial sums. All vectors of all ranks
/// have the same length. Returns the bytes received beside it.
pub fn sum_over_ranks<T: Number>(
    cluster: &mut dyn Cluster,
    num_shards: usize,
    mut partials: Vec<Vec<T>>,
    len: usize,
) -> Result<(Vec<T>, u64)> {
    let (rank, num_ranks) = (cluster.rank(), cluster.num_ranks());
    if num_ranks == 1 {
        return Ok((partials.swap_remove(0), 0)); // its one subtree is the whole tree
    }
    let slice_of = |q: usize| q * len / num_ranks..(q + 1) * len / num_ranks;
    let nodes_of = |q: usize| subtrees(shards_of(q, num_ranks, num_shards), num_shards);

    let mut send = Vec::with_capacity(partials.len() * len);
    for q in 0..num_ranks {
        partials.iter().for_each(|partial| send.extend_from_slice(&partial[slice_of(q)]));
    }
    let send_counts: Vec<usize> = (0..num_ranks).map(|q| partials.len() * slice_of(q).len()).collect();
    drop(partials);
    let mine = slice_of(rank).len();
    let nodes: Vec<Vec<Range<usize>>> = (0..num_ranks).map(nodes_of).collect();
    let receive_counts: Vec<usize> = nodes.iter().map(|nodes| nodes.len() * mine).collect();
    let mut received = vec![T::default(); receive_counts.iter().sum()];
    T::exchange(cluster, &send, &send_counts, &mut received, &receive_counts)?;

    let slices: HashMap<Range<usize>, &[T]> =
        if mine == 0 { HashMap::new() } else { nodes.into_iter().flatten().zip(received.chunks_exact(mine)).collect() };
    let mut sum = vec![T::default(); len];
    if mine > 0 {
        sum[slice_of(rank)].copy_from_slice(&merged(0..num_shards, &slices));
    }
    let counts: Vec<usize> = (0..num_ranks).map(|q| slice_of(q).len()).collect();
    T::spread(cluster, &mut sum, &counts)?;
    let from_others = received.len() - receive_counts[rank] + len - mine;
    Ok((sum, (from_others * size_of::<T>()) as u64))
}

/// A slice of the sum of a subtree, from the slices of partial sums.
fn merged<T: Number>(node: Range<usize>, slices: &HashMap<Range<usize>, &[T]>) -> Vec<T> {
    if let Some(slice) = slices.get(&node) {
        return slice.to_vec();
    }
    let middle = middle(&node);
    let mut left = merged(node.start..middle, slices);
    add(&mut left, &merged(middle..node.end, slices));
    left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::{Alone, Threads};

    /// Numbers of very different sizes: their sum depends on the order.
    fn vector(shard: usize, len: usize) -> Vec<f32> {
        let mut rng = crate::rng::Rng::new(shard as u64 + 1);
        (0..len).map(|_| (rng.uniform() * 10f64.powf(-12.0 * rng.uniform())) as f32).collect()
    }

    fn sum_on(num_ranks: usize, num_shards: usize, len: usize) -> Vec<Vec<u32>> {
        let threads = Threads::ranks(num_ranks).into_iter().map(|mut rank| {
            std::thread::spawn(move || {
                let range = shards_of(rank.rank(), num_ranks, num_shards);
                let partials = partials(range, num_shards, &mut |shard| Ok(vector(shard, len))).unwrap();
                let (sum, _) = sum_over_ranks(&mut rank, num_shards, partials, len).unwrap();
                sum.iter().map(|x| x.to_bits()).collect()
            })
        });
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn the_bits_of_a_sum_are_those_of_one_process(num_shards in 1usize..20, ranks in 1usize..8, len in 1usize..50) {
            let ranks = ranks.min(num_shards);
            let one = partials(0..num_shards, num_shards, &mut |shard| Ok(vector(shard, len))).unwrap();
            let (want, _) = sum_over_ranks(&mut Alone, num_shards, one, len).unwrap();
            let want: Vec<u32> = want.iter().map(|x| x.to_bits()).collect();
            for got in sum_on(ranks, num_shards, len) {
                prop_assert_eq!(&got, &want);
            }
        }

        #[test]
        fn subtrees_make_up_their_range(num_shards in 1usize..40, a in 0usize..40, b in 0usize..40) {
            let range = a.min(b).min(num_shards)..a.max(b).min(num_shards);
            let shards: Vec<usize> = subtrees(range.clone(), num_shards).into_iter().flatten().collect();
            prop_assert!(shards.into_iter().eq(range));
        }
    }

    #[test]
    fn the_order_matters_for_what_is_summed_here() {
        let plain = (0..8).fold(vec![0f32; 500], |mut sum, shard| {
            add(&mut sum, &vector(shard, 500));
            sum
        });
        let tree = sum_of(0..8, &mut |shard| Ok(vector(shard, 500))).unwrap();
        assert!(plain.iter().zip(&tree).any(|(a, b)| a.to_bits() != b.to_bits()));
    }
}
