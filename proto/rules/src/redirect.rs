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
    /// Reads a template; the error is the cause and the remedy.
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
        if source.contains('\\') {
            return Err((
                format!("the location {source:?} has a backslash, which browsers read as /"),
                "write / or %5C".into(),
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
        if !names_its_site(&pieces) {
            return Err((
                format!("the location {source:?} leaves it to the request to which site it leads"),
                "write the host or ${host} after //, and a / before ${query}".into(),
            ));
        }
        Ok(Template(pieces))
    }

    /// The location for a request. Bytes that could end the header or the host are percent-encoded. A value that
    /// follows only slashes has exactly one slash in front, because two would begin the name of another site
    /// (`//evil.example`).
    pub(crate) fn fill(&self, request: &Request<'_>) -> String {
        // A request for no path (`*`) is sent to the root: behind a host the star would be part of its name.
        let path = if request.path == b"*" { b"/" } else { request.path };
        let mut location = String::new();
        for (at, piece) in self.0.iter().enumerate() {
            let begins = matches!((at, piece), (0, Piece::Literal(_)) | (_, Piece::Host));
            let bare = !begins && names_nothing(&location);
            if bare {
                location.clear();
                location.push('/');
            }
            let rest = |bytes| if bare { without_slashes(bytes) } else { bytes };
            match piece {
                Piece::Literal(text) if bare => location.push_str(text.trim_start_matches('/')),
                Piece::Literal(text) => location.push_str(text),
                Piece::Host => encode(request.host, in_host, &mut location),
                Piece::Path => encode(rest(path), in_path_or_query, &mut location),
                Piece::Query if request.query.is_empty() => {
                    // An empty query leaves no lone separator.
                    if location.ends_with(['?', '&']) {
                        location.pop();
                    }
                }
                Piece::Query => encode(rest(request.query), in_path_or_query, &mut location),
            }
        }
        location
    }
}

/// Whether no request can choose the site: after `//` come a host and its end, before any value of the request.
fn names_its_site(pieces: &[Piece]) -> bool {
    let Some((Piece::Literal(first), others)) = pieces.split_first() else { return true };
    let Some(rest) = ["https://", "http://", "//"].iter().find_map(|start| first.strip_prefix(start)) else {
        return true;
    };
    let mut named = false;
    for piece in [&Piece::Literal(rest.to_owned())].into_iter().chain(others) {
        match piece {
            Piece::Literal(text) => {
                let end = text.find(['/', '?', '#']);
                named |= end.unwrap_or(text.len()) > 0;
                if end.is_some() {
                    return named;
                }
            }
            Piece::Host => named = true,
            // A path begins with a slash.
            Piece::Path => return named,
            Piece::Query => return false,
        }
    }
    named
}

/// Whether a location has neither host nor path yet; this is also so after a scheme if the request has no host.
fn names_nothing(location: &str) -> bool {
    matches!(location.trim_end_matches('/'), "" | "http:" | "https:")
}

fn without_slashes(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().position(|&byte| byte != b'/').unwrap_or(bytes.len())..]
}

fn in_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~[]:".contains(&byte)
}

fn in_path_or_query(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)
}

fn encode(bytes: &[u8], plain: fn(u8) -> bool, location: &mut String) {
    for &byte in bytes {
        if plain(byte) {
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
    fn request_cannot_add_lines_or_change_the_site() {
        assert_eq!(fill("/a${path}", "h", "/\r\nset-cookie: x", ""), "/a/%0D%0Aset-cookie:%20x");
        assert_eq!(fill("${path}", "h", "//evil.example/\\x", ""), "/evil.example/%5Cx");
        assert_eq!(fill("${path}", "h", "/\\evil.example", ""), "/%5Cevil.example");
    }

    #[test]
    fn leading_placeholders_stay_on_the_site() {
        for (template, host, path, query, location) in [
            ("/${path}", "h", "/evil.example", "", "/evil.example"),
            ("/${path}", "h", "///evil.example", "", "/evil.example"),
            ("/${path}", "h", "/\\evil.example", "", "/%5Cevil.example"),
            ("/${path}", "h", "/", "", "/"),
            ("${path}", "h", "*", "", "/"),
            ("https://${host}${path}", "a.example", "*", "", "https://a.example/"),
            ("/${query}", "h", "/", "/evil.example", "/evil.example"),
            ("/${query}", "h", "/", "\\evil.example", "/%5Cevil.example"),
            ("/${query}${path}", "h", "/evil.example", "", "/evil.example"),
            ("/${query}/evil.example", "h", "/", "", "/evil.example"),
            ("/?${query}${path}", "h", "/evil.example", "", "/evil.example"),
            ("${path}${path}", "h", "/", "", "/"),
            ("/${host}${path}", "", "/evil.example", "", "/evil.example"),
            ("/${host}", "/evil.example", "/", "", "/%2Fevil.example"),
            // Without a host the location has no site.
            ("https://${host}${path}", "", "/evil.example/x", "", "/evil.example/x"),
            ("https://${host}/new${path}", "", "/x", "", "/new/x"),
            ("https://${host}${path}", "[2001:db8::1]", "/x", "", "https://[2001:db8::1]/x"),
            ("https://${host}/", "a@b/c", "/", "", "https://a%40b%2Fc/"),
            ("//${host}${path}", "a.example", "//x", "", "//a.example//x"),
        ] {
            assert_eq!(fill(template, host, path, query), location, "{template} of {host} {path} {query}");
        }
    }

    #[test]
    fn wrong_templates_are_refused() {
        for template in ["", "ftp://x", "/a b", "/${hots}", "/${host", "x"] {
            assert!(Template::parse(template).is_err(), "{template}");
        }
    }

    #[test]
    fn templates_whose_site_a_request_could_choose_are_refused() {
        for template in [
            "https://${path}",
            "https:///x",
            "https://",
            "http://?${query}",
            "https://a.example${query}",
            "https://${query}/x",
            "https://${host}${query}",
            "//${path}",
            "//a.example${query}",
            "/\\a.example",
            "https://a.example\\${path}",
        ] {
            assert!(Template::parse(template).is_err(), "{template}");
        }
        for template in [
            "https://a.example",
            "https://${host}?${query}",
            "//a${path}?${query}",
            "/${query}",
            "/a/${query}",
        ] {
            assert!(Template::parse(template).is_ok(), "{template}");
        }
    }
}
