//! Reports of tests that this machine cannot run.

use std::io::Write as _;

/// Prints the reason why the running test is skipped. If `ANABRANCH_SKIPPED` names a file, a line
/// is appended to that file. `make test` counts the lines, because cargo hides the output of a
/// passing test.
///
/// Panics: if `ANABRANCH_NO_SKIP` is set.
pub fn skip(why: &str) {
    assert!(
        std::env::var_os("ANABRANCH_NO_SKIP").is_none(),
        "ANABRANCH_NO_SKIP is set, and this cannot run: {why}"
    );
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("ANABRANCH_SKIPPED") {
        let test = std::thread::current().name().unwrap_or("a test's thread").to_owned();
        // Cargo sets the variable for each test program that it runs.
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
        let line = format!("{package}\t{test}\t{why}\n");
        let file = std::fs::File::options().append(true).create(true).open(&path);
        // The line is written in one call, because many tests may write at once.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("ANABRANCH_SKIPPED {}: {error}", path.display()));
    }
}

/// Whether the error means that this machine or this user lacks a feature or a permission. `codes`
/// are further error numbers with that meaning at the caller's step. Any other error may be caused
/// by a bug in the project, and fails the test.
pub fn is_lacking(error: &std::io::Error, codes: &[i32]) -> bool {
    use std::io::ErrorKind as Kind;
    // Error number for an unsupported address family.
    const EAFNOSUPPORT: i32 = 97;
    matches!(error.kind(), Kind::Unsupported | Kind::PermissionDenied)
        || error.raw_os_error().is_some_and(|code| code == EAFNOSUPPORT || codes.contains(&code))
}
