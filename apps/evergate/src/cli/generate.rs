//! `evergate generate`: man pages and shell completions for packages.

use super::{Cli, output};
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Writes the man pages to `man/` and the completions to `completions/`, both below `folder`.
pub(super) fn generate(folder: &Path) -> u8 {
    match write(folder) {
        Ok(()) => 0,
        Err(error) => output::failed(&error),
    }
}

fn write(folder: &Path) -> Result<()> {
    let (pages, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&pages, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command.clone(), &pages)
        .with_context(|| format!("cannot write to {}", pages.display()))?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command.clone(), "evergate", &completions)
            .with_context(|| format!("cannot write to {}", completions.display()))?;
    }
    Ok(())
}
