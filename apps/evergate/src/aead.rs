//! Library that seals and opens records: the faster one on this processor, or the one that the environment names.

use anyhow::{Context, Result};
use evergate_crypto::fastest_aead;
use evergate_tls::{AeadLibraries, AeadLibrary, Suite, install_aead, installed_aead};
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// Environment variable that names one library for all suites, for comparisons.
const LIBRARY: &str = "EVERGATE_AEAD";

/// Decides for this process, once. Fails when the environment names an unknown library.
pub fn install_from_environment() -> Result<()> {
    let named = std::env::var_os(LIBRARY).filter(|name| !name.is_empty());
    let libraries = match named {
        Some(name) => {
            let library = library_named(&name)?;
            AeadLibraries::by(|_| library)
        }
        None => fastest_aead(),
    };
    install_aead(libraries);
    Ok(())
}

fn library_named(name: &OsStr) -> Result<AeadLibrary> {
    let known = AeadLibrary::ALL.into_iter().find(|library| name == library.name());
    known.with_context(|| {
        let names = AeadLibrary::ALL.map(AeadLibrary::name).join("` or `");
        format!("{LIBRARY}={}: unknown library; set `{names}`, or unset it", name.display())
    })
}

/// Name of the installed library by name of the suite.
pub fn library_names() -> BTreeMap<String, String> {
    let installed = installed_aead();
    let names = |suite: Suite| (suite.name().to_owned(), installed.of(suite).name().to_owned());
    Suite::ALL.into_iter().map(names).collect()
}

/// [`library_names`] in one line, as in `aes-128-gcm ring, chacha20-poly1305 aws-lc`.
pub(crate) fn list(names: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = names.iter().map(|(suite, library)| format!("{suite} {library}")).collect();
    pairs.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_names_one_of_the_libraries_or_is_refused() {
        for library in AeadLibrary::ALL {
            assert_eq!(library_named(OsStr::new(library.name())).unwrap(), library);
        }
        let error = library_named(OsStr::new("openssl")).unwrap_err().to_string();
        assert_eq!(error, "EVERGATE_AEAD=openssl: unknown library; set `aws-lc` or `ring`, or unset it");
    }
}
