//! Another implementation of RFC 9180 opens what a context seals, and what it seals opens here.

use aws_lc_rs::aead::{AES_256_GCM, Aad as GcmAad, LessSafeKey, Nonce, UnboundKey};
use evergate_evidence::disclosure::Grant;
use evergate_evidence::envelope::{Aad, EPOCH_NS, Envelope, Layer, POINT_BYTES, Point};
use evergate_evidence::epochs::EpochKeys;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_seal::{
    Decapsulate, FileKeys, OpenError, RecipientKey, SealContext, Shared, open_layer, open_secrets, seal_grant,
};
use hpke::aead::{AesGcm256, ExportOnlyAead};
use hpke::kdf::HkdfSha256;
use hpke::kem::DhP256HkdfSha256;
use hpke::{Deserializable, Kem, OpModeR, OpModeS, Serializable, setup_receiver, setup_sender};
use proptest::prelude::*;

type PrivateKey = <DhP256HkdfSha256 as Kem>::PrivateKey;

const EPOCH: u64 = 497_000;
const INFO: &[u8] = b"evergate-audit seal v1";

fn aad(sni: &[u8]) -> Aad<'_> {
    Aad {
        switch: [1; 32],
        connection: 7,
        born_ns: EPOCH * EPOCH_NS + 5,
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

fn secrets(byte: u8) -> SecretList {
    let mut list = SecretList::default();
    Label::ALL[1..].iter().for_each(|label| list.set(*label, &[byte; 48]).unwrap());
    list
}

fn point(key: &<DhP256HkdfSha256 as Kem>::PublicKey) -> Point {
    key.to_bytes().as_slice().try_into().unwrap()
}

fn label(layer: u8, index: u32) -> Vec<u8> {
    [INFO, &[layer], &index.to_be_bytes()].concat()
}

fn gcm(key: &[u8; 44]) -> (LessSafeKey, Nonce) {
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..32]).unwrap());
    (cipher, Nonce::try_assume_unique_for_key(&key[32..]).unwrap())
}

/// The layer's content, by the other implementation.
fn open_by_oracle(
    private: &PrivateKey,
    enc: &Point,
    layer: u8,
    index: u32,
    aad: &[u8],
    sealed: &[u8],
) -> Vec<u8> {
    let enc = <DhP256HkdfSha256 as Kem>::EncappedKey::from_bytes(enc).unwrap();
    let context =
        setup_receiver::<ExportOnlyAead, HkdfSha256, DhP256HkdfSha256>(&OpModeR::Base, private, &enc, INFO);
    let mut key = [0; 44];
    context.unwrap().export(&label(layer, index), &mut key).unwrap();
    let (cipher, nonce) = gcm(&key);
    let mut buffer = sealed.to_vec();
    cipher.open_in_place(nonce, GcmAad::from(aad), &mut buffer).unwrap().to_vec()
}

#[test]
fn other_implementation_opens_both_layers() {
    let (inner, inner_public) = DhP256HkdfSha256::gen_keypair();
    let (outer, outer_public) = DhP256HkdfSha256::gen_keypair();
    let keys = EpochKeys { epoch: EPOCH, inner: point(&inner_public), outer: point(&outer_public) };
    let mut context = SealContext::new(&keys).unwrap();
    for index in 0..3 {
        let bytes = context.seal(&aad(b"a.test"), &secrets(index as u8)).unwrap();
        let envelope = Envelope::decode(&bytes).unwrap();
        assert_eq!((envelope.index, envelope.aad), (index, aad(b"a.test")));
        let facts = envelope.aad.encode();
        let middle = open_by_oracle(&outer, &envelope.enc_outer, 2, index, &facts, envelope.sealed);
        let clear = open_by_oracle(&inner, &envelope.enc_inner, 1, index, &facts, &middle);
        assert_eq!(clear, secrets(index as u8).encode()[..]);
    }
}

#[test]
fn layers_of_the_other_implementation_open_here() {
    let (mut inner, mut outer) = (FileKeys::default(), FileKeys::default());
    let publics = [inner.create(EPOCH).unwrap(), outer.create(EPOCH).unwrap()];
    let (facts, mut buffer) = (aad(b"").encode(), secrets(8).encode().to_vec());
    let mut encs = [[0; POINT_BYTES]; 2];
    for (place, layer) in [(0, 1), (1, 2)] {
        let public = <DhP256HkdfSha256 as Kem>::PublicKey::from_bytes(&publics[place]).unwrap();
        let (enc, context) =
            setup_sender::<ExportOnlyAead, HkdfSha256, DhP256HkdfSha256>(&OpModeS::Base, &public, INFO)
                .unwrap();
        encs[place] = enc.to_bytes().as_slice().try_into().unwrap();
        let mut key = [0; 44];
        context.export(&label(layer, 1023), &mut key).unwrap();
        let (cipher, nonce) = gcm(&key);
        cipher.seal_in_place_append_tag(nonce, GcmAad::from(&facts), &mut buffer).unwrap();
    }
    let [enc_inner, enc_outer] = encs;
    let envelope = Envelope { aad: aad(b""), index: 1023, enc_inner, enc_outer, sealed: &buffer };
    let middle = open_layer(&envelope, Layer::Outer, envelope.sealed, &mut outer).unwrap();
    assert_eq!(open_secrets(&envelope, &middle, &mut inner).unwrap(), secrets(8));
}

/// Keys by the other implementation's ECDH: the shared secret that an HSM would give.
struct Wrong;

impl Decapsulate for Wrong {
    fn shared(&mut self, _: Layer, _: u64, _: &Point) -> Result<Shared, OpenError> {
        Ok(Shared { public: [4; 65], secret: [9; 32].into() })
    }
}

#[test]
fn wrong_shared_secret_opens_nothing() {
    let mut keys = FileKeys::default();
    let public = keys.create(EPOCH).unwrap();
    let mut context = SealContext::new(&EpochKeys { epoch: EPOCH, inner: public, outer: public }).unwrap();
    let bytes = context.seal(&aad(b""), &secrets(1)).unwrap();
    let envelope = Envelope::decode(&bytes).unwrap();
    let opened = open_layer(&envelope, Layer::Outer, envelope.sealed, &mut Wrong);
    assert_eq!(opened, Err(OpenError::Closed(Layer::Outer)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A changed bit of facts, number, encapsulated keys or ciphertext is refused, in whichever layer it is found.
    #[test]
    fn changed_envelope_does_not_open(
        at: usize, bit in 0_u8..8, sni in proptest::collection::vec(any::<u8>(), 0..255),
    ) {
        let (mut inner, mut outer) = (FileKeys::default(), FileKeys::default());
        let keys = EpochKeys {
            epoch: EPOCH,
            inner: inner.create(EPOCH).unwrap(),
            outer: outer.create(EPOCH).unwrap(),
        };
        let mut context = SealContext::new(&keys).unwrap();
        let mut bytes = context.seal(&aad(&sni), &secrets(5)).unwrap();
        let open = |bytes: &[u8], inner: &mut FileKeys, outer: &mut FileKeys| {
            let envelope = Envelope::decode(bytes).map_err(OpenError::Content)?;
            let middle = open_layer(&envelope, Layer::Outer, envelope.sealed, outer)?;
            open_secrets(&envelope, &middle, inner)
        };
        prop_assert_eq!(open(&bytes, &mut inner, &mut outer), Ok(secrets(5)));
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        prop_assert!(open(&bytes, &mut inner, &mut outer).is_err());
    }
}

fn grant(enc: Point, sealed: Vec<u8>, note: &str) -> Grant {
    Grant {
        index: 5,
        received_ms: 9,
        note: note.into(),
        proof: Vec::new(),
        envelope: Vec::new(),
        enc,
        sealed,
    }
}

#[test]
fn other_implementation_opens_a_grant_and_makes_one() {
    let recipient = RecipientKey::parse(&RecipientKey::generate().unwrap().to_text().unwrap()).unwrap();
    let aad = grant([4; 65], Vec::new(), "note").aad();
    let (enc, sealed) = seal_grant(&recipient.public(), &aad, &secrets(3)).unwrap();
    let opened = recipient.open(&grant(enc, sealed.clone(), "note"));
    assert_eq!(opened, Ok(secrets(3)));
    // Bound to the request and to its place in the log.
    assert_eq!(recipient.open(&grant(enc, sealed.clone(), "other")), Err(OpenError::Grant));
    assert_eq!(recipient.open(&Grant { index: 6, ..grant(enc, sealed, "note") }), Err(OpenError::Grant));
    let public = <DhP256HkdfSha256 as Kem>::PublicKey::from_bytes(&recipient.public()).unwrap();
    let (enc, mut context) = setup_sender::<AesGcm256, HkdfSha256, DhP256HkdfSha256>(
        &OpModeS::Base,
        &public,
        b"evergate-audit reveal v1",
    )
    .unwrap();
    let sealed = context.seal(&secrets(4).encode(), &aad).unwrap();
    let enc = enc.to_bytes().as_slice().try_into().unwrap();
    assert_eq!(recipient.open(&grant(enc, sealed, "note")), Ok(secrets(4)));
    let (private, public) = DhP256HkdfSha256::gen_keypair();
    let (enc, sealed) = seal_grant(&point(&public), &aad, &secrets(5)).unwrap();
    let enc = <DhP256HkdfSha256 as Kem>::EncappedKey::from_bytes(&enc).unwrap();
    let mut context = setup_receiver::<AesGcm256, HkdfSha256, DhP256HkdfSha256>(
        &OpModeR::Base,
        &private,
        &enc,
        b"evergate-audit reveal v1",
    )
    .unwrap();
    assert_eq!(context.open(&sealed, &aad).unwrap(), secrets(5).encode()[..]);
}
