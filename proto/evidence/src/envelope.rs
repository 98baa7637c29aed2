//! Sealed envelopes: the traffic secrets of one connection, under the keys of its epoch.
//!
//! An envelope has public facts of the connection ([`Aad`]) and a ciphertext with two layers. The Master's escrow key
//! opens the outer layer, the Revealer's epoch key the inner one, and in it is a
//! [`SecretList`](crate::secrets::SecretList). Both layers authenticate the same facts. This module has the bytes;
//! `host/seal` has the cryptography.

use crate::connection_record::{mapped, unmapped};
use crate::cursor::{Cursor, Malformed};
use crate::merkle::Hash;
use crate::secrets::LIST_BYTES_MAX;
use std::net::SocketAddr;

/// Cipher suite 1: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, export-only contexts, AES-256-GCM.
pub const SUITE: u8 = 1;
/// Layers of an envelope.
pub const LAYERS: u16 = 2;
/// Bytes of an uncompressed point of P-256.
pub const POINT_BYTES: usize = 65;
/// Bytes that a layer adds.
pub const TAG_BYTES: usize = 16;
/// Most bytes of the ciphertext of both layers.
pub const SEALED_BYTES_MAX: usize = LIST_BYTES_MAX + LAYERS as usize * TAG_BYTES;
/// Bytes of the facts without the server name.
pub const AAD_HEAD_BYTES: usize = 169;
/// Most bytes of an envelope.
pub const ENVELOPE_BYTES_MAX: usize = AAD_HEAD_BYTES + 255 + 4 + 2 * POINT_BYTES + 2 + SEALED_BYTES_MAX;
/// Length of an epoch in nanoseconds: one hour.
pub const EPOCH_NS: u64 = 3_600_000_000_000;

const VERSION: u8 = 1;

/// An uncompressed point of P-256: a public key, or an encapsulated one.
pub type Point = [u8; POINT_BYTES];

/// Layer of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Layer {
    /// Under the Revealer's epoch key, over the secrets.
    Inner = 1,
    /// Under the Master's escrow key, over the inner layer.
    Outer = 2,
}

/// Facts of a connection that an envelope shows and both layers authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aad<'a> {
    /// Id of the switch that sealed: SHA-256 of the SPKI of its certificate, or of another key of it.
    pub switch: Hash,
    /// Number of the connection in the switch.
    pub connection: u64,
    /// Time at which the connection was accepted, in ns since 1970. It decides the epoch.
    pub born_ns: u64,
    /// The client's end.
    pub client: SocketAddr,
    /// The switch's end towards the client.
    pub local: SocketAddr,
    /// Random of the ClientHello.
    pub client_random: [u8; 32],
    /// Random of the ServerHello.
    pub server_random: [u8; 32],
    /// Negotiated version: 0x0304 is TLS 1.3.
    pub tls_version: u16,
    /// Negotiated cipher suite.
    pub cipher_suite: u16,
    /// Number of the envelope in the feed of the switch that sealed.
    pub feed_number: u32,
    /// Host name of the ClientHello, at most 255 bytes; longer ones are cut.
    pub sni: &'a [u8],
}

/// Sealed secrets of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Facts that both layers authenticate.
    pub aad: Aad<'a>,
    /// Number of the connection in its sealing contexts: 0, 1, …
    pub index: u32,
    /// Encapsulated key of the inner context.
    pub enc_inner: Point,
    /// Encapsulated key of the outer context.
    pub enc_outer: Point,
    /// Ciphertext of the outer layer.
    pub sealed: &'a [u8],
}

/// Epoch of a time in ns since 1970: the number of its hour.
pub fn epoch_of_ns(time_ns: u64) -> u64 {
    time_ns / EPOCH_NS
}

impl<'a> Aad<'a> {
    /// Epoch whose keys seal the connection.
    pub fn epoch(&self) -> u64 {
        epoch_of_ns(self.born_ns)
    }

    /// Appends the facts' bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[VERSION, SUITE]);
        out.extend_from_slice(&LAYERS.to_be_bytes());
        out.extend_from_slice(&self.switch);
        for number in [self.connection, self.epoch(), self.born_ns] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        for end in [self.client, self.local] {
            out.extend_from_slice(&mapped(end.ip()));
            out.extend_from_slice(&end.port().to_be_bytes());
        }
        out.extend_from_slice(&self.client_random);
        out.extend_from_slice(&self.server_random);
        out.extend_from_slice(&self.tls_version.to_be_bytes());
        out.extend_from_slice(&self.cipher_suite.to_be_bytes());
        out.extend_from_slice(&self.feed_number.to_be_bytes());
        let sni = &self.sni[..self.sni.len().min(usize::from(u8::MAX))];
        out.push(sni.len() as u8);
        out.extend_from_slice(sni);
    }

    /// The facts' bytes: what both layers authenticate.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(AAD_HEAD_BYTES + self.sni.len());
        self.encode_to(&mut out);
        out
    }

    fn read(cursor: &mut Cursor<'a>) -> Result<Aad<'a>, Malformed> {
        let (version, suite, layers) = (cursor.u8()?, cursor.u8()?, cursor.u16()?);
        if (version, suite, layers) != (VERSION, SUITE, LAYERS) {
            let what = format!("envelope of version {version}, suite {suite}, {layers} layers");
            return Err(Malformed(format!("{what}, expected {VERSION}, {SUITE}, {LAYERS}")));
        }
        let switch = cursor.array()?;
        let (connection, epoch, born_ns) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        if epoch != epoch_of_ns(born_ns) {
            return Err(Malformed(format!(
                "envelope of epoch {epoch}, but born in {}",
                epoch_of_ns(born_ns)
            )));
        }
        let mut end = || Ok(SocketAddr::new(unmapped(cursor.array()?), cursor.u16()?));
        let (client, local) = (end()?, end()?);
        Ok(Aad {
            switch,
            connection,
            born_ns,
            client,
            local,
            client_random: cursor.array()?,
            server_random: cursor.array()?,
            tls_version: cursor.u16()?,
            cipher_suite: cursor.u16()?,
            feed_number: cursor.u32()?,
            sni: cursor.short()?,
        })
    }
}

impl<'a> Envelope<'a> {
    /// Envelope from exactly its bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<Envelope<'a>, Malformed> {
        if bytes.len() > ENVELOPE_BYTES_MAX {
            return Err(Malformed(format!(
                "envelope of {} bytes, at most {ENVELOPE_BYTES_MAX}",
                bytes.len()
            )));
        }
        let mut cursor = Cursor::new(bytes);
        let envelope = Envelope {
            aad: Aad::read(&mut cursor)?,
            index: cursor.u32()?,
            enc_inner: point(&mut cursor)?,
            enc_outer: point(&mut cursor)?,
            sealed: cursor.long()?,
        };
        cursor.end()?;
        let tags = usize::from(LAYERS) * TAG_BYTES;
        match envelope.sealed.len() {
            len if len <= tags || len > SEALED_BYTES_MAX => {
                let bounds = format!("expected {} to {SEALED_BYTES_MAX}", tags + 1);
                Err(Malformed(format!("envelope with {len} sealed bytes, {bounds}")))
            }
            _ => Ok(envelope),
        }
    }

    /// Appends the envelope's bytes.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        self.aad.encode_to(out);
        out.extend_from_slice(&self.index.to_be_bytes());
        out.extend_from_slice(&self.enc_inner);
        out.extend_from_slice(&self.enc_outer);
        out.extend_from_slice(&(self.sealed.len() as u16).to_be_bytes());
        out.extend_from_slice(self.sealed);
    }

    /// The envelope's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENVELOPE_BYTES_MAX);
        self.encode_to(&mut out);
        out
    }

    /// Encapsulated key of a layer.
    pub fn enc(&self, layer: Layer) -> &Point {
        match layer {
            Layer::Inner => &self.enc_inner,
            Layer::Outer => &self.enc_outer,
        }
    }
}

/// Reads an uncompressed point. Whether it is on the curve is for the cryptography to find.
pub(crate) fn point(cursor: &mut Cursor<'_>) -> Result<Point, Malformed> {
    let point: Point = cursor.array()?;
    match point[0] {
        4 => Ok(point),
        other => Err(Malformed(format!("point of form {other}, expected the uncompressed form 4"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn aad(sni: &[u8]) -> Aad<'_> {
        Aad {
            switch: [1; 32],
            connection: 7,
            born_ns: 500_000 * EPOCH_NS + 5,
            client: "10.0.0.1:50000".parse().unwrap(),
            local: "[fd00::2]:443".parse().unwrap(),
            client_random: [2; 32],
            server_random: [3; 32],
            tls_version: 0x304,
            cipher_suite: 0x1301,
            feed_number: 9,
            sni,
        }
    }

    fn envelope<'a>(sni: &'a [u8], sealed: &'a [u8]) -> Envelope<'a> {
        Envelope { aad: aad(sni), index: 4, enc_inner: [4; 65], enc_outer: [4; 65], sealed }
    }

    #[test]
    fn facts_have_the_layout_of_the_specification() {
        let bytes = aad(b"a.test").encode();
        assert_eq!(bytes.len(), AAD_HEAD_BYTES + 6);
        assert_eq!(bytes[..4], [1, 1, 0, 2]);
        assert_eq!(bytes[4..36], [1; 32]);
        assert_eq!(bytes[36..44], 7_u64.to_be_bytes());
        assert_eq!(bytes[44..52], 500_000_u64.to_be_bytes());
        assert_eq!(bytes[60..78], *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\xc3\x50");
        assert_eq!(bytes[94..96], 443_u16.to_be_bytes());
        assert_eq!(bytes[96..160], [[2; 32], [3; 32]].concat());
        assert_eq!(bytes[160..], *b"\x03\x04\x13\x01\0\0\0\x09\x06a.test");
    }

    #[test]
    fn envelope_survives_both_ways() {
        for (sni, sealed) in
            [(&b""[..], &[5; 33][..]), (b"a.test", &[6; 240]), (&[b'n'; 255], &[7; SEALED_BYTES_MAX])]
        {
            let envelope = envelope(sni, sealed);
            let bytes = envelope.encode();
            assert_eq!(Envelope::decode(&bytes), Ok(envelope));
            assert!(bytes.len() <= ENVELOPE_BYTES_MAX);
            for len in 0..bytes.len() {
                assert!(Envelope::decode(&bytes[..len]).is_err());
            }
            assert!(Envelope::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        assert_eq!(envelope(&[b'n'; 255], &[7; SEALED_BYTES_MAX]).encode().len(), ENVELOPE_BYTES_MAX);
    }

    #[test]
    fn envelope_outside_its_bounds_is_refused() {
        for sealed in [&[0; 32][..], &[0; SEALED_BYTES_MAX + 1]] {
            assert!(Envelope::decode(&envelope(b"", sealed).encode()).is_err());
        }
        assert!(Envelope::decode(&vec![1; 1 << 20]).is_err());
        let good = envelope(b"", &[5; 40]).encode();
        let epoch = 44 + 7;
        let enc_inner = AAD_HEAD_BYTES + 4;
        for at in [0, 1, 2, 3, epoch, enc_inner, enc_inner + POINT_BYTES] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(Envelope::decode(&bytes).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn decoded_bytes_encode_to_themselves(
            at: usize, bit in 0_u8..8, sni in proptest::collection::vec(any::<u8>(), 0..256),
            sealed in proptest::collection::vec(any::<u8>(), 0..500),
            noise in proptest::collection::vec(any::<u8>(), 0..500),
        ) {
            let mut bytes = envelope(&sni, &sealed).encode();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            for bytes in [bytes, noise] {
                if let Ok(envelope) = Envelope::decode(&bytes) {
                    prop_assert_eq!(envelope.encode(), bytes);
                }
            }
        }
    }
}
