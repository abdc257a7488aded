//! `anabranch completions`: the script with which a shell completes the command's verbs and
//! options.

use std::io::Write as _;
use std::process::ExitCode;

/// Shell of the script.
#[derive(clap::Args)]
pub struct Args {
    /// The shell, as bash: `anabranch completions bash
    /// >~/.local/share/bash-completion/completions/anabranch`.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Prints the script for `command`.
///
/// Errors: stdout cannot be written to.
pub fn run(args: &Args, command: clap::Command) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(&script(args.shell, command))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: clap_complete::Shell, mut command: clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "anabranch", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    #[test]
    fn each_shell_learns_verbs_and_options() {
        for shell in clap_complete::Shell::value_variants() {
            let script = super::script(*shell, crate::Cli::command());
            let script = String::from_utf8(script).expect("a script is text");
            for word in ["replicate", "bwlimit", "topologies"] {
                assert!(script.contains(word), "{shell}: no `{word}`");
            }
        }
    }
}
