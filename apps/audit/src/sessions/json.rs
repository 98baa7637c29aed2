//! Sessions and their events as JSON.

use crate::find::hex;
use crate::sessions::catalog::{Part, Selected};
use crate::sessions::playback::Outcome;
use crate::when;
use evergate_evidence::base64;
use evergate_player::http::{BodyHole, Head, Message};
use evergate_player::{Event, Note, Report, Side, SideReport};
use serde_json::{Value, json};

/// Hexadecimal digits of a random; empty without one.
pub(crate) fn hex_of(random: Option<[u8; 32]>) -> String {
    random.map_or(String::new(), |random| hex(&random))
}

/// An event, or `None` for one that has no form of its own.
pub(crate) fn event_json(event: &Event) -> Value {
    match event {
        Event::Message(message) => message_json(message),
        Event::Data { side, time_ns, bytes } => {
            let mut value = json!({"type": "data", "from": side.name(), "time": when::shown_ns(*time_ns)});
            insert(&mut value, content_json(bytes));
            value
        }
        Event::Hole { side, length, cause } => {
            json!({"type": "hole", "from": side.name(), "bytes": length, "cause": cause.name()})
        }
        Event::Note { side, time_ns, note } => {
            let mut value = json!({"type": "note", "from": side.name(), "time": when::shown_ns(*time_ns)});
            insert(&mut value, note_json(note));
            value
        }
    }
}

fn insert(value: &mut Value, more: Value) {
    if let (Some(to), Value::Object(from)) = (value.as_object_mut(), more) {
        to.extend(from);
    }
}

/// Bytes as `text`, or as `base64` if they are not UTF-8.
fn content_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({"text": text}),
        Err(_) => json!({"base64": base64::encode(bytes)}),
    }
}

fn message_json(message: &Message) -> Value {
    let (kind, start) = match &message.head {
        Head::Request { method, target, host } => {
            ("request", json!({"method": method, "target": lossy(target), "host": lossy(host)}))
        }
        Head::Response { status, reason } => ("response", json!({"status": status, "reason": reason})),
    };
    let headers: Vec<Value> =
        message.headers.iter().map(|(name, value)| json!([name, lossy(value)])).collect();
    let mut value = json!({
        "type": kind,
        "exchange": message.exchange,
        "from": message.side.name(),
        "first": when::shown_ns(message.first_ns),
        "last": when::shown_ns(message.last_ns),
        "version": format!("1.{}", message.minor),
        "headers": headers,
        "body": content_json(&message.body),
        "body_bytes": message.body_bytes,
        "body_sha256": digest_of(message).map(|digest| hex(digest)),
        "holes": holes_json(message),
        "complete": message.is_complete,
    });
    insert(&mut value, start);
    value
}

/// Digest of the whole body; `None` where credentials are left out of it.
pub(crate) fn digest_of(message: &Message) -> Option<&[u8; 32]> {
    Some(&message.body_sha256).filter(|digest| **digest != [0; 32])
}

/// Missing bytes of a body.
pub(crate) fn holes_json(message: &Message) -> Value {
    let hole =
        |hole: &BodyHole| json!({"offset": hole.offset, "bytes": hole.length, "cause": hole.cause.name()});
    message.holes.iter().map(hole).collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn note_json(note: &Note) -> Value {
    match note {
        Note::HelloRetry => json!({"note": "hello_retry"}),
        Note::KeyUpdate(generation) => json!({"note": "key_update", "generation": generation}),
        Note::Alert(level, description) => {
            json!({"note": "alert", "level": level, "description": description})
        }
        Note::Closed => json!({"note": "close_notify"}),
        Note::Renegotiation => json!({"note": "renegotiation"}),
        Note::EarlyData(records) => json!({"note": "early_data", "records": records}),
        Note::DecryptionEnds(reason) => json!({"note": "decryption_ends", "reason": reason}),
        Note::OtherCopyUsed { offset, length } => {
            json!({"note": "other_copy_used", "offset": offset, "bytes": length})
        }
        Note::NotHttp(reason) => json!({"note": "not_http", "reason": reason}),
        Note::MessagesLost(reason) => json!({"note": "messages_lost", "reason": reason}),
    }
}

/// A session with what was found in its packets. `stores` are the names of the sources.
pub(crate) fn session_json(
    session: &Selected,
    stores: &[String],
    report: &Report,
    outcome: Outcome,
) -> Value {
    let part = |part: &Part| {
        let (number, packets) = (part.connection.number, part.connection.counts.packets);
        json!({"source": stores.get(part.source), "connection": number, "packets": packets})
    };
    let parts: Vec<Value> = session.parts.iter().map(part).collect();
    let tls = &report.tls;
    let [client, server] = Side::ALL.map(|side| side_json(&report.sides[side as usize]));
    let fragments = report.fragments;
    json!({
        "type": "session",
        "client": session.ends.client.to_string(),
        "server": session.ends.server.to_string(),
        "client_random": session.client_random.map(|random| hex(&random)),
        "server_random": tls.server_random.map(|random| hex(&random)),
        "sni": session.sni,
        "alpn": tls.alpn.as_ref().map(|name| lossy(name)),
        "version": tls.version,
        "suite": tls.suite,
        "resumed": tls.is_resumed,
        "has_secrets": tls.has_secrets,
        "first": when::shown_ns(report.first_ns),
        "last": when::shown_ns(report.last_ns),
        "parts": parts,
        "packets": report.packets,
        "captured_twice": report.captured_twice,
        "retransmissions": report.repeats,
        "fragments": {"fragments": fragments.fragments, "packets": fragments.complete,
            "incomplete": fragments.incomplete, "contradicting": fragments.contradicting},
        "to_server": client,
        "to_client": server,
        "whole": outcome == Outcome::Whole,
    })
}

fn side_json(side: &SideReport) -> Value {
    let holes: Vec<Value> = side
        .holes
        .iter()
        .map(|hole| {
            json!({"offset": hole.offset, "bytes": hole.length, "cause": hole.cause.name(),
                "from": when::shown_ns(hole.from_ns), "to": when::shown_ns(hole.to_ns),
                "acknowledged": hole.is_acknowledged})
        })
        .collect();
    let ambiguous: Vec<Value> = side
        .ambiguous
        .iter()
        .map(|place| {
            json!({"offset": place.offset, "bytes": place.length, "kept_sha256": hex(&place.kept),
                "other_sha256": hex(&place.other), "kept_acknowledged": place.is_acknowledged,
                "time": when::shown_ns(place.time_ns)})
        })
        .collect();
    json!({
        "bytes": side.counts.bytes,
        "repeated_bytes": side.counts.repeated_bytes,
        "unchecked_bytes": side.counts.unchecked_bytes,
        "strays": side.counts.strays,
        "records": side.records,
        "key_generation": side.generation,
        "holes": holes,
        "holes_omitted": side.holes_omitted,
        "ambiguous": ambiguous,
        "ambiguous_omitted": side.counts.ambiguous_omitted,
    })
}
