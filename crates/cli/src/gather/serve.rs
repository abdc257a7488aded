//! `anabranch gather serve`: lets clients pull the files of a folder.
//!
//! One UDP socket for all clients, one TLS connection for each. What a client may have is bounded: connections, pulls, memory
//! and rate. No packet leaves before the client has proved its address twice: by its connection, and by an authenticated
//! datagram from where it takes packets. Read [`Args`] and `session` first.

mod files;
mod hashes;
mod listing;
mod session;
mod share;

use crate::exit::OrUsage as _;
use crate::folder::secrets::{keep_outside, warn_of_any};
use crate::network;
use anabranch_gather::ServerConfig;
use anabranch_gather::msg::Feedback;
use anabranch_net::admission::{Admission, AdmissionLimits, Places};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::refusals::Refusals;
use anabranch_net::seal::{ChannelId, OVERHEAD_BYTES};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::Context as _;
use files::Files;
use hashes::Hashes;
use share::Share;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// How to run it.
#[derive(clap::Args)]
pub struct Args {
    /// The folder whose files are offered, by their paths below it. Symbolic links that lead out of it are not followed.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The address and port to listen on, TCP for control and UDP for data. By default only this machine can connect;
    /// 0.0.0.0:7180 stands for all of its addresses.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7180", value_parser = network::listen_address)]
    listen: SocketAddr,
    /// The UDP port that clients are told to use, where a forwarded port differs from that of --listen.
    #[arg(long, value_name = "PORT")]
    advertise_port: Option<u16>,
    /// The folder that `gather keys` made, or a copy with ca.pem, sites/NAME.pem and sites/NAME.key.
    #[arg(long, value_name = "DIR", default_value = "keys/gather")]
    keys: PathBuf,
    /// The server's name, as `gather keys --servers` was given it.
    #[arg(long, value_name = "NAME", default_value = "server")]
    name: String,
    /// The highest rate at which one connection is sent data, as "100 Mbit/s". Without: as fast as the client takes it.
    #[arg(long, value_name = "RATE")]
    rate_max: Option<BitRate>,
    /// The most connections at once. One client, which is all that use one key, may have a quarter of them.
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients_max: usize,
    /// The most pulls of one client at once, over all its connections. A pull is one object, or a part of one.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pulls_max: usize,
    /// The most memory for the blocks of one client, over all its connections.
    #[arg(long, value_name = "SIZE", default_value = "128 MiB")]
    memory: ByteCount,
    /// A pull ends when its client says nothing for this long.
    #[arg(long, value_name = "TIME", default_value = "10 s")]
    give_up: Duration,
    /// A connection that has no pull and asks for nothing is closed after this long.
    #[arg(long, value_name = "TIME", default_value = "5 min")]
    idle: Duration,
    /// Remember the hashes of files in this file, so that a restarted server need not read the files again. It may not lie
    /// below DIR. Without: hashes are remembered in memory only.
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Packets that one key seals at the most: for tests, as ciphers have limits of their own.
    #[arg(long, value_name = "N", hide = true)]
    key_packets: Option<u64>,
}

/// Datagrams of a client that wait for its session; more are dropped, as a full socket would.
const WAITING_MAX: usize = 1_024;
/// Of all places for clients, one identity may have one in so many.
pub const CLIENT_SHARE: usize = 4;
/// Descriptors of a connection besides its pulls: itself, its timer, and a file that is hashed.
const CONNECTION_DESCRIPTORS: u64 = 3;
/// Descriptors besides clients' connections and pulls: the runtime, the folder, files that are hashed, the terminal.
const OWN_DESCRIPTORS: u64 = 128;
/// The time that packets which are due may leave together.
const QUANTUM: Duration = Duration::from_us(150);

/// The longest datagram that a client sends: a feedback.
const DATAGRAM_BYTES_MAX: usize = OVERHEAD_BYTES + Feedback::BYTES_MAX as usize;

/// A datagram, and where it comes from.
type Arriving = (SocketAddr, Vec<u8>);
/// Where a session's datagrams go.
type Datagrams = mpsc::Sender<Arriving>;

/// What sessions share.
pub struct Shared {
    socket: DatagramSocket,
    files: Files,
    hashes: Hashes,
    config: ServerConfig,
    /// Where clients send datagrams.
    port: u16,
    /// Where each channel's datagrams go.
    channels: Mutex<BTreeMap<u64, Datagrams>>,
    /// Places of clients that have said who they are, with what each has besides connections.
    places: Places<Share>,
    /// How many there have been.
    connections: AtomicU64,
    refusals: Refusals,
    idle: std::time::Duration,
    key_packets: Option<u64>,
    /// Datagrams of no channel that is open, and those that a session had no room for.
    strays: AtomicU64,
    crowded: AtomicU64,
}

/// Runs it until it is told to end.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let files = Files::below(&args.dir).with_context(|| {
        format!("{}: make this folder, or name the one that holds the files", args.dir.display())
    });
    let files = files.or_usage()?;
    let least = |what: &str, number: usize| match number {
        0 => Err(anyhow::anyhow!("{what} 0: must be at least 1")),
        _ => Ok(()),
    };
    least("--clients-max", args.clients_max).or_usage()?;
    least("--pulls-max", args.pulls_max).or_usage()?;
    let hashes = match &args.cache {
        None => Hashes::new(),
        Some(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            keep_outside(&args.dir, [folder.unwrap_or(Path::new("."))])
                .map_err(anyhow::Error::from)
                .or_usage()?;
            Hashes::kept_in(path).context("--cache")?
        }
    };
    let of_server = CredentialFiles::in_set(&args.keys, System::Gather, Role::Site, &args.name);
    let secrets = [args.keys.as_path(), &of_server.ca, &of_server.certificate, &of_server.key];
    keep_outside(&args.dir, secrets).or_usage()?;
    warn_of_any(files.folder());
    let identity = Identity::load(&of_server)?;
    let config = ServerConfig {
        pulls_max: args.pulls_max,
        rate_max: args.rate_max,
        memory_max: args.memory,
        give_up: args.give_up,
        quantum: QUANTUM,
        ..ServerConfig::default()
    };
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    let pulls = (args.clients_max as u64).saturating_mul(args.pulls_max as u64 + CONNECTION_DESCRIPTORS);
    let needed = pulls.saturating_add(half_open.descriptors() + OWN_DESCRIPTORS);
    anyhow::ensure!(
        needed <= descriptors,
        "--clients-max {} and --pulls-max {} may need {needed} descriptors, and there are {descriptors} (ulimit -Hn): \
         choose less, or allow more",
        args.clients_max,
        args.pulls_max
    );
    crate::process::runtime()?.block_on(async {
        let listener = anabranch_net::socket::listen(args.listen)?;
        // Port 0 is any that is free: both have the same.
        let at = listener.local_addr()?;
        let socket = DatagramSocket::bind(at, &DatagramOptions::default())?;
        let shared = Arc::new(Shared {
            socket,
            files,
            hashes,
            config,
            port: args.advertise_port.unwrap_or(at.port()),
            channels: Mutex::default(),
            places: Places::new(args.clients_max, args.clients_max.div_ceil(CLIENT_SHARE), Share::new),
            connections: AtomicU64::new(0),
            refusals: Refusals::default(),
            idle: args.idle.to_std(),
            key_packets: args.key_packets,
            strays: AtomicU64::new(0),
            crowded: AtomicU64::new(0),
        });
        if !quiet {
            eprintln!("{} serves {} on {at}", args.name, args.dir.display());
        }
        tokio::select! {
            result = demultiplex(&shared) => result.map(|never| match never {}),
            never = accept(&shared, &listener, &identity, half_open) => match never {},
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => {
                let (strays, crowded) = (shared.strays.load(Relaxed), shared.crowded.load(Relaxed));
                tracing::info!(strays, crowded, "server ends");
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// What a fuzzer does with bytes that may be a file of hashes.
pub fn exercise_cache(bytes: &[u8]) {
    hashes::exercise(bytes);
}

/// Hands datagrams to the sessions they are for.
async fn demultiplex(shared: &Shared) -> anyhow::Result<std::convert::Infallible> {
    let mut batch = Batch::with_messages(8);
    loop {
        shared.socket.recv(&mut batch).await?;
        let channels = shared.channels.lock().expect("nobody panics with it");
        for datagram in batch.datagrams() {
            let is_short = datagram.bytes.len() <= DATAGRAM_BYTES_MAX;
            let id = ChannelId::of(datagram.bytes).filter(|_| is_short);
            let session = id.and_then(|id| channels.get(&id.0));
            let Some(session) = session else {
                shared.strays.fetch_add(1, Relaxed);
                continue;
            };
            if session.try_send((datagram.from, datagram.bytes.to_vec())).is_err() {
                shared.crowded.fetch_add(1, Relaxed);
            }
        }
    }
}

async fn accept(
    shared: &Arc<Shared>,
    listener: &tokio::net::TcpListener,
    identity: &Identity,
    half_open: AdmissionLimits,
) -> std::convert::Infallible {
    let admission = Admission::new(half_open);
    loop {
        let arrival = admission.accept(listener).await;
        let (shared, identity) = (Arc::clone(shared), identity.clone());
        tokio::spawn(async move {
            let from = arrival.from();
            if let Err(error) = session::run(&shared, &identity, arrival).await {
                tracing::debug!(%from, "{error:#}");
            }
        });
    }
}
