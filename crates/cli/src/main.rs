//! The `anabranch` command: all of it is in the library beside it.

fn main() -> std::process::ExitCode {
    anabranch_cli::main()
}
