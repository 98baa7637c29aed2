//! Legal holds: parts of the record that no retention rule may delete.
//!
//! Setting and lifting a hold is a statement that the Master logs (kind 9): one canonical JSON object (RFC 8785) with
//! its keys in order. The holds in force are a function of the statements: [`in_force`].

use serde::{Deserialize, Serialize};

/// Kind of its log entry.
pub const HOLD_ENTRY: u8 = 9;
/// Longest name of a hold in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest reason of a hold in bytes.
pub const REASON_BYTES_MAX: usize = 4096;

/// Statement about a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldStatement {
    /// Set or lift.
    pub action: HoldAction,
    /// Time of the statement in milliseconds since 1970.
    pub created_ms: u64,
    /// Name of the hold.
    pub name: String,
    /// Reason for setting or lifting it.
    pub reason: String,
    /// Id of the Recorder: 64 hexadecimal digits.
    pub recorder: String,
    /// Part of the record that it protects; empty when a hold is lifted.
    pub selection: Selection,
}

/// Change that a statement makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldAction {
    /// The hold begins.
    Set,
    /// The hold of that name ends.
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
    /// Begin of the period in nanoseconds since 1970, in decimal digits.
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
    #[error("a reason has 1 to 4096 bytes and no control characters")]
    Reason,
    /// A hold of this name is in force.
    #[error("a hold named {0} is in force already")]
    Exists(String),
    /// No hold of this name is in force.
    #[error("no hold named {0} is in force")]
    Absent(String),
}

impl Selection {
    /// Whether only times select, so that no index is needed to apply it.
    pub fn is_period(&self) -> bool {
        let period =
            Selection { from_ns: self.from_ns.clone(), to_ns: self.to_ns.clone(), ..Selection::default() };
        *self == period
    }

    /// The period in nanoseconds since 1970; `None` if a time is no number.
    pub fn period(&self) -> Option<(u64, u64)> {
        let time =
            |text: &Option<String>, default| text.as_ref().map_or(Some(default), |text| text.parse().ok());
        Some((time(&self.from_ns, 0)?, time(&self.to_ns, u64::MAX)?))
    }
}

impl HoldStatement {
    /// The canonical JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings and integers always serialise
    }

    /// The statement in these bytes; `None` unless they are exactly what [`HoldStatement::to_json`] writes for it.
    pub fn from_json(bytes: &[u8]) -> Option<HoldStatement> {
        let statement: HoldStatement = serde_json::from_slice(bytes).ok()?;
        (statement.to_json().as_bytes() == bytes).then_some(statement)
    }

    /// Whether this statement may follow the statements before it.
    pub fn check(&self, before: &[HoldStatement]) -> Result<(), HoldError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(is_plain) {
            return Err(HoldError::Name);
        }
        let is_reason = !self.reason.trim().is_empty() && self.reason.len() <= REASON_BYTES_MAX;
        if !is_reason || self.reason.chars().any(char::is_control) {
            return Err(HoldError::Reason);
        }
        let exists = in_force(before).iter().any(|hold| hold.name == self.name);
        match (self.action, exists) {
            (HoldAction::Set, true) => Err(HoldError::Exists(self.name.clone())),
            (HoldAction::Lift, false) => Err(HoldError::Absent(self.name.clone())),
            _ => Ok(()),
        }
    }
}

/// The holds in force after these statements, in the order in which they were set.
pub fn in_force(statements: &[HoldStatement]) -> Vec<&HoldStatement> {
    let mut holds: Vec<&HoldStatement> = Vec::new();
    for statement in statements {
        match statement.action {
            HoldAction::Set => holds.push(statement),
            HoldAction::Lift => holds.retain(|hold| hold.name != statement.name),
        }
    }
    holds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(action: HoldAction, name: &str) -> HoldStatement {
        HoldStatement {
            action,
            created_ms: 5,
            name: name.into(),
            reason: "case 7".into(),
            recorder: "ab".repeat(32),
            selection: Selection { connection: Some(4), ..Selection::default() },
        }
    }

    #[test]
    fn lifted_hold_is_not_in_force() {
        let statements = [
            statement(HoldAction::Set, "a"),
            statement(HoldAction::Set, "b"),
            statement(HoldAction::Lift, "a"),
        ];
        let names: Vec<_> = in_force(&statements).iter().map(|hold| hold.name.as_str()).collect();
        assert_eq!(names, ["b"]);
        assert_eq!(statement(HoldAction::Set, "a").check(&statements), Ok(()));
        assert_eq!(statement(HoldAction::Set, "b").check(&statements), Err(HoldError::Exists("b".into())));
        assert_eq!(statement(HoldAction::Lift, "a").check(&statements), Err(HoldError::Absent("a".into())));
    }

    #[test]
    fn statement_has_one_encoding() {
        let set = statement(HoldAction::Set, "a");
        let json = set.to_json();
        assert_eq!(HoldStatement::from_json(json.as_bytes()), Some(set));
        assert_eq!(HoldStatement::from_json(format!(" {json}").as_bytes()), None);
        assert!(json.starts_with(r#"{"action":"set","created_ms":5,"name":"a","reason":"case 7""#), "{json}");
    }

    #[test]
    fn statement_with_control_characters_is_refused() {
        let mut bad = statement(HoldAction::Set, "a b");
        assert_eq!(bad.check(&[]), Err(HoldError::Name));
        bad.name = "ab".into();
        bad.reason = "line\nbreak".into();
        assert_eq!(bad.check(&[]), Err(HoldError::Reason));
    }
}
