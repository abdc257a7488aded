//! What a user wants, from whom: `HOST:PORT[,HOST:PORT...]/OBJECT`, or a manifest.
//!
//! A manifest is a TOML file: for each object its `name`, `bytes` and `blake3`, and either `holders` that each have all of it,
//! or `part`s in order, each with its own `name`, `bytes` and `holders`. `anabranch gather stripe` writes one.

use anabranch_gather::msg::NAME_BYTES_MAX;
use anabranch_replicate::name::normal;
use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Objects that one command takes.
const OBJECTS_MAX: usize = 100_000;

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
    /// `HOST:PORT` of each that holds it.
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

/// Whether it is `HOST:PORT`.
///
/// Errors: one line.
pub fn check_holder(holder: &str) -> anyhow::Result<()> {
    let port = holder.rsplit_once(':').and_then(|(host, port)| {
        (!host.is_empty()).then_some(())?;
        port.parse::<u16>().ok().filter(|port| *port > 0)
    });
    ensure!(port.is_some(), "`{holder}`: a server is HOST:PORT");
    Ok(())
}

/// Reads `HOST:PORT[,HOST:PORT...]/OBJECT`; the path is set later.
///
/// Errors: one line.
pub fn parse(text: &str) -> anyhow::Result<Target> {
    let (servers, name) = text.split_once('/').context("write HOST:PORT[,HOST:PORT...]/OBJECT")?;
    check_name(name)?;
    let holders: Vec<String> = servers.split(',').map(str::to_owned).collect();
    holders.iter().try_for_each(|holder| check_holder(holder))?;
    let part = Part { name: name.to_owned(), bytes: None, holders };
    Ok(Target { name: name.to_owned(), path: PathBuf::new(), bytes: None, hash: None, parts: vec![part] })
}

/// Reads a manifest.
///
/// Errors: one line that names the object.
pub fn parse_manifest(text: &str) -> anyhow::Result<Vec<Target>> {
    let manifest: Manifest = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow::anyhow!("line {line}: {}", error.message().replace('\n', ", "))
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
                vec![Part { name: self.name.clone(), bytes: Some(self.bytes), holders: self.holders }]
            }
            (true, false) => self.part,
            _ => bail!("give either holders or parts"),
        };
        let mut sum = 0u64;
        for part in &parts {
            check_name(&part.name)?;
            ensure!(!part.holders.is_empty(), "part `{}`: nobody holds it", part.name);
            part.holders.iter().try_for_each(|holder| check_holder(holder))?;
            let bytes = part.bytes.with_context(|| format!("part `{}`: bytes: missing", part.name))?;
            sum = sum.checked_add(bytes).context("its parts are longer than any file")?;
        }
        ensure!(sum == self.bytes, "its parts have {sum} bytes together, it has {}", self.bytes);
        let hash = Some(*hash.as_bytes());
        Ok(Target { name: self.name, path: PathBuf::new(), bytes: Some(self.bytes), hash, parts })
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
        for bad in ["a:1", "a/x", "a:1/", "a:1//x", "a:1/../x", "a:0/x", ":1/x", "a:1,/x", "a:99999/x", ""] {
            let error = format!("{:#}", parse(bad).expect_err("must be refused"));
            assert!(!error.contains('\n'), "{error}");
        }
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
        ] {
            let error = format!("{:#}", object(&rest).expect_err("must be refused"));
            assert!(error.starts_with(said), "{error}");
        }
        assert!(parse_manifest("object = []").is_err());
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
