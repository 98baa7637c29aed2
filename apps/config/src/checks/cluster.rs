//! Checks of `[cluster]`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU16};

use super::context::{Checks, Content};
use super::node;
use crate::model::{Cluster, ClusterMode, ClusterNode, Config, NodeNumber};
use crate::problem::{Problem, REFUSED, Report};
use crate::raw::{RawCluster, RawClusterNode, RawConfig, RawCount};
use crate::span::KeyPath;

/// Buckets that client connections fall into; each has its block of ports.
pub(super) const BUCKETS: u32 = evergate_membership::BUCKETS as u32;
/// Most addresses that server legs start from.
const SOURCES_MAX: usize = 16;
/// Longest name of a network interface.
const INTERFACE_BYTES_MAX: usize = 15;

pub(crate) fn cluster(raw: &RawConfig, checks: &mut Checks<'_>) -> Option<Cluster> {
    let section = raw.cluster.as_ref()?;
    let at = KeyPath::root().key("cluster");
    let workers = process(raw, &at, checks);
    let name = name(section.name.as_deref(), &at, checks);
    let key_file = required(section.key_file.as_deref(), &at.key("key_file"), "cluster.key", checks)
        .and_then(|text| checks.file(text, &at.key("key_file"), Content::ClusterKey));
    let mut owners = BTreeMap::new();
    let nodes = nodes(&section.nodes, &at.key("nodes"), &mut owners, checks);
    let addresses = addresses(section.addresses.as_deref(), &at.key("addresses"), &mut owners, checks);
    let sources =
        sources(section.server_source.as_deref(), &at.key("server_source"), &addresses, &mut owners, checks);
    let witness = witness(section, &at, &owners, checks);
    if section.mode == ClusterMode::Majority {
        majority(nodes.len(), &at.key("mode"), checks);
    }
    let interfaces = ["inside", "outside"].map(|side| interface(section, side, &at, checks));
    if let [Some(inside), Some(outside)] = &interfaces
        && inside == outside
    {
        checks.report.warning(
            &at.key("inside_interface"),
            "inside and outside are the same interface",
            "one broken cable silences a node on both ways, and heartbeats share it with clients",
            "use two interfaces on two switches",
        );
    }
    let virtual_mac =
        section.virtual_mac.as_deref().and_then(|text| mac(text, &at.key("virtual_mac"), checks));
    ports(section, workers, &at, checks);
    let node = own_number(section.node, &nodes, &at.key("node"), checks);
    let backups = backups(&section.backups, nodes.len(), &at.key("backups"), checks);
    let [inside_interface, outside_interface] = interfaces;
    Some(Cluster {
        name: name?,
        node,
        key_file: key_file?,
        nodes,
        addresses,
        server_source: sources,
        inside_interface: inside_interface?,
        outside_interface: outside_interface?,
        virtual_mac,
        backups,
        mode: section.mode,
        witness,
        steering: section.steering,
        port: NonZeroU16::new(section.port)?,
        server_ports_first: section.server_ports_first,
        ports_per_bucket: section.ports_per_bucket,
        pins: checks.path(&section.pins),
        timing: section.timing,
        flows_max: section.flows_max,
        stateless_accept: section.stateless_accept,
        weight: section.weight,
    })
}

/// Checks the cluster's requirements on `[node]`; returns the number of workers.
fn process(raw: &RawConfig, at: &KeyPath, checks: &mut Checks<'_>) -> Option<usize> {
    let node = KeyPath::root().key("node");
    if raw.node.workers.is_none() && !checks.report.is_excused(&node.key("workers")) {
        checks.report.error_because(
            at,
            "`node.workers` is not given",
            format!("nodes find each other's workers by number, and machines differ in cores; {REFUSED}"),
            "add `workers = 4` under `[node]`, the same number on all nodes",
        );
    }
    if raw.node.user.is_some() {
        node::user_loses_rights(
            "a node of a cluster cannot become another user",
            "it needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF for every failover",
            checks,
        );
    }
    raw.node.workers
}

fn required<'t>(
    text: Option<&'t str>,
    at: &KeyPath,
    example: &str,
    checks: &mut Checks<'_>,
) -> Option<&'t str> {
    if text.is_none() {
        checks.report.missing(at, REFUSED, &format!("add it, such as `{} = \"{example}\"`", at.last()));
    }
    text
}

fn name(text: Option<&str>, at: &KeyPath, checks: &mut Checks<'_>) -> Option<String> {
    checks.name(text, at, &mut BTreeMap::new(), "edge")
}

/// A usable address of one machine.
fn address(text: &str, at: &KeyPath, example: &str, report: &mut Report<'_>) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Err(_) => {
            let remedy =
                format!("write an address without port, network and host name, such as \"{example}\"");
            report.error(at, format!("{text:?} is not an IP address"), remedy);
            None
        }
        Ok(ip) if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() => {
            let what = format!("{ip} cannot be reached from another machine");
            report.error(at, what, format!("write an address of the network, such as \"{example}\""));
            None
        }
        Ok(IpAddr::V6(ip)) if ip.is_unicast_link_local() => {
            let what = format!("{ip} means something else on every interface");
            report.error(at, what, "write an address with a network of its own, such as \"fd00:1::1\"");
            None
        }
        Ok(ip) => Some(ip),
    }
}

/// Records the owner of an address; a second owner is an error.
fn claim(ip: IpAddr, at: &KeyPath, owners: &mut BTreeMap<IpAddr, KeyPath>, report: &mut Report<'_>) -> bool {
    if let Some(first) = owners.get(&ip) {
        let what = format!("{ip} is used already, at `{}`", first.as_str());
        report.error_because(
            at,
            what,
            format!("an address belongs to one node, or moves; {REFUSED}"),
            "give each its own address",
        );
        return false;
    }
    owners.insert(ip, at.clone());
    true
}

fn nodes(
    raw: &[RawClusterNode],
    at: &KeyPath,
    owners: &mut BTreeMap<IpAddr, KeyPath>,
    checks: &mut Checks<'_>,
) -> Vec<ClusterNode> {
    let mut nodes: Vec<ClusterNode> = Vec::new();
    let mut numbers: BTreeMap<u8, KeyPath> = BTreeMap::new();
    if raw.is_empty() && !checks.report.is_excused(at) {
        checks.report.missing(at, REFUSED, "add a table `[[cluster.nodes]]` for each node");
    }
    for (index, node) in raw.iter().enumerate() {
        let at = at.index(index);
        let mut side = |text: Option<&str>, key: &str, example: &str| {
            let at = at.key(key);
            let text = required(text, &at, example, checks)?;
            let ip = address(text, &at, example, &mut checks.report)?;
            claim(ip, &at, owners, &mut checks.report).then_some(ip)
        };
        let inside = side(node.inside.as_deref(), "inside", "10.0.1.1");
        let outside = side(node.outside.as_deref(), "outside", "203.0.113.1");
        let Some(number) = node.number.and_then(NodeNumber::new) else { continue };
        if checks.report.is_excused(&at.key("number")) {
            continue; // one was put in its place, so that the rest could be read
        }
        if let Some(first) = numbers.get(&number.get()) {
            let what = format!("the number {} is taken by `{}`", number.get(), first.as_str());
            let remedy = "give each node its own number";
            checks.report.error_because(
                &at.key("number"),
                what,
                format!("the other nodes could not distinguish the two; {REFUSED}"),
                remedy,
            );
            continue;
        }
        numbers.insert(number.get(), at.clone());
        if let (Some(inside), Some(outside)) = (inside, outside) {
            nodes.push(ClusterNode { number, inside, outside });
        }
    }
    nodes.sort_by_key(|node| node.number);
    if raw.len() == 1 {
        checks.report.warning(
            at,
            "the cluster has one node",
            "its connections end when it dies",
            "add a second node as `[[cluster.nodes]]`",
        );
    }
    nodes
}

fn list<'t>(
    texts: Option<&'t [String]>,
    at: &KeyPath,
    example: &str,
    checks: &mut Checks<'_>,
) -> &'t [String] {
    match texts {
        None => {
            let remedy = format!("add it, such as `{} = [\"{example}\"]`", at.last());
            checks.report.missing(at, REFUSED, &remedy);
            &[]
        }
        Some([]) => {
            checks.report.error(
                at,
                "the list is empty",
                format!("name at least one address, such as \"{example}\""),
            );
            &[]
        }
        Some(texts) => texts,
    }
}

fn addresses(
    texts: Option<&[String]>,
    at: &KeyPath,
    owners: &mut BTreeMap<IpAddr, KeyPath>,
    checks: &mut Checks<'_>,
) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for (index, text) in list(texts, at, "203.0.113.10", checks).iter().enumerate() {
        let at = at.index(index);
        if let Some(ip) = address(text, &at, "203.0.113.10", &mut checks.report)
            && claim(ip, &at, owners, &mut checks.report)
        {
            found.push(ip);
        }
    }
    found
}

/// Source addresses. They may be in `addresses`.
fn sources(
    texts: Option<&[String]>,
    at: &KeyPath,
    addresses: &[IpAddr],
    owners: &mut BTreeMap<IpAddr, KeyPath>,
    checks: &mut Checks<'_>,
) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for (index, text) in list(texts, at, "10.0.1.100", checks).iter().enumerate() {
        let at = at.index(index);
        let Some(ip) = address(text, &at, "10.0.1.100", &mut checks.report) else { continue };
        if found.len() == SOURCES_MAX {
            let what = format!("there are more than {SOURCES_MAX} addresses");
            checks.report.error(&at, what, "remove some: a busy bucket tries the ports of all of them");
            break;
        } else if found.contains(&ip) {
            checks.report.error(&at, format!("{ip} is listed twice"), "remove one of the two");
        } else if addresses.contains(&ip) || claim(ip, &at, owners, &mut checks.report) {
            found.push(ip);
        }
    }
    found
}

fn witness(
    section: &RawCluster,
    at: &KeyPath,
    owners: &BTreeMap<IpAddr, KeyPath>,
    checks: &mut Checks<'_>,
) -> Vec<IpAddr> {
    let at = at.key("witness");
    let mut found = Vec::new();
    for (index, text) in section.witness.iter().enumerate() {
        let at = at.index(index);
        let Some(ip) = address(text, &at, "10.0.1.254", &mut checks.report) else { continue };
        if let Some(owner) = owners.get(&ip) {
            checks.report.error_because(
                &at,
                format!("{ip} is an address of the cluster itself, at `{}`", owner.as_str()),
                format!("a node that is cut off would take its own answer for the network's; {REFUSED}"),
                "name the gateway, or servers",
            );
            continue;
        }
        found.push(ip);
    }
    if section.mode == ClusterMode::Witness && section.witness.is_empty() && !checks.report.is_excused(&at) {
        checks.report.error_because(
            &at,
            "there is no witness",
            format!(
                "when one node dies, no other node could rule out that it is cut off itself, and all would stop; \
                 {REFUSED}"
            ),
            "name addresses that answer pings, such as `witness = [\"10.0.1.254\"]`, or set `mode = \"majority\"`",
        );
    }
    if section.mode == ClusterMode::Majority && !found.is_empty() {
        checks.report.warning(
            &at,
            "`witness` is given with `mode = \"majority\"`",
            "the witness is not probed",
            "remove one of the two",
        );
    }
    found
}

/// An even number of nodes tolerates no more failures than one node less.
fn majority(nodes: usize, at: &KeyPath, checks: &mut Checks<'_>) {
    match nodes {
        2 => checks.report.warning(
            at,
            "neither of two nodes is a majority",
            "when one of them dies, or is cut off, the other one stops serving",
            "add a third node, or let a witness decide: `mode = \"witness\"`",
        ),
        4.. if nodes.is_multiple_of(2) => checks.report.warning(
            at,
            format!("{nodes} nodes need a majority of {}", nodes / 2 + 1),
            format!("no more of them may be missing than of {}", nodes - 1),
            "use an odd number of nodes",
        ),
        _ => {}
    }
}

fn interface(section: &RawCluster, side: &str, at: &KeyPath, checks: &mut Checks<'_>) -> Option<String> {
    let at = at.key(&format!("{side}_interface"));
    let (text, example) = match side {
        "inside" => (&section.inside_interface, "eth1"),
        _ => (&section.outside_interface, "eth0"),
    };
    let text = required(text.as_deref(), &at, example, checks)?;
    let valid = (1..=INTERFACE_BYTES_MAX).contains(&text.len())
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if !valid {
        let what = format!("{text:?} cannot be the name of an interface");
        checks.report.error(&at, what, "write a name that `ip link` shows, such as \"eth0\"");
        return None;
    }
    Some(text.to_owned())
}

fn mac(text: &str, at: &KeyPath, checks: &mut Checks<'_>) -> Option<[u8; 6]> {
    let is_hex = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = |part: &str| is_hex(part).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    let bytes: Vec<u8> = text.split(':').map_while(digits).collect();
    let parsed: Option<[u8; 6]> = bytes.try_into().ok().filter(|_| text.len() == 17);
    let example = "write six pairs of hexadecimal digits, such as \"02:00:5e:00:00:0a\"";
    match parsed {
        None => checks.report.error(at, format!("{text:?} is not an Ethernet address"), example),
        Some(mac) if mac[0] & 1 != 0 || mac == [0; 6] => checks.report.error_because(
            at,
            format!("{text:?} is not the address of one station"),
            format!("switches drop or flood it in their own ways; {REFUSED}"),
            "let the first byte be even, such as 02",
        ),
        Some(mac) if mac[0] & 2 == 0 => {
            checks.report.warning(
                at,
                format!("{text:?} is an address that a manufacturer has given to a card"),
                "two stations with one address break the network",
                "set the second bit of the first byte: 02, 06, 0a or 0e",
            );
            return Some(mac);
        }
        Some(mac) => return Some(mac),
    }
    None
}

fn ports(section: &RawCluster, workers: Option<usize>, at: &KeyPath, checks: &mut Checks<'_>) {
    let last = u32::from(section.server_ports_first) + u32::from(section.ports_per_bucket) * BUCKETS - 1;
    if last > 65_535 {
        checks.report.error(
            &at.key("ports_per_bucket"),
            format!(
                "{BUCKETS} blocks of {} ports from {} on end at {last}",
                section.ports_per_bucket, section.server_ports_first
            ),
            format!(
                "choose at most {}, or a lower `server_ports_first`",
                (65_536 - u32::from(section.server_ports_first)) / BUCKETS
            ),
        );
    }
    if let Some(workers) = workers
        && usize::from(section.port) + workers > 65_535
    {
        checks.report.error(
            &at.key("port"),
            format!("{workers} workers use the {workers} ports after {}, beyond 65535", section.port),
            "choose a lower port",
        );
    }
}

fn own_number(
    number: Option<u8>,
    nodes: &[ClusterNode],
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<NodeNumber> {
    let number = number.and_then(NodeNumber::new)?;
    if !nodes.iter().any(|node| node.number == number) && !checks.report.has_errors() {
        let what = format!("there is no node {} in `[[cluster.nodes]]`", number.get());
        checks.report.error(at, what, "use the number of one of the nodes, or add it there");
    }
    Some(number)
}

fn backups(raw: &RawCount, nodes: usize, at: &KeyPath, checks: &mut Checks<'_>) -> Option<NonZeroU8> {
    let RawCount::Number(number) = raw else { return None };
    if nodes > 1 && usize::from(*number) >= nodes {
        checks.report.warning(
            at,
            format!("{number} backups are not possible with {nodes} nodes"),
            format!("every other node holds one: {}", nodes - 1),
            "write `backups = \"all\"`, or add nodes",
        );
    }
    NonZeroU8::new(*number)
}

/// The secret in a key file: 64 hexadecimal digits, white space around them.
pub fn cluster_key(file: &[u8]) -> Option<[u8; 32]> {
    let text = std::str::from_utf8(file).ok()?.trim();
    let mut key = [0; 32];
    if text.len() != 2 * key.len() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |at: usize| pair.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(key)
}

/// Settles which node this process is: `chosen` on the command line goes before the file.
pub fn choose_node(config: &mut Config, chosen: Option<u8>, file: &str) -> Result<(), Box<Problem>> {
    let refused = |what: String, remedy: &str| Err(Box::new(Problem::of_file(file, what, remedy)));
    let Some(cluster) = &mut config.cluster else {
        return match chosen {
            None => Ok(()),
            Some(_) => refused(
                "`--node` is given, but there is no `[cluster]`".to_owned(),
                "remove the option, or add the table",
            ),
        };
    };
    let number = match chosen {
        Some(number) => NodeNumber::new(number),
        None => cluster.node,
    };
    let Some(number) = number else {
        return refused(
            "the number of this node in the cluster is missing".to_owned(),
            "add `--node N` to the command, or `node` to `[cluster]`",
        );
    };
    if cluster.entry(number).is_none() {
        let numbers: Vec<String> = cluster.nodes.iter().map(|node| node.number.get().to_string()).collect();
        let what = format!("there is no node {} in `[[cluster.nodes]]`", number.get());
        return refused(what, &format!("use one of {}", numbers.join(", ")));
    }
    cluster.node = Some(number);
    Ok(())
}
