//! Key of the log in an HSM, through its PKCS#11 module.
//!
//! Ed25519 keys sign with CKM_EDDSA, P-256 keys with CKM_ECDSA over the SHA-256 that this process computes. After
//! an error the next signature opens the module again, but never with a PIN that the token refused.

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
use std::path::{Path, PathBuf};

/// Curve of Ed25519 keys: its name as a printable string (SoftHSM), or its object identifier.
const ED25519_PARAMS: [&[u8]; 2] = [b"\x13\x0cedwards25519", b"\x06\x03\x2b\x65\x70"];
/// Object identifier of P-256.
const P256_PARAMS: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";

/// Place of a key.
struct Place {
    module: PathBuf,
    token: String,
    label: String,
    pin_file: PathBuf,
}

/// Open session with the key.
struct Open {
    module: Pkcs11,
    session: Session,
    key: ObjectHandle,
    kind: LogKeyKind,
    public: PublicKey,
}

/// Key in an HSM.
pub struct HsmKey {
    place: Place,
    public: PublicKey,
    state: State,
}

enum State {
    Open(Box<Open>),
    /// The next signature opens the module again.
    Closed,
    /// The token refused the PIN: another attempt could lock it.
    PinRefused(String),
}

impl HsmKey {
    /// Loads the module, logs in and finds the key pair.
    pub fn open(module: &Path, token: &str, label: &str, pin_file: &Path) -> Result<HsmKey, Problem> {
        let place = Place {
            module: module.into(),
            token: token.into(),
            label: label.into(),
            pin_file: pin_file.into(),
        };
        let open = Open::new(&place).map_err(|failure| failure.problem)?;
        Ok(HsmKey { place, public: open.public, state: State::Open(Box::new(open)) })
    }

    /// The public key.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Signature in the form of notes. After an error the next call begins with a new session.
    pub fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, String> {
        let open = match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(open) => open,
            State::Closed => self.reopen()?,
            State::PinRefused(error) => {
                self.state = State::PinRefused(error.clone());
                return Err(error);
            }
        };
        match open.sign(message) {
            Ok(signature) => {
                self.state = State::Open(open);
                Ok(signature)
            }
            Err(error) => {
                open.close();
                Err(error)
            }
        }
    }

    fn reopen(&mut self) -> Result<Box<Open>, String> {
        let open = Open::new(&self.place).map_err(|failure| {
            let error = failure.problem.to_string();
            if failure.is_pin {
                self.state = State::PinRefused(format!("{error}; then start the Master again"));
            }
            error
        })?;
        if open.public != self.public {
            open.close();
            return Err("the token has another key under this label".into());
        }
        Ok(Box::new(open))
    }
}

/// Reason why a session cannot be opened.
struct Failure {
    problem: Problem,
    /// Whether the token refused the PIN.
    is_pin: bool,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure { problem, is_pin: false }
    }
}

impl Open {
    fn new(place: &Place) -> Result<Open, Failure> {
        let name = place.module.display().to_string();
        let pin = std::fs::read_to_string(&place.pin_file).map_err(|error| {
            file_problem(&place.pin_file, &error, "write the user's PIN into signer.pin_file, mode 0400")
        })?;
        let pin = AuthPin::from(pin.trim_end_matches(['\n', '\r']).to_owned());
        let module = Pkcs11::new(&place.module).map_err(|error| {
            let remedy = "give the PKCS#11 library of the HSM as signer.module (SoftHSM: libsofthsm2.so)";
            Problem::new(&name, format!("the module does not load: {error}"), remedy)
        })?;
        module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).map_err(|error| {
            let remedy = "check the module's own configuration (SoftHSM: SOFTHSM2_CONF and its rights)";
            Problem::new(&name, format!("the module does not start: {error}"), remedy)
        })?;
        let opened = Open::log_in(&module, place, &pin);
        match opened {
            Ok((session, key, kind, public)) => Ok(Open { module, session, key, kind, public }),
            Err(failure) => {
                let _ = module.finalize();
                Err(failure)
            }
        }
    }

    fn log_in(
        module: &Pkcs11,
        place: &Place,
        pin: &AuthPin,
    ) -> Result<(Session, ObjectHandle, LogKeyKind, PublicKey), Failure> {
        let Place { token, label, pin_file, .. } = place;
        let slot = find_token(module, token)?;
        let session = log_in(module, slot, pin).map_err(|error| pin_problem(token, pin_file, &error))?;
        let (kind, public) = find_public(&session, label).map_err(|what| key_problem(token, label, &what))?;
        let key = find_private(&session, label, kind).map_err(|what| key_problem(token, label, &what))?;
        Ok((session, key, kind, public))
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let Open { session, key, kind, .. } = self;
        match kind {
            LogKeyKind::Ed25519 => {
                let mechanism = Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Ed25519));
                session.sign(&mechanism, *key, message).map_err(|error| error.to_string())
            }
            LogKeyKind::EcdsaP256 => {
                let numbers = session.sign(&Mechanism::Ecdsa, *key, &sha256(message));
                let numbers = numbers.map_err(|error| error.to_string())?;
                p256_signature_der(&numbers).ok_or_else(|| "the HSM gave no P-256 signature".into())
            }
        }
    }

    /// Ends session and module: many HSMs that were away need both.
    fn close(self) {
        let Open { module, session, .. } = self;
        drop(session);
        let _ = module.finalize();
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

fn pin_problem(token: &str, pin_file: &Path, error: &Error) -> Failure {
    let place = format!("signer.token '{token}'");
    match error {
        Error::Pkcs11(RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange, _) => {
            let what = format!("the PIN of {} is wrong", pin_file.display());
            let remedy = "correct the file before the next start: an HSM locks the PIN after a few attempts";
            Failure { problem: Problem::new(place, what, remedy), is_pin: true }
        }
        Error::Pkcs11(RvError::PinLocked, _) => {
            let remedy = "unlock it with the security officer's PIN";
            Failure { problem: Problem::new(place, "the PIN is locked", remedy), is_pin: true }
        }
        error => {
            let what = format!("cannot log in: {error}");
            Problem::new(place, what, "check the token and its user PIN").into()
        }
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
