//! `anabranch live source`: channels from encoders and other origins in, low-latency HLS out.

use super::controller::{NodeControlArgs, follow_keys};
use crate::exit::OrUsage as _;
use anabranch_live::control::NodeControl;
use anabranch_live::{PublishTokens, Pull, Source, SourceConfig, SourceError};
use anabranch_live_proto::Tier;
use anabranch_units::{ByteCount, Duration};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Longest token file.
const TOKEN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Settings of a source.
#[derive(clap::Args)]
pub struct Args {
    /// Address for encoders, nodes and players. The default admits this machine only.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7201", value_parser = crate::network::listen_address)]
    listen: SocketAddr,
    /// File with a line `CHANNEL TOKEN` for each token that may publish; channel `*` stands for all channels.
    #[arg(long, value_name = "FILE", required_unless_present = "pull")]
    token_file: Option<PathBuf>,
    /// Channel to pull from another origin's playlist, as news=http://HOST:8888/cam/index.m3u8; repeat it for further channels.
    #[arg(long, value_name = "CHANNEL=URL")]
    pull: Vec<Pull>,
    /// Pull on demand: a rendition rests after this time without a request, from 1 s to an hour. [default: pull all the time]
    #[arg(long, value_name = "TIME", requires = "pull", value_parser = pull_idle)]
    pull_idle: Option<Duration>,
    /// Target of a segment's duration, from 100 ms to 60 s; the encoder's interval of key frames must not be longer.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    segment: Duration,
    /// Target of a part's duration, from 50 ms to the segment's.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    part: Duration,
    /// Number published segments by the media's own time, as another source of the same encoder does. The time must never fall.
    #[arg(long)]
    shared_timeline: bool,
    /// Segments that a playlist lists.
    #[arg(long, value_name = "COUNT", default_value_t = 7)]
    segments: usize,
    /// Memory for the media of each rendition.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    window: u64,
    /// Most renditions of all channels.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    renditions: u64,
    /// Seconds without a byte after which a publisher is disconnected, and a stream without one ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    silence: u64,
    /// Name of this source, as in the controller's network.
    #[arg(long, value_name = "NAME", requires = "controller")]
    name: Option<String>,
    #[command(flatten)]
    control: NodeControlArgs,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// Errors: one line for the user.
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
    config.pulls.clone_from(&args.pull);
    config.pull_idle = args.pull_idle;
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
        let source = match Source::bind(config) {
            Err(error @ (SourceError::BadSetting(_) | SourceError::BadPull(_))) => {
                return Err(error).or_usage();
            }
            bound => bound?,
        };
        if !quiet {
            eprintln!("source listens at http://{}; publish to /CHANNEL/RENDITION", source.local_addr()?);
        }
        tokio::select! {
            never = source.run() => match never {},
            never = follow_keys(identity.as_ref()) => match never {},
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Reads the time after which a pull on demand rests.
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
