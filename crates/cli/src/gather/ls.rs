//! `anabranch gather ls`: lists the objects of a server.

use crate::exit::OrUsage as _;
use crate::formats::size;
use crate::output;
use anabranch_gather::{DirectoryTarget, Entry, ListError, check_holder, describe_directory, list};
use anabranch_gather_proto::msg::NAME_BYTES_MAX;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use anyhow::Context as _;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use time::OffsetDateTime;

/// The server, and its keys.
#[derive(clap::Args)]
pub struct Args {
    /// The server, as [NAME@]HOST:PORT. With /PREFIX, only the files whose names begin with PREFIX.
    #[arg(value_name = "SERVER[/PREFIX]", value_parser = place)]
    place: HolderPrefix,
    /// The folder that `gather keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/gather")]
    keys: PathBuf,
    /// Name of the client, as given to `gather keys --clients`.
    #[arg(long = "as", value_name = "NAME", default_value = "client")]
    client: String,
    /// Also print the sum of a directory, as host1:7180/DIR/, or of the whole folder: its files,
    /// their bytes, and the id of its snapshot. The server reads files that changed since it last
    /// read them.
    #[arg(long)]
    snapshot: bool,
    /// Print JSON: a line for each object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
struct HolderPrefix {
    holder: String,
    prefix: String,
}

fn place(text: &str) -> Result<HolderPrefix, String> {
    let (holder, prefix) = text.split_once('/').unwrap_or((text, ""));
    check_holder(holder).map_err(|error| error.to_string())?;
    if prefix.len() > NAME_BYTES_MAX {
        return Err(format!("a prefix of {} bytes: names have at most {NAME_BYTES_MAX}", prefix.len()));
    }
    Ok(HolderPrefix { holder: holder.to_owned(), prefix: prefix.to_owned() })
}

#[derive(Serialize)]
struct Row<'a> {
    object: &'a str,
    length_bytes: u64,
    modified_ns: i64,
}

#[derive(Serialize)]
struct DirectoryRow<'a> {
    directory: &'a str,
    files: u64,
    files_bytes: u64,
    snapshot: String,
}

/// Name of the directory whose sum is printed, if one is.
///
/// Errors: one line: the prefix is no directory's name.
fn summed(args: &Args) -> anyhow::Result<Option<String>> {
    if !args.snapshot {
        return Ok(None);
    }
    let HolderPrefix { holder, prefix } = &args.place;
    ensure_usage!(
        prefix.is_empty() || DirectoryTarget::is_named_by(prefix),
        "--snapshot: name a directory, with a slash at its end, as {holder}/DIR/"
    );
    Ok(Some(DirectoryTarget::parse(&format!("{holder}/{prefix}")).or_usage()?.name))
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let files = CredentialFiles::in_set(&args.keys, anabranch_gather::SYSTEM, Role::Operator, &args.client);
    let directory = summed(args)?;
    let identity = Identity::load(&files)?;
    crate::process::runtime()?
        .block_on(show(args, &identity, directory.as_deref(), quiet))
        .with_context(|| args.place.holder.clone())
}

async fn show(
    args: &Args,
    identity: &Identity,
    directory: Option<&str>,
    quiet: bool,
) -> anyhow::Result<ExitCode> {
    let HolderPrefix { holder, prefix } = &args.place;
    let (mut files, mut files_bytes) = (0_u64, 0_u64);
    let each = |Entry { object, bytes, modified_ns }| {
        files += 1;
        files_bytes = files_bytes.saturating_add(bytes);
        if args.json {
            let row = serde_json::to_string(&Row { object: &object, length_bytes: bytes, modified_ns })?;
            outln!("{row}");
        } else {
            outln!("{bytes:>16}  {}  {}", time(modified_ns), printable(&object));
        }
        if output::is_closed() { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    };
    match list(identity, holder, prefix, each).await {
        // A closed standard output is no failure; `output` handles it.
        Err(ListError::Each(_)) if output::is_closed() => {}
        listed => match listed? {
            0 => {}
            _ if quiet => {}
            names => {
                let word = if names == 1 { "name" } else { "names" };
                errln!(
                    "anabranch: {holder}: {names} more {word} cannot be shown or named: not UTF-8, longer than \
                 {NAME_BYTES_MAX} bytes or too deep in folders; a `get` of the directory takes them, too"
                );
            }
        },
    }
    if let Some(directory) = directory {
        let found =
            describe_directory(identity, holder, directory, None).await.map_err(anyhow::Error::msg)?;
        let snapshot = blake3::Hash::from(found.snapshot).to_hex().to_string();
        if args.json {
            let row = DirectoryRow { directory, files, files_bytes, snapshot };
            outln!("{}", serde_json::to_string(&row)?);
        } else {
            outln!("{directory}: {files} files, {}", size(ByteCount::new(files_bytes)));
            outln!("snapshot {snapshot}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a time since 1970 in nanoseconds as UTC, such as `2026-11-23 08:46:48`.
fn time(ns: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ns));
    let at = at.expect("64 bits of nanoseconds are years from 1677 to 2262");
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    format!("{date} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_utc_calendar_dates() {
        for (seconds, said) in [
            (0, "1970-01-01 00:00:00"),
            (951_826_154, "2000-02-29 12:09:14"),
            (1_795_423_608, "2026-11-23 08:46:48"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(time(seconds * 1_000_000_000), said);
        }
        assert_eq!(time(i64::MIN), "1677-09-21 00:12:43");
        assert_eq!(time(i64::MAX), "2262-04-11 23:47:16");
    }

    #[test]
    fn server_and_prefix_are_parsed_from_one_argument() {
        let good = place("s1@a:1/b/c").expect("good");
        assert_eq!((good.holder.as_str(), good.prefix.as_str()), ("s1@a:1", "b/c"));
        assert_eq!(place("[::1]:2").expect("good").prefix, "");
        for bad in ["a", "a:0", "/x", "@a:1", ""] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }
}
