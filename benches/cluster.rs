//! Two ranks of one thread each beside one process with two: `cargo bench --no-default-features --features mpi --bench
//! cluster`, where `ANEMONE_MPI` names a folder with `mpich/` or `openmpi/` (`.ci/mpi` gets one).
//!
//! An HMM with 256 states over 50,257 words and 128 places learns with anemone from batches of 512 and of 2,048 rows:
//! of WikiText-2 where `ANEMONE_DATA` has `wikitext2/train.bin`, and otherwise of made-up tokens that are as frequent
//! as their rank says. The two take turns in one run, and what is printed is the ratio of their rows per second; a busy
//! machine slows both. Besides: bytes of flows that a rank receives, against those of a dense exchange of all
//! parameters, and where a rank's time goes.
//!
//! The program starts itself under `mpiexec`. Ranks wait for orders on a socket, so that they take no time while it is
//! the other's turn, and find the socket by its path, so that they may live in other network namespaces
//! (`benches/two_hosts`). Options, as variables: `ANEMONE_BENCH_ROUNDS`, `ANEMONE_BENCH_LIBRARY` (`mpich` or
//! `openmpi`), `ANEMONE_BENCH_LAUNCHER` (a command that replaces `mpiexec -n 2`), `ANEMONE_BENCH_JSON` (a file that
//! gets a line per batch size, for `docs/cluster_estimate.py`).

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::backend::{Backend, Replicated};
use anemone::cluster::{Cluster as _, Ranks, mpi, shards_of};
use anemone::data::ShardRows;
use anemone::optim::{AnemoneSpec, Optimizer};
use anemone::rng::Rng;
use anemone::{Batch, Categorical, Circuit, Error, ErrorKind, Params, Result, hmm};

const RANKS: usize = 2;
const WORDS: usize = 50_257;
const STATES: usize = 256;
const PLACES: usize = 128;
/// Rows of a global batch, and steps of a turn.
const SIZES: [(usize, usize); 2] = [(512, 6), (2048, 2)];
/// Batches that are gone through in turn: enough that words are found untouched for some steps, as in a stream.
const ROWS: usize = 8192;
const SOCKET: &str = "ANEMONE_BENCH_SOCKET";

fn main() -> Result<()> {
    match std::env::var_os(SOCKET) {
        Some(socket) => be_a_rank(Path::new(&socket)),
        None => compare(),
    }
}

/// A circuit that learns, and its batches.
struct Work {
    backend: Box<dyn Backend>,
    optimizer: Box<dyn Optimizer>,
    ranks: Option<Ranks>,
    rows: Batch,
    /// Where the next batch begins.
    next: usize,
}

impl Work {
    fn new(threads: usize, ranks: Option<Ranks>) -> Result<Self> {
        let circuit: Arc<Circuit> = Arc::new(hmm(PLACES, STATES, Categorical::new(WORDS as u32)?)?);
        let params = Params::random(&circuit, 1, 2.0)?;
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let mut backend: Box<dyn Backend> = Box::new(CpuBackend::new(circuit, &params, &options)?);
        if let Some(ranks) = &ranks {
            backend = Box::new(Replicated::new(backend, ranks.clone())?);
        }
        let optimizer = AnemoneSpec::default().build(&mut *backend)?;
        Ok(Self { backend, optimizer, ranks, rows: Batch::from_rows(&tokens(), PLACES)?, next: 0 })
    }

    /// Some rows, or those of them that this rank's shards have.
    fn part(&self, rows: Range<usize>) -> Result<Batch> {
        let Some(ranks) = &self.ranks else { return Ok(self.rows.slice(rows)) };
        let of_shard = |shard| shards_of(shard, RANKS, rows.len());
        let held = ranks.shards();
        let own = rows.start + of_shard(held.start).start..rows.start + of_shard(held.end - 1).end;
        let counts = (0..RANKS).map(|shard| of_shard(shard).len()).collect();
        self.rows.slice(own).as_part(ShardRows { rows: counts, held, weight: rows.len() as f64 })
    }

    /// Learns from some batches, and says what that took.
    fn learn(&mut self, num_rows: usize, steps: usize) -> Result<Took> {
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        for _ in 0..steps {
            let start = if self.next + num_rows > ROWS { 0 } else { self.next };
            self.next = start + num_rows;
            let batch = self.part(start..self.next)?;
            self.optimizer.learn(&mut *self.backend, &batch)?;
        }
        Ok(Took { wall: begun.elapsed().as_secs_f64(), cpu: cpu_seconds() - cpu, ..Took::default() })
    }
}

/// The rows of all batches, one after the other.
fn tokens() -> Vec<u16> {
    let wanted = ROWS * PLACES;
    if let Some(bytes) = text_file().and_then(|path| std::fs::read(path).ok()).filter(|bytes| bytes.len() >= 2 * wanted)
    {
        return bytes[..2 * wanted].chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
    }
    // p(i) ∝ 1/(i + 2.7), as in `anemone bench`: by the inverse of its distribution function, ln(1 + x/2.7).
    let mut rng = Rng::new(7);
    let token = |u: f64| 2.7 * ((WORDS as f64 / 2.7 + 1.0).powf(u) - 1.0);
    (0..wanted).map(|_| token(rng.uniform()).min(WORDS as f64 - 1.0) as u16).collect()
}

/// The tokens of WikiText-2, where they are.
fn text_file() -> Option<PathBuf> {
    let folder = std::env::var_os("ANEMONE_DATA")?;
    Some(PathBuf::from(folder).join("wikitext2/train.bin")).filter(|path| path.is_file())
}

/// Seconds of all threads of this process, where Linux tells.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// What a turn took.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    wall: f64,
    cpu: f64,
    /// Of a rank: seconds in flows of its own shards, and in sums with waiting; bytes received.
    compute: f64,
    sum: f64,
    received: f64,
}

impl Took {
    fn numbers(&self) -> [f64; 5] {
        [self.wall, self.cpu, self.compute, self.sum, self.received]
    }

    fn parse(line: &str) -> Option<Self> {
        let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [wall, cpu, compute, sum, received] = numbers[..] else { return None };
        Some(Self { wall, cpu, compute, sum, received })
    }
}

/// A rank: waits for orders, `rows steps`, and answers with what they took.
fn be_a_rank(socket: &Path) -> Result<()> {
    let cluster = mpi::join()?;
    let (rank, name) = (cluster.rank(), cluster.name());
    let ranks = Ranks::new(Box::new(cluster), RANKS)?;
    let mut work = Work::new(1, Some(ranks.clone()))?;
    let mut stream = UnixStream::connect(socket).map_err(|e| io(&e))?;
    let mut orders = BufReader::new(stream.try_clone().map_err(|e| io(&e))?);
    writeln!(stream, "{rank} {name}").map_err(|e| io(&e))?;
    let mut line = String::new();
    while orders.read_line(&mut line).map_err(|e| io(&e))? > 0 {
        let numbers: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [rows, steps] = numbers[..] else { break };
        let before = ranks.costs();
        ranks.calls().barrier()?;
        let mut took = work.learn(rows, steps)?;
        let after = ranks.costs();
        took.compute = after.compute_seconds - before.compute_seconds;
        took.sum = after.sum_seconds - before.sum_seconds;
        took.received = (after.received - before.received) as f64;
        let numbers = took.numbers().map(|number| number.to_string());
        writeln!(stream, "{}", numbers.join(" ")).map_err(|e| io(&e))?;
        line.clear();
    }
    Ok(())
}

/// Ranks that wait for orders.
struct Job {
    launcher: Child,
    ranks: Vec<(UnixStream, BufReader<UnixStream>)>,
    name: String,
    socket: PathBuf,
}

impl Job {
    /// Starts this program as ranks; `None` where there is no launcher.
    fn start() -> Result<Option<Self>> {
        let Some(mut command) = launcher() else { return Ok(None) };
        let socket = std::env::temp_dir().join(format!("anemone-bench-{}", std::process::id()));
        let listener = UnixListener::bind(&socket).map_err(|e| io(&e))?;
        listener.set_nonblocking(true).map_err(|e| io(&e))?;
        command.arg(std::env::current_exe().map_err(|e| io(&e))?).env(SOCKET, &socket).stdin(Stdio::null());
        let mut job =
            Self { launcher: command.spawn().map_err(|e| io(&e))?, ranks: Vec::new(), name: String::new(), socket };
        while job.ranks.len() < RANKS {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(|e| io(&e))?;
                    let mut reader = BufReader::new(stream.try_clone().map_err(|e| io(&e))?);
                    job.name = said(&mut reader)?.split_once(' ').map_or(String::new(), |(_, name)| name.into());
                    job.ranks.push((stream, reader));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            if let Some(status) = job.launcher.try_wait().map_err(|e| io(&e))? {
                return Err(failed(format!("the ranks are gone before they began: {status}")));
            }
        }
        Ok(Some(job))
    }

    /// One turn of all ranks: as long as the slowest, the mean of everything else.
    fn learn(&mut self, num_rows: usize, steps: usize) -> Result<Took> {
        for (stream, _) in &mut self.ranks {
            writeln!(stream, "{num_rows} {steps}").map_err(|e| io(&e))?;
        }
        let mut all = Took::default();
        for (_, reader) in &mut self.ranks {
            let took = Took::parse(&said(reader)?).ok_or_else(|| failed("a rank answered with no numbers"))?;
            all.wall = all.wall.max(took.wall);
            all.cpu += took.cpu;
            all.compute += took.compute / RANKS as f64;
            all.sum += took.sum / RANKS as f64;
            all.received += took.received / RANKS as f64;
        }
        Ok(all)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.ranks.clear(); // no more orders: ranks end, and the launcher with them
        let _ = self.launcher.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn said(reader: &mut BufReader<UnixStream>) -> Result<String> {
    let mut line = String::new();
    match reader.read_line(&mut line).map_err(|e| io(&e))? {
        0 => Err(failed("a rank is gone")),
        _ => Ok(line.trim().to_string()),
    }
}

/// The command that starts the ranks.
fn launcher() -> Option<Command> {
    if let Ok(line) = std::env::var("ANEMONE_BENCH_LAUNCHER") {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next()?);
        command.args(words);
        return Some(command);
    }
    let folder = PathBuf::from(std::env::var_os("ANEMONE_MPI")?);
    let wanted = std::env::var("ANEMONE_BENCH_LIBRARY").ok();
    let libraries: Vec<&str> = wanted.as_deref().map_or(vec!["mpich", "openmpi"], |name| vec![name]);
    let library = libraries.into_iter().find(|library| folder.join(library).join("bin/mpiexec").is_file())?;
    let mut command = Command::new(folder.join(library).join("bin/mpiexec"));
    command.args(["-n", &RANKS.to_string()]);
    if library == "openmpi" {
        // Ranks of one thread each, on whatever cores there are.
        command.args(["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    Some(command)
}

fn compare() -> Result<()> {
    let Some(mut job) = Job::start()? else {
        println!("skipped: ANEMONE_MPI names no folder with mpich/ or openmpi/ (.ci/mpi gets one)");
        return Ok(());
    };
    let rounds = std::env::var("ANEMONE_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(7usize);
    let mut alone = Work::new(RANKS, None)?;
    let data = if text_file().is_some() { "WikiText-2" } else { "made-up tokens" };
    println!("HMM-{STATES}, {PLACES} of {WORDS} words, {data}; {}", job.name);
    println!("load average {}", load());
    for (rows, steps) in SIZES {
        alone.learn(rows, steps)?;
        job.learn(rows, steps)?;
        let mut turns = Vec::new();
        for _ in 0..rounds {
            turns.push((alone.learn(rows, steps)?, job.learn(rows, steps)?));
        }
        report(rows, steps, &turns)?;
    }
    println!("load average {}", load());
    Ok(())
}

fn report(rows: usize, steps: usize, turns: &[(Took, Took)]) -> Result<()> {
    let per_step =
        |of: &dyn Fn(&(Took, Took)) -> f64| median(turns.iter().map(|turn| of(turn) / steps as f64).collect());
    let rate = |wall: f64| (rows * steps) as f64 / wall;
    let ratios: Vec<f64> = turns.iter().map(|(alone, ranks)| alone.wall / ranks.wall).collect();
    let best = |of: &dyn Fn(&(Took, Took)) -> f64| turns.iter().map(|turn| rate(of(turn))).fold(0.0, f64::max);
    let (alone, ranks) = (best(&|turn| turn.0.wall), best(&|turn| turn.1.wall));
    let received = per_step(&|turn| turn.1.received);
    // Every number of every parameter, in single precision: half of each rank's goes to the other to be added up, and
    // half of the sums comes back.
    let parameters = (WORDS * STATES + STATES * STATES + STATES) as f64;
    let dense = 2.0 * 4.0 * parameters * (RANKS - 1) as f64 / RANKS as f64;
    println!("batches of {rows}:");
    println!("  one process, two threads   {alone:>8.0} rows/s at best; {:.4} s of CPU a step", per_step(&|t| t.0.cpu));
    println!("  two ranks, one thread each {ranks:>8.0} rows/s at best; {:.4} s of CPU a step", per_step(&|t| t.1.cpu));
    let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
    println!(
        "  ratio: median {:.3}, of the best {:.3}; turn by turn {}",
        median(ratios),
        ranks / alone,
        shown.join(" ")
    );
    let cpu = per_step(&|t| t.0.cpu) / per_step(&|t| t.1.cpu);
    println!("  ratio of CPU: {cpu:.3} (waiting ranks spin, and that counts)");
    let [wall, compute, sum] = [per_step(&|t| t.1.wall), per_step(&|t| t.1.compute), per_step(&|t| t.1.sum)];
    println!("  a rank's step: {wall:.4} s, of which {compute:.4} in its own flows and {sum:.4} in sums and waiting");
    println!(
        "  received {received:.0} bytes a step, {:.1} % of the {dense:.0} of a dense exchange",
        100.0 * received / dense
    );
    if let Some(path) = std::env::var_os("ANEMONE_BENCH_JSON") {
        let line = format!(
            "{{\"rows\":{rows},\"ranks\":{RANKS},\"parameters\":{parameters},\"alone_seconds\":{},\"step_seconds\":{wall},\
             \"compute_seconds\":{compute},\"sum_seconds\":{sum},\"received_bytes\":{received}}}",
            per_step(&|turn| turn.0.wall)
        );
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(|e| io(&e))?;
        writeln!(file, "{line}").map_err(|e| io(&e))?;
    }
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn io(error: &std::io::Error) -> Error {
    Error::io("the bench", error)
}

fn failed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::State, message)
}
