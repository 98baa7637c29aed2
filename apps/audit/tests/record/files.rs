//! Captures of other tools as input.

use crate::rig::{rig, write};

/// A pcap file with the packets of a TCP connection.
fn pcap() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    let flags = [(true, 2u8), (false, 18), (true, 16), (true, 17), (false, 17)];
    for (number, (from_client, flags)) in (0u32..).zip(flags) {
        let frame = frame(from_client, number, flags);
        for word in [1_700_000_000 + number, 5, frame.len() as u32, frame.len() as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&frame);
    }
    file
}

fn frame(from_client: bool, seq: u32, flags: u8) -> Vec<u8> {
    let (client, server) = ([10, 1, 2, 3], [10, 9, 9, 9]);
    let mut frame = vec![2; 12];
    frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    let (from, to, ports) = if from_client {
        (client, server, [0xc3, 0x50, 1, 0xbb])
    } else {
        (server, client, [1, 0xbb, 0xc3, 0x50])
    };
    frame.extend_from_slice(&from);
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&ports);
    frame.extend_from_slice(&seq.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    frame
}

#[test]
fn capture_of_another_tool_is_recorded_and_found() {
    let Some(rig) = rig() else { return };
    let (file, store) = (rig.folder.join("capture.pcap"), rig.store());
    let (file, store) = (file.to_str().unwrap(), store.to_str().unwrap());
    write(file.as_ref(), &pcap());
    let (out, _) = rig.run(0, &["record", "--read", file, "--store", store, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((report["packets"].as_u64(), report["balanced"].as_bool()), (Some(5), Some(true)));
    assert_eq!(rig.content().packets, 5);
    let (found, _) = rig.run(0, &["find", store, "--client", "10.1.2.3", "--json"]);
    assert_eq!(found.lines().count(), 1, "{found}");
    let (_, err) = rig.run(2, &["record", "--read", file, "--store", store]);
    assert!(err.contains("read the file into a new folder"), "{err}");
}

#[test]
fn damaged_capture_is_refused_with_its_place() {
    let Some(rig) = rig() else { return };
    let file = rig.folder.join("damaged.pcap");
    let mut bytes = pcap();
    bytes[32..36].copy_from_slice(&[0xff; 4]);
    for (content, expected) in
        [(&b"no capture at all, but long enough to be one"[..], "byte 0"), (&bytes, "byte 24")]
    {
        write(&file, content);
        let store = rig.folder.join(format!("store-{}", content.len()));
        let arguments = ["record", "--read", file.to_str().unwrap(), "--store", store.to_str().unwrap()];
        let mut process = rig.spawn(&arguments);
        assert_eq!(process.wait(), Some(2));
        let (_, err) = process.outputs();
        assert!(err.contains(expected) && err.contains("damaged.pcap"), "{err}");
    }
}
