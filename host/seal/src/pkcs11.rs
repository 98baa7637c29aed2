//! Private keys of epochs in an HSM, through its PKCS#11 module.
//!
//! A key pair has the label `evergate-PURPOSE-EPOCH`. The private key derives and does nothing else, and leaves the
//! token in no form. After an error the next call opens the module again, but never with a PIN that the token refused.
//! Another user of the module in this process may initialise and finalise it: a call that finds its session gone opens
//! one more.

use crate::error::OpenError;
use crate::open::{Decapsulate, Shared};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::mechanism::elliptic_curve::{EcKdf, Ecdh1DeriveParams};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;
use evergate_evidence::envelope::{Layer, POINT_BYTES, Point};
use std::path::PathBuf;
use zeroize::{Zeroize, Zeroizing};

/// Object identifier of P-256.
const P256_PARAMS: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const SECRET_BYTES: usize = 32;

/// Place of the keys of one purpose.
#[derive(Clone, Debug)]
pub struct HsmPlace {
    /// PKCS#11 library.
    pub module: PathBuf,
    /// Label of the token.
    pub token: String,
    /// File with the user's PIN.
    pub pin_file: PathBuf,
    /// Middle part of the labels: `escrow` or `reveal`.
    pub purpose: String,
}

/// Keys of epochs in a token.
pub struct HsmKeys {
    place: HsmPlace,
    module: Pkcs11,
    state: State,
}

enum State {
    Open(Session),
    /// The next call opens a session.
    Closed,
    /// The token refused the PIN: another attempt could lock it.
    PinRefused(String),
}

impl HsmKeys {
    /// Loads the module and logs in.
    pub fn open(place: HsmPlace) -> Result<HsmKeys, OpenError> {
        let module =
            Pkcs11::new(&place.module).map_err(|error| failed(&place, "the module does not load", &error))?;
        let mut keys = HsmKeys { place, module, state: State::Closed };
        keys.with(|_, _| Ok(()))?;
        Ok(keys)
    }

    /// Makes the key pair of an epoch unless it is there, and returns the public key.
    pub fn create(&mut self, epoch: u64) -> Result<Point, OpenError> {
        self.with(|session, label| {
            let label = label(epoch);
            match find(session, ObjectClass::PRIVATE_KEY, &label)?.is_some() {
                true => {}
                false => {
                    // A public key alone is left of a creation that a crash cut short.
                    destroy_all(session, &label)?;
                    generate(session, &label, epoch)?;
                }
            }
            public(session, &label)?
                .ok_or_else(|| "the token has the private key without the public one".into())
        })
    }

    /// Public key of an epoch, if the private one is there.
    pub fn public(&mut self, epoch: u64) -> Result<Option<Point>, OpenError> {
        self.with(|session, label| match find(session, ObjectClass::PRIVATE_KEY, &label(epoch))? {
            Some(_) => public(session, &label(epoch)),
            None => Ok(None),
        })
    }

    /// Epochs whose private keys are in the token, in ascending order.
    pub fn epochs(&mut self) -> Result<Vec<u64>, OpenError> {
        self.with(|session, label| {
            let prefix = label(0);
            let prefix = prefix.strip_suffix('0').unwrap_or(&prefix);
            let template = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::KeyType(KeyType::EC)];
            let mut epochs = Vec::new();
            for object in session.find_objects(&template)? {
                for attribute in session.get_attributes(object, &[AttributeType::Label])? {
                    let Attribute::Label(text) = attribute else { continue };
                    let number = std::str::from_utf8(&text).ok().and_then(|text| text.strip_prefix(prefix));
                    epochs.extend(number.and_then(|number| number.parse::<u64>().ok()));
                }
            }
            epochs.sort_unstable();
            Ok(epochs)
        })
    }

    /// Destroys the key pair of an epoch. Whether the private key was there.
    pub fn destroy(&mut self, epoch: u64) -> Result<bool, OpenError> {
        self.with(|session, label| destroy_all(session, &label(epoch)))
    }

    /// Runs a call in a session, and a second time if the session was gone.
    fn with<T>(
        &mut self,
        call: impl Fn(&Session, &dyn Fn(u64) -> String) -> Result<T, CallError>,
    ) -> Result<T, OpenError> {
        let purpose = self.place.purpose.clone();
        let label = move |epoch: u64| format!("evergate-{purpose}-{epoch}");
        let was_open = matches!(self.state, State::Open(_));
        let error = match self.attempt(&call, &label)? {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if was_open && let Ok(value) = self.attempt(&call, &label)? {
            return Ok(value);
        }
        Err(OpenError::Keys(format!("token '{}': {error}", self.place.token)))
    }

    fn attempt<T>(
        &mut self,
        call: &impl Fn(&Session, &dyn Fn(u64) -> String) -> Result<T, CallError>,
        label: &dyn Fn(u64) -> String,
    ) -> Result<Result<T, CallError>, OpenError> {
        let session = match std::mem::replace(&mut self.state, State::Closed) {
            State::Open(session) => session,
            State::Closed => self.log_in()?,
            State::PinRefused(error) => {
                self.state = State::PinRefused(error.clone());
                return Err(OpenError::Keys(error));
            }
        };
        let result = call(&session, label);
        if result.is_ok() {
            self.state = State::Open(session);
        }
        Ok(result)
    }

    fn log_in(&mut self) -> Result<Session, OpenError> {
        let place = &self.place;
        let pin = std::fs::read_to_string(&place.pin_file).map(Zeroizing::new).map_err(|error| {
            let file = place.pin_file.display();
            OpenError::Keys(format!("{file}: cannot read the PIN: {error}; write it there, mode 0400"))
        })?;
        let pin = AuthPin::from(pin.trim_end_matches(['\n', '\r']).to_owned());
        match self.module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
            Err(error) => return Err(failed(place, "the module does not start", &error)),
        }
        let slot = find_token(&self.module, place)?;
        let session =
            self.module.open_rw_session(slot).map_err(|error| failed(place, "no session", &error))?;
        match session.login(UserType::User, Some(&pin)) {
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(session),
            Err(Error::Pkcs11(
                RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange | RvError::PinLocked,
                _,
            )) => {
                let file = place.pin_file.display();
                let error = format!(
                    "token '{}': refused the PIN of {file}; correct the file and start again: an HSM locks the PIN \
                     after a few attempts",
                    place.token
                );
                self.state = State::PinRefused(error.clone());
                Err(OpenError::Keys(error))
            }
            Err(error) => Err(failed(place, "cannot log in", &error)),
        }
    }
}

impl Decapsulate for HsmKeys {
    fn shared(&mut self, layer: Layer, epoch: u64, enc: &Point) -> Result<Shared, OpenError> {
        // The token may accept what is no point of the curve.
        if !crate::hpke::is_point(enc) {
            return Err(OpenError::Point);
        }
        let shared = self.with(|session, label| {
            let label = label(epoch);
            let Some(private) = find(session, ObjectClass::PRIVATE_KEY, &label)? else { return Ok(None) };
            let Some(public) = public(session, &label)? else { return Ok(None) };
            Ok(Some(Shared { public, secret: derive(session, private, enc)? }))
        })?;
        shared.ok_or(OpenError::NoKey(layer, epoch))
    }
}

/// Error within a session: of the module, or in words.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error(transparent)]
    Module(#[from] Error),
    #[error("{0}")]
    Other(String),
}

impl From<&str> for CallError {
    fn from(what: &str) -> CallError {
        CallError::Other(what.to_owned())
    }
}

fn failed(place: &HsmPlace, what: &str, error: &Error) -> OpenError {
    OpenError::Keys(format!("{}: token '{}': {what}: {error}", place.module.display(), place.token))
}

fn find_token(module: &Pkcs11, place: &HsmPlace) -> Result<Slot, OpenError> {
    let slots = module.get_slots_with_token().map_err(|error| failed(place, "cannot list tokens", &error))?;
    let has_label =
        |slot: &Slot| module.get_token_info(*slot).is_ok_and(|info| info.label().trim_end() == place.token);
    let found: Vec<Slot> = slots.into_iter().filter(has_label).collect();
    match found[..] {
        [slot] => Ok(slot),
        [] => Err(OpenError::Keys(format!(
            "token '{}' is not there; initialise it (softhsm2-util --init-token --free --label NAME)",
            place.token
        ))),
        _ => Err(OpenError::Keys(format!("several tokens have the label '{}'; rename one", place.token))),
    }
}

fn find(session: &Session, class: ObjectClass, label: &str) -> Result<Option<ObjectHandle>, CallError> {
    let template = [Attribute::Class(class), Attribute::Label(label.into())];
    match session.find_objects(&template)?[..] {
        [] => Ok(None),
        [object] => Ok(Some(object)),
        _ => Err(CallError::Other(format!("several keys have the label {label}"))),
    }
}

fn generate(session: &Session, label: &str, epoch: u64) -> Result<(), CallError> {
    let id = epoch.to_be_bytes().to_vec();
    let public = [
        Attribute::Token(true),
        Attribute::Private(false),
        Attribute::EcParams(P256_PARAMS.into()),
        Attribute::Label(label.into()),
        Attribute::Id(id.clone()),
        Attribute::Verify(false),
    ];
    let private = [
        Attribute::Token(true),
        Attribute::Private(true),
        Attribute::Sensitive(true),
        Attribute::Extractable(false),
        Attribute::Derive(true),
        Attribute::Sign(false),
        Attribute::Decrypt(false),
        Attribute::Unwrap(false),
        Attribute::Label(label.into()),
        Attribute::Id(id),
    ];
    session.generate_key_pair(&Mechanism::EccKeyPairGen, &public, &private)?;
    Ok(())
}

fn public(session: &Session, label: &str) -> Result<Option<Point>, CallError> {
    let Some(object) = find(session, ObjectClass::PUBLIC_KEY, label)? else { return Ok(None) };
    let attributes = session.get_attributes(object, &[AttributeType::EcParams, AttributeType::EcPoint])?;
    let (mut is_p256, mut point) = (false, None);
    for attribute in attributes {
        match attribute {
            Attribute::EcParams(params) => is_p256 = params == P256_PARAMS,
            // An octet string around the point; some modules leave it out.
            Attribute::EcPoint(bytes) => {
                let bare = bytes.strip_prefix(&[4, POINT_BYTES as u8]).unwrap_or(&bytes);
                point = Point::try_from(bare).ok();
            }
            _ => {}
        }
    }
    match point.filter(|point| is_p256 && point[0] == 4) {
        Some(point) => Ok(Some(point)),
        None => Err(CallError::Other(format!("{label} is no key of P-256"))),
    }
}

/// ECDH without a derivation function: the x coordinate.
fn derive(session: &Session, private: ObjectHandle, enc: &Point) -> Result<crate::hpke::Dh, CallError> {
    let mechanism = Mechanism::Ecdh1Derive(Ecdh1DeriveParams::new(EcKdf::null(), enc));
    let template = [
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::GENERIC_SECRET),
        Attribute::Token(false),
        Attribute::Sensitive(false),
        Attribute::Extractable(true),
        Attribute::ValueLen((SECRET_BYTES as u64).into()),
    ];
    let object = session.derive_key(&mechanism, private, &template)?;
    let attributes = session.get_attributes(object, &[AttributeType::Value]);
    let _ = session.destroy_object(object);
    for attribute in attributes? {
        if let Attribute::Value(mut value) = attribute {
            let secret = crate::hpke::dh_of(&value);
            value.zeroize();
            return secret.map_err(|()| "the token gave a shared secret of another length".into());
        }
    }
    Err("the token gave no shared secret".into())
}

/// Destroys the private key first: without it the public one is worth nothing.
fn destroy_all(session: &Session, label: &str) -> Result<bool, CallError> {
    let mut was_there = false;
    for class in [ObjectClass::PRIVATE_KEY, ObjectClass::PUBLIC_KEY] {
        let template = [Attribute::Class(class), Attribute::Label(label.into())];
        for object in session.find_objects(&template)? {
            session.destroy_object(object)?;
            was_there |= class == ObjectClass::PRIVATE_KEY;
        }
    }
    Ok(was_there)
}
