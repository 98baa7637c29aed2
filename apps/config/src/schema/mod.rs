//! The schema of the configuration file as data: every key with its type, bounds, default and meaning.
//!
//! One table serves four readers: `structure` checks a file against it and fills in the
//! defaults, error messages quote its examples, the reference in `docs/reference/configuration.md` is rendered from
//! it, and the command line can explain a key. A default stands here and nowhere else.
//!
//! Each part of the file has a module: `listeners` (listeners, certificates, TLS settings, rules), `pools`,
//! `balancing` (session-aware pools), `cluster`, `audit` and `node`. Bounds that several keys share are in `bounds`.

mod audit;
mod balancing;
mod bounds;
mod cluster;
mod listeners;
mod node;
mod pools;

/// A table of the configuration file.
#[derive(Debug)]
pub struct Section {
    /// The header as written in a file, such as `[[pools.servers]]`.
    pub header: &'static str,
    /// Purpose of the table, one sentence.
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
    /// Value of an absent key.
    pub default: Default,
    /// A value to show in messages, as TOML.
    pub example: &'static str,
    /// Effect of the key, one or two sentences.
    pub meaning: &'static str,
}

/// Value of an absent key.
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
    /// `true` or `false`, or a list of strings.
    BoolOrTexts,
    /// A list of two numbers within the bounds, both included.
    TwoNumbers(f64, f64),
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An integer within the bounds, both included, or one of these strings.
    IntegerOr(i64, i64, &'static [&'static str]),
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
            Self::BoolOrTexts => "boolean or list of strings".to_owned(),
            Self::TwoNumbers(min, max) => format!("list of two numbers {min} to {max}"),
            Self::Choice(words) => alternatives(words),
            Self::IntegerOr(min, max, words) => format!("integer {min} to {max} or {}", alternatives(words)),
            Self::StatusSet => "string or list of integers".to_owned(),
            Self::TextTable => "table of strings".to_owned(),
            Self::Table(_) | Self::OptionalTable(_) => "table".to_owned(),
            Self::Tables(_) => "list of tables".to_owned(),
            Self::NamedTables(_) => "table of tables".to_owned(),
        }
    }
}

/// Strings in quotes, for a sentence.
pub(crate) fn alternatives(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
}

/// The whole file.
pub static ROOT: Section = Section {
    header: "",
    about: "The whole file. Every table is optional, but a node needs a listener to serve.",
    keys: &[
        table("node", Kind::Table(&node::NODE), "The process on this machine."),
        table("listeners", Kind::Tables(&listeners::LISTENER), "Where clients connect."),
        table("certificates", Kind::Tables(&listeners::CERTIFICATE), "Server certificates, chosen by SNI."),
        table("tls", Kind::NamedTables(&listeners::TLS), "Named TLS settings for listeners."),
        table("pools", Kind::Tables(&pools::POOL), "Sets of servers behind this node."),
        table("rules", Kind::Tables(&listeners::RULE), "Which request goes where."),
        Key {
            name: "cluster",
            kind: Kind::OptionalTable(&cluster::CLUSTER),
            default: Default::Otherwise("no cluster"),
            example: "",
            meaning: "Several nodes that share addresses.",
        },
        table("timeouts", Kind::Table(&node::TIMEOUTS), "How long each state may last."),
        table("limits", Kind::Table(&node::LIMITS), "Bounds on connections, sizes and memory."),
        table("logs", Kind::Table(&node::LOGS), "The access log."),
        table("admin", Kind::Table(&node::ADMIN), "The admin API and the metrics."),
        Key {
            name: "audit",
            kind: Kind::OptionalTable(&audit::AUDIT),
            default: Default::Otherwise("nothing is sealed"),
            example: "",
            meaning: "Audited capture of audited listeners.",
        },
    ],
};

/// All sections in the order of the reference.
pub static SECTIONS: &[&Section] = &[
    &node::NODE,
    &listeners::LISTENER,
    &listeners::LISTENER_LIMITS,
    &listeners::CERTIFICATE,
    &listeners::TLS,
    &pools::POOL,
    &pools::SERVER,
    &balancing::SESSIONS,
    &pools::POOL_TLS,
    &pools::HEALTH,
    &listeners::RULE,
    &listeners::RATE_LIMIT,
    &cluster::CLUSTER,
    &cluster::NODE,
    &node::TIMEOUTS,
    &node::LIMITS,
    &node::LOGS,
    &node::ADMIN,
    &audit::AUDIT,
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

pub(crate) const fn table(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key { name, kind, default: Default::Otherwise("empty"), example: "", meaning }
}

/// A key with a default that is a value.
pub(crate) const fn with_default(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default: Default::Is(default), example: default, meaning }
}

/// A key that must be given.
pub(crate) const fn required(
    name: &'static str,
    kind: Kind,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default: Default::Required, example, meaning }
}

/// An optional key; `otherwise` describes its absence.
pub(crate) const fn optional(
    name: &'static str,
    kind: Kind,
    otherwise: &'static str,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default: Default::Otherwise(otherwise), example, meaning }
}
