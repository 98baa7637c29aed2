//! Metrics of a small process: a page in the Prometheus text format 0.0.4, and the listener that serves it.
//!
//! For processes without an HTTP server of their own. One request at a time, with bounds of [`HEAD_BYTES_MAX`] and
//! [`LIMIT`]: a client can delay other readers, and nothing else.

use std::fmt::{Display, Write as _};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Most bytes of a request.
pub const HEAD_BYTES_MAX: usize = 4096;
/// Longest time of one request.
pub const LIMIT: Duration = Duration::from_secs(1);

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// Page of metrics whose names begin with one prefix.
#[derive(Debug)]
pub struct Page {
    prefix: &'static str,
    text: String,
}

impl Page {
    /// Page without metrics.
    pub fn new(prefix: &'static str) -> Page {
        Page { prefix, text: String::new() }
    }

    /// Adds a metric with one value.
    pub fn put(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        let name = self.head(name, kind.name(), help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    /// Adds a metric with one value for each value of a label. Those values need no escapes.
    pub fn put_labelled<'a, V: Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, V)>,
    ) {
        let name = self.head(name, kind.name(), help);
        for (of, value) in rows {
            let _ = writeln!(self.text, "{name}{{{label}=\"{of}\"}} {value}");
        }
    }

    /// Adds a histogram: upper bounds in seconds, counts within each bound and beyond the last, and the sum.
    pub fn put_histogram(&mut self, name: &str, help: &str, bounds: &[f64], counts: &[u64], sum: f64) {
        let name = self.head(name, "histogram", help);
        let mut total = 0;
        let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(counts) {
            total += count;
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(self.text, "{name}_sum {sum}\n{name}_count {total}");
    }

    /// The page.
    pub fn into_text(self) -> String {
        self.text
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) -> String {
        let name = format!("{}_{name}", self.prefix);
        let _ = writeln!(self.text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
        name
    }
}

/// Answers `GET /metrics` with the page, one request after the other, for the life of the process.
pub fn serve(listener: &TcpListener, page: impl Fn() -> String) {
    for socket in listener.incoming() {
        match socket {
            Ok(socket) => drop(answer(socket, &page)),
            Err(_) => std::thread::sleep(Duration::from_millis(100)), // no descriptors are left
        }
    }
}

fn answer(mut socket: TcpStream, page: impl Fn() -> String) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut head = [0; HEAD_BYTES_MAX];
    let mut len = 0;
    while len < head.len() && !head[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::from(ErrorKind::TimedOut));
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut head[len..])? {
            0 => return Ok(()),
            read => len += read,
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics ") {
        true => ("200 OK", page()),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    socket.set_write_timeout(Some(LIMIT))?;
    let kind = "text/plain; version=0.0.4";
    let len = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: std::net::SocketAddr, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).expect("connected");
        socket.write_all(request).expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("answered");
        answer
    }

    #[test]
    fn page_has_a_head_for_each_metric() {
        let mut page = Page::new("a");
        page.put("b_total", Kind::Counter, "Things", 3);
        page.put_labelled("c", Kind::Gauge, "Others", "of", [("x", 1), ("y", 2)]);
        page.put_histogram("d_seconds", "Times", &[0.5, 1.0], &[1, 0, 2], 7.25);
        let expected = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total 3\n\
                        # HELP a_c Others.\n# TYPE a_c gauge\na_c{of=\"x\"} 1\na_c{of=\"y\"} 2\n\
                        # HELP a_d_seconds Times.\n# TYPE a_d_seconds histogram\n\
                        a_d_seconds_bucket{le=\"0.5\"} 1\na_d_seconds_bucket{le=\"1\"} 1\n\
                        a_d_seconds_bucket{le=\"+Inf\"} 3\na_d_seconds_sum 7.25\na_d_seconds_count 3\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn requests_get_the_page_or_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || serve(&listener, || "a 1\n".to_owned()));
        let answer = get(address, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\na 1\n"), "{answer}");
        assert!(get(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        // A client that sends nothing delays the next one by the limit.
        let _silent = TcpStream::connect(address).expect("connected");
        assert!(get(address, b"GET /metrics HTTP/1.0\r\n\r\n").contains("200 OK"));
        // A request without an end is answered at its bound.
        assert!(get(address, &[b'x'; HEAD_BYTES_MAX]).contains("404 Not Found"));
    }
}
