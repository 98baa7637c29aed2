//! Streaming XML reader: the text of wanted elements and attributes. Documents with a DTD are refused. Only the five
//! predefined entities and character references are known, so nothing expands.
//!
//! An element's value is its own character data (text and CDATA, not that of children), without blanks around it. Names
//! are compared without their namespace prefix. Servers agree on such a value if it is in one piece and no child has
//! text. Otherwise some take the text before the first child, comment or CDATA section, and some add the text of the
//! children: these values are unknown.
//!
//! `quick_xml` accepts much that a strict parser refuses. Parsers that repair such a document read other values than
//! this module. Whatever [`markup`] does not allow therefore breaks the body, in wanted and in other elements.

use quick_xml::Reader;
use quick_xml::errors::Error;
use quick_xml::events::{BytesStart, Event};

use super::trie::{Node, Trie};
use super::{Reach, Sink, Value, markup};
use crate::field::FieldId;
use crate::spec::Limits;

pub(super) fn read(wanted: &Trie, bytes: &[u8], whole: bool, limits: &Limits, sink: &mut dyn Sink) -> Reach {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if whole || error.error_len().is_some() => return Reach::Broken,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    // `quick_xml` would skip another byte order mark.
    if text.starts_with('\u{feff}') || !markup::all_allowed(text) {
        return Reach::Broken;
    }
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
    /// Whether the element has text of its own other than blanks, and whether its descendants have.
    has_text: bool,
    has_text_below: bool,
    /// Whether the next text is not the first piece, and whether such text came.
    piece_ended: bool,
    in_pieces: bool,
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
                Ok(Event::Text(part)) if markup::is_text(&part) => match self.looks_at_text() {
                    true => self.text(&part.xml10_content())?,
                    false => self.notice(&part),
                },
                Ok(Event::CData(part)) if !self.open.is_empty() => {
                    self.end_piece();
                    match self.looks_at_text() {
                        true => self.text(&part.xml10_content())?,
                        false => self.notice(&part),
                    }
                    self.end_piece();
                }
                Ok(Event::GeneralRef(reference)) if !self.open.is_empty() => {
                    let part = markup::predefined(&reference.into_inner())?;
                    self.text(part.encode_utf8(&mut [0; 4]))?;
                }
                Ok(Event::Comment(comment)) if markup::is_comment(&comment) => self.interrupt(),
                Ok(Event::PI(instruction)) if markup::is_target(instruction.target()) => self.interrupt(),
                Ok(Event::Decl(decl)) if first => {
                    markup::declaration(decl.strip_prefix("xml")?)?;
                }
                // A DTD may define entities and defaults that a server would expand.
                Ok(Event::DocType(_)) => return None,
                Ok(Event::Eof) => return (!whole || (self.open.is_empty() && self.seen_root)).then_some(()),
                // The bytes end within a tag, comment or similar.
                Err(Error::Syntax(_)) if !whole && reader.buffer_position() as usize <= text.len() => {
                    return unfinished(&text[reader.error_position() as usize..]).then_some(());
                }
                Ok(_) => return None,
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
        let second_root = self.open.is_empty() && self.seen_root;
        if self.open.len() >= self.limits.body_depth_max
            || second_root
            || !markup::is_name(start.name().as_ref())
        {
            return None;
        }
        self.seen_root = true;
        let parent = match self.open.last() {
            Some(element) => element.node,
            None => self.wanted.root(),
        };
        let node = self.wanted.child(parent, start.local_name().as_ref().as_bytes());
        self.attributes(node, start.attributes_raw())?;
        self.interrupt();
        self.open.push(Element {
            node,
            field: self.wanted.field(node),
            text: String::new(),
            long: false,
            has_text: false,
            has_text_below: false,
            piece_ended: false,
            in_pieces: false,
        });
        Some(())
    }

    /// Reads the attributes of the element at `node`, each name once.
    fn attributes(&mut self, node: Option<Node>, mut rest: &str) -> Option<()> {
        let mut names = Vec::new();
        let mut wanted = String::new();
        while !markup::trim_blanks(rest).is_empty() {
            let (name, raw, after) = markup::attribute(rest)?;
            (names.len() < self.limits.body_parts_max && markup::is_name(name)).then_some(())?;
            let value = markup::unescape(raw)?;
            if self.wanted.has_children(node) {
                wanted.clear();
                wanted.push('@');
                wanted.push_str(name.split_once(':').map_or(name, |(_, local)| local));
                if let Some(field) = self.wanted.field(self.wanted.child(node, wanted.as_bytes())) {
                    let long = value.len() > self.limits.body_value_bytes_max;
                    self.sink.value(field, if long { Value::Long } else { Value::Text(value.as_bytes()) });
                }
            }
            names.push(name);
            rest = after;
        }
        names.sort_unstable();
        names.is_sorted_by(|one, next| one != next).then_some(())
    }

    fn end(&mut self) {
        let Some(element) = self.open.pop() else { return };
        if let Some(parent) = self.open.last_mut() {
            parent.has_text_below |= element.has_text || element.has_text_below;
        }
        if let Some(field) = element.field {
            let unknown = element.long || element.in_pieces || element.has_text_below;
            let text = element.text.trim_ascii().as_bytes();
            self.sink.value(field, if unknown { Value::Long } else { Value::Text(text) });
        }
    }

    /// Handles a child, a comment or an instruction: some servers read no further.
    fn interrupt(&mut self) {
        if let Some(element) = self.open.last_mut() {
            element.piece_ended = true;
        }
    }

    /// Handles the border of a CDATA section, which is a node of its own for some servers. Blanks around it are usual.
    fn end_piece(&mut self) {
        if let Some(element) = self.open.last_mut() {
            element.piece_ended |= element.has_text;
        }
    }

    /// Records that there is text, unless it is blank.
    fn notice(&mut self, part: &str) {
        if let Some(element) = self.open.last_mut()
            && !part.trim_ascii().is_empty()
        {
            element.has_text = true;
            element.in_pieces |= element.piece_ended;
        }
    }

    /// Whether text matters here: it belongs to a value, or must not occur.
    fn looks_at_text(&self) -> bool {
        self.open.last().is_none_or(|element| element.field.is_some())
    }

    fn text(&mut self, part: &str) -> Option<()> {
        self.notice(part);
        let Some(element) = self.open.last_mut() else {
            // Only blanks may stand outside the root.
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

/// Whether more bytes could complete the markup at the end of a prefix.
fn unfinished(markup: &str) -> bool {
    let starts = ["<!--", "<![CDATA[", "<?"];
    match markup.strip_prefix("<!") {
        Some(_) => starts.iter().any(|start| start.starts_with(markup) || markup.starts_with(start)),
        None => markup.starts_with('<'),
    }
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
        <customerName> C&amp;C &lt;L>&#x21; </customerName><note> <![CDATA[<n>]]>\n</note>\
        <totalAmount>52001</totalAmount></p:purchase>\n";

    #[test]
    fn elements_attributes_and_repetitions_are_values() {
        let paths =
            ["purchase/customerName", "purchase/totalAmount", "purchase/@id", "purchase/note", "note"];
        let (reach, found) = values(&paths, PURCHASE, true);
        assert_eq!(reach, Reach::Whole);
        let expected = [(2, "a<b"), (0, "C&C <L>!"), (3, "<n>"), (1, "52001")];
        assert_eq!(found, expected.map(|(field, text)| (field, text.to_owned())));
        assert_eq!(values(&["a/b"], "<a><b>1</b><b/>x</a>", true).1, [(0, "1".into()), (0, String::new())]);
    }

    #[test]
    fn every_cut_is_reported_as_cut() {
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
    fn ambiguous_xml_is_broken() {
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
    fn xml_refused_by_a_strict_parser_is_broken() {
        for body in [
            // Characters (XML 1.0 section 2.2), wherever they are.
            "<a><b>ad\u{1}in</b></a>",
            "<a><b>\0admin</b></a>",
            "<a><b>admin\u{fffe}</b></a>",
            "<a><b>\u{ffff}</b></a>",
            "<a><b\u{1}>admin</b\u{1}></a>",
            "<a x='\u{8}'/>",
            "<a x='&#0;'/>",
            "<a x='&#xFFFF;'/>",
            "<a>&#xFFFE;</a>",
            "<a><!-- \u{c} --></a>",
            "\u{feff}\u{feff}<a/>",
            // References and text (sections 2.4 and 4.1).
            "<a x='<'/>",
            "<a x='&y;'/>",
            "<a x='&'/>",
            "<a>]]></a>",
            "<a>x]]>y</a>",
            "&#32;<a/>",
            "<a/>&#10;",
            // Comments and instructions (sections 2.5 and 2.6).
            "<a><!-- -- --></a>",
            "<a><!-- x---></a>",
            "<?XML x?><a/>",
            "<a><?xMl x?></a>",
            "<?1?><a/>",
            "<?a:b?><a/>",
            "<? a?><a/>",
            // Names (section 2.3; Namespaces in XML 1.0 section 4).
            "<a><1u/></a>",
            "<a><-/></a>",
            "<a><b!/></a>",
            "<a><x:y:b/></a>",
            "<a><:b/></a>",
            "<a><b:/></a>",
            "<a><x:1/></a>",
            "<a 1='x'/>",
            "<a x:y:z='x'/>",
            "<a \u{d7}='x'/>",
            // Tags (section 3.1).
            "<a x='1'y='2'/>",
            "<a x='1' y:z='2' x='3'/>",
            "<a x/>",
            "<a x='1' / ></a>",
            "< a/>",
            // The declaration (section 2.8).
            "<?xml?><a/>",
            "<?xml version='9'?><a/>",
            "<?xml version='1.1'?><a/>",
            "<?xml encoding='utf-8'?><a/>",
            "<?xml encoding='utf-8' version='1.0'?><a/>",
            "<?xml version='1.0' standalone='yes' encoding='utf-8'?><a/>",
            "<?xml version='1.0' standalone='maybe'?><a/>",
            "<?xml version='1.0' x='y'?><a/>",
            "<?xml version='1.0'encoding='utf-8'?><a/>",
            "<?xml version='1.0' version='1.0'?><a/>",
            " <?xml version='1.0'?><a/>",
        ] {
            assert_eq!(values(&["a/b", "a/@z"], body, true).0, Reach::Broken, "{body:?}");
        }
    }

    #[test]
    fn xml_accepted_by_a_strict_parser_is_read() {
        for body in [
            "\u{feff}<?xml version=\"1.0\" encoding='UTF-8' standalone = 'no' ?><a><b>1</b></a>",
            "<?xml-stylesheet href='x'?><!-- - --><a><b>1</b><?p?><!----></a >",
            "<x:a xmlns:x='urn:x' x:y = \"a>b'&#9;\"\t><b>1</b></x:a>",
            "<a\nx='1'\r\ny='1'><b>1</b>\u{85}]] > >]</a>",
            "<a><b>1</b><\u{e9}t\u{e9}.-\u{b7}1/><\u{4e00}/></a>",
        ] {
            assert_eq!(values(&["a/b"], body, true), (Reach::Whole, vec![(0, "1".into())]), "{body:?}");
        }
        let body = "<a x='1\r\n2\t3&#10;' y='\n'/>";
        assert_eq!(values(&["a/@x"], body, true), (Reach::Whole, vec![(0, "1 2 3\n".into())]));
    }

    #[test]
    fn many_attributes_are_compared_quickly() {
        let attributes = |last: &str| (0..255).fold(String::new(), |all, n| format!("{all} a{n}='1'")) + last;
        assert_eq!(values(&["a"], &format!("<a{}/>", attributes("")), true).0, Reach::Whole);
        assert_eq!(values(&["a"], &format!("<a{}/>", attributes(" a7='1'")), true).0, Reach::Broken);
        assert_eq!(values(&["a"], &format!("<a{}/>", attributes(" b='' c=''")), true).0, Reach::Broken);
    }

    #[test]
    fn text_that_servers_join_differently_is_unknown() {
        for text in [
            "admin<b/>x",
            "<b/>admin",
            "admin<!---->x",
            "<!---->admin",
            "admin<?p?>x",
            "<b>admin</b>",
            "<b><c>admin</c></b>",
            "admin<b>x</b>",
            "<b>&#97;</b>",
            "<b><![CDATA[admin]]></b>",
            "admin<![CDATA[x]]>",
            "adm<![CDATA[]]>in",
            "<![CDATA[ad]]><![CDATA[min]]>",
            "<![CDATA[admin]]>x",
            "<![CDATA[admin]]>&#97;",
        ] {
            let body = format!("<u><role>{text}</role></u>");
            assert_eq!(values(&["u/role"], &body, true), (Reach::Whole, vec![(0, "Long".into())]), "{body}");
        }
    }

    #[test]
    fn blanks_comments_and_children_around_one_text_do_not_matter() {
        for text in ["admin<!-- x -->\n", "\n <![CDATA[admin]]>\n<?p?>", "ad&#109;in<b x='y'> &#32; </b><c/>"]
        {
            let body = format!("<u>\n <role>{text}</role>\n <!-- --><x>1</x>\n</u>");
            let read = values(&["u/role", "u/x"], &body, true);
            assert_eq!(read, (Reach::Whole, vec![(0, "admin".into()), (1, "1".into())]), "{body}");
        }
        let empty = values(&["a"], "<a>\n <b/> <!-- --> <b> </b></a>", true);
        assert_eq!(empty, (Reach::Whole, vec![(0, String::new())]));
    }

    #[test]
    fn long_text_is_long() {
        assert_eq!(values(&["a"], "<a>0123456789abcdefg</a>", true).1, [(0, "Long".into())]);
    }
}
