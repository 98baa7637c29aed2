//! `evergate bench crypto` and `evergate bench records`

use super::output;
use super::{BenchCryptoArgs, output::failed};
use crate::aead::install_from_environment;
use crate::bench_crypto::{self, RecordCost};
use anyhow::Result;
use evergate_base::Table;
use std::time::Duration;

/// Measurements of records in the time of one measurement of a handshake: there are many, of little noise.
const RECORDS_PER_TIME: u32 = 10;

pub(super) fn crypto(args: &BenchCryptoArgs) -> u8 {
    let time = Duration::from_millis(args.time_ms);
    let measured = install_from_environment().and_then(|()| bench_crypto::measure(time));
    let costs = match measured {
        Ok(costs) => costs,
        Err(error) => return failed(&error),
    };
    if args.json {
        return output::json(&costs);
    }
    let mut table = Table::new(&["HANDSHAKE", "SUITE", "FULL", "RESUMED", "ENCRYPTION"]);
    for cost in &costs {
        table.row(vec![
            cost.handshake.clone(),
            cost.suite.clone(),
            format!("{:.0} us", cost.full_us),
            format!("{:.0} us", cost.resumed_us),
            format!("{:.0} Mbit/s", cost.bulk_mbit_per_s),
        ]);
    }
    let records = match measure_records(args) {
        Ok(costs) => record_table(&costs),
        Err(error) => return failed(&error),
    };
    output::text(&format!("{}\n{records}\nOne core, the server's part only.\n", table.show("")))
}

pub(super) fn records(args: &BenchCryptoArgs) -> u8 {
    match install_from_environment().and_then(|()| measure_records(args)) {
        Ok(costs) if args.json => output::json(&costs),
        Ok(costs) => output::text(&record_table(&costs)),
        Err(error) => failed(&error),
    }
}

fn measure_records(args: &BenchCryptoArgs) -> Result<Vec<RecordCost>> {
    bench_crypto::measure_records(Duration::from_millis(args.time_ms) / RECORDS_PER_TIME)
}

fn record_table(costs: &[RecordCost]) -> String {
    let mut table = Table::new(&["RECORDS", "PAYLOAD", "LIBRARY", "SEAL", "OPEN", "CHOSEN"]);
    for cost in costs {
        table.row(vec![
            cost.suite.clone(),
            format!("{} B", cost.payload_bytes),
            cost.library.clone(),
            format!("{:.2} us", cost.seal_us),
            format!("{:.2} us", cost.open_us),
            if cost.chosen { "yes" } else { "-" }.to_owned(),
        ]);
    }
    table.show("")
}
