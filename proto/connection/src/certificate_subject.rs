//! The subject of a client's certificate as the text that rules compare.
//!
//! The format follows RFC 4514, in the order of the certificate: `C=DE, O=Corp, CN=admin`, with ` + ` between the parts
//! of one name component. Invariant: two different names never give the same text, because rules grant access by it.
//! Separators inside a part are escaped. Bytes that are not text are written in hexadecimal. A certificate that cannot
//! be parsed, or whose subject exceeds a log entry, has no subject. Attributes without a short name appear by number.

use crate::tls_info::TEXT_BYTES_MAX;
use x509_parser::asn1_rs::{Any, Class, Tag, ToDer};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name};

/// The subject of a certificate in DER.
pub(crate) fn subject_text(certificate: &[u8]) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    name_text(parsed.subject())
}

fn name_text(name: &X509Name<'_>) -> Option<String> {
    let mut out = String::new();
    for (index, component) in name.iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        for (index, attribute) in component.iter().enumerate() {
            out.push_str(if index > 0 { " + " } else { "" });
            push_attribute(&mut out, attribute)?;
        }
    }
    (out.len() <= TEXT_BYTES_MAX).then_some(out)
}

fn push_attribute(out: &mut String, attribute: &AttributeTypeAndValue<'_>) -> Option<()> {
    let kind = attribute.attr_type();
    let Some(value) = plain_text(attribute.attr_value()) else {
        out.push_str(&format!("{kind}=#"));
        attribute.attr_value().to_der_vec().ok()?.into_iter().for_each(|byte| push_hex(out, byte));
        return Some(());
    };
    match oid2abbrev(kind, oid_registry()) {
        Ok(name) => out.push_str(name),
        Err(_) => out.push_str(&kind.to_string()),
    }
    out.push('=');
    push_escaped(out, &value);
    Some(())
}

/// The characters of a string whose encoding is unambiguous. The old types that switch alphabets count as text within
/// ASCII only.
fn plain_text(value: &Any<'_>) -> Option<String> {
    if value.header.class() != Class::Universal || value.header.is_constructed() {
        return None;
    }
    let utf8 = || std::str::from_utf8(value.data).ok().map(str::to_owned);
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::NumericString | Tag::Ia5String | Tag::VisibleString => {
            utf8()
        }
        Tag::T61String | Tag::GeneralString | Tag::GraphicString | Tag::VideotexString => {
            utf8().filter(|text| text.is_ascii())
        }
        Tag::BmpString => {
            let (units, []) = value.data.as_chunks() else { return None };
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            String::from_utf16(&units).ok()
        }
        _ => None,
    }
}

/// RFC 4514 section 2.4, with `=` escaped too (it allows that), and control characters as the bytes of their UTF-8.
fn push_escaped(out: &mut String, value: &str) {
    let last = value.char_indices().last().map(|(at, _)| at);
    for (at, character) in value.char_indices() {
        let at_an_end =
            matches!(character, ' ' if at == 0 || Some(at) == last) || (character == '#' && at == 0);
        if at_an_end || matches!(character, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=') {
            out.push('\\');
        }
        if character.is_control() {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                out.push('\\');
                push_hex(out, byte);
            }
        } else {
            out.push(character);
        }
    }
}

fn push_hex(out: &mut String, byte: u8) {
    out.push_str(&format!("{byte:02X}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const CN: &[u8] = &[0x55, 4, 3];
    const O: &[u8] = &[0x55, 4, 10];
    const UTF8: u8 = 12;
    const PRINTABLE: u8 = 19;
    const T61: u8 = 20;
    const BMP: u8 = 30;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len() as u16;
        let mut out = vec![tag, 0x82];
        if length < 128 {
            out[1] = length as u8;
        } else {
            out.extend_from_slice(&length.to_be_bytes());
            out[1] = 0x82;
        }
        out.extend_from_slice(content);
        out
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        der(0x30, &[der(6, kind), der(tag, value)].concat())
    }

    /// The text of a name whose components are these sets of attributes.
    fn text(components: &[&[Vec<u8>]]) -> Option<String> {
        let sets: Vec<u8> =
            components.iter().flat_map(|attributes| der(0x31, &attributes.concat())).collect();
        let name = der(0x30, &sets);
        let (rest, name) = X509Name::from_der(&name).unwrap();
        assert!(rest.is_empty());
        name_text(&name)
    }

    fn cn(value: &str) -> String {
        text(&[&[attribute(CN, UTF8, value.as_bytes())]]).unwrap()
    }

    #[test]
    fn an_ordinary_subject_is_written_as_ever() {
        let country = attribute(&[0x55, 4, 6], PRINTABLE, b"DE");
        let organization = attribute(O, UTF8, "Müller & Co. (Köln)".as_bytes());
        let common = attribute(CN, T61, b"alice.example");
        let email = attribute(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 9, 1], 22, b"a@example.com");
        assert_eq!(
            text(&[&[country], &[organization], &[common, email]]).unwrap(),
            "C=DE, O=Müller & Co. (Köln), CN=alice.example + Email=a@example.com"
        );
        assert_eq!(text(&[]).unwrap(), "");
    }

    #[test]
    fn one_attribute_never_reads_as_two() {
        let two = text(&[&[attribute(CN, UTF8, b"admin")], &[attribute(O, UTF8, b"Corp")]]).unwrap();
        let multiple = text(&[&[attribute(CN, UTF8, b"admin"), attribute(O, UTF8, b"Corp")]]).unwrap();
        assert_eq!((two.as_str(), multiple.as_str()), ("CN=admin, O=Corp", "CN=admin + O=Corp"));
        assert_eq!(cn("admin, O=Corp"), "CN=admin\\, O\\=Corp");
        assert_eq!(cn("admin + O=Corp"), "CN=admin \\+ O\\=Corp");
    }

    #[test]
    fn ambiguous_characters_are_escaped() {
        for (value, expected) in [
            ("a\"b\\c<d>e;f", "CN=a\\\"b\\\\c\\<d\\>e\\;f"),
            ("#a#b", "CN=\\#a#b"),
            (" a b ", "CN=\\ a b\\ "),
            (" ", "CN=\\ "),
            ("", "CN="),
            ("a\0b\n\u{85}", "CN=a\\00b\\0A\\C2\\85"),
        ] {
            assert_eq!(cn(value), expected, "{value:?}");
        }
    }

    #[test]
    fn value_that_is_not_text_is_hexadecimal_under_its_number() {
        for (tag, value, expected) in [
            (UTF8, &[b'a', 0xff][..], "2.5.4.3=#0C0261FF"),
            (T61, &[b'a', 0xe4], "2.5.4.3=#140261E4"),
            (BMP, &[0], "2.5.4.3=#1E0100"),
            (2, &[7], "2.5.4.3=#020107"),
            (0x8c, b"a", "2.5.4.3=#8C0161"), // the number of a UTF8String, of another class
        ] {
            assert_eq!(text(&[&[attribute(CN, tag, value)]]).as_deref(), Some(expected));
        }
        assert_eq!(text(&[&[attribute(CN, BMP, &[0, b'a', 0, b','])]]).unwrap(), "CN=a\\,");
        assert_eq!(text(&[&[attribute(&[42, 3], UTF8, b"a")]]).unwrap(), "1.2.3=a");
    }

    #[test]
    fn unreadable_certificate_and_long_subject_give_none() {
        assert_eq!(subject_text(b"no certificate"), None);
        assert_eq!(subject_text(&[]), None);
        let long = |bytes| text(&[&[attribute(CN, UTF8, &vec![b'a'; bytes])]]);
        assert_eq!(long(TEXT_BYTES_MAX - 3).map(|text| text.len()), Some(TEXT_BYTES_MAX));
        assert_eq!(long(TEXT_BYTES_MAX - 2), None);
    }
}
