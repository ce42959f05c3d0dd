//! `anemone compare`, as a user types it: contenders on one stream, stopped and resumed, and what is left behind.

use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use anemone::backend::PlaceSpec;
use anemone::compare::findings::{Contender, Findings};
use anemone::compare::run::{Audience, CompareOptions, Task};
use anemone::compare::spec::{Choice, ComparisonSpec, ContenderSpec, Overrides};
use anemone::pipeline::observer::{Event, Observer};
use anemone::pipeline::stop::Stop;
use assert_cmd::Command;
use tempfile::TempDir;

const PIPELINE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 5\nlatents = 3\nrows = 600\n\
    [batch]\nrows = 100\n\
    [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nstep = 0.3\n[validate]\nrows = 200\n";

const COMPARISON: &str = "[compare]\ntitle = 'Small'\npipeline = 'p.toml'\nepochs = 4\nseeds = [1, 2]\n\
    search_epochs = 2\n\
    thresholds = [-12]\n[reference.uniform]\nvalid = -12.875\n\
    [contender.anemone]\nlearn.optimizer = 'anemone'\nlearn.step = { try = [0.01, 0.4] }\n\
    [contender.'no momentum']\nlike = 'anemone'\nlearn.momentum = 0.0\n\
    [contender.'full-batch EM']\nseeds = [2]\nlearn.optimizer = 'full_batch_em'\n";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PIPELINE).unwrap();
    std::fs::write(folder.path().join("c.toml"), COMPARISON).unwrap();
    folder
}

fn anemone(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(Duration::from_secs(120)).output().unwrap()
}

fn compare(dir: &Path, args: &[&str]) -> (String, Findings) {
    let output = anemone(dir, &[&["compare", "c.toml"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), findings(&dir.join("runs/c")))
}

fn findings(out: &Path) -> Findings {
    serde_json::from_str(&std::fs::read_to_string(out.join("findings.json")).unwrap()).unwrap()
}

/// What does not depend on how fast the machine was.
fn learned(findings: &Findings) -> Findings {
    let mut findings = findings.clone();
    for run in findings.sections.iter_mut().flat_map(|s| &mut s.contenders).flat_map(|contender| &mut contender.runs) {
        run.seconds = 0.0;
        run.points.iter_mut().for_each(|point| point.seconds = 0.0);
    }
    findings
}

fn setting<'a>(contender: &'a Contender, key: &str) -> &'a str {
    &contender.settings.iter().find(|setting| setting.key == key).unwrap().value
}

#[test]
fn contenders_start_alike_search_first_and_leave_a_report() {
    let folder = folder();
    let (printed, found) = compare(folder.path(), &[]);
    assert!(printed.contains("c: anemone (learn.step = 0.4), seed 1"), "{printed}");
    assert!(printed.lines().last().unwrap().ends_with("report.html"), "{printed}");
    let section = &found.sections[0];
    assert_eq!((found.title.as_str(), section.rows, section.valid_rows, section.num_vars), ("Small", 600, 200, 8));
    assert!(section.parameters > 0 && section.circuit.contains("hmm, 4 latents"), "{section:?}");
    let [anemone, plain, full] = &section.contenders[..] else { panic!("{section:?}") };
    // The better of both steps was taken, and passed on.
    assert_eq!(anemone.trials.len(), 2);
    let chosen: Vec<bool> = anemone.trials.iter().map(|trial| trial.is_chosen).collect();
    assert_eq!(chosen, [false, true], "{:?}", anemone.trials);
    assert!(anemone.trials[1].best_valid > anemone.trials[0].best_valid);
    assert_eq!((setting(anemone, "learn.step"), setting(plain, "learn.step")), ("0.4", "0.4"));
    assert_eq!((plain.ablates.as_deref(), setting(plain, "learn.momentum")), (Some("anemone"), "0.0"));
    let seeds = |contender: &Contender| contender.runs.iter().map(|run| run.seed).collect::<Vec<_>>();
    assert_eq!((seeds(anemone), seeds(plain), seeds(full)), (vec![1, 2], vec![1, 2], vec![2]));
    for contender in &section.contenders {
        for run in &contender.runs {
            let epochs: Vec<f64> = run.points.iter().map(|point| point.epoch).collect();
            assert_eq!((epochs, run.rows), (vec![0.0, 1.0, 2.0, 3.0, 4.0], 2400));
            assert!(run.points.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
            assert!(run.points.iter().all(|point| point.valid.is_some_and(f64::is_finite)));
        }
    }
    // One start a seed, another for another seed, and they part at once.
    let start = |contender: &Contender, run: usize| contender.runs[run].points[0].valid;
    assert_eq!((start(anemone, 0), start(anemone, 1)), (start(plain, 0), start(full, 0)));
    assert_ne!(start(anemone, 0), start(anemone, 1));
    assert_ne!(anemone.runs[1].points[1].valid, full.runs[0].points[1].valid);
    for file in ["report.html", "report.md", "curves.csv", "table.csv", "findings.json"] {
        assert!(folder.path().join("runs/c").join(file).is_file(), "{file}");
    }
    // A trial leaves no model, a run leaves its last.
    let checkpoints = |path: &str| {
        let inside = std::fs::read_dir(folder.path().join("runs/c/c").join(path)).unwrap();
        inside.filter(|run| run.as_ref().unwrap().path().join("checkpoints").is_dir()).count()
    };
    assert_eq!((checkpoints("anemone"), checkpoints("search/anemone")), (2, 0));

    // The learned curve is that of `train` with the same options.
    let set = ["learn.step=0.4", "learn.epochs=4", "batch.seed=2", "circuit.seed=2"];
    let mut args = vec!["train", "p.toml", "--json"];
    set.iter().for_each(|set| args.extend(["--set", set]));
    let output = anemone_output(folder.path(), &args);
    let valid: Vec<f64> =
        output.lines().filter(|line| line.contains("\"event\":\"validated\"")).map(likelihood).collect();
    let curve: Vec<f64> = anemone.runs[1].points[1..].iter().map(|point| point.valid.unwrap()).collect();
    assert_eq!(valid, curve);
}

fn anemone_output(dir: &Path, args: &[&str]) -> String {
    let output = anemone(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn likelihood(line: &str) -> f64 {
    serde_json::from_str::<serde_json::Value>(line).unwrap()["log_likelihood"].as_f64().unwrap()
}

#[test]
fn what_is_over_is_not_learned_again_and_what_was_changed_is() {
    let folder = folder();
    let (_, first) = compare(folder.path(), &[]);
    let (printed, second) = compare(folder.path(), &[]);
    assert_eq!(first.sections, second.sections, "seconds and all: nothing was run");
    assert!(!printed.contains("learn.step"), "no trial was made again: {printed}");
    // Another contender joins: the others stay as they are.
    let more = format!("{COMPARISON}[contender.mini]\nlearn.optimizer = 'mini_batch_em'\n");
    std::fs::write(folder.path().join("c.toml"), more).unwrap();
    let (_, third) = compare(folder.path(), &[]);
    assert_eq!(third.sections[0].contenders[..3], first.sections[0].contenders[..]);
    assert_eq!(third.sections[0].contenders[3].runs.len(), 2);
    // Longer runs are other runs.
    let (_, longer) = compare(folder.path(), &["--epochs", "5", "--seeds", "1"]);
    assert!(longer.sections[0].contenders.iter().all(|contender| contender.runs.len() == 1));
    assert_eq!(longer.sections[0].contenders[0].runs[0].points.len(), 6);
}

#[test]
fn a_comparison_that_was_killed_or_stopped_ends_as_one_that_was_not() {
    let slow = PIPELINE.replace("rows = 600", "rows = 8000").replace("rows = 100", "rows = 50");
    let slow = format!("{slow}[checkpoint]\nevery_batches = 20\n");
    let whole = folder();
    std::fs::write(whole.path().join("p.toml"), &slow).unwrap();
    let (_, want) = compare(whole.path(), &["--quiet"]);
    for signal in ["-KILL", "-INT"] {
        let folder = folder();
        std::fs::write(folder.path().join("p.toml"), &slow).unwrap();
        for wait in [300, 700] {
            let mut child = start(folder.path());
            std::thread::sleep(Duration::from_millis(wait));
            let id = child.id().to_string();
            let sent = std::process::Command::new("kill").args([signal, &id]).status().unwrap();
            assert!(sent.success() || child.try_wait().unwrap().is_some());
            let deadline = Instant::now() + Duration::from_secs(60);
            while child.try_wait().unwrap().is_none() {
                assert!(Instant::now() < deadline, "it does not end");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let (_, got) = compare(folder.path(), &["--quiet"]);
        assert_eq!(learned(&got), learned(&want), "{signal}");
    }
}

fn start(dir: &Path) -> Child {
    let program = assert_cmd::cargo::cargo_bin("anemone");
    let mut command = std::process::Command::new(program);
    command.current_dir(dir).args(["compare", "c.toml", "--quiet"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Asks for a stop at the end of every epoch, before held-out rows are looked at.
struct Impatient {
    stop: Stop,
}

impl Observer for Impatient {
    fn event(&mut self, event: &Event) {
        if let Event::EpochEnd(_) = event {
            self.stop.request();
        }
    }
}

impl Audience for Impatient {
    fn begins(&mut self, _: &Task) {}

    fn ends(&mut self, _: &Task, _: &Findings) -> anemone::Result<()> {
        Ok(())
    }
}

#[test]
fn a_look_that_was_interrupted_is_made_up_for() {
    let folder = folder();
    let (_, want) = compare(folder.path(), &[]);
    let specs = [ComparisonSpec::load(&folder.path().join("c.toml"), &Overrides::default()).unwrap()];
    let options = CompareOptions {
        out: folder.path().join("again"),
        place: PlaceSpec::default(),
        title: want.title.clone(),
        date: want.date.clone(),
        machine_in_words: want.machine.clone(),
        command: want.command.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for stretch in 0.. {
        assert!(stretch < 100, "it does not come to an end");
        let stop = Stop::new();
        let mut audience = Impatient { stop: stop.clone() };
        let (found, is_over) =
            runtime.block_on(anemone::compare::run::compare(&specs, &options, &stop, &mut audience)).unwrap();
        if is_over {
            // Two trials of two epochs and five runs of four: each is stopped at the end of every epoch.
            assert!(stretch >= 20, "{stretch}");
            assert_eq!(learned(&found), learned(&want));
            break;
        }
    }
}

#[test]
fn a_plan_is_told_and_mistakes_are_one_line() {
    let folder = folder();
    let dir = folder.path();
    let output = anemone(dir, &["compare", "c.toml", "--dry-run"]);
    let plan = String::from_utf8(output.stdout).unwrap();
    assert!(
        plan.contains("c: 2 trials of 2 epochs, then 5 runs of 4 epochs (anemone; no momentum; full-batch EM)"),
        "{plan}"
    );
    assert!(!dir.join("runs").exists(), "a plan leaves nothing behind");
    std::fs::write(dir.join("nothing.toml"), "[source]\nfiles = 'a.npy'\n").unwrap();
    std::fs::write(dir.join("live.toml"), PIPELINE.replace("rows = 600\n", "")).unwrap();
    std::fs::write(dir.join("bare.toml"), PIPELINE.replace("[validate]\nrows = 200\n", "")).unwrap();
    for (change, code, words) in [
        (("epochs = 4", "epochs = 0"), 2, "compare.epochs = 0: must be at least 1"),
        (("p.toml", "q.toml"), 2, "q.toml"),
        (("p.toml", "bare.toml"), 2, "the pipeline holds nothing out"),
        (("p.toml", "live.toml"), 2, "the source is endless"),
        (("learn.step = { try", "learn.stop = { try"), 2, "learn.stop: unknown key"),
    ] {
        std::fs::write(dir.join("d.toml"), COMPARISON.replacen(change.0, change.1, 1)).unwrap();
        let output = anemone(dir, &["compare", "d.toml"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(words) && error.trim_end().lines().count() == 1, "{change:?}: {error}");
        assert_eq!(output.status.code(), Some(code), "{error}");
    }
    let output = anemone(dir, &["compare", "c.toml", "./c.toml"]);
    assert_eq!(output.status.code(), Some(2), "two of one name");
}

const TREE: &str = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 6\ncats = 4\nlatents = 3\nrows = 400\n\
    [batch]\nrows = 50\n\
    [circuit]\nmodel = 'hclt'\nstart = 'noise'\nlatents = 3\n[validate]\nrows = 100\n";

const STARTS: &str = "[compare]\npipeline = 'tree.toml'\nepochs = 2\nseeds = [1, 2]\n[contender.shared]\n\
    [contender.rows]\ncircuit.start = 'rows'\n[contender.wide]\ncircuit.perturbation = { try = [9.0, 0.001] }\n\
    [contender.adam]\nlearn.optimizer = 'adam'\n";

#[test]
fn a_contender_may_start_elsewhere_in_the_same_circuit_and_regret_is_told_over_files() {
    let folder = folder();
    let dir = folder.path();
    std::fs::write(dir.join("tree.toml"), TREE).unwrap();
    std::fs::write(dir.join("one.toml"), STARTS).unwrap();
    std::fs::write(dir.join("two.toml"), format!("{STARTS}[set]\ncircuit.latents = 5\n")).unwrap();
    let printed = anemone_output(dir, &["compare", "one.toml", "two.toml", "--out", "out"]);
    let found = findings(&dir.join("out"));
    for section in &found.sections {
        let [shared, rows, wide, adam] = &section.contenders[..] else { panic!("{section:?}") };
        let start = |contender: &Contender, run: usize| contender.runs[run].points[0].valid.unwrap();
        for run in 0..2 {
            assert_eq!(start(shared, run), start(adam, run), "who says nothing starts with the others");
            assert!(start(rows, run) != start(shared, run) && start(wide, run) != start(shared, run));
        }
        assert_eq!(setting(rows, "circuit.start"), "\"rows\"");
        assert_eq!((setting(wide, "circuit.perturbation").parse(), wide.trials.len()), (Ok(9.0), 2));
        let page = std::fs::read_to_string(dir.join("out/report.md")).unwrap();
        assert!(page.contains("circuit.start = \"rows\""), "a start of one's own is among the options");
    }
    let lines: Vec<&str> = printed.lines().collect();
    let at = lines.iter().position(|line| *line == "Regret on validation rows").unwrap();
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(lines[at + 1]), ["contender", "one", "two", "regret"]);
    let regrets: Vec<f64> = lines[at + 2..at + 6].iter().map(|line| words(line)[3].parse().unwrap()).collect();
    assert!(regrets.is_sorted() && regrets[0] >= 0.0 && regrets[3] > 0.0, "{printed}");
    assert!(lines.last().unwrap().ends_with("report.html"), "{printed}");
    let csv = std::fs::read_to_string(dir.join("out/regret.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5, "{csv}");
    // One file has nothing to be compared over.
    let printed = anemone_output(dir, &["compare", "one.toml", "--out", "out"]);
    assert!(!printed.contains("Regret"), "{printed}");
}

/// Every comparison of the repository is understood.
#[test]
fn experiments_are_understood() {
    let mut seen = 0;
    for domain in ["images", "quickstart", "snps", "text"] {
        for path in experiments(domain) {
            let spec = ComparisonSpec::load(&path, &Overrides::default()).unwrap();
            assert!(spec.contenders.iter().any(|contender| contender.name == "anemone"), "{}", path.display());
            assert!(spec.contenders.iter().any(|contender| contender.name == "full-batch EM"), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 6, "{seen}");
}

/// Files are told apart by their data alone: a mean over them says something only if all contenders are the same in
/// each.
#[test]
fn the_files_of_the_protocol_have_the_same_contenders_with_the_same_grids() {
    let contenders = |path: &Path| {
        let spec = ComparisonSpec::load(path, &Overrides::default()).unwrap();
        assert!(spec.seeds == [1, 2, 3] && !spec.test.is_empty(), "{}", path.display());
        let grid = |contender: &ContenderSpec| {
            let trials = spec.trials_after(contender, &Choice::default()).unwrap();
            let mut settings: Vec<Vec<(String, String)>> = Vec::new();
            for trial in &trials {
                // A search of fewer epochs than runs, or another start, is not another grid. An HMM has no other start.
                let own = trial.settings().into_iter().filter(|setting| setting.key != "circuit.start");
                let of = |value: String| value.split("horizon").next().unwrap_or_default().to_string();
                settings.push(own.map(|setting| (setting.key, of(setting.value))).collect());
            }
            (contender.name.clone(), contender.seeds.clone(), settings)
        };
        spec.contenders.iter().map(grid).collect::<Vec<_>>()
    };
    for (folder, num_files, num_contenders, num_trials) in [("rules", 9, 9, 25), ("unseen", 4, 6, 14)] {
        let files = experiments(folder);
        assert_eq!(files.len(), num_files);
        let first = contenders(&files[0]);
        let trials = first.iter().map(|(_, _, trials)| trials.len()).sum::<usize>();
        assert_eq!((first.len(), trials), (num_contenders, num_trials), "{folder}");
        for file in &files[1..] {
            assert_eq!(contenders(file), first, "{}", file.display());
        }
    }
}

fn experiments(domain: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/experiments").join(domain);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}
