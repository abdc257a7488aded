//! The `anabranch` command. All of its code is in the library beside this file.

fn main() -> std::process::ExitCode {
    anabranch_cli::main()
}
