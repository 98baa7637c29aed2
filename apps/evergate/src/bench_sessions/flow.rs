//! Figure 7: the messages of a full and of a resumed handshake, with the time that each side needs, as SVG.

use super::{KeyCosts, SessionKind, StepTimes};
use evergate_sslsard::chart::escaped;
use std::fmt::Write;

const PANEL: f64 = 500.0;
const CLIENT_X: f64 = 90.0;
const SERVER_X: f64 = 410.0;
const TOP: f64 = 90.0;
const STEP: f64 = 50.0;
/// Arrows of a handshake, at most.
const ARROWS: f64 = 4.0;
const HEIGHT: f64 = TOP + STEP * ARROWS + 70.0;

/// Flights of a handshake, the client's first, then by turns.
fn flights(kind: SessionKind, is_full: bool) -> &'static [&'static str] {
    match (kind, is_full) {
        (SessionKind::Tls12Ids | SessionKind::Tls12Tickets, true) => &[
            "ClientHello",
            "ServerHello, Certificate, ServerKeyExchange, Done",
            "ClientKeyExchange, ChangeCipherSpec, Finished",
            "ChangeCipherSpec, Finished",
        ],
        (SessionKind::Tls12Ids, false) => &[
            "ClientHello with a session id",
            "ServerHello, ChangeCipherSpec, Finished",
            "ChangeCipherSpec, Finished",
        ],
        (SessionKind::Tls12Tickets, false) => &[
            "ClientHello with a ticket",
            "ServerHello, ChangeCipherSpec, Finished",
            "ChangeCipherSpec, Finished",
        ],
        (SessionKind::Tls13, true) => {
            &["ClientHello", "ServerHello, Certificate, CertificateVerify, Finished", "Finished"]
        }
        (SessionKind::Tls13, false) => &["ClientHello with a ticket", "ServerHello, Finished", "Finished"],
    }
}

/// Draws both handshakes side by side.
pub(super) fn svg(kind: SessionKind, key: &KeyCosts) -> String {
    let title = format!("Figure 7: messages of a handshake, RSA-{}", key.key_bits);
    let width = 2.0 * PANEL;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" \
         height=\"{HEIGHT}\" role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n\
         <title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{0}</text>\n",
        escaped(&title)
    );
    panel(&mut out, 0.0, "(a) new session", flights(kind, true), &key.full, key.costs.full_us);
    panel(&mut out, PANEL, "(b) resumed session", flights(kind, false), &key.resumed, key.costs.resumed_us);
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, left: f64, title: &str, flights: &[&str], steps: &StepTimes, cpu_us: f64) {
    let (client, server, bottom) = (left + CLIENT_X, left + SERVER_X, TOP + STEP * ARROWS);
    let middle = f64::midpoint(client, server);
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"50\" text-anchor=\"middle\" font-weight=\"bold\">{title}</text>\n\
         <text x=\"{client}\" y=\"72\" text-anchor=\"middle\">client</text>\n\
         <text x=\"{server}\" y=\"72\" text-anchor=\"middle\">server</text>\n\
         <path d=\"M{client} 80V{bottom}M{server} 80V{bottom}\" stroke=\"#333333\"/>"
    );
    for (index, flight) in flights.iter().enumerate() {
        let y = TOP + STEP * (index as f64 + 0.5);
        let from_client = index % 2 == 0;
        // The time before a flight belongs to its sender.
        let (times, place, anchor) = match from_client {
            true => (&steps.client_us, client - 8.0, "end"),
            false => (&steps.server_us, server + 8.0, "start"),
        };
        let time_us = if index == 0 { None } else { times.get((index - 1) / 2) };
        if let Some(time_us) = time_us {
            let _ = writeln!(
                out,
                "<text x=\"{place}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-weight=\"bold\">{time_us:.0} µs</text>",
                y + 4.0
            );
        }
        let (from, to, back) = if from_client { (client, server, -8.0) } else { (server, client, 8.0) };
        let _ = writeln!(
            out,
            "<path d=\"M{from} {y:.1}H{to}m{back} -4l{} 4l{back} 4\" fill=\"none\" stroke=\"#0072b2\" \
             stroke-width=\"1.5\"/><text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            -back,
            y - 6.0,
            escaped(flight)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">handshake {:.0} µs; CPU time of the server for the \
         connection {cpu_us:.0} µs</text>",
        bottom + 34.0,
        steps.handshake_us
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_sessions::cost_model::Costs;

    #[test]
    fn flow_shows_messages_and_times_of_both_handshakes() {
        let full = StepTimes { server_us: [1500.4, 210.0], client_us: [333.0, 9.0], ..StepTimes::default() };
        let resumed = StepTimes { server_us: [77.0, 0.0], client_us: [44.0, 0.0], ..StepTimes::default() };
        let costs = Costs { full_us: 1800.0, resumed_us: 120.0 };
        let key = KeyCosts { key_bits: 4096, costs, full, resumed };
        let svg = svg(SessionKind::Tls12Ids, &key);
        for part in
            ["RSA-4096", ">1500 µs<", ">210 µs<", ">333 µs<", ">77 µs<", ">44 µs<", "1800 µs", "120 µs"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("session id").count(), 1);
        assert!(!svg.contains(">0 µs<") && !svg.contains(">9 µs<"), "{svg}");
    }
}
