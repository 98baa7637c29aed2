//! Clients of one connection each: curl, `openssl s_client` and Python's `http.client`.

use super::{Desk, REQUESTS, Running, Verdict, feed, nothing, run};
use crate::phases::server::read_chunked;
use crate::traffic::{content, head};
use crate::world::{ADDRESS, World};
use std::io::Write;
use std::process::Command;
use std::sync::Arc;

/// Ports of passthrough listeners, by the version of their server.
const RELAYED_12: u16 = 9014;
const RELAYED_13: u16 = 9024;

pub(super) fn clients(world: &World, desk: &Arc<Desk>) -> Vec<Running> {
    let mut all = downloads(world, desk);
    all.extend(uploads(world, desk));
    all.extend(requests(world, desk));
    all
}

/// curl with the cluster's name at this port.
fn curl(world: &World, more: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--no-buffer", "--max-time", "120", "--cacert"]);
    command.arg(world.folder.path("shop.pem"));
    for port in [9002, 9003, RELAYED_12, RELAYED_13] {
        command.arg("--resolve").arg(format!("shop.test:{port}:{ADDRESS}"));
    }
    command.args(more);
    command
}

/// Checks that the client received all that the server sent under this name.
fn is_stream(desk: &Desk, name: &str, came: &[u8]) -> Verdict {
    let sent = desk.sent.lock().unwrap().get(name).copied();
    match sent == Some(came.len()) && came == content(0, came.len()) {
        true => Ok(()),
        false => Err(format!("{} bytes came of {sent:?}, or other ones", came.len())),
    }
}

fn downloads(world: &World, desk: &Arc<Desk>) -> Vec<Running> {
    let mut all = Vec::new();
    for (name, more) in [
        ("curl-tls13", &["--tlsv1.3", "https://shop.test:9003/stream/curl-tls13"][..]),
        ("curl-tls12", &["--tls-max", "1.2", "https://shop.test:9003/stream/curl-tls12"]),
        ("curl-http", &["http://shop.test:9002/stream/curl-http"]),
        ("curl-relayed12", &["https://shop.test:9014/stream/curl-relayed12"]),
        ("curl-relayed13", &["https://shop.test:9024/stream/curl-relayed13"]),
    ] {
        let desk = desk.clone();
        let check = move |came: &[u8], _| is_stream(&desk, name, came);
        all.push(run(world, name, 1, curl(world, more), nothing, check));
    }
    for (name, version, port) in [
        ("openssl-tls13", "-tls1_3", 9003),
        ("openssl-tls12", "-tls1_2", 9003),
        ("openssl-relayed13", "-tls1_3", RELAYED_13),
        ("openssl-relayed12", "-tls1_2", RELAYED_12),
    ] {
        let mut command = Command::new("openssl");
        command.args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-verify_hostname",
            "shop.test",
            version,
        ]);
        command.args(["-servername", "shop.test", "-connect", &format!("{ADDRESS}:{port}"), "-CAfile"]);
        command.arg(world.folder.path("shop.pem"));
        let ask = move |input: &mut dyn Write| {
            let head = format!("GET /stream/{name} HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n");
            input.write_all(head.as_bytes()).map(|()| head.len())
        };
        let desk = desk.clone();
        let check = move |mut came: &[u8], _| {
            let (head, mut body) = (head(&mut came).map_err(|error| error.to_string())?, Vec::new());
            read_chunked(&mut came, &mut body).map_err(|error| format!("{head} {error}"))?;
            is_stream(&desk, name, &body)
        };
        all.push(run(world, name, 1, command, ask, check));
    }
    all
}

fn uploads(world: &World, desk: &Arc<Desk>) -> Vec<Running> {
    let mut all = Vec::new();
    for (name, url) in [
        ("curl-up-tls", "https://shop.test:9003/take"),
        ("curl-up-http", "http://shop.test:9002/take"),
        ("curl-up-relayed", "https://shop.test:9024/take"),
    ] {
        let check = |came: &[u8], fed: usize| match came == format!("whole {fed}").as_bytes() {
            true => Ok(()),
            false => Err(format!("{:?} of {fed} bytes", String::from_utf8_lossy(came))),
        };
        all.push(run(world, name, 1, curl(world, &["--upload-file", "-", url]), feed(desk, name), check));
    }
    all
}

fn requests(world: &World, desk: &Desk) -> Vec<Running> {
    let mut all = Vec::new();
    for (name, base) in
        [("curl-kept-tls", "https://shop.test:9003"), ("curl-kept-http", "http://shop.test:9002")]
    {
        let url = format!("{base}/n/[1-{REQUESTS}]");
        let format = "%{http_code} %{num_connects} %{size_download}\n";
        let command = curl(world, &["--output", "/dev/null", "--write-out", format, &url]);
        let check = |came: &[u8], _| {
            let digits = |number: usize| number.to_string().len();
            let line = |number| format!("200 {} {}\n", u8::from(number == 1), digits(number));
            let wanted: String = (1..=REQUESTS).map(line).collect();
            let came = String::from_utf8_lossy(came);
            let odd = came.lines().zip(wanted.lines()).position(|(came, wanted)| came != wanted);
            match came == wanted {
                true => Ok(()),
                false => Err(format!("{} answers, the first odd one is {odd:?}", came.lines().count())),
            }
        };
        all.push(run(world, name, 1, command, nothing, check));
    }
    let mut python = Command::new("python3");
    python.args(["-c", include_str!("requests.py")]).arg(world.folder.path("shop.pem"));
    python.args([ADDRESS, &REQUESTS.to_string(), &desk.chance.seed.to_string()]);
    let check = |came: &[u8], _| match came == format!("done {REQUESTS}\n").as_bytes() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(came).into_owned()),
    };
    all.push(run(world, "python", 1, python, nothing, check));
    all
}
