//! Keys of the options: the inner ones, and those of servers.

use super::args::RevealerArgs;
use super::{failed, wrong};
use crate::cli::Failure;
use evergate_seal::{HsmPlace, KeyStore, ServerKey};
use std::path::PathBuf;
use std::rc::Rc;
use zeroize::Zeroizing;

/// Keys in the file or in the token of the options.
pub(super) fn open(args: &RevealerArgs) -> Result<KeyStore, Failure> {
    let opened = match (&args.keys, &args.module, &args.token, &args.pin_file) {
        (Some(path), ..) => {
            let shown = path.display();
            eprintln!("evergate-audit: reveal: the inner keys are in the file {shown}: a trial; use an HSM");
            KeyStore::open_file(path)
        }
        (None, Some(module), Some(token), Some(pin_file)) => KeyStore::open_hsm(HsmPlace {
            module: module.clone(),
            token: token.clone(),
            pin_file: pin_file.clone(),
            purpose: "reveal".into(),
        }),
        _ => return Err(wrong("give --keys, or --module, --token and --pin-file")),
    };
    opened.map_err(failed)
}

/// Private keys of servers.
pub(super) fn server_keys(files: &[PathBuf]) -> Result<Rc<[ServerKey]>, Failure> {
    let keys: Result<Vec<ServerKey>, Failure> = files
        .iter()
        .map(|path| {
            let wrong =
                |error: &dyn std::fmt::Display| wrong(format!("--server-key {}: {error}", path.display()));
            let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| wrong(&error))?);
            ServerKey::parse(&text).map_err(|error| wrong(&error))
        })
        .collect();
    keys.map(Rc::from)
}
