//! A report is one page that needs nothing else, its charts, and numbers for other programs.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::common::browser::Browser;
use crate::common::findings::{ODD_NAME, findings, text};
use anemone::compare::findings::{Findings, Point, Run, Section};
use anemone::compare::report;
use proptest::prelude::*;

/// The page of some findings, in a folder that lives as long as the test.
fn written(findings: &Findings) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let written = report::write(findings, dir.path()).unwrap();
    let page = fs::read_to_string(&written.page).unwrap();
    (dir, page)
}

#[test]
fn every_file_is_written_whole_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/on/the/way");
    let files = report::write(&findings(), &folder).unwrap().files;
    let charts =
        ["text-hmm", "troubled"].map(|s| [format!("charts/{s}-epochs.svg"), format!("charts/{s}-seconds.svg")]);
    let named = ["report.html", "report.md", "curves.csv", "table.csv", "trials.csv", "regret.csv"].map(String::from);
    let wanted: HashSet<_> = charts.concat().into_iter().chain(named).map(|name| folder.join(name)).collect();
    assert_eq!(files.iter().cloned().collect::<HashSet<_>>(), wanted);
    let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
    assert_eq!((count(&folder), count(&folder.join("charts"))), (7, 4), "something was left beside");
}

#[test]
fn the_page_in_markdown_has_whole_tables_of_the_same_figures() {
    let (dir, page) = written(&findings());
    let markdown = fs::read_to_string(dir.path().join("report.md")).unwrap();
    assert!(markdown.contains("Ädäm \\<b\\>&amp;\"quoted\" ∞"), "a name is text");
    let mut tables = Vec::new();
    for line in markdown.lines() {
        match (line.starts_with('|'), tables.last_mut()) {
            (false, _) => tables.push(Vec::new()),
            (true, Some(table)) => Vec::push(table, line.replace("\\|", "").matches('|').count()),
            (true, None) => panic!("a page begins with its title"),
        }
    }
    tables.retain(|table| !table.is_empty());
    let searched = findings().sections.iter().flat_map(|s| &s.contenders).filter(|c| !c.trials.is_empty()).count();
    assert_eq!(
        tables.len(),
        2 * 3 + searched,
        "results, crossings and ablations of two sections, and what was searched"
    );
    for table in tables {
        assert!(table.len() > 2 && table.iter().all(|cells| *cells == table[0]), "columns of a table: {table:?}");
    }
    // It says no number that the page does not.
    let numbers = |text: &str| -> HashSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_digit() || "−.".contains(c))).map(|word| word.trim_matches('.'));
        words.filter(|word| word.starts_with('−') && word.contains('.')).map(String::from).collect()
    };
    let body = page.split("<style>").next().unwrap().to_string() + page.split("</style>").nth(1).unwrap();
    let (here, there) = (numbers(&markdown), numbers(&body));
    assert!(here.len() > 20 && here.is_subset(&there), "{:?}", here.difference(&there).collect::<Vec<_>>());
    for (what, chart) in ["epochs", "seconds"].iter().flat_map(|axis| ["text-hmm", "troubled"].map(|s| (axis, s))) {
        let link = format!("(charts/{chart}-{what}.svg)");
        assert!(markdown.contains(&link) && dir.path().join(link.trim_matches(['(', ')'])).exists(), "{link}");
    }
}

#[test]
fn page_and_charts_are_well_formed_and_load_nothing() {
    let (dir, page) = written(&findings());
    balanced(&page);
    assert!(!page.contains("http:") && !page.contains("https:"));
    for loads in
        ["<script", "<link", "<img", "<iframe", "<object", " src=", "@import", "url(", "href=\"http", "javascript:"]
    {
        assert!(!page.contains(loads), "the page has {loads}");
    }
    for href in page.split("href=\"").skip(1) {
        let target = href.strip_prefix('#').and_then(|rest| rest.split('"').next()).unwrap();
        assert!(page.contains(&format!("id=\"{target}\"")), "nothing is called {target}");
    }
    for chart in fs::read_dir(dir.path().join("charts")).unwrap() {
        let svg = fs::read_to_string(chart.unwrap().path()).unwrap();
        balanced(&svg);
        assert_eq!(svg.matches("http").count(), 1, "only its namespace");
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" ") && !svg.contains("var("));
    }
}

#[test]
fn names_are_text_and_never_tags() {
    let (dir, page) = written(&findings());
    assert!(!page.contains("<b>") && !page.contains("<here>") && !page.contains("<of>"));
    let escaped = "Ädäm &lt;b&gt;&amp;&quot;quoted&quot; ∞";
    // Verdicts and notes, legend, and a row of each table.
    assert!(page.matches(escaped).count() >= 5, "{}", page.matches(escaped).count());
    let chart = fs::read_to_string(dir.path().join("charts/troubled-epochs.svg")).unwrap();
    assert!(chart.contains(escaped));
}

#[test]
fn every_contender_has_a_line_in_every_chart() {
    let (dir, page) = written(&findings());
    let figures: Vec<&str> =
        page.split("<figure>").skip(1).map(|rest| rest.split("</figure>").next().unwrap()).collect();
    assert_eq!(figures.len(), 4);
    for (at, figure) in figures.iter().enumerate() {
        for place in 0..6 {
            let found = most_points(figure, &format!("var(--s{place})"));
            let is_impossible = at >= 2 && place == 3;
            assert_eq!(found > 25, !is_impossible, "chart {at}, contender {place}: {found} points");
        }
    }
    let alone = fs::read_to_string(dir.path().join("charts/text-hmm-epochs.svg")).unwrap();
    let strokes: HashSet<&str> = alone.split("<polyline").skip(1).filter_map(|p| attribute(p, "stroke")).collect();
    let lines = strokes.iter().filter(|stroke| most_points(&alone, stroke) > 25).count();
    assert_eq!(lines, 6);
}

#[test]
fn numbers_come_back_from_the_files() {
    let found = findings();
    let (dir, _) = written(&found);
    let read = |name: &str| parse_csv(&fs::read_to_string(dir.path().join(name)).unwrap());
    let number = |text: &str| (!text.is_empty()).then(|| text.parse::<f64>().unwrap());

    let curves = read("curves.csv");
    assert_eq!(curves[0], ["section", "contender", "optimizer", "seed", "epoch", "seconds", "valid", "train"]);
    let mut rows = curves[1..].iter();
    for section in &found.sections {
        for contender in &section.contenders {
            for (run, point) in contender.runs.iter().flat_map(|run| run.points.iter().map(move |point| (run, point))) {
                let row = rows.next().unwrap();
                assert_eq!(
                    row[..4],
                    [section.name.clone(), contender.name.clone(), contender.optimizer.clone(), run.seed.to_string()]
                );
                let numbers = [Some(point.epoch), Some(point.seconds), point.valid, point.train];
                assert_eq!(row[4..].iter().map(|cell| number(cell)).collect::<Vec<_>>(), numbers);
            }
        }
    }
    assert!(rows.next().is_none());

    let table = read("table.csv");
    assert_eq!(table.len(), 1 + 2 * (6 + 2));
    assert!(table.iter().all(|row| row.len() == table[0].len()));
    let column = |name: &str| table[0].iter().position(|head| head == name).unwrap();
    let best = |run: &Run| run.points.iter().filter_map(|p| p.valid).fold(f64::NEG_INFINITY, f64::max);
    let mean = text().contenders[0].runs.iter().map(best).sum::<f64>() / 3.0;
    assert_eq!(number(&table[1][column("best_valid_mean")]), Some(mean));
    let odd = table.iter().find(|row| row[1] == ODD_NAME).unwrap();
    assert_eq!(
        (odd[column("runs")].as_str(), odd[column("failed")].as_str(), odd[column("test_runs")].as_str()),
        ("3", "1", "2")
    );
    let impossible = table.iter().find(|row| row[1] == "impossible").unwrap();
    assert_eq!((impossible[column("best_valid_mean")].as_str(), impossible[column("test_mean")].as_str()), ("", ""));

    let trials = read("trials.csv");
    assert_eq!(trials.len(), 1 + 2 * 6 * 3);
    assert_eq!(trials[2][3..], ["learn.step = 0.4", "5", "-729.5", "true"]);
    assert_eq!(trials[3][5], "");
}

#[test]
fn what_went_wrong_is_named() {
    let (_, page) = written(&findings());
    for said in [
        "The comparison is not over: mini-batch EM has 2 of 3 runs.",
        "the run of seed 2 failed and is in no mean: row 7 &lt;of&gt; 9 is impossible.",
        "impossible: the run of seed 1 has no held-out value that is a number.",
        "So far, at the end of their runs, anemone has the highest held-out log-likelihood",
        "anemone reaches full-batch EM’s best held-out log-likelihood",
        "Too far off to be shown: ",
        "unigram (−854.30)",
        "uniform (−1385.60)",
        "where lines go on downwards",
    ] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn sections_that_share_contenders_end_with_their_regret() {
    let mut found = findings();
    let (_, page) = written(&found);
    assert!(!page.contains("Over all sections"), "one of two sections is not over");
    found.sections[1] = Section { name: "again".into(), ..text() };
    found.sections[1].contenders.reverse();
    found.sections[1].contenders[0].runs[2].failed = Some("diverged".into());
    let (dir, page) = written(&found);
    balanced(&page);
    let after = page.split("<section id=\"over_all\">").nth(1).unwrap();
    assert!(page.contains("<a href=\"#over_all\">Over all sections</a>") && !after.contains("<section"));
    let markdown = fs::read_to_string(dir.path().join("report.md")).unwrap();
    let told = markdown.split("## Over all sections").nth(1).unwrap();
    let csv = parse_csv(&fs::read_to_string(dir.path().join("regret.csv")).unwrap());
    assert_eq!(csv[0], ["measure", "contender", "text-hmm", "again", "regret"]);
    assert_eq!(csv.len(), 1 + 2 * 6);
    for (rows, title) in [(&csv[1..7], "Regret on validation rows"), (&csv[7..], "Regret on test rows")] {
        assert!(after.contains(title) && told.contains(title));
        let numbers: Vec<f64> = rows[..5].iter().map(|row| row[4].parse().unwrap()).collect();
        assert!(rows[0][1] == "anemone" && numbers[0] == 0.0 && numbers.is_sorted() && numbers[1] > 0.0, "{rows:?}");
        assert_eq!(rows[5][1..], ["Adam", &rows[5][2], "", ""], "a run of it failed");
        for row in &rows[..5] {
            let regret = format!("{:.3}", row[4].parse::<f64>().unwrap());
            assert!(after.contains(&regret) && told.contains(&regret), "{row:?}");
        }
    }
    assert!(after.contains("Without a mean: Adam (failed in again).") && told.contains("Adam (failed in again)"));
}

#[test]
fn one_seed_has_no_spread() {
    let mut found = findings();
    found.sections.truncate(1);
    found.sections[0].contenders.iter_mut().for_each(|contender| contender.runs.truncate(1));
    let (_, page) = written(&found);
    assert!(!page.contains('±') && !page.contains("in each of") && !page.contains("<nav"));
}

#[test]
fn nothing_found_is_a_page_too() {
    let mut found = Findings::default();
    balanced(&written(&found).1);
    found.sections.push(Section { name: "empty".into(), ..Section::default() });
    found.sections.push(Section { name: "no-runs".into(), ..text() });
    found.sections[1].contenders.iter_mut().for_each(|contender| contender.runs.clear());
    let (_, page) = written(&found);
    balanced(&page);
    assert!(page.contains("nothing to draw yet") && page.contains("anemone has no run yet"));
}

#[test]
fn a_name_that_is_no_file_is_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    for names in [vec!["../up"], vec![""], vec!["same", "same"]] {
        let section = |name: &&str| Section { name: (*name).into(), ..text() };
        let found = Findings { sections: names.iter().map(section).collect(), ..Findings::default() };
        let error = report::write(&found, &dir.path().join("out")).unwrap_err().to_string();
        assert!(error.contains("section") && !error.contains('\n'), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

fn odd_number() -> impl Strategy<Value = f64> {
    let odd =
        prop::sample::select(vec![f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -1.0, 1e300, -1e300, 1e-300, -1e9]);
    prop_oneof![3 => -900.0..-600.0f64, 1 => odd]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_found_is_written(
        points in prop::collection::vec((odd_number(), odd_number(), prop::option::of(odd_number())), 0..12),
        others in prop::collection::vec((odd_number(), odd_number(), prop::option::of(odd_number())), 0..12),
        known in odd_number(),
        fails in any::<bool>(),
        is_alone in any::<bool>(),
    ) {
        let mut found = findings();
        found.sections.truncate(1);
        let section = &mut found.sections[0];
        section.references[0].valid = Some(known);
        section.thresholds = vec![known];
        let point = |&(epoch, seconds, valid): &(f64, f64, Option<f64>)| Point { epoch, seconds, valid, train: valid };
        for (contender, points) in section.contenders.iter_mut().zip([&points, &others, &points]) {
            contender.runs[0].points = points.iter().map(point).collect();
            contender.runs[0].failed = fails.then(|| "odd".to_string());
            contender.runs[1].seconds = known;
            contender.runs.truncate(if is_alone { 1 } else { 3 });
        }
        section.contenders.truncate(3);
        balanced(&written(&found).1);
    }
}

/// Looks at the page as a reader does: in the light, in the dark, on a wide screen and on a narrow one.
#[test]
fn a_browser_draws_every_line_in_light_and_in_dark() {
    let (dir, page) = written(&findings());
    let browser = match Browser::find(dir.path()) {
        Ok(browser) => browser,
        Err(why) if std::env::var_os("ANEMONE_CHROMIUM").is_some() => panic!("ANEMONE_CHROMIUM: {why}"),
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for (theme, query) in [("light", "not all"), ("dark", "all")] {
        // The reader's choice, made here: browsers differ in how they are told.
        let page = page.replace("(prefers-color-scheme: dark)", query);
        let colours = variables(&page, theme == "dark");
        for size in [(1200, 5200), (520, 7600)] {
            let (figures, width) = measured(&browser, dir.path(), &page, size);
            assert!(width <= size.0, "{theme}: the page is {width} wide in a window of {}", size.0);
            let (file, picture) = (dir.path().join("shown.html"), dir.path().join("shown.png"));
            fs::write(&file, &page).unwrap();
            browser.screenshot(&file, &picture, size).unwrap();
            let picture = image::open(&picture).unwrap().to_rgb8();
            assert_eq!(picture.get_pixel(2, 2).0, colours["--paper"], "{theme}");
            assert_eq!(figures.len(), 4);
            for (at, figure) in figures.iter().enumerate() {
                for place in 0..6 {
                    let found = columns(&picture, *figure, colours[&format!("--s{place}")]);
                    let enough = f64::from(figure[2]) * 0.2; // a line that is there spans more than half
                    let is_impossible = at >= 2 && place == 3;
                    assert_eq!(
                        f64::from(found) > enough,
                        !is_impossible,
                        "{theme} {size:?} chart {at} line {place}: {found}"
                    );
                }
            }
        }
    }
}

/// Where the charts are (left, top, width, height) and how wide the page is, in a window of this size.
fn measured(browser: &Browser, folder: &Path, page: &str, size: (u32, u32)) -> (Vec<[u32; 4]>, u32) {
    let script = "<script>const r = [...document.querySelectorAll('figure svg')].map(f => f.getBoundingClientRect());\
                  const all = r.map(b => [b.x, b.y, b.width, b.height].map(Math.round).join());\
                  document.body.innerHTML = '[' + all.join(';') + '|' + W + ']';\
                  </script></body>"
        .replace("const r", "const W = document.documentElement.scrollWidth; const r");
    let file = folder.join("measured.html");
    fs::write(&file, page.replace("</body>", &script)).unwrap();
    let dump = browser.dump(&file, size).unwrap();
    let body = dump.split("<body>").nth(1).and_then(|rest| rest.split('[').nth(1)).unwrap().split(']').next().unwrap();
    let (figures, width) = body.split_once('|').unwrap();
    let numbers = |figure: &str| {
        let numbers: Vec<u32> = figure.split(',').map(|n| n.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    (figures.split(';').map(numbers).collect(), width.parse().unwrap())
}

/// How many columns of pixels of a region have this colour somewhere, or nearly: edges are blended.
fn columns(picture: &image::RgbImage, [left, top, width, height]: [u32; 4], colour: [u8; 3]) -> u32 {
    let is_near = |x, y| picture.get_pixel(x, y).0.iter().zip(colour).all(|(a, b)| a.abs_diff(b) <= 24);
    (left..left + width).filter(|x| (top..top + height).any(|y| is_near(*x, y))).count() as u32
}

/// The colours of a page by the names of their variables.
fn variables(page: &str, is_dark: bool) -> std::collections::HashMap<String, [u8; 3]> {
    let rule = page.split(":root {").nth(if is_dark { 2 } else { 1 }).unwrap().split('}').next().unwrap();
    let declared = rule.split(';').filter_map(|declaration| declaration.trim().split_once(": #"));
    let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    declared.map(|(name, hex)| (name.to_string(), [byte(hex, 0), byte(hex, 2), byte(hex, 4)])).collect()
}

/// Every tag is closed, in order.
fn balanced(markup: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in markup.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag that is not closed");
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') && !["meta", "br", "!DOCTYPE"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// The most distinct points that a line of this stroke has.
fn most_points(svg: &str, stroke: &str) -> usize {
    let lines = svg.split("<polyline").skip(1).filter(|line| attribute(line, "stroke") == Some(stroke));
    let points = lines.filter_map(|line| attribute(line, "points"));
    points.map(|points| points.split_whitespace().collect::<HashSet<_>>().len()).max().unwrap_or(0)
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let tag = tag.split('>').next()?;
    tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()
}

/// Cells of a file after RFC 4180.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut is_quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if is_quoted && rest.peek() == Some(&'"') => cell.extend(rest.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => row.push(std::mem::take(&mut cell)),
            '\r' if !is_quoted => {}
            '\n' if !is_quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            c => cell.push(c),
        }
    }
    assert!(cell.is_empty() && row.is_empty(), "the last line has no end");
    rows
}
