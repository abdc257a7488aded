//! Replays a fuzz target's corpus, for the test of the room that has the parser: `#[path = "../../../../fuzz/replay.rs"]`.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")] // tidy-allow: lifted-ban: only tests include it

/// Runs every file of `corpus/TARGET`: of those whose names begin with `bad` the target says false, of all others true.
/// How many there are.
///
/// Panics: where it says otherwise, and where there are no files.
pub fn replay(target: &str, exercise: impl Fn(&[u8]) -> bool) -> usize {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the corpus is part of the repository");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    paths.sort();
    for path in &paths {
        let bytes = std::fs::read(path).expect("the corpus can be read");
        let name = path.file_name().and_then(|name| name.to_str()).expect("corpus files have plain names");
        assert_eq!(exercise(&bytes), !name.starts_with("bad"), "{}", path.display());
    }
    assert!(!paths.is_empty(), "{}: no input", folder.display());
    paths.len()
}
