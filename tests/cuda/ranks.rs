//! Ranks with a GPU each, on the emulated driver and its stand-in for NCCL: ranks are threads of one process.
//!
//! Sums between the devices are held against sums by way of the host, to the bit. No GPU and no NCCL has run this.

use std::time::{Duration, Instant};

use anemone::ErrorKind;
use anemone::Result;
use anemone::backend::cuda::{CudaBackend, CudaGroup, CudaOptions, CudaPrecision};
use anemone::backend::{Backend, ClusterSums, Device, PlaceSpec, Replicated, TrainingPrecision};
use anemone::circuit::Categorical;
use anemone::cluster::{Alone, Cluster, Ranks, Threads};
use anemone::data::Batch;
use anemone::learner::latest;
use anemone::optim::{AdamSpec, AnemoneSpec, FullBatchEmSpec, MiniBatchEmSpec, OptimizerSpec, SgdSpec, StepwiseEmSpec};
use anemone::pipeline::observer::{Event, Observer};
use anemone::pipeline::run::{TrainOptions, train};
use anemone::pipeline::spec::PipelineSpec;
use anemone::pipeline::stop::Stop;
use anemone::structure::hmm;
use anemone::{Error, Learner};

use crate::common::cases::{self, Case};
use crate::common::emulator::{STREAM_MODES, within_each, within_emulator};
use crate::common::{cpu, top_down};

/// Enough for ranks whose shards are no whole subtree.
const SHARDS: usize = 5;

fn optimizers(case: &Case) -> Vec<OptimizerSpec> {
    let mut all: Vec<OptimizerSpec> = vec![
        AnemoneSpec { momentum: 0.9, ..AnemoneSpec::default() }.into(),
        AnemoneSpec { batches_per_update: 2, ..AnemoneSpec::default() }.into(),
        MiniBatchEmSpec::default().into(),
        StepwiseEmSpec::default().into(),
        FullBatchEmSpec::default().into(),
    ];
    if case.is_discrete() {
        all.extend([AdamSpec::default().into(), SgdSpec::default().into()]);
    }
    all
}

fn options(device: usize) -> CudaOptions {
    CudaOptions { device, precision: CudaPrecision::F32, ..CudaOptions::default() }
}

fn on_gpu(case: &Case, device: usize) -> Box<dyn Backend> {
    Box::new(CudaBackend::new(case.circuit.clone(), &case.params, &options(device)).unwrap())
}

fn replicated(inner: Box<dyn Backend>, cluster: Box<dyn Cluster>, sums: ClusterSums) -> Replicated {
    Replicated::with_sums(inner, Ranks::new(cluster, SHARDS).unwrap(), sums).unwrap()
}

/// What every rank of a cluster of threads finds.
fn on_ranks<T: Send>(num_ranks: usize, act: impl Fn(Threads) -> T + Sync) -> Vec<T> {
    let act = &act;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = Threads::ranks(num_ranks).into_iter().map(|rank| scope.spawn(move || act(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The bits of everything after two batches, of which the second has shards without rows, and the end of an epoch; and
/// what the backend had to say.
fn learned(mut backend: Replicated, case: &Case, spec: &OptimizerSpec) -> Result<(Vec<u64>, Option<String>)> {
    let told = backend.meet()?;
    let mut optimizer = spec.build(&mut backend)?;
    let mut bits = Vec::new();
    for batch in [case.batch_with_missing(11, 1), case.batch(3, 2)] {
        let report = optimizer.learn(&mut backend, &batch)?.batch;
        bits.extend([report.log_likelihood.to_bits(), report.possible_weight.to_bits()]);
    }
    optimizer.end_epoch(&mut backend)?;
    bits.extend(backend.params()?.values().iter().map(|x| u64::from(x.to_bits())));
    bits.extend(top_down(&mut backend).concat().iter().map(|x| x.to_bits()));
    Ok((bits, told))
}

fn tiny() -> Case {
    Case::new("hmm", hmm(3, 3, Categorical::new(5).unwrap()).unwrap())
}

#[test]
fn sums_between_gpus_have_the_bits_of_sums_on_the_host() {
    let name = "ranks::sums_between_gpus_have_the_bits_of_sums_on_the_host";
    within_each(&STREAM_MODES, name, &[("DEVICES", "3")], || {
        for case in [tiny(), Case::new("mixed inputs", cases::mixed())] {
            for spec in optimizers(&case) {
                let (want, _) =
                    learned(replicated(on_gpu(&case, 0), Box::new(Alone), ClusterSums::Host), &case, &spec).unwrap();
                assert!(want.len() > 20);
                for num_ranks in 1..=3 {
                    let found = on_ranks(num_ranks, |rank| {
                        let inner = on_gpu(&case, rank.rank());
                        learned(replicated(inner, Box::new(rank), ClusterSums::Nccl), &case, &spec).unwrap()
                    });
                    for (got, told) in found {
                        assert!(got == want, "{}: {} on {num_ranks} ranks", case.name, spec.name());
                        let told = told.unwrap_or_default();
                        assert!(num_ranks == 1 || told.contains("between the GPUs by NCCL 2.20.5"), "{told}");
                    }
                }
            }
        }
        // And of ranks whose sums go by way of the host.
        let (case, spec) = (tiny(), &optimizers(&tiny())[0]);
        let found = on_ranks(2, |rank| {
            let inner = on_gpu(&case, rank.rank());
            learned(replicated(inner, Box::new(rank), ClusterSums::Host), &case, spec).unwrap()
        });
        let (want, _) = learned(replicated(on_gpu(&case, 0), Box::new(Alone), ClusterSums::Auto), &case, spec).unwrap();
        assert!(found.iter().all(|(got, _)| *got == want));
        assert!(found[0].1.as_ref().unwrap().starts_with("flows are summed by way of the host: rank 0 on cuda:0 ("));
    });
}

/// Calls that go wrong: after so many gathers of the wrapped cluster something else happens.
struct Troubled {
    inner: Threads,
    gathers: usize,
    trouble: Trouble,
}

#[derive(Clone, Copy)]
enum Trouble {
    /// The rank is not heard of again after this gather.
    Gone(usize),
    /// The rank is late after this gather.
    Late(usize, Duration),
}

impl Cluster for Troubled {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn num_ranks(&self) -> usize {
        self.inner.num_ranks()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.inner.broadcast(root, bytes)
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.inner.gather(bytes)?;
        self.gathers += 1;
        match self.trouble {
            Trouble::Gone(after) if self.gathers >= after => Err(Error::new(ErrorKind::Io, "killed")),
            Trouble::Late(after, time) if self.gathers == after => {
                std::thread::sleep(time);
                Ok(all)
            }
            _ => Ok(all),
        }
    }

    fn exchange_f32(&mut self, send: &[f32], to: &[usize], receive: &mut [f32], from: &[usize]) -> Result<()> {
        self.inner.exchange_f32(send, to, receive, from)
    }

    fn exchange_f64(&mut self, send: &[f64], to: &[usize], receive: &mut [f64], from: &[usize]) -> Result<()> {
        self.inner.exchange_f64(send, to, receive, from)
    }

    fn spread_f32(&mut self, numbers: &mut [f32], counts: &[usize]) -> Result<()> {
        self.inner.spread_f32(numbers, counts)
    }

    fn spread_f64(&mut self, numbers: &mut [f64], counts: &[usize]) -> Result<()> {
        self.inner.spread_f64(numbers, counts)
    }

    fn can_shrink(&self) -> bool {
        true
    }

    fn lost(&self) -> Option<usize> {
        self.inner.lost()
    }

    fn shrink(&mut self) -> Result<Vec<usize>> {
        self.inner.shrink()
    }

    fn abort(&mut self, message: &str) {
        self.inner.abort(message);
    }
}

/// Gathers of ranks that meet: what each offers, and whether it has joined.
const OF_A_MEETING: usize = 2;

/// Gathers of a sum: what each has found, and whether all have the sum.
const OF_A_SUM: usize = 2;

fn learner(rank: usize, cluster: Box<dyn Cluster>) -> Learner {
    let circuit = hmm(3, 3, Categorical::new(5).unwrap()).unwrap();
    let learner = Learner::on(circuit).device(Device::Cuda(rank)).seed(3).momentum(0.5);
    learner.cluster(cluster, SHARDS).cluster_sums(ClusterSums::Nccl).spawn().unwrap()
}

fn rows(step: u64) -> Batch {
    let values: Vec<u8> = (0..3 * 10).map(|i| ((i * i + 7 * step) % 5) as u8).collect();
    Batch::from_rows(&values, 3).unwrap()
}

fn bits(learner: &Learner) -> Vec<u32> {
    learner.params_blocking().unwrap().values().iter().map(|x| x.to_bits()).collect()
}

/// A rank is gone when others are in the midst of a sum by NCCL: they give it up, join again without it, and learn the
/// same bits.
#[test]
fn a_rank_that_is_lost_within_a_sum_is_done_without() {
    let name = "ranks::a_rank_that_is_lost_within_a_sum_is_done_without";
    within_emulator(name, &[("DEVICES", "3"), ("STREAMS", "lazy")], || {
        let alone = learner(0, Box::new(Alone));
        for step in 0..3 {
            alone.learn_blocking(rows(step)).unwrap();
        }
        let want = bits(&alone);
        drop(alone);
        for lost in [0, 2] {
            let found = on_ranks(3, |rank| {
                let me = rank.rank();
                let is_lost = me == lost;
                let trouble = Trouble::Gone(if is_lost { OF_A_MEETING + OF_A_SUM + 1 } else { usize::MAX });
                let learner = learner(me, Box::new(Troubled { inner: rank, gathers: 0, trouble }));
                for step in 0..3 {
                    match learner.learn_blocking(rows(step)) {
                        Ok(_) => {}
                        Err(error) if is_lost && step == 1 => {
                            assert_eq!(error.to_string(), "killed");
                            return None;
                        }
                        Err(error) => panic!("rank {me}, step {step}: {error}"),
                    }
                }
                Some(bits(&learner))
            });
            assert_eq!(found.iter().flatten().count(), 2);
            assert!(found.iter().flatten().all(|got| *got == want), "without rank {lost}");
        }
    });
}

/// A rank that does not come to a sum ends it for all, with one sentence and within the time that was given.
#[test]
fn a_sum_that_does_not_end_is_given_up() {
    const NAME: &str = "ranks::a_sum_that_does_not_end_is_given_up";
    // The limit is read from the environment of the process that the test runs in.
    let limit = "ANEMONE_NCCL_SECONDS";
    if std::env::var_os(limit).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", NAME, "--nocapture"]).env(limit, "1").output().unwrap();
        let text = [&output.stdout[..], &output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
        return;
    }
    within_emulator(NAME, &[("DEVICES", "2"), ("STREAMS", "lazy")], || {
        let begun = Instant::now();
        let errors = on_ranks(2, |rank| {
            let me = rank.rank();
            let after = if me == 1 { OF_A_MEETING + OF_A_SUM + 1 } else { usize::MAX };
            let trouble = Trouble::Late(after, Duration::from_millis(2500));
            let learner = learner(me, Box::new(Troubled { inner: rank, gathers: 0, trouble }));
            learner.learn_blocking(rows(0)).unwrap();
            learner.learn_blocking(rows(1)).unwrap_err()
        });
        assert!(begun.elapsed() < Duration::from_secs(30)); // not for ever: what a sum may take is said in the test
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::Cluster);
            let want = "rank 0: a sum between the GPUs failed: NCCL has waited 1 s for other ranks \
                        (ANEMONE_NCCL_SECONDS is how long it may); --cluster-sums host does without NCCL";
            assert_eq!(error.to_string(), want);
        }
    });
}

/// Makes the backend of a rank.
type Make = dyn Fn(&Case) -> Box<dyn Backend> + Sync;

/// What ranks tell, or why they refuse, if the last of two has another backend.
fn mismatched(other: &Make, sums: ClusterSums) -> Vec<Result<Option<String>>> {
    let case = tiny();
    on_ranks(2, |rank| {
        let inner = if rank.rank() == 0 { on_gpu(&case, 0) } else { other(&case) };
        learned(replicated(inner, Box::new(rank), sums), &case, &MiniBatchEmSpec::default().into())
            .map(|(_, told)| told)
    })
}

#[test]
fn ranks_that_cannot_take_part_are_named_by_all() {
    let name = "ranks::ranks_that_cannot_take_part_are_named_by_all";
    within_emulator(name, &[("DEVICES", "3"), ("STREAMS", "lazy")], || {
        let on_cpu = |case: &Case| -> Box<dyn Backend> { Box::new(cpu(&case.circuit, &case.params)) };
        let on_two = |case: &Case| -> Box<dyn Backend> {
            Box::new(CudaGroup::new(&case.circuit, &case.params, &options(0), &[1, 2]).unwrap())
        };
        let on_same = |case: &Case| on_gpu(case, 0);
        let others: [(&Make, &str); 3] = [
            (&on_cpu, "rank 1: it has no GPU"),
            (&on_two, "rank 1: it has several GPUs, and sums over ranks need one each"),
            (&on_same, "ranks 0 and 1 share cuda:0 (Emulated device 0); NCCL needs a GPU for each"),
        ];
        for (other, why) in others {
            for told in mismatched(other, ClusterSums::Auto) {
                let told = told.unwrap().unwrap();
                assert!(
                    told.starts_with(&format!("flows are summed by way of the host, not by NCCL ({why}): ")),
                    "{told}"
                );
            }
            for refused in mismatched(other, ClusterSums::Nccl) {
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Cluster);
                assert_eq!(refused.to_string(), format!("--cluster-sums nccl: not possible: {why}"));
            }
        }
    });
}

/// Without NCCL flows go by way of the host; where it was asked for, that is an error on every rank.
#[test]
fn a_library_that_is_missing_is_said() {
    const NAME: &str = "ranks::a_library_that_is_missing_is_said";
    let variable = "ANEMONE_NCCL_LIBRARY";
    if std::env::var_os(variable).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", NAME, "--nocapture"]).env(variable, "/nowhere/libnccl.so.2").output();
        let output = output.unwrap();
        let text = [&output.stdout[..], &output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
        return;
    }
    within_emulator(NAME, &[("DEVICES", "2"), ("STREAMS", "lazy")], || {
        let other: &Make = &|case: &Case| on_gpu(case, 1);
        let why = "rank 0: ANEMONE_NCCL_LIBRARY=/nowhere/libnccl.so.2: ";
        for told in mismatched(other, ClusterSums::Auto) {
            let told = told.unwrap().unwrap();
            assert!(told.starts_with(&format!("flows are summed by way of the host, not by NCCL ({why}")), "{told}");
        }
        for refused in mismatched(other, ClusterSums::Nccl) {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.starts_with(&format!("--cluster-sums nccl: not possible: {why}")), "{refused}");
        }
    });
}

/// `auto` on several ranks of a machine: each takes the next GPU, counted round.
#[test]
fn ranks_of_a_machine_take_the_next_gpu() {
    within_emulator("ranks::ranks_of_a_machine_take_the_next_gpu", &[("DEVICES", "2")], || {
        let found = on_ranks(3, |rank| {
            let mut ranks = Ranks::new(Box::new(rank), SHARDS).unwrap();
            ranks.find_local_rank().unwrap();
            Device::Auto.settle_on(ranks.local_rank()).unwrap().0
        });
        assert_eq!(found, [Device::Cuda(0), Device::Cuda(1), Device::Cuda(0)]);
        assert_eq!(Device::Cuda(1).settle_on(0).unwrap().0, Device::Cuda(1));
    });
}

/// What was said before learning started.
#[derive(Default)]
struct Notes {
    has_started: bool,
    before: Vec<String>,
}

impl Observer for Notes {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Note(note) if !self.has_started => self.before.push(note.clone()),
            Event::Started(_) => self.has_started = true,
            _ => {}
        }
    }
}

/// A run on two ranks, each given the rows of its own shards: the parameters of one process, and a note before it
/// starts.
#[test]
fn a_run_on_two_gpus_is_a_run_on_one() {
    const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 4\ncats = 4\nlatents = 3\nrows = 40\n\
        [batch]\nrows = 16\nshards = 3\n[circuit]\nmodel = 'hmm'\nlatents = 3\n[learn]\nstep = 0.3\n";
    within_emulator("ranks::a_run_on_two_gpus_is_a_run_on_one", &[("DEVICES", "2"), ("STREAMS", "lazy")], || {
        let dir = tempfile::tempdir().unwrap();
        let spec = PipelineSpec::parse(PIPELINE, "p.toml").unwrap();
        let run = |out: &str, ranks: Option<Ranks>| {
            let precision = Some(TrainingPrecision::F32);
            let options = TrainOptions {
                name: out.into(),
                out: dir.path().join(out),
                resume: false,
                force_resume: false,
                place: PlaceSpec { ranks, precision, ..PlaceSpec::default() },
                every_look: false,
            };
            let mut notes = Notes::default();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(train(&spec, &options, &Stop::new(), &mut notes)).unwrap();
            notes.before
        };
        let learned = |out: &str| latest(&dir.path().join(out).join("checkpoints")).unwrap().found.unwrap().1.params;
        assert_eq!(run("alone", None), [""; 0]);
        let notes = on_ranks(2, |rank| {
            let mut ranks = Ranks::new(Box::new(rank), 3).unwrap();
            ranks.find_local_rank().unwrap();
            run("two", Some(ranks))
        });
        assert!(learned("two") == learned("alone"));
        assert_eq!((notes[0].len(), notes[1].len()), (1, 0), "{notes:?}");
        let note = &notes[0][0];
        assert!(note.starts_with("flows are summed between the GPUs by NCCL 2.20.5: rank 0 on cuda:0 ("), "{note}");
        assert!(note.contains(", rank 1 on cuda:1 (Emulated device 1)"), "{note}");
    });
}
