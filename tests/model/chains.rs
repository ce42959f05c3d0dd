//! Chains and constraints on them, by enumeration: every sequence of a small chain, accepted or not.

use std::sync::Arc;

use anemone::circuit::{Categorical, Circuit, Params};
use anemone::query::chain::{Chain, Constrained};
use anemone::query::dfa::{
    Dfa, Order, before_end, contains, contains_words, matches_text, matches_tokens, over_tokens, text_length,
};
use anemone::rng::Rng;
use anemone::structure::{Tying, hmm_with, monarch_hmm};
use anemone::{Batch, ErrorKind, View};
use proptest::prelude::*;

const SYMBOLS: usize = 3;
const LENGTH: usize = 5;

fn circuits() -> Vec<Circuit> {
    let table = || Categorical::new(SYMBOLS as u32).unwrap();
    let hmm = |tying| hmm_with(LENGTH, 4, table(), tying).unwrap();
    vec![hmm(Tying::Homogeneous), hmm(Tying::Inhomogeneous), monarch_hmm(LENGTH, (2, 3), table()).unwrap()]
}

fn view(circuit: Circuit, seed: u64) -> View {
    let params = Params::random(&circuit, seed, 3.0).unwrap();
    View::of(Arc::new(circuit), params).unwrap()
}

/// All sequences.
fn worlds(length: usize, symbols: usize) -> Vec<Vec<u32>> {
    let digit = |number: usize, at: usize| (number / symbols.pow(at as u32) % symbols) as u32;
    (0..symbols.pow(length as u32)).map(|number| (0..length).map(|at| digit(number, at)).collect()).collect()
}

/// p(world) of all of them, by the circuit's own likelihoods.
fn probabilities(view: &View, worlds: &[Vec<u32>]) -> Vec<f64> {
    let rows = Batch::from_rows(&worlds.concat(), worlds[0].len()).unwrap();
    view.log_likelihoods(&rows).unwrap().into_iter().map(f64::exp).collect()
}

/// p of the worlds that `is_in` holds for.
fn mass(worlds: &[Vec<u32>], p: &[f64], is_in: impl Fn(&[u32]) -> bool) -> f64 {
    worlds.iter().zip(p).filter(|(world, _)| is_in(world)).map(|(_, p)| p).sum()
}

fn random_dfa(states: usize, symbols: usize, seed: u64) -> Dfa {
    let mut rng = Rng::new(seed);
    let next: Vec<usize> = (0..states * symbols).map(|_| rng.below(states)).collect();
    let accepting: Vec<bool> = (0..states).map(|_| rng.below(3) == 0).collect();
    Dfa::from_fn(symbols, states, 0, |s, v| next[s * symbols + v as usize], |s| accepting[s]).unwrap()
}

/// Fails on NaN.
fn near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= 2e-6 // f32 likelihoods and emissions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn constraints_and_next_symbols_are_sums_over_worlds(states in 1usize..7, seed: u64, cut in 0usize..LENGTH) {
        let worlds = worlds(LENGTH, SYMBOLS);
        for circuit in circuits() {
            let view = view(circuit, seed);
            let p = probabilities(&view, &worlds);
            let dfa = random_dfa(states, SYMBOLS, seed);
            let constrained = view.constrained(dfa.clone(), LENGTH).unwrap();
            let prefix = &worlds[(seed % worlds.len() as u64) as usize][..cut];
            let given = mass(&worlds, &p, |w| w.starts_with(prefix));
            let met = mass(&worlds, &p, |w| w.starts_with(prefix) && dfa.accepts(w));
            prop_assert!(near(constrained.log_probability(prefix).unwrap().exp(), met / given));
            let next = view.next_symbol(prefix).unwrap();
            let chances = constrained.chances(prefix).unwrap();
            prop_assert_eq!((next.len(), chances.len()), (SYMBOLS, SYMBOLS));
            let under = constrained.next(prefix);
            prop_assert_eq!(under.is_ok(), met > 0.0);
            for symbol in 0..SYMBOLS {
                let longer = [prefix, &[symbol as u32]].concat();
                let plain = mass(&worlds, &p, |w| w.starts_with(&longer));
                let both = mass(&worlds, &p, |w| w.starts_with(&longer) && dfa.accepts(w));
                prop_assert!(near(next[symbol], plain / given));
                prop_assert!(near(chances[symbol], both / plain));
                if let Ok(under) = &under {
                    prop_assert!((under[symbol] - both / met).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn smaller_automata_and_products_accept_the_same(a in 1usize..7, b in 1usize..7, seed: u64) {
        let (a, b) = (random_dfa(a, SYMBOLS, seed), random_dfa(b, SYMBOLS, seed ^ 1));
        let (both, small, not) = (a.and(&b).unwrap(), a.minimise(), a.clone().complement());
        prop_assert!(small.num_states() <= a.num_states() && small.num_classes() <= a.num_classes());
        for length in 0..=LENGTH {
            for world in worlds(length, SYMBOLS) {
                prop_assert_eq!(small.accepts(&world), a.accepts(&world));
                prop_assert_eq!(not.accepts(&world), !a.accepts(&world));
                prop_assert_eq!(both.accepts(&world), a.accepts(&world) && b.accepts(&world));
            }
        }
    }
}

#[test]
fn constrained_samples_meet_the_constraint_with_the_right_frequencies() {
    const DRAWN: usize = 20_000;
    let worlds = worlds(LENGTH, SYMBOLS);
    for circuit in circuits() {
        let view = view(circuit, 5);
        let p = probabilities(&view, &worlds);
        let dfa = contains(&[vec![2, 0], vec![1]], SYMBOLS, Order::AsListed).unwrap();
        let constrained = view.constrained(dfa.clone(), LENGTH).unwrap();
        let drawn = constrained.sample(&[1], DRAWN, 3).unwrap();
        assert_eq!(drawn, constrained.sample(&[1], DRAWN, 3).unwrap());
        assert_eq!(drawn.len(), DRAWN);
        let met = |w: &[u32]| w[0] == 1 && dfa.accepts(w);
        let total = mass(&worlds, &p, met);
        let mut chi_square = 0.0;
        for (world, p) in worlds.iter().zip(&p) {
            let found = drawn.iter().filter(|row| *row == world).count() as f64 / DRAWN as f64;
            let wanted = if met(world) { p / total } else { 0.0 };
            // Five standard deviations.
            let off = (found - wanted).abs();
            assert!(off <= 5.0 * (wanted / DRAWN as f64).sqrt(), "{world:?}: {found}, not {wanted}");
            if wanted > 0.0 {
                chi_square += (found - wanted).powi(2) / wanted * DRAWN as f64;
            }
        }
        // All of them together: the mean of the statistic is its degrees of freedom, the variance twice that.
        let freedom = worlds.iter().filter(|world| met(world)).count() as f64 - 1.0;
        assert!(freedom > 5.0 && (chi_square - freedom).abs() < 4.0 * (2.0 * freedom).sqrt(), "{chi_square} {freedom}");
    }
}

#[test]
fn words_are_found_by_their_definition() {
    let (first, second) = (vec![0, 0, 1], vec![1, 0]);
    let listed = contains(&[first.clone(), second.clone()], 2, Order::AsListed).unwrap();
    let any = contains(&[first.clone(), second.clone()], 2, Order::Any).unwrap();
    let at = |w: &[u32], word: &[u32]| w.windows(word.len()).position(|part| part == word);
    for world in worlds(8, 2) {
        let in_order = at(&world, &first).is_some_and(|from| at(&world[from + first.len()..], &second).is_some());
        assert_eq!(listed.accepts(&world), in_order, "{world:?}");
        assert_eq!(any.accepts(&world), at(&world, &first).is_some() && at(&world, &second).is_some(), "{world:?}");
    }
    let accepts = |dfa: &Dfa, text: &str| dfa.accepts(&text.bytes().map(u32::from).collect::<Vec<_>>());
    let whole = contains_words(&["the", "cat sat"], true, Order::AsListed).unwrap();
    for (text, is_in) in [
        ("the cat sat", true),
        ("On the mat, (the) cat sat.", true),
        ("then the cat sat", true),
        ("then cat sat", false),
        ("the concat sat", false),
        ("the cat sats", false),
        ("cat sat on the", false),
    ] {
        assert_eq!(accepts(&whole, text), is_in, "{text}");
    }
    assert!(accepts(&contains_words(&["cat"], false, Order::Any).unwrap(), "concatenate"));
    assert_eq!(contains_words(&[""], true, Order::Any).unwrap_err().kind(), ErrorKind::Option);
}

#[test]
fn patterns_match_whole_texts_and_tokens() {
    let accepts = |expression: &str, text: &str| {
        matches_text(expression).unwrap().accepts(&text.bytes().map(u32::from).collect::<Vec<_>>())
    };
    for (expression, yes, no) in [
        ("a*b", "aaab", "aba"),
        ("^(ab|c){2,3}$", "abcab", "ab"),
        ("[^x-z]é.", "aé字", "xéa"),
        (r"\d+\.\d?", "12.", "12"),
        (r"[\w-]+\s\$", "a-b $", "a.b $"),
        ("", "", "a"),
        (r"\u{1F642}\x41", "🙂A", "A"),
        ("[α-ω]{3}", "αζω", "αζz"),
    ] {
        assert!(accepts(expression, yes) && !accepts(expression, no), "{expression}");
    }
    // Every character is one character, and broken ones are none.
    for c in ['\u{0}', '\u{7f}', '\u{80}', '\u{7ff}', '\u{800}', '\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{10ffff}'] {
        assert!(accepts(".", &c.to_string()), "{c:?}");
        assert!(!accepts("..", &c.to_string()), "{c:?}");
    }
    assert!(!matches_text(".").unwrap().accepts(&[0xC3]));
    for bad in ["(", ")", "[a", "*", "a{2", "a{3,2}", r"\q", "(?=a)", "a^b", r"\u{D800}", "[z-a]", "a{9999}"] {
        let error = matches_text(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option, "{bad}");
    }
    assert!(matches_text("(.*a.{20})").unwrap_err().to_string().contains("states"));
    let tokens = matches_tokens("1 (2|3-4)* [^0 5]{1,2}", 7).unwrap();
    assert!(tokens.accepts(&[1, 2, 4, 6]) && tokens.accepts(&[1, 1]) && !tokens.accepts(&[1, 0]));
    assert!(matches_tokens("7", 7).is_err() && matches_tokens("(1", 7).is_err());
}

#[test]
fn tokens_are_read_as_their_bytes_and_texts_end_once() {
    let spelling: Vec<Vec<u8>> = ["ca", "t", "cat", " ", ""].iter().map(|text| text.as_bytes().to_vec()).collect();
    let bytes = contains_words(&["cat"], true, Order::Any).unwrap();
    let text = |world: &[u32]| world.iter().flat_map(|&t| spelling[t as usize].clone()).collect::<Vec<u8>>();
    for must_end in [false, true] {
        let dfa = over_tokens(&bytes, &spelling, Some(4), must_end).unwrap();
        let short = text_length(5, Some(4), 1, Some(3), must_end).unwrap();
        let ids = before_end(&contains(&[vec![1, 2]], 5, Order::Any).unwrap(), 4, must_end).unwrap();
        for world in worlds(5, 5) {
            let length = world.iter().position(|&t| t == 4).unwrap_or(5);
            let is_text = length < 5 || !must_end;
            let has = bytes.accepts(&text(&world[..length]).iter().map(|&b| u32::from(b)).collect::<Vec<_>>());
            assert_eq!(dfa.accepts(&world), is_text && has, "{world:?}");
            assert_eq!(short.accepts(&world), is_text && (1..=3).contains(&length), "{world:?}");
            let has = world[..length].windows(2).any(|pair| pair == [1, 2]);
            assert_eq!(ids.accepts(&world), is_text && has, "{world:?}");
        }
    }
}

/// A text that ends is as probable as it is in a row of which the rest is missing, whatever may follow.
#[test]
fn what_follows_the_end_of_a_text_is_summed_out() {
    const END: u32 = 2;
    for (circuit, seed) in circuits().into_iter().zip(1..) {
        let view = view(circuit, seed);
        let worlds = worlds(LENGTH, SYMBOLS);
        let p = probabilities(&view, &worlds);
        let text_of = |world: &[u32]| world.iter().position(|&t| t == END).map(|end| world[..end].to_vec());
        for must_end in [false, true] {
            // Texts of one or two tokens that have a 1 in them.
            let words = before_end(&contains(&[vec![1]], SYMBOLS, Order::Any).unwrap(), END, must_end).unwrap();
            let short = text_length(SYMBOLS, Some(END), 1, Some(2), must_end).unwrap();
            let constrained = view.constrained(words.and(&short).unwrap(), LENGTH).unwrap();
            let is_met = |world: &[u32]| text_of(world).is_some_and(|text| text.contains(&1) && text.len() <= 2);
            let want = mass(&worlds, &p, is_met);
            let got = constrained.log_probability(&[]).unwrap().exp();
            assert!((got - want).abs() < 1e-5 * want, "{got} is not {want}");
            // The same from rows in which what follows the end is missing.
            let rows: Vec<[u32; LENGTH]> = [&[1][..], &[1, 0], &[0, 1], &[1, 1]]
                .iter()
                .map(|text| {
                    let mut row = [0; LENGTH];
                    row[..text.len()].copy_from_slice(text);
                    row[text.len()] = END;
                    row
                })
                .collect();
            let batch = Batch::from_rows(&rows.concat(), LENGTH).unwrap();
            let batch = batch.with_missing(|row, var| rows[row][..var].contains(&END));
            let texts: f64 = view.log_likelihoods(&batch).unwrap().into_iter().map(f64::exp).sum();
            assert!((got - texts).abs() < 1e-5 * texts, "{got} is not {texts}");
            // Samples are texts as often as the texts are probable.
            let drawn = constrained.sample(&[], 4000, 3).unwrap();
            assert!(drawn.iter().all(|row| row.len() == LENGTH && is_met(row)));
            let share = |text: &[u32]| {
                drawn.iter().filter(|row| text_of(row).as_deref() == Some(text)).count() as f64 / drawn.len() as f64
            };
            let wanted = |text: &[u32]| mass(&worlds, &p, |world| text_of(world).as_deref() == Some(text)) / want;
            for text in [&[1][..], &[1, 0], &[0, 1], &[1, 1]] {
                // Six standard deviations of a share of 4000.
                let (got, want) = (share(text), wanted(text));
                assert!((got - want).abs() < 6.0 * (want * (1.0 - want) / 4000.0).sqrt() + 1e-9, "{got}, {want}");
            }
        }
    }
}

#[test]
fn what_is_no_chain_or_cannot_be_is_one_error() {
    let tree = hmm_with(1, 2, Categorical::new(3).unwrap(), Tying::Homogeneous).unwrap();
    let one = view(tree, 1);
    assert!(one.constrained(Dfa::anything(3).unwrap(), 2).is_err(), "nothing follows a single variable");
    let chain = view(circuits().remove(1), 1);
    assert_eq!(chain.constrained(Dfa::anything(3).unwrap(), LENGTH + 1).err().unwrap().kind(), ErrorKind::Option);
    let chain = view(circuits().remove(0), 1);
    let long = chain.constrained(Dfa::anything(3).unwrap(), 4 * LENGTH).unwrap();
    assert!(long.log_probability(&[]).unwrap().abs() < 1e-5, "a homogeneous chain goes on");
    assert!(chain.constrained(Dfa::anything(2).unwrap(), 2).is_err());
    assert!(chain.next_symbol(&[3]).unwrap_err().to_string().contains("outside 0..3"));
    let word = contains(&[vec![0; 4]], 3, Order::Any).unwrap();
    let unmet = Constrained::new(Chain::of(chain.circuit(), chain.params()).unwrap(), word, 3).unwrap();
    assert_eq!(unmet.log_probability(&[]).unwrap(), f64::NEG_INFINITY);
    assert!(unmet.sample(&[], 1, 1).is_err() && unmet.next(&[]).is_err());
}

#[test]
fn the_grouped_way_is_the_dense_way() {
    const MANY: usize = 300;
    const HIDDEN: usize = 6;
    const STATES: usize = 50;
    let mut rng = Rng::new(8);
    let next: Vec<usize> = (0..STATES * MANY).map(|_| rng.below(STATES)).collect();
    let accepting: Vec<bool> = (0..STATES).map(|_| rng.below(4) == 0).collect();
    let to = |state: usize, symbol: usize| next[state * MANY + symbol];
    let dfa = Dfa::from_fn(MANY, STATES, 0, |s, v| to(s, v as usize), |s| accepting[s]).unwrap();
    let table = Categorical::new(MANY as u32).unwrap();
    let view = view(hmm_with(LENGTH, HIDDEN, table, Tying::Homogeneous).unwrap(), 3);
    let chain = view.chain().unwrap();
    let emitted = |z: usize, v: usize| f64::from(chain.emissions(0)[v * HIDDEN + z]);
    let transitions: Vec<Vec<f64>> = (0..HIDDEN).map(|z| chain.transition_row(0, z)).collect();
    // Every state of the automaton with every symbol: N(s, z) at a position, from the last to the first.
    let mut after: Vec<Vec<f64>> = accepting.iter().map(|&yes| vec![f64::from(u8::from(yes)); HIDDEN]).collect();
    let mut dense = vec![after.clone()];
    for _ in 0..LENGTH {
        let here = |s: usize, z: usize| (0..MANY).map(|v| emitted(z, v) * after[to(s, v)][z]).sum::<f64>();
        let here: Vec<Vec<f64>> = (0..STATES).map(|s| (0..HIDDEN).map(|z| here(s, z)).collect()).collect();
        let pulled = |w: &[f64]| (0..HIDDEN).map(|z| (0..HIDDEN).map(|y| transitions[z][y] * w[y]).sum()).collect();
        dense.push(here.clone());
        after = here.iter().map(|w| pulled(w)).collect();
        dense.push(after.clone());
    }
    let constrained = view.constrained(dfa, LENGTH).unwrap();
    let total: f64 = chain.initial().iter().zip(&dense[2 * LENGTH - 1][0]).map(|(p, w)| p * w).sum();
    assert!((constrained.log_probability(&[]).unwrap() - total.ln()).abs() < 1e-9);
    // After the first position: N of the second.
    let after = &dense[2 * LENGTH - 2];
    let joint: Vec<f64> =
        (0..MANY).map(|v| (0..HIDDEN).map(|z| chain.initial()[z] * emitted(z, v) * after[to(0, v)][z]).sum()).collect();
    let (found, chances) = (constrained.next(&[]).unwrap(), constrained.log_chances(&[]).unwrap());
    assert_eq!((found.len(), chances.len()), (MANY, MANY));
    for v in 0..MANY {
        assert!((found[v] - joint[v] / total).abs() < 1e-5 * found[v], "{v}: {} {}", found[v], joint[v] / total);
        let alone: f64 = (0..HIDDEN).map(|z| chain.initial()[z] * emitted(z, v)).sum();
        assert!((chances[v] - (joint[v] / alone).ln()).abs() < 1e-5, "{v}");
    }
}

/// A hidden Markov model of two states over three symbols.
fn two_states(emissions: [[f32; 3]; 2], transitions: [[f32; 2]; 2], initial: [f32; 2]) -> View {
    let circuit = hmm_with(30, 2, Categorical::new(3).unwrap(), Tying::Homogeneous).unwrap();
    let params = Params::from_rows(&circuit, |param, unit| match param.index() {
        0 => emissions[unit].to_vec(),
        1 => transitions[unit].to_vec(),
        _ => initial.to_vec(),
    });
    View::of(Arc::new(circuit), params.unwrap()).unwrap()
}

#[test]
fn no_constraint_is_too_improbable() {
    let ln = |p: f32| f64::from(p).ln();
    let near = |found: f64, wanted: f64| (found - wanted).abs() < 1e-6 * wanted.abs();
    // Thirty symbols of 1e-30 each.
    let rare = two_states([[0.5, 0.5, 1e-30], [0.25, 0.75, 1e-30]], [[0.5, 0.5], [0.25, 0.75]], [0.5, 0.5]);
    let all = rare.constrained(matches_tokens("2{30}", 3).unwrap(), 30).unwrap();
    assert!(near(all.log_probability(&[]).unwrap(), 30.0 * ln(1e-30)));
    assert_eq!(all.sample(&[], 2, 1).unwrap(), vec![vec![2; 30]; 2]);
    assert_eq!(all.next(&[2, 2]).unwrap(), [0.0, 0.0, 1.0]);
    assert_eq!(all.chances(&[]).unwrap(), [0.0; 3]);
    let logs = all.log_chances(&[]).unwrap();
    assert!(logs[0] == f64::NEG_INFINITY && near(logs[2], 29.0 * ln(1e-30)), "{logs:?}");

    // Each state for itself. The constraint is easy from the second, where the chain is not.
    let apart = [[1.0, 0.0], [0.0, 1.0]];
    let start = two_states([[1.0, 1e-20, 0.0], [0.0, 1.0, 0.0]], apart, [1.0, 0.0]);
    let ones = start.constrained(matches_tokens("1{30}", 3).unwrap(), 30).unwrap();
    assert!(near(ones.log_probability(&[]).unwrap(), 30.0 * ln(1e-20)));
    assert_eq!(ones.sample(&[], 1, 1).unwrap(), [vec![1; 30]]);

    // A prefix after which the state that the constraint needs is less likely than f64 can tell.
    let prefix = two_states([[1.0, 0.0, 0.0], [1e-20, 1.0, 0.0]], apart, [0.5, 0.5]);
    let zeros = [0; 25];
    let then = prefix.constrained(matches_tokens(".* 1", 3).unwrap(), 30).unwrap();
    assert!(near(then.log_probability(&zeros).unwrap(), 25.0 * ln(1e-20)), "{:?}", then.log_probability(&zeros));
    assert_eq!(then.sample(&zeros, 1, 1).unwrap()[0][29], 1);
    let chain = prefix.chain().unwrap();
    let both = [&zeros[..], &[1]].concat();
    assert!(near(chain.log_likelihood(&both).unwrap(), 25.0 * ln(1e-20) + 0.5f64.ln()));
    // What is impossible stays so.
    assert_eq!(then.log_probability(&[1; 3]).unwrap(), 0.0);
    let never = prefix.constrained(matches_tokens(".* 2", 3).unwrap(), 30).unwrap();
    assert_eq!(never.log_probability(&[]).unwrap(), f64::NEG_INFINITY);
    assert!(never.sample(&[], 1, 1).is_err() && never.next(&[]).is_err());
    assert!(prefix.next_symbol(&[2]).unwrap_err().to_string().contains("probability zero"));
}

/// Regular expressions, of what ours have in common with those of the crate `regex`.
fn expressions() -> impl Strategy<Value = String> {
    let leaf =
        prop::sample::select(vec!["a", "b", "é", ".", "[ab]", "[^a]", "[a-é]", r"\x61", r"\n", r"\u{e9}", "[^é\\n]"]);
    leaf.prop_map(str::to_string).prop_recursive(4, 16, 3, |inner| {
        let repeats = prop::sample::select(vec!["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}"]);
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| a + &b),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}|{b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}|{b}")),
            (inner, repeats).prop_map(|(a, times)| format!("({a}){times}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn expressions_match_what_they_match_elsewhere(expression in expressions()) {
        let ours = matches_text(&expression).unwrap();
        let theirs = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for length in 0..=4 {
            for world in worlds(length, 4) {
                let text: String = world.iter().map(|&at| ['a', 'b', 'é', '\n'][at as usize]).collect();
                let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
                prop_assert_eq!(ours.accepts(&bytes), theirs.is_match(&text), "{:?} of {:?}", text, expression);
            }
        }
    }
}
