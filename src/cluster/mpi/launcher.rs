//! What the environment says about who started this process.
//!
//! Launchers tell each process its rank and the number of ranks in variables of their own. This decides whether a run
//! is one of several ranks at all, and which library the launcher belongs to: a library that does not understand its
//! launcher believes that it is alone, and then every rank would learn the whole by itself.

use std::path::{Path, PathBuf};

/// A program that started several processes, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Who it is, for messages: `mpiexec of Open MPI`.
    pub name: &'static str,
    /// How many ranks it says there are.
    pub size: Option<usize>,
    /// Which of them this is.
    pub rank: Option<usize>,
    /// Names of libraries that understand it, likeliest first.
    libraries: &'static [&'static str],
    /// Folders of the launcher's own installation.
    prefixes: Vec<PathBuf>,
}

pub(super) const OPEN_MPI: &str = "mpiexec of Open MPI";
const MPICH_FIRST: [&str; 5] = ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12", "libmpi.so.40"];
const OPEN_MPI_FIRST: [&str; 5] =
    ["libmpi.so.40", "libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12"];

/// Launchers by the variables they set: name, number of ranks, rank, libraries. The first that is there is the one:
/// `mpiexec` within a job of Slurm sets its own beside Slurm's.
type Signs = (&'static str, &'static str, &'static str, &'static [&'static str]);
const LAUNCHERS: [Signs; 5] = [
    (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", &OPEN_MPI_FIRST),
    ("mpiexec of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", &MPICH_FIRST),
    ("mpiexec of MPICH or a launcher like it", "PMI_SIZE", "PMI_RANK", &MPICH_FIRST),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", &MPICH_FIRST),
    ("a launcher with PMIx", "PMIX_SIZE", "PMIX_RANK", &OPEN_MPI_FIRST),
];

impl Launcher {
    /// The launcher of this process, if one left its signs.
    pub fn of_this_process() -> Option<Self> {
        let mut found = Self::from_variables(|name| std::env::var(name).ok())?;
        found.prefixes.extend(parent_prefix());
        Some(found)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let (name, size, rank, libraries) =
            LAUNCHERS.iter().find(|(_, size, rank, _)| number(size).is_some() || number(rank).is_some())?;
        let (size, rank) = (number(size), number(rank));
        let prefixes = ["OPAL_PREFIX", "MPI_HOME", "MPI_ROOT", "I_MPI_ROOT"];
        let prefixes = prefixes.iter().filter_map(|name| variable(name)).map(PathBuf::from).collect();
        // A batch script has a rank in Slurm, too: it is one process, which starts others.
        let is_alone = *name == "srun" && size.is_none();
        (!is_alone).then_some(Self { name, size, rank, libraries, prefixes })
    }

    /// Libraries to try, in this order: the launcher's own, then those of the library path.
    pub(super) fn candidates(launcher: Option<&Self>) -> Vec<PathBuf> {
        let names: &[&str] = launcher.map_or(&MPICH_FIRST, |launcher| launcher.libraries);
        let of_prefix = |prefix: &PathBuf| {
            let folders = ["lib", "lib64"].map(|folder| prefix.join(folder));
            let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
            files.filter(|file| file.is_file()).collect::<Vec<_>>()
        };
        let own = launcher.map_or(&[][..], |launcher| &launcher.prefixes).iter().flat_map(of_prefix);
        own.chain(names.iter().map(PathBuf::from)).collect()
    }
}

/// Where the program that started this one is installed: `prefix/bin/program`. A launcher's daemon is started from the
/// launcher's own folder, on other machines too.
fn parent_prefix() -> Option<PathBuf> {
    let program = std::fs::read_link(format!("/proc/{}/exe", std::os::unix::process::parent_id())).ok()?;
    let name = program.file_name()?.to_str()?;
    let is_launcher = ["prterun", "prted", "prte", "orterun", "orted", "mpiexec", "mpirun", "hydra_pmi_proxy"]
        .iter()
        .any(|launcher| name.starts_with(launcher));
    is_launcher.then(|| program.parent().and_then(Path::parent).map(Path::to_path_buf)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Option<Launcher> {
        Launcher::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn a_launcher_is_known_by_its_variables() {
        assert_eq!(with(&[]), None);
        let found = with(&[("PMI_SIZE", "4"), ("PMI_RANK", "2")]).unwrap();
        assert_eq!((found.size, found.rank, found.libraries[0]), (Some(4), Some(2), "libmpi_abi.so.1"));
        let found =
            with(&[("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_PROCID", "3"), ("OMPI_COMM_WORLD_SIZE", "2")]).unwrap();
        assert_eq!((found.name, found.size, found.libraries[0]), ("mpiexec of Open MPI", Some(2), "libmpi.so.40"));
    }

    #[test]
    fn a_batch_script_of_slurm_is_one_process() {
        assert_eq!(with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), None);
        assert_eq!(with(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "8")]).unwrap().size, Some(8));
    }

    #[test]
    fn the_launchers_own_library_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        std::fs::write(folder.path().join("lib/libmpi.so.40"), "").unwrap();
        let prefix = folder.path().to_str().unwrap();
        let launcher = with(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OPAL_PREFIX", prefix)]).unwrap();
        let found = Launcher::candidates(Some(&launcher));
        assert_eq!(found[0], folder.path().join("lib/libmpi.so.40"));
        assert_eq!(found.len(), 1 + OPEN_MPI_FIRST.len());
        assert_eq!(Launcher::candidates(None)[0], Path::new("libmpi_abi.so.1"));
    }
}
