//! Settings that a reload cannot change.

use crate::model::{Cluster, Config};

/// Keys of `[cluster]` about which the nodes that run must agree at any time.
const AGREED: [&str; 8] =
    ["name", "key_file", "steering", "mode", "virtual_mac", "port", "server_ports_first", "ports_per_bucket"];

impl Config {
    /// Why a running process cannot change from this configuration to `new`, and what to do; `None` when it can.
    pub fn refuses(&self, new: &Config) -> Option<String> {
        if new.node != self.node {
            let keys = "workers, user, group, pid_file";
            return Some(format!("[node] cannot change while running ({keys}): restart to change it"));
        }
        if new.audit != self.audit {
            return Some("[audit] cannot change while running: restart to change it".to_owned());
        }
        match (&self.cluster, &new.cluster) {
            (None, None) => None,
            (None, Some(_)) => Some("[cluster] cannot come while running: restart to join one".to_owned()),
            (Some(_), None) => {
                Some("[cluster] cannot go while running: drain this node, and restart to leave".to_owned())
            }
            (Some(old), Some(new)) => refuse_changed(&old.differing_keys(new)),
        }
    }
}

fn refuse_changed(keys: &[&'static str]) -> Option<String> {
    let agreed = keys.iter().any(|key| AGREED.contains(key));
    let how = match agreed {
        true => "stop all nodes to change that, because they must agree about it",
        false => "restart the nodes one after the other to change that",
    };
    let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    (!keys.is_empty()).then(|| {
        format!("[cluster] cannot change while running, and it differs in {}: {how}", keys.join(", "))
    })
}

impl Cluster {
    /// The keys whose values differ in another `[cluster]`, as they are written.
    pub fn differing_keys(&self, other: &Cluster) -> Vec<&'static str> {
        macro_rules! compared {
            ($($key:ident),*) => {{
                let Cluster { $($key: _),* } = self; // none is forgotten
                [$((stringify!($key), self.$key == other.$key)),*]
            }};
        }
        let all = compared!(
            name,
            node,
            key_file,
            nodes,
            addresses,
            server_source,
            inside_interface,
            outside_interface,
            virtual_mac,
            backups,
            mode,
            witness,
            steering,
            port,
            server_ports_first,
            ports_per_bucket,
            pins,
            timing,
            flows_max,
            stateless_accept,
            weight
        );
        all.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }
}
