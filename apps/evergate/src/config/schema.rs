//! The schema of the configuration file as data: every key with its type, bounds, default and meaning.
//!
//! One table serves four readers: [`shape`](super::shape) checks a file against it and fills in the
//! defaults, error messages quote its examples, the reference in `docs/reference/configuration.md` is rendered from
//! it, and the command line can explain a key. A default stands here and nowhere else.
//!
//! The keys themselves are in [`schema_edge`](super::schema_edge) (what clients meet),
//! [`schema_pools`](super::schema_pools), [`schema_sessions`](super::schema_sessions),
//! [`schema_cluster`](super::schema_cluster) and [`schema_node`](super::schema_node).

use super::{schema_cluster, schema_edge, schema_node, schema_pools, schema_sessions};

/// A table of the configuration file.
#[derive(Debug)]
pub struct Section {
    /// The header as written in a file, such as `[[pools.servers]]`.
    pub header: &'static str,
    /// What the table is for, one sentence.
    pub about: &'static str,
    /// Its keys in the order of the reference.
    pub keys: &'static [Key],
}

/// A key of a [`Section`].
#[derive(Debug)]
pub struct Key {
    /// The key as written.
    pub name: &'static str,
    /// Which values it takes.
    pub kind: Kind,
    /// What holds when the key is absent.
    pub default: Default,
    /// A value to show in messages, as TOML.
    pub example: &'static str,
    /// What the key does, one or two sentences.
    pub meaning: &'static str,
}

/// What holds when a key is absent.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// This value, as TOML text.
    Is(&'static str),
    /// Something that the text names, computed or inherited.
    Otherwise(&'static str),
    /// The key must be given.
    Required,
}

/// Which values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer within the bounds, both included.
    Integer(i64, i64),
    /// A string.
    Text,
    /// A list of strings.
    Texts,
    /// A list of two numbers within the bounds, both included.
    TwoNumbers(f64, f64),
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An integer within the bounds, both included, or this string.
    IntegerOr(i64, i64, &'static str),
    /// A string, or a list of integers and strings.
    StatusSet,
    /// A table with string values.
    TextTable,
    /// A table; its defaults hold when it is absent.
    Table(&'static Section),
    /// A table whose presence switches something on; its defaults hold only then.
    OptionalTable(&'static Section),
    /// A list of tables.
    Tables(&'static Section),
    /// A table of named tables.
    NamedTables(&'static Section),
}

impl Kind {
    /// The type in words, for the reference and for messages.
    pub fn words(&self) -> String {
        match self {
            Self::Bool => "boolean".to_owned(),
            Self::Integer(min, max) => format!("integer {min} to {max}"),
            Self::Text => "string".to_owned(),
            Self::Texts => "list of strings".to_owned(),
            Self::TwoNumbers(min, max) => format!("list of two numbers {min} to {max}"),
            Self::Choice(words) => words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(" or "),
            Self::IntegerOr(min, max, word) => format!("integer {min} to {max} or \"{word}\""),
            Self::StatusSet => "string or list of integers".to_owned(),
            Self::TextTable => "table of strings".to_owned(),
            Self::Table(_) | Self::OptionalTable(_) => "table".to_owned(),
            Self::Tables(_) => "list of tables".to_owned(),
            Self::NamedTables(_) => "table of tables".to_owned(),
        }
    }
}

/// The longest time a key takes: 7 days in milliseconds. Longer ones are typing errors.
pub(super) const TIME_MS_MAX: i64 = 7 * 24 * 3_600_000;
/// The largest count a key takes.
pub(super) const COUNT_MAX: i64 = 10_000_000;

/// The whole file.
pub static ROOT: Section = Section {
    header: "",
    about: "The whole file. Every table is optional, but a node needs a listener to serve.",
    keys: &[
        table("node", Kind::Table(&schema_node::NODE), "The process on this machine."),
        table("listeners", Kind::Tables(&schema_edge::LISTENER), "Where clients connect."),
        table("certificates", Kind::Tables(&schema_edge::CERTIFICATE), "Server certificates, chosen by SNI."),
        table("tls", Kind::NamedTables(&schema_edge::TLS), "Named TLS settings for listeners."),
        table("pools", Kind::Tables(&schema_pools::POOL), "Sets of servers behind this node."),
        table("rules", Kind::Tables(&schema_edge::RULE), "Which request goes where."),
        Key {
            name: "cluster",
            kind: Kind::OptionalTable(&schema_cluster::CLUSTER),
            default: Default::Otherwise("no cluster"),
            example: "",
            meaning: "Several nodes that share addresses.",
        },
        table("timeouts", Kind::Table(&schema_node::TIMEOUTS), "How long each state may last."),
        table("limits", Kind::Table(&schema_node::LIMITS), "Bounds on connections, sizes and memory."),
        table("logs", Kind::Table(&schema_node::LOGS), "The access log."),
        table("admin", Kind::Table(&schema_node::ADMIN), "The admin API and the metrics."),
    ],
};

/// All sections in the order of the reference.
pub static SECTIONS: &[&Section] = &[
    &schema_node::NODE,
    &schema_edge::LISTENER,
    &schema_edge::LISTENER_LIMITS,
    &schema_edge::CERTIFICATE,
    &schema_edge::TLS,
    &schema_pools::POOL,
    &schema_pools::SERVER,
    &schema_sessions::SESSIONS,
    &schema_pools::POOL_TLS,
    &schema_pools::HEALTH,
    &schema_edge::RULE,
    &schema_edge::RATE_LIMIT,
    &schema_cluster::CLUSTER,
    &schema_cluster::NODE,
    &schema_node::TIMEOUTS,
    &schema_node::LIMITS,
    &schema_node::LOGS,
    &schema_node::ADMIN,
];

impl Section {
    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|k| k.name == name)
    }

    /// The section as a Markdown table, the form used in `docs/reference/configuration.md`.
    pub fn markdown(&self) -> String {
        let mut text = String::from("| key | type | default | meaning |\n|---|---|---|---|\n");
        for key in self.keys {
            let default = match key.default {
                Default::Is(value) => format!("`{value}`"),
                Default::Otherwise(words) => words.to_owned(),
                Default::Required => "required".to_owned(),
            };
            let words = key.kind.words();
            text.push_str(&format!("| `{}` | {words} | {default} | {} |\n", key.name, key.meaning));
        }
        text
    }
}

pub(super) const fn table(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key { name, kind, default: Default::Otherwise("empty"), example: "", meaning }
}

/// A key with a default that is a value.
pub(super) const fn with_default(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default: Default::Is(default), example: default, meaning }
}

/// A key that must be given.
pub(super) const fn required(
    name: &'static str,
    kind: Kind,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default: Default::Required, example, meaning }
}

/// A key whose absence means what `otherwise` says.
pub(super) const fn optional(
    name: &'static str,
    kind: Kind,
    otherwise: &'static str,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default: Default::Otherwise(otherwise), example, meaning }
}
