//! CPU time of a sealed connection, both layers: `cargo run --release -p evergate-seal --example seal_cost`.

use evergate_evidence::envelope::{Aad, EPOCH_NS};
use evergate_evidence::epochs::EpochKeys;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_seal::{CONNECTIONS_MAX, FileKeys, SealContext};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

const EPOCH: u64 = 497_000;
const ROUNDS: u32 = 40;

fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn main() {
    let mut keys = FileKeys::default();
    let mut key = |epoch| keys.create(epoch).expect("a key");
    let keys = EpochKeys { epoch: EPOCH, inner: key(EPOCH), outer: key(EPOCH + 1) };
    let mut secrets = SecretList::default();
    Label::ALL[1..].iter().for_each(|label| secrets.set(*label, &[7; 48]).expect("a secret"));
    let aad = Aad {
        switch: [1; 32],
        connection: 7,
        born_ns: EPOCH * EPOCH_NS,
        client: "10.0.0.1:50000".parse().expect("an address"),
        local: "10.0.0.2:443".parse().expect("an address"),
        client_random: [2; 32],
        server_random: [3; 32],
        tls_version: 0x304,
        cipher_suite: 0x1302,
        feed_number: 1,
        sni: b"shop.example.org",
    };
    for round in 0..4 {
        let (mut set_up, mut seal, mut bytes) = (0.0, 0.0, 0);
        for _ in 0..ROUNDS {
            let begin = cpu_us();
            let mut context = SealContext::new(&keys).expect("a context");
            let ready = cpu_us();
            for _ in 0..CONNECTIONS_MAX {
                bytes = black_box(context.seal(&aad, &secrets).expect("an envelope")).len();
            }
            set_up += ready - begin;
            seal += cpu_us() - ready;
        }
        let connections = f64::from(ROUNDS * CONNECTIONS_MAX);
        println!(
            "round {round}: {:.2} us CPU a connection, both layers; {:.0} us a pair of contexts; {bytes} bytes",
            seal / connections,
            set_up / f64::from(ROUNDS)
        );
    }
}
