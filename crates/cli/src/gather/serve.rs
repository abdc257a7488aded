//! `anabranch gather serve`: lets clients pull the files of a folder.

use crate::exit::usage;
use crate::keys::follow;
use crate::metrics::MetricsArgs;
use crate::network;
use crate::process::{asked_to_end, raise_descriptor_limit, runtime};
use anabranch_gather::{ServeConfig, ServeError, Server};
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::anyhow;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Folder whose files are offered, by their paths below it. Symbolic links that lead out of it
    /// are not followed.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Address and port to listen on, TCP for control and UDP for data. By default only this
    /// machine can connect; 0.0.0.0:7180 means all of its addresses.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7180", value_parser = network::listen_address_or::<7180>)]
    listen: SocketAddr,
    /// UDP port announced to clients, if a forwarded port differs from the port of --listen.
    #[arg(long, value_name = "PORT")]
    advertise_port: Option<u16>,
    /// The folder that `gather keys` made, or a copy with ca.pem, sites/NAME.pem and
    /// sites/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/gather")]
    keys: PathBuf,
    /// Name of the server, as given to `gather keys --servers`.
    #[arg(long, value_name = "NAME", default_value = "server")]
    name: String,
    /// Maximum data rate of one connection, such as "100 Mbit/s". Without: as fast as the client
    /// accepts it.
    #[arg(long, value_name = "RATE")]
    rate_max: Option<BitRate>,
    /// Maximum number of connections. A client, which is everyone with the same key, may have a
    /// quarter of them.
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients_max: usize,
    /// Maximum number of concurrent pulls of one client, over all its connections. A pull is one
    /// object, or a part of one.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pulls_max: usize,
    /// Maximum memory for the blocks of one client, over all its connections.
    #[arg(long, value_name = "SIZE", default_value = "128 MiB")]
    memory: ByteCount,
    /// Silence of a client after which its pull ends.
    #[arg(long, value_name = "TIME", default_value = "30 s")]
    give_up: Duration,
    /// Time after which a connection without pulls and requests is closed.
    #[arg(long, value_name = "TIME", default_value = "5 min")]
    idle: Duration,
    /// Cache of files' hashes, so that a restarted server need not read the files again. FILE may
    /// not lie below DIR. Without it, hashes are cached in memory only.
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Maximum packets sealed with one key, for tests; ciphers have higher limits.
    #[arg(long, value_name = "N", hide = true)]
    key_packets: Option<u64>,
}

/// Rephrases an error with the names of this command's options.
fn worded(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Zero { setting } => anyhow!("--{} 0: must be at least 1", setting.replace('_', "-")),
        ServeError::Cache(error) => anyhow!("--cache: {error}"),
        ServeError::Descriptors { clients_max, pulls_max, needed, descriptors } => anyhow!(
            "--clients-max {clients_max} and --pulls-max {pulls_max} may need {needed} descriptors, and there are \
             {descriptors} (ulimit -Hn): choose less, or allow more"
        ),
        other => other.into(),
    }
}

/// Rephrases an error, and marks wrong usage.
fn sorted(error: ServeError) -> anyhow::Error {
    let is_usage = matches!(
        error,
        ServeError::Folder { .. }
            | ServeError::Zero { .. }
            | ServeError::Inside(_)
            | ServeError::Credentials(_)
    );
    let error = worded(error);
    if is_usage { usage(error) } else { error }
}

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    raise_descriptor_limit();
    let credentials = CredentialFiles::in_set(&args.keys, anabranch_gather::SYSTEM, Role::Site, &args.name);
    let config = ServeConfig {
        dir: args.dir.clone(),
        listen: args.listen,
        advertise_port: args.advertise_port,
        credentials,
        secrets: vec![args.keys.clone()],
        rate_max: args.rate_max,
        clients_max: args.clients_max,
        pulls_max: args.pulls_max,
        memory: args.memory,
        give_up: args.give_up,
        idle: args.idle,
        cache: args.cache.clone(),
        key_packets: args.key_packets,
    };
    runtime()?.block_on(async {
        let listener = args.metrics.bind()?;
        let mut server = Server::start(config).await.map_err(sorted)?;
        if !quiet {
            errln!("{} serves {} on {}", args.name, args.dir.display(), server.address());
        }
        let (identity, metrics) = (server.identity().clone(), server.metrics());
        tokio::select! {
            error = server.failed() => return Err(error.into()),
            never = follow(&identity) => match never {},
            never = listener.serve(quiet, metrics) => match never {},
            () = asked_to_end() => {}
        }
        server.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}
