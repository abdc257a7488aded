//! Replay of a fuzz target's corpus, for a test in the crate of the parser.

/// Runs the fuzz target on every file of `corpus/TARGET`. The target must return false for a file
/// whose name begins with `bad`, and true for any other file. Returns the number of files.
///
/// Panics: if the target returns another value, or if the corpus is empty.
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
