//! What a user wants, from whom: `[NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT`, or a manifest.
//!
//! A manifest is a TOML file: for each object its `name`, `bytes` and `blake3`, and either `holders` that each have all of it,
//! or `part`s in order, each with its own `name`, `bytes`, `blake3` (which may be missing) and `holders`; an object of parts
//! may say its `mode` and `modified_ns`, which no server knows. `anabranch gather stripe` writes one.

use anabranch_gather::msg::{MODE_BITS, NAME_BYTES_MAX};
use anabranch_replicate::control::Attributes;
use anabranch_replicate::name::normal;
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Objects that one command takes.
const OBJECTS_MAX: usize = 100_000;
/// The longest manifest.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// A server, as users name it: `[NAME@]HOST:PORT`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// Its name in its certificate, if that is to be checked.
    pub name: Option<&'a str>,
    /// `HOST:PORT`.
    pub at: &'a str,
}

impl<'a> Holder<'a> {
    /// Takes it apart.
    pub fn of(holder: &'a str) -> Self {
        match holder.rsplit_once('@') {
            Some((name, at)) => Self { name: Some(name), at },
            None => Self { name: None, at: holder },
        }
    }
}

/// An object, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What it is called here.
    pub name: String,
    /// Where it is written to.
    pub path: PathBuf,
    /// Its length, where that is known.
    pub bytes: Option<u64>,
    /// Its BLAKE3 hash, where that is known.
    pub hash: Option<[u8; 32]>,
    /// What it is besides its bytes, where that is known.
    pub attributes: Option<Attributes>,
    /// What it is made of, in order.
    pub parts: Vec<Part>,
}

/// Some of an object's bytes, as its holders have them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The name at its holders.
    pub name: String,
    /// Its length; of a single part it may be unknown.
    pub bytes: Option<u64>,
    /// Its BLAKE3 hash, in hexadecimal, which shows whose part is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// `[NAME@]HOST:PORT` of each that holds it.
    pub holders: Vec<String>,
}

/// A manifest, as it is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Its objects.
    pub object: Vec<Object>,
}

/// An object of a manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    /// What it is called.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its BLAKE3 hash, in hexadecimal.
    pub blake3: String,
    /// Who may read, write and run it, as in `0o640`; as its servers say where it is missing, or, in parts, its owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u16>,
    /// When it was changed last, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<i64>,
    /// Who holds all of it, by its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
    /// What it is made of, where nobody holds all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part: Vec<Part>,
}

/// Whether an object may be called so.
///
/// Errors: one line.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    ensure!(
        is_plain && !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains('\0'),
        "`{name}`: an object's name is a path without `..` or a `/` in front, of 1 to {NAME_BYTES_MAX} bytes"
    );
    // What is no name of a file here is not asked for: least of all a working file's.
    normal(name)?;
    Ok(())
}

/// Whether it is `[NAME@]HOST:PORT`.
///
/// Errors: one line.
pub fn check_holder(holder: &str) -> anyhow::Result<()> {
    let Holder { name, at } = Holder::of(holder);
    let port = at.rsplit_once(':').and_then(|(host, port)| {
        (!host.is_empty()).then_some(())?;
        port.parse::<u16>().ok().filter(|port| *port > 0)
    });
    ensure!(
        port.is_some() && name.is_none_or(|name| !name.is_empty()),
        "`{holder}`: a server is HOST:PORT, or NAME@HOST:PORT"
    );
    Ok(())
}

/// Reads `[NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT`; the path is set later.
///
/// Errors: one line.
pub fn parse(text: &str) -> anyhow::Result<Target> {
    let is_url = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    ensure!(
        !is_url,
        "`{text}`: servers are not asked over HTTP: write HOST:PORT/OBJECT, as host1:7180/big.bin"
    );
    let (servers, name) =
        text.split_once('/').context("write [NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT")?;
    check_name(name)?;
    let holders: Vec<String> = servers.split(',').map(str::to_owned).collect();
    holders.iter().try_for_each(|holder| check_holder(holder))?;
    let part = Part { name: name.to_owned(), bytes: None, blake3: None, holders };
    let name = name.to_owned();
    Ok(Target { name, path: PathBuf::new(), bytes: None, hash: None, attributes: None, parts: vec![part] })
}

/// Reads a manifest's file.
///
/// Errors: one line that names the file: it cannot be read, is too long, or as [`parse_manifest`].
#[expect(clippy::disallowed_methods, reason = "the user's own file")]
pub fn read_manifest(path: &Path) -> anyhow::Result<Vec<Target>> {
    let read = || -> anyhow::Result<Vec<Target>> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(MANIFEST_BYTES_MAX + 1).read_to_string(&mut text)?;
        ensure!(
            text.len() as u64 <= MANIFEST_BYTES_MAX,
            "a manifest of more than {}: write several",
            ByteCount::new(MANIFEST_BYTES_MAX)
        );
        parse_manifest(&text)
    };
    read().with_context(|| path.display().to_string())
}

/// Reads a manifest.
///
/// Errors: one line that names the object.
pub fn parse_manifest(text: &str) -> anyhow::Result<Vec<Target>> {
    let manifest: Manifest = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow::anyhow!("line {line}: {}", printable(&error.message().replace('\n', ", ")))
    })?;
    ensure!(!manifest.object.is_empty(), "no [[object]] in it");
    manifest.object.into_iter().map(|object| object.target()).collect()
}

impl Object {
    fn target(self) -> anyhow::Result<Target> {
        let name = self.name.clone();
        self.checked().with_context(|| format!("object `{name}`"))
    }

    fn checked(self) -> anyhow::Result<Target> {
        check_name(&self.name)?;
        let hash = blake3::Hash::from_hex(&self.blake3).context("blake3: 64 hexadecimal digits")?;
        let parts = match (self.holders.is_empty(), self.part.is_empty()) {
            (false, true) => {
                let (name, blake3) = (self.name.clone(), Some(self.blake3));
                vec![Part { name, bytes: Some(self.bytes), blake3, holders: self.holders }]
            }
            (true, false) => self.part,
            _ => bail!("give either holders or parts"),
        };
        let mut sum = 0u64;
        for part in &parts {
            check_name(&part.name)?;
            ensure!(!part.holders.is_empty(), "part `{}`: nobody holds it", part.name);
            let is_hash = part.blake3.as_ref().is_none_or(|hash| blake3::Hash::from_hex(hash).is_ok());
            ensure!(is_hash, "part `{}`: blake3: 64 hexadecimal digits", part.name);
            part.holders.iter().try_for_each(|holder| check_holder(holder))?;
            let bytes = part.bytes.with_context(|| format!("part `{}`: bytes: missing", part.name))?;
            sum = sum.checked_add(bytes).context("its parts are longer than any file")?;
        }
        ensure!(sum == self.bytes, "its parts have {sum} bytes together, it has {}", self.bytes);
        let hash = Some(*hash.as_bytes());
        let attributes = match (self.mode, self.modified_ns) {
            (None, None) => None,
            (Some(mode), Some(modified_ns)) => {
                ensure!(mode <= MODE_BITS, "mode: {mode:#o}: at most {MODE_BITS:#o}");
                Some(Attributes { mode: mode.into(), modified_ns })
            }
            _ => bail!("give both mode and modified_ns, or neither"),
        };
        let (name, bytes) = (self.name, Some(self.bytes));
        Ok(Target { name, path: PathBuf::new(), bytes, hash, attributes, parts })
    }
}

/// Says where each object goes: the one object to `output`, or each by its name below it.
///
/// Errors: too many of them, or two that would be one file.
pub fn place(targets: &mut [Target], output: &Path, is_folder: bool) -> anyhow::Result<()> {
    ensure!(targets.len() <= OBJECTS_MAX, "{} objects: at most {OBJECTS_MAX} in one command", targets.len());
    let into = is_folder || targets.len() > 1 || output.is_dir();
    let mut taken = std::collections::BTreeSet::new();
    for target in targets {
        target.path = if into { output.join(normal(&target.name)?) } else { output.to_owned() };
        ensure!(
            taken.insert(target.path.components().collect::<PathBuf>()),
            "{}: two objects would be this file",
            target.path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_objects_are_told_apart() {
        let target = parse("a:1,[::1]:2/dir/x").expect("good");
        assert_eq!(target.name, "dir/x");
        assert_eq!(target.parts[0].holders, ["a:1", "[::1]:2"]);
        let pinned = parse("s1@a:1,b:2/x@y").expect("good");
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
            let error = format!("{:#}", parse(bad).expect_err("must be refused"));
            assert!(!error.contains('\n'), "{error}");
        }
        // #17: it was the object that was called wrong, "/host1:7180/x".
        let error = format!("{:#}", parse("http://host1:7180/x").expect_err("not over HTTP"));
        assert!(error.contains("write HOST:PORT/OBJECT"), "{error}");
    }

    #[test]
    fn manifests_say_what_objects_are_made_of() {
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

    /// #17: a manifest was read whole, however long.
    #[test]
    fn a_manifest_that_is_too_long_is_refused() {
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
    fn many_objects_go_into_a_folder_by_their_names() {
        let mut targets = [parse("a:1/x").expect("good"), parse("a:1/d/y").expect("good")];
        place(&mut targets, Path::new("out"), false).expect("apart");
        assert_eq!(targets[1].path, Path::new("out/d/y"));
        place(&mut targets[..1], Path::new("file"), false).expect("one");
        assert_eq!(targets[0].path, Path::new("file"));
        let mut same = [parse("a:1/x").expect("good"), parse("b:1/x").expect("good")];
        assert!(place(&mut same, Path::new("out"), false).is_err());
    }
}
