//! Objects that a user names, each with the servers that hold the object:
//! `[NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT`, or a manifest.
//!
//! A manifest is a TOML file with the `name`, `bytes` and `blake3` of each object. An object has
//! either `holders`, which each hold the whole object, or `part`s in order. Each part has its own
//! `name`, `bytes`, `blake3` (optional) and `holders`. An object of parts may give its `mode` and
//! `modified_ns`, which no server knows. `anabranch gather stripe` writes manifests. A list is
//! simpler: one object per line, in the form that users type. Empty lines and lines that begin with
//! `#` are skipped.

use anabranch_gather_proto::msg::{MODE_BITS, NAME_BYTES_MAX};
use anabranch_gather_proto::snapshot::DIRECTORY_BYTES_MAX;
use anabranch_pieces::Attributes;
use anabranch_pieces::name::{NameError, normal};
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// Maximum number of objects in one command.
const OBJECTS_MAX: usize = 100_000;
/// Maximum length in bytes of a manifest or a list.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// The reason why a target is invalid. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Not a valid object name.
    #[error("`{0}`: an object's name is a path without `..` or a `/` in front, of 1 to {max} bytes", max = NAME_BYTES_MAX)]
    ObjectName(String),
    /// Not a valid name of a directory.
    #[error(
        "`{0}`: a directory's name is a path without a `/` in front, with a `/` at its end, of at most {max} bytes",
        max = DIRECTORY_BYTES_MAX
    )]
    DirectoryName(String),
    /// Not a valid file name on this machine.
    #[error(transparent)]
    FileName(#[from] NameError),
    /// Not a valid server address.
    #[error("`{0}`: a server is HOST:PORT, or NAME@HOST:PORT")]
    Holder(String),
    /// An HTTP URL.
    #[error("`{0}`: servers are not asked over HTTP: write HOST:PORT/OBJECT, as host1:7180/big.bin")]
    Http(String),
    /// The target names servers but no object.
    #[error("write [NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT")]
    NoObject,
    /// More objects than one `get` accepts.
    #[error("{0} objects: at most {max} in one command", max = OBJECTS_MAX)]
    TooMany(usize),
    /// Two objects with the same destination file.
    #[error("{}: two objects would be this file", .0.display())]
    SameFile(PathBuf),
}

/// The reason why a manifest cannot be used. Displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// An error in the manifest file `path`.
    #[error("{}: {error}", path.display())]
    File {
        /// The manifest.
        path: PathBuf,
        /// The error.
        error: Box<ManifestError>,
    },
    /// The file cannot be read.
    #[error("{0}")]
    Read(io::Error),
    /// The manifest is too long.
    #[error("a manifest of more than {}: write several", ByteCount::new(MANIFEST_BYTES_MAX))]
    TooLong,
    /// The text is not TOML, or has fields that manifests do not have.
    #[error("line {line}: {message}")]
    Syntax {
        /// Line number, counted from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// The manifest has no object.
    #[error("no [[object]] in it")]
    Empty,
    /// An invalid object.
    #[error("object `{name}`: {error}")]
    Object {
        /// The object's name.
        name: String,
        /// The error.
        error: ObjectError,
    },
}

/// The reason why a list of objects cannot be used. Displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectListError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The list.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The list is too long.
    #[error("{}: a list of more than {}: write several", .0.display(), ByteCount::new(MANIFEST_BYTES_MAX))]
    TooLong(PathBuf),
    /// A line does not name an object.
    #[error("{}: line {line}: {error}", path.display())]
    Line {
        /// The list.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// The error.
        error: TargetError,
    },
    /// The list has no object.
    #[error("{}: no object in it: write one a line, as host1:7180,host2:7180/big.bin", .0.display())]
    Empty(PathBuf),
}

/// The reason why an object of a manifest is invalid. Displays as one line.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// An invalid name or server.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// An invalid hash.
    #[error("blake3: 64 hexadecimal digits: {0}")]
    Hash(blake3::HexError),
    /// The object has both holders and parts, or neither.
    #[error("give either holders or parts")]
    HoldersOrParts,
    /// A part has no holders.
    #[error("part `{0}`: has no holders")]
    NotHeld(String),
    /// A part's hash is invalid.
    #[error("part `{0}`: blake3: 64 hexadecimal digits")]
    PartHash(String),
    /// A part has no length.
    #[error("part `{0}`: bytes: missing")]
    PartBytes(String),
    /// The total length of the parts overflows.
    #[error("its parts are longer than any file")]
    TooLong,
    /// The total length of the parts differs from the object's length.
    #[error("its parts have {parts} bytes together, it has {bytes}")]
    Sum {
        /// Bytes of the parts.
        parts: u64,
        /// Bytes of the object.
        bytes: u64,
    },
    /// The mode has bits other than read, write and execute.
    #[error("mode: {0:#o}: at most {max:#o}", max = MODE_BITS)]
    Mode(u16),
    /// The object has a mode without a time, or a time without a mode.
    #[error("give both mode and modified_ns, or neither")]
    Attributes,
}

/// A server in the form that users type: `[NAME@]HOST:PORT`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// Expected name in the server's certificate; `None` if any name is accepted.
    pub name: Option<&'a str>,
    /// Address: `HOST:PORT`.
    pub at: &'a str,
}

impl<'a> Holder<'a> {
    /// Splits a holder into its name and its address.
    pub fn of(holder: &'a str) -> Self {
        match holder.rsplit_once('@') {
            Some((name, at)) => Self { name: Some(name), at },
            None => Self { name: None, at: holder },
        }
    }
}

/// An object to fetch, and the servers that hold its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the object on this machine.
    pub name: String,
    /// Destination path.
    pub path: PathBuf,
    /// Length in bytes, if known.
    pub bytes: Option<u64>,
    /// BLAKE3 hash, if known.
    pub hash: Option<[u8; 32]>,
    /// File attributes, if known.
    pub attributes: Option<Attributes>,
    /// Parts of the object, in order.
    pub parts: Vec<ManifestPart>,
}

impl Target {
    /// Parses `[NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT`. [`Target::at`] or [`place`] sets the
    /// destination.
    ///
    /// Errors: see [`TargetError`].
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let (holders, name) = split(text)?;
        check_name(name)?;
        let part = ManifestPart { name: name.to_owned(), bytes: None, blake3: None, holders };
        let name = name.to_owned();
        Ok(Self { name, path: PathBuf::new(), bytes: None, hash: None, attributes: None, parts: vec![part] })
    }

    /// Returns the same target with destination `path`.
    #[must_use]
    pub fn at(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }
}

/// A part of an object, as its holders store it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestPart {
    /// Name of the part at its holders.
    pub name: String,
    /// Length in bytes; optional for a single part.
    pub bytes: Option<u64>, // tidy-allow: quantity: a manifest's own word
    /// BLAKE3 hash in hexadecimal. With the hash, the holder of a wrong part can be identified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// Address `[NAME@]HOST:PORT` of each holder.
    pub holders: Vec<String>,
}

/// Format of a manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Objects of the manifest.
    pub object: Vec<Object>,
}

/// An object of a manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    /// Name of the object.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64, // tidy-allow: quantity: a manifest's own word
    /// BLAKE3 hash in hexadecimal.
    pub blake3: String,
    /// Permission bits, as in `0o640`. Without the field the servers' bits are used; a file of
    /// parts is then accessible to its owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// Time of the last change, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<i64>,
    /// Holders of the whole object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
    /// Parts of the object, if no server holds all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part: Vec<ManifestPart>,
}

/// Splits `[NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/NAME` into the servers and the name, which is not
/// checked.
///
/// Errors: see [`TargetError`].
pub(crate) fn split(text: &str) -> Result<(Vec<String>, &str), TargetError> {
    let is_url = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    if is_url {
        return Err(TargetError::Http(text.to_owned()));
    }
    let (servers, name) = text.split_once('/').ok_or(TargetError::NoObject)?;
    let holders: Vec<String> = servers.split(',').map(str::to_owned).collect();
    holders.iter().try_for_each(|holder| check_holder(holder))?;
    Ok((holders, name))
}

/// Checks that `name` is valid as an object's name.
///
/// Errors: the reason, in one line.
pub fn check_name(name: &str) -> Result<(), TargetError> {
    let is_plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if !is_plain || name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
        return Err(TargetError::ObjectName(name.to_owned()));
    }
    // A name that cannot be a file name on this machine is never requested, least of all a partial
    // file's.
    normal(name)?;
    Ok(())
}

/// Checks that `holder` has the form `[NAME@]HOST:PORT`.
///
/// Errors: the reason, in one line.
pub fn check_holder(holder: &str) -> Result<(), TargetError> {
    let Holder { name, at } = Holder::of(holder);
    let port = at.rsplit_once(':').and_then(|(host, port)| {
        (!host.is_empty()).then_some(())?;
        port.parse::<u16>().ok().filter(|port| *port > 0)
    });
    let is_one = port.is_some() && name.is_none_or(|name| !name.is_empty());
    if is_one { Ok(()) } else { Err(TargetError::Holder(holder.to_owned())) }
}

/// Reads a manifest from a file.
///
/// Errors: one line that names the file: the file cannot be read, is too long, or is invalid
/// ([`parse_manifest`]).
#[expect(clippy::disallowed_methods, reason = "the user's own file")]
pub fn read_manifest(path: &Path) -> Result<Vec<Target>, ManifestError> {
    let read = || {
        let mut text = String::new();
        let opened = File::open(path).map_err(ManifestError::Read)?;
        opened.take(MANIFEST_BYTES_MAX + 1).read_to_string(&mut text).map_err(ManifestError::Read)?;
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLong);
        }
        parse_manifest(&text)
    };
    read().map_err(|error| ManifestError::File { path: path.to_owned(), error: Box::new(error) })
}

/// Parses a manifest.
///
/// Errors: one line that names the object.
pub fn parse_manifest(text: &str) -> Result<Vec<Target>, ManifestError> {
    let manifest: Manifest = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let message = printable(&error.message().replace('\n', ", ")).into_owned();
        ManifestError::Syntax { line, message }
    })?;
    if manifest.object.is_empty() {
        return Err(ManifestError::Empty);
    }
    manifest.object.into_iter().map(|object| object.target()).collect()
}

impl Object {
    fn target(self) -> Result<Target, ManifestError> {
        let name = self.name.clone();
        self.checked().map_err(|error| ManifestError::Object { name, error })
    }

    fn checked(self) -> Result<Target, ObjectError> {
        check_name(&self.name)?;
        let hash = blake3::Hash::from_hex(&self.blake3).map_err(ObjectError::Hash)?;
        let parts = match (self.holders.is_empty(), self.part.is_empty()) {
            (false, true) => {
                let (name, blake3) = (self.name.clone(), Some(self.blake3));
                vec![ManifestPart { name, bytes: Some(self.bytes), blake3, holders: self.holders }]
            }
            (true, false) => self.part,
            _ => return Err(ObjectError::HoldersOrParts),
        };
        let mut sum = 0u64;
        for part in &parts {
            check_name(&part.name)?;
            if part.holders.is_empty() {
                return Err(ObjectError::NotHeld(part.name.clone()));
            }
            if part.blake3.as_ref().is_some_and(|hash| blake3::Hash::from_hex(hash).is_err()) {
                return Err(ObjectError::PartHash(part.name.clone()));
            }
            part.holders.iter().try_for_each(|holder| check_holder(holder))?;
            let bytes = part.bytes.ok_or_else(|| ObjectError::PartBytes(part.name.clone()))?;
            sum = sum.checked_add(bytes).ok_or(ObjectError::TooLong)?;
        }
        if sum != self.bytes {
            return Err(ObjectError::Sum { parts: sum, bytes: self.bytes });
        }
        let hash = Some(*hash.as_bytes());
        let attributes = match (self.mode, self.modified_ns) {
            (None, None) => None,
            (Some(mode), Some(modified_ns)) => {
                if mode > MODE_BITS {
                    return Err(ObjectError::Mode(mode));
                }
                Some(Attributes { mode: mode.into(), modified_ns })
            }
            _ => return Err(ObjectError::Attributes),
        };
        let (name, bytes) = (self.name, Some(self.bytes));
        Ok(Target { name, path: PathBuf::new(), bytes, hash, attributes, parts })
    }
}

/// Reads a list of objects, one per line; `-` is standard input.
///
/// Errors: one line that names the file, and the line number of an invalid line.
#[expect(clippy::disallowed_methods, reason = "the user's own file")]
pub fn read_object_list(path: &Path) -> Result<Vec<Target>, ObjectListError> {
    let opened: io::Result<Box<dyn io::Read>> = if path.as_os_str() == "-" {
        Ok(Box::new(io::stdin()))
    } else {
        File::open(path).map(|file| Box::new(file) as Box<dyn io::Read>)
    };
    let mut text = String::new();
    let read = opened.and_then(|opened| opened.take(MANIFEST_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| ObjectListError::Read { path: path.to_owned(), error })?;
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(ObjectListError::TooLong(path.to_owned()));
    }
    let mut targets = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |error| ObjectListError::Line { path: path.to_owned(), line: number + 1, error };
        targets.push(Target::parse(line).map_err(wrong)?);
        if targets.len() > OBJECTS_MAX {
            return Err(wrong(TargetError::TooMany(targets.len())));
        }
    }
    if targets.is_empty() { Err(ObjectListError::Empty(path.to_owned())) } else { Ok(targets) }
}

/// Sets the destination of each object: `output` itself for a single object, or the object's name
/// below `output`.
///
/// Errors: too many objects, or two objects with the same destination.
pub fn place(targets: &mut [Target], output: &Path, is_folder: bool) -> Result<(), TargetError> {
    if targets.len() > OBJECTS_MAX {
        return Err(TargetError::TooMany(targets.len()));
    }
    let into = is_folder || targets.len() > 1 || output.is_dir();
    let mut taken = BTreeSet::new();
    for target in targets {
        target.path = if into { output.join(normal(&target.name)?) } else { output.to_owned() };
        if !taken.insert(target.path.components().collect::<PathBuf>()) {
            return Err(TargetError::SameFile(target.path.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_object_names_are_parsed() {
        let target = Target::parse("a:1,[::1]:2/dir/x").expect("good");
        assert_eq!(target.name, "dir/x");
        assert_eq!(target.parts[0].holders, ["a:1", "[::1]:2"]);
        let pinned = Target::parse("s1@a:1,b:2/x@y").expect("good");
        let holders: Vec<Holder<'_>> =
            pinned.parts[0].holders.iter().map(|holder| Holder::of(holder)).collect();
        assert_eq!(holders[0], Holder { name: Some("s1"), at: "a:1" });
        assert_eq!((holders[1], pinned.name.as_str()), (Holder { name: None, at: "b:2" }, "x@y"));
        for bad in [
            "a:1",
            "a/x",
            "a:1/",
            "a:1//x",
            "a:1/../x",
            "a:0/x",
            ":1/x",
            "a:1,/x",
            "a:99999/x",
            "",
            "@a:1/x",
            "s@:1/x",
            "s@a/x",
        ] {
            let error = format!("{}", Target::parse(bad).expect_err("must be refused"));
            assert!(!error.contains('\n'), "{error}");
        }
        // Issue #17: the error message called the object wrong, "/host1:7180/x".
        let error = format!("{:#}", Target::parse("http://host1:7180/x").expect_err("not over HTTP"));
        assert!(error.contains("write HOST:PORT/OBJECT"), "{error}");
    }

    #[test]
    fn manifests_are_parsed_and_mistakes_are_named() {
        let hash = "a".repeat(64);
        let object = |rest: &str| {
            parse_manifest(&format!("[[object]]\nname = \"x\"\nbytes = 5\nblake3 = \"{hash}\"\n{rest}"))
        };
        let whole = object("holders = [\"a:1\", \"b:2\"]").expect("good");
        assert_eq!((whole[0].bytes, whole[0].parts.len()), (Some(5), 1));
        let part = |n: u32, bytes: u32| {
            format!("[[object.part]]\nname = \"x.{n}\"\nbytes = {bytes}\nholders = [\"a:1\"]\n")
        };
        let parts = object(&(part(0, 2) + &part(1, 3))).expect("good");
        assert_eq!(parts[0].parts.iter().map(|part| part.bytes).collect::<Vec<_>>(), [Some(2), Some(3)]);
        for (rest, said) in [
            (String::new(), "object `x`: give either holders or parts"),
            (part(0, 4), "object `x`: its parts have 4 bytes together, it has 5"),
            ("speed = 3".into(), "line 5: unknown field `speed`"),
            ("holders = [\"a:1\"]\nmode = 0o640".into(), "object `x`: give both mode and modified_ns"),
            (
                "holders = [\"a:1\"]\nmode = 0o4755\nmodified_ns = 0".into(),
                "object `x`: mode: 0o4755: at most",
            ),
            (part(0, 5) + "blake3 = \"a\"", "object `x`: part `x.0`: blake3: 64 hexadecimal"),
        ] {
            let error = format!("{:#}", object(&rest).expect_err("must be refused"));
            assert!(error.starts_with(said), "{error}");
        }
        assert!(parse_manifest("object = []").is_err());
        let known = object("holders = [\"a:1\"]\nmode = 0o640\nmodified_ns = -5").expect("good");
        assert_eq!(known[0].attributes, Some(Attributes { mode: 0o640, modified_ns: -5 }));
    }

    /// Issue #17: a manifest of any length was read as a whole.
    #[test]
    fn manifest_above_the_length_limit_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m.toml");
        let file = std::fs::File::create(&path).expect("it can be made");
        file.set_len(MANIFEST_BYTES_MAX + 1).expect("a file with a hole");
        let error = format!("{:#}", read_manifest(&path).expect_err("must be refused"));
        assert!(error.contains("m.toml: a manifest of more than 64 MiB"), "{error}");
        file.set_len(MANIFEST_BYTES_MAX).expect("a file with a hole");
        let error = format!("{:#}", read_manifest(&path).expect_err("no TOML"));
        assert!(error.contains("m.toml: line 1"), "{error}");
    }

    #[test]
    fn object_list_has_one_object_per_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("list");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("it can be written");
            let read = read_object_list(&path);
            read.map_err(|error| error.to_string().replace(&format!("{}: ", path.display()), ""))
        };
        let targets = read("a:1,b:2/x\n\n# a word\n  b:2/d/y \r\nb:2/#z").expect("good");
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["x", "d/y", "#z"]);
        let error = read("a:1/x\n\na:1/../x\n").expect_err("must be refused");
        assert!(error.starts_with("line 3: `../x`: an object's name is"), "{error}");
        assert!(
            read("# nothing\n")
                .expect_err("must be refused")
                .starts_with("no object in it: write one a line")
        );
        assert_eq!(read(&"a:1/x\n".repeat(OBJECTS_MAX)).expect("at the limit").len(), OBJECTS_MAX);
        let error = read(&"a:1/x\n".repeat(OBJECTS_MAX + 1)).expect_err("must be refused");
        assert_eq!(error, "line 100001: 100001 objects: at most 100000 in one command");
        assert!(read_object_list(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn several_objects_are_placed_in_a_folder_by_name() {
        let mut targets = [Target::parse("a:1/x").expect("good"), Target::parse("a:1/d/y").expect("good")];
        place(&mut targets, Path::new("out"), false).expect("apart");
        assert_eq!(targets[1].path, Path::new("out/d/y"));
        place(&mut targets[..1], Path::new("file"), false).expect("one");
        assert_eq!(targets[0].path, Path::new("file"));
        let mut same = [Target::parse("a:1/x").expect("good"), Target::parse("b:1/x").expect("good")];
        assert!(place(&mut same, Path::new("out"), false).is_err());
    }
}
