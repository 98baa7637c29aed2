//! Key of the log in an HSM, through its PKCS#11 module.
//!
//! Ed25519 keys sign with CKM_EDDSA, P-256 keys with CKM_ECDSA over the SHA-256 that this process computes. A session
//! that fails is opened again at the next signature.

use crate::problem::{Problem, file_problem};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;
use evergate_crypto::{LogKeyKind, p256_signature_der};
use evergate_evidence::merkle::{Hash, sha256};
use evergate_evidence::note::PublicKey;
use std::path::Path;

/// Curve of Ed25519 keys: its name as a printable string (SoftHSM), or its object identifier.
const ED25519_PARAMS: [&[u8]; 2] = [b"\x13\x0cedwards25519", b"\x06\x03\x2b\x65\x70"];
/// Object identifier of P-256.
const P256_PARAMS: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";

/// Key in an HSM.
pub struct HsmKey {
    module: Pkcs11,
    slot: Slot,
    label: String,
    pin: AuthPin,
    kind: LogKeyKind,
    public: PublicKey,
    session: Option<(Session, ObjectHandle)>,
}

impl HsmKey {
    /// Loads the module, logs in and finds the key pair.
    pub fn open(module: &Path, token: &str, label: &str, pin_file: &Path) -> Result<HsmKey, Problem> {
        let name = module.display().to_string();
        let pin = std::fs::read_to_string(pin_file).map_err(|error| {
            file_problem(pin_file, &error, "write the user's PIN into signer.pin_file, mode 0400")
        })?;
        let pin = AuthPin::from(pin.trim_end_matches(['\n', '\r']).to_owned());
        let pkcs11 = Pkcs11::new(module).map_err(|error| {
            let remedy = "give the PKCS#11 library of the HSM as signer.module (SoftHSM: libsofthsm2.so)";
            Problem::new(&name, format!("the module does not load: {error}"), remedy)
        })?;
        pkcs11.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).map_err(|error| {
            let remedy = "check the module's own configuration (SoftHSM: SOFTHSM2_CONF and its rights)";
            Problem::new(&name, format!("the module does not start: {error}"), remedy)
        })?;
        let slot = find_token(&pkcs11, token)?;
        let session = log_in(&pkcs11, slot, &pin).map_err(|error| pin_problem(token, pin_file, &error))?;
        let (kind, public) = find_public(&session, label).map_err(|what| key_problem(token, label, &what))?;
        let key = find_private(&session, label, kind).map_err(|what| key_problem(token, label, &what))?;
        Ok(HsmKey {
            module: pkcs11,
            slot,
            label: label.into(),
            pin,
            kind,
            public,
            session: Some((session, key)),
        })
    }

    /// The public key.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Signature in the form of notes.
    pub fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, String> {
        let (session, key) = match self.session.take() {
            Some(open) => open,
            None => {
                let session =
                    log_in(&self.module, self.slot, &self.pin).map_err(|error| error.to_string())?;
                let key = find_private(&session, &self.label, self.kind)?;
                (session, key)
            }
        };
        let signed = match self.kind {
            LogKeyKind::Ed25519 => {
                let mechanism = Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Ed25519));
                session.sign(&mechanism, key, message).map_err(|error| error.to_string())?
            }
            LogKeyKind::EcdsaP256 => {
                let numbers = session.sign(&Mechanism::Ecdsa, key, &sha256(message));
                let numbers = numbers.map_err(|error| error.to_string())?;
                p256_signature_der(&numbers).ok_or("the HSM gave no P-256 signature")?
            }
        };
        self.session = Some((session, key));
        Ok(signed)
    }
}

fn find_token(module: &Pkcs11, label: &str) -> Result<Slot, Problem> {
    let failed =
        |error: Error| Problem::new("signer", format!("cannot list tokens: {error}"), "check the HSM");
    let mut found = Vec::new();
    let mut slots = Vec::new();
    for slot in module.get_slots_with_token().map_err(failed)? {
        let Ok(info) = module.get_token_info(slot) else { continue };
        if info.label().trim_end() == label {
            slots.push(slot);
        }
        if info.token_initialized() {
            found.push(format!("'{}'", info.label().trim_end()));
        }
    }
    match slots[..] {
        [slot] => Ok(slot),
        [] => Err(Problem::new(
            format!("signer.token '{label}'"),
            format!(
                "no such token; the module has: {}",
                if found.is_empty() { "none".into() } else { found.join(", ") }
            ),
            "initialise it (softhsm2-util --init-token --free --label NAME), or correct signer.token",
        )),
        _ => Err(Problem::new(
            format!("signer.token '{label}'"),
            "several tokens have this label",
            "give each token its own label",
        )),
    }
}

fn log_in(module: &Pkcs11, slot: Slot, pin: &AuthPin) -> Result<Session, Error> {
    let session = module.open_ro_session(slot)?;
    match session.login(UserType::User, Some(pin)) {
        Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(session),
        Err(error) => Err(error),
    }
}

fn pin_problem(token: &str, pin_file: &Path, error: &Error) -> Problem {
    let place = format!("signer.token '{token}'");
    match error {
        Error::Pkcs11(RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange, _) => Problem::new(
            place,
            format!("the PIN of {} is wrong", pin_file.display()),
            "correct the file before the next start: an HSM locks the PIN after a few attempts",
        ),
        Error::Pkcs11(RvError::PinLocked, _) => {
            Problem::new(place, "the PIN is locked", "unlock it with the security officer's PIN")
        }
        error => Problem::new(place, format!("cannot log in: {error}"), "check the token and its user PIN"),
    }
}

fn key_problem(token: &str, label: &str, what: &str) -> Problem {
    let remedy = "make an Ed25519 or P-256 key pair with this label in the token (pkcs11-tool --keypairgen \
        --key-type EC:edwards25519 --label NAME), or correct signer.key";
    Problem::new(format!("signer.key '{label}' in token '{token}'"), what, remedy)
}

fn find_public(session: &Session, label: &str) -> Result<(LogKeyKind, PublicKey), String> {
    let template = [Attribute::Class(ObjectClass::PUBLIC_KEY), Attribute::Label(label.into())];
    let found = session.find_objects(&template).map_err(|error| error.to_string())?;
    let [object] = found[..] else {
        return Err(match found.len() {
            0 => "no such public key".into(),
            count => format!("{count} public keys have this label"),
        });
    };
    let wanted = [AttributeType::KeyType, AttributeType::EcParams, AttributeType::EcPoint];
    let attributes = session.get_attributes(object, &wanted).map_err(|error| error.to_string())?;
    let mut kind = None;
    let (mut params, mut point) = (Vec::new(), Vec::new());
    for attribute in attributes {
        match attribute {
            Attribute::KeyType(found) => kind = Some(found),
            Attribute::EcParams(bytes) => params = bytes,
            Attribute::EcPoint(bytes) => point = bytes,
            _ => {}
        }
    }
    let other =
        || format!("the key is of another kind ({})", kind.map_or("unknown".into(), |k| k.to_string()));
    // An octet string around the point; some modules leave it out.
    let point: &[u8] = match point[..] {
        [4, len, ref rest @ ..] if usize::from(len) == rest.len() => rest,
        ref bare => bare,
    };
    match kind {
        Some(KeyType::EC_EDWARDS) if ED25519_PARAMS.contains(&&params[..]) => {
            let key: Hash = point.try_into().map_err(|_| other())?;
            Ok((LogKeyKind::Ed25519, PublicKey::Ed25519(key)))
        }
        Some(KeyType::EC) if params == P256_PARAMS => {
            let point: [u8; 65] = point.try_into().map_err(|_| other())?;
            Ok((LogKeyKind::EcdsaP256, PublicKey::EcdsaP256(point)))
        }
        _ => Err(other()),
    }
}

fn find_private(session: &Session, label: &str, kind: LogKeyKind) -> Result<ObjectHandle, String> {
    let kind = match kind {
        LogKeyKind::Ed25519 => KeyType::EC_EDWARDS,
        LogKeyKind::EcdsaP256 => KeyType::EC,
    };
    let template = [
        Attribute::Class(ObjectClass::PRIVATE_KEY),
        Attribute::Label(label.into()),
        Attribute::KeyType(kind),
    ];
    let found = session.find_objects(&template).map_err(|error| error.to_string())?;
    match found[..] {
        [key] => Ok(key),
        [] => Err("no such private key".into()),
        _ => Err(format!("{} private keys have this label", found.len())),
    }
}
