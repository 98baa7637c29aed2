//! Legal holds: parts of the record that no retention rule may delete.
//!
//! Setting and lifting a hold is a statement that the Master logs (kind 9). The holds in force are a function of the
//! statements: [`in_force`]. A hold has a number in its store, and a name that its reason begins with.

use crate::entry::{Entry, Event, Hold};
use crate::merkle::Hash;
use serde::{Deserialize, Serialize};

/// Longest name of a hold in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest reason of a hold in bytes. Name, `: ` and reason are the reason of the log entry.
pub const REASON_BYTES_MAX: usize = 255 - NAME_BYTES_MAX - 2;
/// Longest query in bytes.
const QUERY_BYTES_MAX: usize = 8192;

/// Statement about a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldStatement {
    /// Set or lift.
    pub action: HoldAction,
    /// Number of the hold: 1, 2, …
    pub hold: u64,
    /// Name of the hold.
    pub name: String,
    /// Reason for setting or lifting it.
    pub reason: String,
    /// Part of the record that the hold protects.
    pub selection: Selection,
}

/// Change that a statement makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldAction {
    /// The hold begins.
    Set,
    /// The hold ends.
    Lift,
}

/// Part of the record: every given condition applies. Without a condition it is the whole record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Selection {
    /// Client: address, `/length`, `:port`, as on the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Random of the ClientHello, or its first bytes, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_random: Option<String>,
    /// Number of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Begin of the period in nanoseconds since 1970, in decimal digits: numbers of JSON end at 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ns: Option<String>,
    /// Id of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Server: address, `/length`, `:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Host name of the ClientHello, or `*.` and a domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// End of the period in nanoseconds since 1970, in decimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ns: Option<String>,
}

/// Error in a statement about a hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The name is empty, long, or has other characters.
    #[error("a name has 1 to 64 letters, digits, '.', '_' and '-'")]
    Name,
    /// The reason is empty, long, or has control characters.
    #[error("a reason has 1 to {REASON_BYTES_MAX} bytes and no control characters")]
    Reason,
    /// The selection is long, or a time of it is no number.
    #[error("the selection is longer than {QUERY_BYTES_MAX} bytes, or a time of it is no number")]
    Selection,
    /// A hold of this name is in force.
    #[error("a hold named {0} is in force already")]
    Exists(String),
    /// No hold of this name is in force.
    #[error("no hold named {0} is in force")]
    Absent(String),
    /// The statement does not continue the statements before it.
    #[error("statement {0} does not follow from those before it")]
    Order(u64),
}

impl Selection {
    /// Whether only times select, so that no index is needed to apply it.
    pub fn is_period(&self) -> bool {
        self.query().is_empty()
    }

    /// The period in nanoseconds since 1970; `None` if a time is no number.
    pub fn period(&self) -> Option<(u64, u64)> {
        let time =
            |text: &Option<String>, default| text.as_ref().map_or(Some(default), |text| text.parse().ok());
        Some((time(&self.from_ns, 0)?, time(&self.to_ns, u64::MAX)?))
    }

    /// The conditions except times in the words of `find`. A value with other characters is in JSON's quotes.
    pub fn query(&self) -> String {
        let connection = self.connection.map(|number| number.to_string());
        let options = [
            ("--client", &self.client),
            ("--client-random", &self.client_random),
            ("--connection", &connection),
            ("--request-id", &self.request_id),
            ("--server", &self.server),
            ("--sni", &self.sni),
        ];
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:/*[]".contains(c);
        let words = options.iter().filter_map(|(option, value)| {
            let value = value.as_ref()?;
            let is_word = !value.is_empty() && value.chars().all(is_plain);
            let quoted = || serde_json::to_string(value).unwrap_or_default();
            Some(format!("{option} {}", if is_word { value.clone() } else { quoted() }))
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

impl HoldStatement {
    /// The statement that sets a hold, behind those before it.
    pub fn set(
        before: &[HoldStatement],
        name: &str,
        reason: &str,
        selection: Selection,
    ) -> Result<HoldStatement, HoldError> {
        let hold = before.iter().map(|statement| statement.hold).max().unwrap_or(0) + 1;
        let (name, reason) = (name.to_owned(), reason.to_owned());
        let statement = HoldStatement { action: HoldAction::Set, hold, name, reason, selection };
        statement.check(before).map(|()| statement)
    }

    /// The statement that lifts a hold, behind those before it.
    pub fn lift(before: &[HoldStatement], name: &str, reason: &str) -> Result<HoldStatement, HoldError> {
        let holds = in_force(before);
        let hold =
            holds.iter().find(|hold| hold.name == name).ok_or_else(|| HoldError::Absent(name.to_owned()))?;
        let statement =
            HoldStatement { action: HoldAction::Lift, reason: reason.to_owned(), ..(*hold).clone() };
        statement.check(before).map(|()| statement)
    }

    /// Checks that this statement may follow the statements before it.
    pub fn check(&self, before: &[HoldStatement]) -> Result<(), HoldError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_plain) {
            return Err(HoldError::Name);
        }
        let is_reason = !self.reason.trim().is_empty() && self.reason.len() <= REASON_BYTES_MAX;
        if !is_reason || self.reason.chars().any(char::is_control) {
            return Err(HoldError::Reason);
        }
        if self.selection.period().is_none() || self.selection.query().len() > QUERY_BYTES_MAX {
            return Err(HoldError::Selection);
        }
        let holds = in_force(before);
        let current = holds.iter().find(|hold| hold.name == self.name);
        let next = before.iter().map(|statement| statement.hold).max().unwrap_or(0) + 1;
        match (self.action, current) {
            (HoldAction::Set, Some(_)) => Err(HoldError::Exists(self.name.clone())),
            (HoldAction::Lift, None) => Err(HoldError::Absent(self.name.clone())),
            (HoldAction::Set, None) if self.hold == next => Ok(()),
            (HoldAction::Lift, Some(hold))
                if (hold.hold, &hold.selection) == (self.hold, &self.selection) =>
            {
                Ok(())
            }
            _ => Err(HoldError::Order(self.hold)),
        }
    }

    /// The event of the log entry.
    pub fn event(&self, recorder: Hash) -> Hold {
        let (from_ns, to_ns) = self.selection.period().unwrap_or((0, u64::MAX));
        Hold {
            is_set: self.action == HoldAction::Set,
            recorder,
            hold: self.hold,
            from_ns,
            to_ns,
            query: self.selection.query(),
            reason: format!("{}: {}", self.name, self.reason),
        }
    }

    /// The log entry as a Recorder sends it.
    pub fn entry(&self, recorder: Hash) -> Vec<u8> {
        Entry::Event(0, Event::Hold(self.event(recorder))).encode()
    }
}

/// The holds in force after these statements, in the order in which they were set.
pub fn in_force(statements: &[HoldStatement]) -> Vec<&HoldStatement> {
    let mut holds: Vec<&HoldStatement> = Vec::new();
    for statement in statements {
        match statement.action {
            HoldAction::Set => holds.push(statement),
            HoldAction::Lift => holds.retain(|hold| hold.hold != statement.hold),
        }
    }
    holds
}

/// Checks that every statement follows from those before it.
pub fn check_all(statements: &[HoldStatement]) -> Result<(), HoldError> {
    (0..statements.len()).try_for_each(|at| statements[at].check(&statements[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(connection: u64) -> Selection {
        Selection { connection: Some(connection), ..Selection::default() }
    }

    #[test]
    fn lifted_hold_is_not_in_force() {
        let mut statements = Vec::new();
        for name in ["a", "b"] {
            statements.push(HoldStatement::set(&statements, name, "case 7", selection(4)).expect("set"));
        }
        assert_eq!(
            HoldStatement::set(&statements, "b", "x", selection(1)),
            Err(HoldError::Exists("b".into()))
        );
        statements.push(HoldStatement::lift(&statements, "a", "closed").expect("lifted"));
        let names: Vec<_> = in_force(&statements).iter().map(|hold| hold.name.as_str()).collect();
        assert_eq!(names, ["b"]);
        assert_eq!(HoldStatement::lift(&statements, "a", "x"), Err(HoldError::Absent("a".into())));
        let again = HoldStatement::set(&statements, "a", "case 8", selection(4)).expect("set again");
        assert_eq!(again.hold, 3);
        assert_eq!(check_all(&statements), Ok(()));
        statements.swap(0, 1);
        assert!(check_all(&statements).is_err());
    }

    #[test]
    fn statement_with_control_characters_is_refused() {
        let set = |name, reason| HoldStatement::set(&[], name, reason, Selection::default());
        assert_eq!(set("a b", "reason"), Err(HoldError::Name));
        assert_eq!(set("ab", "line\nbreak"), Err(HoldError::Reason));
        assert_eq!(set("ab", " "), Err(HoldError::Reason));
        let broken = Selection { from_ns: Some("x".into()), ..Selection::default() };
        assert_eq!(HoldStatement::set(&[], "ab", "reason", broken), Err(HoldError::Selection));
    }

    #[test]
    fn entry_has_name_period_and_query() {
        let selection = Selection {
            client: Some("10.0.0.0/8".into()),
            request_id: Some("a b\"".into()),
            from_ns: Some("5".into()),
            ..Selection::default()
        };
        let statement = HoldStatement::set(&[], "case-7", "court order", selection).expect("set");
        let Ok(Entry::Event(0, Event::Hold(hold))) = Entry::decode(&statement.entry([7; 32])) else {
            panic!("an entry of kind 9");
        };
        assert_eq!((hold.from_ns, hold.to_ns, hold.hold, hold.is_set), (5, u64::MAX, 1, true));
        assert_eq!(hold.query, "--client 10.0.0.0/8 --request-id \"a b\\\"\"");
        assert_eq!(hold.reason, "case-7: court order");
        assert!(Selection { from_ns: Some("5".into()), ..Selection::default() }.is_period());
    }
}
