//! Inner keys of the options.

use super::args::RevealerArgs;
use super::failed;
use crate::cli::Failure;
use evergate_seal::{HsmPlace, KeyStore};

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
        _ => return Err(super::wrong("give --keys, or --module, --token and --pin-file")),
    };
    opened.map_err(failed)
}
