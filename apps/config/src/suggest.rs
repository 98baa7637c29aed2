//! "Did you mean": the known word closest to a mistyped one.

/// The candidate that `word` was probably meant to be, if one is close enough.
///
/// Close means: few edits for the word's length, or one of the two without its unit or plural ending
/// (`handshake` for `handshake_ms`, `listener` for `listeners`).
pub(crate) fn closest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word: String =
        word.trim().chars().take(WORD_LEN_MAX).collect::<String>().to_lowercase().replace('-', "_");
    if word.is_empty() {
        return None;
    }
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let lower = candidate.to_lowercase().replace('-', "_");
            let edits = strsim::osa_distance(&word, &lower);
            let stem = (word.len() >= 4 && lower.starts_with(&word))
                || (lower.len() >= 4 && word.starts_with(&lower));
            let same_words = sorted_words(&word) == sorted_words(&lower);
            let limit = (word.chars().count().max(lower.chars().count()) / 3).max(1);
            let score = if same_words { edits.min(1) } else { edits };
            (stem || same_words || edits <= limit).then_some((score, candidate))
        })
        .min_by_key(|(score, _)| *score)
        .map(|(_, candidate)| candidate)
}

/// "did you mean `x`? " or nothing.
pub(crate) fn did_you_mean<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
    closest(word, candidates).map(|c| format!("did you mean `{c}`? ")).unwrap_or_default()
}

/// The words as a list for a message: `a`, `b`, `c`.
pub(crate) fn listed<'c>(words: impl IntoIterator<Item = &'c str>) -> String {
    let words: Vec<String> = words.into_iter().map(|w| format!("`{w}`")).collect();
    words.join(", ")
}

/// Longer words are not names; comparing them would only cost time.
const WORD_LEN_MAX: usize = 64;

fn sorted_words(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = text.split('_').collect();
    words.sort_unstable();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_missing_units_and_swapped_words_are_recognised() {
        let keys = ["handshake_ms", "address", "connections_max", "listeners", "keep_alive_ms"];
        for (typed, meant) in [
            ("adress", "address"),
            ("addres", "address"),
            ("handshake", "handshake_ms"),
            ("max_connections", "connections_max"),
            ("listener", "listeners"),
            ("Keep-Alive-ms", "keep_alive_ms"),
        ] {
            assert_eq!(closest(typed, keys), Some(meant), "{typed}");
        }
        assert_eq!(closest("colour", keys), None);
        assert_eq!(closest("", keys), None);
    }
}
