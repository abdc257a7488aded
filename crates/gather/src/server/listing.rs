//! The list of a server's objects: names in ascending order, one page at a time.
//!
//! Names are ordered component by component, as paths are. Each page searches for its start again,
//! so no state is kept per client. The number of names that one page visits, and the number that
//! one folder may contain, are bounded. A symbolic link is listed if it leads to a file; folders
//! behind links are not visited. Names that cannot be requested are only counted: names that are
//! not UTF-8 or too long, and folders that are nested too deeply.

use super::files::Files;
use anabranch_gather_proto::msg::{Control, NAME_BYTES_MAX};
use anabranch_pieces::name::is_reserved;
use rustix::fs::{Dir, FileType};
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of objects per page.
const PAGE_OBJECTS: usize = 1_000;
/// Maximum number of names visited per page.
const PAGE_NAMES: usize = 20_000;
/// Maximum number of names in one folder.
const FOLDER_NAMES_MAX: usize = 100_000;
/// Maximum depth of nested folders.
const DEPTH_MAX: usize = 64;

/// A page under construction.
struct Page<'a> {
    files: &'a Files,
    prefix: &'a str,
    after: &'a str,
    messages: Vec<Control>,
    /// Number of names that cannot be listed, in the folders that no earlier page has visited.
    unlisted: u64,
    looked_at: usize,
    /// Start of the next page; `None` until this page is full.
    next: Option<String>,
}

/// The page of objects whose names begin with `prefix` and sort after `after`, as messages for the
/// client.
pub fn page(files: &Files, prefix: &str, after: &str) -> Vec<Control> {
    let messages = Vec::new();
    let mut page = Page { files, prefix, after, messages, unlisted: 0, looked_at: 0, next: None };
    let next = page.folder("", 0).map(|()| page.next).map_err(anabranch_gather_proto::msg::reason);
    if page.unlisted > 0 {
        page.messages.push(Control::Unlisted { names: page.unlisted });
    }
    page.messages.push(Control::ListEnd { next });
    page.messages
}

impl Page<'_> {
    /// Whether no earlier page has visited the folder.
    fn is_new(&self, folder: &str) -> bool {
        self.after.is_empty() || !Path::new(self.after).starts_with(folder)
    }

    /// Lists the contents of `folder`. Its name ends with a slash, or is empty.
    ///
    /// Errors: one line, if the folder has too many names.
    fn folder(&mut self, folder: &str, depth: usize) -> Result<(), String> {
        let opened = self.files.open_folder(folder);
        // A folder that was removed in the meantime, or that must not be read, counts as empty.
        let Ok(mut entries) = opened.and_then(Dir::new) else { return Ok(()) };
        let is_new = self.is_new(folder);
        let mut names: BTreeMap<String, FileType> = BTreeMap::new();
        while let Some(Ok(entry)) = entries.read() {
            let bytes = entry.file_name().to_bytes();
            if bytes == b"." || bytes == b".." || is_reserved(bytes) {
                continue;
            }
            let is_short = folder.len() + bytes.len() <= NAME_BYTES_MAX;
            let Some(name) = entry.file_name().to_str().ok().filter(|_| is_short) else {
                let is_asked_for = [folder.as_bytes(), bytes].concat().starts_with(self.prefix.as_bytes());
                self.unlisted += u64::from(is_asked_for && is_new);
                continue;
            };
            if names.len() >= FOLDER_NAMES_MAX {
                let folder = if folder.is_empty() { "the folder that is served" } else { folder };
                return Err(format!("{folder}: more than {FOLDER_NAMES_MAX} names in one folder"));
            }
            names.insert(name.to_owned(), entry.file_type());
        }
        drop(entries);
        for (name, kind) in names {
            let name = format!("{folder}{name}");
            // A folder sorts before the files in it. A folder may therefore be skipped only if
            // `after` does not lie below it.
            let is_before =
                Path::new(&name) <= Path::new(self.after) && !Path::new(self.after).starts_with(&name);
            if is_before || self.next.is_some() {
                continue;
            }
            let is_folder = match kind {
                FileType::Directory => true,
                // Some file systems do not report the type of an entry.
                FileType::Unknown => self.files.open_folder(&name).is_ok(),
                _ => false,
            };
            let below = format!("{name}/");
            let may_match = if is_folder {
                below.starts_with(self.prefix) || self.prefix.starts_with(&below)
            } else {
                name.starts_with(self.prefix) && name != self.after
            };
            if !may_match {
                continue;
            }
            self.looked_at += 1;
            if is_folder && depth < DEPTH_MAX {
                self.folder(&below, depth + 1)?;
            } else if is_folder {
                self.unlisted += u64::from(self.is_new(&name));
            } else if let Ok(opened) = self.files.open(&name) {
                let (bytes, modified_ns) = (opened.found.bytes, opened.found.modified_ns);
                self.messages.push(Control::Listed { object: name.clone(), bytes, modified_ns });
            }
            let is_full = self.messages.len() >= PAGE_OBJECTS || self.looked_at >= PAGE_NAMES;
            if is_full && self.next.is_none() {
                self.next = Some(name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(files: &Files, prefix: &str) -> (Vec<String>, usize) {
        let (names, pages, unlisted) = list_all(files, prefix);
        assert_eq!(unlisted, 0);
        (names, pages)
    }

    /// Returns the listed names, the number of pages, and the number of names that cannot be
    /// listed.
    fn list_all(files: &Files, prefix: &str) -> (Vec<String>, usize, u64) {
        let (mut names, mut pages, mut unlisted, mut after) = (Vec::new(), 0, 0, String::new());
        loop {
            pages += 1;
            let mut messages = page(files, prefix, &after);
            let Some(Control::ListEnd { next }) = messages.pop() else { panic!("a page has an end") };
            for message in messages {
                match message {
                    Control::Listed { object, .. } => names.push(object),
                    Control::Unlisted { names } => unlisted += names,
                    other => panic!("{other:?}"),
                }
            }
            match next.expect("it can be listed") {
                Some(next) => after = next,
                None => return (names, pages, unlisted),
            }
        }
    }

    #[test]
    fn pages_list_each_name_once_in_order() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("it can be made");
        std::fs::create_dir_all(at("a.d")).expect("it can be made");
        std::fs::create_dir_all(at("empty/of/all")).expect("it can be made");
        let mut expected: Vec<String> = (0..2_500).map(|n| format!("a/b/{n}")).collect();
        expected.extend(["a/c", "a.d/x", "a0", "z", "link"].map(str::to_owned));
        for name in &expected[..expected.len() - 1] {
            std::fs::write(at(name), b"x").expect("it can be written");
        }
        std::os::unix::fs::symlink("z", at("link")).expect("it can be made");
        std::os::unix::fs::symlink("a", at("other")).expect("it can be made");
        std::os::unix::fs::symlink("/etc/passwd", at("leak")).expect("it can be made");
        expected.sort_by(|a, b| Path::new(a).cmp(Path::new(b)));
        let files = Files::below(folder.path()).expect("it is there");
        assert_eq!(list(&files, ""), (expected.clone(), 3));
        let of = |prefix: &str| {
            expected.iter().filter(|name| name.starts_with(prefix)).cloned().collect::<Vec<_>>()
        };
        for prefix in ["a/b/2", "a", "a/", "z", "none", "a/b/17"] {
            assert_eq!(list(&files, prefix).0, of(prefix), "{prefix}");
        }
        assert_eq!(list(&files, "../").0, Vec::<String>::new());
    }

    /// Issue #52: names that are not UTF-8 were left out without notice.
    #[test]
    fn unlisted_names_are_counted_once() {
        use std::os::unix::ffi::OsStrExt as _;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let put = |at: &Path, name: &[u8]| {
            std::fs::create_dir_all(at).expect("it can be made");
            std::fs::write(at.join(std::ffi::OsStr::from_bytes(name)), b"x").expect("it can be written");
        };
        let (root, inner) = (folder.path(), folder.path().join("b"));
        for number in 0..1_500 {
            put(&inner, format!("{number}").as_bytes());
        }
        [&b"a\xff"[..], b"b\xff"].into_iter().for_each(|name| put(root, name));
        [&b"\xfe"[..], b"c\xff"].into_iter().for_each(|name| put(&inner, name));
        put(&root.join("empty"), b"\xff");
        // The path is longer than 1,024 bytes.
        let mut long = root.to_path_buf();
        (0..4).for_each(|_| long.push("l".repeat(250)));
        put(&long, "m".repeat(30).as_bytes());
        // The file lies in a folder below 64 other folders.
        let mut deep = root.join("deep");
        (0..64).for_each(|_| deep.push("d"));
        put(&deep, b"file");
        let files = Files::below(root).expect("it is there");
        let (names, pages, unlisted) = list_all(&files, "");
        assert_eq!((names.len(), pages, unlisted), (1_500, 2, 7));
        assert_eq!(list_all(&files, "b/").2, 2);
        assert_eq!(list_all(&files, "b/1").2, 0);
    }
}
