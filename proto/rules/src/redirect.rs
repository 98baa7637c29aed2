//! Location templates of redirects.

use crate::request::Request;

/// A compiled template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Host,
    Path,
    Query,
}

impl Template {
    /// Reads a template; the error is what is wrong and the remedy.
    pub(crate) fn parse(source: &str) -> Result<Template, (String, String)> {
        if source.is_empty() || !source.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err((
                format!("the location {source:?} is empty or has characters that are not printable ASCII"),
                "percent-encode them".into(),
            ));
        }
        if !["https://", "http://", "/", "${path}"].iter().any(|start| source.starts_with(start)) {
            return Err((
                format!("the location {source:?} is neither a URL nor a path"),
                "write https://${host}${path} or /path".into(),
            ));
        }
        let mut pieces = Vec::new();
        let mut rest = source;
        while let Some(at) = rest.find("${") {
            if at > 0 {
                pieces.push(Piece::Literal(rest[..at].to_owned()));
            }
            let Some(end) = rest[at..].find('}').map(|end| at + end) else {
                return Err((format!("placeholder without an end in {source:?}"), "close it with }".into()));
            };
            pieces.push(match &rest[at + 2..end] {
                "host" => Piece::Host,
                "path" => Piece::Path,
                "query" => Piece::Query,
                name => {
                    return Err((
                        format!("unknown placeholder ${{{name}}}"),
                        "placeholders are ${host}, ${path} and ${query}".into(),
                    ));
                }
            });
            rest = &rest[end + 1..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Template(pieces))
    }

    /// The location for a request. Bytes that could end the header or the host are percent-encoded, and a location
    /// that starts with the path cannot turn into another site (`//evil.example`).
    pub(crate) fn fill(&self, request: &Request<'_>) -> String {
        let mut location = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => location.push_str(text),
                Piece::Host => encode(request.host, &mut location),
                Piece::Path => {
                    let mut path = request.path;
                    if location.is_empty() {
                        while path.starts_with(b"//") {
                            path = &path[1..];
                        }
                    }
                    encode(path, &mut location);
                }
                Piece::Query if request.query.is_empty() => {
                    // An empty query leaves no lone separator.
                    if location.ends_with(['?', '&']) {
                        location.pop();
                    }
                }
                Piece::Query => encode(request.query, &mut location),
            }
        }
        location
    }
}

fn encode(bytes: &[u8], location: &mut String) {
    for &byte in bytes {
        if byte.is_ascii_graphic()
            && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
        {
            location.push(char::from(byte));
        } else {
            location.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Witness;

    fn fill(template: &str, host: &str, path: &str, query: &str) -> String {
        let witness =
            Witness { host: host.into(), path: path.into(), query: query.into(), ..Witness::default() };
        witness.with(|request| Template::parse(template).unwrap().fill(request))
    }

    #[test]
    fn placeholders_are_filled_and_an_empty_query_leaves_no_mark() {
        assert_eq!(
            fill("https://${host}${path}?${query}", "a.example", "/x", "b=1"),
            "https://a.example/x?b=1"
        );
        assert_eq!(fill("https://${host}${path}?${query}", "a.example", "/x", ""), "https://a.example/x");
        assert_eq!(fill("/new?a=1&${query}#top", "a", "/", ""), "/new?a=1#top");
    }

    #[test]
    fn a_request_cannot_add_lines_or_change_the_site() {
        assert_eq!(fill("/a${path}", "h", "/\r\nset-cookie: x", ""), "/a/%0D%0Aset-cookie:%20x");
        assert_eq!(fill("${path}", "h", "//evil.example/\\x", ""), "/evil.example/%5Cx");
        assert_eq!(fill("${path}", "h", "/\\evil.example", ""), "/%5Cevil.example");
    }

    #[test]
    fn wrong_templates_are_refused() {
        for template in ["", "ftp://x", "/a b", "/${hots}", "/${host", "x"] {
            assert!(Template::parse(template).is_err(), "{template}");
        }
    }
}
