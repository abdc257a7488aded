//! `anabranch live source`: receives channels from encoders and other origins, and serves them as
//! low-latency HLS.

use super::controller::{NodeControlArgs, follow_keys};
use super::secure::{ReloadableFiles, SecureArgs, follow, trust};
use crate::exit::OrUsage as _;
use crate::metrics::MetricsArgs;
use anabranch_live::control::NodeControl;
use anabranch_live::{PublishTokens, Pull, Source, SourceConfig, SourceSteering};
use anabranch_live_proto::Tier;
use anabranch_net::public::ServerTrust;
use anabranch_units::{ByteCount, Duration};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Maximum bytes of a token file.
const TOKEN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Settings of a source.
#[derive(clap::Args)]
pub struct Args {
    /// Address for encoders, nodes and players. The default admits this machine only.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7201", value_parser = crate::network::listen_address_or::<7201>)]
    listen: SocketAddr,
    /// File with a line `CHANNEL TOKEN` for each token that may publish; channel `*` stands for all
    /// channels.
    #[arg(long, value_name = "FILE", required_unless_present = "pull")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    pull: PullArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Target of a segment's duration, from 100 ms to 60 s; the encoder's interval of key frames
    /// must not be longer.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    segment: Duration,
    /// Target of a part's duration, from 50 ms to the segment's.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    part: Duration,
    /// Derive segment numbers from the media's timestamps, so that two sources of the same encoder
    /// publish equal numbers. Timestamps must never decrease.
    #[arg(long)]
    shared_timeline: bool,
    /// Segments that a playlist lists.
    #[arg(long, value_name = "COUNT", default_value_t = 7)]
    segments: usize,
    /// Memory for the media of each rendition.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    window: u64,
    /// Maximum number of renditions of all channels.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    renditions: u64,
    /// Seconds without a byte after which a publisher is disconnected, and a stream without one
    /// ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    silence: u64,
    /// Steering server as players reach it (`live dns --steering`), as https://steer.example:
    /// multivariant playlists name it.
    #[arg(long, value_name = "URL", value_parser = base_url)]
    steering: Option<String>,
    /// Pathway of content steering, an edge with its URL for players. Repeat it. [default: the
    /// edges of the controller's network]
    #[arg(long, value_name = "EDGE=URL", requires = "steering", value_parser = pathway)]
    pathway: Vec<(String, String)>,
    /// Name of this source, as in the controller's network.
    #[arg(long, value_name = "NAME", requires = "controller")]
    name: Option<String>,
    #[command(flatten)]
    secure: SecureArgs,
    #[command(flatten)]
    control: NodeControlArgs,
}

/// Channels of other origins.
#[derive(clap::Args)]
struct PullArgs {
    /// Channel to pull from another origin's playlist, as news=https://HOST/cam/index.m3u8; repeat it
    /// for further channels.
    #[arg(long, value_name = "CHANNEL=URL")]
    pull: Vec<Pull>,
    /// Authorities of pulled https:// origins, in PEM. [default: the system's]
    #[arg(long, value_name = "FILE", requires = "pull")]
    pull_ca: Option<PathBuf>,
    /// Pull on demand: a rendition rests after this time without a request, from 1 s to an hour.
    /// [default: pull all the time]
    #[arg(long, value_name = "TIME", requires = "pull", value_parser = pull_idle)]
    pull_idle: Option<Duration>,
}

fn base_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_base = rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['?', '#', '"', ' ', '\n']));
    if is_base { Ok(text.to_owned()) } else { Err("must be http://HOST or https://HOST".to_owned()) }
}

fn pathway(text: &str) -> Result<(String, String), String> {
    let (name, url) = text.split_once('=').ok_or("write EDGE=URL, as edge-1=https://edge-1.example")?;
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(format!("edge `{name}`: must have letters, digits, `-`, `.` and `_`"));
    }
    Ok((name.to_owned(), base_url(url)?))
}

/// Serves until Ctrl-C or SIGTERM.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    let tokens = args.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default();
    let mut config = SourceConfig::new(args.listen, tokens);
    config.segment_target = args.segment;
    config.part_target = args.part;
    config.rendition.listed_segments = args.segments;
    config.rendition.window_bytes_max = ByteCount::mib(args.window);
    config.renditions_max = usize::try_from(args.renditions).unwrap_or(usize::MAX);
    config.silence_max = Duration::from_secs(args.silence);
    config.is_timeline_shared = args.shared_timeline;
    config.pulls.clone_from(&args.pull.pull);
    config.pull_trust = pull_trust(&args.pull)?;
    config.pull_idle = args.pull.pull_idle;
    config.secure = args.secure.listener()?;
    config.clients = args.secure.clients()?;
    let certificate = config.secure.as_ref().map(|secure| secure.certificate.clone());
    let files: Vec<_> =
        certificate.into_iter().map(|file| Arc::new(file) as Arc<dyn ReloadableFiles>).collect();
    let controlled = args.control.is_controlled().then(|| {
        let name = args.name.as_deref().expect("--controller needs --name");
        args.control.config(name)
    });
    let controlled = controlled.transpose()?;
    crate::process::runtime()?.block_on(async {
        let mut identity = None;
        if let Some(control) = controlled {
            identity = Some(control.identity.clone());
            config.control = Some(NodeControl::start(control, (&[Tier::Source], "for sources")).await?);
        }
        if let Some(server) = args.steering.clone() {
            let layout = config.control.as_ref().map(NodeControl::layout);
            let edges = layout.iter().flat_map(|layout| layout.edges());
            let of_network = edges.map(|(name, url)| (name.to_owned(), url.to_owned()));
            let pathways = if args.pathway.is_empty() { of_network.collect() } else { args.pathway.clone() };
            if pathways.is_empty() {
                bail_usage!("--steering: no pathway: name edges by --pathway EDGE=URL");
            }
            config.steering = Some(SourceSteering { server, pathways });
        }
        let listener = args.metrics.bind()?;
        let source = Source::bind(config)?;
        if !quiet {
            let secure = source.secure_addr()?.map(|at| format!(" and https://{at}")).unwrap_or_default();
            let at = source.local_addr()?;
            errln!("source listens at http://{at}{secure}; publish to /CHANNEL/RENDITION");
        }
        let metrics = source.metrics();
        tokio::select! {
            never = listener.serve(quiet, metrics) => match never {},
            never = source.run() => match never {},
            never = follow_keys(identity.as_ref()) => match never {},
            never = follow(files) => match never {},
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Loads the authorities of HTTPS origins, also for HTTP origins, which may redirect to HTTPS. If
/// all origins are HTTP and no file is named, a missing list is no error.
///
/// Errors: a file that cannot be used.
fn pull_trust(args: &PullArgs) -> anyhow::Result<Option<ServerTrust>> {
    if args.pull.is_empty() {
        return Ok(None);
    }
    let is_needed = args.pull_ca.is_some() || args.pull.iter().any(Pull::is_secure);
    match trust(args.pull_ca.as_deref(), "--pull-ca") {
        Err(error) if is_needed => Err(error),
        found => Ok(found.ok()),
    }
}

/// Parses the time after which a pull on demand pauses.
fn pull_idle(text: &str) -> Result<Duration, String> {
    let time: Duration = text.parse().map_err(|error| format!("{error}"))?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3_600);
    if range.contains(&time) { Ok(time) } else { Err(format!("{time}: must be from 1 s to 1 h")) }
}

fn tokens(path: &std::path::Path) -> anyhow::Result<PublishTokens> {
    let shown = || format!("token file {}", path.display());
    let text = super::read_text(path, TOKEN_FILE_BYTES_MAX).with_context(shown).or_usage()?;
    PublishTokens::read(&text).with_context(shown).or_usage()
}
