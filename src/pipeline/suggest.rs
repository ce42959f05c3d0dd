//! The known word nearest to one that is not known.
//!
//! For messages: `unknown key; did you mean …?`. Letters are compared without case, and `-` and `_` are the same.

/// The known word that somebody who typed `word` may have meant, if one is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = plain(word);
    let candidates = known.into_iter().map(|known| (distance(&typed, &plain(known)), known));
    // A third of the letters may be wrong; the first of equals wins, so that messages do not change.
    let near = candidates.filter(|&(distance, known)| distance <= typed.len().max(known.len()).div_ceil(3).min(4));
    near.min_by_key(|&(distance, _)| distance).map(|(_, known)| known)
}

/// `; did you mean …?`, or else what there is.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(word, known.clone()) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("there are {}", list(known)),
    }
}

/// `a, b and c`.
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.as_slice() {
        [] => "none".to_string(),
        [only] => (*only).to_string(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn plain(word: &str) -> Vec<char> {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Letters to insert, drop, change or swap with their neighbour to make `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    // rows[i][j]: between the first i letters of `a` and the first j of `b`.
    let mut rows: Vec<Vec<usize>> = (0..=a.len()).map(|i| vec![i; b.len() + 1]).collect();
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: [&str; 5] = ["step", "momentum", "smoothing", "batches_per_update", "optimizer"];

    #[test]
    fn a_slip_finds_its_word_and_nonsense_finds_none() {
        for (typed, meant) in [
            ("stpe", Some("step")),
            ("stp", Some("step")),
            ("momentumm", Some("momentum")),
            ("Smoothing", Some("smoothing")),
            ("batches-per-update", Some("batches_per_update")),
            ("optimiser", Some("optimizer")),
            ("learning_rate", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, KEYS), meant, "{typed}");
        }
    }

    #[test]
    fn two_letters_in_the_wrong_order_are_one_slip() {
        let letters = |word: &str| word.chars().collect::<Vec<_>>();
        for (a, b, slips) in
            [("stpe", "step", 1), ("stp", "step", 1), ("rwos", "rows", 1), ("abc", "cab", 2), ("", "ab", 2)]
        {
            assert_eq!(distance(&letters(a), &letters(b)), slips, "{a} {b}");
        }
    }

    #[test]
    fn the_hint_names_the_nearest_or_all() {
        assert_eq!(hint("stpe", ["step", "rate"]), "did you mean `step`?");
        assert_eq!(hint("quux", ["step", "rate"]), "there are step and rate");
        assert_eq!(list(["a", "b", "c"]), "a, b and c");
    }

    proptest! {
        #[test]
        fn one_slip_in_a_long_word_is_always_forgiven(at in 0usize..17, letter in "[a-z]") {
            let mut word = "batches_per_update".to_string();
            word.replace_range(at..=at, &letter);
            prop_assert_eq!(nearest(&word, KEYS), Some("batches_per_update"));
        }

        #[test]
        fn distance_is_a_distance(a in "[ab]{0,5}", b in "[ab]{0,5}") {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &b) == 0, a == b);
            prop_assert!(distance(&a, &b) >= a.len().abs_diff(b.len()) && distance(&a, &b) <= a.len().max(b.len()));
        }
    }
}
