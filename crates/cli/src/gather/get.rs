//! `anabranch gather get`: pulls objects from many servers at once, verifies them, and gives them their names.

pub mod connection;
mod output;
pub(crate) mod progress;
mod run;
pub mod targets;

use crate::exit::OrUsage as _;
use anabranch_gather::msg::{Packet, SEAL_BYTES};
use anabranch_gather::{BLOCK_BYTES_MIN, ClientConfig};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::ensure;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to pull, and how.
#[derive(clap::Args)]
pub struct Args {
    /// Objects (files that servers offer), each with all the servers that hold the whole of it:
    /// [NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/OBJECT, as host1:7180,host2:7180/big.bin.
    ///
    /// With NAME, the server there must have this name in its certificate. Without, any server with keys of the same set may
    /// answer.
    #[arg(value_name = "SERVER/OBJECT", value_parser = target)]
    objects: Vec<targets::Target>,
    /// The BLAKE3 hash that the object must have, in hexadecimal: for one object that no manifest describes. Without, the
    /// hash that the first server names is trusted.
    #[arg(long, value_name = "HEX", value_parser = blake3_hash, conflicts_with = "manifest")]
    blake3: Option<blake3::Hash>,
    /// Pull all objects of this manifest, as `gather stripe` writes it.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// The file to write. A folder for several objects, or if it ends with a slash. `-` for standard output, which gets the
    /// one object as it comes: only the exit code says at the end whether it was right.
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// The folder that `gather keys` made, or a copy with ca.pem, operators/NAME.pem and operators/NAME.key.
    #[arg(long, value_name = "DIR", default_value = "keys/gather")]
    keys: PathBuf,
    /// The client's name, as `gather keys --clients` was given it.
    #[arg(long = "as", value_name = "NAME", default_value = "client")]
    client: String,
    /// What this machine's own link carries, as "1 Gbit/s". It is divided among the servers. Without, each server has to find
    /// its rate by losing packets.
    #[arg(long, value_name = "RATE")]
    link: Option<BitRate>,
    /// The most memory for blocks that have come but are not written yet.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    memory: ByteCount,
    /// The longest datagram, in bytes of UDP payload. A path that carries less gets shorter ones.
    #[arg(long, value_name = "SIZE", default_value = "8952 B")]
    datagram: ByteCount,
    /// A server from which nothing comes for this long is asked for nothing more.
    #[arg(long, value_name = "TIME", default_value = "5 s")]
    give_up: Duration,
    /// Do not wait until files are on disk: a machine that loses power soon after may lose files that have their names
    /// already.
    #[arg(long)]
    no_sync: bool,
    /// Replace files that are there, whatever is in them. Without, an object whose file is there fails, unless the file is
    /// the very same.
    #[arg(long)]
    replace: bool,
    /// Print JSON: a line for each second and each object, and one object at the end.
    #[arg(long)]
    json: bool,
}

/// Bytes of a generation, about: enough blocks that a sum of some lost ones costs little, few enough to be soon whole.
const GENERATION_BYTES: u32 = 256 << 10;
/// The most and the fewest blocks to a generation.
const BLOCKS: std::ops::RangeInclusive<u32> = 32..=256;
/// The least memory: two generations of a pull and what the kernel hands over at once.
const MEMORY_MIN: u64 = 16 << 20;

fn target(text: &str) -> Result<targets::Target, String> {
    targets::parse(text).map_err(|error| format!("{error:#}"))
}

fn blake3_hash(text: &str) -> Result<blake3::Hash, String> {
    blake3::Hash::from_hex(text).map_err(|_| format!("`{text}`: a BLAKE3 hash has 64 hexadecimal digits"))
}

/// Runs it.
///
/// Errors: one line for the user. What became of the objects is the exit code.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let (targets, settings) = asked(args, quiet).or_usage()?;
    let identity =
        Identity::load(&CredentialFiles::in_set(&args.keys, System::Gather, Role::Operator, &args.client))?;
    crate::process::runtime()?.block_on(run::run(targets, &identity, settings))
}

/// What is asked for.
///
/// Errors: one line: what cannot be meant.
fn asked(args: &Args, quiet: bool) -> anyhow::Result<(Vec<targets::Target>, run::Settings)> {
    let mut targets = args.objects.clone();
    if let Some(path) = &args.manifest {
        targets.extend(targets::read_manifest(path)?);
    }
    if let Some(hash) = &args.blake3 {
        ensure!(targets.len() == 1, "--blake3: it is for one object, not {}", targets.len());
        targets[0].hash = Some(*hash.as_bytes());
    }
    ensure!(!targets.is_empty(), "nothing to pull: name SERVER/OBJECT, or a --manifest");
    let is_folder = args.output.as_os_str().as_encoded_bytes().ends_with(b"/");
    let streams = args.output.as_os_str() == "-";
    ensure!(
        !(streams && targets.len() > 1),
        "--output -: standard output takes one object, not {}",
        targets.len()
    );
    ensure!(!(streams && args.json), "--output -: standard output takes the object, or --json, not both");
    targets::place(&mut targets, &args.output, is_folder)?;
    let headers = SEAL_BYTES + Packet::<()>::HEADER_BYTES;
    let datagram = u32::try_from(args.datagram.as_u64()).unwrap_or(u32::MAX);
    let most = anabranch_net::datagram::PAYLOAD_MAX as u32;
    ensure!(
        (headers + BLOCK_BYTES_MIN..=most).contains(&datagram),
        "--datagram {}: must be {} to {most} bytes",
        args.datagram,
        headers + BLOCK_BYTES_MIN
    );
    let memory = args.memory.as_u64();
    ensure!(
        memory >= MEMORY_MIN,
        "--memory {}: must be at least {}",
        args.memory,
        ByteCount::new(MEMORY_MIN)
    );
    let block_bytes = run::block_bytes(datagram);
    let blocks_max = (GENERATION_BYTES / block_bytes).clamp(*BLOCKS.start(), *BLOCKS.end());
    let defaults = ClientConfig::default();
    let config = ClientConfig {
        block_bytes,
        block_bytes_safe: defaults.block_bytes_safe.min(block_bytes),
        blocks_max,
        link: args.link,
        // Ethernet's, IP's and UDP's headers, and what authentication adds.
        overhead_bytes: defaults.overhead_bytes + SEAL_BYTES,
        feedback_every: FEEDBACK_EVERY,
        give_up: args.give_up,
        ..defaults
    };
    config.check()?;
    let settings = run::Settings {
        config,
        memory,
        datagram,
        streams,
        syncs: !args.no_sync,
        replace: args.replace,
        json: args.json,
        quiet,
    };
    Ok((targets, settings))
}

/// More feedback than this does not help on the shortest ways, and costs both ends time.
const FEEDBACK_EVERY: Duration = Duration::from_us(500);
