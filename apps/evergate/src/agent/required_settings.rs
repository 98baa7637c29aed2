//! Settings that all nodes of a cluster must have alike: who has others could not go on with the connections of the rest, or
//! would hide clients from them. Mirror channels compare them by name, so that further ones need no other form of frames.

use evergate_config::model::{Cluster, ClusterMode, Steering};
use std::collections::BTreeMap;

/// Their names in `[cluster]`, and their values as they are written there.
pub(crate) type Settings = BTreeMap<String, String>;

/// This node's. Not the cluster's name, key and port: nodes that differ in those do not meet at all.
pub(crate) fn settings(cluster: &Cluster, virtual_mac: [u8; 6]) -> Settings {
    let steering = match cluster.steering {
        Steering::Steer => "steer",
        Steering::Flood => "flood",
    };
    let mode = match cluster.mode {
        ClusterMode::Witness => "witness",
        ClusterMode::Majority => "majority",
    };
    let all = [
        ("steering", steering.to_owned()),
        ("mode", mode.to_owned()),
        ("virtual_mac", virtual_mac.map(|byte| format!("{byte:02x}")).join(":")),
        ("server_ports_first", cluster.server_ports_first.to_string()),
        ("ports_per_bucket", cluster.ports_per_bucket.to_string()),
    ];
    all.map(|(key, value)| (key.to_owned(), value)).into()
}

/// What differs in another node's, in words; `None` where all is alike. What only one of them names, the other version knows
/// nothing of.
pub(crate) fn difference(theirs: &Settings, ours: &Settings) -> Option<String> {
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

    fn settings(of: &[(&str, &str)]) -> Settings {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_differs_is_named_and_what_one_does_not_know_is_no_difference() {
        let ours = settings(&[("mode", "witness"), ("steering", "steer")]);
        assert_eq!(difference(&ours, &ours), None);
        assert_eq!(difference(&settings(&[("mode", "witness"), ("later", "x")]), &ours), None);
        assert_eq!(
            difference(&settings(&[("mode", "majority"), ("steering", "fl\n\"")]), &ours).unwrap(),
            r#"`mode` is "majority" there and "witness" here, `steering` is "fl\n\"" there and "steer" here"#
        );
    }
}
