//! Clients that open a connection for each request, and read until the server closes it.

use crate::wire::{Wire, tls_config};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustls::ClientConfig;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time of one step of a connection that counts as an error.
const PATIENCE: Duration = Duration::from_secs(5);
const HEAD_MAX: usize = 4_096;
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Parameters of a load.
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    /// Clients, each with one connection at a time.
    pub(crate) clients: usize,
    pub(crate) path: String,
    /// Length of each body.
    pub(crate) bytes: usize,
    /// Time in which connections begin.
    pub(crate) span: Duration,
    /// Server name for TLS; `None` for plain connections.
    pub(crate) name: Option<String>,
}

/// Completed work of a load.
pub(crate) struct Done {
    /// Connections that received their whole response and were closed by the server.
    pub(crate) connections: u64,
    pub(crate) took: Duration,
}

/// Runs the clients until the time is over. Any other response than 200 with a body of that length is an error.
pub(crate) fn run(load: &Load) -> Result<Done> {
    ensure!(load.clients > 0, "the number of clients may not be 0");
    let config = tls_config()?;
    let started = Instant::now();
    let counts = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..load.clients).map(|_| scope.spawn(|| client(load, &config, started))).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err(anyhow!("a client panicked"))))
            .collect::<Result<Vec<u64>>>()
    })?;
    Ok(Done { connections: counts.iter().sum(), took: started.elapsed() })
}

fn client(load: &Load, config: &Arc<ClientConfig>, started: Instant) -> Result<u64> {
    let request = format!("GET {} HTTP/1.1\r\nHost: bench.example\r\nConnection: close\r\n\r\n", load.path);
    let (mut count, mut response) = (0, Vec::new());
    while started.elapsed() < load.span {
        let mut wire = Wire::open(load.address, load.name.as_deref().map(|name| (config, name)), PATIENCE)
            .with_context(|| format!("opening connection {count} of a client"))?;
        wire.write_all(request.as_bytes())?;
        wire.flush()?;
        response.clear();
        (&mut wire)
            .take((HEAD_MAX + load.bytes) as u64)
            .read_to_end(&mut response)
            .context("reading a response")?;
        check(&response, load.bytes)?;
        count += 1;
    }
    Ok(count)
}

fn check(response: &[u8], bytes: usize) -> Result<()> {
    let Some(head) = response.windows(HEAD_END.len()).position(|window| window == HEAD_END) else {
        bail!("no whole response head in {} bytes", response.len())
    };
    ensure!(
        response.starts_with(b"HTTP/1.1 200 "),
        "the response is no 200: {:?}",
        String::from_utf8_lossy(&response[..head])
    );
    let body = response.len() - head - HEAD_END.len();
    ensure!(body == bytes, "a body of {body} bytes instead of {bytes}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that reads one request or ClientHello of each connection, answers and closes.
    fn serve(answer: &'static [u8], seen: std::sync::mpsc::Sender<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut buffer) = (stream.unwrap(), [0; 4_096]);
                let count = stream.read(&mut buffer).unwrap();
                stream.write_all(answer).unwrap();
                if seen.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        address
    }

    fn load(address: SocketAddr, name: Option<&str>) -> Load {
        let name = name.map(str::to_owned);
        Load { address, clients: 3, path: "/1k".to_owned(), bytes: 3, span: Duration::from_millis(50), name }
    }

    #[test]
    fn client_opens_a_connection_for_each_request() {
        let (sender, seen) = std::sync::mpsc::channel();
        let address = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", sender);
        let done = run(&load(address, None)).unwrap();
        let requests: Vec<_> = seen.try_iter().collect();
        assert!(done.connections >= 3 && requests.len() as u64 == done.connections, "{}", done.connections);
        assert!(requests.iter().all(|request| request.starts_with(b"GET /1k HTTP/1.1\r\n")));
    }

    #[test]
    fn unexpected_response_fails_the_load() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\n\r\nab"[..],
            b"HTTP/1.1 200 OK\r\n\r\nabcd",
            b"HTTP/1.1 404 Not Found\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\n",
            b"",
        ] {
            assert!(run(&load(serve(answer, std::sync::mpsc::channel().0), None)).is_err());
        }
    }

    #[test]
    fn hello_of_a_client_has_the_server_name() {
        let (sender, seen) = std::sync::mpsc::channel();
        let address = serve(b"no TLS", sender);
        assert!(run(&load(address, Some("bench.example"))).is_err());
        let hello = seen.recv().unwrap();
        assert!(hello.windows(13).any(|window| window == b"bench.example"));
    }
}
