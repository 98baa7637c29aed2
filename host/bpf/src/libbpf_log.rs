//! Log of libbpf: it goes into errors, not to stderr.

use libbpf_rs::{PrintLevel, set_print};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes of the log that an error repeats: the end, where the verifier gives the reason.
const LOG_BYTES_MAX: usize = 2000;

static LOG: Mutex<String> = Mutex::new(String::new());
static TURN: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(_: PrintLevel, text: String) {
    lock(&LOG).push_str(&text);
}

/// Runs `call` with libbpf's warnings collected; returns the end of them. One caller at a time: the printer is global.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> (T, String) {
    let _turn = lock(&TURN);
    lock(&LOG).clear();
    let before = set_print(Some((PrintLevel::Warn, note)));
    let result = call();
    set_print(before);
    let reported = std::mem::take(&mut *lock(&LOG));
    let reported = reported.trim();
    let start = reported.char_indices().rev().take(LOG_BYTES_MAX).last().map_or(0, |(index, _)| index);
    let reported = reported.get(start..).unwrap_or_default();
    (result, if reported.is_empty() { String::new() } else { format!("({reported})") })
}
