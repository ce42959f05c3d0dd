//! Sums over all shards whose bits do not depend on who has which shard.
//!
//! Shards are the leaves of a fixed binary tree: a range of them is cut in the middle, and the sum of a range is that
//! of its left part plus that of its right part. A rank has a contiguous range of shards, which is made of a few whole
//! subtrees; it adds those up itself ([`partials`]) and sends each rank its slice of every partial sum. The owner of a
//! slice adds up the partial sums of all ranks in the order of the tree, and the finished slices are spread. So a
//! number is added up in one order, whether one rank or five have the shards (docs/MATH.md, "Sums over shards"). Two
//! ranks exchange all they have instead.
//!
//! Vectors may be zero but for some rows ([`sum_of_rows`]): a rank sends the rows that its own shards have, and gets
//! back those that any has.
//!
//! Where vectors stay on devices, the same additions are made there: [`own_steps`] says which of a rank's own shards
//! are added up where, [`additions`] how partial sums of all ranks are.

use std::collections::HashMap;
use std::ops::{AddAssign, Range};

use super::rows::{Place, RowLayout, RowSet};
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

/// A step on the way to a rank's partial sums, in buffers that are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Replaces what a buffer has by the vector of a shard.
    Shard {
        /// Which shard.
        shard: usize,
        /// Which buffer.
        into: usize,
    },
    /// Adds one buffer to another.
    Add {
        /// What is added.
        from: usize,
        /// What it is added to.
        into: usize,
    },
}

/// How a rank adds up its own shards: after these steps the first buffers hold its partial sums, one per subtree of its
/// range. Shards are asked for in order. Returns the number of buffers beside them.
pub fn own_steps(range: Range<usize>, num_shards: usize) -> (Vec<Step>, usize) {
    fn walk(node: Range<usize>, into: usize, steps: &mut Vec<Step>) -> usize {
        if node.len() == 1 {
            steps.push(Step::Shard { shard: node.start, into });
            return into + 1;
        }
        let middle = middle(&node);
        let left = walk(node.start..middle, into, steps);
        let right = walk(middle..node.end, into + 1, steps);
        steps.push(Step::Add { from: into + 1, into });
        left.max(right)
    }
    let mut steps = Vec::new();
    let nodes = subtrees(range, num_shards).into_iter().enumerate();
    let buffers = nodes.map(|(into, node)| walk(node, into, &mut steps)).max().unwrap_or(0);
    (steps, buffers)
}

/// How the partial sums of all ranks, one per subtree and in the order of shards, become the sum: each step adds the
/// second of two to the first, and after all of them the very first is the sum.
pub fn additions(num_ranks: usize, num_shards: usize) -> Vec<(usize, usize)> {
    fn walk(node: Range<usize>, leaves: &[Range<usize>], steps: &mut Vec<(usize, usize)>) -> usize {
        if let Some(leaf) = leaves.iter().position(|leaf| *leaf == node) {
            return leaf;
        }
        let middle = middle(&node);
        let left = walk(node.start..middle, leaves, steps);
        let right = walk(middle..node.end, leaves, steps);
        steps.push((left, right));
        left
    }
    let of_rank = |rank| subtrees(shards_of(rank, num_ranks, num_shards), num_shards);
    let leaves: Vec<Range<usize>> = (0..num_ranks).flat_map(of_rank).collect();
    let mut steps = Vec::new();
    walk(0..num_shards, &leaves, &mut steps);
    steps
}

fn add<T: Number>(into: &mut [T], more: &[T]) {
    into.iter_mut().zip(more).for_each(|(x, &y)| *x += y);
}

/// The sum over all shards, on every rank to the same bits, from this rank's partial sums. All vectors of all ranks
/// have the same length. Returns the bytes received beside it.
pub fn sum_over_ranks<T: Number>(
    cluster: &mut dyn Cluster,
    num_shards: usize,
    partials: Vec<Vec<T>>,
    len: usize,
) -> Result<(Vec<T>, u64)> {
    let layout = RowLayout::dense(len);
    let sets = vec![RowSet::all(layout.num_rows()); cluster.num_ranks()];
    let Sum { numbers, received, .. } = sum_of_rows(cluster, num_shards, &layout, &sets, partials)?;
    Ok((numbers, received))
}

/// A sum over all shards of vectors that are zero but for some rows.
pub struct Sum<T> {
    /// Rows that some rank has.
    pub rows: RowSet,
    /// Their numbers, packed.
    pub numbers: Vec<T>,
    /// Bytes that this rank had from others for it.
    pub received: u64,
}

/// The sum over all shards, on every rank to the same bits. `sets[q]` says which rows the shards of rank q have, the
/// same on every rank; partial sums are packed by this rank's own. A row that a rank does not have is zero there, and
/// to add zero changes no bit of a number that is not negative; it is neither sent nor added.
pub fn sum_of_rows<T: Number>(
    cluster: &mut dyn Cluster,
    num_shards: usize,
    layout: &RowLayout,
    sets: &[RowSet],
    mut partials: Vec<Vec<T>>,
) -> Result<Sum<T>> {
    let (rank, num_ranks) = (cluster.rank(), cluster.num_ranks());
    let mut rows = sets[0].clone();
    sets[1..].iter().for_each(|set| rows.unite(set));
    if num_ranks == 1 {
        return Ok(Sum { rows, numbers: partials.swap_remove(0), received: 0 }); // its one subtree is the whole tree
    }
    let all = 0..layout.num_rows();
    let mut numbers = vec![T::default(); layout.numbers_of(&rows, &all)];
    if num_ranks == 2 {
        // Each has one subtree, and both add the two up: fewer bytes and one call less than by slices.
        let own = partials.swap_remove(0);
        let other = 1 - rank;
        let count = |q: usize, len: usize| if q == other { len } else { 0 };
        let mut theirs = vec![T::default(); layout.numbers_of(&sets[other], &all)];
        let [sent, expected] = [own.len(), theirs.len()].map(|len| [count(0, len), count(1, len)]);
        T::exchange(cluster, &own, &sent, &mut theirs, &expected)?;
        let [left, right] = if rank == 0 { [&own, &theirs] } else { [&theirs, &own] };
        layout.place((&rows, &sets[0]), &all, left, &mut numbers, Place::Write);
        layout.place((&rows, &sets[1]), &all, right, &mut numbers, Place::Add);
        return Ok(Sum { rows, numbers, received: size_of_val(&theirs[..]) as u64 });
    }

    let slices = layout.cut(&rows, num_ranks);
    let nodes: Vec<Vec<Range<usize>>> =
        (0..num_ranks).map(|q| subtrees(shards_of(q, num_ranks, num_shards), num_shards)).collect();
    let own_lens: Vec<usize> = slices.iter().map(|slice| layout.numbers_of(&sets[rank], slice)).collect();
    let send = by_slices(partials, &own_lens);
    let send_counts: Vec<usize> = own_lens.iter().map(|len| nodes[rank].len() * len).collect();
    let slice = &slices[rank];
    let lens: Vec<usize> = sets.iter().map(|set| layout.numbers_of(set, slice)).collect();
    let receive_counts: Vec<usize> = nodes.iter().zip(&lens).map(|(nodes, len)| nodes.len() * len).collect();
    let mut received = vec![T::default(); receive_counts.iter().sum()];
    T::exchange(cluster, &send, &send_counts, &mut received, &receive_counts)?;

    let mut leaves = HashMap::new();
    let mut rest = &received[..];
    for (q, nodes) in nodes.into_iter().enumerate() {
        for node in nodes {
            leaves.insert(node, (&sets[q], rest.split_off(..lens[q]).expect("as many as were received")));
        }
    }
    let counts: Vec<usize> = slices.iter().map(|slice| layout.numbers_of(&rows, slice)).collect();
    let before: usize = counts[..rank].iter().sum();
    let merge = Merge { layout, rows: &rows, slice, leaves };
    merge.node(0..num_shards, &mut numbers[before..before + counts[rank]]);
    T::spread(cluster, &mut numbers, &counts)?;
    let from_others = received.len() - receive_counts[rank] + numbers.len() - counts[rank];
    Ok(Sum { rows, numbers, received: (from_others * size_of::<T>()) as u64 })
}

/// Partial sums, slice by slice: of each slice all of them.
fn by_slices<T: Number>(mut partials: Vec<Vec<T>>, lens: &[usize]) -> Vec<T> {
    if partials.len() == 1 {
        return partials.swap_remove(0);
    }
    let mut out = Vec::with_capacity(partials.iter().map(Vec::len).sum());
    let mut at = 0;
    for &len in lens {
        partials.iter().for_each(|partial| out.extend_from_slice(&partial[at..at + len]));
        at += len;
    }
    out
}

/// A slice of the sum, from the slices of partial sums.
struct Merge<'a, T> {
    layout: &'a RowLayout,
    rows: &'a RowSet,
    slice: &'a Range<usize>,
    /// Which rows each subtree has, and their numbers.
    leaves: HashMap<Range<usize>, (&'a RowSet, &'a [T])>,
}

impl<T: Number> Merge<'_, T> {
    /// Writes the sum of a subtree.
    fn node(&self, node: Range<usize>, into: &mut [T]) {
        if self.leaf(&node, into, Place::Write) {
            return;
        }
        let middle = middle(&node);
        self.node(node.start..middle, into);
        let right = middle..node.end;
        if !self.leaf(&right, into, Place::Add) {
            let mut sum = vec![T::default(); into.len()];
            self.node(right, &mut sum);
            add(into, &sum);
        }
    }

    /// Returns false if the subtree is no leaf.
    fn leaf(&self, node: &Range<usize>, into: &mut [T], how: Place) -> bool {
        let Some(&(set, numbers)) = self.leaves.get(node) else { return false };
        self.layout.place((self.rows, set), self.slice, numbers, into, how);
        true
    }
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
        fn steps_in_buffers_give_the_same_bits(num_shards in 1usize..20, ranks in 1usize..8, len in 1usize..50) {
            let ranks = ranks.min(num_shards);
            let one = partials(0..num_shards, num_shards, &mut |shard| Ok(vector(shard, len))).unwrap();
            let (want, _) = sum_over_ranks(&mut Alone, num_shards, one, len).unwrap();
            let mut leaves = Vec::new();
            for rank in 0..ranks {
                let range = shards_of(rank, ranks, num_shards);
                let (steps, count) = own_steps(range.clone(), num_shards);
                prop_assert!(count <= subtrees(range.clone(), num_shards).len() + num_shards.ilog2() as usize + 1);
                let mut buffers = vec![vec![f32::NAN; len]; count];
                let mut asked = Vec::new();
                for step in steps {
                    match step {
                        Step::Shard { shard, into } => {
                            asked.push(shard);
                            buffers[into] = vector(shard, len);
                        }
                        Step::Add { from, into } => {
                            let more = buffers[from].clone();
                            add(&mut buffers[into], &more);
                        }
                    }
                }
                prop_assert!(asked.into_iter().eq(range.clone()));
                leaves.extend(buffers.into_iter().take(subtrees(range, num_shards).len()));
            }
            for (into, from) in additions(ranks, num_shards) {
                let more = leaves[from].clone();
                add(&mut leaves[into], &more);
            }
            let bits = |vector: &[f32]| vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&leaves[0]), bits(&want));
        }

        #[test]
        fn subtrees_make_up_their_range(num_shards in 1usize..40, a in 0usize..40, b in 0usize..40) {
            let range = a.min(b).min(num_shards)..a.max(b).min(num_shards);
            let shards: Vec<usize> = subtrees(range.clone(), num_shards).into_iter().flatten().collect();
            prop_assert!(shards.into_iter().eq(range));
        }
    }

    /// The rows that a shard has, and its numbers, packed by the rows that its rank has.
    fn sparse(layout: &RowLayout, range: Range<usize>) -> (RowSet, impl Fn(usize) -> Vec<f32>) {
        let of_shard = |shard: usize| {
            let mut rng = crate::rng::Rng::new(100 + shard as u64);
            let mut set = RowSet::none(layout.num_rows());
            (0..layout.num_rows()).filter(|_| rng.below(3) == 0).for_each(|row| set.insert(row));
            set
        };
        let mut own = RowSet::none(layout.num_rows());
        range.for_each(|shard| own.unite(&of_shard(shard)));
        let (rows, set) = (layout.clone(), own.clone());
        let numbers = move |shard: usize| {
            let all = 0..rows.num_rows();
            let (has, len) = (of_shard(shard), rows.numbers_of(&set, &all));
            let mut packed = vec![0.0; len];
            rows.place((&set, &has), &all, &vector(shard, rows.numbers_of(&has, &all)), &mut packed, Place::Write);
            packed
        };
        (own, numbers)
    }

    fn sparse_sum(cluster: &mut dyn Cluster, num_shards: usize, layout: &RowLayout) -> (RowSet, Vec<u32>, u64) {
        let range = |rank: usize| shards_of(rank, cluster.num_ranks(), num_shards);
        let sets: Vec<RowSet> = (0..cluster.num_ranks()).map(|rank| sparse(layout, range(rank)).0).collect();
        let own = range(cluster.rank());
        let (_, numbers) = sparse(layout, own.clone());
        let partials = partials(own, num_shards, &mut |shard| Ok(numbers(shard))).unwrap();
        let Sum { rows, numbers, received } = sum_of_rows(cluster, num_shards, layout, &sets, partials).unwrap();
        (rows, numbers.iter().map(|x| x.to_bits()).collect(), received)
    }

    #[test]
    fn rows_that_few_have_are_summed_to_the_same_bits_and_are_few_bytes() {
        let mut layout = RowLayout::default();
        layout.push(3, 200);
        layout.push_dense(11);
        layout.push(1, 70);
        for num_shards in [1, 2, 5, 8] {
            let (rows, want, _) = sparse_sum(&mut Alone, num_shards, &layout);
            assert!(want.len() > 100);
            for num_ranks in 1..=num_shards {
                let ranks = Threads::ranks(num_ranks).into_iter().map(|mut rank| {
                    let layout = layout.clone();
                    std::thread::spawn(move || sparse_sum(&mut rank, num_shards, &layout))
                });
                for rank in ranks.collect::<Vec<_>>() {
                    let (found, got, received) = rank.join().unwrap();
                    assert!(found == rows && got == want, "{num_shards} shards on {num_ranks} ranks");
                    assert!(received < 2 * 4 * 681 * num_shards.ilog2().max(1) as u64, "{received}");
                }
            }
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
