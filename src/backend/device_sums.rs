//! Sums over ranks between devices: what a backend must offer for them, and how ranks agree on making them so.
//!
//! A rank whose flows lie on a GPU may sum them with those of other ranks without taking them to the host
//! ([`DeviceSums`]). Whether all ranks can, and want to, they tell each other once, before the first sum ([`meet`]):
//! the answer is the same on every rank. Which numbers are added in which order does not depend on it (`shard_sum`).
//! Used by `replicated`; `cuda` is the backend that can.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Backend, FlowsId};
use crate::cluster::{Cluster, host_name};
use crate::error::{Error, ErrorKind, Result};

/// By which way the flows of ranks are summed. Bits do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterSums {
    /// Between GPUs by NCCL where every rank can, otherwise by way of the host.
    #[default]
    Auto,
    /// By way of the host, through the cluster.
    Host,
    /// Between GPUs by NCCL; an error where a rank cannot.
    Nccl,
}

impl ClusterSums {
    /// All of them, by name.
    const NAMES: [(&'static str, Self); 3] = [("auto", Self::Auto), ("host", Self::Host), ("nccl", Self::Nccl)];
}

impl FromStr for ClusterSums {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, sums)| *sums).ok_or_else(|| Error::option(format!("{name}: expected auto, host or nccl")))
    }
}

impl fmt::Display for ClusterSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, sums)| sums == self).map_or("auto", |(name, _)| name))
    }
}

/// What a rank's device brings to sums between devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The version of NCCL, as it counts: 22005 is 2.20.5.
    pub version: i32,
    /// Tells the GPU from all others.
    pub gpu: [u8; 16],
}

/// How long a rank waits for others in a sum between devices, and how it finds out that one is gone.
pub struct Patience<'a> {
    begun: Instant,
    limit: Duration,
    lost: &'a dyn Fn() -> Option<usize>,
}

/// Names the limit, in seconds.
const LIMIT_VARIABLE: &str = "ANEMONE_NCCL_SECONDS";

/// The limit if nothing else is said: flows of gigabytes over a slow network take less.
const LIMIT: Duration = Duration::from_secs(300);

/// Looks at once, for so long; a sum is over in less, mostly.
const EAGER: Duration = Duration::from_millis(2);

impl<'a> Patience<'a> {
    /// Begins to wait. `lost` tells of a rank that is known to be gone.
    pub fn new(lost: &'a dyn Fn() -> Option<usize>) -> Self {
        let said = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.trim().parse().ok());
        let limit = said.filter(|seconds| *seconds > 0).map_or(LIMIT, Duration::from_secs);
        Self { begun: Instant::now(), limit, lost }
    }

    /// Waits a little. An error where there is nothing to wait for any more.
    pub fn pause(&self) -> Result<()> {
        if let Some(rank) = (self.lost)() {
            return Err(Error::new(ErrorKind::Cluster, format!("rank {rank} is gone")));
        }
        let waited = self.begun.elapsed();
        if waited > self.limit {
            let seconds = self.limit.as_secs();
            let what = format!("NCCL has waited {seconds} s for other ranks ({LIMIT_VARIABLE} is how long it may)");
            return Err(Error::new(ErrorKind::Cluster, what));
        }
        match waited < EAGER {
            true => std::thread::yield_now(),
            false => std::thread::sleep(Duration::from_micros(200)),
        }
        Ok(())
    }
}

/// What a backend does for sums that stay on devices. After a failure of `join` or `sum` the device has left the
/// others.
pub trait DeviceSums {
    /// What this device brings, or why it cannot take part.
    fn offer(&self) -> Result<Offer>;

    /// An id for a group of devices, made by one rank for all.
    fn new_id(&self) -> Result<Vec<u8>>;

    /// Joins the group of this id. Returns when all ranks have.
    fn join(&mut self, id: &[u8], rank: usize, num_ranks: usize, patience: &Patience<'_>) -> Result<()>;

    /// Leaves the group; others need not be there any more.
    fn leave(&mut self);

    /// The sum over all shards, in the first of these buffers, from the partial sums of this rank: one per subtree of
    /// its shards, each in a buffer of the same precision. What the others have afterwards does not matter. Returns
    /// when the sum is there, with the bytes that came from other ranks.
    fn sum(&mut self, partials: &[FlowsId], num_shards: usize, patience: &Patience<'_>) -> Result<u64>;
}

/// What ranks have agreed on.
#[derive(Debug)]
pub(super) struct Meeting {
    /// How many they were: after a loss they have to meet again.
    pub num_ranks: usize,
    /// Whether flows are summed between devices.
    pub on_devices: bool,
    /// For the user, where there is something to say.
    pub sentence: Option<String>,
}

/// What the CPU is called.
pub(super) const CPU: &str = "cpu";

/// What a rank says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Word {
    wanted: ClusterSums,
    /// Its device, as people call it.
    device: String,
    is_gpu: bool,
    host: String,
    offer: std::result::Result<Offer, String>,
}

/// Agrees with all ranks on how flows are summed, and joins their devices. Collective; the answer, or the error, is the
/// same on every rank. `prepare` makes what sums on this device need.
pub(super) fn meet(
    inner: &mut dyn Backend,
    calls: &mut dyn Cluster,
    wanted: ClusterSums,
    prepare: impl FnOnce(&mut dyn Backend) -> Result<()>,
) -> Result<Meeting> {
    let (rank, num_ranks) = (calls.rank(), calls.num_ranks());
    let device = inner.device_name();
    let offer = match wanted {
        ClusterSums::Host => Err(Error::unsupported("not wanted")),
        _ if num_ranks == 1 => inner.device_sums().map(|_| Offer { version: 0, gpu: [0; 16] }),
        _ => inner.device_sums().and_then(|device| device.offer()),
    };
    let offer = offer.and_then(|offer| prepare(inner).map(|()| offer)).map_err(|e: Error| e.to_string());
    let word = Word { wanted, is_gpu: device != CPU, device, host: host_name(), offer };
    let words = all(calls, &word)?;
    let mut why_not = decide(&words)?;
    if why_not.is_none() && num_ranks > 1 {
        why_not = joined(inner, calls, rank)?;
        if let (Some(why), ClusterSums::Nccl) = (&why_not, wanted) {
            return Err(refused(why));
        }
    }
    let on_devices = why_not.is_none();
    Ok(Meeting { num_ranks, on_devices, sentence: sentence(&words, why_not.as_deref()) })
}

/// What every rank says, on every rank.
fn all<T: Serialize + for<'a> Deserialize<'a>>(calls: &mut dyn Cluster, mine: &T) -> Result<Vec<T>> {
    let bytes = serde_json::to_vec(mine).map_err(|e| Error::internal(format!("a word for other ranks: {e}")))?;
    let said = calls.gather(&bytes)?;
    let read = |bytes: &Vec<u8>| {
        serde_json::from_slice(bytes).map_err(|_| Error::new(ErrorKind::Cluster, "ranks have made different calls"))
    };
    said.iter().map(read).collect()
}

/// Joins the devices of all ranks by an id that the first makes. Returns why that was not possible, on every rank the
/// same, and then no device is joined.
fn joined(inner: &mut dyn Backend, calls: &mut dyn Cluster, rank: usize) -> Result<Option<String>> {
    let made = match rank {
        0 => inner.device_sums().and_then(|device| device.new_id()),
        _ => Ok(Vec::new()),
    };
    // No id is no bytes: the others must not wait for one.
    let mut id = made.as_ref().cloned().unwrap_or_default();
    calls.broadcast(0, &mut id)?;
    let num_ranks = calls.num_ranks();
    let device = inner.device_sums()?;
    let done = match (made, id.is_empty()) {
        (Err(error), _) => Err(error),
        (Ok(_), true) => Ok(()), // the first rank says why
        (Ok(_), false) => device.join(&id, rank, num_ranks, &Patience::new(&|| calls.lost())),
    };
    let told = all(calls, &done.err().map(|e| e.to_string()))?;
    let failed = told.into_iter().enumerate().find_map(|(rank, why)| Some(format!("rank {rank}: {}", why?)));
    if failed.is_some() {
        device.leave();
    }
    Ok(failed)
}

/// Tells whether a sum between devices has gone well on all ranks; an error on all of them if not. Where a rank is gone
/// the cluster says so.
pub(super) fn confirm(calls: &mut dyn Cluster, done: Result<u64>) -> Result<u64> {
    let told = all(calls, &done.as_ref().err().map(Error::to_string))?;
    let failed = told.into_iter().enumerate().find_map(|(rank, why)| Some((rank, why?)));
    match failed {
        None => done,
        Some((rank, why)) => Err(Error::new(
            ErrorKind::Cluster,
            format!("rank {rank}: a sum between the GPUs failed: {why}; --cluster-sums host does without NCCL"),
        )),
    }
}

/// Why flows cannot be summed between devices, if they cannot: the same on every rank. An error where that was asked
/// for.
fn decide(words: &[Word]) -> Result<Option<String>> {
    let wanted = words[0].wanted;
    if let Some((rank, other)) = words.iter().enumerate().find(|(_, word)| word.wanted != wanted) {
        let what = format!(
            "rank {rank} was started with --cluster-sums {}, rank 0 with {wanted}: say the same to all",
            other.wanted
        );
        return Err(Error::new(ErrorKind::Cluster, what));
    }
    let why = reason(words);
    match why {
        Some(why) if wanted == ClusterSums::Nccl => Err(refused(&why)),
        why => Ok(why),
    }
}

fn reason(words: &[Word]) -> Option<String> {
    let mut offers = Vec::with_capacity(words.len());
    for (rank, word) in words.iter().enumerate() {
        match &word.offer {
            Ok(offer) => offers.push(offer),
            Err(why) => return Some(format!("rank {rank}: {why}")),
        }
    }
    for (rank, offer) in offers.iter().enumerate() {
        if offer.version != offers[0].version {
            let [own, first] = [offer, offers[0]].map(|offer| version_in_words(offer.version));
            return Some(format!("rank {rank} has NCCL {own}, rank 0 has {first}"));
        }
        let shares = |other: &usize| offers[*other].gpu == offer.gpu && words[*other].host == words[rank].host;
        if let Some(other) = (0..rank).find(shares) {
            return Some(format!("ranks {other} and {rank} share {}; NCCL needs a GPU for each", words[rank].device));
        }
    }
    None
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Cluster, format!("--cluster-sums nccl: not possible: {why}"))
}

/// A version of NCCL for people.
pub(super) fn version_in_words(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Who computes where, and how flows are summed; nothing where there is no choice.
fn sentence(words: &[Word], why_not: Option<&str>) -> Option<String> {
    if words.len() == 1 || !words.iter().any(|word| word.is_gpu) {
        return None;
    }
    let how = match (why_not, words[0].wanted, &words[0].offer) {
        (None, _, Ok(offer)) => format!("between the GPUs by NCCL {}", version_in_words(offer.version)),
        (_, ClusterSums::Host, _) => "by way of the host".to_string(),
        (why, ..) => format!("by way of the host, not by NCCL ({})", why.unwrap_or_default()),
    };
    let place = |(rank, word): (usize, &Word)| match word.host.is_empty() {
        true => format!("rank {rank} on {}", word.device),
        false => format!("rank {rank} on {} of {}", word.device, word.host),
    };
    let places: Vec<String> = words.iter().enumerate().map(place).collect();
    Some(format!("flows are summed {how}: {}", places.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(gpu: u8) -> Word {
        Word {
            wanted: ClusterSums::Auto,
            device: format!("cuda:{gpu}"),
            is_gpu: true,
            host: "a".into(),
            offer: Ok(Offer { version: 22_005, gpu: [gpu; 16] }),
        }
    }

    fn both(change: impl Fn(&mut Word)) -> [std::result::Result<Option<String>, String>; 2] {
        [ClusterSums::Auto, ClusterSums::Nccl].map(|wanted| {
            let mut words = [word(0), word(1), word(2)];
            change(&mut words[2]);
            words.iter_mut().for_each(|word| word.wanted = wanted);
            decide(&words).map_err(|e| e.to_string())
        })
    }

    #[test]
    fn one_rank_that_cannot_is_named_or_refused() {
        let refused = |why: &str| {
            let error = format!("--cluster-sums nccl: not possible: {why}");
            [Ok(Some(why.to_string())), Err(error)]
        };
        assert_eq!(both(|_| {}), [Ok(None), Ok(None)]);
        assert_eq!(both(|word| word.offer = Err("it is on the CPU".into())), refused("rank 2: it is on the CPU"));
        assert_eq!(
            both(|word| word.offer = Ok(Offer { version: 21_805, gpu: [2; 16] })),
            refused("rank 2 has NCCL 2.18.5, rank 0 has 2.20.5")
        );
        let shared = Ok(Offer { version: 22_005, gpu: [1; 16] });
        assert_eq!(
            both(|word| word.offer = shared.clone()),
            refused("ranks 1 and 2 share cuda:2; NCCL needs a GPU for each")
        );
        // The same number on another machine is another GPU.
        assert_eq!(
            both(|word| {
                word.offer = shared.clone();
                word.host = "b".into();
            }),
            [Ok(None), Ok(None)]
        );
    }

    #[test]
    fn ranks_that_want_different_ways_are_refused() {
        let mut words = [word(0), word(1)];
        words[1].wanted = ClusterSums::Host;
        let error = decide(&words).unwrap_err().to_string();
        assert_eq!(error, "rank 1 was started with --cluster-sums host, rank 0 with auto: say the same to all");
    }

    #[test]
    fn what_is_said_names_every_rank_and_is_silent_without_gpus() {
        let said = sentence(&[word(0), word(1)], None).unwrap();
        assert_eq!(
            said,
            "flows are summed between the GPUs by NCCL 2.20.5: rank 0 on cuda:0 of a, rank 1 on cuda:1 of a"
        );
        let said = sentence(&[word(0), word(1)], Some("rank 1: why")).unwrap();
        assert!(
            said.starts_with("flows are summed by way of the host, not by NCCL (rank 1: why): rank 0 on"),
            "{said}"
        );
        let cpu = Word { is_gpu: false, ..word(0) };
        assert_eq!(sentence(&[cpu.clone(), cpu], Some("why")), None);
    }

    #[test]
    fn ways_are_read_as_they_are_written() {
        for (name, sums) in ClusterSums::NAMES {
            assert_eq!((name.parse::<ClusterSums>().unwrap(), sums.to_string()), (sums, name.to_string()));
            assert_eq!(serde_json::to_value(sums).unwrap(), name);
        }
        assert_eq!("mpi".parse::<ClusterSums>().unwrap_err().to_string(), "mpi: expected auto, host or nccl");
    }
}
