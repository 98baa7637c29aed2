//! "Did you mean": the known name nearest to a misspelt one.

/// The candidate within edit distance 2 (1 for short names), nearest first.
pub(super) fn nearest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let within = if name.len() <= 3 { 1 } else { 2 };
    let name = &name[..name.floor_char_boundary(64)];
    let ranked = candidates.iter().map(|candidate| (distance(name, candidate), *candidate));
    ranked.filter(|(distance, _)| *distance <= within).min().map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap neighbours) from one name to another.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
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
