//! Time of a disclosure from a store with many connections.

use crate::rig::{Process, Rig, record, sealed, secrets};
use crate::support::StoreWriter;
use evergate_evidence::connection_record::{ConnectionRecord, TlsHellos};
use evergate_evidence::disclosure::Grant;
use evergate_evidence::envelope::EPOCH_NS;
use evergate_evidence::epochs::EpochKeys;
use evergate_evidence::merkle::sha256;
use evergate_evidence::record::Body;
use evergate_seal::{RecipientKey, SealContext};
use std::time::{Duration, Instant};

const SEGMENTS: u64 = 4;

/// Store of segments with this number of connections and their envelopes.
fn build_store(rig: &Rig, keys: &EpochKeys, connections: u64) {
    let mut writer = StoreWriter::new(&rig.path("store"), 1);
    let mut context = SealContext::new(keys).unwrap();
    for number in 1..=connections {
        let mut record = record(number % 10_000);
        record.tls = TlsHellos { client_random: sha256(&number.to_be_bytes()), ..record.tls };
        record = ConnectionRecord { connection: number, ..record };
        (record.counts.first_ns, record.counts.last_ns) = (keys.epoch * EPOCH_NS, keys.epoch * EPOCH_NS + 1);
        if context.left() == 0 {
            context = SealContext::new(keys).unwrap();
        }
        let envelope = sealed(&mut context, &record, &secrets(number as u8));
        writer.push(Body::Envelope((&envelope).into()));
        writer.push(Body::Connection(Box::new(record)));
        if number % (connections / SEGMENTS) == 0 && number < connections {
            writer.rotate();
        }
    }
    writer.end_segment();
    writer.finish();
}

/// `EVERGATE_DISCLOSURES` is the number of disclosures that are measured, once without an index and once with it.
#[test]
fn disclosure_of_a_large_store_is_answered_quickly() {
    let disclosures = std::env::var("EVERGATE_DISCLOSURES").map_or(5, |number| number.parse().unwrap());
    let rig = Rig::new("speed", false);
    let keys = rig.announce();
    let connections = 20_000;
    build_store(&rig, &keys, connections);
    let recipient = RecipientKey::generate().unwrap();
    let (socket, store) = (rig.path("socket"), rig.path("store"));
    let more = ["--socket", socket.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let (_server, _) = Process::start(&mut rig.revealer("serve", &more), "serving on ");
    let measure = |what: &str, first: u64| {
        let mut times: Vec<Duration> = (first..first + disclosures)
            .map(|place| {
                let number = 1 + place * 7919 % connections;
                let file = rig.request(number, &recipient, &format!("request-{place}"), &["bob", "carol"]);
                let begin = Instant::now();
                let (kind, bytes) = rig.ask(&socket, &file);
                let time = begin.elapsed();
                assert_eq!(kind, 0, "{}", String::from_utf8_lossy(&bytes));
                assert_eq!(recipient.open(&Grant::decode(&bytes).unwrap()), Ok(secrets(number as u8)));
                time
            })
            .collect();
        times.sort_unstable();
        let [p50, p99] = [50, 99].map(|percent| times[(times.len() - 1) * percent / 100]);
        println!("{what}, {connections} connections, {disclosures} disclosures: p50 {p50:?}, p99 {p99:?}");
        p50
    };
    let scan = measure("without an index", 0);
    rig.run(&["index", store.to_str().unwrap()]);
    let index = measure("with the index", disclosures);
    // A few milliseconds on a free machine; this one may be full.
    assert!(index < Duration::from_millis(500), "{index:?}, by a scan {scan:?}");
}
