//! Clients and echo servers of the benchmark: `bench/run.py` starts them. See docs/measurements/benchmarks.md.
//!
//! - `evergate-bench serve RAW HTTP` listens on two ports of 127.0.0.1: a raw echo, and HTTP/1.1 with WebSocket echoes
//!   and uploads.
//! - `evergate-bench echo ADDRESS CONNECTIONS BYTES SECONDS [ws] [tls]` opens connections that each send one message,
//!   wait for its echo, and send the next. It prints one line of JSON.
//! - `evergate-bench fetch ADDRESS CLIENTS PATH BYTES SECONDS [NAME]` opens a connection for each GET, and reads until
//!   the server closes it; with TLS and this server name (SNI) if it is given. It prints one line of JSON.

mod client;
mod fetch;
mod frame;
mod server;
mod wire;

use anyhow::{Context, Result, bail};
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: evergate-bench serve RAW_PORT HTTP_PORT\n   \
     or: evergate-bench echo ADDRESS CONNECTIONS BYTES SECONDS [ws] [tls]\n   \
     or: evergate-bench fetch ADDRESS CLIENTS PATH BYTES SECONDS [NAME]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evergate-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["serve", raw, http] => {
            let listen = |port: &str| -> Result<TcpListener> {
                let port: u16 = port.parse().context("a port")?;
                TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("listening on port {port}"))
            };
            server::serve(listen(raw)?, listen(http)?)
        }
        ["echo", address, connections, bytes, seconds, options @ ..] => {
            let load = client::Load {
                address: address.parse().context("the address")?,
                connections: connections.parse().context("the number of connections")?,
                bytes: bytes.parse().context("the number of bytes")?,
                span: Duration::try_from_secs_f64(seconds.parse().context("the number of seconds")?)?,
                websocket: options.contains(&"ws"),
                tls: options.contains(&"tls"),
            };
            let done = client::run(&load)?;
            println!("{{\"echoes\": {}, \"seconds\": {:.6}}}", done.echoes, done.took.as_secs_f64());
            Ok(())
        }
        ["fetch", address, clients, path, bytes, seconds, name @ ..] if name.len() <= 1 => {
            let load = fetch::Load {
                address: address.parse().context("the address")?,
                clients: clients.parse().context("the number of clients")?,
                path: (*path).to_owned(),
                bytes: bytes.parse().context("the number of bytes")?,
                span: Duration::try_from_secs_f64(seconds.parse().context("the number of seconds")?)?,
                name: name.first().map(|name| (*name).to_owned()),
            };
            let done = fetch::run(&load)?;
            println!(
                "{{\"connections\": {}, \"seconds\": {:.6}}}",
                done.connections,
                done.took.as_secs_f64()
            );
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
