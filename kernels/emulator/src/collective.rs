//! Collectives between the devices of one process: what NCCL does, one rank after another.
//!
//! Each rank's call goes into its stream. When the streams of all ranks have come to it, it runs, adding in the order
//! of the ranks, so that results do not depend on who came first. A group of sends and receives is such a call, too:
//! all ranks of a communicator make one. Exported by `nccl`.

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
    /// Ranks that have joined, and their devices.
    joined: BTreeMap<usize, usize>,
    /// Calls that have not run: for each rank its part. That of a rank which gave up never comes again.
    calls: BTreeMap<u64, Vec<Option<Part>>>,
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
    /// It does not wait in calls: whoever calls asks until it is ready.
    pub asks: bool,
    /// It will say once more that it is not ready.
    is_busy: bool,
    next_call: u64,
}

/// One rank's part of what ranks do together.
#[derive(Debug, Clone)]
enum Part {
    Call(Call),
    Moves { stream: Handle, moves: Vec<Move> },
}

impl Part {
    fn stream(&self) -> Handle {
        match self {
            Part::Call(call) => call.stream,
            Part::Moves { stream, .. } => *stream,
        }
    }
}

/// A send or a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Whether bytes go to the peer, or come from it.
    pub is_send: bool,
    /// The other rank.
    pub peer: usize,
    /// Device address read or written.
    pub address: u64,
    /// How many bytes.
    pub bytes: usize,
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

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
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
    /// One rank joins the group with this id. `asks`: its calls do not wait.
    pub fn comm_init(&mut self, id: u64, rank: usize, size: usize, device: usize, asks: bool) -> Result<Handle, Code> {
        self.status(device)?;
        if rank >= size || device >= self.devices.len() {
            return Err(Code::InvalidValue);
        }
        let handle = match self.cliques.by_id.get(&id) {
            Some(&clique) => clique,
            None => {
                let clique = self.new_handle();
                self.cliques.cliques.insert(clique, Clique { size, ..Clique::default() });
                self.cliques.by_id.insert(id, clique);
                clique
            }
        };
        let clique = self.cliques.cliques.get_mut(&handle).ok_or(Code::InvalidHandle)?;
        if clique.size != size || clique.joined.contains_key(&rank) {
            return Err(Code::InvalidValue);
        }
        if clique.joined.values().any(|other| *other == device) {
            self.report(&format!("rank {rank} joins with device {device}, which another rank has"));
            return Err(Code::NotSupported);
        }
        clique.joined.insert(rank, device);
        let comm = self.new_handle();
        self.cliques
            .comms
            .insert(comm, Comm { clique: handle, rank, device, size, asks, is_busy: false, next_call: 0 });
        Ok(comm)
    }

    /// A member.
    pub fn comm(&self, comm: Handle) -> Result<&Comm, Code> {
        self.cliques.comms.get(&comm).ok_or(Code::InvalidHandle)
    }

    /// Whether a member that asks may call again: all ranks are there, and its last call has been taken.
    pub fn comm_is_ready(&mut self, comm: Handle) -> Result<bool, Code> {
        let member = self.cliques.comms.get_mut(&comm).ok_or(Code::InvalidHandle)?;
        let was_busy = std::mem::take(&mut member.is_busy);
        let member = *member;
        Ok(!was_busy && self.is_complete(&member))
    }

    fn is_complete(&self, member: &Comm) -> bool {
        !member.asks
            || self.cliques.cliques.get(&member.clique).is_some_and(|clique| clique.joined.len() == clique.size)
    }

    /// A member leaves.
    pub fn comm_destroy(&mut self, comm: Handle) -> Result<(), Code> {
        self.cliques.comms.remove(&comm).map(drop).ok_or(Code::InvalidHandle)
    }

    /// A member gives up: what it has in its streams and has not run will not, and other ranks wait for it in vain.
    pub fn comm_abort(&mut self, comm: Handle) -> Result<(), Code> {
        let member = self.cliques.comms.remove(&comm).ok_or(Code::InvalidHandle)?;
        let Some(clique) = self.cliques.cliques.get_mut(&member.clique) else { return Ok(()) };
        let given_up: Vec<(u64, Handle)> = clique
            .calls
            .iter_mut()
            .filter_map(|(index, parts)| Some((*index, parts[member.rank].take()?.stream())))
            .collect();
        for (index, stream) in given_up {
            self.drop_collective(stream, (member.clique, index));
        }
        Ok(())
    }

    /// One rank calls a collective.
    pub fn collective(&mut self, comm: Handle, call: Call) -> Result<(), Code> {
        let member = *self.comm(comm)?;
        if call.root >= member.size {
            return Err(Code::InvalidValue);
        }
        self.take_part(comm, Part::Call(call))
    }

    /// One rank's group of sends and receives.
    pub fn exchange(&mut self, comm: Handle, stream: Handle, moves: Vec<Move>) -> Result<(), Code> {
        let member = *self.comm(comm)?;
        if moves.iter().any(|one| one.peer >= member.size) {
            return Err(Code::InvalidValue);
        }
        self.take_part(comm, Part::Moves { stream, moves })
    }

    fn take_part(&mut self, comm: Handle, part: Part) -> Result<(), Code> {
        let stream = part.stream();
        let member = *self.comm(comm)?;
        if self.live_stream(stream)?.device != member.device {
            return Err(Code::InvalidValue);
        }
        if member.is_busy || !self.is_complete(&member) {
            self.report("a communicator is called that has not said that it is ready");
            return Err(Code::InvalidValue);
        }
        let (clique, index) = (member.clique, member.next_call);
        let member = self.cliques.comms.get_mut(&comm).ok_or(Code::InvalidHandle)?;
        (member.next_call, member.is_busy) = (index + 1, member.asks);
        let rank = member.rank;
        let clique_state = self.cliques.cliques.get_mut(&clique).ok_or(Code::InvalidHandle)?;
        let parts = clique_state.calls.entry(index).or_insert_with(|| vec![None; clique_state.size]);
        parts[rank] = Some(part);
        self.submit(stream, Op::Collective((clique, index))).map(drop)
    }

    /// Runs a collective if all ranks have come to it.
    pub(crate) fn run_collective(&mut self, id: CollectiveId) -> Progress {
        let Some(parts) = self.cliques.cliques.get(&id.0).and_then(|c| c.calls.get(&id.1)).cloned() else {
            return Progress::Done;
        };
        let Some(parts) = parts.into_iter().collect::<Option<Vec<Part>>>() else { return Progress::Blocked };
        let streams: Vec<Handle> = parts.iter().map(Part::stream).collect();
        for &stream in &streams {
            while !self.is_at_collective(stream, id) {
                // The rank's stream has older work; if that cannot run, neither can this.
                let before = self.first_seq(stream);
                let Some(seq) = before else { return Progress::Blocked };
                if self.run_until(stream, seq) == Progress::Blocked {
                    return Progress::Blocked;
                }
            }
        }
        let devices: Vec<usize> = streams.iter().map(|stream| self.streams[stream].device).collect();
        if devices.iter().all(|&d| self.devices[d].sticky.is_none())
            && let Err(fault) = self.run_parts(&parts, &devices)
        {
            self.report(&fault.what);
            for &device in &devices {
                self.devices[device].sticky.get_or_insert(fault.code);
            }
        }
        for stream in streams {
            self.pop_collective(stream, id);
        }
        if let Some(clique) = self.cliques.cliques.get_mut(&id.0) {
            clique.calls.remove(&id.1);
        }
        Progress::Done
    }

    fn run_parts(&mut self, parts: &[Part], devices: &[usize]) -> Result<(), Fault> {
        let calls = parts.iter().map(|part| if let Part::Call(call) = part { Some(*call) } else { None });
        if let Some(calls) = calls.collect::<Option<Vec<Call>>>() {
            return self.reduce(&calls, devices);
        }
        let moves = parts.iter().map(|part| if let Part::Moves { moves, .. } = part { Some(&moves[..]) } else { None });
        match moves.collect::<Option<Vec<&[Move]>>>() {
            Some(moves) => self.move_all(&moves, devices),
            None => {
                let what = "some ranks call a collective where others send and receive: they must agree";
                Err(Fault::new(Code::LaunchFailed, what))
            }
        }
    }

    /// Sends and receives between the same two ranks meet in their order. All bytes are read before any is written.
    fn move_all(&mut self, moves: &[&[Move]], devices: &[usize]) -> Result<(), Fault> {
        let wrong = |what: String| Err(Fault::new(Code::LaunchFailed, what));
        let mut arriving = Vec::new();
        for from in 0..moves.len() {
            for to in 0..moves.len() {
                let sent: Vec<&Move> = moves[from].iter().filter(|m| m.is_send && m.peer == to).collect();
                let received: Vec<&Move> = moves[to].iter().filter(|m| !m.is_send && m.peer == from).collect();
                let lens = |moves: &[&Move]| moves.iter().map(|one| one.bytes).collect::<Vec<_>>();
                let (out, into) = (lens(&sent), lens(&received));
                if out != into {
                    return wrong(format!("rank {from} sends {out:?} bytes to rank {to}, which receives {into:?}"));
                }
                for (sent, received) in sent.into_iter().zip(received) {
                    let (region, at) = self.devices[devices[from]].memory.range(sent.address, sent.bytes)?;
                    if !region.bytes.is_written(at, sent.bytes) {
                        return wrong(format!("rank {from} sends memory to rank {to} that was never written"));
                    }
                    arriving.push((devices[to], received.address, region.bytes.data[at..at + sent.bytes].to_vec()));
                }
            }
        }
        for (device, address, bytes) in arriving {
            let (region, at) = self.devices[device].memory.range(address, bytes.len())?;
            region.bytes.data[at..at + bytes.len()].copy_from_slice(&bytes);
            region.bytes.mark(at, bytes.len());
        }
        Ok(())
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
