//! How a test says that it cannot run here, which differs from having passed. Part of the tests of each room with tests that may skip.

use std::io::Write as _;

/// Prints why the test that runs is left out. Where `ANABRANCH_SKIPPED` names a file, a line of it says so, too: `make test` counts
/// them in the end, as the output of tests that pass is not shown.
///
/// Panics: where `ANABRANCH_NO_SKIP` says that nothing may be left out.
pub fn skip(why: &str) {
    assert!(
        std::env::var_os("ANABRANCH_NO_SKIP").is_none(),
        "ANABRANCH_NO_SKIP is set, and this cannot run: {why}"
    );
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("ANABRANCH_SKIPPED") {
        let test = std::thread::current().name().unwrap_or("a test's thread").to_owned();
        let line = format!("{}\t{test}\t{why}\n", env!("CARGO_PKG_NAME"));
        let file = std::fs::File::options().append(true).create(true).open(&path);
        // In one piece, as many tests may write at once.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("ANABRANCH_SKIPPED {}: {error}", path.display()));
    }
}

/// Whether the system says that this machine lacks something, or lets this user not have it. Whatever else it says, a mistake of
/// ours may have led to it: then a test must not be left out. So what a missing file, a missing device or no room may mean is
/// for each step to say: `codes` are those by which this one, too, is told of something that the machine lacks.
#[allow(dead_code, reason = "not every room's tests meet the system so")]
pub fn is_lacking(error: &std::io::Error, codes: &[i32]) -> bool {
    use std::io::ErrorKind as Kind;
    // No such address family.
    const EAFNOSUPPORT: i32 = 97;
    matches!(error.kind(), Kind::Unsupported | Kind::PermissionDenied)
        || error.raw_os_error().is_some_and(|code| code == EAFNOSUPPORT || codes.contains(&code))
}
