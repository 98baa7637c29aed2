//! A PROXY header has one final verdict, whatever its segmentation, and it is within its limits. What its endpoints
//! are survives a round trip through both versions.

#![no_main]

use evergate_proxy_protocol::{
    Command, Decoded, Extras, Header, V1_BYTES_MAX, V2_BYTES_MAX, Version, decode, encode_v1, encode_v2,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let verdict = decode(data);
    let mut decided = false;
    for len in (0..data.len().min(V2_BYTES_MAX + 1)).chain([data.len()]) {
        let earlier = decode(&data[..len]);
        if decided || earlier != Ok(Decoded::NeedMore) {
            assert_eq!(earlier, verdict, "the verdict changed at {len} bytes");
            decided = true;
        }
    }
    match verdict {
        Ok(Decoded::Header(header)) => survives(&header, data),
        Ok(Decoded::NeedMore) => assert!(data.len() < V2_BYTES_MAX, "a header has a limit"),
        Err(error) => assert!(!error.reason().is_empty()),
    }
});

fn survives(header: &Header<'_>, data: &[u8]) {
    let max = match header.version {
        Version::V1 => V1_BYTES_MAX,
        Version::V2 => V2_BYTES_MAX,
    };
    assert!(header.len <= max && header.len <= data.len());
    assert!(header.tlvs.iter().count() <= header.len / 3);
    let tlvs = &header.tlvs;
    let Some(endpoints) = &header.endpoints else { return };
    assert_eq!(header.command, Command::Proxy);
    let extras = Extras {
        alpn: tlvs.alpn(),
        authority: tlvs.authority(),
        unique_id: tlvs.unique_id(),
        ssl: tlvs.ssl(),
        checksum: tlvs.find(3).is_some(),
    };
    let (mut line, mut binary) = (Vec::new(), Vec::new());
    encode_v1(Some(endpoints), &mut line);
    let Ok(Decoded::Header(again)) = decode(&line) else { panic!("not read: {line:?}") };
    let same_family = endpoints.source().is_ipv4() == endpoints.destination().is_ipv4();
    assert_eq!(again.endpoints, same_family.then_some(*endpoints));
    if encode_v2(Some(endpoints), &extras, &mut binary).is_err() {
        return; // a mapped address is longer
    }
    let Ok(Decoded::Header(again)) = decode(&binary) else { panic!("not read: {binary:?}") };
    assert_eq!(again.endpoints, Some(*endpoints));
    assert_eq!((again.tlvs.alpn(), again.tlvs.authority()), (tlvs.alpn(), tlvs.authority()));
    assert_eq!((again.tlvs.unique_id(), again.tlvs.ssl()), (tlvs.unique_id(), tlvs.ssl()));
}
