//! `anabranch gather stripe`: cuts a file into parts for many servers, and writes the manifest that puts them together again.

use super::get::targets::{Manifest, Object, Part, check_holder, check_name};
use crate::exit::OrUsage as _;
use anabranch_gather::msg::MODE_BITS;
use anabranch_units::ByteCount;
use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::NamedTempFile;

/// What to cut, and for whom.
#[derive(clap::Args)]
pub struct Args {
    /// The file to cut.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder to write to. DIR/0 gets what the first of --servers is to serve, DIR/1 what the second is, and so on; the
    /// manifest is DIR/NAME.toml, NAME being the file's.
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// The servers, as clients will reach them, separated by commas. With NAME, clients check that the server there has this
    /// name.
    #[arg(long, value_name = "[NAME@]HOST:PORT", value_delimiter = ',', required = true)]
    servers: Vec<String>,
    /// How many parts to cut. Without: as many as there are servers.
    #[arg(long, value_name = "N")]
    parts: Option<u64>,
    /// How many servers get each part. All of these but one may die.
    #[arg(long, value_name = "N", default_value_t = 1)]
    copies: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The most parts: each is a line of its own in what the client asks for.
const PARTS_MAX: u64 = 65_536;
/// Parts of a server that are named.
const PARTS_SHOWN: usize = 4;
const READ_BYTES: usize = 1 << 20;

#[derive(Serialize)]
struct Done<'a> {
    manifest: String,
    #[serde(flatten)]
    object: &'a Object,
}

/// Runs it.
///
/// Errors: one line for the user.
#[expect(clippy::disallowed_methods, reason = "the user's own files")]
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let (name, parts) = checked(args).or_usage()?;
    let servers = args.servers.len();
    let of_file = || args.file.display().to_string();
    let mut file = File::open(&args.file).with_context(of_file).or_usage()?;
    let found = file.metadata().with_context(of_file)?;
    ensure!(found.is_file(), "{}: not a plain file", args.file.display());
    let bytes = found.len();
    // No part is empty, unless all is.
    let parts = parts.min(bytes.max(1));
    let modified = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    let modified_ns =
        i64::try_from(modified).with_context(|| format!("{}: its time is no time", args.file.display()))?;
    let folders: Vec<PathBuf> = (0..servers).map(|server| args.into.join(server.to_string())).collect();
    for folder in &folders {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let end_of = |part: u64| (u128::from(bytes) * u128::from(part) / u128::from(parts)) as u64;
    let mut hasher = blake3::Hasher::new();
    let mut listed: Vec<Part> = Vec::new();
    for part in 0..parts {
        let length = end_of(part + 1) - end_of(part);
        let at: Vec<usize> = (0..args.copies).map(|copy| (part as usize + copy) % servers).collect();
        let part_name = format!("{name}.{part}");
        let paths: Vec<PathBuf> = at.iter().map(|server| folders[*server].join(&part_name)).collect();
        let hash = cut(&mut file, length, &paths, &mut hasher).with_context(of_file)?;
        let holders = at.iter().map(|server| args.servers[*server].clone()).collect();
        listed.push(Part {
            name: part_name,
            bytes: Some(length),
            blake3: Some(hash.to_hex().to_string()),
            holders,
        });
    }
    if file.read(&mut [0]).with_context(of_file)? > 0 {
        bail!("{}: it grows while it is cut", args.file.display());
    }
    let object = Object {
        name: name.to_owned(),
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
        mode: Some((found.mode() & u32::from(MODE_BITS)) as u16),
        modified_ns: Some(modified_ns),
        holders: Vec::new(),
        part: listed,
    };
    let manifest = args.into.join(format!("{name}.toml"));
    let text = toml::to_string(&Manifest { object: vec![object.clone()] })?;
    // As any other program's: what the user's mask leaves.
    let mut written = beside(&manifest, 0o666)?;
    written.write_all(text.as_bytes()).with_context(|| manifest.display().to_string())?;
    keep(written, &manifest)?;
    if args.json {
        let done = Done { manifest: manifest.display().to_string(), object: &object };
        println!("{}", serde_json::to_string(&done)?);
    } else if !quiet {
        println!("{name}: {parts} parts, each for {} of {servers} servers", args.copies);
        for (server, folder) in args.servers.iter().zip(&folders) {
            let its: Vec<&Part> = object.part.iter().filter(|part| part.holders.contains(server)).collect();
            let bytes = ByteCount::new(its.iter().filter_map(|part| part.bytes).sum());
            let first =
                its.iter().take(PARTS_SHOWN).map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
            let more = its.len().saturating_sub(PARTS_SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            println!("  {}/: {first}{more} ({bytes})", folder.display());
            println!("      copy them into the folder that {server} serves");
        }
        println!("then: anabranch gather get --manifest {} -o {name}", manifest.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of the file to cut, and how many parts are wanted.
///
/// Errors: one line: what cannot be meant.
fn checked(args: &Args) -> anyhow::Result<(&str, u64)> {
    args.servers.iter().try_for_each(|server| check_holder(server)).context("--servers")?;
    for (at, server) in args.servers.iter().enumerate() {
        ensure!(!args.servers[..at].contains(server), "--servers: {server} is there twice");
    }
    let servers = args.servers.len();
    ensure!((1..=servers).contains(&args.copies), "--copies {}: must be 1 to {servers} servers", args.copies);
    let parts = args.parts.unwrap_or(servers as u64);
    ensure!((1..=PARTS_MAX).contains(&parts), "--parts {parts}: must be 1 to {PARTS_MAX}");
    let name = args.file.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{}: a file whose name is plain text", args.file.display()))?;
    // Room for the number behind it.
    check_name(&format!("{name}.{PARTS_MAX}"))?;
    Ok((name, parts))
}

/// A new file that will be `path`, and who may read it, if the user's mask lets them.
fn beside(path: &Path, mode: u32) -> anyhow::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(mode);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    made.with_context(|| path.display().to_string())
}

/// Gives it its name.
fn keep(file: NamedTempFile, path: &Path) -> anyhow::Result<()> {
    let at = || path.display().to_string();
    file.as_file().sync_all().with_context(at)?;
    file.persist(path).map_err(|error| error.error).with_context(at)?;
    Ok(())
}

/// Writes the next `length` bytes to each of `paths`, which nobody may read who may not read `file`; their hash.
fn cut(
    file: &mut File,
    length: u64,
    paths: &[PathBuf],
    hasher: &mut blake3::Hasher,
) -> anyhow::Result<blake3::Hash> {
    let found = file.metadata()?;
    let mode = found.mode() & u32::from(MODE_BITS);
    let mut copies = paths.iter().map(|path| beside(path, mode)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut of_part = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut left = length;
    while left > 0 {
        let next = left.min(READ_BYTES as u64) as usize;
        match file.read(&mut buffer[..next]) {
            Ok(0) => bail!("it has become shorter while it is cut"),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                of_part.update(&buffer[..read]);
                for (copy, path) in copies.iter_mut().zip(paths) {
                    copy.write_all(&buffer[..read]).with_context(|| path.display().to_string())?;
                }
                left -= read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (copy, path) in copies.into_iter().zip(paths) {
        copy.as_file().set_modified(found.modified()?).with_context(|| path.display().to_string())?;
        keep(copy, path)?;
    }
    Ok(of_part.finalize())
}
