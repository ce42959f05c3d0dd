//! `--cluster`: whether this process is one of several ranks, and how it joins them.

use super::output::Outcome;
use crate::cluster::Ranks;
use crate::error::{Error, Result};
use crate::pipeline::team::Team;

/// What `--cluster` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A cluster where a launcher has started several processes.
    Auto,
    /// This process alone, whoever started it.
    Off,
    /// MPI, also without a launcher.
    Mpi,
}

fn understand(word: &str) -> Result<Wanted> {
    match word {
        "auto" => Ok(Wanted::Auto),
        "off" => Ok(Wanted::Off),
        "mpi" => Ok(Wanted::Mpi),
        _ => Err(Error::option(format!("--cluster {word}: expected auto, off or mpi"))),
    }
}

/// Joins the other ranks, if there are any. How many shards they have is said later.
pub(super) fn join(word: &str) -> Result<Option<Ranks>> {
    let wanted = understand(word)?;
    #[cfg(all(feature = "mpi", unix))]
    {
        use crate::cluster::Cluster;
        use crate::cluster::mpi;
        let is_started = || mpi::Launcher::of_this_process().is_some_and(|launcher| launcher.size != Some(1));
        if wanted == Wanted::Mpi || wanted == Wanted::Auto && is_started() {
            let flag = match wanted {
                Wanted::Mpi => "--cluster mpi",
                Wanted::Auto | Wanted::Off => "--cluster auto (off is every process by itself)",
            };
            let cluster = mpi::join().map_err(|e| e.at(flag))?;
            super::no_memory::name_rank(cluster.rank());
            let num_ranks = cluster.num_ranks();
            let mut ranks = Ranks::new(Box::new(cluster), num_ranks)?;
            ranks.find_local_rank()?;
            return Ok(Some(ranks));
        }
        Ok(None)
    }
    #[cfg(not(all(feature = "mpi", unix)))]
    match wanted {
        Wanted::Mpi => Err(Error::not_built("--cluster mpi", "mpi")),
        Wanted::Auto | Wanted::Off => Ok(None),
    }
}

/// How a rank ends: the first one says what went wrong, the others have nothing to add where it knows.
pub(super) fn leave(team: Team, ranks: Option<Ranks>, outcome: Outcome) -> Outcome {
    let is_quiet = ranks.as_ref().is_some_and(|ranks| ranks.rank() > 0); // the first may be gone
    drop(team);
    if let Some(ranks) = ranks {
        ranks.leave();
    }
    if is_quiet { Ok(()) } else { outcome }
}
