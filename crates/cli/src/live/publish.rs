//! `anabranch live publish`: publishes test patterns to a source, in place of encoders.

use crate::exit::OrUsage as _;
use anabranch_live::publisher::{PublishedRendition, Publisher, PublisherConfig};
use anabranch_units::{BitRate, Duration};
use std::process::ExitCode;

/// Maximum number of renditions that one command publishes.
const RENDITIONS_MAX: u64 = 10_000;

/// Settings of a publisher.
#[derive(clap::Args)]
pub struct Args {
    /// Source to publish to, as http://10.0.0.1:7201.
    #[arg(value_name = "URL")]
    source: String,
    /// Token of the channels. Without: the value of the variable ANABRANCH_LIVE_TOKEN.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Name of the channel; with --channels above 1 the first part of the names, as test-0, test-1.
    #[arg(long, value_name = "NAME", default_value = "test")]
    channel: String,
    /// Number of channels.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=RENDITIONS_MAX))]
    channels: u64,
    /// Renditions of each channel, as NAME=BITRATE.
    #[arg(long, value_name = "NAME=BITRATE,...", value_delimiter = ',', default_value = "main=2Mbit/s", value_parser = rendition)]
    renditions: Vec<(String, BitRate)>,
    /// Duration of a fragment, at most 10 s.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    fragment: Duration,
    /// Interval of key frames: the source's --segment, or less.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    key: Duration,
    /// Time between the starts of two channels.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    apart: Duration,
}

fn rendition(text: &str) -> Result<(String, BitRate), String> {
    let (name, rate) = text.split_once('=').ok_or("write NAME=BITRATE, as main=2Mbit/s")?;
    Ok((name.to_owned(), rate.parse().map_err(|error| format!("{error}"))?))
}

/// Publishes until Ctrl-C or SIGTERM.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    let count = args.channels.saturating_mul(args.renditions.len() as u64);
    ensure_usage!(count <= RENDITIONS_MAX, "{count} renditions: at most {RENDITIONS_MAX} are possible");
    ensure_usage!(
        args.fragment <= Duration::from_secs(10),
        "--fragment {}: must be at most 10 s",
        args.fragment
    );
    let named = |channel: u64| match args.channels {
        1 => args.channel.clone(),
        _ => format!("{}-{channel}", args.channel),
    };
    let renditions = (0..args.channels).flat_map(|channel| {
        args.renditions.iter().map(move |(name, bitrate)| PublishedRendition {
            channel: named(channel),
            rendition: name.clone(),
            bitrate: *bitrate,
            delay: args.apart * channel,
        })
    });
    let token = args.token.clone().or_else(|| std::env::var("ANABRANCH_LIVE_TOKEN").ok());
    let config = PublisherConfig {
        source: args.source.clone(),
        token: token.unwrap_or_default(),
        renditions: renditions.collect(),
        fragment: args.fragment,
        key: args.key,
    };
    let publisher = Publisher::new(config).or_usage()?;
    crate::process::runtime()?.block_on(async {
        if !quiet {
            errln!("{count} renditions of test patterns go to {}", args.source);
        }
        tokio::select! {
            never = publisher.run() => match never {},
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
