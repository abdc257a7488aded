//! `anabranch live play`: players of a channel over real sockets, which measure its quality.
//!
//! Leaves out: the players ([`anabranch_live::players`]). Read [`run`] and [`Summary`] first.

use crate::exit::OrUsage as _;
use anabranch_live::players::{
    PLAYERS_MAX, PlayerReport, PlayerSpec, Players, PlayersConfig, Progress, failure,
};
use anabranch_live_proto::directory::AddressPrefix;
use anabranch_live_proto::play::{Ages, FIRST_PATIENCE, PlayCounts, PlayerKind};
use anabranch_net::public::ServerTrust;
use anabranch_units::{BitRate, ByteCount, Duration, Histogram, stats};
use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Time between two updates of the progress line.
const SHOW_EVERY: std::time::Duration = std::time::Duration::from_millis(200);
/// Descriptors of a player: connections for playlists and for media, and a socket for DNS.
const DESCRIPTORS_PER_PLAYER: u64 = 3;
/// Resolution of the table's times.
const SHOWN_STEP_US: f64 = 100.0;

/// The players, and the form of their results.
#[derive(clap::Args)]
pub struct Args {
    /// URLs of the channel's playlist, as http://10.0.0.1:7202/news/index.m3u8: one for each edge.
    /// Players begin at the URLs in turn, and go on to the next URL when an edge refuses or fails.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// Number of players.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PLAYERS_MAX as u64))]
    players: u64,
    /// Behaviour of the players. `buffering` plays from a buffer, with parts and blocking reloads
    /// where the playlist has them; `fixed` asks for the next segment a segment's duration after
    /// the last one was received (the thesis's §4.7.2).
    #[arg(long, value_name = "KIND", default_value = "buffering")]
    kind: PlayerKind,
    /// Players that start in a second, from 0.001 to 100000.
    #[arg(long, value_name = "COUNT", default_value_t = 10.0, value_parser = start_rate)]
    start_rate: f64,
    /// Time until all players are stopped. Without: until the stream has ended for all of them, or
    /// Ctrl-C.
    #[arg(long, value_name = "TIME")]
    duration: Option<Duration>,
    /// Media in a player's buffer at which playback begins, and resumes after a stall, up to 30 s.
    /// Without: two segments or parts, and one after a stall.
    #[arg(long, value_name = "TIME")]
    buffer: Option<Duration>,
    /// DNS server that names the edges; the players ask it for the host of the only URL, and their
    /// times count from that question.
    #[arg(long, value_name = "IP:PORT", value_parser = crate::network::socket_address)]
    dns: Option<SocketAddr>,
    /// Authorities of the edges' certificates in PEM, for URLs that begin with https://. By default
    /// the system's authorities.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Network of the viewers, as 192.0.2.0/24, for the client subnet of their questions to DNS
    /// (RFC 7871).
    #[arg(long, value_name = "PREFIX", requires = "dns", value_parser = prefix)]
    subnet: Option<AddressPrefix>,
    /// Print one JSON object a line for each player, instead of the table.
    #[arg(long)]
    json: bool,
}

fn start_rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number of players a second".to_owned())?;
    if (0.001..=100_000.0).contains(&value) {
        Ok(value)
    } else {
        Err("must be from 0.001 to 100000".to_owned())
    }
}

fn prefix(text: &str) -> Result<AddressPrefix, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Plays until the duration has passed, the stream has ended, or Ctrl-C. Fails if no player has
/// received video.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let descriptors = crate::process::raise_descriptor_limit();
    crate::process::check_descriptors(descriptors, args.players.saturating_mul(DESCRIPTORS_PER_PLAYER));
    let trust = trust(args)?;
    let config = PlayersConfig {
        players: specs(args),
        dns: args.dns,
        trust,
        duration: args.duration,
        first_patience: FIRST_PATIENCE,
    };
    let players = Players::new(config).or_usage()?;
    let progress = players.progress();
    let reports = crate::process::runtime()?.block_on(async {
        let bar = bar(args.players, quiet);
        let played = players.run(crate::process::asked_to_end());
        tokio::pin!(played);
        loop {
            tokio::select! {
                reports = &mut played => {
                    bar.finish_and_clear();
                    break reports;
                }
                () = tokio::time::sleep(SHOW_EVERY) => show_progress(&bar, &progress),
            }
        }
    });
    if args.json {
        reports.iter().for_each(|report| outln!("{}", row(report)));
    }
    if let Some(line) = failure(&reports) {
        bail!(line);
    }
    let summary = Summary::of(&reports);
    if summary.joined == 0 {
        bail!("no player has received video in the time that the players were open");
    }
    if !args.json {
        outln!("{}", summary.table(args.players));
    }
    Ok(ExitCode::SUCCESS)
}

/// Authorities for URLs over TLS, if there are such URLs.
///
/// Errors: a file that cannot be used.
fn trust(args: &Args) -> anyhow::Result<Option<ServerTrust>> {
    if args.ca.is_none() && !args.urls.iter().any(|url| url.starts_with("https://")) {
        return Ok(None);
    }
    Ok(Some(super::secure::trust(args.ca.as_deref(), "--ca")?))
}

fn specs(args: &Args) -> Vec<PlayerSpec> {
    let count = usize::try_from(args.players).unwrap_or(PLAYERS_MAX);
    let spec = |player: usize| {
        let mut urls = args.urls.clone();
        urls.rotate_left(player % args.urls.len());
        let starts_after_s = player as f64 / args.start_rate;
        let starts_after =
            std::time::Duration::try_from_secs_f64(starts_after_s).unwrap_or(std::time::Duration::MAX);
        PlayerSpec {
            kind: args.kind,
            urls,
            starts_after: Duration::from_std(starts_after),
            subnet: args.subnet,
            buffer: args.buffer,
        }
    };
    (0..count).map(spec).collect()
}

fn bar(players: u64, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:30} {pos} of {len} players have joined, {elapsed} so far, {msg}");
    ProgressBar::new(players).with_style(style.expect("a good template"))
}

fn show_progress(bar: &ProgressBar, progress: &Progress) {
    bar.set_position(progress.joined() as u64);
    bar.set_message(format!(
        "{} have started, {} are over, {} stalls, {}",
        progress.started(),
        progress.over(),
        progress.stalls(),
        crate::formats::size(ByteCount::new(progress.bytes()))
    ));
}

/// A player's row. A value is `None` if the player did not reach it.
fn row(report: &PlayerReport) -> serde_json::Value {
    let measured = &report.measurements;
    let (join, counts) = (measured.join, measured.counts);
    let latency_s = |share| (measured.latency.total() > 0).then(|| measured.latency.quantile_us(share) / 1e6);
    let age_s = |share| measured.ages.quantile_us(share).map(|us| us / 1e6);
    let failure = measured.last_failure.as_ref();
    serde_json::json!({
        "player": report.player,
        "edge": report.edge,
        "open_s": measured.open.as_secs_f64(),
        "resolved_s": join.resolved.map(Duration::as_secs_f64),
        "requested_s": join.requested.map(Duration::as_secs_f64),
        "join_s": join.first_byte.map(Duration::as_secs_f64),
        "first_object_s": join.first_object.map(Duration::as_secs_f64),
        "playback_s": join.playback.map(Duration::as_secs_f64),
        "latency_p50_s": latency_s(0.5),
        "latency_p99_s": latency_s(0.99),
        "age_p50_s": age_s(0.5),
        "age_p99_s": age_s(0.99),
        "gap_max_s": measured.gap_max.as_secs_f64(),
        "recovery_max_s": measured.recovery_max.as_secs_f64(),
        "stalls": measured.stalls,
        "stalled_s": measured.stalled.as_secs_f64(),
        "video_bytes": measured.bytes.as_u64(),
        "rate_bps": measured.rate().map(BitRate::as_bps),
        "bitrate_bps": measured.bitrate.map(BitRate::as_bps),
        "objects": counts.objects,
        "skips": counts.skips,
        "refused": counts.refused,
        "failed": counts.failed,
        "edge_changes": counts.edge_changes,
        "downgrades": counts.downgrades,
        "last_failure": failure.map(|(url, why)| format!("{url}: {why}")),
    })
}

/// Measurements of all players together.
#[derive(Debug, Default)]
struct Summary {
    /// Players that have received video.
    joined: usize,
    /// Join times of these players, in microseconds, in ascending order.
    join_us: Vec<f64>,
    latency: Histogram,
    ages: Ages,
    stalls: u64,
    /// Players that have stalled.
    stalled_players: usize,
    stalled: Duration,
    /// Sum of the mean rates of the players that have joined.
    rate: BitRate,
    counts: PlayCounts,
}

impl Summary {
    fn of(reports: &[PlayerReport]) -> Self {
        let mut sum = Self::default();
        let mut rate_bps = 0_u64;
        for measured in reports.iter().map(|report| &report.measurements) {
            if let Some(join) = measured.join.first_byte {
                sum.joined += 1;
                sum.join_us.push(join.as_us() as f64);
                rate_bps = rate_bps.saturating_add(measured.rate().map_or(0, BitRate::as_bps));
            }
            sum.latency.merge(&measured.latency);
            sum.ages.merge(&measured.ages);
            sum.stalls += measured.stalls;
            sum.stalled_players += usize::from(measured.stalls > 0);
            sum.stalled += measured.stalled;
            sum.counts.refused += measured.counts.refused;
            sum.counts.failed += measured.counts.failed;
            sum.counts.edge_changes += measured.counts.edge_changes;
            sum.counts.downgrades += measured.counts.downgrades;
            sum.counts.skips += measured.counts.skips;
        }
        sum.join_us.sort_by(f64::total_cmp);
        sum.rate = BitRate::bps(rate_bps);
        sum
    }

    fn table(&self, players: u64) -> String {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_header(["", "all", "median", "99th percentile"]);
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let mut times = |name: &str, quantile_us: &dyn Fn(f64) -> Option<f64>| {
            let shown = |share| quantile_us(share).map_or_else(|| "-".to_owned(), shown_us);
            table.add_row([name.to_owned(), String::new(), shown(0.5), shown(0.99)]);
        };
        times("join time", &|share| stats::percentile(&self.join_us, share));
        times("latency", &|share| (self.latency.total() > 0).then(|| self.latency.quantile_us(share)));
        times("part age", &|share| self.ages.quantile_us(share));
        let mean_bps = self.rate.as_bps() / self.joined.max(1) as u64;
        let stalls = match self.stalled_players {
            0 => "0".to_owned(),
            players => {
                format!("{} at {players} players, {}", self.stalls, shown_us(self.stalled.as_us() as f64))
            }
        };
        let rows = [
            ("joined", format!("{} of {players}", self.joined)),
            ("mean rate", crate::formats::rate(mean_bps as f64 / 8.0).to_string()),
            ("stalls", stalls),
            ("refused", self.counts.refused.to_string()),
            ("failed", self.counts.failed.to_string()),
            ("edge changes", self.counts.edge_changes.to_string()),
            ("downgrades", self.counts.downgrades.to_string()),
            ("skips", self.counts.skips.to_string()),
        ];
        rows.into_iter().for_each(|(name, all)| {
            table.add_row([name.to_owned(), all]);
        });
        table.trim_fmt()
    }
}

/// Formats a signed time in microseconds, rounded to [`SHOWN_STEP_US`].
fn shown_us(us: f64) -> String {
    let steps = (us / SHOWN_STEP_US).round();
    let mut text = String::new();
    if steps < 0.0 {
        text.push('-');
    }
    let size = Duration::from_us((steps.abs() * SHOWN_STEP_US) as u64);
    let _ = write!(text, "{size}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_live_proto::play::Measurements;

    fn args(line: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = std::iter::once("play").chain(line.iter().copied());
        <Line as clap::Parser>::try_parse_from(line).expect("a good line").args
    }

    #[test]
    fn players_begin_at_the_urls_in_turn() {
        let specs = specs(&args(&["a", "b", "--players", "4", "--start-rate", "2"]));
        let firsts: Vec<_> = specs.iter().map(|spec| spec.urls.concat()).collect();
        assert_eq!(firsts, ["ab", "ba", "ab", "ba"]);
        let starts: Vec<_> = specs.iter().map(|spec| spec.starts_after).collect();
        assert_eq!(starts, [0, 500, 1_000, 1_500].map(Duration::from_ms));
    }

    fn report(player: usize, join: Option<Duration>, stalls: u64) -> PlayerReport {
        let mut measurements =
            Measurements { open: Duration::from_secs(8), stalls, ..Measurements::default() };
        measurements.join.first_byte = join;
        measurements.bytes = ByteCount::new(if join.is_some() { 2_000_000 } else { 0 });
        measurements.counts.refused = 3;
        let spec = specs(&args(&["a"])).remove(0);
        PlayerReport { player, spec, edge: None, measurements }
    }

    #[test]
    fn rates_in_table_count_only_joined_players() {
        let joins = [Some(Duration::from_ms(20)), None, Some(Duration::from_ms(40))];
        let reports: Vec<_> = (0..).zip(joins).map(|(player, join)| report(player, join, 0)).collect();
        let summary = Summary::of(&reports);
        let table = summary.table(4);
        let has = |name: &str, value: &str| {
            let mut lines = table.lines().map(str::trim);
            assert!(
                lines.any(|line| line.starts_with(name) && line.ends_with(value)),
                "{name} {value}:\n{table}"
            );
        };
        has("joined", "2 of 4");
        has("mean rate", "2 Mbit/s");
        has("refused", "9");
        has("latency", "-");
        has("stalls", "0");
        assert_eq!(summary.join_us, [20_000.0, 40_000.0]);
    }

    #[test]
    fn row_of_a_player_without_video_has_nulls() {
        let row = row(&report(7, None, 0));
        assert_eq!((&row["player"], &row["join_s"], &row["rate_bps"]), (&7.into(), &().into(), &0.into()));
        assert_eq!(row["latency_p99_s"], serde_json::Value::Null);
    }

    #[test]
    fn negative_times_keep_their_sign() {
        assert_eq!([shown_us(-1_240.0), shown_us(-3.0), shown_us(12_345.0)], ["-1.2 ms", "0 s", "12.3 ms"]);
    }
}
