//! Settings that must be equal on all nodes of a cluster. A node with other settings could not continue the connections
//! of its peers, or would hide clients from them. Replication channels compare settings by name, so a new setting needs
//! no new version of the frames.

use std::collections::BTreeMap;

/// Names in `[cluster]`, and values as they are written there.
pub type ClusterSettings = BTreeMap<String, String>;

/// The differences to another node's settings as text; `None` without any. A setting that only one side has does not
/// count: the other side's version does not have it.
pub fn difference(theirs: &ClusterSettings, ours: &ClusterSettings) -> Option<String> {
    let differs = |(key, there): (&String, &String)| {
        let here = ours.get(key).filter(|here| *here != there)?;
        Some(format!("`{}` is {there:?} there and {here:?} here", key.escape_debug()))
    };
    let all: Vec<String> = theirs.iter().filter_map(differs).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(of: &[(&str, &str)]) -> ClusterSettings {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn difference_names_settings_that_both_sides_have() {
        let ours = settings(&[("mode", "witness"), ("steering", "steer")]);
        assert_eq!(difference(&ours, &ours), None);
        assert_eq!(difference(&settings(&[("mode", "witness"), ("later", "x")]), &ours), None);
        assert_eq!(
            difference(&settings(&[("mode", "majority"), ("steering", "fl\n\"")]), &ours).unwrap(),
            r#"`mode` is "majority" there and "witness" here, `steering` is "fl\n\"" there and "steer" here"#
        );
    }
}
