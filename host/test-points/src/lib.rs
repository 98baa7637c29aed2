//! Test points: with the feature `on`, `EVERGATE_TEST_ABORT=NAME[:N]` ends the process when it reaches the durable step
//! NAME for the Nth time, and `EVERGATE_TEST_CLOCK=MS:STEP_MS` steps its clock. Without the feature they are nothing.

/// Ends the process if the environment asks for it.
#[cfg(feature = "on")]
pub fn reached(step: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static ASKED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let asked = ASKED.get_or_init(|| {
        let text = std::env::var("EVERGATE_TEST_ABORT").ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((name, count)) = asked
        && name == step
        && COUNT.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        std::process::abort();
    }
}

/// Nothing: test points are compiled out.
#[cfg(not(feature = "on"))]
#[inline]
pub fn reached(_: &str) {}

/// A time in nanoseconds since 1970 as a clock shows it that steps by `STEP_MS` at `MS` after the first call.
#[cfg(feature = "on")]
pub fn stepped_ns(time_ns: u64) -> u64 {
    use std::sync::OnceLock;
    static STEP: OnceLock<Option<(u64, i64)>> = OnceLock::new();
    let step = STEP.get_or_init(|| {
        let text = std::env::var("EVERGATE_TEST_CLOCK").ok()?;
        let (after_ms, step_ms) = text.split_once(':')?;
        Some((time_ns + after_ms.parse::<u64>().ok()? * 1_000_000, step_ms.parse::<i64>().ok()? * 1_000_000))
    });
    match step {
        Some((from_ns, step_ns)) if time_ns >= *from_ns => time_ns.saturating_add_signed(*step_ns),
        _ => time_ns,
    }
}

/// The time itself: test points are compiled out.
#[cfg(not(feature = "on"))]
#[inline]
pub fn stepped_ns(time_ns: u64) -> u64 {
    time_ns
}
