//! Laws of schemas: what is encoded comes back, what is inferred can be said in a table.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::ask::{AskedDistribution, AskedMeaning, ColumnAsk};
use super::infer::{Inferred, Observer};
use super::part::PARTS;
use super::*;
use crate::data::{Cell, CellType, Cells};

fn column(cell_type: CellType, meaning: Meaning) -> ColumnSchema {
    ColumnSchema { name: "x".into(), cell_type, meaning }
}

fn infer_with(cells: &[Cell<'_>], ask: ColumnAsk) -> Result<Inferred> {
    let mut table = Cells::new(1);
    cells.iter().for_each(|cell| table.push(cell));
    let mut observer = Observer::new(&["x".into()]);
    observer.see(&table, 0..cells.len());
    observer.infer(&BTreeMap::from([("x".to_string(), ask)]))
}

fn infer(cells: &[Cell<'_>]) -> Inferred {
    infer_with(cells, ColumnAsk::default()).unwrap()
}

fn raw<'a>(texts: &[&'a str]) -> Vec<Cell<'a>> {
    texts.iter().map(|text| if text.is_empty() { Cell::Null } else { Cell::Raw((*text).into()) }).collect()
}

/// What a column of these cells is understood as.
fn understood(cells: &[Cell<'_>]) -> String {
    match infer_with(cells, ColumnAsk::default()) {
        Ok(inferred) => inferred.columns[0].understood_as.clone(),
        Err(error) => error.to_string(),
    }
}

fn asked(meaning: AskedMeaning) -> ColumnAsk {
    ColumnAsk { meaning: Some(meaning), ..ColumnAsk::default() }
}

proptest! {
    /// Every cell that was seen comes back, whatever the column was taken for, as far as its meaning keeps it.
    #[test]
    fn cells_that_were_seen_come_back(
        texts in prop::collection::vec(prop::option::weighted(0.9, "[a-c]{1,2}|[0-9]{1,3}|true|NA"), 1..60),
        categories in 2u32..40,
    ) {
        let cells: Vec<Cell<'_>> =
            texts.iter().map(|text| text.as_ref().map_or(Cell::Null, |text| Cell::Text(text.into()))).collect();
        prop_assume!(cells.iter().any(|cell| !cell.is_null()));
        let ask = ColumnAsk { categories: Some(categories), ..ColumnAsk::default() };
        let inferred = infer_with(&cells, ask).unwrap();
        let column = &inferred.schema.columns[0];
        prop_assert!(column.num_cats().unwrap() <= categories);
        let mut others = std::collections::HashSet::new();
        for cell in &cells {
            let value = column.encode(cell).unwrap();
            prop_assert_eq!(value.is_none(), cell.is_null());
            let Some(value) = value else { continue };
            match column.decode(value) {
                Cell::Text(text) if text == OTHER => drop(others.insert(cell.to_string())),
                decoded => prop_assert_eq!(&decoded, cell),
            }
        }
        prop_assert_eq!(others.len(), inferred.columns[0].names_left_out);
    }

    #[test]
    fn numbers_come_back_as_single_precision_holds_them(number in -1e9f64..1e9, whole in -16_000_000i64..16_000_000) {
        let (reals, wholes) = (column(CellType::Float, Meaning::Number), column(CellType::Int, Meaning::Number));
        let value = reals.encode(&Cell::Float(number)).unwrap().unwrap();
        prop_assert_eq!(value, number as f32);
        let Cell::Float(back) = reals.decode(value) else { panic!("a number") };
        prop_assert_eq!(back as f32, value);
        prop_assert!((back - number).abs() <= number.abs() * f64::from(f32::EPSILON));
        let value = wholes.encode(&Cell::Int(whole)).unwrap().unwrap();
        prop_assert_eq!(wholes.decode(value), Cell::Int(whole));
        prop_assert_eq!(wholes.encode(&Cell::Raw(whole.to_string().into())).unwrap(), Some(value));
        prop_assert_eq!(wholes.encode(&Cell::Float(whole as f64)).unwrap(), Some(value));
    }

    /// A bin is decoded to a number in it, and holds the numbers between its edges; all hold about as many.
    #[test]
    fn bins_hold_what_is_between_their_edges(
        numbers in prop::collection::vec(prop_oneof![-5f64..5.0, (-3i32..3).prop_map(f64::from)], 1..80),
        bins in 1u32..20,
    ) {
        let cells: Vec<Cell<'_>> = numbers.iter().map(|number| Cell::Float(*number)).collect();
        let inferred = infer_with(&cells, ColumnAsk { bins: Some(bins), ..ColumnAsk::default() }).unwrap();
        let column = &inferred.schema.columns[0];
        let Meaning::Bins { edges, means } = &column.meaning else { panic!("bins") };
        prop_assert!(means.len() <= bins as usize && edges.len() == means.len() + 1);
        let mut seen = vec![0; means.len()];
        for number in &numbers {
            let bin = column.encode(&Cell::Float(*number)).unwrap().unwrap();
            let at = bin as usize;
            seen[at] += 1;
            prop_assert!(edges[at] <= *number && (*number < edges[at + 1] || at + 1 == means.len()));
            let decoded = column.decode(bin).into_owned();
            prop_assert_eq!(column.encode(&decoded).unwrap(), Some(bin));
        }
        prop_assert!(seen.iter().all(|count| *count > 0), "{:?}", seen);
        let wanted = numbers.len().div_ceil(bins as usize);
        let mut distinct: Vec<f64> = numbers.clone();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        if distinct.len() == numbers.len() && numbers.len() >= bins as usize {
            prop_assert!(seen.iter().all(|count| *count <= wanted), "{:?}", seen);
        }
        prop_assert_eq!(column.encode(&Cell::Float(-1e30)).unwrap(), Some(0.0));
        prop_assert_eq!(column.encode(&Cell::Float(1e30)).unwrap(), Some((means.len() - 1) as f32));
    }

    #[test]
    fn times_come_back_to_the_second_within_months_and_dates_to_the_day(
        start in -20_000i64..40_000, after in prop::collection::vec(0i64..7_776_000, 1..30),
    ) {
        let cells: Vec<Cell<'_>> =
            after.iter().map(|seconds| Cell::Time((start * 86_400 + seconds) * 1_000_000)).collect();
        let inferred = infer(&cells);
        let column = &inferred.schema.columns[0];
        for cell in &cells {
            let Cell::Time(micros) = *cell else { panic!() };
            let value = column.encode(cell).unwrap().unwrap();
            let Cell::Time(back) = column.decode(value) else { panic!("a time") };
            prop_assert!((back - micros).abs() <= 1_000_000, "{micros} {back}");
            prop_assert_eq!(column.encode(&Cell::Raw(cell.to_string().into())).unwrap(), Some(value));
        }
        let dates: Vec<Cell<'_>> = after.iter().map(|seconds| Cell::Date(start + seconds / 2000)).collect();
        let inferred = infer(&dates);
        let column = &inferred.schema.columns[0];
        for cell in &dates {
            prop_assert_eq!(&column.decode(column.encode(cell).unwrap().unwrap()), cell);
            prop_assert_eq!(column.encode(&Cell::Text(cell.to_string().into())), column.encode(cell));
        }
    }

    #[test]
    fn parts_of_times_are_categories_with_names(micros in -1_000_000_000_000_000i64..4_000_000_000_000_000) {
        for (name, part) in PARTS {
            let column = column(CellType::Time, Meaning::Part { part });
            let value = column.encode(&Cell::Time(micros)).unwrap().unwrap();
            prop_assert!(value >= 0.0 && (value as u32) < part.num_cats(), "{name}");
            prop_assert_eq!(column.encode(&column.decode(value)).unwrap(), Some(value), "{}", name);
            let shown = column.category_name(value as u32).unwrap();
            prop_assert_eq!(column.decode(value).to_string(), shown, "{}", name);
        }
    }

    #[test]
    fn a_schema_is_read_back_as_it_was_written(
        vocabulary in prop::collection::hash_set("[a-z0-9]{0,3}", 1..5),
        low: i64,
    ) {
        let columns = [
            Meaning::Category { vocabulary: vocabulary.into_iter().map(Label::Text).collect(), unseen: Unseen::Error },
            Meaning::Category { vocabulary: vec![Label::Int(low), Label::Bool(true)], unseen: Unseen::Other },
            Meaning::Bool { distribution: BoolDistribution::Bernoulli },
            Meaning::Count { distribution: CountDistribution::Binomial(7) },
            Meaning::Count { distribution: CountDistribution::Poisson },
            Meaning::Number,
            Meaning::Range { low: -3, high: 9 },
            Meaning::Bins { edges: vec![0.1, 0.30000000000000004, 2.0], means: vec![0.2, 1.0] },
            Meaning::Time { origin: low },
            Meaning::Part { part: TimePart::Weekday },
        ];
        let columns = columns.into_iter().enumerate().map(|(at, meaning)| ColumnSchema {
            name: format!("c{at}"),
            ..column(CellType::Int, meaning)
        });
        let ignored = vec![IgnoredColumn { name: "id".into(), why: "numbers of rows".into() }];
        let schema = TableSchema { columns: columns.collect(), ignored };
        let text = schema.to_json().to_string();
        prop_assert_eq!(TableSchema::from_json(&serde_json::from_str(&text).unwrap()).unwrap(), schema);
    }
}

#[test]
fn the_rule_is_the_one_that_is_documented() {
    let many = |cell: &dyn Fn(i64) -> Cell<'static>| (0..100).map(cell).collect::<Vec<_>>();
    assert_eq!(understood(&many(&|i| Cell::Bool(i % 3 == 0))), "bool");
    assert_eq!(understood(&many(&|i| Cell::Text(format!("c{}", i % 7).into()))), "category");
    assert!(understood(&many(&|i| Cell::Text(format!("c{i}").into()))).contains("names or identifiers"));
    assert_eq!(understood(&many(&|i| Cell::Int(i % 32 - 5))), "category");
    assert_eq!(understood(&many(&|i| Cell::Int(i % 33 - 5))), "number (gaussian)");
    assert_eq!(understood(&many(&|i| Cell::Int(i * i % 40))), "category", "squares are few");
    assert_eq!(understood(&many(&|i| Cell::Int(if i < 60 { i % 9 } else { i }))), "count (negative-binomial)");
    assert_eq!(understood(&many(&|i| Cell::Float(if i < 60 { i % 9 } else { i } as f64))), "count (negative-binomial)");
    assert_eq!(understood(&many(&|i| Cell::Int(20 + i % 50))), "number (gaussian)");
    assert!(understood(&many(&|i| Cell::Int((i * 37) % 100 + 5000))).contains("numbers of rows"));
    assert_eq!(understood(&many(&|i| Cell::Int(i * 1000))), "number (gaussian)");
    assert_eq!(understood(&many(&|i| Cell::Float(i as f64 / 7.0))), "number (gaussian)");
    assert_eq!(understood(&many(&|i| Cell::Date(i))), "time (gaussian, in days)");
    assert_eq!(
        understood(&many(&|i| Cell::Text(format!("2024-01-{:02}", 1 + i % 28).into()))),
        "time (gaussian, in days)"
    );
    assert!(understood(&many(&|_| Cell::Null)).contains("nothing in the first 100 rows"));
    let part = infer_with(&many(&|i| Cell::Date(i)), asked(AskedMeaning::Part(TimePart::Weekday))).unwrap();
    assert_eq!(part.schema.columns[0].category_name(0).unwrap(), "Monday");
}

#[test]
fn cells_without_a_type_are_what_all_of_them_spell() {
    let seen = |texts: &[&str]| infer(&raw(texts)).columns[0].cell_type.unwrap();
    assert_eq!(seen(&["1", "2", "", "-3", "NA"]), CellType::Int);
    assert_eq!(seen(&["1", "2.5", "1e3", "nan"]), CellType::Float);
    assert_eq!(seen(&["true", "FALSE", "null"]), CellType::Bool);
    assert_eq!(seen(&["2024-01-31", "2024-02-01"]), CellType::Date);
    assert_eq!(seen(&["2024-01-31", "2024-02-01 12:00"]), CellType::Time);
    assert_eq!(seen(&["1", "x"]), CellType::Text);
    assert_eq!(seen(&["01234", "56789"]), CellType::Text, "postcodes");
    assert_eq!(seen(&["inf", "1"]), CellType::Text);
    assert_eq!(seen(&["NA", "NA"]), CellType::Text);
    let countries = infer(&raw(&["DE", "NA", "DE", "", "FR"]));
    assert_eq!(countries.columns[0].missing, 1, "Namibia is a country");
    let column = &countries.schema.columns[0];
    assert_eq!(column.decode(column.encode(&Cell::Raw("NA".into())).unwrap().unwrap()).to_string(), "NA");
    let numbers = infer(&raw(&["1.5", "NA", "2", ""]));
    assert_eq!(numbers.columns[0].missing, 2);
    assert_eq!(numbers.schema.columns[0].encode(&Cell::Raw("NA".into())), Ok(None));
}

#[test]
fn a_typed_table_and_an_untyped_one_mean_the_same() {
    let typed = |number: i64| {
        vec![Cell::Int(number), Cell::Float(number as f64 + 0.5), Cell::Bool(number % 2 == 0), Cell::Date(number)]
    };
    let (mut a, mut b) = (Cells::new(4), Cells::new(4));
    for number in 0..60 {
        for cell in typed(number % 40 * 3) {
            b.push(&Cell::Raw(cell.to_string().into()));
            a.push(&cell);
        }
    }
    let names: Vec<String> = (0..4).map(|at| format!("c{at}")).collect();
    let schemas = [&a, &b].map(|cells| {
        let mut observer = Observer::new(&names);
        observer.see(cells, 0..60);
        observer.infer(&BTreeMap::new()).unwrap().schema
    });
    assert_eq!(schemas[0], schemas[1]);
    for (row, column) in (0..60).flat_map(|row| (0..4).map(move |column| (row, column))) {
        let encode = |cells: &Cells| schemas[0].columns[column].encode(&cells.get(row, column)).unwrap();
        assert!(encode(&a).is_some() && encode(&a) == encode(&b), "{row} {column}");
    }
}

#[test]
fn an_unseen_category_is_other_or_a_reason() {
    let cells = raw(&["a", "b", "a"]);
    let other = infer(&cells).schema;
    assert_eq!(other.columns[0].encode(&Cell::Text("z".into())), Ok(Some(2.0)));
    assert_eq!((other.category_name(0, 2).as_deref(), other.category_name(0, 3)), (Some(OTHER), None));
    let strict = ColumnAsk { unseen: Some(Unseen::Error), ..ColumnAsk::default() };
    let strict = infer_with(&cells, strict).unwrap().schema;
    assert_eq!(strict.columns[0].num_cats(), Some(2));
    assert_eq!(strict.columns[0].encode(&Cell::Text("z".into())), Err("`z` is not among the 2 categories".into()));
    let listed = ColumnAsk { vocabulary: Some(vec!["b".into(), "c".into()]), ..ColumnAsk::default() };
    let listed = infer_with(&cells, listed).unwrap().schema;
    assert_eq!(listed.columns[0].encode(&cells[1]), Ok(Some(0.0)));
    assert_eq!(listed.columns[0].encode(&cells[0]), Ok(Some(2.0)));
}

#[test]
fn cells_that_do_not_fit_say_why() {
    let number = column(CellType::Float, Meaning::Number);
    assert_eq!(number.encode(&Cell::Text("abc".into())), Err("`abc` is not a number".into()));
    assert_eq!(number.encode(&Cell::Float(f64::NAN)), Ok(None));
    assert!(number.encode(&Cell::Float(f64::INFINITY)).unwrap_err().contains("rescale"));
    assert!(number.encode(&Cell::Date(3)).is_err());
    let count = column(CellType::Int, Meaning::Count { distribution: CountDistribution::Poisson });
    assert_eq!(count.encode(&Cell::Int(-1)), Err("-1 is not a count from 0 to 16777216".into()));
    assert_eq!(count.encode(&Cell::Float(2.5)), Err("2.5 is not a whole number".into()));
    assert_eq!(count.decode(-0.4), Cell::Int(0));
    let range = column(CellType::Int, Meaning::Range { low: -2, high: 2 });
    assert_eq!((range.encode(&Cell::Int(-2)), range.decode(4.0)), (Ok(Some(0.0)), Cell::Int(2)));
    assert_eq!(range.encode(&Cell::Int(3)), Err("3 is outside -2 to 2".into()));
    assert_eq!((range.decode(5.0), range.decode(f32::NAN)), (Cell::Null, Cell::Null));
    let truth = column(CellType::Bool, Meaning::Bool { distribution: BoolDistribution::Categorical });
    assert_eq!(truth.encode(&Cell::Raw(" Yes".into())), Ok(Some(1.0)));
    assert!(truth.encode(&Cell::Int(2)).is_err());
    let time = column(CellType::Time, Meaning::Time { origin: 0 });
    assert!(time.encode(&Cell::Text("yesterday".into())).unwrap_err().contains("2024-05-31"));
}

#[test]
fn what_contradicts_itself_or_the_data_is_refused() {
    let texts = raw(&["a", "b", "a"]);
    for (ask, words) in [
        (asked(AskedMeaning::Number), "needs numbers"),
        (asked(AskedMeaning::Count), "needs whole numbers"),
        (asked(AskedMeaning::Time), "needs dates or times"),
        (ColumnAsk { bins: Some(3), ..asked(AskedMeaning::Number) }, "bins: has no meaning for as = \"number\""),
        (ColumnAsk { unseen: Some(Unseen::Other), ..asked(AskedMeaning::Bool) }, "unseen: has no meaning"),
        (
            ColumnAsk { distribution: Some(AskedDistribution::Poisson), ..asked(AskedMeaning::Category) },
            "distribution = \"poisson\": has no meaning",
        ),
        (ColumnAsk { vocabulary: Some(vec!["a".into(), "a".into()]), ..ColumnAsk::default() }, "`a` is there twice"),
        (
            ColumnAsk { categories: Some(1), unseen: Some(Unseen::Error), ..ColumnAsk::default() },
            "2 names in the first rows are more than 1 categories",
        ),
        (asked(AskedMeaning::Ignore), "no column to learn from"),
    ] {
        let error = infer_with(&texts, ask).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let unknown = BTreeMap::from([("y".to_string(), ColumnAsk::default())]);
    let error = Observer::new(&["x".into()]).infer(&unknown).unwrap_err().to_string();
    assert_eq!(error, "[columns.y]: there is no such column; there are `x`");
    for broken in [
        Meaning::Category { vocabulary: vec![], unseen: Unseen::Other },
        Meaning::Category { vocabulary: vec![Label::Int(1), Label::Int(1)], unseen: Unseen::Other },
        Meaning::Bins { edges: vec![1.0, 0.0], means: vec![0.5] },
        Meaning::Bins { edges: vec![0.0, 1.0], means: vec![0.5, 0.7] },
        Meaning::Range { low: 0, high: -1 },
        Meaning::Range { low: i64::MIN, high: i64::MAX },
    ] {
        let schema = TableSchema { columns: vec![column(CellType::Int, broken)], ignored: vec![] };
        assert!(TableSchema::from_json(&schema.to_json()).is_err(), "{schema:?}");
    }
}

#[test]
fn nothing_is_no_name_and_a_cell_of_another_type_is_the_name_that_it_spells() {
    let texts = ["1", "2", "NA", "1", "2", "1", ""];
    let codes = infer_with(&raw(&texts), asked(AskedMeaning::Category)).unwrap();
    let column_of = |inferred: &Inferred| inferred.schema.columns[0].clone();
    assert_eq!((codes.columns[0].missing, column_of(&codes).num_cats()), (2, Some(3)));
    assert_eq!(column_of(&codes).encode(&Cell::Raw("NA".into())), Ok(None));
    let names = infer(&["true", "NA", "", "true", "NA", "b"].map(|text| Cell::Text(text.into())));
    let column = column_of(&names);
    assert_eq!(names.columns[0].missing, 1);
    assert_eq!(column.encode(&Cell::Text("".into())), Ok(None));
    assert!(column.encode(&Cell::Raw("NA".into())).unwrap().is_some(), "a name among names");
    assert_eq!(column.encode(&Cell::Bool(true)), column.encode(&Cell::Text("true".into())));
    let cells = [0.1, -0.0, 0.5, 0.1, 0.5, 0.0].map(Cell::Float);
    let column = column_of(&infer_with(&cells, asked(AskedMeaning::Category)).unwrap());
    assert_eq!(column.encode(&Cell::Float(f64::from(0.1f32))), column.encode(&Cell::Float(0.1)));
    assert_eq!(column.encode(&Cell::Float(-0.0)), column.encode(&Cell::Float(0.0)));
    assert!(column.encode(&Cell::Float(0.1)).unwrap() < Some(3.0));
}

#[test]
fn the_rule_chooses_nothing_that_its_own_rows_are_not() {
    let mut cells = vec![Cell::Int(0); 60];
    cells.extend((0..40).map(|n| Cell::Int(n * 1_000_003)));
    assert_eq!(understood(&cells), "number (gaussian)", "too large to be counted");
    let mut cells: Vec<Cell<'_>> = (0..100).map(|n| Cell::Float(f64::from(n) * 0.37)).collect();
    assert_eq!(understood(&cells), "number (gaussian)");
    cells.push(Cell::Float(1e30));
    assert!(understood(&cells).contains("1e30 is outside ±1e18: rescale it, or say bins"), "{}", understood(&cells));
    let long = "x".repeat(2000);
    let cells: Vec<Cell<'_>> = (0..100).map(|n| Cell::Text(format!("{long}{n}").into())).collect();
    assert!(understood(&cells).contains("names or identifiers"), "{}", understood(&cells));
}

#[test]
fn what_was_asked_agrees_with_what_was_made_of_it_however_it_is_spelled() {
    let cells = [1.0, 2.5, 1.0, 2.5].map(Cell::Float);
    let names = |names: &[&str]| ColumnAsk {
        vocabulary: Some(names.iter().map(ToString::to_string).collect()),
        ..ColumnAsk::default()
    };
    let inferred = infer_with(&cells, names(&["1.0", "2.5"])).unwrap();
    let column = &inferred.schema.columns[0];
    assert!(names(&["1.0", "2.5"]).agrees_with(column) && names(&["1", "2.50"]).agrees_with(column));
    assert!(!names(&["1.0", "2.6"]).agrees_with(column) && !names(&["2.5", "1.0"]).agrees_with(column));
    assert!(ColumnAsk::default().agrees_with(column) && !asked(AskedMeaning::Bins).agrees_with(column));
    let strict = ColumnAsk { unseen: Some(Unseen::Error), ..names(&["1.0"]) };
    let report = infer_with(&cells, strict).unwrap().columns[0].clone();
    assert_eq!((report.names_left_out, report.note.unwrap().contains("1 names of the first rows")), (0, true));
}
