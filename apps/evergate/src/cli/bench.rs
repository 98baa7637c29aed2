//! `evergate bench crypto`

use super::output::{self, Table};
use super::{BenchCryptoArgs, output::failed};
use crate::crypto_cost;
use std::time::Duration;

pub(super) fn crypto(args: &BenchCryptoArgs) -> u8 {
    let costs = match crypto_cost::measure(Duration::from_millis(args.time_ms)) {
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
    output::text(&format!("{}\nOne core, the server's part only.\n", table.show("")))
}
