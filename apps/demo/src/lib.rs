//! Small HTTP/1.1 servers to stand behind evergate in demonstrations and tests: each answers with its name and the
//! request that it received.
//!
//! `/` and every other path: a JSON description of the request. `/big?bytes=N`: N bytes. `/slow?ms=N`: the description,
//! N ms later. `/status?code=N`: the description with status N. `/echo` with an `Upgrade` header: 101, then every byte
//! back, or every message if the client uses WebSocket.
//!
//! One thread per connection, no limits in time: not for servers that untrusted clients reach.

pub mod cluster;
mod connection;
mod content;
mod websocket;

pub use websocket::{echo as echo_websocket, websocket_accept};

use anyhow::{Context, Result};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Starts servers, prints on standard output where each one listens, and serves until the process ends. `first`: the
/// address of the first server; the others have the ports after it, or free ones as well if it has port 0.
pub fn serve(count: u16, first: SocketAddr, name: &str) -> Result<()> {
    let mut servers = Vec::new();
    for index in 0..count {
        let port = match first.port() {
            0 => 0,
            first => first.checked_add(index).context("there are no ports above 65535")?,
        };
        let address = SocketAddr::new(first.ip(), port);
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let name = if count == 1 { name.to_owned() } else { format!("{name}-{}", index + 1) };
        servers.push((name, listener));
    }
    let mut out = std::io::stdout().lock();
    for (name, listener) in &servers {
        // A reader that is gone must not end the servers.
        let _ = writeln!(out, "demo server {name} on http://{}", listener.local_addr()?);
    }
    let _ = out.flush();
    drop(out);
    let threads: Vec<_> = servers
        .into_iter()
        .map(|(name, listener)| std::thread::spawn(move || accept(&Arc::from(name), &listener)))
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn accept(name: &Arc<str>, listener: &TcpListener) {
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                let name = name.clone();
                std::thread::spawn(move || connection::serve(&name, stream, None));
            }
            // Out of descriptors most likely: some will be free soon.
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}
