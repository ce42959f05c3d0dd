//! Collectives between the devices of one process: what NCCL does, one rank after another.
//!
//! Each rank's call goes into its stream. When the streams of all ranks have come to it, it runs, adding in the order
//! of the ranks, so that results do not depend on who came first. Exported by `nccl`.

use std::collections::{BTreeMap, HashMap};

use crate::convert::{f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::result::{Code, Fault};
use crate::state::{Handle, System};
use crate::stream::{Op, Progress};

/// A communicator's group and the number of the collective in it.
pub type CollectiveId = (Handle, u64);

/// All groups and their members.
#[derive(Debug, Default)]
pub struct Cliques {
    cliques: HashMap<Handle, Clique>,
    comms: HashMap<Handle, Comm>,
    /// Groups that are being gathered, by unique id.
    by_id: HashMap<u64, Handle>,
}

#[derive(Debug, Default)]
struct Clique {
    size: usize,
    /// Calls that have not run: for each rank its part.
    calls: BTreeMap<u64, Vec<Option<Call>>>,
}

/// A member of a group.
#[derive(Debug, Clone, Copy)]
pub struct Comm {
    clique: Handle,
    /// Its rank.
    pub rank: usize,
    /// Its device.
    pub device: usize,
    /// How many ranks there are.
    pub size: usize,
    next_call: u64,
}

/// One rank's part of a collective.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// What is done.
    pub kind: Kind,
    /// Device address read.
    pub send: u64,
    /// Device address written.
    pub recv: u64,
    /// Elements, as NCCL counts them for this kind.
    pub count: usize,
    /// Element type.
    pub ty: Element,
    /// Reduction.
    pub op: Reduction,
    /// Root rank, where there is one.
    pub root: usize,
    /// Where it was called.
    pub stream: Handle,
}

/// Collectives.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
}

/// Element types, by NCCL's numbers.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
}

impl Element {
    /// By NCCL's number.
    pub fn from_number(number: i32) -> Option<Element> {
        use Element::*;
        let all = [Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16];
        all.get(usize::try_from(number).ok()?).copied()
    }

    fn bytes(self) -> usize {
        match self {
            Element::Int8 | Element::Uint8 => 1,
            Element::Float16 | Element::Bfloat16 => 2,
            Element::Int32 | Element::Uint32 | Element::Float32 => 4,
            _ => 8,
        }
    }
}

/// Reductions, by NCCL's numbers.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    Average,
}

impl Reduction {
    /// By NCCL's number.
    pub fn from_number(number: i32) -> Option<Reduction> {
        use Reduction::*;
        [Sum, Product, Max, Min, Average].get(usize::try_from(number).ok()?).copied()
    }
}

impl System {
    /// One rank joins the group with this id.
    pub fn comm_init(&mut self, id: u64, rank: usize, size: usize, device: usize) -> Result<Handle, Code> {
        self.status(device)?;
        if rank >= size || device >= self.devices.len() {
            return Err(Code::InvalidValue);
        }
        let clique = match self.cliques.by_id.get(&id) {
            Some(&clique) => clique,
            None => {
                let clique = self.new_handle();
                self.cliques.cliques.insert(clique, Clique { size, calls: BTreeMap::new() });
                self.cliques.by_id.insert(id, clique);
                clique
            }
        };
        if self.cliques.cliques[&clique].size != size {
            return Err(Code::InvalidValue);
        }
        let comm = self.new_handle();
        self.cliques.comms.insert(comm, Comm { clique, rank, device, size, next_call: 0 });
        Ok(comm)
    }

    /// A member.
    pub fn comm(&self, comm: Handle) -> Result<&Comm, Code> {
        self.cliques.comms.get(&comm).ok_or(Code::InvalidHandle)
    }

    /// A member leaves.
    pub fn comm_destroy(&mut self, comm: Handle) -> Result<(), Code> {
        self.cliques.comms.remove(&comm).map(drop).ok_or(Code::InvalidHandle)
    }

    /// One rank calls a collective.
    pub fn collective(&mut self, comm: Handle, call: Call) -> Result<(), Code> {
        let member = self.cliques.comms.get_mut(&comm).ok_or(Code::InvalidHandle)?;
        let (clique, rank, index, device) = (member.clique, member.rank, member.next_call, member.device);
        member.next_call += 1;
        if self.live_stream(call.stream)?.device != device || call.root >= self.cliques.cliques[&clique].size {
            return Err(Code::InvalidValue);
        }
        let clique_state = self.cliques.cliques.get_mut(&clique).ok_or(Code::InvalidHandle)?;
        let parts = clique_state.calls.entry(index).or_insert_with(|| vec![None; clique_state.size]);
        parts[rank] = Some(call);
        self.submit(call.stream, Op::Collective((clique, index))).map(drop)
    }

    /// Runs a collective if all ranks have come to it.
    pub(crate) fn run_collective(&mut self, id: CollectiveId) -> Progress {
        let Some(parts) = self.cliques.cliques.get(&id.0).and_then(|c| c.calls.get(&id.1)).cloned() else {
            return Progress::Done;
        };
        let Some(calls) = parts.into_iter().collect::<Option<Vec<Call>>>() else { return Progress::Blocked };
        for call in &calls {
            while !self.is_at_collective(call.stream, id) {
                // The rank's stream has older work; if that cannot run, neither can this.
                let before = self.first_seq(call.stream);
                let Some(seq) = before else { return Progress::Blocked };
                if self.run_until(call.stream, seq) == Progress::Blocked {
                    return Progress::Blocked;
                }
            }
        }
        let devices: Vec<usize> = calls.iter().map(|c| self.streams[&c.stream].device).collect();
        if devices.iter().all(|&d| self.devices[d].sticky.is_none())
            && let Err(fault) = self.reduce(&calls, &devices)
        {
            self.report(&fault.what);
            for &device in &devices {
                self.devices[device].sticky.get_or_insert(fault.code);
            }
        }
        for call in &calls {
            self.pop_collective(call.stream, id);
        }
        if let Some(clique) = self.cliques.cliques.get_mut(&id.0) {
            clique.calls.remove(&id.1);
        }
        Progress::Done
    }

    fn reduce(&mut self, calls: &[Call], devices: &[usize]) -> Result<(), Fault> {
        let first = calls[0];
        let same = |c: &Call| {
            (c.kind, c.count, c.ty, c.op, c.root) == (first.kind, first.count, first.ty, first.op, first.root)
        };
        if let Some(rank) = calls.iter().position(|c| !same(c)) {
            let what = format!("rank {rank} calls {:?}, rank 0 {first:?}: they must agree", calls[rank]);
            return Err(Fault::new(Code::LaunchFailed, what));
        }
        let (size, ranks) = (first.ty.bytes(), calls.len());
        let (read, written) = match first.kind {
            Kind::AllGather => (first.count, first.count * ranks),
            Kind::ReduceScatter => (first.count * ranks, first.count),
            _ => (first.count, first.count),
        };
        let mut inputs = Vec::new();
        for (rank, call) in calls.iter().enumerate() {
            if first.kind == Kind::Broadcast && rank != first.root {
                inputs.push(Vec::new());
                continue;
            }
            let (region, at) = self.devices[devices[rank]].memory.range(call.send, read * size)?;
            if !region.bytes.is_written(at, read * size) {
                let what = format!("rank {rank} sends memory in {:?} that was never written", first.kind);
                return Err(Fault::new(Code::LaunchFailed, what));
            }
            inputs.push(region.bytes.data[at..at + read * size].to_vec());
        }
        let total = match first.kind {
            Kind::Broadcast => inputs[first.root].clone(),
            Kind::AllGather => inputs.concat(),
            _ => add_up(&inputs, first.ty, first.op),
        };
        for (rank, call) in calls.iter().enumerate() {
            let part = match first.kind {
                Kind::Reduce if rank != first.root => continue,
                Kind::ReduceScatter => &total[rank * written * size..(rank + 1) * written * size],
                _ => &total[..],
            };
            let (region, at) = self.devices[devices[rank]].memory.range(call.recv, part.len())?;
            region.bytes.data[at..at + part.len()].copy_from_slice(part);
            region.bytes.mark(at, part.len());
        }
        Ok(())
    }
}

/// Reduces element by element in the order of the ranks, in the type itself.
fn add_up(inputs: &[Vec<u8>], ty: Element, op: Reduction) -> Vec<u8> {
    macro_rules! fold {
        ($t:ty, $sum:expr, $product:expr) => {{
            let n = size_of::<$t>();
            let at = |rank: usize, i: usize| {
                <$t>::from_le_bytes(inputs[rank][i * n..(i + 1) * n].try_into().expect("one element"))
            };
            (0..inputs[0].len() / n)
                .flat_map(|i| {
                    let mut total = at(0, i);
                    for rank in 1..inputs.len() {
                        let next = at(rank, i);
                        total = match op {
                            Reduction::Sum | Reduction::Average => $sum(total, next),
                            Reduction::Product => $product(total, next),
                            Reduction::Max => {
                                if next > total {
                                    next
                                } else {
                                    total
                                }
                            }
                            Reduction::Min => {
                                if next < total {
                                    next
                                } else {
                                    total
                                }
                            }
                        };
                    }
                    if op == Reduction::Average {
                        total /= inputs.len() as $t;
                    }
                    total.to_le_bytes()
                })
                .collect()
        }};
    }
    macro_rules! ints {
        ($t:ty) => {
            fold!($t, <$t>::wrapping_add, <$t>::wrapping_mul)
        };
    }
    match ty {
        Element::Int8 => ints!(i8),
        Element::Uint8 => ints!(u8),
        Element::Int32 => ints!(i32),
        Element::Uint32 => ints!(u32),
        Element::Int64 => ints!(i64),
        Element::Uint64 => ints!(u64),
        Element::Float32 => fold!(f32, |x, y| x + y, |x, y| x * y),
        Element::Float64 => fold!(f64, |x, y| x + y, |x, y| x * y),
        Element::Float16 | Element::Bfloat16 => {
            let bf16 = ty == Element::Bfloat16;
            let widen = |b: &[u8]| {
                let bits = u16::from_le_bytes([b[0], b[1]]);
                if bf16 { f32::from_bits(u32::from(bits) << 16) } else { f16_to_f32(bits) }
            };
            let wide: Vec<Vec<u8>> =
                inputs.iter().map(|v| v.chunks_exact(2).flat_map(|b| widen(b).to_le_bytes()).collect()).collect();
            let sums = add_up(&wide, Element::Float32, op);
            let narrow = |b: &[u8]| {
                let value = f32::from_le_bytes(b.try_into().expect("four bytes"));
                if bf16 { f32_to_bf16(value) } else { f32_to_f16(value) }
            };
            sums.chunks_exact(4).flat_map(|b| narrow(b).to_le_bytes()).collect()
        }
    }
}
