//! Secrets for one recipient: HPKE with AES-256-GCM, bound to the request's entry in the log.

use crate::error::{OpenError, SealError};
use crate::hpke::{self, dh_of};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use evergate_evidence::base64;
use evergate_evidence::disclosure::Grant;
use evergate_evidence::disclosure::grant::INFO;
use evergate_evidence::envelope::{Layer, Point, TAG_BYTES};
use evergate_evidence::secrets::{LIST_BYTES_MAX, SecretList};
use zeroize::Zeroizing;

/// Secrets under a recipient's key: the encapsulated key and the ciphertext.
pub fn seal_grant(
    recipient: &Point,
    aad: &[u8],
    secrets: &SecretList,
) -> Result<(Point, Vec<u8>), SealError> {
    let (enc, dh) = hpke::encapsulate(recipient).ok_or(SealError::Key(Layer::Inner, 0))?;
    let bytes = hpke::first_key(&dh, &enc, recipient, INFO);
    let (key, nonce) = cipher(&bytes[..]).ok_or(SealError::Crypto("AES-256-GCM"))?;
    let mut buffer = Zeroizing::new(Vec::with_capacity(LIST_BYTES_MAX + TAG_BYTES));
    secrets.encode_to(&mut buffer);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), &mut buffer);
    let tag = tag.map_err(|_| SealError::Crypto("AES-256-GCM"))?;
    Ok((enc, [&buffer[..], tag.as_ref()].concat()))
}

/// Whether these bytes are a public key of P-256.
pub fn is_public_key(point: &Point) -> bool {
    hpke::is_point(point)
}

/// Private key of a recipient, from a file with its number in base64.
pub struct RecipientKey {
    private: PrivateKey,
    public: Point,
}

impl RecipientKey {
    /// New key.
    pub fn generate() -> Result<RecipientKey, OpenError> {
        let private = PrivateKey::generate(&ECDH_P256).ok();
        private.and_then(RecipientKey::of).ok_or_else(|| OpenError::Keys("a key cannot be generated".into()))
    }

    /// Key from the text of its file.
    pub fn parse(text: &str) -> Result<RecipientKey, OpenError> {
        let wrong = || OpenError::Keys("the file has no private key of P-256 in base64".into());
        let number = base64::decode_array::<32>(text.trim_end()).map(Zeroizing::new).ok_or_else(wrong)?;
        let private = PrivateKey::from_private_key(&ECDH_P256, &number[..]).ok();
        private.and_then(RecipientKey::of).ok_or_else(wrong)
    }

    /// Text that [`RecipientKey::parse`] reads.
    pub fn to_text(&self) -> Result<Zeroizing<String>, OpenError> {
        let number: EcPrivateKeyBin<'_> =
            self.private.as_be_bytes().map_err(|_| OpenError::Keys("the key cannot be written".into()))?;
        Ok(Zeroizing::new(base64::encode(number.as_ref()) + "\n"))
    }

    /// The public key, for requests.
    pub fn public(&self) -> Point {
        self.public
    }

    /// Secrets of a grant. Whether its proof holds is another question.
    pub fn open(&self, grant: &Grant) -> Result<SecretList, OpenError> {
        let dh = agree(&self.private, UnparsedPublicKey::new(&ECDH_P256, &grant.enc), (), dh_of);
        let bytes = hpke::first_key(&dh.map_err(|()| OpenError::Point)?, &grant.enc, &self.public, INFO);
        let (key, nonce) = cipher(&bytes[..]).ok_or(OpenError::Grant)?;
        let mut buffer = Zeroizing::new(grant.sealed.clone());
        let opened = key.open_in_place(nonce, Aad::from(grant.aad()), &mut buffer);
        Ok(SecretList::decode(opened.map_err(|_| OpenError::Grant)?)?)
    }

    fn of(private: PrivateKey) -> Option<RecipientKey> {
        let public = private.compute_public_key().ok()?.as_ref().try_into().ok()?;
        Some(RecipientKey { private, public })
    }
}

fn cipher(bytes: &[u8]) -> Option<(LessSafeKey, Nonce)> {
    let (key, nonce) = bytes.split_at_checked(32)?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
    Some((key, Nonce::try_assume_unique_for_key(nonce).ok()?))
}

impl std::fmt::Debug for RecipientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecipientKey({})", base64::encode(&self.public))
    }
}
