//! Many video players over real sockets, for tests of a broker and its networks.
//!
//! A segment has as many bytes as its bitrate and duration require; all are zero. Each player sends
//! requests to the broker as an HLS player does, and keeps a connection to each host. Leaves out:
//! the player's decisions (`media::player`). Read [`Players`] first.

use anabranch_media::bitrates::segment_bytes;
use anabranch_media::player::{Action, PlaybackStats, Player, PlayerSettings};
use anabranch_media::steering::SteeringManifest;
use anabranch_units::{BitRate, Duration as Span, Instant as At, Seed};
use anyhow::{Context as _, ensure};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The players, as options of a command.
#[derive(Clone, Debug, clap::Args)]
pub struct Players {
    /// Steering URL of the broker for HLS players, as http://HOST:PORT/steering/hls.
    #[arg(long, value_name = "URL", value_parser = plain_url)]
    steering: String,
    /// Pathway of the manifest, in order of preference, as NAME=HOST:PORT. `broker origin` must
    /// serve segments at HOST:PORT.
    #[arg(long = "way", value_name = "NAME=HOST:PORT", required = true, value_delimiter = ',', value_parser = way)]
    ways: Vec<(String, String)>,
    /// Number of players.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    players: u32,
    /// City of the players, which the players state to the broker.
    #[arg(long, value_name = "CITY", default_value = "elsewhere")]
    location: String,
    /// Internet provider of the players, which the players state to the broker.
    #[arg(long, value_name = "PROVIDER", default_value = "elsewhere")]
    isp: String,
    /// Bitrate of each player.
    #[arg(long, value_name = "RATE", default_value = "3 Mbit/s")]
    bitrate: BitRate,
    /// Playing time of a segment.
    #[arg(long, value_name = "TIME", default_value = "2 s")]
    segment: Span,
    /// Playing time of a full buffer.
    #[arg(long, value_name = "TIME", default_value = "10 s")]
    buffer: Span,
    /// Time after the start within which players begin, at times drawn from --seed.
    #[arg(long, value_name = "TIME", default_value = "5 s")]
    arrivals: Span,
    /// Warm-up time at the start, which the results leave out.
    #[arg(long, value_name = "TIME", default_value = "0 s")]
    warmup: Span,
    /// Time for which the players play.
    #[arg(long, value_name = "TIME", default_value = "60 s")]
    duration: Span,
    /// Seed of the players' start times and numbers.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

/// Parses a URL without TLS, because these players serve tests only.
fn plain_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").filter(|rest| rest.contains('/') && !rest.starts_with('/'));
    rest.map(str::to_owned).ok_or_else(|| "write http://HOST:PORT/steering/hls".to_owned())
}

fn way(text: &str) -> Result<(String, String), String> {
    let found = text.split_once('=').filter(|(name, at)| !name.is_empty() && at.contains(':'));
    found.map(|(name, at)| (name.to_owned(), at.to_owned())).ok_or_else(|| "write NAME=HOST:PORT".to_owned())
}

/// The results of all players.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Statistics at the end of the run.
    pub played: Vec<PlaybackStats>,
    /// Statistics at the end of the warm-up.
    pub before: Vec<PlaybackStats>,
    /// Pathway that each player used last.
    pub ways: Vec<Option<String>>,
}

/// The settings that all players of a run share.
struct Plan {
    broker: String,
    /// Path and query of the first steering request, without the viewer's number.
    question: String,
    ways: Vec<(String, String)>,
    settings: PlayerSettings,
    segment_path: String,
    segment_bytes: u64,
    warmup: Duration,
    duration: Duration,
}

/// Maximum bytes of a steering answer that are kept.
const ANSWER_BYTES_MAX: usize = 1 << 20;

type Sender = SendRequest<http_body_util::Empty<Bytes>>;
type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Result of a request: the connection, the length of the body, and the kept part of the body.
type FetchResult = std::io::Result<(Sender, u64, Vec<u8>)>;

/// A player and its connections.
struct Viewer {
    plan: Arc<Plan>,
    began: Instant,
    player: Player<String>,
    /// Host of each pathway, by the pathway's name.
    hosts: BTreeMap<String, String>,
    /// Path and query of the next steering request.
    question: String,
    /// Idle connections, by host.
    connections: BTreeMap<String, Sender>,
}

/// Errors: a one-line message for the user.
fn plan(args: &Players) -> anyhow::Result<Plan> {
    ensure!(args.segment >= Span::from_ms(100), "--segment {}: must be 100 ms at least", args.segment);
    ensure!(args.buffer >= args.segment, "--buffer {}: must hold a segment, {}", args.buffer, args.segment);
    let (broker, path) = args.steering.split_once('/').context("--steering: has no path")?;
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("location", &args.location)
        .append_pair("isp", &args.isp)
        .append_pair("bitrate", &args.bitrate.as_bps().to_string())
        .finish();
    let bytes = segment_bytes(args.bitrate, args.segment);
    Ok(Plan {
        broker: broker.to_owned(),
        question: format!("/{path}?{query}"),
        ways: args.ways.clone(),
        settings: PlayerSettings {
            segment: args.segment,
            buffer: args.buffer,
            // Used until the broker answers; each answer states its own time to live.
            ttl: Span::from_secs(10),
        },
        segment_path: format!("/segment?bytes={bytes}"),
        segment_bytes: bytes,
        warmup: args.warmup.to_std(),
        duration: args.duration.to_std(),
    })
}

/// Plays until the end of the run.
///
/// Errors: options that no player can have, each in one line.
pub async fn play(args: &Players) -> anyhow::Result<Outcome> {
    let plan = Arc::new(plan(args)?);
    let began = Instant::now();
    let mut random = Seed::new(args.seed).stream("play", 0);
    let players: Vec<_> = (0..args.players)
        .map(|_| {
            let opens = Span::from_ps(random.below(args.arrivals.as_ps() + 1));
            let viewer = Viewer::new(&plan, began, At::ZERO + opens, random.next_u64());
            tokio::spawn(viewer.play(opens))
        })
        .collect();
    let mut outcome = Outcome::default();
    for player in players {
        let (before, played, way) = player.await?;
        outcome.before.push(before);
        outcome.played.push(played);
        outcome.ways.push(way);
    }
    Ok(outcome)
}

impl Viewer {
    fn new(plan: &Arc<Plan>, began: Instant, opens_at: At, number: u64) -> Self {
        let ways = plan.ways.iter().map(|(name, _)| name.clone()).collect();
        Self {
            player: Player::new(opens_at, plan.settings, ways),
            hosts: plan.ways.iter().cloned().collect(),
            question: format!("{}&viewer={number:x}", plan.question),
            connections: BTreeMap::new(),
            plan: Arc::clone(plan),
            began,
        }
    }

    fn now(&self) -> At {
        At::from_std(self.began.elapsed())
    }

    /// Plays until the end. Returns the statistics at the end of the warm-up and at the end, and
    /// the last pathway.
    async fn play(mut self, opens: Span) -> (PlaybackStats, PlaybackStats, Option<String>) {
        tokio::time::sleep_until((self.began + opens.to_std()).into()).await;
        let mut asking: Option<BoxedFuture<FetchResult>> = None;
        let mut fetching: Option<(String, BoxedFuture<FetchResult>)> = None;
        let (mut before, ends) = (None, self.began + self.plan.duration);
        let warm = self.began + self.plan.warmup;
        loop {
            while let Some(action) = self.player.poll(self.now()) {
                match action {
                    Action::LoadSteering => {
                        // A new request replaces an earlier one that has not been answered.
                        let path = format!("{}{}", self.question, self.plays_by());
                        asking = Some(self.get(self.plan.broker.clone(), path, ANSWER_BYTES_MAX));
                    }
                    Action::AbortSegment(_) => fetching = None,
                    Action::LoadSegment(way) => {
                        let host = self.hosts.get(&way).cloned().unwrap_or_default();
                        let path = self.plan.segment_path.clone();
                        fetching = Some((host.clone(), self.get(host, path, 0)));
                    }
                }
            }
            let due = self.player.poll_timeout().to_std(self.began);
            let due = due.max(Instant::now() + Duration::from_millis(1));
            let due = if before.is_none() { due.min(warm) } else { due };
            tokio::select! {
                answered = async { asking.as_mut().expect("it is asked").await }, if asking.is_some() => {
                    asking = None;
                    self.note_answer(answered);
                }
                fetched = async { fetching.as_mut().expect("it is fetched").1.as_mut().await }, if fetching.is_some() => {
                    let host = fetching.take().map(|(host, _)| host).unwrap_or_default();
                    self.note_segment(host, fetched);
                }
                () = tokio::time::sleep_until(due.min(ends).into()) => {}
            }
            let now = self.now();
            self.player.handle_timeout(now);
            if before.is_none() && Instant::now() >= warm {
                before = Some(self.player.stats(now));
            }
            if Instant::now() >= ends {
                let played = self.player.stats(now);
                return (before.unwrap_or_default(), played, self.player.pathway().cloned());
            }
        }
    }

    /// Parameter of a steering request that names the current pathway.
    fn plays_by(&self) -> String {
        self.player.pathway().map(|way| format!("&_HLS_pathway={way}")).unwrap_or_default()
    }

    fn note_answer(&mut self, answered: FetchResult) {
        let now = self.now();
        let read = |(sender, _, body): (Sender, u64, Vec<u8>)| {
            serde_json::from_slice::<SteeringManifest>(&body).ok().map(|manifest| (sender, manifest))
        };
        let Some((sender, manifest)) = answered.ok().and_then(read) else {
            return self.player.handle_unanswered(now);
        };
        self.connections.insert(self.plan.broker.clone(), sender);
        if let Some(query) = manifest.reload_query() {
            let path = self.plan.question.split('?').next().unwrap_or_default();
            self.question = format!("{path}{query}");
        }
        let known = manifest.apply(&mut self.hosts);
        self.player.handle_steering(now, known, Span::from_secs(manifest.ttl.into()));
    }

    fn note_segment(&mut self, host: String, fetched: FetchResult) {
        let now = self.now();
        match fetched {
            Ok((sender, bytes, _)) if bytes == self.plan.segment_bytes => {
                self.connections.insert(host, sender);
                self.player.handle_segment(now);
            }
            _ => self.player.handle_failure(now),
        }
    }

    /// Sends a request to a host, on the idle connection or on a new one. Keeps at most `keep`
    /// bytes of the body and counts the other bytes.
    fn get(&mut self, host: String, path: String, keep: usize) -> BoxedFuture<FetchResult> {
        let kept = self.connections.remove(&host).filter(|sender| !sender.is_closed());
        Box::pin(async move {
            let mut sender = match kept {
                Some(sender) => sender,
                None => connect(&host).await?,
            };
            let other = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
            let request = hyper::Request::get(path).header(hyper::header::HOST, &host);
            let request = request.body(http_body_util::Empty::new()).map_err(|error| other(&error))?;
            let response = sender.send_request(request).await.map_err(|error| other(&error))?;
            if !response.status().is_success() {
                return Err(other(&response.status()));
            }
            let (bytes, body) = collect(response.into_body(), keep).await.map_err(|error| other(&error))?;
            Ok((sender, bytes, body))
        })
    }
}

async fn connect(host: &str) -> std::io::Result<Sender> {
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(async move {
        // A request in flight reports the error of the connection.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn collect(mut body: Incoming, keep: usize) -> hyper::Result<(u64, Vec<u8>)> {
    let (mut bytes, mut kept) = (0, Vec::new());
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            bytes += data.len() as u64;
            let room = keep - kept.len().min(keep);
            kept.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok((bytes, kept))
}
