//! Go's net/http over crypto/tls: requests on a persistent connection, a download and an upload, with TLS 1.2 and
//! 1.3.

use super::{Desk, REQUESTS, Running, feed, run};
use crate::traffic::content;
use crate::world::{ADDRESS, World};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Builds the client, which has no dependencies to download.
pub(super) fn build() -> PathBuf {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("foreign-go-client");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/foreign/client.go");
    let mut command = Command::new("go");
    command.arg("build").arg("-o").arg(&program).arg(source);
    command.env("CGO_ENABLED", "0").env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
    let built = command.output().unwrap_or_else(|error| panic!("go: {error}; try scripts/setup test"));
    assert!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr));
    program
}

pub(super) fn clients(program: &Path, world: &World, desk: &Arc<Desk>) -> Vec<Running> {
    let client = |(name, version): (&'static str, &str)| {
        let mut command = Command::new(program);
        command.arg(world.folder.path("shop.pem")).args([&format!("{ADDRESS}:9003"), version, name]);
        command.args([REQUESTS.to_string(), desk.chance.seed.to_string()]);
        let shared = desk.clone();
        let check = move |came: &[u8], fed: usize| {
            let sent = shared.sent.lock().unwrap().get(name).copied().unwrap_or_default();
            let mut hash = String::new();
            Sha256::digest(content(0, sent)).iter().for_each(|byte| write!(hash, "{byte:02x}").unwrap());
            let wanted = format!("kept {REQUESTS}\ndown {sent} {hash}\nup whole {fed}\n");
            match came == wanted.as_bytes() {
                true => Ok(()),
                false => Err(format!("{:?} instead of {wanted:?}", String::from_utf8_lossy(came))),
            }
        };
        run(world, name, 3, command, feed(desk, name), check)
    };
    [("go-tls13", "1.3"), ("go-tls12", "1.2")].map(client).into()
}
