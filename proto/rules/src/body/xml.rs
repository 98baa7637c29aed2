//! XML, streamed: the text of wanted elements and attributes. No DTD, and no entities but the five predefined ones
//! and character references, so nothing expands.
//!
//! An element's value is its own character data (text and CDATA, not that of children), without blanks around it.
//! Names are compared without their namespace prefix.

use quick_xml::Reader;
use quick_xml::errors::Error;
use quick_xml::events::{BytesStart, Event};

use super::trie::{Node, Trie};
use super::{Reach, Sink, Value};
use crate::field::FieldId;
use crate::spec::Limits;

pub(super) fn read(wanted: &Trie, bytes: &[u8], whole: bool, limits: &Limits, sink: &mut dyn Sink) -> Reach {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if whole || error.error_len().is_some() => return Reach::Broken,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    let walk = Walk { wanted, limits, sink, open: Vec::new(), seen_root: false };
    match walk.run(text, whole) {
        Some(()) if whole => Reach::Whole,
        Some(()) => Reach::Cut,
        None => Reach::Broken,
    }
}

/// An open element.
struct Element {
    node: Option<Node>,
    field: Option<FieldId>,
    text: String,
    long: bool,
}

struct Walk<'w> {
    wanted: &'w Trie,
    limits: &'w Limits,
    sink: &'w mut dyn Sink,
    open: Vec<Element>,
    seen_root: bool,
}

impl Walk<'_> {
    /// Reads to the end, or to the cut if not `whole`; `None` if the document is broken.
    fn run(mut self, text: &str, whole: bool) -> Option<()> {
        let mut reader = Reader::from_str(text);
        let mut first = true;
        loop {
            match reader.read_event() {
                Ok(Event::Start(start)) => self.start(&start)?,
                Ok(Event::Empty(start)) => {
                    self.start(&start)?;
                    self.end();
                }
                Ok(Event::End(_)) => self.end(),
                Ok(Event::Text(part)) => self.text(&part.xml10_content())?,
                Ok(Event::CData(part)) if !self.open.is_empty() => self.text(&part.xml10_content())?,
                Ok(Event::GeneralRef(reference)) => {
                    let part = predefined(&reference.into_inner())?;
                    self.text(part.encode_utf8(&mut [0; 4]))?;
                }
                Ok(Event::Comment(_) | Event::PI(_)) => {}
                Ok(Event::Decl(decl)) if first => {
                    if let Some(encoding) = decl.encoding() {
                        let encoding = encoding.ok()?;
                        let known =
                            ["utf-8", "us-ascii"].iter().any(|name| encoding.eq_ignore_ascii_case(name));
                        known.then_some(())?;
                    }
                }
                // A DTD may define entities and defaults that a server would expand.
                Ok(Event::DocType(_) | Event::Decl(_) | Event::CData(_)) => return None,
                Ok(Event::Eof) => return (!whole || (self.open.is_empty() && self.seen_root)).then_some(()),
                // The bytes end within a tag, comment or the like.
                Err(Error::Syntax(_)) if !whole && reader.buffer_position() as usize <= text.len() => {
                    return unfinished(&text[reader.error_position() as usize..]).then_some(());
                }
                Err(_) => {
                    let at = (reader.error_position() as usize).min(text.len());
                    return (!whole && text[at..].starts_with('&') && !text[at..].contains(';'))
                        .then_some(());
                }
            }
            first = false;
        }
    }

    fn start(&mut self, start: &BytesStart<'_>) -> Option<()> {
        if self.open.len() >= self.limits.body_depth_max || (self.open.is_empty() && self.seen_root) {
            return None;
        }
        self.seen_root = true;
        let parent = match self.open.last() {
            Some(element) => element.node,
            None => self.wanted.root(),
        };
        let node = self.wanted.child(parent, start.local_name().as_ref().as_bytes());
        let mut name = String::new();
        for (count, attribute) in start.attributes().enumerate() {
            let attribute = attribute.ok().filter(|_| count < self.limits.body_parts_max)?;
            if !self.wanted.has_children(node) {
                continue;
            }
            name.clear();
            name.push('@');
            name.push_str(attribute.key.local_name().as_ref());
            if let Some(field) = self.wanted.field(self.wanted.child(node, name.as_bytes())) {
                let value = unescape(&attribute.value)?;
                let long = value.len() > self.limits.body_value_bytes_max;
                self.sink.value(field, if long { Value::Long } else { Value::Text(value.as_bytes()) });
            }
        }
        self.open.push(Element { node, field: self.wanted.field(node), text: String::new(), long: false });
        Some(())
    }

    fn end(&mut self) {
        if let Some(Element { field: Some(field), text, long, .. }) = self.open.pop() {
            self.sink
                .value(field, if long { Value::Long } else { Value::Text(text.trim_ascii().as_bytes()) });
        }
    }

    fn text(&mut self, part: &str) -> Option<()> {
        let Some(element) = self.open.last_mut() else {
            // Outside the root there are only blanks.
            return part.trim_ascii().is_empty().then_some(());
        };
        if element.field.is_some() && !element.long {
            element.text.push_str(part);
            element.long = element.text.len() > self.limits.body_value_bytes_max;
            if element.long {
                element.text = String::new();
            }
        }
        Some(())
    }
}

/// Whether markup at the end of a prefix may still be completed, rather than being wrong.
fn unfinished(markup: &str) -> bool {
    let starts = ["<!--", "<![CDATA[", "<?"];
    match markup.strip_prefix("<!") {
        Some(_) => starts.iter().any(|start| start.starts_with(markup) || markup.starts_with(start)),
        None => markup.starts_with('<'),
    }
}

/// The character of `&name;`.
fn predefined(name: &str) -> Option<char> {
    let number = match name {
        "lt" => return Some('<'),
        "gt" => return Some('>'),
        "amp" => return Some('&'),
        "apos" => return Some('\''),
        "quot" => return Some('"'),
        _ => name.strip_prefix('#')?,
    };
    let code = match number.strip_prefix('x') {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u32::from_str_radix(hex, 16).ok()?,
        None if number.bytes().all(|byte| byte.is_ascii_digit()) => number.parse().ok()?,
        _ => return None,
    };
    char::from_u32(code).filter(|&c| c >= ' ' || matches!(c, '\t' | '\n' | '\r'))
}

/// An attribute's value with its references replaced and blanks normalised (XML 1.0 section 3.3.3).
fn unescape(raw: &str) -> Option<String> {
    if raw.contains('<') {
        return None;
    }
    let mut value = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('&') {
        value.extend(rest[..at].chars().map(|c| if c.is_ascii_whitespace() { ' ' } else { c }));
        let end = rest[at..].find(';')?;
        value.push(predefined(&rest[at + 1..at + end])?);
        rest = &rest[at + end + 1..];
    }
    value.extend(rest.chars().map(|c| if c.is_ascii_whitespace() { ' ' } else { c }));
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(paths: &[&str], body: &str, whole: bool) -> (Reach, Vec<(u32, String)>) {
        let mut wanted = Trie::default();
        for (id, path) in (0..).zip(paths) {
            wanted.insert(path.split('/').map(str::to_owned), id);
        }
        let mut found = Vec::new();
        let mut keep = |field, value: Value<'_>| {
            found.push((
                field,
                match value {
                    Value::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                    other => format!("{other:?}"),
                },
            ));
        };
        let limits = Limits { body_depth_max: 4, body_value_bytes_max: 16, ..Limits::default() };
        let reach = read(&wanted, body.as_bytes(), whole, &limits, &mut keep);
        (reach, found)
    }

    const PURCHASE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- o --><p:purchase id='a&lt;b'>\
        <customerName> C&amp;C<![CDATA[ <L>]]>&#x21; </customerName><totalAmount>52001</totalAmount></p:purchase>\n";

    #[test]
    fn elements_attributes_and_repetitions_are_values() {
        let paths = ["purchase/customerName", "purchase/totalAmount", "purchase/@id", "totalAmount"];
        let (reach, found) = values(&paths, PURCHASE, true);
        assert_eq!(reach, Reach::Whole);
        assert_eq!(found, [(2, "a<b".into()), (0, "C&C <L>!".into()), (1, "52001".into())]);
        assert_eq!(values(&["a/b"], "<a><b>1</b><b/>x</a>", true).1, [(0, "1".into()), (0, String::new())]);
    }

    #[test]
    fn every_cut_is_a_cut() {
        for cut in 0..PURCHASE.len() - 1 {
            assert_eq!(
                values(&["purchase/totalAmount"], &PURCHASE[..cut], false).0,
                Reach::Cut,
                "{}",
                &PURCHASE[..cut]
            );
        }
        assert_eq!(values(&["a/b"], "<a><b>12", false), (Reach::Cut, vec![]));
    }

    #[test]
    fn what_servers_may_read_differently_is_broken() {
        for body in [
            "<a><b></a></b>",
            "<a>",
            "text",
            "<a/><a/>",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            "<a>&x;</a>",
            "<a>&#0;</a>",
            "<a b='1' b='2'/>",
            "<?xml version='1.0' encoding='utf-16'?><a/>",
            "<a><a><a><a><a/></a></a></a></a>",
            "<a b=1/>",
            "<a>& b</a>",
        ] {
            assert_eq!(values(&["a/b"], body, true).0, Reach::Broken, "{body}");
        }
    }

    #[test]
    fn a_long_text_is_long() {
        assert_eq!(values(&["a"], "<a>0123456789abcdefg</a>", true).1, [(0, "Long".into())]);
    }
}
