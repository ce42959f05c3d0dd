//! CSV files as a source: the same cells whatever the blocks, and what is wrong is named.

use proptest::prelude::*;

use super::super::testing::{failure, pieces, run, shards};
use super::*;
use crate::data::{Cell, Values};
use crate::source::{Arrived, LiveSource, Piece, Records};

/// The cells of a row and where it begins, or why it is bad.
type Found = (u64, std::result::Result<Vec<Cell<'static>>, String>);

fn found_in(piece: &Piece) -> Vec<Found> {
    let Records::Cells(cells) = &piece.records else { panic!("{piece:?}") };
    let row = |row: usize| match piece.bad.iter().find(|bad| bad.0 == row) {
        Some((_, reason)) => Err(reason.clone()),
        None => Ok((0..cells.width()).map(|column| cells.get(row, column).into_owned()).collect()),
    };
    (0..piece.num_records()).map(|record| (piece.positions.place(record).1, row(record))).collect()
}

/// What each block has.
async fn by_block(name: &str, content: &[u8], block_bytes: u64, piece_bytes: usize) -> Result<Vec<Vec<Found>>> {
    let files = shards(&[(name, content.to_vec())]).await;
    let columns = Columns::Cells(Vec::new());
    let source = CsvSource::open_with_block_bytes(files, &columns, None, block_bytes).await?;
    // From the last to the first: a block needs no other one.
    let mut blocks = Vec::new();
    for block in (0..source.blocks().len()).rev() {
        let (pieces, end) = pieces(&source, block, piece_bytes).await;
        end?;
        blocks.push(pieces.iter().flat_map(found_in).collect());
    }
    blocks.reverse();
    Ok(blocks)
}

fn zstd_file(content: &[u8], frame_bytes: usize) -> Vec<u8> {
    content.chunks(frame_bytes).flat_map(|some| zstd::stream::encode_all(some, 1).unwrap()).collect()
}

/// A cell as CSV has it, perhaps in quotes that it does not need.
fn written(cell: &Cell<'_>, delimiter: char, quote_all: bool) -> String {
    let text = cell.to_string();
    let needs = text.contains([delimiter, '"', '\n', '\r']) || text.is_empty();
    match cell {
        Cell::Null => String::new(),
        _ if needs || quote_all => format!("\"{}\"", text.replace('"', "\"\"")),
        _ => text,
    }
}

fn cell() -> impl Strategy<Value = Cell<'static>> {
    let text = prop_oneof!["[a-zé,;\"\r\n\t ]{1,12}", "-?[0-9]{1,4}(\\.[0-9])?", Just("NA".to_string())];
    prop_oneof![
        1 => Just(Cell::Null),
        1 => Just(Cell::Text("".into())),
        6 => text.prop_map(|text| Cell::Raw(text.into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_table_comes_back_from_blocks_of_any_size(
        rows in prop::collection::vec(prop::collection::vec(cell(), 3), 1..30),
        delimiter in prop::sample::select(vec![',', ';', '\t']),
        line_end in prop::sample::select(vec!["\n", "\r\n", "\n\n"]),
        quote_all: bool,
        has_last_end: bool,
        block_bytes in 1u64..300,
        piece_bytes in 0usize..2000,
    ) {
        let line = |cells: Vec<String>| cells.join(&delimiter.to_string());
        let mut text = line(vec!["a".into(), "\"b\n1\"".into(), "c".into()]);
        let mut expected = Vec::new();
        for row in &rows {
            text += line_end;
            expected.push((text.len() as u64, Ok(row.clone())));
            text += &line(row.iter().map(|cell| written(cell, delimiter, quote_all)).collect());
        }
        text += if has_last_end { line_end } else { "" };
        run(async {
            let blocks = by_block("a.csv", text.as_bytes(), block_bytes, piece_bytes).await.unwrap();
            assert_eq!(blocks.concat(), expected);
            // A row is in the block that it begins in, and blocks are no longer than they have to be.
            let mut start = expected[0].0;
            for block in &blocks[..blocks.len() - 1] {
                let last = block.last().unwrap().0;
                assert!(last < start + block_bytes, "{start} {last}");
                start = expected[expected.iter().position(|row| row.0 == last).unwrap() + 1].0;
            }
            let file = zstd_file(text.as_bytes(), block_bytes as usize);
            assert_eq!(by_block("a.csv.zst", &file, block_bytes, piece_bytes).await.unwrap(), [expected]);
        });
    }

    #[test]
    fn any_damage_gives_the_same_rows_from_blocks_of_any_size(
        mut bytes in prop::collection::vec(prop::sample::select(b"ab1,,\"\"\n\n\r\xE9".to_vec()), 0..200),
        block_bytes in 1u64..60,
    ) {
        bytes.splice(0..0, b"a,b\n".iter().copied());
        run(async {
            let whole = by_block("a.csv", &bytes, 1 << 20, 1 << 20).await.unwrap();
            let cut = by_block("a.csv", &bytes, block_bytes, 100).await.unwrap();
            assert_eq!(cut.concat(), whole.concat());
        });
    }

    #[test]
    fn every_beginning_and_every_change_of_a_file_is_read_or_refused(
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let text = "\u{feff}id,\"na\"\"me\",x\n1,\"a\nb\",2.5\r\n2,,\"\"\n\n3,é,\"say \"\"hi\"\"\"\n";
        run(async {
            let _any = by_block("a.csv", &text.as_bytes()[..at.index(text.len())], 10, 10).await;
            let mut changed = text.as_bytes().to_vec();
            changed[at.index(text.len())] = byte;
            let _any = by_block("a.csv", &changed, 10, 10).await;
            let file = zstd_file(text.as_bytes(), 20);
            let _any = by_block("a.csv.zst", &file[..at.index(file.len())], 10, 10).await;
            let mut changed = file.clone();
            changed[at.index(file.len())] = byte;
            let _any = by_block("a.csv.zst", &changed, 10, 10).await;
        });
    }
}

#[tokio::test]
async fn a_row_that_does_not_fit_says_why_and_costs_no_other() {
    let content = b"a,b\n1,2\n3\n4,5,6\n\"x\n7,\xFF8\n9,10\n";
    let found = by_block("a.csv", content, 1 << 20, 1 << 20).await.unwrap().concat();
    let reasons: Vec<(u64, Option<&str>)> =
        found.iter().map(|(offset, row)| (*offset, row.as_ref().err().map(String::as_str))).collect();
    let expected = [
        (4, None),
        (8, Some("1 cell where the header has 2")),
        (10, Some("3 cells where the header has 2")),
        (16, Some("the quote at byte 16 opens a cell and is never closed")),
        (19, Some("not UTF-8 at byte 2 of the row")),
        (24, None),
    ];
    assert_eq!(reasons, expected);
}

#[tokio::test]
async fn a_row_longer_than_a_record_may_be_is_bad_and_a_block_may_be_one_row() {
    let content = format!("a,b\n1,2\n{},4\n\"{}\n\",6\n7,8\n", "3".repeat(400_000), "5\n".repeat(200_000));
    for block_bytes in [1000, 1 << 20] {
        let files = shards(&[("a.csv", content.clone().into_bytes())]).await;
        let source = CsvSource::open_with_block_bytes(files, &Columns::Auto, Some(','), block_bytes).await.unwrap();
        let limits = ReadLimits { piece_bytes: 1 << 20, part_bytes: 1 << 20, record_bytes: 300_000 };
        let mut found = Vec::new();
        for block in 0..source.blocks().len() {
            let fetched = source.fetch(block, limits).await.unwrap();
            found.extend(fetched.pieces.flat_map(|piece| found_in(&piece.unwrap())));
        }
        let is_bad: Vec<bool> = found.iter().map(|(_, row)| row.is_err()).collect();
        assert_eq!(is_bad, [false, true, true, false]);
        assert!(found[2].1.clone().unwrap_err().starts_with("a row of more than 300000 bytes is too long"));
    }
}

#[tokio::test]
async fn columns_are_found_by_name_in_every_file() {
    let files = [("a.csv", &b"x;y;name\n1;0.5;p\n;NA;q\n"[..]), ("b.tsv", b"name\ty\tx\nr\t2\t\"3\"\n")];
    let files = files.map(|(name, content)| (name, content.to_vec()));
    let open = async |columns: &Columns| CsvSource::open(shards(&files).await, columns, None).await;
    let read = async |columns: &Columns| {
        let source = open(columns).await.unwrap();
        let mut found = Vec::new();
        for block in 0..source.blocks().len() {
            found.extend(pieces(&source, block, 1000).await.0);
        }
        (source.kind(), found)
    };
    let raw = |text: &'static str| Cell::Raw(text.into());
    let (kind, found) = read(&Columns::Cells(vec!["name".into(), "x".into()])).await;
    assert_eq!(kind, RecordKind::Cells { width: 2 });
    let rows: Vec<_> = found.iter().flat_map(found_in).map(|(_, row)| row.unwrap()).collect();
    assert_eq!(rows, [vec![raw("p"), raw("1")], vec![raw("q"), Cell::Null], vec![raw("r"), raw("3")]]);
    let (kind, found) = read(&Columns::Only(crate::source::Wanted::Rows)).await;
    assert_eq!(kind, RecordKind::Lists { width: Some(2), reals: true });
    let Records::Lists(lists) = &found[0].records else { panic!("{found:?}") };
    assert_eq!(lists.values, Values::F32(vec![1.0, 0.5, 0.0, 0.0]));
    assert_eq!((lists.missing.as_deref(), &lists.ends[..]), (Some(&[false, false, true, true][..]), &[2, 4][..]));
    let (kind, found) = read(&Columns::One("name".into())).await;
    let Records::Blobs(blobs) = &found[1].records else { panic!("{found:?}") };
    assert_eq!((kind, blobs.get(0)), (RecordKind::Text, &b"r"[..]));
    let error = failure(open(&Columns::One("z".into())).await).to_string();
    assert_eq!(error, "a.csv: no column `z`; there are `x` (number), `y` (number), `name` (text)");
    let other = shards(&[("a.csv", b"x\n1\n".to_vec()), ("b.csv", b"y\n1\n".to_vec())]).await;
    let error = failure(CsvSource::open(other, &Columns::Auto, None).await).to_string();
    assert_eq!(error, "b.csv: no column `x`: give all files the columns of the first");
}

#[tokio::test]
async fn a_number_that_is_none_is_a_bad_row_of_numbers() {
    let rows: String = (0..150).map(|row| format!("{row},true\n")).collect();
    let files = shards(&[("a.csv", format!("a,b\n{rows}x,1\n1e99,1\n").into_bytes())]).await;
    let source = CsvSource::open(files, &Columns::Many(vec!["a".into()]), None).await.unwrap();
    let (pieces, end) = pieces(&source, 0, 1 << 20).await;
    end.unwrap();
    let bad = [
        (150, "column `a`: `x` is not a number".into()),
        (151, "column `a`: 1e99 is not a finite 32-bit number".into()),
    ];
    assert_eq!(pieces[0].bad, bad);
}

#[tokio::test]
async fn files_without_rows_are_read_and_no_file_is_refused() {
    assert_eq!(by_block("a.csv", b"a,b\n", 10, 10).await.unwrap().concat(), []);
    let empty = shards(&[("a.csv", Vec::new())]).await;
    assert!(failure(CsvSource::open(empty, &Columns::Auto, None).await).to_string().contains("no row in any file"));
    assert!(CsvSource::open(Vec::new(), &Columns::Auto, None).await.is_err());
    let said = shards(&[("a.csv", b"a;b\n1;2\n".to_vec())]).await;
    let source = CsvSource::open(said, &Columns::Auto, Some(',')).await.unwrap();
    assert_eq!(source.reading().read[0].name, "a;b");
}

/// Delivers one write at a time, as a pipe does.
struct Writes(std::collections::VecDeque<Vec<u8>>);

impl Read for Writes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(first) = self.0.pop_front() else { return Ok(0) };
        buffer[..first.len()].copy_from_slice(&first);
        Ok(first.len())
    }
}

const LIMITS: ReadLimits = ReadLimits { piece_bytes: 1 << 20, part_bytes: 1 << 20, record_bytes: 200 };

fn pipe(writes: &[&[u8]]) -> Result<Arc<CsvPipe>> {
    let writes = writes.iter().filter(|write| !write.is_empty()).map(|write| write.to_vec()).collect();
    CsvPipe::new("standard input", Box::new(Writes(writes)), &Columns::Auto, None, &LIMITS).map(Arc::new)
}

/// All rows of a pipe, and how many windows they came in.
fn read_pipe(writes: &[&[u8]]) -> (Vec<Found>, usize) {
    let mut reader = pipe(writes).unwrap().open(None).unwrap();
    let (mut found, mut windows) = (Vec::new(), 0);
    while let Some(arrived) = reader.next(&LIMITS).unwrap() {
        match arrived {
            Arrived::WindowStart(_) => windows += 1,
            Arrived::Piece(piece) => found.extend(found_in(&piece)),
            Arrived::WindowEnd(_) => {}
            other => panic!("{other:?}"),
        }
    }
    (found, windows)
}

proptest! {
    #[test]
    fn any_cut_of_a_pipe_into_writes_gives_the_same_rows(
        rows in prop::collection::vec(prop::sample::select(vec!["1,2", "\"a\nb\",", "", "3", "\"x\"y,1"]), 1..30),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let text = format!("a,b\n0,0\n{}", rows.join("\n"));
        let bytes = text.as_bytes();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let writes: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let (whole, _) = read_pipe(&[bytes]);
        prop_assert_eq!(whole.len(), 1 + rows.iter().filter(|row| !row.is_empty()).count());
        prop_assert_eq!(&read_pipe(&writes).0, &whole);
        prop_assert_eq!(run(by_block("a.csv", bytes, 7, 100)).unwrap().concat(), whole);
    }
}

#[test]
fn a_window_of_a_pipe_is_what_has_arrived_and_no_more_than_some_rows() {
    assert_eq!(read_pipe(&[b"a\n1\n", b"2\n3\n", b"4\n\"5\n", b"\"\n"]).1, 4);
    let (rows, windows) = read_pipe(&[b"a\n0\n", &b"1\n".repeat(2500)]);
    assert_eq!((rows.len(), windows), (2501, 4));
    for (bytes, words) in [
        (&b""[..], "standard input: is empty: a CSV file begins with a line"),
        (b"a,b\n\n", "standard input: ended before the first row"),
        (b"1,2\n3,4\n", "it looks as if there is no header"),
    ] {
        let error = pipe(&[bytes]).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}
