//! Where the configuration comes from, so that a reload can ask again.

use super::status::Finding;
use evergate_config::{self as config, Config, Problem};
use std::fmt;
use std::path::PathBuf;

/// A file, or the options of a command line.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where the configuration comes from.
    pub origin: Origin,
    /// The admin socket, in the place of the configuration's.
    pub socket: Option<PathBuf>,
    /// Which node of the cluster this is, in the place of the configuration's.
    pub node: Option<u8>,
}

/// Where a configuration comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// A configuration from flags on one line.
    Line {
        /// Where to listen.
        listen: String,
        /// The servers.
        to: Vec<String>,
        /// Certificate chain.
        cert: Option<PathBuf>,
        /// Private key.
        key: Option<PathBuf>,
    },
}

/// A configuration with its warnings, or everything that is wrong with it.
pub type Read = Result<(Config, Vec<Problem>), Vec<Problem>>;

impl Source {
    /// Reads and checks the configuration. Slow: reads files and resolves names.
    pub fn read(&self) -> Read {
        let (mut config, warnings) = match &self.origin {
            Origin::File(path) => config::load(path).map(|loaded| (loaded.config, loaded.warnings))?,
            Origin::Line { listen, to, cert, key } => {
                let made = config::one_line(listen, to, cert.as_deref(), key.as_deref());
                (made.map_err(|problem| vec![problem])?, Vec::new())
            }
        };
        if let Some(socket) = &self.socket {
            config.admin.socket = Some(socket.clone());
        }
        config::choose_node(&mut config, self.node, &self.to_string()).map_err(|problem| vec![*problem])?;
        Ok((config, warnings))
    }

    /// A problem of the machine with the requests of this source.
    pub(super) fn refusal(&self, what: String, remedy: &str) -> Finding {
        let consequence = "the configuration is refused; the node keeps its previous one";
        Finding::of_machine(config::Severity::Error, &self.to_string(), what, consequence, remedy)
    }

    /// A request of this source that the machine refuses; the other requests take effect.
    pub(super) fn warning(&self, what: String, consequence: &str, remedy: &str) -> Finding {
        Finding::of_machine(config::Severity::Warning, &self.to_string(), what, consequence, remedy)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Line { .. } => write!(f, "command line"),
        }
    }
}
