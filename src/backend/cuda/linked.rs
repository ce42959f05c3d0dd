//! Sums over ranks that stay on their GPUs: NCCL moves numbers, and the additions are ours.
//!
//! NCCL's own all-reduce adds in an order that depends on the number of devices and on how they are wired. Here each
//! rank is sent its slice of the partial sums of all ranks, adds them up in the order of the tree of shards
//! (`cluster/shard_sum.rs`) with the kernel `add_scaled`, and sends the finished slice to all: the traffic of a ring,
//! and the bits of a sum by way of the host. Vectors lie as the device has them, padding included.
//!
//! Nobody waits without a limit: after the last launch the host asks the device, NCCL and the cluster in turn, and a
//! failure of any of them ends the link (`nccl::Link`).

use cudarc::driver::CudaEvent;

use super::CudaBackend;
use super::descriptors::Ptr;
use super::driver_error;
use super::kernels::{Grid, Precisions};
use super::nccl::{self, Link, Transfer};
use super::passes::FlowPtr;
use super::stream::{Slab, record};
use crate::backend::{DeviceSums, FlowPrecision, FlowsId, Offer, Patience};
use crate::cluster::shard_sum::{additions, subtrees};
use crate::cluster::shards_of;
use crate::error::{Error, Result};

/// A rank's GPU among those of other ranks.
pub(super) struct Linked {
    link: Link,
    rank: usize,
    num_ranks: usize,
    /// Slices of partial sums that other ranks have sent.
    received: Option<Slab<u8>>,
    /// The end of a sum.
    summed: CudaEvent,
}

/// What a sum goes through: where slices and partial sums lie.
struct Layout {
    rank: usize,
    /// Partial sums of each rank.
    nodes: Vec<usize>,
    /// Numbers of a whole vector, and the most of a slice.
    len: usize,
    most: usize,
    /// Bytes of a number.
    width: usize,
}

impl Layout {
    fn new(rank: usize, num_ranks: usize, num_shards: usize, len: usize, precision: FlowPrecision) -> Self {
        let nodes_of = |rank| subtrees(shards_of(rank, num_ranks, num_shards), num_shards).len();
        let width = match precision {
            FlowPrecision::Single => size_of::<f32>(),
            FlowPrecision::Double => size_of::<f64>(),
        };
        Self { rank, nodes: (0..num_ranks).map(nodes_of).collect(), len, most: len.div_ceil(num_ranks), width }
    }

    /// Numbers of a rank's slice; the last ones may have fewer than others, or none.
    fn slice_len(&self, rank: usize) -> usize {
        self.len.saturating_sub(rank * self.most).min(self.most)
    }

    /// Where a rank's slice begins in a vector, in bytes.
    fn slice_at(&self, rank: usize) -> u64 {
        ((rank * self.most).min(self.len) * self.width) as u64
    }

    /// Slices that come from other ranks.
    fn num_received(&self) -> usize {
        self.nodes.iter().sum::<usize>() - self.nodes[self.rank]
    }

    fn received_bytes(&self) -> usize {
        self.num_received() * self.most * self.width
    }

    /// Where the slices of all partial sums lie that this rank adds up, in the order of shards, and whose they are.
    fn leaves(&self, own: &[u64], received: u64) -> Vec<(usize, u64)> {
        let mut next = received;
        let mut leaves = Vec::new();
        for (rank, &nodes) in self.nodes.iter().enumerate() {
            if rank == self.rank {
                leaves.extend(own.iter().map(|partial| (rank, partial + self.slice_at(rank))));
                continue;
            }
            for _ in 0..nodes {
                leaves.push((rank, next));
                next += (self.most * self.width) as u64;
            }
        }
        leaves
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&rank| rank != self.rank)
    }

    /// Every rank is sent its slice of this rank's partial sums; this rank's slices of the others' come.
    fn scatter(&self, own: &[u64], leaves: &[(usize, u64)]) -> Vec<Transfer> {
        let send = |peer: usize| {
            let (at, len) = (self.slice_at(peer), self.slice_len(peer));
            own.iter().map(move |partial| Transfer { is_send: true, peer, address: partial + at, len })
        };
        let len = self.slice_len(self.rank);
        let come = leaves.iter().filter(|(rank, _)| *rank != self.rank);
        let receive = come.map(|&(peer, address)| Transfer { is_send: false, peer, address, len });
        self.others().flat_map(send).chain(receive).filter(|transfer| transfer.len > 0).collect()
    }

    /// This rank's slice of the sum goes to all others; theirs come.
    fn spread(&self, sum: u64) -> Vec<Transfer> {
        let both = |peer: usize| {
            [(true, self.rank), (false, peer)].map(|(is_send, slice)| Transfer {
                is_send,
                peer,
                address: sum + self.slice_at(slice),
                len: self.slice_len(slice),
            })
        };
        self.others().flat_map(both).filter(|transfer| transfer.len > 0).collect()
    }
}

impl DeviceSums for CudaBackend {
    fn offer(&self) -> Result<Offer> {
        let uuid = self.device.context.uuid().map_err(|e| driver_error("the GPU does not say which one it is", e))?;
        Ok(Offer { version: nccl::version_for_links()?, gpu: uuid.bytes.map(|byte| byte as u8) })
    }

    fn new_id(&self) -> Result<Vec<u8>> {
        self.device.bind()?;
        nccl::new_id()
    }

    fn join(&mut self, id: &[u8], rank: usize, num_ranks: usize, patience: &Patience<'_>) -> Result<()> {
        self.leave();
        self.device.bind()?; // NCCL takes the device that the thread is at
        let link = Link::join(id, rank, num_ranks, patience)?;
        self.linked = Some(Linked { link, rank, num_ranks, received: None, summed: self.device.event(false)? });
        Ok(())
    }

    fn leave(&mut self) {
        // A device that cannot be bound is one that nothing can be asked of.
        let _ = self.device.bind();
        self.linked = None;
    }

    fn sum(&mut self, partials: &[FlowsId], num_shards: usize, patience: &Patience<'_>) -> Result<u64> {
        let mut linked = self.linked.take().ok_or_else(|| Error::internal("a GPU that has not joined any others"))?;
        let done = self.sum_linked(&mut linked, partials, num_shards, patience);
        if done.is_ok() {
            self.linked = Some(linked); // a link that failed is dropped, which gives up what is under way
        }
        done
    }
}

impl CudaBackend {
    fn sum_linked(
        &mut self,
        linked: &mut Linked,
        partials: &[FlowsId],
        num_shards: usize,
        patience: &Patience<'_>,
    ) -> Result<u64> {
        let own: Vec<FlowPtr> = partials.iter().map(|id| self.flow_ptr(*id)).collect::<Result<_>>()?;
        let precision = own[0].precision;
        if own.iter().any(|flows| flows.precision != precision) {
            return Err(Error::internal("partial sums of two precisions"));
        }
        let own: Vec<u64> = own.iter().map(|flows| flows.ptr.address()).collect();
        let layout = Layout::new(linked.rank, linked.num_ranks, num_shards, self.program.params.stats_len, precision);
        if own.len() != layout.nodes[linked.rank] {
            return Err(Error::internal("a rank has one partial sum for each subtree of its shards"));
        }
        let bytes = layout.received_bytes();
        let received = match linked.received.take().filter(|slab| slab.len >= bytes) {
            Some(slab) => slab,
            // Zeros: where a sum is given up, additions that were launched already read what never came.
            None => self.allocate(|b| b.device.zeros("partial sums of other ranks", bytes))?,
        };
        let (leaves, compute) = (layout.leaves(&own, received.ptr.address()), self.device.compute.clone());
        linked.received = Some(received);
        self.device.bind()?;
        linked.link.exchange(&layout.scatter(&own, &leaves), precision, &compute, patience)?;

        let len = layout.slice_len(linked.rank);
        if len > 0 {
            let at = |leaf: usize| Ptr::new(leaves[leaf].1);
            for (into, from) in additions(linked.num_ranks, num_shards) {
                let precisions = Precisions::of(precision, precision);
                self.kernels.add_scaled(precisions, Grid::over(len), at(from), 1.0, at(into), len as i64)?;
            }
            let (sum, to) = (leaves[0].1, own[0] + layout.slice_at(linked.rank));
            if sum != to {
                self.device.copy_within::<u8>(Ptr::new(sum), Ptr::new(to), len * layout.width)?;
            }
        }
        linked.link.exchange(&layout.spread(own[0]), precision, &compute, patience)?;
        record(&linked.summed, &compute)?;
        loop {
            let is_over = linked.summed.try_is_complete().map_err(|e| driver_error("a sum between GPUs", e))?;
            linked.link.is_ready("a sum between GPUs")?;
            if is_over {
                break;
            }
            patience.pause()?;
        }
        let others = layout.len - layout.slice_len(linked.rank);
        Ok(((layout.num_received() * len + others) * layout.width) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::shard_sum::own_steps;

    /// What is sent is what is received, and every rank's slice gets all partial sums; for any number of ranks, shards
    /// and numbers, slices without numbers included.
    #[test]
    fn transfers_fit_and_slices_are_whole() {
        for (num_ranks, num_shards, len) in [(2, 2, 10), (3, 8, 10), (3, 3, 2), (5, 16, 7), (4, 5, 1)] {
            let layout = |rank| Layout::new(rank, num_ranks, num_shards, len, FlowPrecision::Single);
            let own: Vec<Vec<u64>> = (0..num_ranks)
                .map(|rank| (0..layout(rank).nodes[rank]).map(|node| 1_000_000 * (node as u64 + 1)).collect())
                .collect();
            let both = |rank: usize| {
                let (layout, own) = (layout(rank), &own[rank]);
                let leaves = layout.leaves(own, 0);
                assert_eq!(leaves.len(), layout.nodes.iter().sum::<usize>());
                let buffers = own_steps(shards_of(rank, num_ranks, num_shards), num_shards).1;
                assert!(own.len() <= buffers);
                [layout.scatter(own, &leaves), layout.spread(own[0])]
            };
            let all: Vec<[Vec<Transfer>; 2]> = (0..num_ranks).map(both).collect();
            let lens = |transfers: &[Transfer], is_send: bool, peer: usize| -> Vec<usize> {
                transfers.iter().filter(|t| t.is_send == is_send && t.peer == peer).map(|t| t.len).collect()
            };
            for round in [0, 1] {
                let of_ranks: Vec<&[Transfer]> = all.iter().map(|rounds| &rounds[round][..]).collect();
                assert!(of_ranks.iter().all(|transfers| !transfers.is_empty()), "every rank takes part");
                for (from, sent) in of_ranks.iter().enumerate() {
                    for (to, received) in of_ranks.iter().enumerate() {
                        let what = format!("{num_shards} shards of {len} numbers, from {from} to {to} of {num_ranks}");
                        assert_eq!(lens(sent, true, to), lens(received, false, from), "{what}");
                    }
                }
            }
            let whole: usize = (0..num_ranks).map(|rank| layout(0).slice_len(rank)).sum();
            assert_eq!(whole, len);
        }
    }
}
