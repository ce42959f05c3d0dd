//! `sample` and `inpaint`, as a user types them: pictures, text, tokens and numbers.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use anemone::backend::Backend;
use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::circuit::{Categorical, ParamKind, Params};
use anemone::data::Batch;
use anemone::decode::ycocg::{ycocg_r, ycocg_r_to_categories};
use anemone::learner::{Identity, Progress, Snapshot, model};
use anemone::optim::OptimizerState;
use anemone::rng::Rng;
use anemone::structure::hmm;
use assert_cmd::Command;
use image::RgbImage;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::common::shards;

pub(super) fn anemone(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("anemone").unwrap();
    command.current_dir(dir).args(args).timeout(std::time::Duration::from_secs(120)).output().unwrap()
}

/// What a command that succeeds writes to standard output and to standard error.
pub(super) fn both(dir: &Path, args: &[&str]) -> (String, String) {
    let output = anemone(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

pub(super) fn printed(dir: &Path, args: &[&str]) -> String {
    both(dir, args).0
}

/// Every command is refused with its exit code and one line that contains the words.
pub(super) fn refused(dir: &Path, cases: &[(&[&str], i32, &str)]) {
    for (args, code, words) in cases {
        let output = anemone(dir, args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {error}");
        let said = error.lines().filter(|line| !line.starts_with("note: ")).count();
        assert_eq!(said, 1, "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: no `{words}` in `{error}`");
    }
}

pub(super) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn png(path: &Path) -> RgbImage {
    image::load_from_memory(&std::fs::read(path).unwrap()).unwrap().into_rgb8()
}

/// A folder with a run that learned patches of 4×4 pixels, and the images that were held out.
fn pictures() -> (TempDir, Vec<RgbImage>) {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(4);
    let images: Vec<Vec<u8>> = (0..40).map(|_| shards::picture(8, &mut rng)).collect();
    shards::write_images(&folder.path().join("train.parquet"), &images[..32], 16);
    shards::write_images(&folder.path().join("valid.parquet"), &images[32..], 16);
    let pipeline = "[source]\nfiles = 'train.parquet'\ncolumn = 'image'\n[decode]\nkind = 'image'\npatch = 4\n\
        [batch]\nrows = 32\n\
        [circuit]\nmodel = 'hclt'\nlatents = 3\n[learn]\nepochs = 2\nsmoothing = 0.01\n\
        [validate]\nfiles = 'valid.parquet'\n";
    std::fs::write(folder.path().join("p.toml"), pipeline).unwrap();
    printed(folder.path(), &["train", "p.toml", "--out", "run", "--quiet"]);
    let decoded = images[32..].iter().map(|file| image::load_from_memory(file).unwrap().into_rgb8());
    let held_out = decoded.collect();
    (folder, held_out)
}

/// Pixel (x, y) of the tile in line `line` and column `column` of a mosaic of 4×4 tiles.
fn tile_pixel(mosaic: &RgbImage, scale: u32, (line, column): (u32, u32), (x, y): (u32, u32)) -> [u8; 3] {
    let at = |tile: u32, pixel: u32| 2 + tile * (4 * scale + 2) + pixel * scale;
    let corner = mosaic.get_pixel(at(column, x), at(line, y)).0;
    assert_eq!(corner, mosaic.get_pixel(at(column, x) + scale - 1, at(line, y) + scale - 1).0, "nothing is smoothed");
    corner
}

const PIXELS: [(u32, u32); 16] = {
    let mut pixels = [(0, 0); 16];
    let mut at = 0;
    while at < 16 {
        pixels[at] = (at as u32 % 4, at as u32 / 4);
        at += 1;
    }
    pixels
};

#[test]
fn a_mixture_of_trees_draws_in_the_levels_that_it_learned() {
    let (folder, _) = pictures();
    let dir = folder.path();
    let pipeline = std::fs::read_to_string(dir.join("p.toml")).unwrap();
    let pipeline = pipeline.replace("patch = 4", "patch = 4\ncolor = 'rgb'\nlevels = 3");
    std::fs::write(dir.join("q.toml"), pipeline.replace("latents = 3", "latents = 2\ncomponents = 4")).unwrap();
    let seen = printed(dir, &["check", "q.toml"]);
    assert!(seen.contains("levels=3") && seen.contains("3 categories"), "{seen}");
    printed(dir, &["train", "q.toml", "--out", "mixture", "--quiet"]);
    let resolved = std::fs::read_to_string(dir.join("mixture/resolved.toml")).unwrap();
    assert!(resolved.contains("levels = 3") && resolved.contains("components = 4"), "{resolved}");
    printed(dir, &["sample", "mixture", "--rows", "16", "--scale", "1", "--out", "three.png"]);
    let mosaic = png(&dir.join("three.png"));
    let tiles = (0..4).flat_map(|line| (0..4).map(move |column| (line, column)));
    let pixels = tiles.flat_map(|tile| PIXELS.map(|pixel| tile_pixel(&mosaic, 1, tile, pixel)));
    let mut shades: Vec<u8> = pixels.flatten().collect();
    shades.sort_unstable();
    shades.dedup();
    assert_eq!(shades, [0, 128, 255]);
    // Rows of other levels are other rows.
    let again =
        ["train", "q.toml", "--out", "mixture", "--resume", "--set", "learn.epochs=3", "--set", "decode.levels=4"];
    refused(dir, &[(&again, 4, "levels")]);
}

#[test]
fn pictures_are_drawn_and_completed() {
    let (folder, held_out) = pictures();
    let dir = folder.path();
    // Samples: a grid as square as it can be, 64 tiles unless told otherwise, the same for the same seed.
    let said = printed(dir, &["sample", "run", "--rows", "5", "--scale", "3", "--out", "five.png"]);
    assert!(said.starts_with("five.png: 5 rows, 3 in a line, 44×30 pixels"), "{said}");
    assert_eq!(png(&dir.join("five.png")).dimensions(), (2 + 3 * 14, 2 + 2 * 14));
    printed(dir, &["sample", "run"]);
    assert_eq!(png(&dir.join("samples.png")).dimensions(), (2 + 8 * 66, 2 + 8 * 66), "4×4 tiles, 16 times as large");
    let again = |seed: &str| {
        printed(dir, &["sample", "run", "--rows", "5", "--scale", "3", "--out", "again.png", "--seed", seed]);
        std::fs::read(dir.join("again.png")).unwrap()
    };
    assert_eq!(again("1"), std::fs::read(dir.join("five.png")).unwrap());
    assert_ne!(again("2"), again("1"));

    // Completions: original, masked, two completions; what is kept is the original to the bit.
    let args = ["inpaint", "run", "--rows", "3", "--samples", "2", "--scale", "2", "--json"];
    let found = json(&printed(dir, &[&args[..], &["--missing", "right", "--out", "right.png"]].concat()));
    assert_eq!((&found["rows"], &found["variables"], &found["hidden_values"]), (&3.into(), &48.into(), &72.into()));
    let mosaic = png(&dir.join("right.png"));
    assert_eq!(mosaic.dimensions(), (2 + 4 * 10, 2 + 3 * 10));
    let mut drawn_as_it_was = 0;
    for line in 0..3 {
        let (left, top) = (line % 2 * 4, line / 2 * 4); // four patches of the first image
        for (x, y) in PIXELS {
            let original = held_out[0].get_pixel(left + x, top + y).0;
            let shown: Vec<[u8; 3]> = (0..4).map(|column| tile_pixel(&mosaic, 2, (line, column), (x, y))).collect();
            assert_eq!(shown[0], original, "row {line}: ({x}, {y})");
            match x < 2 {
                true => assert!(shown.iter().all(|pixel| *pixel == original), "row {line}: ({x}, {y}) is kept"),
                false => {
                    assert_eq!(shown[1], [[112; 3], [144; 3]][(x as usize + y as usize) % 2]);
                    drawn_as_it_was += shown[2..].iter().filter(|pixel| **pixel == original).count();
                }
            }
        }
    }
    assert!(drawn_as_it_was < 40, "{drawn_as_it_was} of 48 hidden pixels came back: the model was shown them");

    // log p(all) − log p(kept), by the library.
    let model = model::load(&anemone::learner::latest(&dir.join("run/checkpoints")).unwrap().found.unwrap().0).unwrap();
    let values: Vec<u16> = (0..3)
        .flat_map(|row| PIXELS.map(|(x, y)| held_out[0].get_pixel(row % 2 * 4 + x, row / 2 * 4 + y).0))
        .flat_map(|rgb| ycocg_r_to_categories(ycocg_r(rgb)))
        .collect();
    let rows = Batch::from_rows(&values, 48).unwrap();
    let mut backend = CpuBackend::new(model.circuit, &model.params, &CpuOptions::default()).unwrap();
    let all: f64 = backend.log_likelihoods(&rows).unwrap().iter().sum();
    let kept: f64 = backend.log_likelihoods(&rows.with_missing(|_, var| var % 12 >= 6)).unwrap().iter().sum();
    let number = |key: &str| found[key].as_f64().unwrap();
    assert!((number("mean_log_likelihood") - (all - kept) / 3.0).abs() < 1e-6 * all.abs(), "{found}");
    assert!((number("nats_per_variable") * 24.0 - number("mean_log_likelihood")).abs() < 1e-9 * all.abs());
    assert!((number("bits_per_variable") * std::f64::consts::LN_2 + number("nats_per_variable")).abs() < 1e-9);

    // Keeping the left is hiding the right; other parts are other pictures; numbers on request.
    printed(dir, &[&args[..], &["--keep", "left", "--out", "left.png"]].concat());
    assert_eq!(std::fs::read(dir.join("left.png")).unwrap(), std::fs::read(dir.join("right.png")).unwrap());
    for what in ["left", "top", "bottom", "center", "random:0.5"] {
        printed(dir, &[&args[..], &["--missing", what, "--out", "other.png"]].concat());
        assert_ne!(std::fs::read(dir.join("other.png")).unwrap(), std::fs::read(dir.join("right.png")).unwrap());
    }
    printed(dir, &["sample", "run", "--rows", "2", "--out", "two.csv"]);
    let two = std::fs::read_to_string(dir.join("two.csv")).unwrap();
    assert!(two.starts_with("row,x0,x1,") && two.lines().count() == 1 + 2, "{two}");
    assert!(two.lines().all(|line| line.split(',').count() == 1 + 48), "{two}");
    // Other rows than those held out.
    let table = printed(dir, &["inpaint", "run", "--data", "train.parquet", "--rows", "2"]);
    assert!(table.contains("inpaint.png") && table.contains("48 of 96 values (right hidden)"), "{table}");

    refused(
        dir,
        &[
            (&["inpaint", "run", "--missing", "rihgt"], 2, "--missing rihgt: unknown; did you mean `right`?"),
            (&["inpaint", "run", "--keep", "last"], 2, "--keep last: is not for pictures"),
            (&["inpaint", "run", "--rows", "0"], 2, "--rows 0: must be at least 1"),
            (&["inpaint", "run", "--samples", "0"], 2, "--samples 0: must be at least 1"),
            (&["inpaint", "run", "--samples", "99999999999"], 2, "that fit in memory"),
            (&["inpaint", "run", "--scale", "0"], 2, "--scale 0: must be at least 1"),
            (&["inpaint", "run", "--keep", "0..48"], 2, "nothing is hidden"),
            (&["inpaint", "run", "--data", "none.parquet"], 2, "none.parquet"),
            (&["inpaint", "run", "--out", "no/folder/x.png"], 2, "no/folder/x.png"),
            (&["inpaint", "nowhere"], 2, "no such model"),
            (&["sample", "run", "--rows", "0"], 2, "--rows 0: must be at least 1"),
            (&["sample", "run", "--scale", "1000000"], 2, "a smaller scale"),
            (&["sample", "run", "--rows", "18446744073709551615"], 2, "take fewer"),
            (
                &["sample", "run", "--out", "x.jpg"],
                2,
                "--out x.jpg: cannot tell the format from the name; there are .png",
            ),
            (&["sample", "run", "--out", "x.txt"], 2, "--out x.txt: rows of this model are pictures: name a .png file"),
            (&["sample", "run", "--tokenizer", "gpt2"], 2, "--tokenizer: rows of this model are pictures"),
            (&["sample", "nowhere"], 2, "no such model"),
            (&["sample", "."], 2, "has no model and no checkpoint"),
        ],
    );
}

/// The text before the first mark, of every paragraph that follows a line of that kind.
fn kept(text: &str, kind: &str) -> Vec<String> {
    let paragraphs = text.split("── row ").filter(|paragraph| paragraph.contains(kind));
    paragraphs.map(|p| p.split_once('\n').unwrap().1.split('⟦').next().unwrap().to_string()).collect()
}

#[test]
fn text_is_drawn_and_completed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    shards::write_texts(&dir.join("train.parquet"), &shards::texts(60, 1), 30);
    shards::write_texts(&dir.join("valid.parquet"), &shards::texts(20, 2), 30);
    // What the column holds is left to the data.
    let train = ["train", "--data", "train.parquet", "--column", "text", "--valid", "valid.parquet", "--latents", "2"];
    printed(dir, &[&train[..], &["--epochs", "1", "--set", "decode.window=8", "--out", "run", "--quiet"]].concat());
    let text = printed(dir, &["sample", "run", "--rows", "3"]);
    assert!(text.matches("\n\n").count() >= 2 && !text.contains('⟦'), "{text:?}");
    assert_eq!(text, printed(dir, &["sample", "run", "--rows", "3", "--seed", "1"]));

    let (completed, summary) = both(dir, &["inpaint", "run", "--rows", "4", "--samples", "2"]);
    assert!(summary.contains("log-likelihood") && summary.contains("16 of 32 values (last hidden)"), "{summary}");
    let (originals, completions) = (kept(&completed, "original"), kept(&completed, "completion"));
    assert_eq!((originals.len(), completions.len()), (4, 8), "{completed}");
    for (at, completion) in completions.iter().enumerate() {
        assert_eq!(completion, &originals[at / 2], "{completed}");
    }
    assert_eq!(completed.matches('⟦').count(), 12);
    let (scattered, _) = both(dir, &["inpaint", "run", "--rows", "1", "--missing", "random:0.4", "--samples", "1"]);
    assert!(scattered.matches('⟦').count() >= 2 && scattered.matches('⟦').count() == scattered.matches('⟧').count());

    printed(dir, &["sample", "run", "--rows", "2", "--out", "rows.jsonl"]);
    for object in std::fs::read_to_string(dir.join("rows.jsonl")).unwrap().lines().map(json) {
        assert!(object["values"].as_array().unwrap().len() == 8 && object["text"].is_string(), "{object}");
    }
    printed(dir, &["inpaint", "run", "--rows", "2", "--samples", "1", "--out", "rows.csv"]);
    let rows = std::fs::read_to_string(dir.join("rows.csv")).unwrap();
    assert_eq!(rows.lines().next().unwrap(), "row,line,x0,x1,x2,x3,x4,x5,x6,x7");
    assert_eq!(rows.lines().count(), 1 + 2 * 3);
    let skip = ["inpaint", "run", "--rows", "1", "--skip", "1", "--samples", "1", "--out", "second.csv"];
    printed(dir, &skip);
    let second = std::fs::read_to_string(dir.join("second.csv")).unwrap();
    let original = |text: &str| text.lines().find(|line| line.starts_with("1,original")).map(str::to_string);
    assert!(
        original(&second).is_some() && original(&second) == original(&rows),
        "{second} is not the second of {rows}"
    );
    refused(
        dir,
        &[
            (&["sample", "run", "--out", "x.png"], 2, "--out x.png: rows of this model are text and not pictures"),
            (&["inpaint", "run", "--skip", "100000"], 2, "--skip 100000: there is no row after so many"),
            (&["inpaint", "run", "--missing", "top"], 2, "--missing top: is for pictures alone"),
            (&["sample", "run", "--tokenizer", "none.json"], 2, "--tokenizer: none.json"),
        ],
    );

    // Tokens that were made of text are text again where their number says so, or on request.
    printed(dir, &["tokenize", "train.parquet", "--column", "text", "--out", "tokens.bin"]);
    let train =
        ["train", "--data", "tokens.bin", "--latents", "2", "--epochs", "1", "--set", "decode.window=8", "--quiet"];
    printed(dir, &[&train[..], &["--out", "tokens"]].concat());
    assert!(printed(dir, &["sample", "tokens"]).chars().any(char::is_alphabetic));
    printed(dir, &[&train[..], &["--set", "decode.vocab=50256", "--out", "fewer"]].concat());
    let fewer = printed(dir, &["sample", "fewer"]);
    assert!(!fewer.lines().skip(1).any(|line| line.chars().any(char::is_alphabetic)), "{fewer}");
    assert!(printed(dir, &["sample", "fewer", "--tokenizer", "gpt2"]).chars().any(char::is_alphabetic));
    refused(dir, &[(&["inpaint", "tokens"], 2, "holds nothing out; --split source")]);
    assert!(printed(dir, &["inpaint", "tokens", "--split", "source", "--rows", "1"]).contains('⟦'));
}

#[test]
fn numbers_are_drawn_and_completed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let pipeline = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 5\nlatents = 3\nrows = 600\n\
        [batch]\nrows = 100\n\
        [circuit]\nmodel = 'hmm'\nlatents = 4\n[learn]\nepochs = 1\n[validate]\nrows = 20\n";
    std::fs::write(dir.join("p.toml"), pipeline).unwrap();
    printed(dir, &["train", "p.toml", "--out", "run", "--quiet"]);
    let lines = printed(dir, &["sample", "run", "--rows", "700"]);
    assert!(lines.starts_with("row,x0,x1,x2,x3,x4,x5,x6,x7\n"), "{lines}");
    let drawn: Vec<Vec<u32>> =
        lines.lines().skip(1).map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
    assert_eq!(drawn.len(), 700);
    assert!(drawn.iter().enumerate().all(|(row, cells)| cells[0] as usize == row && cells[1..].iter().all(|&x| x < 5)));
    assert_eq!(lines.lines().take(9).collect::<Vec<_>>(), printed(dir, &["sample", "run"]).lines().collect::<Vec<_>>());

    // The same rows in every form, by the ending of the file.
    for out in ["rows.csv", "rows.json", "rows.jsonl"] {
        printed(dir, &["sample", "run", "--rows", "3", "--out", out]);
    }
    let read = |out: &str| std::fs::read_to_string(dir.join(out)).unwrap();
    assert_eq!(read("rows.csv").lines().collect::<Vec<_>>(), lines.lines().take(4).collect::<Vec<_>>());
    let objects: Vec<Value> = read("rows.jsonl").lines().map(json).collect();
    assert_eq!(json(&read("rows.json")), Value::from(objects.clone()));
    for (row, object) in objects.iter().enumerate() {
        assert_eq!(*object, serde_json::json!({"row": row, "values": drawn[row][1..]}));
    }
    printed(dir, &["inpaint", "run", "--rows", "1", "--samples", "2", "--out", "completed.json"]);
    let completed = json(&read("completed.json"));
    let of_lines: Vec<&Value> = completed.as_array().unwrap().iter().map(|object| &object["line"]).collect();
    assert_eq!(of_lines, ["original", "kept", "1", "2"]);
    assert!(completed[1]["values"][7].is_null() && completed[2]["values"][7].is_u64(), "{completed}");

    let args = ["inpaint", "run", "--rows", "1000", "--samples", "3", "--missing", "random:0.5", "--json"];
    let (rows, summary) = both(dir, &[&args[..], &["--threads", "1"]].concat());
    assert_eq!(json(&summary)["rows"], 20, "as many as are held out");
    assert_eq!((rows.clone(), summary), both(dir, &[&args[..], &["--threads", "2"]].concat()));
    let cells: Vec<Vec<&str>> = rows.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(cells.len(), 20 * 5);
    for row in cells.chunks(5) {
        assert_eq!([row[0][1], row[1][1], row[2][1], row[4][1]], ["original", "kept", "1", "3"]);
        for var in 2..10 {
            let is_kept = !row[1][var].is_empty();
            assert!(!is_kept || row.iter().all(|line| line[var] == row[0][var]), "{row:?}");
            assert!(row[2..].iter().all(|line| line[var].parse::<u32>().unwrap() < 5), "{row:?}");
        }
    }
    // Once the model knows nothing but the rest, what it says of the whole is what it says of everything hidden.
    let whole = json(&both(dir, &["inpaint", "run", "--rows", "20", "--missing", "0..8", "--json"]).1);
    let eval = json(&printed(dir, &["eval", "run", "--json"]));
    let of = |value: &Value, key: &str| value[key].as_f64().unwrap();
    assert!((of(&whole, "mean_log_likelihood") - of(&eval, "mean_log_likelihood")).abs() < 1e-5);
    assert!((of(&whole, "bits_per_variable") - of(&eval, "bits_per_dim")).abs() < 1e-5);
    refused(
        dir,
        &[
            (&["sample", "run", "--out", "x.png"], 2, "--out x.png: rows of this model are numbers and not pictures"),
            (&["inpaint", "run", "--missing", "lsat"], 2, "--missing lsat: unknown; did you mean `last`?"),
            (&["inpaint", "run", "--missing", "3..9"], 2, "the variables 0..8"),
            (
                &["sample", "run", "--out", "x.dat"],
                2,
                "--out x.dat: cannot tell the format from the name; there are .png",
            ),
            (&["inpaint", "run", "--out", "x"], 2, "--out x: cannot tell the format from the name"),
            (&["sample", "run", "--out", "x.txt"], 2, "are numbers and not text: name a .csv, .json or .jsonl file"),
        ],
    );
}

#[test]
fn a_model_without_a_pipeline_is_drawn_from_and_impossible_rows_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    // Two states that never change, each with symbols of its own.
    let circuit = Arc::new(hmm(3, 2, Categorical::new(4).unwrap()).unwrap());
    let params = Params::from_rows(&circuit, |param, unit| match &circuit.params()[param.index()].kind {
        ParamKind::Input(_) => [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75]][unit].to_vec(),
        ParamKind::Sum { .. } if circuit.params()[param.index()].units == 1 => vec![0.5, 0.5],
        ParamKind::Sum { .. } => [[1.0, 0.0], [0.0, 1.0]][unit].to_vec(),
    });
    let (optimizer, progress) = (OptimizerState::default(), Progress::default());
    let snapshot = Snapshot { circuit, params: params.unwrap(), optimizer, progress };
    model::save(&dir.join("model"), &snapshot, &Identity::default(), &Map::new()).unwrap();
    for line in printed(dir, &["sample", "model", "--rows", "50"]).lines().skip(1) {
        let low: Vec<bool> = line.split(',').skip(1).map(|cell| cell.parse::<u32>().unwrap() < 2).collect();
        assert!(low.len() == 3 && low.iter().all(|l| *l == low[0]), "{line}");
    }
    shards::write_rows(&dir.join("rows.parquet"), vec![0, 1, 1, 3, 3, 2, 0, 3, 2], 3, 10);
    std::fs::write(dir.join("p.toml"), "[source]\nfiles = 'rows.parquet'\n[decode]\nkind = 'rows'\ncats = 4\n")
        .unwrap();
    let args = ["inpaint", "model", "p.toml", "--split", "source", "--missing"];
    refused(
        dir,
        &[
            (&["inpaint", "model"], 2, "the model does not say how its data was read; give a pipeline file"),
            (&[&args[..], &["2..3"]].concat(), 3, "row 2: the values that are kept have probability zero"),
        ],
    );
    // Hidden, the last two symbols of the third row are another matter: possible to complete, impossible as they were.
    let (rows, summary) = both(dir, &[&args[..], &["1..3", "--json"]].concat());
    assert!(json(&summary)["impossible_rows"] == 1 && rows.lines().count() == 1 + 3 * 8, "{summary}");
}

/// Runs a command with a terminal as its standard output, and says what the terminal got.
#[cfg(target_os = "linux")]
fn on_a_terminal(dir: &Path, args: &[&str]) -> String {
    use std::io::Read;
    use std::os::fd::{FromRawFd, OwnedFd};
    let (mut ours, mut theirs) = (0, 0);
    // SAFETY: both numbers are ours to be written to; name, settings and size may be null.
    let opened = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut())
    };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: `openpty` has succeeded, so both are open, and only this test has them.
    let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_anemone"));
    let mut child = command.current_dir(dir).args(args).stdout(theirs).spawn().unwrap();
    drop(command); // and with it the other end, so that reading ends when the child does
    let (mut bytes, mut chunk) = (Vec::new(), [0; 256]);
    let mut ours = std::fs::File::from(ours);
    while let Ok(read @ 1..) = ours.read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..read]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(bytes).unwrap()
}

/// A model of text that always says ESC, and then DEL.
#[cfg(target_os = "linux")]
#[test]
fn drawn_text_has_no_power_over_the_terminal_and_files_get_it_as_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let (escape, delete) = (215, 221); // of GPT-2's tokens
    let circuit = Arc::new(hmm(2, 2, Categorical::new(50_257).unwrap()).unwrap());
    let params = Params::from_rows(&circuit, |param, unit| match &circuit.params()[param.index()].kind {
        ParamKind::Input(_) => (0..50_257).map(|cat| f32::from(cat == [escape, delete][unit])).collect(),
        ParamKind::Sum { .. } if circuit.params()[param.index()].units == 1 => vec![1.0, 0.0],
        ParamKind::Sum { .. } => vec![0.0, 1.0],
    });
    let (optimizer, progress) = (OptimizerState::default(), Progress::default());
    let snapshot = Snapshot { circuit, params: params.unwrap(), optimizer, progress };
    model::save(&dir.join("model"), &snapshot, &Identity::default(), &Map::new()).unwrap();
    let args = ["sample", "model", "--tokenizer", "gpt2", "--rows", "1"];
    assert_eq!(printed(dir, &args), "\u{1b}\u{7f}\n", "a pipe gets it as drawn");
    printed(dir, &[&args[..], &["--out", "rows.txt"]].concat());
    assert_eq!(std::fs::read_to_string(dir.join("rows.txt")).unwrap(), "\u{1b}\u{7f}\n", "and so does a file");
    let two = [&args[..5], &["2"]].concat();
    assert_eq!(on_a_terminal(dir, &two), "\\u{1b}\\u{7f}\r\n\r\n\\u{1b}\\u{7f}\r\n");
}
