//! Retention: the segments that may go, and the reason for each that stays.
//!
//! A segment is deleted when it is older than the limit of days, or when the store is over its limit of bytes: then the
//! oldest go first, exactly as many as needed. A hold beats every limit. The open segment, a segment whose times are
//! unknown, and a segment that a hold might need always stay.

use std::collections::BTreeSet;
use std::fmt;

/// Nanoseconds of a day.
pub const DAY_NS: u64 = 86_400_000_000_000;

/// Limits of a store; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of all segments.
    pub bytes_max: Option<u64>,
    /// Most days since the last record of a segment.
    pub days_max: Option<u64>,
    /// Bytes that the disk lacks.
    pub shortage: Option<Shortage>,
}

/// Disk with less free bytes than its reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that must be free.
    pub reserve: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// A segment, as retention needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// Number of the segment. The order of numbers is the order of age.
    pub number: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Times of its first and last record in nanoseconds since 1970; `None` if it cannot be read.
    pub times_ns: Option<(u64, u64)>,
    /// Whether the Recorder may still write to it.
    pub is_open: bool,
}

/// Segments that a hold needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldCover {
    /// Name of the hold.
    pub name: String,
    /// Segments by period or by number.
    pub cover: Cover,
}

/// Segments that a hold needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cover {
    /// Every segment with a record in this period, both ends included.
    Period {
        /// Begin in nanoseconds since 1970.
        from_ns: u64,
        /// End in nanoseconds since 1970.
        to_ns: u64,
    },
    /// These segments.
    Segments {
        /// Segments with a held connection.
        held: BTreeSet<u64>,
        /// Segments that may have one, because the index lacks them or the next one.
        unknown: BTreeSet<u64>,
    },
}

/// Verdict on a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes, by this rule.
    Delete(Rule),
    /// It stays, for this reason.
    Keep(Reason),
}

/// Rule that deletes a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Its last record is older than this number of days.
    Days(u64),
    /// The store has more than this number of bytes.
    Bytes(u64),
    /// The disk has fewer free bytes than this number.
    Reserve(u64),
}

/// Reason for a segment to stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The Recorder may still write to it.
    Open,
    /// The hold of this name needs it.
    Held(String),
    /// The hold of this name may need it: the index lacks the segment or the next one.
    MaybeHeld(String),
    /// Its times are unknown.
    Unreadable,
    /// No limit asks for its deletion.
    WithinLimits,
}

/// Verdicts on all segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// A verdict for each segment, in the order of numbers.
    pub verdicts: Vec<(SegmentState, Verdict)>,
    /// Bytes of all segments now.
    pub bytes_before: u64,
    /// Bytes of the segments that stay.
    pub bytes_after: u64,
    /// Bytes over the limit that no deletion may free.
    pub bytes_over: u64,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Days(days) => write!(f, "older than {days} days"),
            Rule::Bytes(bytes) => write!(f, "store over {bytes} bytes"),
            Rule::Reserve(bytes) => write!(f, "fewer than {bytes} bytes free on the disk"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Open => f.write_str("open: the Recorder may still write to it"),
            Reason::Held(name) => write!(f, "hold {name}"),
            Reason::MaybeHeld(name) => {
                write!(
                    f,
                    "hold {name} may need it: the index lacks this segment or the next; run `evergate-audit index`"
                )
            }
            Reason::Unreadable => f.write_str("its times are unknown; run `evergate-audit verify`"),
            Reason::WithinLimits => f.write_str("within the limits"),
        }
    }
}

impl HoldCover {
    /// The reason for which this hold keeps a segment.
    fn reason(&self, segment: &SegmentState) -> Option<Reason> {
        match (&self.cover, segment.times_ns) {
            (Cover::Period { from_ns, to_ns }, Some((first, last))) => {
                (first <= *to_ns && last >= *from_ns).then(|| Reason::Held(self.name.clone()))
            }
            (Cover::Period { .. }, None) => Some(Reason::MaybeHeld(self.name.clone())),
            (Cover::Segments { held, .. }, _) if held.contains(&segment.number) => {
                Some(Reason::Held(self.name.clone()))
            }
            (Cover::Segments { unknown, .. }, _) => {
                unknown.contains(&segment.number).then(|| Reason::MaybeHeld(self.name.clone()))
            }
        }
    }
}

/// Decides about every segment of a store.
pub fn plan(mut segments: Vec<SegmentState>, holds: &[HoldCover], limits: Limits, now_ns: u64) -> Plan {
    segments.sort_unstable_by_key(|segment| segment.number);
    let bytes_before: u64 = segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.bytes));
    let mut verdicts: Vec<_> = segments
        .into_iter()
        .map(|segment| (segment, first_verdict(&segment, holds, limits.days_max, now_ns)))
        .collect();
    let is_deleted = |verdict: &Verdict| matches!(verdict, Verdict::Delete(_));
    let remaining = |verdicts: &[(SegmentState, Verdict)]| {
        let kept = verdicts.iter().filter(|(_, verdict)| !is_deleted(verdict));
        kept.fold(0u64, |sum, (segment, _)| sum.saturating_add(segment.bytes))
    };
    let mut bytes_after = remaining(&verdicts);
    let bytes_max = limits.bytes_max.unwrap_or(u64::MAX);
    let mut delete_down_to = |bytes: u64, rule: Rule| {
        for (segment, verdict) in &mut verdicts {
            if bytes_after <= bytes {
                break;
            }
            if *verdict == Verdict::Keep(Reason::WithinLimits) {
                *verdict = Verdict::Delete(rule);
                bytes_after = bytes_after.saturating_sub(segment.bytes);
            }
        }
    };
    delete_down_to(bytes_max, Rule::Bytes(bytes_max));
    if let Some(Shortage { reserve, free }) = limits.shortage {
        delete_down_to(bytes_before.saturating_sub(reserve.saturating_sub(free)), Rule::Reserve(reserve));
    }
    Plan { verdicts, bytes_before, bytes_after, bytes_over: bytes_after.saturating_sub(bytes_max) }
}

/// Verdict by hold and age alone.
fn first_verdict(segment: &SegmentState, holds: &[HoldCover], days_max: Option<u64>, now_ns: u64) -> Verdict {
    if segment.is_open {
        return Verdict::Keep(Reason::Open);
    }
    let mut reasons: Vec<Reason> = holds.iter().filter_map(|hold| hold.reason(segment)).collect();
    reasons.sort_by_key(|reason| !matches!(reason, Reason::Held(_))); // a certain reason before a possible one
    if let Some(reason) = reasons.into_iter().next() {
        return Verdict::Keep(reason);
    }
    let Some((_, last_ns)) = segment.times_ns else { return Verdict::Keep(Reason::Unreadable) };
    let age_ns = now_ns.saturating_sub(last_ns);
    match days_max {
        Some(days) if age_ns > days.saturating_mul(DAY_NS) => Verdict::Delete(Rule::Days(days)),
        _ => Verdict::Keep(Reason::WithinLimits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(number: u64, bytes: u64, day: u64) -> SegmentState {
        let times_ns = Some((day * DAY_NS, day * DAY_NS + 1));
        SegmentState { number, bytes, times_ns, is_open: false }
    }

    fn deleted(plan: &Plan) -> Vec<u64> {
        let is_deleted = |(_, verdict): &&(SegmentState, Verdict)| matches!(verdict, Verdict::Delete(_));
        plan.verdicts.iter().filter(is_deleted).map(|(segment, _)| segment.number).collect()
    }

    #[test]
    fn oldest_segments_go_until_the_bytes_fit() {
        let segments = (1..=5).map(|n| segment(n, 10, n)).collect();
        let limits = Limits { bytes_max: Some(25), days_max: None, shortage: None };
        let plan = plan(segments, &[], limits, 6 * DAY_NS);
        assert_eq!(deleted(&plan), [1, 2, 3]);
        assert_eq!((plan.bytes_before, plan.bytes_after, plan.bytes_over), (50, 20, 0));
    }

    #[test]
    fn shortage_frees_what_the_reserve_lacks() {
        let segments = (1..=5).map(|n| segment(n, 10, n)).collect();
        let shortage = Some(Shortage { reserve: 40, free: 25 });
        let plan = plan(segments, &[], Limits { shortage, ..Limits::default() }, 6 * DAY_NS);
        assert_eq!(deleted(&plan), [1, 2]);
        assert_eq!(plan.verdicts[1].1, Verdict::Delete(Rule::Reserve(40)));
    }

    #[test]
    fn held_segment_stays_and_the_excess_is_reported() {
        let segments = vec![segment(1, 10, 1), segment(2, 10, 2)];
        let hold = HoldCover { name: "a".into(), cover: Cover::Period { from_ns: 0, to_ns: DAY_NS } };
        let limits = Limits { bytes_max: Some(5), days_max: Some(1), shortage: None };
        let plan = plan(segments, &[hold], limits, 9 * DAY_NS);
        assert_eq!(plan.verdicts[0].1, Verdict::Keep(Reason::Held("a".into())));
        assert_eq!(plan.verdicts[1].1, Verdict::Delete(Rule::Days(1)));
        assert_eq!(plan.bytes_over, 5);
    }

    #[test]
    fn segment_exactly_at_the_limit_of_days_stays() {
        let limits = Limits { bytes_max: None, days_max: Some(3), shortage: None };
        let now = 4 * DAY_NS + 1;
        assert_eq!(deleted(&plan(vec![segment(1, 1, 1)], &[], limits, now)), Vec::<u64>::new());
        assert_eq!(deleted(&plan(vec![segment(1, 1, 1)], &[], limits, now + 1)), [1]);
    }

    fn segments() -> impl Strategy<Value = Vec<SegmentState>> {
        let days = prop::option::weighted(0.9, (0u64..40, 0u64..3));
        let one = (0u64..50, days, prop::bool::weighted(0.1)).prop_map(|(bytes, days, is_open)| {
            let times_ns = days.map(|(first, length)| (first * DAY_NS, (first + length) * DAY_NS));
            SegmentState { number: 0, bytes, times_ns, is_open }
        });
        prop::collection::vec(one, 0..30).prop_map(|mut list| {
            (1..).zip(&mut list).for_each(|(number, segment)| segment.number = number);
            list
        })
    }

    fn holds() -> impl Strategy<Value = Vec<HoldCover>> {
        let period = (0u64..40, 0u64..10)
            .prop_map(|(from, days)| Cover::Period { from_ns: from * DAY_NS, to_ns: (from + days) * DAY_NS });
        let numbers = || prop::collection::btree_set(1u64..30, 0..4);
        let listed = (numbers(), numbers()).prop_map(|(held, unknown)| Cover::Segments { held, unknown });
        let cover = prop_oneof![period, listed];
        prop::collection::vec(cover, 0..3).prop_map(|covers| {
            covers.into_iter().map(|cover| HoldCover { name: "h".into(), cover }).collect()
        })
    }

    proptest! {
        #[test]
        fn plan_deletes_the_oldest_and_no_more_than_needed(
            segments in segments(), holds in holds(),
            bytes_max in prop::option::of(0u64..1000), days_max in prop::option::of(0u64..40),
        ) {
            let (now, limits) = (41 * DAY_NS, Limits { bytes_max, days_max, shortage: None });
            let plan = plan(segments.clone(), &holds, limits, now);
            prop_assert_eq!(plan.verdicts.len(), segments.len());
            let (mut after, mut youngest) = (0, 0);
            for (segment, verdict) in &plan.verdicts {
                let is_protected = segment.is_open
                    || segment.times_ns.is_none()
                    || holds.iter().any(|hold| hold.reason(segment).is_some());
                let is_old = segment.times_ns.is_some_and(|(_, last)| {
                    days_max.is_some_and(|days| now - last > days * DAY_NS)
                });
                match verdict {
                    Verdict::Delete(rule) => {
                        prop_assert!(!is_protected);
                        prop_assert_eq!(matches!(rule, Rule::Days(_)), is_old);
                        if let Rule::Bytes(_) = rule {
                            youngest = segment.bytes;
                        }
                    }
                    Verdict::Keep(reason) => {
                        after += segment.bytes;
                        prop_assert_eq!(*reason != Reason::WithinLimits, is_protected);
                        prop_assert!(is_protected || !is_old);
                    }
                }
            }
            prop_assert_eq!(plan.bytes_after, after);
            let bytes_max = bytes_max.unwrap_or(u64::MAX);
            prop_assert_eq!(plan.bytes_over, after.saturating_sub(bytes_max));
            // The youngest that the limit of bytes deletes is needed: with it the store is over the limit.
            let by_bytes: Vec<u64> = plan.verdicts.iter()
                .filter(|(_, verdict)| matches!(verdict, Verdict::Delete(Rule::Bytes(_))))
                .map(|(segment, _)| segment.number).collect();
            if let Some(last) = by_bytes.last() {
                prop_assert!(after + youngest > bytes_max);
                let older_kept = plan.verdicts.iter().any(|(segment, verdict)| {
                    segment.number < *last && *verdict == Verdict::Keep(Reason::WithinLimits)
                });
                prop_assert!(!older_kept);
            }
        }
    }
}
