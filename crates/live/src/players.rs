//! Many measuring players in one process, over real sockets.
//!
//! Each player has its connections and its start time. With DNS, each player queries the addresses
//! of its edges with an EDNS client subnet, and its times are measured from that query.
//!
//! Leaves out: a player's requests and measurements ([`anabranch_live_proto::play`]); HTTP/2. Read
//! [`Players`] and [`PlayersConfig`] first.

mod resolve;
mod session;

use anabranch_live_proto::directory::AddressPrefix;
use anabranch_live_proto::play::{Measurements, PlayerConfig, PlayerConfigError, PlayerKind};
use anabranch_media::hls::DateTime;
use anabranch_net::public::ServerTrust;
use anabranch_units::Duration;
use session::Session;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Maximum number of players in a process.
pub const PLAYERS_MAX: usize = 20_000;

/// Number of characters of a URL that a message shows.
const URL_SHOWN_CHARS_MAX: usize = 200;

/// Configuration of one player.
#[derive(Clone, Debug)]
pub struct PlayerSpec {
    /// Behaviour of the player.
    pub kind: PlayerKind,
    /// URLs of the channel's playlist, one for each edge. With DNS, one URL only.
    pub urls: Vec<String>,
    /// Time from the start of the run to the opening of the player.
    pub starts_after: Duration,
    /// Network of the viewer, for DNS.
    pub subnet: Option<AddressPrefix>,
    /// Duration of media at which playback starts; see [`PlayerConfig::buffer`].
    pub buffer: Option<Duration>,
}

/// Configuration of all players.
#[derive(Clone, Debug)]
pub struct PlayersConfig {
    /// All players.
    pub players: Vec<PlayerSpec>,
    /// DNS server to ask for the edges. `None` to use the hosts in the URLs.
    pub dns: Option<SocketAddr>,
    /// Certificate authorities of the edges. `None` if no URL begins with `https://`.
    pub trust: Option<ServerTrust>,
    /// Time from the start of the run to its end. `None` to run until all players have ended.
    pub duration: Option<Duration>,
    /// Time without a byte after which a request counts as late, before a player's first playlist.
    pub first_patience: Duration,
}

/// Reason why players cannot start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlayersError {
    /// There is no player, or more than [`PLAYERS_MAX`].
    Count(usize),
    /// The configuration of a player is invalid.
    Player(PlayerConfigError),
    /// A URL contains an address, although DNS is asked for the edges.
    AddressBesideDns(String),
    /// A URL begins with `https://`, but no certificate authorities are configured.
    NoTrust(String),
}

impl fmt::Display for PlayersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count} players: must be from 1 to {PLAYERS_MAX}"),
            Self::Player(error) => error.fmt(f),
            Self::AddressBesideDns(url) => {
                write!(f, "URL `{url}`: has an address, which DNS is not asked for: give a name")
            }
            Self::NoTrust(url) => {
                write!(f, "URL `{url}`: no authority is known to vouch for its server: name a file of them")
            }
        }
    }
}

impl std::error::Error for PlayersError {}

/// Sums over all players, updated while they run.
#[derive(Debug, Default)]
pub struct Progress {
    started: AtomicUsize,
    joined: AtomicUsize,
    over: AtomicUsize,
    stalls: AtomicU64,
    bytes: AtomicU64,
    video_bytes: AtomicU64,
    watched_bps: AtomicU64,
    stalled_ps: AtomicU64,
    failed: AtomicU64,
    edge_changes: AtomicU64,
}

impl Progress {
    /// Number of players that have been opened.
    pub fn started(&self) -> usize {
        self.started.load(Relaxed)
    }
    /// Number of players that have received video.
    pub fn joined(&self) -> usize {
        self.joined.load(Relaxed)
    }
    /// Number of players that have given up, or have played their stream to the end.
    pub fn over(&self) -> usize {
        self.over.load(Relaxed)
    }
    /// Number of stalls of all players.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Relaxed)
    }
    /// Bytes of all answers.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
    /// Bytes of video.
    pub fn video_bytes(&self) -> u64 {
        self.video_bytes.load(Relaxed)
    }
    /// Sum of the declared bitrates of all watched renditions, in bit/s.
    pub fn watched_bps(&self) -> u64 {
        self.watched_bps.load(Relaxed)
    }
    /// Number of requests that broke, were late, or had an unreadable body.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }
    /// Number of changes to another edge.
    pub fn edge_changes(&self) -> u64 {
        self.edge_changes.load(Relaxed)
    }
    /// Total duration of all stalls of all players.
    pub fn stalled(&self) -> Duration {
        Duration::from_ps(self.stalled_ps.load(Relaxed))
    }
}

/// Result of one player.
#[derive(Clone, Debug)]
pub struct PlayerReport {
    /// Index of the player.
    pub player: usize,
    /// Configuration of the player.
    pub spec: PlayerSpec,
    /// Address from DNS of the edge that the player asked last.
    pub edge: Option<IpAddr>,
    /// Measurements of the player.
    pub measurements: Measurements,
}

/// One line that explains why no player has received video. `None` if any player has, or if no
/// request has failed.
pub fn failure(reports: &[PlayerReport]) -> Option<String> {
    if reports.iter().any(|report| report.measurements.join.first_byte.is_some()) {
        return None;
    }
    let (url, why) = reports.iter().find_map(|report| report.measurements.last_failure.as_ref())?;
    let url: String = url.chars().take(URL_SHOWN_CHARS_MAX).collect();
    Some(format!("no player has received video: {url}: {why}"))
}

/// Players that are ready to run.
#[derive(Debug)]
pub struct Players {
    config: PlayersConfig,
    progress: Arc<Progress>,
}

impl Players {
    /// Checks the configuration.
    ///
    /// Errors: see [`PlayersError`].
    pub fn new(config: PlayersConfig) -> Result<Self, PlayersError> {
        let count = config.players.len();
        if count == 0 || count > PLAYERS_MAX {
            return Err(PlayersError::Count(count));
        }
        let (now, resolves) = (wall_clock(), config.dns.is_some());
        for spec in &config.players {
            let buffer = spec.buffer;
            let player =
                PlayerConfig { resolves, buffer, ..PlayerConfig::new(spec.kind, spec.urls.clone(), now) };
            player.check().map_err(PlayersError::Player)?;
            if config.trust.is_none()
                && let Some(url) = spec.urls.iter().find(|url| url.starts_with("https://"))
            {
                return Err(PlayersError::NoTrust(url.clone()));
            }
            if resolves && crate::url::host(&spec.urls[0]).is_none_or(|host| host.parse::<IpAddr>().is_ok()) {
                return Err(PlayersError::AddressBesideDns(spec.urls[0].clone()));
            }
        }
        Ok(Self { config, progress: Arc::default() })
    }

    /// Sums over all players, which are updated while the players run.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Runs the players until the duration has passed, all players have ended, or `asked_to_end`
    /// completes. Returns the results of all opened players, in order.
    pub async fn run(self, asked_to_end: impl Future<Output = ()>) -> Vec<PlayerReport> {
        let begin = Instant::now();
        let (stop, stopped) = watch::channel(false);
        let mut sessions = JoinSet::new();
        for (player, spec) in self.config.players.into_iter().enumerate() {
            let session = Session {
                player,
                dns: self.config.dns,
                trust: self.config.trust.clone(),
                first_patience: self.config.first_patience,
                opens_at: begin + spec.starts_after.to_std(),
                spec,
                progress: Arc::clone(&self.progress),
                stopped: stopped.clone(),
            };
            sessions.spawn(session.run());
        }
        let mut reports = Vec::new();
        let end = self.config.duration.map(|duration| begin + duration.to_std());
        tokio::pin!(asked_to_end);
        let mut is_stopping = false;
        loop {
            tokio::select! {
                ended = sessions.join_next() => match ended {
                    Some(ended) => reports.extend(ended.expect("a session does not panic")),
                    None => break,
                },
                () = until(end), if !is_stopping => is_stopping = true,
                () = &mut asked_to_end, if !is_stopping => is_stopping = true,
            }
            if is_stopping {
                let _ = stop.send(true);
            }
        }
        reports.sort_by_key(|report| report.player);
        reports
    }
}

/// Waits until a time, or for ever if `None`.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Current wall-clock time.
fn wall_clock() -> DateTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unix_ms = u64::try_from(since_1970.as_millis()).unwrap_or(0);
    DateTime::from_unix_ms(unix_ms).unwrap_or(DateTime::from_unix_ms(0).expect("1970 has a text form"))
}
