//! Validity dates of certificates, and the warning when a certificate is not valid now or not for long.
//!
//! Dates never refuse a configuration: a node must start with an expired certificate too, and clocks are wrong at
//! times.

use evergate_base::rfc3339;
use evergate_crypto::{CertifiedName, KeyError};

const DAY_S: i64 = 86_400;
/// From so many days before its end on, a certificate is worth a warning.
const SOON_DAYS: i64 = 14;

/// The span of validity of a certificate, in seconds since 1970; both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second of validity, in Unix time.
    pub not_before_unix_s: i64,
    /// Last second of validity, in Unix time.
    pub not_after_unix_s: i64,
}

/// Finding about a validity at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concern {
    /// The finding.
    pub what: String,
    /// Its consequence.
    pub consequence: String,
    /// Its remedy.
    pub remedy: &'static str,
}

impl Validity {
    /// Validity of a certificate that was not inspected.
    pub const ALWAYS: Validity = Validity { not_before_unix_s: i64::MIN, not_after_unix_s: i64::MAX };

    /// Validity of a certificate.
    pub fn of(certificate: &CertifiedName) -> Validity {
        Validity {
            not_before_unix_s: certificate.not_before_unix_s,
            not_after_unix_s: certificate.not_after_unix_s,
        }
    }

    /// Validity of a certificate as bytes (DER).
    pub fn of_der(certificate: &[u8]) -> Result<Validity, KeyError> {
        let (not_before_unix_s, not_after_unix_s) = evergate_crypto::validity(certificate)?;
        Ok(Validity { not_before_unix_s, not_after_unix_s })
    }

    /// Warning about a certificate for clients at this time.
    pub fn concern(&self, now_unix_s: i64) -> Option<Concern> {
        let end = || rfc3339(self.not_after_unix_s);
        let left_s = self.not_after_unix_s.saturating_sub(now_unix_s);
        if left_s < 0 {
            return Some(Concern {
                what: format!("the certificate has expired, on {}", end()),
                consequence: "clients refuse it".to_owned(),
                remedy: "replace it by a renewed one: changed files are used without a reload",
            });
        }
        if now_unix_s < self.not_before_unix_s {
            return Some(Concern {
                what: format!(
                    "the certificate is not valid yet, only from {} on",
                    rfc3339(self.not_before_unix_s)
                ),
                consequence: "clients refuse it until then".to_owned(),
                remedy: "use the previous one until then; or is the clock of this machine wrong?",
            });
        }
        (left_s < SOON_DAYS * DAY_S).then(|| Concern {
            what: format!("the certificate expires soon, on {} (days left: {})", end(), left_s / DAY_S),
            consequence: "clients refuse it from then on".to_owned(),
            remedy: "replace it by a renewed one: changed files are used without a reload",
        })
    }

    /// [`concern`](Self::concern) of an authority's certificate, which is trusted whatever its dates are.
    pub fn concern_of_authority(&self, now_unix_s: i64) -> Option<Concern> {
        let Concern { what, .. } = self.concern(now_unix_s)?;
        Some(Concern {
            what: what.replacen("the certificate", "the authority's certificate", 1),
            consequence:
                "it stays trusted, but servers whose certificates come from its successor are refused"
                    .to_owned(),
            remedy: "add its renewed certificate to the file: changed files are used without a reload",
        })
    }

    /// [`concern`](Self::concern) when servers are shown it.
    pub fn concern_of_client(&self, now_unix_s: i64) -> Option<Concern> {
        let concern = self.concern(now_unix_s)?;
        Some(Concern { consequence: concern.consequence.replacen("clients", "servers", 1), ..concern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_warns_before_after_and_in_its_last_two_weeks() {
        let validity = Validity { not_before_unix_s: 0, not_after_unix_s: 90 * DAY_S };
        let what = |now: i64| validity.concern(now).map(|concern| concern.what);
        for (now, expected) in [
            (-1, Some("not valid yet, only from 1970-01-01T00:00:00Z on")),
            (0, None),
            (76 * DAY_S, None),
            (76 * DAY_S + 1, Some("soon, on 1970-04-01T00:00:00Z (days left: 13)")),
            (90 * DAY_S, Some("(days left: 0)")),
            (90 * DAY_S + 1, Some("has expired, on 1970-04-01T00:00:00Z")),
        ] {
            let what = what(now);
            match expected {
                None => assert_eq!(what, None, "{now}"),
                Some(part) => {
                    assert!(what.as_ref().is_some_and(|what| what.contains(part)), "{now}: {what:?}")
                }
            }
        }
        assert_eq!(Validity::ALWAYS.concern(0), None);
    }
}
