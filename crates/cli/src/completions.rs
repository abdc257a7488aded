//! `anabranch completions`: prints the script with which a shell completes verbs and options.

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
/// Errors: none.
pub fn run(args: &Args, command: clap::Command) -> anyhow::Result<ExitCode> {
    out!("{}", script(args.shell, command));
    Ok(ExitCode::SUCCESS)
}

fn script(shell: clap_complete::Shell, mut command: clap::Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "anabranch", &mut script);
    String::from_utf8(script).expect("clap writes text")
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    #[test]
    fn script_of_each_shell_lists_verbs_and_options() {
        for shell in clap_complete::Shell::value_variants() {
            let script = super::script(*shell, crate::Cli::command());
            for word in ["replicate", "bwlimit", "topologies"] {
                assert!(script.contains(word), "{shell}: no `{word}`");
            }
        }
    }
}
