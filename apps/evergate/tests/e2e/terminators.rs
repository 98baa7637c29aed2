//! TLS servers behind passthrough listeners: nginx processes that share neither session cache nor ticket keys.

use super::node::{Folder, eventually};
use super::pki::issue;
use crate::support::Port;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Host name of the certificate.
pub(crate) const NAME: &str = "site.example";
/// Places of nginx: the search path of an ordinary user lacks the second.
const PROGRAMS: [&str; 2] = ["nginx", "/usr/sbin/nginx"];

/// Sessions that the terminators make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sessions {
    /// TLS 1.2 with session ids.
    Ids,
    /// TLS 1.2 with tickets.
    Tickets,
    /// TLS 1.3.
    Tls13,
}

/// Running terminators with one certificate. They end with this value, and with the test's thread.
pub(crate) struct Terminators {
    processes: Vec<Child>,
    ports: Vec<Port>,
    /// Their files; the authority of the certificate is `ca.pem`.
    pub(crate) folder: Folder,
}

impl Terminators {
    /// Terminators that close each connection after one answer: their number, and properties of the handshake.
    pub(crate) fn start(count: usize, sessions: Sessions) -> Terminators {
        let (versions, tickets) = match sessions {
            Sessions::Ids => ("TLSv1.2", "off"),
            Sessions::Tickets => ("TLSv1.2", "on"),
            Sessions::Tls13 => ("TLSv1.3", "on"),
        };
        let settings =
            format!("ssl_protocols {versions}; ssl_session_tickets {tickets}; keepalive_timeout 0;");
        Terminators::with(count, "", |index| {
            let answer = format!("terminator {index} $ssl_session_reused $ssl_protocol\\n");
            format!("{settings} location / {{ return 200 \"{answer}\"; }}")
        })
    }

    /// Terminators with these options of `listen`, and the settings of each server.
    pub(crate) fn with(count: usize, listen: &str, settings: impl Fn(usize) -> String) -> Terminators {
        let folder = Folder::new();
        issue(&folder, "ca", "ecdsa", "", None);
        issue(&folder, "site", "ecdsa", NAME, Some("ca"));
        let ports: Vec<Port> = (0..count).map(|_| Port::new()).collect();
        let started = ports.iter().enumerate().map(|(index, port)| {
            let text = configuration(&folder, index, port.address(), listen, &settings(index));
            let process = run(&folder, index, &folder.write(&format!("nginx-{index}.conf"), &text));
            (process, port.address())
        });
        let mut processes = Vec::new();
        for (mut process, address) in started {
            eventually("nginx accepts connections", || {
                if let Some(status) = process.try_wait().unwrap() {
                    let log = folder.path(&format!("nginx-{}.log", processes.len()));
                    panic!("nginx ended: {status}: {}", std::fs::read_to_string(log).unwrap());
                }
                TcpStream::connect(address).ok()
            });
            processes.push(process);
        }
        Terminators { processes, ports, folder }
    }

    /// Configuration of their pool `web` with this policy; terminator N is the server `sN`.
    pub(crate) fn pool(&self, policy: &str) -> String {
        let server = |(index, port): (usize, &Port)| {
            format!("[[pools.servers]]\nname = \"s{index}\"\naddress = \"{}\"\n", port.address())
        };
        let servers: String = self.ports.iter().enumerate().map(server).collect();
        format!("[[pools]]\nname = \"web\"\npolicy = \"{policy}\"\n{servers}")
    }
}

impl Drop for Terminators {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Starts nginx as a single process.
fn run(folder: &Folder, index: usize, configuration: &Path) -> Child {
    let started = PROGRAMS.iter().find_map(|program| {
        let log = File::create(folder.path(&format!("nginx-{index}.log"))).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path("")).arg("-c").arg(configuration);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        evergate_sys::end_with_parent(&mut command).spawn().ok()
    });
    started.expect("nginx is missing; try scripts/setup test")
}

fn configuration(folder: &Folder, index: usize, address: SocketAddr, listen: &str, settings: &str) -> String {
    let file = |name: &str| folder.path(name).display().to_string();
    let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path \"{}\";\n", file(&format!("nginx-{index}-{kind}"))))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid \"{}\";\nerror_log stderr error;\nevents {{}}\nhttp {{\n\
         access_log off;\n{places}server {{\nlisten {address} ssl reuseport {listen};\n\
         ssl_certificate \"{}\";\nssl_certificate_key \"{}\";\nssl_session_cache shared:own:1m;\n{settings}\n\
         }}\n}}\n",
        file(&format!("nginx-{index}.pid")),
        file("site.pem"),
        file("site.key"),
    )
}
