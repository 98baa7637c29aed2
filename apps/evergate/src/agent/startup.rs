//! Requirements of a node before it serves: the gate, addresses, sockets, secrets. Their order keeps every packet of a
//! movable address behind the gate: load, fill the tables, attach, and only then add the addresses. The sockets of
//! heartbeats, which are bound to the node's own addresses, come first.

use super::address_announcer::AddressAnnouncer;
use super::address_probe::AddressProbes;
use super::event_loop::{Agent, Clock, Link};
use super::housekeeping::{Housekeeper, Neighbourhood};
use super::mailbox::Mailbox;
use super::replication_ends::ReplicationEnds;
use super::routes::{DefaultRoutes, Networks};
use super::secrets::Secrets;
use super::status::{ClusterStatus, NodeStatus, WitnessStatus, rejected_counts};
use super::tc_filters::{Accepting, Filters, card_state};
use super::timing::ChosenTiming;
use super::witness_ping::Witnesses;
use super::{Reporter, Running, host_setup, required_settings};
use crate::control::console::{error as log_error, info, warning};
use anyhow::{Context, Result, ensure};
use evergate_base::Micros;
use evergate_bpf::{Address, CookieKey, Options, PacketGate, PortBlocks};
use evergate_config::model::{Cluster, ClusterMode, ClusterNode, Config, NodeNumber, Protocol, Steering};
use evergate_connection::RequestKey;
use evergate_crypto::derive;
use evergate_membership::{BUCKETS, ClusterId, Incarnation, KeyId, Keyring, Mode, Node, NodeId, Pace, Path};
use evergate_worker::{Instruction, Interface, Layout, Report};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Identifier of the key that the key file holds.
const KEY: KeyId = KeyId(1);
/// Bound on replication channels that wait until a worker accepts them.
const REPLICATION_BACKLOG: i32 = 128;
/// Real-time priority of the agent: above ordinary threads, below the kernel's own.
const PRIORITY: i32 = 40;

/// Everything that must exist before the workers start.
pub struct Startup {
    gate: Arc<PacketGate>,
    layout: Arc<Layout>,
    ends: Arc<ReplicationEnds>,
    cluster: Cluster,
    timing: ChosenTiming,
    node: Node,
    links: [Link; 2],
    accept: Option<Accepting>,
    announcer: AddressAnnouncer,
    probes: AddressProbes,
    tickets: [u8; 32],
    requests: RequestKey,
    reports: Arc<Mailbox<(usize, Report)>>,
    clock: Clock,
}

impl Startup {
    /// Sets everything up. Needs root, or the capabilities that the error names.
    pub fn prepare(config: &Config, cluster: &Cluster) -> Result<Startup> {
        Startup::prepare_with_clock(config, cluster, Micros(0))
    }

    /// As [`Startup::prepare`], with this node's clock ahead of the kernel's. For tests.
    pub fn prepare_with_clock(config: &Config, cluster: &Cluster, ahead: Micros) -> Result<Startup> {
        let clock = Clock { ahead };
        let secrets = Secrets::read(&cluster.key_file)?;
        check_features()?;
        let place = Place::of(cluster)?;
        let [outside, inside] = place.interfaces;
        let ports = PortBlocks::new(cluster.server_ports_first, cluster.ports_per_bucket)
            .context("the ports of server legs do not fit")?;
        // No other process can have these addresses, so a second process of this node fails here, before it replaces
        // the gate.
        let links = place.links()?;
        host_setup::apply_sysctls(ports)?;
        let gate = Arc::new(place.gate(config, ports, &secrets)?);
        let accept = accept_stateless(cluster, &gate, outside, secrets.cookies)?;
        let moving = moving(cluster);
        host_setup::add_addresses(&moving)?;
        host_setup::destroy_orphans(&moving);
        let incarnation = Incarnation(u64::from_le_bytes(evergate_crypto::random_bytes()).max(1));
        let workers = config.node.worker_count().get();
        let ends = place.replication_ends(workers, &secrets)?;
        let layout = place.layout(incarnation, workers);
        let places = [(outside, cluster.addresses.clone()), (inside, cluster.server_source.clone())];
        let announcer = AddressAnnouncer::new(places, place.virtual_mac, cluster.steering == Steering::Flood)
            .context("cannot announce addresses: this needs CAP_NET_RAW")?;
        let keys = Keyring::new(KEY, secrets.heartbeats);
        let timing = ChosenTiming::of(cluster.timing, &evergate_sys::machine_signs());
        info(format_args!("cluster: timing: {} ({})", timing.name(), timing.reason));
        Ok(Startup {
            node: Node::new(protocol(cluster, layout.node, &timing), keys, incarnation, clock.now())?,
            gate,
            layout: Arc::new(layout),
            ends: Arc::new(ends),
            cluster: cluster.clone(),
            timing,
            links,
            accept,
            announcer,
            probes: place.probes().context("cannot probe addresses: this needs CAP_NET_RAW")?,
            tickets: secrets.tickets,
            requests: secrets.requests,
            reports: Arc::new(Mailbox::new()?),
            clock,
        })
    }

    /// The gate, for the workers.
    pub fn gate(&self) -> Arc<PacketGate> {
        self.gate.clone()
    }

    /// The node's fixed properties, for the workers.
    pub fn layout(&self) -> Arc<Layout> {
        self.layout.clone()
    }

    /// Replication channels, for the workers.
    pub fn replication_ends(&self) -> Arc<ReplicationEnds> {
        self.ends.clone()
    }

    /// The reporter of a worker.
    pub fn reporter(&self, worker: usize) -> Reporter {
        Reporter { worker, mailbox: self.reports.clone() }
    }

    /// Secret that the session ticket keys of all nodes are derived from.
    pub fn ticket_secret(&self) -> [u8; 32] {
        self.tickets
    }

    /// Key of the request hash, equal on all nodes.
    pub fn request_key(&self) -> RequestKey {
        self.requests
    }

    /// Starts the agent. `notify` sends instructions to the workers; `working` is whether they make progress.
    pub fn start(
        self,
        notify: impl Fn(usize, Instruction) + Send + 'static,
        working: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Running> {
        let commands = Arc::new(Mailbox::new()?);
        let published = Arc::new(Mutex::new(ClusterStatus::default()));
        let status = first_status(&self.cluster, self.layout.node, &self.timing);
        if let Ok(mut first) = published.lock() {
            first.clone_from(&status);
        }
        let neighbourhood = |interface: Interface, link: &Link| Neighbourhood {
            interface,
            peers: link.peers.iter().map(|(id, at)| (*id, at.ip())).collect(),
        };
        let [outside, inside] = self.layout.interfaces;
        let [first, second] = &self.links;
        let places = vec![neighbourhood(inside, first), neighbourhood(outside, second)];
        let filters = Filters::new(self.gate.clone(), self.layout.interfaces, self.accept);
        let running = Running::new(self.gate.clone(), commands.clone(), published.clone());
        let witnesses = match self.cluster.mode {
            ClusterMode::Majority => None,
            ClusterMode::Witness => {
                let made = Witnesses::new(&self.cluster.witness);
                Some(made.context("cannot ping the witnesses: this needs CAP_NET_RAW")?)
            }
        };
        let number = self.layout.node.0.saturating_add(1);
        let own = self.cluster.nodes.iter().find(|node| node.number.get() == number);
        let own = own.map(|own| {
            vec![(Path::Inside, inside.index, own.inside), (Path::Outside, outside.index, own.outside)]
        });
        let networks = Networks::new(own.unwrap_or_default());
        let witness_routes = witnesses.as_ref().map(|all| all.routes(networks.clone())).unwrap_or_default();
        witness_routes.resolve();
        let mut beyond = DefaultRoutes::new(networks, &self.cluster.addresses);
        beyond.check();
        let route_lost = beyond.route_lost();
        let agent = Agent {
            node: self.node,
            housekeeper: Housekeeper::start(filters, places, moving(&self.cluster), witness_routes, beyond)?,
            route_lost,
            gate: self.gate,
            links: self.links,
            witnesses,
            announcer: self.announcer,
            probes: self.probes,
            flood: self.cluster.steering == Steering::Flood,
            workers: self.layout.workers,
            commands,
            reports: self.reports,
            notify: Box::new(notify),
            working: Box::new(working),
            published,
            status,
            clock: self.clock,
            timing: self.timing.clone(),
        };
        let timing = self.timing;
        let thread = std::thread::Builder::new().name("cluster-agent".to_owned()).spawn(move || {
            be_punctual(&timing);
            agent.run().inspect_err(|error| log_error(format_args!("cluster: {error}")))
        })?;
        Ok(running.with_thread(thread))
    }
}

/// This node's entry in its cluster, and its interfaces.
struct Place<'a> {
    cluster: &'a Cluster,
    number: NodeNumber,
    entry: &'a ClusterNode,
    /// Outside and inside.
    interfaces: [Interface; 2],
    virtual_mac: [u8; 6],
}

impl<'a> Place<'a> {
    fn of(cluster: &'a Cluster) -> Result<Place<'a>> {
        let number =
            cluster.node.context("the configuration does not state which node of the cluster this is")?;
        let entry = cluster.entry(number).context("this node is not in the list of nodes")?;
        let interfaces = [interface(&cluster.outside_interface)?, interface(&cluster.inside_interface)?];
        check_places(cluster, entry)?;
        let virtual_mac = cluster.virtual_mac.unwrap_or_else(|| mac_of(&cluster.name));
        Ok(Place { cluster, number, entry, interfaces, virtual_mac })
    }

    /// Sockets of heartbeats, inside and outside.
    fn links(&self) -> Result<[Link; 2]> {
        let [outside, inside] = self.interfaces;
        Ok([
            link(self.cluster, self.number, Path::Inside, self.entry.inside, inside)?,
            link(self.cluster, self.number, Path::Outside, self.entry.outside, outside)?,
        ])
    }

    fn probes(&self) -> std::io::Result<AddressProbes> {
        let [outside, inside] = self.interfaces;
        let places = [
            (Path::Outside, outside, self.entry.outside, self.cluster.addresses.as_slice()),
            (Path::Inside, inside, self.entry.inside, self.cluster.server_source.as_slice()),
        ];
        AddressProbes::new(places, self.virtual_mac)
    }

    /// The gate, filled and attached.
    fn gate(&self, config: &Config, ports: PortBlocks, secrets: &Secrets) -> Result<PacketGate> {
        let gate = load_gate(self.cluster, self.number, ports, secrets, self.virtual_mac)?;
        for (at, stateless) in clustered(config, self.cluster) {
            gate.add_listener(at, stateless)?;
        }
        for interface in self.interfaces {
            gate.attach(interface.index, interface.mac)?;
        }
        Ok(gate)
    }

    fn replication_port(&self) -> u16 {
        self.cluster.port.get() + 1 // the checks keep it in range
    }

    fn replication_ends(&self, workers: usize, secrets: &Secrets) -> Result<ReplicationEnds> {
        let listeners = (0..workers).map(|worker| listen(self.entry.inside, self.replication_port(), worker));
        let (server_tls, client_tls) = evergate_crypto::channel_configs(&secrets.channels)?;
        let listeners = listeners.collect::<Result<_>>()?;
        Ok(ReplicationEnds { listeners, server_tls, client_tls, neighbours: Arc::default() })
    }

    fn layout(&self, incarnation: Incarnation, workers: usize) -> Layout {
        Layout {
            node: node_id(self.number),
            incarnation,
            workers,
            settings: required_settings::settings(self.cluster, self.virtual_mac),
            addresses: self.cluster.addresses.iter().copied().collect(),
            sources: self.cluster.server_source.clone(),
            interfaces: self.interfaces,
            peers: peers(self.cluster, self.number, |node| node.inside),
            replication_port: self.replication_port(),
        }
    }
}

/// Gives the agent real-time priority: peers take a late heartbeat for a dead node.
fn be_punctual(timing: &ChosenTiming) {
    if let Err(error) = evergate_sys::lock_memory() {
        warning(format_args!("cluster: memory may be paged out ({error}): give CAP_IPC_LOCK"));
    }
    if let Err(error) = evergate_sys::run_in_real_time(PRIORITY) {
        let or = match timing.is_bare_metal() {
            true => ", or use timing = \"virtual_machine\"",
            false => "",
        };
        warning(format_args!("cluster: heartbeats may be late under load ({error}): give CAP_SYS_NICE{or}"));
    }
}

fn interface(name: &str) -> Result<Interface> {
    let failed = || {
        format!("there is no interface \"{name}\" with an Ethernet address; `ip link` lists the interfaces")
    };
    let index = evergate_bpf::interface_index(name).with_context(failed)?;
    let mac = evergate_sys::card_address(name).with_context(failed)?;
    Ok(Interface { index, mac })
}

/// Checks that this node's addresses are on the configured interfaces. If they are interchanged, the packet filter
/// would expect clients on the servers' side. An address on a third interface may be right, as on a bridge with the
/// interface as a port.
fn check_places(cluster: &Cluster, entry: &ClusterNode) -> Result<()> {
    let (inside, outside) = (&cluster.inside_interface, &cluster.outside_interface);
    for (ip, key, named, other) in
        [(entry.inside, "inside", inside, outside), (entry.outside, "outside", outside, inside)]
    {
        let found =
            evergate_sys::interfaces_with(ip).context("cannot look at the addresses of this machine")?;
        if found.is_empty() || found.contains(named) {
            continue; // an address of no interface fails the bind, which reports it
        }
        ensure!(
            !found.contains(other),
            "{ip}, this node's `{key}`, is an address of {other}, and not of {named}: are \
             cluster.inside_interface and cluster.outside_interface interchanged, or the node's `inside` and `outside`?"
        );
        warning(format_args!(
            "cluster: {ip}, this node's `{key}`, is an address of {}, and not of {named}: the packet filter works \
             on {named} alone",
            found.join(", ")
        ));
    }
    Ok(())
}

/// A MAC address that is locally administered, unicast, and equal on all nodes.
fn mac_of(name: &str) -> [u8; 6] {
    let mut mac: [u8; 6] = derive(name.as_bytes(), "virtual MAC");
    mac[0] = mac[0] & 0xfc | 2;
    mac
}

fn load_gate(
    cluster: &Cluster,
    number: NodeNumber,
    ports: PortBlocks,
    secrets: &Secrets,
    mac: [u8; 6],
) -> Result<PacketGate> {
    let gate = PacketGate::load(&Options {
        pins: &pins(cluster, number),
        node: node_id(number),
        mode: match cluster.steering {
            Steering::Steer => evergate_bpf::Mode::Steer,
            Steering::Flood => evergate_bpf::Mode::Flood,
        },
        ports,
        bucket_key: secrets.buckets,
        flows_max: cluster.flows_max,
        keep: false,
    })
    .context(
        "the packet filter cannot be used (it needs Linux 6.9 and CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)",
    )?;
    let bucket = super::event_loop::ADDRESS_BUCKET;
    let legs = |ip: &IpAddr| cluster.server_source.contains(ip);
    for ip in cluster
        .addresses
        .iter()
        .chain(cluster.server_source.iter().filter(|ip| !cluster.addresses.contains(ip)))
    {
        gate.add_address(&Address { ip: *ip, legs: legs(ip), bucket, mac })?;
    }
    Ok(gate)
}

/// Checks the kernel and the process's capabilities. Some are needed only when a connection is recovered or a server is
/// connected to, which is too late for the error.
fn check_features() -> Result<()> {
    let all =
        evergate_sys::missing_socket_features().into_iter().chain(evergate_bpf::missing_gate_features());
    let missing: Vec<String> = all.map(|missing| missing.to_string()).collect();
    ensure!(missing.is_empty(), "this machine lacks what a node of a cluster needs: {}", missing.join("; "));
    Ok(())
}

/// All movable addresses.
fn moving(cluster: &Cluster) -> Vec<IpAddr> {
    cluster.addresses.iter().chain(&cluster.server_source).copied().collect()
}

/// Attaches the program that answers SYNs from outside without keeping state, or detaches it.
fn accept_stateless(
    cluster: &Cluster,
    gate: &PacketGate,
    outside: Interface,
    key: CookieKey,
) -> Result<Option<Accepting>> {
    if !cluster.stateless_accept {
        gate.detach_accept(outside.index)?;
        return Ok(None);
    }
    let interface = cluster.outside_interface.clone();
    let card = card_state(&interface)
        .with_context(|| format!("cannot ask for the MTU and the networks of \"{interface}\""))?;
    let program = gate.load_accept(key, &card).context(
        "connections cannot be accepted without state: use Linux 6.9 \
        or newer, or set cluster.stateless_accept = false",
    )?;
    program.attach(outside.index)?;
    Ok(Some(Accepting { program, interface, card }))
}

/// Folder of the pinned maps, one per node, so that several nodes can run on one machine. The BPF file system allows no
/// dots.
fn pins(cluster: &Cluster, number: NodeNumber) -> PathBuf {
    cluster.pins.join(format!("{}-{}", cluster.name.replace('.', "_"), number.get()))
}

/// Addresses and ports of listeners whose connections survive a node, and whether SYNs to them are answered without
/// keeping state. Where the server may send first they are not: if the client's last ACK of the handshake is lost,
/// neither side would send anything.
pub(crate) fn clustered(config: &Config, cluster: &Cluster) -> BTreeMap<SocketAddr, bool> {
    let mut all = BTreeMap::new();
    for listener in &config.listeners {
        let at = listener.address.socket;
        let both = listener.address.both_families;
        let taken = |ip: &&IpAddr| {
            **ip == at.ip() || at.ip().is_unspecified() && (both || ip.is_ipv4() == at.is_ipv4())
        };
        let client_begins = listener.protocol != Protocol::Tcp || listener.trusted_proxies.is_some();
        let stateless = cluster.stateless_accept && client_begins;
        let addresses = cluster.addresses.iter().filter(taken);
        all.extend(addresses.map(|ip| (SocketAddr::new(*ip, at.port()), stateless)));
    }
    all
}

/// The protocol counts nodes from 0, the configuration from 1.
fn node_id(number: NodeNumber) -> NodeId {
    NodeId(number.get() - 1)
}

fn protocol(cluster: &Cluster, me: NodeId, timing: &ChosenTiming) -> evergate_membership::Config {
    evergate_membership::Config {
        cluster: ClusterId(u64::from_le_bytes(derive(cluster.name.as_bytes(), "cluster id"))),
        id: me,
        nodes: cluster.nodes.iter().map(|node| node_id(node.number)).collect(),
        buckets: BUCKETS,
        backups: cluster.backups.map_or(NodeNumber::MAX, |backups| backups.get()),
        mode: match cluster.mode {
            ClusterMode::Witness => Mode::Witness,
            ClusterMode::Majority => Mode::Majority,
        },
        timing: timing.spans(),
        pace: Pace::default(),
        weight: cluster.weight,
    }
}

fn peers<T>(
    cluster: &Cluster,
    me: NodeNumber,
    of: impl Fn(&evergate_config::model::ClusterNode) -> T,
) -> BTreeMap<NodeId, T> {
    let others = cluster.nodes.iter().filter(|node| node.number != me);
    others.map(|node| (node_id(node.number), of(node))).collect()
}

fn link(cluster: &Cluster, me: NodeNumber, path: Path, own: IpAddr, card: Interface) -> Result<Link> {
    let port = cluster.port.get();
    let at = SocketAddr::new(own, port);
    let datagrams = evergate_sys::Datagrams::bind(at, evergate_membership::CALM_AT).with_context(|| {
        format!(
            "cannot send heartbeats from {at}: is it an address of this machine, is this node {}, and does it not \
             run already?",
            me.get()
        )
    })?;
    let peers = peers(cluster, me, |node| {
        let ip = match path {
            Path::Inside => node.inside,
            Path::Outside => node.outside,
        };
        SocketAddr::new(ip, port)
    });
    let interface = match path {
        Path::Inside => cluster.inside_interface.clone(),
        Path::Outside => cluster.outside_interface.clone(),
    };
    Ok(Link { path, interface, index: card.index, datagrams, peers, blocked: false, lack: None })
}

fn listen(own: IpAddr, first: u16, worker: usize) -> Result<std::os::fd::OwnedFd> {
    let port = u16::try_from(worker).ok().and_then(|worker| first.checked_add(worker));
    let at = SocketAddr::new(own, port.context("there are more workers than ports")?);
    evergate_sys::listen(at, REPLICATION_BACKLOG).with_context(|| {
        format!(
            "cannot accept replication channels on {at}: another process may have the port; see cluster.port"
        )
    })
}

fn first_status(cluster: &Cluster, me: NodeId, timing: &ChosenTiming) -> ClusterStatus {
    let node = |node: &evergate_config::model::ClusterNode| NodeStatus {
        number: node.number.get(),
        inside: node.inside.to_string(),
        outside: node.outside.to_string(),
        ..NodeStatus::default()
    };
    let witness = |ip: &IpAddr| WitnessStatus { address: ip.to_string(), ..WitnessStatus::default() };
    ClusterStatus {
        name: cluster.name.clone(),
        node: me.0.saturating_add(1),
        phase: "listening".to_owned(),
        timing: timing.name().to_owned(),
        timing_reason: timing.reason.clone(),
        mode: match cluster.mode {
            ClusterMode::Witness => "witness",
            ClusterMode::Majority => "majority",
        }
        .to_owned(),
        nodes: cluster.nodes.iter().map(node).collect(),
        witnesses: cluster.witness.iter().map(witness).collect(),
        rejected: rejected_counts(|_| 0, 0),
        ..ClusterStatus::default()
    }
}
