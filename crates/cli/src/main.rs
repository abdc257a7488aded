//! The `anabranch` command. All its code is in the library of this crate.

fn main() -> std::process::ExitCode {
    anabranch_cli::main()
}
