//! Binding of opened secrets to one recorded connection. Without it, a bogus envelope would disclose another session.

use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::disclosure::Request;
use evergate_evidence::envelope::{Aad, Envelope};
use evergate_evidence::secrets::SecretList;
use evergate_seal::ServerKey;
use std::rc::Rc;

/// Reader of a connection's packets that opens the first protected record of each direction.
pub trait FirstRecords {
    /// An error in words if the secrets do not open them, or if there are no such records.
    fn open_first(
        &self,
        record: &ConnectionRecord,
        aad: &Aad<'_>,
        secrets: &SecretList,
    ) -> Result<(), String>;

    /// Secrets that a private key of the server gives, if they open records of both directions; else an error in words.
    fn open_exchange(&self, record: &ConnectionRecord, keys: &Rc<[ServerKey]>) -> Result<SecretList, String>;
}

/// Compares the request, the recorded connection and the envelope; then the secrets must open packets, if a reader is
/// given. With `nat` the server's end may differ.
pub fn check_binding(
    request: &Request,
    record: &ConnectionRecord,
    envelope: &Envelope<'_>,
    secrets: &SecretList,
    nat: bool,
    packets: Option<&dyn FirstRecords>,
) -> Result<(), String> {
    let aad = &envelope.aad;
    let differs = |what: &str| Err(format!("the envelope is of another connection: its {what} differs"));
    check_recorded(request, record)?;
    if aad.client_random != request.client_random {
        return differs("client random");
    }
    if aad.server_random != request.server_random {
        return differs("server random");
    }
    if aad.client != record.endpoints.client {
        return differs("client address");
    }
    if !nat && aad.local != record.endpoints.server {
        return differs("server address");
    }
    match packets {
        Some(packets) => packets.open_first(record, aad, secrets),
        None => Ok(()),
    }
}

/// Compares the request with the recorded connection.
pub(super) fn check_recorded(request: &Request, record: &ConnectionRecord) -> Result<(), String> {
    let differs = |what: &str| Err(format!("the record is of another connection: its {what} differs"));
    match &record.tls {
        _ if request.connection != 0 && request.connection != record.connection => differs("number"),
        tls if tls.client_random != request.client_random => differs("client random"),
        tls if tls.server_random != request.server_random => differs("server random"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_evidence::connection_record::{Counts, Endpoints, TlsHellos};
    use evergate_evidence::disclosure::Scope;

    fn request() -> Request {
        Request {
            connection: 7,
            client_random: [1; 32],
            server_random: [2; 32],
            epoch: 0,
            recorder: [3; 32],
            recipient: [4; 65],
            scope: Scope::Connection,
            with_credentials: false,
            reason: "a".into(),
            reference: String::new(),
            requester: "a".into(),
            created_s: 1,
            expires_s: 2,
            nonce: [0; 16],
        }
    }

    fn record() -> ConnectionRecord {
        let [client, server] = ["10.0.0.1:5", "10.0.0.2:443"].map(|end| end.parse().unwrap());
        ConnectionRecord {
            connection: 7,
            is_final: true,
            endpoints: Endpoints { client, server, vlan: 0 },
            counts: Counts::default(),
            tls: TlsHellos { client_random: [1; 32], server_random: [2; 32], ..TlsHellos::default() },
        }
    }

    struct Packets(bool);

    impl FirstRecords for Packets {
        fn open_first(&self, _: &ConnectionRecord, _: &Aad<'_>, _: &SecretList) -> Result<(), String> {
            if self.0 { Ok(()) } else { Err("they do not open".into()) }
        }

        fn open_exchange(&self, _: &ConnectionRecord, _: &Rc<[ServerKey]>) -> Result<SecretList, String> {
            Err("there are no keys".into())
        }
    }

    #[test]
    fn each_difference_is_found() {
        let aad = Aad {
            switch: [0; 32],
            connection: 1,
            born_ns: 0,
            client: record().endpoints.client,
            local: record().endpoints.server,
            client_random: [1; 32],
            server_random: [2; 32],
            tls_version: 0x304,
            cipher_suite: 0x1301,
            feed_number: 0,
            sni: b"",
        };
        let check = |aad: Aad<'_>, record: ConnectionRecord, nat, packets: Option<&dyn FirstRecords>| {
            let envelope =
                Envelope { aad, index: 0, enc_inner: [4; 65], enc_outer: [4; 65], sealed: &[0; 40] };
            check_binding(&request(), &record, &envelope, &SecretList::default(), nat, packets).is_ok()
        };
        assert!(check(aad, record(), false, None));
        assert!(check(aad, record(), false, Some(&Packets(true))));
        assert!(!check(aad, record(), false, Some(&Packets(false))));
        let elsewhere = "10.0.0.9:1".parse().unwrap();
        for other in [
            Aad { client_random: [9; 32], ..aad },
            Aad { server_random: [9; 32], ..aad },
            Aad { client: elsewhere, ..aad },
            Aad { local: elsewhere, ..aad },
        ] {
            assert!(!check(other, record(), false, None));
        }
        assert!(check(Aad { local: elsewhere, ..aad }, record(), true, None));
        assert!(!check(aad, ConnectionRecord { connection: 8, ..record() }, false, None));
        let tls = TlsHellos { server_random: [9; 32], ..record().tls };
        assert!(!check(aad, ConnectionRecord { tls, ..record() }, false, None));
    }
}
