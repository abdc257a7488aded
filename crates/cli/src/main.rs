//! The `anabranch` command, all of which is in the library beside this file.

fn main() -> std::process::ExitCode {
    anabranch_cli::main()
}
