//! Nodes in one namespace each. Both switches are bridges of another namespace, which is also the witness.

pub(crate) use crate::support::{Folder, Output, eventually, evergate};

use crate::seed::Chance;
use crate::support::{DEADLINE, Process, can_run};
use evergate::agent::status::ClusterStatus;
use evergate_netns::{Card, Namespace};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};

/// Movable address of the cluster. A node's number is the last byte of its host addresses; the switches have 254.
pub(crate) const ADDRESS: &str = "10.72.0.100";
pub(crate) const VIRTUAL_MAC: &str = "02:00:5e:00:00:64";
pub(crate) const PORT: u16 = 7400;

/// Whether these tests can run here ([`can_run`]): they need root and a recent kernel. With both, every error is a
/// failure of the test.
pub(crate) fn privileged() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let root =
        status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"));
    let needs = format!("root (is {root}) and Linux 6.9 (is {})", release.trim());
    can_run(root && version >= (6, 9), &needs)
}

pub(crate) fn inside(host: u8) -> IpAddr {
    IpAddr::from([10, 71, 0, host])
}

pub(crate) fn outside(host: u8) -> IpAddr {
    IpAddr::from([10, 72, 0, host])
}

/// Address family of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn inside(self, host: u8) -> IpAddr {
        match self {
            Family::V4 => inside(host),
            Family::V6 => Ipv6Addr::new(0xfd71, 0, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    pub(crate) fn outside(self, host: u8) -> IpAddr {
        match self {
            Family::V4 => outside(host),
            Family::V6 => Ipv6Addr::new(0xfd72, 0, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    /// Movable address of the cluster.
    pub(crate) fn address(self) -> IpAddr {
        self.outside(100)
    }

    fn prefix(self) -> u8 {
        if self == Family::V4 { 24 } else { 64 }
    }
}

/// Networks of a cluster. The kernel removes a namespace with its last process.
pub(crate) struct World {
    pub(crate) family: Family,
    pub(crate) switch: Namespace,
    hosts: Vec<Namespace>,
    pub(crate) folder: Folder,
    pub(crate) chance: Chance,
    _share: MachineShare,
}

/// Clusters that may run at once. Heartbeats run in real time: more clusters would delay each other's heartbeats.
const SHARES: u8 = 2;

static IN_USE: Mutex<u8> = Mutex::new(0);
static RELEASED: Condvar = Condvar::new();

/// Share of the machine, held while a cluster runs.
pub(crate) struct MachineShare(u8);

impl MachineShare {
    fn acquire(count: u8) -> MachineShare {
        let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |in_use: &mut u8| *in_use + count > SHARES;
        let mut in_use = RELEASED.wait_while(in_use, full).unwrap_or_else(PoisonError::into_inner);
        *in_use += count;
        MachineShare(count)
    }

    /// All shares, for a test that needs the whole machine: load tests and measurements.
    pub(crate) fn all() -> MachineShare {
        MachineShare::acquire(SHARES)
    }
}

impl Drop for MachineShare {
    fn drop(&mut self) {
        *IN_USE.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        RELEASED.notify_all();
    }
}

impl World {
    /// World of a switch and `hosts` hosts, numbered from 1.
    pub(crate) fn new(hosts: u8) -> World {
        World::of(Family::V4, hosts)
    }

    pub(crate) fn of(family: Family, hosts: u8) -> World {
        World::at(MachineShare::acquire(1), family, hosts)
    }

    /// World that runs without a second cluster beside it.
    pub(crate) fn alone(hosts: u8) -> World {
        World::at(MachineShare::all(), Family::V4, hosts)
    }

    fn at(share: MachineShare, family: Family, hosts: u8) -> World {
        let switch = namespace();
        for (name, address) in [("in", family.inside(254)), ("out", family.outside(254))] {
            switch.bridge(name, address, family.prefix()).unwrap();
        }
        let hosts = (1..=hosts).map(|number| host(family, &switch, number)).collect();
        let folder = Folder::new();
        folder.write("cluster.key", &format!("{}\n", evergate::agent::fresh_key()));
        World { family, switch, hosts, folder, chance: Chance::new(), _share: share }
    }

    /// Creates `shop.pem` and `shop.key`: a self-signed certificate that clients use as trust anchor.
    pub(crate) fn certificate(&self) {
        let ends = ["subjectAltName=DNS:shop.test", "basicConstraints=critical,CA:FALSE"];
        let made = Command::new("openssl")
            .args(["req", "-x509", "-noenc", "-days", "30", "-newkey", "ec", "-subj", "/CN=shop.test"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-addext", ends[0], "-addext", ends[1], "-out"])
            .arg(self.folder.path("shop.pem"))
            .arg("-keyout")
            .arg(self.folder.path("shop.key"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Drops one packet in a hundred on its way through a switch, from now on and in every direction.
    pub(crate) fn lose_packets(&self) {
        let mut rules = String::from("table bridge loss {\n");
        for hook in ["forward", "input", "output"] {
            rules.push_str(&format!(
                "chain {hook} {{ type filter hook {hook} priority 0; numgen random mod 100 == 0 counter drop; }}\n"
            ));
        }
        self.filter(&format!("{rules}}}\n"));
    }

    /// Adds nftables rules for the packets that pass the switches.
    pub(crate) fn filter(&self, rules: &str) {
        self.rules(&self.switch, rules);
    }

    /// Adds nftables rules to the host of a node.
    pub(crate) fn firewall(&self, number: u8, rules: &str) {
        self.rules(self.host(number), rules);
    }

    fn rules(&self, place: &Namespace, rules: &str) {
        let file = self.folder.write("rules.nft", rules);
        place.run(move || {
            let made = Command::new("nft").arg("-f").arg(&file).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        });
    }

    /// Drops all packets of a node on these networks. Its cards keep their carriers, so the node must detect the loss
    /// itself.
    pub(crate) fn silence(&self, number: u8, nets: &[&str]) {
        let drops: String = nets
            .iter()
            .flat_map(|net| ["iifname", "oifname"].map(|way| format!("{way} \"{net}{number}\" drop\n")))
            .collect();
        let chain = |hook| format!("chain {hook} {{ type filter hook {hook} priority 0;\n{drops}}}\n");
        self.filter(&format!(
            "table bridge silence {{\n{}}}\n",
            ["forward", "input", "output"].map(chain).concat()
        ));
    }

    /// Removes the rules of this name.
    pub(crate) fn clear(&self, table: &str) {
        self.filter(&format!("delete table bridge {table}\n"));
    }

    /// All TCP sockets of the switch and of the hosts, as the kernel lists them.
    pub(crate) fn sockets(&self) -> String {
        let of = |namespace: &Namespace| {
            let reported = namespace.run(|| Command::new("ss").arg("-tino").output().unwrap());
            String::from_utf8_lossy(&reported.stdout).into_owned()
        };
        let hosts = (1..).zip(&self.hosts).map(|(number, host)| format!("node {number}\n{}", of(host)));
        std::iter::once(format!("switch\n{}", of(&self.switch))).chain(hosts).collect()
    }

    /// Number of packets that matched a rule with a counter.
    pub(crate) fn counted(&self) -> u64 {
        let rules = self.switch.run(|| Command::new("nft").args(["list", "ruleset"]).output().unwrap());
        let rules = String::from_utf8(rules.stdout).unwrap();
        let counts = rules.split("counter packets ").skip(1).filter_map(|rest| rest.split(' ').next());
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn host(&self, number: u8) -> &Namespace {
        &self.hosts[usize::from(number) - 1]
    }

    /// Configuration of all nodes; each node starts with its own number. `nodes`: the entries of `[[cluster.nodes]]`;
    /// `more`: further keys of `[cluster]`.
    pub(crate) fn config(&self, nodes: &str, more: &str) -> String {
        let witness = self.family.outside(254);
        let (address, source) = (self.family.address(), self.family.inside(100));
        let listener = SocketAddr::new(address, 8080);
        let server = SocketAddr::new(self.family.inside(254), 9);
        let key = if more.contains("key_file") { "" } else { "key_file = \"cluster.key\"" };
        format!(
            "[node]\nworkers = 2\n[logs]\naccess = \"off\"\n\
             [cluster]\nname = \"test\"\n{key}\naddresses = [\"{address}\"]\nserver_source = [\"{source}\"]\n\
             inside_interface = \"in\"\noutside_interface = \"out\"\nvirtual_mac = \"{VIRTUAL_MAC}\"\n\
             witness = [\"{witness}\"]\ntiming = \"virtual_machine\"\nflows_max = 1024\nport = {PORT}\n\
             {more}\n{nodes}\n\
             [[listeners]]\nname = \"in\"\naddress = \"{listener}\"\nprotocol = \"tcp\"\npool = \"web\"\n\
             [[pools]]\nname = \"web\"\nservers = [{{ address = \"{server}\" }}]\n"
        )
    }

    /// Adds IPv6 addresses on the inside of an IPv4 world: `fd71::254` for the switch and `fd71::1` for the first
    /// host.
    pub(crate) fn add_ipv6_inside(&self) {
        self.switch.ip("addr add fd71::254/64 dev in nodad").unwrap();
        self.host(1).ip("addr add fd71::1/64 dev in nodad").unwrap();
    }

    /// Replaces a host's card by a new one with the same name and addresses.
    pub(crate) fn replace_card(&self, number: u8, name: &str) {
        self.host(number).ip(&format!("link del {name}")).unwrap();
        plug(self.host(number), self.family, &self.switch, number, name);
    }

    /// Starts the server of [`World::config`], which echoes its input.
    pub(crate) fn echo(&self) {
        let server = SocketAddr::new(self.family.inside(254), 9);
        self.switch.run(move || {
            let listener = TcpListener::bind(server).unwrap();
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
                }
            });
        });
    }

    /// Configuration entries of nodes 1 to `count`, with IPv4 addresses.
    pub(crate) fn entries(count: u8) -> String {
        (1..=count).map(|number| entry(number, inside(number), outside(number))).collect()
    }

    /// Configuration entries of nodes 1 to `count`, with addresses of the world's family.
    pub(crate) fn all_entries(&self, count: u8) -> String {
        let of = |number| entry(number, self.family.inside(number), self.family.outside(number));
        (1..=count).map(of).collect()
    }

    /// Writes the file that a node reads at its start and at a reload.
    pub(crate) fn write_config(&self, number: u8, config: &str) -> PathBuf {
        self.folder.write(&format!("node-{number}.toml"), config)
    }

    /// Starts a node with this configuration.
    pub(crate) fn start(&self, number: u8, config: &str) -> Node {
        let file = self.write_config(number, config);
        let socket = self.folder.path(&format!("node-{number}.sock"));
        let (file_text, socket_text) = (file.display().to_string(), socket.display().to_string());
        let process = self.host(number).run(move || {
            // Nodes use different AEAD libraries. After a failover one library seals again what the other one has
            // sealed.
            let library = if number.is_multiple_of(2) { "ring" } else { "aws-lc" };
            let number = number.to_string();
            Process::start(|command| {
                command.args([&file_text, "--node", &number, "--socket", &socket_text]);
                command.env("EVERGATE_AEAD", library)
            })
        });
        Node { number, process, socket }
    }

    /// Starts nodes 1 to `count` with the same configuration and waits until they form one cluster.
    pub(crate) fn cluster(&self, count: u8, more: &str) -> Vec<Node> {
        let config = self.config(&World::entries(count), more);
        let nodes: Vec<Node> = (1..=count).map(|number| self.start(number, &config)).collect();
        settled(&nodes);
        nodes
    }
}

pub(crate) fn entry(number: u8, inside: IpAddr, outside: IpAddr) -> String {
    format!("[[cluster.nodes]]\nnumber = {number}\ninside = \"{inside}\"\noutside = \"{outside}\"\n")
}

/// Namespace whose IPv6 addresses are usable at once, without duplicate address detection.
fn namespace() -> Namespace {
    let namespace = Namespace::new().unwrap();
    for which in ["all", "default"] {
        namespace.sysctl(&format!("net.ipv6.conf.{which}.accept_dad"), "0").unwrap();
    }
    namespace
}

/// Namespace with a card on each switch.
fn host(family: Family, switch: &Namespace, number: u8) -> Namespace {
    let host = namespace();
    for name in ["in", "out"] {
        plug(&host, family, switch, number, name);
    }
    host
}

/// Connects a host's card to one of the switches.
fn plug(host: &Namespace, family: Family, switch: &Namespace, number: u8, name: &str) {
    let (net, address) = match name {
        "in" => (0, family.inside(number)),
        _ => (1, family.outside(number)),
    };
    let (mac, port) = (format!("02:00:00:00:{net:02x}:{number:02x}"), format!("{name}{number}"));
    let card = Card { name, mac: &mac, port: &port, address, prefix: family.prefix() };
    host.plug(&card, switch, name).unwrap();
}

/// Running node. Dropping it kills the process.
pub(crate) struct Node {
    pub(crate) number: u8,
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
}

impl Node {
    /// Runs a command of the CLI against the node's admin socket.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        let mut all = args.to_vec();
        all.extend(["--socket", self.socket.to_str().unwrap()]);
        evergate(&all)
    }

    pub(crate) fn status(&self) -> ClusterStatus {
        let output = self.cli(&["cluster", "status", "--json"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        serde_json::from_str(&output.out).unwrap()
    }

    /// Status and body of `/healthz`, as a load balancer in front of the node receives them.
    pub(crate) fn healthz(&self) -> (u16, String) {
        let mut stream = std::os::unix::net::UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        std::io::Write::write_all(
            &mut stream,
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// Waits until the node's status satisfies `wanted`.
    pub(crate) fn eventually(&self, what: &str, wanted: impl Fn(&ClusterStatus) -> bool) -> ClusterStatus {
        let what = format!("node {}: {what}", self.number);
        let mut last = ClusterStatus::default();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&what, || {
                last = self.status();
                wanted(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| {
            panic!("never within {DEADLINE:?}: {what}; {last:#?}\n{:#?}", self.process.lines())
        })
    }

    /// Kills the process without a chance to send LEAVE.
    pub(crate) fn kill(self) {
        self.process.signal("KILL");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("output of node {}: {:#?}", self.number, self.process.lines());
            let status = self.cli(&["status", "--json"]).out;
            let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
            eprintln!("reasons: {}", status["reasons"]);
            eprintln!("{}", self.cli(&["cluster", "status"]).out);
        }
    }
}

/// Waits until these nodes are exactly the members of one view, own all buckets, and have a backup of each.
pub(crate) fn settled(nodes: &[Node]) -> Vec<ClusterStatus> {
    let members: Vec<u8> = nodes.iter().map(|node| node.number).collect();
    let replicates = members.len() > 1;
    let whole = |status: &ClusterStatus| {
        status.phase == "active"
            && status.view.as_ref().is_some_and(|view| view.members == members)
            && status.buckets.unowned == 0
            && status.buckets.recovering == 0
            && status.buckets.syncing == 0
            && status.buckets.catching_up == 0
            && (status.buckets.without_backup == 0 || !replicates)
    };
    eventually(&format!("nodes {members:?} are a cluster"), || {
        let all: Vec<ClusterStatus> =
            nodes.iter().map(|node| node.eventually("has joined the cluster", whole)).collect();
        let epochs = all.iter().filter_map(|status| status.view.as_ref().map(|view| view.epoch));
        let same = epochs.clone().all(|epoch| Some(epoch) == epochs.clone().next());
        let owned: u64 = all.iter().map(|status| status.buckets.owned).sum();
        (same && owned == 1024).then_some(all)
    })
}
