//! Settings that must be equal on all nodes of a cluster. A node with other settings could not continue the connections
//! of its peers, or would hide clients from them. Replication channels compare settings by name, so a new setting needs
//! no new version of the frames.

use evergate_config::model::{Cluster, ClusterMode, Steering};
use evergate_worker::ClusterSettings;

/// This node's settings, without the cluster's name, key and port: nodes that differ in those do not connect at all.
pub(crate) fn settings(cluster: &Cluster, virtual_mac: [u8; 6]) -> ClusterSettings {
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
