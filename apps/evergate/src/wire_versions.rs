//! Versions of the wire formats between programs: another version is refused. The changelog lists every change.

use crate::upgrade::UPGRADE_VERSION;
use evergate_connection::UPGRADE_STATE_VERSION;
use serde::Serialize;

/// The versions that this program uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct WireVersions {
    replication_frames: u8,
    heartbeats: u8,
    connections: String,
    tickets: u8,
}

impl WireVersions {
    pub(crate) fn ours() -> WireVersions {
        WireVersions {
            replication_frames: evergate_replication::FRAME_VERSION,
            heartbeats: evergate_membership::VERSION,
            connections: format!("{UPGRADE_VERSION}.{UPGRADE_STATE_VERSION}"),
            tickets: evergate_crypto::TICKET_FORM,
        }
    }
}

impl std::fmt::Display for WireVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let WireVersions { replication_frames, heartbeats, connections, tickets } = self;
        write!(
            f,
            "replication frames {replication_frames}, heartbeats {heartbeats}, connections {connections}, tickets \
             {tickets}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The upgrade guide refers operators to the changelog.
    #[test]
    fn changelog_lists_the_versions_of_this_program() {
        let changelog = include_str!("../../../CHANGELOG.md");
        let (_, newest) = changelog.split_once("\n## ").unwrap();
        let WireVersions { replication_frames, heartbeats, connections, tickets } = WireVersions::ours();
        for form in [
            format!("\n- replication frames {replication_frames}: "),
            format!("\n- heartbeats {heartbeats}: "),
            format!("\n- connections that go to a new process {connections}: "),
            format!("\n- tickets {tickets}: "),
        ] {
            assert!(newest.contains(&form), "no {form:?}");
        }
    }

    /// Both pages show the output of `evergate version`.
    #[test]
    fn pages_show_the_versions_of_this_program() {
        let versions = WireVersions::ours().to_string();
        for page in
            [include_str!("../../../docs/reference/cli.md"), include_str!("../../../docs/guide/upgrade.md")]
        {
            assert!(page.contains(&versions), "no {versions:?}");
        }
    }
}
