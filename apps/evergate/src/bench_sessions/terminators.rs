//! TLS terminators: one nginx per server, each with its own session cache and ticket keys.
//!
//! Each nginx is a single process (`master_process off`), so that its CPU time is that of one process, and that it ends
//! with this command even if this command is killed.

use super::SessionKind;
use super::child::{Folder, Server, free_addresses};
use super::client::NAME;
use anyhow::{Context, Result, anyhow, bail};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Places of nginx: the search path of an ordinary user lacks the second.
const PROGRAMS: [&str; 2] = ["nginx", "/usr/sbin/nginx"];

/// Finds nginx. `given`: the program that the operator named.
///
/// # Errors
/// None of them can be started: what to install.
pub(super) fn find_nginx(given: Option<&Path>) -> Result<PathBuf> {
    let candidates = match given {
        Some(path) => vec![path.to_owned()],
        None => PROGRAMS.map(PathBuf::from).to_vec(),
    };
    for program in &candidates {
        match Command::new(program).arg("-v").output() {
            Ok(output) if output.status.success() => return Ok(program.clone()),
            Ok(output) => bail!("{} -v failed ({})", program.display(), output.status),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot start {}", program.display())),
        }
    }
    Err(anyhow!(
        "nginx is missing ({}); install it, on Debian with `apt install nginx-light`, or name it with --nginx",
        candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    ))
}

/// Running terminators with one certificate.
pub(super) struct Terminators {
    servers: Vec<Server>,
}

impl Terminators {
    /// Starts `count` terminators with an RSA key of this size.
    pub(super) fn start(
        nginx: &Path,
        folder: &Folder,
        kind: SessionKind,
        key_bits: u16,
        count: usize,
    ) -> Result<Terminators> {
        let (chain, key) = certificate(key_bits)?;
        let chain = folder.write(&format!("rsa-{key_bits}.pem"), &chain)?;
        let key = folder.write(&format!("rsa-{key_bits}.key"), &key)?;
        let mut servers = Vec::new();
        for (index, address) in free_addresses(count)?.into_iter().enumerate() {
            let name = format!("nginx-{key_bits}-{index}");
            let text = configuration(folder.as_ref(), &name, kind, address, &chain, &key);
            let path = folder.write(&format!("{name}.conf"), &text)?;
            let mut command = Command::new(nginx);
            command.arg("-p").arg(folder.as_ref()).arg("-c").arg(path);
            servers.push(Server::start(&mut command, folder.path(&format!("{name}.log")), address)?);
        }
        Ok(Terminators { servers })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// CPU time of each terminator so far.
    pub(super) fn cpu(&self) -> Result<Vec<Duration>> {
        self.servers.iter().map(Server::cpu).collect()
    }
}

/// Self-signed certificate and its key, in PEM.
fn certificate(key_bits: u16) -> Result<(String, String)> {
    let size = match key_bits {
        2048 => rcgen::RsaKeySize::_2048,
        3072 => rcgen::RsaKeySize::_3072,
        4096 => rcgen::RsaKeySize::_4096,
        _ => bail!("no RSA keys of {key_bits} bits"),
    };
    let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size)?;
    let signed = rcgen::CertificateParams::new(vec![NAME.to_owned()])?.self_signed(&key)?;
    Ok((signed.pem(), key.serialize_pem()))
}

fn configuration(
    folder: &Path,
    name: &str,
    kind: SessionKind,
    address: SocketAddr,
    chain: &Path,
    key: &Path,
) -> String {
    let (versions, tickets) = match kind {
        SessionKind::Tls12Ids => ("TLSv1.2", "off"),
        SessionKind::Tls12Tickets => ("TLSv1.2", "on"),
        SessionKind::Tls13 => ("TLSv1.3", "on"),
    };
    let (folder, chain, key) = (folder.display(), chain.display(), key.display());
    let bodies: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path \"{folder}/{name}-{kind}\";\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid \"{folder}/{name}.pid\";\n\
         error_log stderr error;\nevents {{ worker_connections 8192; }}\nhttp {{\n    access_log off;\n{bodies}    \
         server {{\n        listen {address} ssl backlog=4096;\n        ssl_certificate \"{chain}\";\n        \
         ssl_certificate_key \"{key}\";\n        ssl_protocols {versions};\n        \
         ssl_session_cache shared:sessions:64m;\n        ssl_session_timeout 1d;\n        \
         ssl_session_tickets {tickets};\n        location / {{ return 200 \"ok\\n\"; }}\n    }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_nginx_is_an_error_with_a_remedy() {
        let error = find_nginx(Some(Path::new("/nowhere/nginx"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/nginx") && error.contains("apt install nginx-light"), "{error}");
    }

    #[test]
    fn odd_key_sizes_are_refused() {
        assert!(certificate(1000).unwrap_err().to_string().contains("1000 bits"));
    }
}
