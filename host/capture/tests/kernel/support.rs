//! A pair of cards, and what tests do with a ring.

use evergate_capture::generator::{Generator, Load, Sent};
use evergate_capture::{Block, Interface, RawPacket, Ring, RingOptions, Wait};
use evergate_netns::Namespace;
use std::net::UdpSocket;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the card that sends.
pub(crate) const SENDER: &str = "cap-tx";
/// Name of the card that captures listen on.
pub(crate) const RECEIVER: &str = "cap-rx";
/// Retire time of rings in tests.
pub(crate) const RETIRE_MS: u32 = 5;

/// Two namespaces with one card each, joined by a cable on which nothing but the tests' frames travels.
pub(crate) struct Cable {
    pub(crate) sender: Namespace,
    pub(crate) receiver: Namespace,
}

/// A cable; `None` skips the test with a note. In CI it fails instead.
pub(crate) fn cable() -> Option<Cable> {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs root");
        let test = std::thread::current();
        eprintln!("skipped {}: it needs root", test.name().unwrap_or("a test"));
        return None;
    }
    let (sender, receiver) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    for namespace in [&sender, &receiver] {
        // Neighbour discovery would send packets of its own.
        namespace.sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    }
    sender.connect(SENDER, "02:00:00:00:00:01", &receiver, RECEIVER).unwrap();
    let cable = Cable { sender, receiver };
    cable.ethtool(&cable.sender, SENDER, "gro off gso off tso off");
    cable.ethtool(&cable.receiver, RECEIVER, "gro off gso off tso off");
    Some(cable)
}

impl Cable {
    /// Switches features of a card.
    pub(crate) fn ethtool(&self, namespace: &Namespace, card: &str, features: &str) {
        let arguments = format!("-K {card} {features}");
        let output = namespace.run(move || {
            Command::new("ethtool").args(arguments.split_whitespace()).output().expect("ethtool is installed")
        });
        assert!(output.status.success(), "ethtool: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Opens a ring on the receiving card.
    pub(crate) fn ring(&self, options: &RingOptions) -> Ring {
        let options = options.clone();
        self.receiver.run(move || Ring::open(&options)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Received packets of the receiving card.
    pub(crate) fn received(&self) -> u64 {
        let read = || Interface::named(RECEIVER).unwrap().statistics().unwrap().rx_packets;
        self.receiver.run(read)
    }

    /// Sends a load in a thread.
    pub(crate) fn start(&self, load: Load) -> JoinHandle<Sent> {
        self.sender.spawn(move || Generator::open(SENDER).unwrap().run(&load).unwrap())
    }

    /// Sends a datagram from the receiving card, on the usual way through the kernel: the generator's frames pass no
    /// capture on their way out.
    pub(crate) fn send_back(&self) {
        self.receiver.ip(&format!("addr add 10.98.0.1/24 dev {RECEIVER}")).unwrap();
        let neighbour = "10.98.0.2 lladdr 02:00:00:00:00:01 nud permanent";
        self.receiver.ip(&format!("neigh add {neighbour} dev {RECEIVER}")).unwrap();
        self.receiver.run(|| {
            let socket = UdpSocket::bind("10.98.0.1:0").unwrap();
            socket.send_to(b"datagram", "10.98.0.2:9").unwrap();
        });
    }

    /// Sends frames once each.
    pub(crate) fn send(&self, frames: Vec<Vec<u8>>) {
        self.sender.run(move || Generator::open(SENDER).unwrap().send_all(&frames).unwrap());
    }
}

/// Options of a small ring.
pub(crate) fn options(bytes: usize, block_bytes: usize) -> RingOptions {
    RingOptions { bytes, block_bytes, retire_ms: RETIRE_MS, ..RingOptions::new(RECEIVER) }
}

/// Passes blocks to `take` until the ring has been idle for three times the retire time.
pub(crate) fn drain(ring: &mut Ring, mut take: impl FnMut(Block)) {
    loop {
        while let Some(block) = ring.next_block() {
            take(block);
        }
        if ring.wait(Duration::from_millis(3 * u64::from(RETIRE_MS))).unwrap() == Wait::Idle {
            return;
        }
        ring.counters().unwrap();
    }
}

/// The whole frame of a packet as it was on the wire.
pub(crate) fn whole_frame(packet: &RawPacket<'_>) -> Vec<u8> {
    let (addresses, tag, rest) = packet.parts();
    [addresses, tag.as_ref().map_or(&[], |tag| &tag[..]), rest].concat()
}

/// All frames that a ring receives until it is idle.
pub(crate) fn frames_of(ring: &mut Ring) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    drain(ring, |block| frames.extend(block.packets().map(|packet| whole_frame(&packet))));
    frames
}
