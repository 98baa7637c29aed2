//! Table of connections for people. Times are in UTC; text of peers is escaped.

use crate::cli::Failure;
use crate::find::Found;
use crate::output::{closed, shown_bytes};
use crate::when;
use evergate_base::terminal::shown;
use std::io::Write;
use std::path::PathBuf;

/// Widest host name in characters.
const SNI_WIDTH_MAX: usize = 48;

/// Prints the connections, with their store where there are several.
pub(super) fn print(found: &[Found], has_stores: bool, dirs: &[PathBuf]) -> Result<(), Failure> {
    if found.is_empty() {
        return Ok(());
    }
    let head = [
        "BEGIN (UTC)",
        "DURATION",
        "CLIENT",
        "SERVER",
        "HOST NAME",
        "TLS",
        "PACKETS",
        "TO SERVER",
        "TO CLIENT",
    ];
    let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    lines[0].push("CONNECTION".into());
    if has_stores {
        lines[0].push("STORE".into());
    }
    lines.extend(found.iter().map(|found| line(found, has_stores, dirs)));
    let columns = lines[0].len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in &lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        writeln!(out, "{}", text.trim_end()).map_err(closed)?;
    }
    out.flush().map_err(closed)
}

fn line(found: &Found, has_stores: bool, dirs: &[PathBuf]) -> Vec<String> {
    let connection = &found.connection;
    let duration = when::shown_duration(connection.last_ns.saturating_sub(connection.first_ns));
    let mut cells = vec![
        when::shown_short(connection.first_ns),
        if connection.counts.is_final { duration } else { format!("{duration} +") },
        connection.client.to_string(),
        connection.server.to_string(),
        host_name(&connection.sni),
        version(connection.version),
        connection.counts.packets.to_string(),
        shown_bytes(connection.counts.bytes_c2s),
        shown_bytes(connection.counts.bytes_s2c),
        connection.number.to_string(),
    ];
    if has_stores {
        cells.push(dirs.get(found.store).map(|dir| dir.display().to_string()).unwrap_or_default());
    }
    cells
}

fn host_name(sni: &str) -> String {
    let text = shown(sni);
    match text.chars().count() {
        0 => "-".into(),
        count if count > SNI_WIDTH_MAX => text.chars().take(SNI_WIDTH_MAX - 1).chain(['…']).collect(),
        _ => text.into_owned(),
    }
}

fn version(version: u16) -> String {
    match version {
        0 => "-".into(),
        0x0301..=0x0304 => format!("1.{}", version - 0x0301),
        _ => format!("{version:#06x}"),
    }
}
