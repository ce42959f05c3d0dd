//! `sample` under constraints, as a user types it: every flag, on text and on token ids, and every mistake.

use std::path::Path;

use anemone::decode::text::TextDecoder;
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::shards;
use crate::drawn_rows::{both, json, printed, refused};

/// The token that ends a text of GPT-2.
const END: u32 = 50_256;
const WINDOW: usize = 12;

/// A folder with a small hidden Markov model of text (`run`), each text ended by end-of-text.
fn text_run() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    shards::write_texts(&dir.join("train.parquet"), &shards::texts(200, 1), 50);
    let train = ["train", "--data", "train.parquet", "--column", "text", "--latents", "5", "--epochs", "2"];
    let options = ["--set", "decode.window=12", "--set", "decode.end_of_text=true", "--set", "batch.rows=16"];
    printed(dir, &[&train[..], &options, &["--out", "run", "--quiet"]].concat());
    folder
}

/// What was drawn: tokens, and the text up to end-of-text, behind which there has to be nothing else.
struct Drawn {
    /// Up to end-of-text.
    tokens: Vec<u32>,
    text: String,
    ended: bool,
    /// Of the row.
    places: usize,
}

/// Draws twelve rows with some flags, and says what log p(constraint | prefix) is.
fn draw(dir: &Path, model: &str, flags: &[&str]) -> (Vec<Drawn>, f64) {
    let rows = ["--rows", "12", "--seed", "4", "--out", "drawn.jsonl"];
    let (_, said) = both(dir, &[&["sample", model][..], flags, &rows].concat());
    let line = said.lines().find_map(|line| line.strip_prefix("note: log p(constraint | prefix) = ")).unwrap();
    let log_p: f64 = line.strip_suffix(" nats").unwrap().parse().unwrap();
    let decoder = TextDecoder::gpt2(WINDOW).unwrap();
    let lines = std::fs::read_to_string(dir.join("drawn.jsonl")).unwrap();
    let of_line = |object: Value| {
        let cells = object["values"].as_array().unwrap();
        let tokens: Vec<u32> = cells.iter().map_while(Value::as_u64).map(|token| token as u32).collect();
        let end = tokens.iter().position(|&token| token == END);
        let text = decoder.decode_tokens(&tokens[..end.unwrap_or(tokens.len())]).unwrap();
        assert!(end.is_none_or(|end| end + 1 == tokens.len()), "{flags:?}: {tokens:?} goes on after its end");
        assert!(cells[tokens.len()..].iter().all(Value::is_null), "{flags:?}: {object}");
        assert!(end.is_some() || tokens.len() == cells.len(), "{flags:?}: {object}");
        if tokens.len() < cells.len() {
            assert_eq!(object["text"], text, "{flags:?}: the text up to its end");
        }
        Drawn { text, ended: end.is_some(), places: cells.len(), tokens }
    };
    let drawn: Vec<Drawn> = lines.lines().map(json).map(of_line).collect();
    assert_eq!(drawn.len(), 12, "{flags:?}");
    (drawn, log_p)
}

/// Returns true if the words are in the text one after the other, none of them inside a longer one.
fn in_order(text: &str, words: &[&str]) -> bool {
    let mut rest = text;
    words.iter().all(|word| {
        match Regex::new(&format!("(^|[^0-9A-Za-z])({word})([^0-9A-Za-z]|$)")).unwrap().captures(rest) {
            Some(found) => {
                rest = &rest[found.get(2).unwrap().end()..];
                true
            }
            None => false,
        }
    })
}

#[test]
fn drawn_texts_are_what_the_flags_ask_for() {
    let folder = text_run();
    let dir = folder.path();
    let all = |flags: &[&str], is_met: &dyn Fn(&Drawn) -> bool| {
        let (drawn, log_p) = draw(dir, "run", flags);
        for row in &drawn {
            assert!(row.places == WINDOW && is_met(row), "{flags:?}: {:?}", row.text);
        }
        assert!(log_p <= 0.0, "{flags:?}: {log_p}");
        log_p
    };
    all(&["--prefix", "the sea"], &|row| row.text.starts_with("the sea"));
    let listed = all(&["--contains", "anemone,fish"], &|row| in_order(&row.text, &["anemone", "fish"]));
    let any = all(&["--contains", "fish, anemone", "--any-order"], &|row| {
        in_order(&row.text, &["fish"]) && in_order(&row.text, &["anemone"])
    });
    let other = all(&["--contains", "fish,anemone"], &|row| in_order(&row.text, &["fish", "anemone"]));
    // Words that do not overlap come in one order or in the other, or in both.
    assert!(any > listed.max(other) && any.exp() <= listed.exp() + other.exp() + 1e-3, "{any} {listed} {other}");
    let whole = all(&["--contains", "nemo"], &|row| in_order(&row.text, &["nemo"]));
    let inside = all(&["--contains", "nemo", "--inside-words"], &|row| row.text.contains("nemo"));
    assert!(inside > whole + 1.0, "the texts have anemones in them, and no nemo: {inside} {whole}");
    all(&["--matches", "the .* fish"], &|row| Regex::new("^the .* fish$").unwrap().is_match(&row.text));
    all(&["--matches", "[a-z ]+\\s*", "--ends"], &|row| {
        row.ended && Regex::new("^[a-z ]+\\s*$").unwrap().is_match(&row.text)
    });
    let text_tokens = |row: &Drawn| row.tokens.iter().take_while(|&&token| token != END).count();
    all(&["--min-length", "3", "--max-length", "5"], &|row| (3..=5).contains(&text_tokens(row)));
    all(&["--min-length", "12"], &|row| text_tokens(row) == 12);
    all(&["--max-length", "1", "--ends"], &|row| row.ended && text_tokens(row) <= 1);
    let flags = ["--prefix", "the", "--contains", "sand", "--matches", "[a-z ]*", "--max-length", "9", "--ends"];
    all(&flags, &|row| {
        let is_plain = Regex::new("^the[a-z ]*$").unwrap().is_match(&row.text);
        row.ended && text_tokens(row) <= 9 && in_order(&row.text, &["sand"]) && is_plain
    });
    // A homogeneous chain goes on for longer than its rows.
    let (long, _) = draw(dir, "run", &["--length", "30", "--contains", "come"]);
    assert!(long.iter().all(|row| row.places == 30 && in_order(&row.text, &["come"])));
    // The same seed draws the same; a text is shown up to its end.
    let shown = |seed: &str| {
        printed(
            dir,
            &["sample", "run", "--rows", "3", "--max-length", "4", "--ends", "--contains", "sea", "--seed", seed],
        )
    };
    assert_eq!(shown("1"), shown("1"));
    assert_ne!(shown("1"), shown("2"));
    assert!(shown("1").contains("sea") && !shown("1").contains("endoftext"), "{}", shown("1"));
}

/// Where each text has a row of its own, likelihoods are of texts, and texts end where learned ones do.
#[test]
fn a_model_of_texts_in_rows_of_their_own_ends_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let lists: Vec<String> = (0..300).map(|at| format!("{{\"x\": {}}}", ["[1, 0]", "[2, 1, 0]"][at % 2])).collect();
    std::fs::write(dir.join("x.jsonl"), lists.join("\n")).unwrap();
    let pipeline = |rows: &str| {
        format!(
            "[source]\nfiles = 'x.jsonl'\nfield = 'x'\n[decode]\nkind = 'tokens'\nvocab = 3\nwindow = 6\n{rows}\
             [batch]\nrows = 50\n[circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 20\n"
        )
    };
    std::fs::write(dir.join("p.toml"), pipeline("rows = 'texts'\n")).unwrap();
    printed(dir, &["train", "p.toml", "--out", "texts", "--quiet"]);
    let scored = printed(dir, &["eval", "texts", "--split", "source", "--json"]);
    let nats = json(&scored)["mean_log_likelihood"].as_f64().unwrap();
    // Two texts, equally often: log 2 is the least that any model has; places that are missing cost nothing.
    assert!((-0.75..=-0.69).contains(&nats), "{scored}");
    // A token file does not say where texts begin.
    std::fs::write(dir.join("x.bin"), [0u8; 24]).unwrap();
    let of_file = pipeline("rows = 'texts'\n").replace("x.jsonl", "x.bin").replace("field = 'x'\n", "");
    std::fs::write(dir.join("file.toml"), of_file).unwrap();
    refused(dir, &[(&["train", "file.toml", "--out", "file"], 2, "a token file is one long list")]);

    // Text: most fits into a row, and is as likely to end there as texts do.
    shards::write_texts(&dir.join("train.parquet"), &shards::texts(200, 1), 50);
    let train = ["train", "--data", "train.parquet", "--column", "text", "--latents", "5", "--epochs", "4"];
    let options = ["--set", "decode.window=40", "--set", "decode.rows=texts", "--set", "batch.rows=16"];
    printed(dir, &[&train[..], &options, &["--out", "text", "--quiet"]].concat());
    let resolved = std::fs::read_to_string(dir.join("text/resolved.toml")).unwrap();
    assert!(resolved.contains("rows = \"texts\"") && resolved.contains("end_of_text = true"), "{resolved}");
    let (_, said) = both(dir, &["sample", "text", "--rows", "20", "--ends", "--seed", "4"]);
    let log_p = said.lines().find_map(|line| line.strip_prefix("note: log p(constraint | prefix) = ")).unwrap();
    let log_p: f64 = log_p.strip_suffix(" nats").unwrap().parse().unwrap();
    assert!((-2.0..=0.0).contains(&log_p), "most texts end in 40 tokens: {log_p}");
    // Without a constraint, too, nothing is shown behind the end.
    printed(dir, &["sample", "text", "--rows", "20", "--out", "drawn.jsonl"]);
    let drawn = std::fs::read_to_string(dir.join("drawn.jsonl")).unwrap();
    let is_ended = |line: &str| {
        let object = json(line);
        let cells = object["values"].as_array().unwrap();
        let end = cells.iter().position(|cell| cell.as_u64() == Some(u64::from(END)));
        assert!(end.is_none_or(|end| cells[end + 1..].iter().all(Value::is_null)), "{line}");
        end.is_some()
    };
    assert!(drawn.lines().filter(|line| is_ended(line)).count() > 10, "{drawn}");
    assert!(!printed(dir, &["sample", "text", "--rows", "20"]).contains("endoftext"));
}

#[test]
fn constraints_on_text_that_cannot_be_are_one_error_each() {
    let folder = text_run();
    let dir = folder.path();
    let sample = |flags: &[&'static str]| [&["sample", "run"], flags].concat();
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (sample(&["--matches", "("]), "--matches: regular expression, character 2: a group is not closed"),
        (sample(&["--matches", "a{3,2}"]), "--matches: regular expression"),
        (sample(&["--matches", "(?=a)"]), "--matches: regular expression"),
        (sample(&["--contains", ""]), "--contains: a word is empty"),
        (sample(&["--contains", "sea,,sand"]), "--contains: a word is empty"),
        (sample(&["--length", "0"]), "length = 0"),
        (sample(&["--min-length", "3", "--max-length", "2"]), "--min-length and --max-length: a length of at least 3"),
        (
            sample(&["--length", "2", "--contains", "sea anemone drifts over"]),
            "the constraint cannot be met in 2 symbols",
        ),
        (sample(&["--min-length", "13"]), "the constraint cannot be met in 12 symbols"),
        (sample(&["--prefix", "the sea", "--matches", "fish.*"]), "begin with the 2 of the prefix"),
        (
            sample(&["--length", "3", "--prefix", "the sea anemone drifts over"]),
            "--prefix: has 8 tokens where 3 are drawn",
        ),
        (sample(&["--length", "1000000000000"]), "use a smaller constraint or fewer symbols"),
        (sample(&["--contains", "fish", "--out", "x.png"]), "--out x.png"),
        (sample(&["--matches", "(.*a.{20})"]), "more than 16384 states"),
    ];
    let cases: Vec<(&[&str], i32, &str)> = cases.iter().map(|(args, words)| (&args[..], 2, *words)).collect();
    refused(dir, &cases);
    // Flags that only change the meaning of another one need it.
    for flag in ["--any-order", "--inside-words"] {
        let output = crate::drawn_rows::anemone(dir, &["sample", "run", flag]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains("--contains <WORDS>"), "{error}");
    }
}

/// Rows of a CSV file that was drawn, without their numbers.
fn rows_of(text: &str) -> Vec<Vec<u32>> {
    text.lines().skip(1).map(|line| line.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect()).collect()
}

#[test]
fn drawn_ids_are_what_the_flags_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let pipeline = |circuit: &str| {
        format!(
            "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 5\nlatents = 3\nrows = 600\n[batch]\nrows = 100\n\
             [circuit]\n{circuit}\n[learn]\nepochs = 1\n"
        )
    };
    for (name, circuit) in [
        ("ids", "model = 'hmm'\nlatents = 4"),
        ("free", "model = 'hmm'\nlatents = 4\ntying = 'inhomogeneous'"),
        ("tree", "model = 'hclt'\nlatents = 3"),
    ] {
        std::fs::write(dir.join("p.toml"), pipeline(circuit)).unwrap();
        printed(dir, &["train", "p.toml", "--out", name, "--quiet"]);
    }
    let all = |model: &str, flags: &[&str], is_met: &dyn Fn(&[u32]) -> bool| {
        let drawn = printed(dir, &[&["sample", model, "--rows", "30"], flags].concat());
        let rows = rows_of(&drawn);
        assert_eq!(rows.len(), 30, "{drawn}");
        assert!(rows.iter().all(|row| is_met(row)), "{model} {flags:?}: {drawn}");
    };
    let at = |row: &[u32], word: &[u32]| row.windows(word.len()).position(|part| part == word);
    for model in ["ids", "free"] {
        all(model, &["--prefix", "3 1"], &|row| row.len() == 8 && row.starts_with(&[3, 1]));
        all(model, &["--contains", "4 0, 2"], &|row| at(row, &[4, 0]).is_some_and(|from| row[from + 2..].contains(&2)));
        all(model, &["--contains", "4 0, 2", "--any-order"], &|row| at(row, &[4, 0]).is_some() && row.contains(&2));
        all(model, &["--matches", "1 (2|3-4)* [^0]{2} .*"], &|row| {
            let run = row[1..].iter().take_while(|&&id| (2..=4).contains(&id)).count();
            // Two that are not 0 follow some of the run, and anything may follow those.
            row[0] == 1 && (0..=run).any(|taken| row[1 + taken..].len() >= 2 && !row[1 + taken..][..2].contains(&0))
        });
        all(model, &["--min-length", "8", "--max-length", "8"], &|row| row.len() == 8);
    }
    all("ids", &["--length", "20", "--contains", "1 1"], &|row| row.len() == 20 && at(row, &[1, 1]).is_some());
    printed(dir, &["sample", "ids", "--contains", "2 2 2", "--out", "rows.csv"]);
    assert!(
        rows_of(&std::fs::read_to_string(dir.join("rows.csv")).unwrap())
            .iter()
            .all(|row| at(row, &[2, 2, 2]).is_some())
    );

    refused(
        dir,
        &[
            (&["sample", "ids", "--prefix", "1 cat"], 2, "--prefix: \"cat\" is not a token id"),
            (&["sample", "ids", "--prefix", "1 5"], 2, "--prefix: symbol 1: 5 is outside 0..5"),
            (&["sample", "ids", "--contains", "1 9"], 2, "--contains: a word has the symbol 9, which is outside 0..5"),
            (&["sample", "ids", "--contains", "1 2x"], 2, "--contains: \"2x\" is not a token id"),
            (
                &["sample", "ids", "--matches", "1 (2"],
                2,
                "--matches: token expression, character 5: a group is not closed",
            ),
            (&["sample", "ids", "--matches", "7"], 2, "--matches: token expression, character 1: 7 is above 4"),
            (&["sample", "ids", "--matches", "0{9} .*"], 2, "the constraint cannot be met in 8 symbols"),
            (&["sample", "ids", "--ends"], 2, "--ends: the vocabulary of this model has no end-of-text token"),
            (&["sample", "ids", "--max-length", "7"], 2, "the constraint cannot be met in 8 symbols"),
            (&["sample", "free", "--length", "9"], 2, "9 symbols asked of a chain of 8"),
            (&["sample", "free", "--length", "20", "--prefix", "1 1 1 1 1 1 1 1 1"], 2, "asked of a chain of 8"),
            (&["sample", "tree", "--contains", "1"], 2, "the circuit is not a chain"),
        ],
    );
}
