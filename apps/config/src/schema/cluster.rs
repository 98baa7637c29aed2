//! Schema of the cluster: which nodes, which addresses move, how they watch each other.

use super::bounds::{BACKUPS_MAX, NODES_MAX};
use super::{Kind, Section, optional, required, with_default};

/// `[cluster]`
pub(crate) static CLUSTER: Section = Section {
    header: "[cluster]",
    about: "Several nodes that share addresses; a connection survives the failure of its node. All nodes \
        use the same file. The presence of the table enables the cluster.",
    keys: &[
        required(
            "name",
            Kind::Text,
            "\"edge\"",
            "Name of the cluster, the same on all nodes. It separates clusters on one network.",
        ),
        optional(
            "node",
            Kind::Integer(1, NODES_MAX),
            "`--node` of the command line",
            "1",
            "Number of this node in `[[cluster.nodes]]`. `evergate run FILE --node N` takes precedence, \
                so that all nodes can use the same file.",
        ),
        required(
            "key_file",
            Kind::Text,
            "\"cluster.key\"",
            "File with 64 hexadecimal digits: the secret of the cluster, the same on all nodes. `evergate \
                cluster key` prints a new one.",
        ),
        required("nodes", Kind::Tables(&NODE), "", "All nodes, see `[[cluster.nodes]]`."),
        required(
            "addresses",
            Kind::Texts,
            "[\"203.0.113.10\"]",
            "Addresses that move between the nodes. Connections to listeners on them, or on all \
                addresses, survive the failure of a node. Each node adds them to its loopback interface.",
        ),
        required(
            "server_source",
            Kind::Texts,
            "[\"10.0.1.100\"]",
            "Source addresses of connections to servers, at most 16. Each has `ports_per_bucket` ports for each \
                bucket and server. They move too.",
        ),
        required(
            "inside_interface",
            Kind::Text,
            "\"eth1\"",
            "Network interface towards the servers and the other nodes. It carries heartbeats and \
                replicated state.",
        ),
        required(
            "outside_interface",
            Kind::Text,
            "\"eth0\"",
            "Network interface towards the clients. It carries heartbeats too.",
        ),
        optional(
            "virtual_mac",
            Kind::Text,
            "derived from `name`",
            "\"02:00:5e:00:00:0a\"",
            "Ethernet address of `addresses` and `server_source` on the network.",
        ),
        with_default(
            "backups",
            Kind::IntegerOr(1, BACKUPS_MAX, &["all"]),
            "1",
            "Nodes that store a replica of each connection besides its owner; `\"all\"` = every other \
                node. This many nodes may fail at once.",
        ),
        with_default(
            "mode",
            Kind::Choice(&["witness", "majority"]),
            "\"witness\"",
            "How a node verifies that it is not cut off: a `witness` answers, or more than half of all \
                nodes agree (`majority`). See below.",
        ),
        with_default(
            "witness",
            Kind::Texts,
            "[]",
            "IP addresses that answer pings, such as the gateway and servers; one answer is enough. For \
                `mode = \"witness\"`. See below.",
        ),
        with_default(
            "steering",
            Kind::Choice(&["steer", "flood"]),
            "\"steer\"",
            "How packets reach their node: one node receives and forwards them (`steer`), or the switch \
                floods the virtual address and each node accepts its own (`flood`).",
        ),
        with_default(
            "port",
            Kind::Integer(1, 65_535),
            "7400",
            "UDP port of the heartbeats, on both interfaces. Replication uses TCP on the inside: this \
                port + 1 for the first worker, + 2 for the second, and so on.",
        ),
        with_default(
            "server_ports_first",
            Kind::Integer(1024, 65_535),
            "32768",
            "First local port of connections to servers.",
        ),
        with_default(
            "ports_per_bucket",
            Kind::Integer(1, 62),
            "27",
            "Local ports of each of the 1024 buckets: so many connections at a time from one bucket to \
                one server and source address. Without a free port a request waits in the queue of its pool. \
                See below.",
        ),
        with_default(
            "pins",
            Kind::Text,
            "\"/sys/fs/bpf/evergate\"",
            "Folder on a BPF file system, where the state of the packet filter outlives the process.",
        ),
        with_default(
            "timing",
            Kind::Choice(&["auto", "bare_metal", "virtual_machine"]),
            "\"auto\"",
            "How punctually the threads of this machine run. It sets the silence after which a node is \
                suspected. See below.",
        ),
        with_default(
            "flows_max",
            Kind::Integer(1024, 16_777_216),
            "262144",
            "TCP connections of clients and to servers together, at a time. Each needs about 450 bytes of \
                kernel memory, allocated at start.",
        ),
        with_default(
            "stateless_accept",
            Kind::Bool,
            "true",
            "Whether SYNs are answered without keeping state. A connection then survives its node from \
                the first packet on, and a flood of SYNs costs no memory. Not for `protocol = \"tcp\"`, \
                where the server may send first. See below.",
        ),
        with_default(
            "weight",
            Kind::Integer(0, 1000),
            "100",
            "Share of the connections for this node, relative to the weights of the other nodes. 0 = \
                none, as after a permanent drain; and no replicas while the other nodes are enough for \
                `backups`.",
        ),
    ],
};

/// `[[cluster.nodes]]`
pub(crate) static NODE: Section = Section {
    header: "[[cluster.nodes]]",
    about: "One node of the cluster. Its addresses do not move.",
    keys: &[
        required("number", Kind::Integer(1, NODES_MAX), "1", "Number of the node."),
        required("inside", Kind::Text, "\"10.0.1.1\"", "Own inside address of the node."),
        required("outside", Kind::Text, "\"203.0.113.1\"", "Own outside address of the node."),
    ],
};
