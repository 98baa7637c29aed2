//! "Did you mean": the known name nearest to a misspelt one.

/// The candidate within edit distance 2 (1 for short names), nearest first.
pub(super) fn nearest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let within = if name.len() <= 3 { 1 } else { 2 };
    let name = &name[..name.floor_char_boundary(64)];
    let ranked = candidates.iter().map(|candidate| (strsim::osa_distance(name, candidate), *candidate));
    ranked.filter(|(distance, _)| *distance <= within).min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_find_their_neighbour() {
        let names = ["starts_with", "ends_with", "host", "path"];
        assert_eq!(nearest("startsWth", &names), None);
        assert_eq!(nearest("starts_wth", &names), Some("starts_with"));
        assert_eq!(nearest("hots", &names), Some("host"));
        assert_eq!(nearest("banana", &names), None);
    }
}
