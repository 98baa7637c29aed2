//! How a denial ends what it denies.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// End of a denied request or connection. In a file: a status, or the name of an end in quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deny {
    /// A request: an answer with this status.
    Status(u16),
    /// A connection: the TLS alert `access_denied` (RFC 8446 section 6.2).
    AccessDenied,
    /// A connection: the TLS alert `unrecognized_name` (RFC 6066 section 3).
    UnrecognizedName,
    /// A connection: RST.
    Reset,
}

impl Deny {
    /// The ends that have a name.
    pub const NAMED: [Deny; 3] = [Deny::AccessDenied, Deny::UnrecognizedName, Deny::Reset];

    /// The name of an end of connections; `None` for a status.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Deny::Status(_) => None,
            Deny::AccessDenied => Some("access_denied"),
            Deny::UnrecognizedName => Some("unrecognized_name"),
            Deny::Reset => Some("reset"),
        }
    }

    /// Whether it ends a connection by a TLS alert.
    pub fn is_alert(self) -> bool {
        matches!(self, Deny::AccessDenied | Deny::UnrecognizedName)
    }
}

impl From<u16> for Deny {
    fn from(status: u16) -> Deny {
        Deny::Status(status)
    }
}

impl fmt::Display for Deny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deny::Status(status) => write!(f, "{status}"),
            named => f.write_str(named.name().unwrap_or_default()),
        }
    }
}

impl Serialize for Deny {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Deny::Status(status) => serializer.serialize_u16(*status),
            named => serializer.serialize_str(named.name().unwrap_or_default()),
        }
    }
}

impl<'de> Deserialize<'de> for Deny {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Deny, D::Error> {
        deserializer.deserialize_any(DenyVisitor)
    }
}

struct DenyVisitor;

impl Visitor<'_> for DenyVisitor {
    type Value = Deny;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a status, or one of \"access_denied\", \"unrecognized_name\" and \"reset\"")
    }

    fn visit_u64<E: de::Error>(self, status: u64) -> Result<Deny, E> {
        let status =
            u16::try_from(status).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(status), &self));
        status.map(Deny::Status)
    }

    fn visit_i64<E: de::Error>(self, status: i64) -> Result<Deny, E> {
        let status =
            u16::try_from(status).map_err(|_| E::invalid_value(de::Unexpected::Signed(status), &self));
        status.map(Deny::Status)
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Deny, E> {
        let named = Deny::NAMED.into_iter().find(|deny| deny.name() == Some(name));
        named.ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
    }
}
