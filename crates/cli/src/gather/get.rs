//! `anabranch gather get`: pulls objects from many servers at once, verifies them, and renames them
//! into place. Pulls a directory in the same way.

pub(super) mod directory;
mod end;
mod progress;

use crate::exit::OrUsage as _;
use crate::filters::FilterArgs;
use crate::keys::follow_files;
use crate::process::asked_to_end;
use crate::publication::PublishArgs;
use anabranch_gather::{
    ConfigError, DirectoryTarget, Get, GetConfig, GetDirectory, GetError, RateControl, Target, holders,
    parse_id, place, read_manifest, read_object_list,
};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use progress::Progress;
use std::path::PathBuf;
use std::process::ExitCode;

/// The objects, and settings of the pull.
#[derive(clap::Args)]
pub struct Args {
    /// Objects (files that servers offer), each with all servers that hold it in full:
    /// [NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT, such as host1:7180,host2:7180/big.bin. Or one
    /// directory, with a slash at its end: host1:7180,host2:7180/data/.
    ///
    /// With NAME, the server's certificate must have this name. Without it, any server with keys of
    /// the same set may answer.
    #[arg(value_name = "SERVER/OBJECT", value_parser = requested)]
    objects: Vec<Requested>,
    #[command(flatten)]
    expected: Expected,
    /// Also pull all objects in this file, one a line, each as SERVER/OBJECT. `-` for standard
    /// input. Empty lines and lines that begin with # are skipped.
    #[arg(long, value_name = "FILE")]
    objects_from: Option<PathBuf>,
    /// Pull all objects of this manifest, as `gather stripe` writes it.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// File to write. A folder for several objects, or if it ends with a slash. `-` for standard
    /// output, which gets a single object as it arrives: only the exit code tells at the end
    /// whether it is intact. For a directory, the directory that becomes the copy.
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    #[command(flatten)]
    pull: PullArgs,
}

/// Settings of a pull.
#[derive(clap::Args)]
pub(super) struct PullArgs {
    /// The folder that `gather keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/gather")]
    keys: PathBuf,
    /// Name of the client, as given to `gather keys --clients`.
    #[arg(long = "as", value_name = "NAME", default_value = "client")]
    client: String,
    /// Rate of this machine's link, such as "1 Gbit/s", which is divided among the servers. Without
    /// it, each server probes for its rate.
    #[arg(long, value_name = "RATE")]
    link: Option<BitRate>,
    /// Rate control of the servers: a model of the path, or each pull's losses (RFC 5348).
    #[arg(long, value_name = "NAME", default_value = "bbr", value_parser = rate_control())]
    rate_control: RateControl,
    /// Maximum memory for blocks received but not yet written.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    memory: ByteCount,
    /// Maximum datagram, in bytes of UDP payload. A path with a smaller MTU gets shorter ones.
    #[arg(long, value_name = "SIZE", default_value = "8952 B")]
    datagram: ByteCount,
    /// Silence after which a server is left, at least 10 s for its first answers. Without it, 60 s
    /// for these, and 5 s to 60 s later, by the path's round-trip time and packet interval.
    #[arg(long, value_name = "TIME")]
    give_up: Option<Duration>,
    /// Fail an object or a directory if two servers have different versions of it. Each server is
    /// asked for its hash, and reads the whole object for it. Without this option, another version
    /// is only named, where it shows.
    #[arg(long)]
    strict: bool,
    /// Do not wait for files to reach the disk: a power failure soon after may lose files that
    /// already have their names. The files of a directory reach the disk first in any case.
    #[arg(long)]
    no_sync: bool,
    /// Replace existing files, whatever their content. Without it, an object whose file exists
    /// fails, unless the file is identical. In a directory, files that another program changed are
    /// left without it. `sync --delete` also deletes files of other programs with it.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    pub(super) publish: PublishArgs,
    #[command(flatten)]
    pub(super) filters: FilterArgs,
    /// Print JSON: a line for each second and for each object, and one object at the end.
    #[arg(long)]
    pub(super) json: bool,
}

impl PullArgs {
    /// Loads the client's keys.
    ///
    /// Errors: they are missing or of no use.
    pub(super) fn identity(&self) -> anyhow::Result<Identity> {
        let files =
            CredentialFiles::in_set(&self.keys, anabranch_gather::SYSTEM, Role::Operator, &self.client);
        Ok(Identity::load(&files)?)
    }
}

/// Version that is expected.
#[derive(clap::Args)]
struct Expected {
    /// BLAKE3 hash that the object must have, in hexadecimal, for a single object without a
    /// manifest. Without it, the hash from the first server is trusted.
    #[arg(long, value_name = "HEX", value_parser = blake3_hash, conflicts_with = "manifest")]
    blake3: Option<blake3::Hash>,
    /// Id of the snapshot that a directory must have, as `replicate manifest` and `gather ls
    /// --snapshot` print it. Without it, the version of the first server is taken.
    #[arg(long, value_name = "ID", value_parser = snapshot_id, conflicts_with_all = ["manifest", "blake3"])]
    snapshot: Option<[u8; 32]>,
}

fn rate_control() -> impl TypedValueParser<Value = RateControl> {
    PossibleValuesParser::new(RateControl::ALL.map(RateControl::name)).map(|name| {
        let found = RateControl::ALL.into_iter().find(|control| control.name() == name);
        found.expect("it is one of the possible values")
    })
}

/// An argument of the command.
#[derive(Clone, Debug)]
enum Requested {
    Object(Target),
    Directory(DirectoryTarget),
}

/// The command's pull.
enum Pull {
    /// Objects. `streams` is true if the single one is written to standard output.
    Objects { targets: Vec<Target>, streams: bool },
    /// A directory.
    Directory(DirectoryTarget),
}

fn requested(text: &str) -> Result<Requested, String> {
    let parsed = if DirectoryTarget::is_named_by(text) {
        DirectoryTarget::parse(text).map(Requested::Directory)
    } else {
        Target::parse(text).map(Requested::Object)
    };
    parsed.map_err(|error| error.to_string())
}

pub(super) fn snapshot_id(text: &str) -> Result<[u8; 32], String> {
    parse_id(text).ok_or_else(|| format!("`{text}`: the id of a snapshot has 64 hexadecimal digits"))
}

fn blake3_hash(text: &str) -> Result<blake3::Hash, String> {
    blake3::Hash::from_hex(text).map_err(|_| format!("`{text}`: a BLAKE3 hash has 64 hexadecimal digits"))
}

/// Runs the command.
///
/// Errors: a one-line message for the user. The exit code depends on the objects' results.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let (pull, config) = asked(args).or_usage()?;
    let identity = args.pull.identity()?;
    let (targets, streams) = match pull {
        Pull::Objects { targets, streams } => (targets, streams),
        Pull::Directory(target) => {
            let get = GetDirectory::new(&identity, target, &config);
            return directory::run(&identity, get, args.pull.json, quiet);
        }
    };
    let mut shown = Progress::new(args.pull.json, quiet, holders(&targets).len());
    let report = crate::process::runtime()?.block_on(async {
        let mut get = Get::new(&identity, targets, &config);
        if streams {
            get = get.streamed(Box::new(std::io::stdout()));
        }
        tokio::select! {
            report = get.until(asked_to_end(), |event| shown.hear(event, streams)) => report.map_err(worded),
            never = follow_files(&identity) => match never {},
        }
    });
    shown.end();
    Ok(end::say(&report?, args, streams, quiet))
}

/// Returns the pull and the settings.
///
/// Errors: one line: an invalid combination.
fn asked(args: &Args) -> anyhow::Result<(Pull, GetConfig)> {
    let (mut targets, mut directories) = (Vec::new(), Vec::new());
    for requested in &args.objects {
        match requested.clone() {
            Requested::Object(target) => targets.push(target),
            Requested::Directory(target) => directories.push(target),
        }
    }
    if let Some(path) = &args.objects_from {
        targets.extend(read_object_list(path).map_err(|error| anyhow!("--objects-from {error}"))?);
    }
    if let Some(path) = &args.manifest {
        targets.extend(read_manifest(path)?);
    }
    let config = config(&args.pull)?;
    let filter = args.pull.filters.filter()?;
    if let Some(target) = directories.pop() {
        ensure_usage!(
            targets.is_empty() && directories.is_empty(),
            "{}: a directory is pulled alone: use one command for each directory, and one for all objects",
            target.name
        );
        ensure_usage!(
            args.expected.blake3.is_none(),
            "--blake3: for one object: a directory has a --snapshot"
        );
        let target = directory::checked(target, &args.output, args.expected.snapshot)?;
        let publication = args.pull.publish.publication()?;
        let target = DirectoryTarget { publication, filter: filter.into(), ..target };
        return Ok((Pull::Directory(target), config));
    }
    ensure_usage!(
        args.pull.publish.publication()?.is_each(),
        "--publish snapshot: for a directory, as host1:7180/DIR/"
    );
    ensure_usage!(filter.is_open(), "filter options are for a directory, as host1:7180/DIR/");
    ensure_usage!(args.expected.snapshot.is_none(), "--snapshot: for a directory, as host1:7180/DIR/");
    if let Some(hash) = &args.expected.blake3 {
        ensure_usage!(targets.len() == 1, "--blake3: for one object, not {}", targets.len());
        targets[0].hash = Some(*hash.as_bytes());
    }
    ensure_usage!(
        !targets.is_empty(),
        "nothing to pull: name SERVER/OBJECT, a list with --objects-from, or a --manifest"
    );
    let is_folder = args.output.as_os_str().as_encoded_bytes().ends_with(b"/");
    let streams = args.output.as_os_str() == "-";
    ensure_usage!(
        !(streams && targets.len() > 1),
        "--output -: standard output takes one object, not {}",
        targets.len()
    );
    ensure_usage!(
        !(streams && args.pull.json),
        "--output -: standard output takes the object, or --json, not both"
    );
    place(&mut targets, &args.output, is_folder)?;
    Ok((Pull::Objects { targets, streams }, config))
}

/// The settings of the pull.
///
/// Errors: one line: a setting is out of range.
pub(super) fn config(args: &PullArgs) -> anyhow::Result<GetConfig> {
    let config = GetConfig {
        link: args.link,
        rate_control: args.rate_control,
        memory: args.memory,
        datagram: args.datagram,
        give_up: args.give_up,
        is_strict: args.strict,
        syncs: !args.no_sync,
        replace: args.replace,
        progress_every: Duration::from_std(Progress::every(args.json)),
    };
    config.check().map_err(worded)?;
    Ok(config)
}

/// Rephrases an error with the names of this command's options.
fn worded(error: GetError) -> anyhow::Error {
    match error {
        GetError::Datagram { .. } | GetError::Memory { .. } => anyhow!("--{error}"),
        GetError::Config(ConfigError { setting: "give_up", message }) => anyhow!("--give-up: {message}"),
        GetError::MemoryForDatagrams => {
            anyhow!(
                "--memory: too little for a pull of datagrams so long: give more, or a shorter --datagram"
            )
        }
        other => other.into(),
    }
}
