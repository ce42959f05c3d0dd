//! Apache Kafka itself, where `.ci/kafka` has got its jars (`ANEMONE_KAFKA` names their folder): a topic is learned
//! under kills and a broker that restarts, and mistakes get their errors.
//!
//! `ANEMONE_KAFKA_ROWS=200000 ANEMONE_KAFKA_KILLS=50 cargo test --test command -- kafka:: --nocapture` is the long
//! version; the default is a small one, for every day. An in-process broker is tested without Java: `source/kafka/`.

use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anemone::rng::Rng;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::TopicPartitionList;
use serde_json::Value;

use crate::common::running::{any_checkpoint, newest_step, outcome};

const PARTITIONS: i32 = 8;
const BATCH_ROWS: usize = 200;
/// Bits of a row's number: each is a column.
const BITS: usize = 18;
/// No command takes longer.
const PATIENCE: Duration = Duration::from_secs(600);

fn number_of(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A broker on loopback, which ends with the test.
struct Broker {
    folder: PathBuf,
    port: u16,
}

impl Broker {
    fn script(arguments: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/kafka");
        Command::new(script).args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn start(folder: &Path) -> Self {
        let broker = Self { folder: folder.to_path_buf(), port: free_ports() };
        broker.again();
        broker
    }

    fn again(&self) {
        let output = Self::script(&["start", self.folder.to_str().unwrap(), &self.port.to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn stop(&self) {
        Self::script(&["stop", self.folder.to_str().unwrap()]);
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address());
        config
    }

    fn create_topic(&self, name: &str) {
        self.create(&NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1)));
    }

    fn create(&self, topic: &NewTopic) {
        self.administer(async |admin, options| admin.create_topics([topic], options).await.unwrap());
    }

    /// Asks the broker for a change of topics, which must be made.
    fn administer<T: std::fmt::Debug>(
        &self,
        act: impl AsyncFnOnce(&AdminClient<DefaultClientContext>, &AdminOptions) -> Vec<Result<String, T>>,
    ) {
        let admin: AdminClient<DefaultClientContext> = self.config().create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        runtime.block_on(act(&admin, &options)).into_iter().for_each(|topic| drop(topic.unwrap()));
    }

    /// Rows for one partition, each with a key and a time in milliseconds if it has them.
    fn send_to(
        &self,
        topic: &str,
        partition: i32,
        rows: Range<usize>,
        stamps: impl Fn(usize) -> (Option<String>, Option<i64>),
    ) {
        let producer: BaseProducer = self.config().set("enable.idempotence", "true").create().unwrap();
        for row in rows {
            let (payload, (key, time)) = (message(row), stamps(row));
            let mut record = BaseRecord::<str, str>::to(topic).partition(partition).payload(&payload);
            (record.key, record.timestamp) = (key.as_deref(), time);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(Duration::from_secs(60)).unwrap();
    }

    /// Rows that are their own numbers in binary, dealt out to the partitions.
    fn send_rows(&self, topic: &str, rows: usize, compression: &str) {
        let mut config = self.config();
        config
            .set("enable.idempotence", "true") // batches that are sent again keep their order
            .set("compression.type", compression)
            .set("linger.ms", "20")
            .set("queue.buffering.max.messages", "1000000");
        let producer: BaseProducer = config.create().unwrap();
        for row in 0..rows {
            let payload = message(row);
            let record = BaseRecord::<(), str>::to(topic).partition(row as i32 % PARTITIONS).payload(&payload);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(Duration::from_secs(120)).unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A row that is its own number in binary.
fn message(row: usize) -> String {
    let columns: Vec<String> = (0..BITS).map(|bit| format!("\"b{bit}\":{}", row >> bit & 1)).collect();
    format!("{{{}}}", columns.join(","))
}

/// The first of three ports in a row that nobody uses.
fn free_ports() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if first < 65_000 && (1..3).all(|next| TcpListener::bind(("127.0.0.1", first + next)).is_ok()) {
            return first;
        }
    }
}

fn pipeline(broker: &Broker, topic: &str, rows: usize, more: &str) -> String {
    format!(
        "[source.kafka]\nbrokers = '{}'\ntopic = '{topic}'\norder = 'round-robin'\ntimeout = 20\n\
         group = 'lag'\n{more}\n\
         [decode]\nkind = 'rows'\ncats = 2\n[batch]\nrows = {BATCH_ROWS}\n[circuit]\nmodel = 'hmm'\nlatents = 64\n\
         [learn]\nrows = {rows}\n[checkpoint]\nevery_batches = 3\nkeep = 2\n",
        broker.address()
    )
}

fn start(file: &Path, out: &Path) -> Child {
    start_with(&["--quiet"], file, out)
}

fn start_with(flags: &[&str], file: &Path, out: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.args(["train", "--resume", "--threads", "1"]).args(flags).arg("--out").args([out, file]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The exit of a command within `patience`, and what it said.
fn finish(mut child: Child, patience: Duration) -> Output {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > patience {
            child.kill().unwrap(); // by id
            let output = child.wait_with_output().unwrap();
            panic!("not through after {patience:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn finish_well(child: Child) -> String {
    let output = finish(child, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// The step of the newest checkpoint, 0 before any.
fn step_of(out: &Path) -> u64 {
    let is_there = out.join("checkpoints").is_dir() && any_checkpoint(out);
    if is_there { newest_step(out) } else { 0 }
}

#[test]
fn a_topic_is_learned_once_under_kills_and_broker_restarts_and_mistakes_are_named() {
    if std::env::var_os("ANEMONE_KAFKA").is_none() {
        eprintln!("skipped: ANEMONE_KAFKA is not set: .ci/kafka gets Kafka's jars");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(&folder.path().join("broker"));
    let (rows, wanted_kills) = (number_of("ANEMONE_KAFKA_ROWS", 16_000), number_of("ANEMONE_KAFKA_KILLS", 5));
    for (topic, compression) in [("plain", "none"), ("small", "zstd")] {
        broker.create_topic(topic);
        broker.send_rows(topic, rows, compression);
    }
    let file = |topic: &str, more: &str| {
        let file = folder.path().join(format!("{topic}.toml"));
        std::fs::write(&file, pipeline(&broker, topic, rows, more)).unwrap();
        file
    };

    // Nobody disturbs this one.
    let whole = folder.path().join("whole");
    let begun = Instant::now();
    finish_well(start(&file("plain", ""), &whole));
    let (time, expected) = (begun.elapsed(), outcome(&whole));
    assert_eq!(expected.2["rows"], rows);
    let each = rows / PARTITIONS as usize;
    check_offsets(&expected.2["cursor"], each as u64);
    println!("uninterrupted: {rows} rows in {time:.1?}");
    check_lag(&broker, "plain", each);

    // The same rows in a compressed topic, killed and without a broker again and again. By steps, not by seconds: what
    // is killed has learned something since it was resumed.
    let (mut kills, mut restarts, mut rng) = (0, 0, Rng::new(21));
    let (killed, file) = (folder.path().join("killed"), file("small", ""));
    let steps_each = 2.0 * (rows / BATCH_ROWS) as f64 / (wanted_kills + 2) as f64;
    let begun = Instant::now();
    let mut useful = 0;
    loop {
        let from = step_of(&killed);
        let until = from + 1 + (rng.uniform() * steps_each) as u64;
        let mut child = start(&file, &killed);
        let ended = |child: &mut Child, step: u64| loop {
            let is_over = child.try_wait().unwrap().is_some();
            if is_over || step_of(&killed) >= step {
                break is_over;
            }
            assert!(begun.elapsed() < PATIENCE, "no step {step}");
            thread::sleep(Duration::from_millis(2));
        };
        if kills % 5 == 2 && restarts <= kills / 5 && !ended(&mut child, from + 1) {
            // The run stands still meanwhile, or it would be through before there is a broker again.
            signal(&child, "-STOP");
            broker.stop();
            thread::sleep(Duration::from_secs_f64(rng.uniform()));
            broker.again();
            signal(&child, "-CONT");
            restarts += 1;
        }
        if kills >= wanted_kills || ended(&mut child, until) {
            finish_well(child);
            break;
        }
        child.kill().unwrap(); // SIGKILL, by id
        child.wait().unwrap();
        kills += 1;
        useful += usize::from(step_of(&killed) > from);
    }
    println!("{kills} kills, {useful} of them after progress, {restarts} broker restarts, {:.0?}", begun.elapsed());
    let found = outcome(&killed);
    check_offsets(&found.2["cursor"], each as u64);
    assert_eq!(found.2, expected.2, "place and counters");
    assert!(found.0 == expected.0, "parameters differ after {kills} kills");
    assert!(found.1 == expected.1, "the optimizer's state differs after {kills} kills");
    assert!(useful > 0 && (restarts > 0 || wanted_kills < 3), "{useful} kills after progress, {restarts} restarts");

    check_shards(&broker, folder.path(), rows);
    check_mistakes(&broker, folder.path(), rows);
}

/// Partitions that are dealt out to shards: every row once, and the group knows of all of them.
fn check_shards(broker: &Broker, folder: &Path, rows: usize) {
    broker.create_topic("shared");
    broker.send_rows("shared", rows, "none");
    let run = |shards: usize| {
        let batch = format!("[batch]\nshards = {shards}\nmax_wait = 'never'\n");
        let text = pipeline(broker, "shared", rows, "").replace("[batch]\n", &batch);
        let (file, out) = (folder.join(format!("shared-{shards}.toml")), folder.join(format!("shared-{shards}")));
        std::fs::write(&file, text).unwrap();
        (finish(start(&file, &out), PATIENCE), out)
    };
    let (output, out) = run(4);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = outcome(&out).2;
    assert_eq!(found["rows"], rows);
    for (shard, cursor) in found["cursor"]["shards"].as_array().unwrap().iter().enumerate() {
        let next = cursor["position"]["next"].as_object().unwrap();
        assert!(next.keys().all(|partition| partition.parse::<usize>().unwrap() % 4 == shard), "{shard}: {cursor}");
        assert_eq!(next.len(), 2, "{shard}: {cursor}");
    }
    check_lag(broker, "shared", rows / PARTITIONS as usize);
    let (output, _) = run(9);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("batch.shards = 9: topic `shared` has 8 partitions"), "{said}");
}

/// Every message of every partition is before the cursor: in windows that are over, or in the rows of the current one.
fn check_offsets(cursor: &Value, each: u64) {
    let position = &cursor["position"];
    for partition in 0..PARTITIONS {
        let next = position["next"][partition.to_string()].as_u64().unwrap();
        let is_here = position["window"]["partition"] == partition;
        let rows = if is_here { cursor["row"].as_u64().unwrap() } else { 0 };
        assert_eq!(next + rows, each, "partition {partition}: {cursor}");
    }
}

/// The group knows how far a checkpoint is, or the one before it.
fn check_lag(broker: &Broker, topic: &str, each: usize) {
    let consumer: BaseConsumer = broker.config().set("group.id", "lag").create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, PARTITIONS - 1);
    let committed = consumer.committed_offsets(list, Duration::from_secs(20)).unwrap();
    for element in committed.elements() {
        let offset = element.offset().to_raw().unwrap();
        assert!(offset > 0 && offset <= each as i64, "partition {}: {offset} of {each}", element.partition());
    }
}

fn check_mistakes(broker: &Broker, folder: &Path, rows: usize) {
    let run = |name: &str, text: &str, password: &str| {
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let out = folder.join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
        command.args(["train", "--quiet", "--out"]).args([&out, &file]).env("TIDE", password);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let output = finish(child, Duration::from_secs(60));
        let resolved = std::fs::read_to_string(out.join("resolved.toml")).unwrap_or_default();
        assert!(!resolved.contains(password), "{resolved}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains(password), "{said}");
        (output.status.code(), said)
    };
    let (code, said) = run("unknown", &pipeline(broker, "nowhere", rows, ""), "unused");
    assert!(code != Some(0) && said.contains("topic `nowhere` is not there"), "{code:?} {said}");

    let sasl = "options = { 'security.protocol' = 'sasl_plaintext', 'sasl.mechanism' = 'PLAIN', \
                'sasl.username' = 'anemone', 'sasl.password' = '${TIDE}' }";
    let text =
        pipeline(broker, "small", 800, sasl).replace(&broker.address(), &format!("127.0.0.1:{}", broker.port + 1));
    let (code, said) = run("wrong", &text, "ebb-and-flow");
    assert!(code != Some(0) && said.contains("refuse the credentials"), "{code:?} {said}");
    let (code, said) = run("right", &text, "tide-pool");
    assert!(code == Some(0), "{said}");

    broker.stop();
    let (code, said) =
        run("nobody", &pipeline(broker, "small", rows, "").replace("timeout = 20", "timeout = 3"), "unused");
    assert!(code != Some(0) && said.contains("no answer within 3 seconds"), "{code:?} {said}");
}

#[test]
fn topics_begin_at_a_time_get_partitions_are_compacted_and_vanish() {
    if std::env::var_os("ANEMONE_KAFKA").is_none() {
        eprintln!("skipped: ANEMONE_KAFKA is not set: .ci/kafka gets Kafka's jars");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(&folder.path().join("broker"));
    let run = |name: &str, rows: usize, more: &str| {
        let text = pipeline(&broker, name, rows, more)
            .replace("'round-robin'", "'arrival'")
            .replace("timeout = 20", "timeout = 4")
            .replace("[decode]", "options = { 'topic.metadata.refresh.interval.ms' = '500' }\n[decode]");
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        start_with(&[], &file, &folder.path().join(name))
    };
    let place = |name: &str| outcome(&folder.path().join(name)).2;
    let ends = |child: Child| {
        let output = finish(child, Duration::from_secs(90));
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let until_step = |name: &str, step: u64, child: &mut Child| {
        let begun = Instant::now();
        while step_of(&folder.path().join(name)) < step {
            assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none(), "{name}: {step}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    let topic = |name, partitions| NewTopic::new(name, partitions, TopicReplication::Fixed(1));

    // A message a second; those of one partition are ten minutes older. From a time on, 300 and 500 are left.
    broker.create(&topic("timed", 2));
    let eleven = 1_794_999_600_000; // 2026-11-18T11:00:00Z
    for (partition, earlier) in [(0, 600), (1, 0)] {
        let at = |row: usize| (None, Some(eleven + 1000 * (row as i64 - earlier)));
        broker.send_to("timed", partition, 0..[900, 500][partition as usize], at);
    }
    let (is_good, said) = ends(run("timed", 800, "start = '2026-11-18T11:00:00Z'"));
    assert!(is_good, "{said}");
    let cursor = place("timed")["cursor"].clone();
    // 800 rows from there on reach the end of both: nothing older was read, and nothing was left out.
    check_ends(&cursor, &[900, 500]);

    // A partition that appears while the run waits: from its beginning, though it was filled before it was noticed.
    broker.create(&topic("grows", 2));
    let plain = |_| (None, None);
    broker.send_to("grows", 0, 0..400, plain);
    broker.send_to("grows", 1, 400..800, plain);
    let mut child = run("grows", 1200, "");
    until_step("grows", 3, &mut child);
    signal(&child, "-STOP"); // or it would be noticed while it is empty
    broker.administer(async |admin, options| {
        admin.create_partitions([&NewPartitions::new("grows", 3)], options).await.unwrap()
    });
    broker.send_to("grows", 2, 800..1200, plain);
    signal(&child, "-CONT");
    let (is_good, said) = ends(child);
    assert!(is_good && said.contains("topic `grows`: there are 3 partitions now"), "{said}");
    check_ends(&place("grows")["cursor"], &[400, 400, 400]);

    // Holes in the offsets of a compacted topic are no gap, and on_gap = "fail" says nothing of them.
    let compacted = topic("compacted", 1)
        .set("cleanup.policy", "compact")
        .set("segment.bytes", "400000") // more than a batch of the producer
        .set("segment.ms", "100")
        .set("min.cleanable.dirty.ratio", "0.01")
        .set("max.compaction.lag.ms", "100");
    broker.create(&compacted);
    let keyed = |row: usize| (Some(format!("k{}", row % 1500)), None);
    for part in 0..6 {
        broker.send_to("compacted", 0, 1000 * part..1000 * (part + 1), keyed);
    }
    let left = messages_after_compaction(&broker, "compacted", 6000);
    let rows = left / BATCH_ROWS * BATCH_ROWS;
    let mut child = run("compacted", rows, "");
    until_step("compacted", 3, &mut child);
    if child.try_wait().unwrap().is_none() {
        child.kill().unwrap(); // SIGKILL, by id: windows with holes are put together again
    }
    child.wait().unwrap();
    let (is_good, said) = ends(run("compacted", rows, "on_gap = 'fail'"));
    assert!(is_good && !said.contains("gone"), "{said}");
    assert_eq!(place("compacted")["rows"], rows);
    println!("compacted: {left} of 6000 messages are left");

    // A topic that is deleted ends the run that waits for more of it, and what was learned is kept.
    broker.create(&topic("vanishes", 2));
    broker.send_to("vanishes", 0, 0..1000, plain);
    let mut child = run("vanishes", 100_000, "");
    until_step("vanishes", 3, &mut child);
    broker.administer(async |admin, options| admin.delete_topics(&["vanishes"], options).await.unwrap());
    let (is_good, said) = ends(child);
    assert!(
        !is_good && said.contains("topic `vanishes`: partition 0, which this run has read from, is gone"),
        "{said}"
    );
    assert!(step_of(&folder.path().join("vanishes")) >= 3);
    let (is_good, said) = ends(run("vanishes", 100_000, ""));
    assert!(!is_good && said.contains("topic `vanishes` is not there"), "{said}");
}

/// Every message of every partition is before the cursor.
fn check_ends(cursor: &Value, ends: &[u64]) {
    let position = &cursor["position"];
    let mut reached: Vec<u64> =
        (0..ends.len()).map(|partition| position["next"][partition.to_string()].as_u64().unwrap()).collect();
    if let Some(partition) = position["window"]["partition"].as_u64() {
        reached[partition as usize] += cursor["row"].as_u64().unwrap();
    }
    assert_eq!(reached, ends, "{cursor}");
}

/// Waits until the broker has compacted a topic of one partition, and does so no more; how many messages are left.
fn messages_after_compaction(broker: &Broker, topic: &str, sent: usize) -> usize {
    let begun = Instant::now();
    let mut before = sent;
    loop {
        let consumer: BaseConsumer = broker.config().set("group.id", "count").create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, rdkafka::Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let mut count = 0;
        loop {
            let message = consumer.poll(Duration::from_secs(20)).expect("a message within 20 seconds").unwrap();
            count += 1;
            if rdkafka::Message::offset(&message) as usize + 1 == sent {
                break;
            }
        }
        if count < sent / 2 && count == before {
            return count;
        }
        before = count;
        assert!(begun.elapsed() < Duration::from_secs(90), "{count} of {sent} messages are left: no compaction");
        thread::sleep(Duration::from_secs(2));
    }
}
