//! Field schema: the fields that a condition may use, and the comparisons of each field.

use std::collections::HashMap;
use std::fmt;

/// A field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    Listener,
    Method,
    Scheme,
    Host,
    Path,
    ClientIp,
    ClientPort,
    LocalIp,
    LocalPort,
    Sni,
    Alpn,
    TlsVersion,
    ClientSubject,
    BodySize,
    Query(String),
    /// A header under every spelling that servers accept: see [`evergate_base::name`].
    Header(String),
    Cookie(String),
    Form(String),
    /// A JSON pointer (RFC 6901).
    Json(String),
    /// Local names from the root element, separated by `/`; `@name` last for an attribute.
    Xml(String),
}

/// Index of a field in [`Fields`]; the fixed fields have the constants of [`id`].
pub(crate) type FieldId = u32;

/// The fields with at most one value per request; in this order they have the first ids.
macro_rules! fixed {
    ($($constant:ident = $field:ident,)+) => {
        /// Ids of the fixed fields.
        pub(crate) mod id {
            enum Order {
                $($field,)+
            }

            $(pub(crate) const $constant: u32 = Order::$field as u32;)+
        }

        /// The fixed fields, by their ids.
        pub(crate) const FIXED: &[Field] = &[$(Field::$field,)+];

        impl Field {
            /// Whether a request has at most one value of the field.
            pub(crate) fn single(&self) -> bool {
                match self {
                    $(Field::$field)|+ => true,
                    Field::Query(_)
                    | Field::Header(_)
                    | Field::Cookie(_)
                    | Field::Form(_)
                    | Field::Json(_)
                    | Field::Xml(_) => false,
                }
            }
        }
    };
}

fixed! {
    LISTENER = Listener,
    METHOD = Method,
    SCHEME = Scheme,
    HOST = Host,
    PATH = Path,
    CLIENT_IP = ClientIp,
    CLIENT_PORT = ClientPort,
    LOCAL_IP = LocalIp,
    LOCAL_PORT = LocalPort,
    SNI = Sni,
    ALPN = Alpn,
    TLS_VERSION = TlsVersion,
    CLIENT_SUBJECT = ClientSubject,
    BODY_SIZE = BodySize,
}

/// Kind of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes only.
    Text,
    /// Bytes that may also be compared as numbers.
    TextOrNumber,
    /// Numbers only.
    Number,
    /// Addresses.
    Address,
}

/// Source of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// At most one value, available without parsing.
    Single,
    Query,
    Header,
    Cookie,
    /// The body: form, JSON or XML.
    Body(Format),
    BodySize,
}

/// What of a connection a field needs; each includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldScope {
    /// The addresses of a connection.
    Connection,
    /// Its ClientHello.
    Hello,
    /// Its complete handshake.
    Handshake,
    /// A request on it.
    Request,
}

/// Format that a body is parsed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    Form = 0,
    Json = 1,
    Xml = 2,
}

impl Field {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Field::ClientIp | Field::LocalIp => Kind::Address,
            Field::ClientPort | Field::LocalPort | Field::BodySize => Kind::Number,
            Field::Query(_)
            | Field::Header(_)
            | Field::Cookie(_)
            | Field::Form(_)
            | Field::Json(_)
            | Field::Xml(_) => Kind::TextOrNumber,
            Field::Listener
            | Field::Method
            | Field::Scheme
            | Field::Host
            | Field::Path
            | Field::Sni
            | Field::Alpn
            | Field::TlsVersion
            | Field::ClientSubject => Kind::Text,
        }
    }

    pub(crate) fn origin(&self) -> Origin {
        match self {
            Field::Query(_) => Origin::Query,
            Field::Header(_) => Origin::Header,
            Field::Cookie(_) => Origin::Cookie,
            Field::Form(_) => Origin::Body(Format::Form),
            Field::Json(_) => Origin::Body(Format::Json),
            Field::Xml(_) => Origin::Body(Format::Xml),
            Field::BodySize => Origin::BodySize,
            Field::Listener
            | Field::Method
            | Field::Scheme
            | Field::Host
            | Field::Path
            | Field::ClientIp
            | Field::ClientPort
            | Field::LocalIp
            | Field::LocalPort
            | Field::Sni
            | Field::Alpn
            | Field::TlsVersion
            | Field::ClientSubject => Origin::Single,
        }
    }

    /// What of a connection the field needs.
    pub(crate) fn scope(&self) -> FieldScope {
        match self {
            Field::Listener | Field::ClientIp | Field::ClientPort | Field::LocalIp | Field::LocalPort => {
                FieldScope::Connection
            }
            Field::Sni | Field::Alpn | Field::TlsVersion => FieldScope::Hello,
            Field::ClientSubject => FieldScope::Handshake,
            _ => FieldScope::Request,
        }
    }

    /// Whether comparisons ignore the case of ASCII letters.
    pub(crate) fn ignores_case(&self) -> bool {
        matches!(self, Field::Host | Field::Scheme | Field::Sni)
    }

    /// Whether a request may lack the field.
    pub(crate) fn optional(&self) -> bool {
        match self.origin() {
            Origin::Single => {
                matches!(self, Field::Sni | Field::Alpn | Field::TlsVersion | Field::ClientSubject)
            }
            Origin::BodySize => false,
            _ => true,
        }
    }

    /// Whether the value depends on the body.
    pub(crate) fn of_body(&self) -> bool {
        matches!(self.origin(), Origin::Body(_) | Origin::BodySize)
    }

    /// Whether servers may differ about the field, so that it can be unknown.
    pub(crate) fn may_be_unknown(&self) -> bool {
        self.of_body() || matches!(self.origin(), Origin::Query | Origin::Cookie)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Listener => f.write_str("listener"),
            Field::Method => f.write_str("method"),
            Field::Scheme => f.write_str("scheme"),
            Field::Host => f.write_str("host"),
            Field::Path => f.write_str("path"),
            Field::ClientIp => f.write_str("client.ip"),
            Field::ClientPort => f.write_str("client.port"),
            Field::LocalIp => f.write_str("local.ip"),
            Field::LocalPort => f.write_str("local.port"),
            Field::Sni => f.write_str("tls.sni"),
            Field::Alpn => f.write_str("tls.alpn"),
            Field::TlsVersion => f.write_str("tls.version"),
            Field::ClientSubject => f.write_str("tls.client_subject"),
            Field::BodySize => f.write_str("body.size"),
            Field::Query(name) => write!(f, "query({name:?})"),
            Field::Header(name) => write!(f, "header({name:?})"),
            Field::Cookie(name) => write!(f, "cookie({name:?})"),
            Field::Form(name) => write!(f, "form({name:?})"),
            Field::Json(pointer) => write!(f, "json({pointer:?})"),
            Field::Xml(path) => write!(f, "xml({path:?})"),
        }
    }
}

/// The fields that a rule set uses.
#[derive(Debug)]
pub(crate) struct Fields {
    list: Vec<Field>,
    ids: HashMap<Field, FieldId>,
}

impl Fields {
    pub(crate) fn new() -> Fields {
        let list = FIXED.to_vec();
        let ids = list.iter().cloned().zip(0..).collect();
        Fields { list, ids }
    }

    pub(crate) fn intern(&mut self, field: Field) -> FieldId {
        let next = self.list.len() as FieldId;
        *self.ids.entry(field).or_insert_with_key(|field| {
            self.list.push(field.clone());
            next
        })
    }

    pub(crate) fn get(&self, id: FieldId) -> &Field {
        &self.list[id as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FieldId, &Field)> {
        (0..).zip(&self.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_ids_name_their_fields_and_interning_is_stable() {
        let mut fields = Fields::new();
        for (id, field) in (0..).zip(FIXED) {
            assert_eq!(fields.get(id), field);
            assert_eq!(fields.intern(field.clone()), id, "{field}");
            assert_eq!(
                field.single(),
                matches!(field.origin(), Origin::Single | Origin::BodySize),
                "{field}"
            );
        }
        assert_eq!((fields.get(id::HOST), fields.get(id::BODY_SIZE)), (&Field::Host, &Field::BodySize));
        let header = fields.intern(Field::Header("a".into()));
        assert_eq!(fields.intern(Field::Header("a".into())), header);
        assert_eq!(fields.get(header), &Field::Header("a".into()));
    }
}
