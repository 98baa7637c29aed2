//! Where the tests run.

use evergate_base::{Bucket, NodeId};
use evergate_bpf::{Address, BucketKey, Mode, Options, Owner, PacketGate, PortBlocks, interface_index};
use evergate_netns::{Card, Namespace};
use evergate_sys::card_address;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// What all movable addresses answer.
pub(crate) const VIRTUAL_MAC: [u8; 6] = [2, 0, 0x5e, 0, 0, 0x64];
pub(crate) const BUCKET_KEY: BucketKey = BucketKey([0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00]);
pub(crate) const PORT: u16 = 4430;

/// Whether these tests can run here: they need root and a kernel that is new enough. Else they are skipped, with a line
/// on stderr past the harness, which hides the output of tests that pass. In CI they fail instead, because a skipped
/// test proves nothing.
pub(crate) fn privileged() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // SAFETY: no pointers are passed.
    let root = unsafe { libc::geteuid() } == 0;
    if root && version >= (6, 9) {
        return true;
    }
    let needs = format!("root (is {root}) and Linux 6.9 (is {})", release.trim());
    assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs {needs}");
    let test = std::thread::current();
    let _ = writeln!(std::io::stderr(), "skipped {}: it needs {needs}", test.name().unwrap_or("a test"));
    false
}

/// Waits until a condition holds; the deadline only ends a hang.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 20, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn node(number: u8) -> NodeId {
    NodeId(number - 1)
}

pub(crate) fn vip(v6: bool) -> IpAddr {
    if v6 { "fd77::100".parse().unwrap() } else { "10.77.0.100".parse().unwrap() }
}

pub(crate) fn at(v6: bool, host: u8, port: u16) -> SocketAddr {
    let ip: IpAddr = if v6 { format!("fd77::{host}") } else { format!("10.77.0.{host}") }.parse().unwrap();
    SocketAddr::new(ip, port)
}

pub(crate) fn options(pins: &Path) -> Options<'_> {
    Options {
        pins,
        node: node(1),
        mode: Mode::Steer,
        ports: PortBlocks::DEFAULT,
        bucket_key: BUCKET_KEY,
        flows_max: 256,
        keep: false,
    }
}

/// Makes the virtual addresses of both families movable, their listeners and legs gated.
pub(crate) fn configure(gate: &PacketGate) {
    for v6 in [false, true] {
        let ip = vip(v6);
        let bucket = Bucket(0);
        gate.add_address(&Address { ip, legs: true, bucket, mac: VIRTUAL_MAC }).unwrap();
        gate.add_listener(SocketAddr::new(ip, PORT), true).unwrap();
    }
}

/// A gate with a clock of its own, that owns everything and whose lease never ends, not attached anywhere.
pub(crate) fn bench(mode: Mode, test: impl FnOnce(&PacketGate) + Send + 'static) {
    let namespace = Namespace::new().unwrap();
    namespace.run(move || {
        let options = Options { mode, ..options(Path::new("/sys/fs/bpf/evergate/test")) };
        let gate = PacketGate::load_with_clock(&options, true).unwrap();
        configure(&gate);
        gate.set_test_clock_ns(1_000_000_000);
        gate.leases().set_own(u64::MAX);
        gate.owners().set_all(Owner::new(node(1), &[]).unwrap());
        test(&gate);
    });
}

/// A node of the cluster: its namespace, and the gate on its only card.
pub(crate) struct Node {
    pub(crate) namespace: Namespace,
    pub(crate) gate: Arc<PacketGate>,
    pub(crate) card: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mode: Mode,
}

/// Two nodes, a client and a server around one switch. The virtual address lives on the loopback of both nodes.
pub(crate) struct World {
    pub(crate) nodes: [Node; 2],
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
    /// Last: the others' cables end in it.
    pub(crate) _switch: Namespace,
}

pub(crate) fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

fn host(switch: &Namespace, number: u8) -> Namespace {
    let namespace = Namespace::new().unwrap();
    let text = mac(number).map(|byte| format!("{byte:02x}")).join(":");
    let port = format!("port{number}");
    let address = [10, 77, 0, number].into();
    let card = Card { name: "eth0", mac: &text, port: &port, address, prefix: 24 };
    namespace.plug(&card, switch, "bridge0").unwrap();
    namespace.ip(&format!("addr add fd77::{number}/64 dev eth0 nodad")).unwrap();
    namespace
}

impl World {
    /// Node 1 owns everything, and both leases last for ever, unless a test changes them.
    pub(crate) fn new(mode: Mode) -> World {
        let switch = Namespace::new().unwrap();
        switch.ip("link add bridge0 type bridge mcast_snooping 0").unwrap();
        switch.ip("link set bridge0 up").unwrap();
        let nodes = [1, 2].map(|number| {
            let namespace = host(&switch, number);
            for v6 in [false, true] {
                let suffix = if v6 { "/128 dev lo nodad" } else { "/32 dev lo" };
                namespace.ip(&format!("addr add {}{suffix}", vip(v6))).unwrap();
            }
            for (name, value) in [
                ("net.ipv4.conf.all.arp_ignore", "1"),
                ("net.ipv4.conf.all.arp_announce", "2"),
                ("net.ipv4.ip_local_port_range", "32768 60999"),
                ("net.ipv4.tcp_fastopen", "0"),
            ] {
                namespace.sysctl(name, value).unwrap();
            }
            let (gate, card) = namespace.run(move || {
                let pins = format!("/sys/fs/bpf/evergate/node{number}");
                let options = Options { node: node(number), mode, ..options(Path::new(&pins)) };
                let gate = PacketGate::load(&options).unwrap();
                let card = interface_index("eth0").unwrap();
                assert_eq!(card_address("eth0").unwrap(), mac(number));
                configure(&gate);
                gate.owners().set_all(Owner::new(node(1), &[]).unwrap());
                gate.leases().set_own(u64::MAX);
                gate.set_peer(card, node(3 - number), mac(3 - number)).unwrap();
                gate.attach(card, mac(number)).unwrap();
                (Arc::new(gate), card)
            });
            Node { namespace, gate, card, mac: mac(number), mode }
        });
        World { nodes, client: host(&switch, 10), server: host(&switch, 20), _switch: switch }
    }
}
