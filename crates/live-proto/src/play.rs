//! A player of one live channel that measures its playback, without I/O.
//!
//! | kind | requests |
//! | --- | --- |
//! | [`PlayerKind::Fixed`] | the next segment, one segment duration after the last one was received (§4.7.2) |
//! | [`PlayerKind::Buffering`] | as an HLS player: parts and blocking reloads where the playlist offers them, else segments |
//!
//! After a refused or failed request the player uses its next edge. Once all edges have refused,
//! the player takes the next lower bitrate of the multivariant playlist, and never raises it again.
//!
//! Source: the thesis, sections 4.7.1 (lower bitrates) and 4.7.2 (fixed requester);
//! draft-pantos-hls-rfc8216bis, sections 6.3.3, 6.3.4 and 6.3.7. Leaves out: sockets, DNS and
//! clocks; adaptation to measured rates; decoding; encryption. Contract: one `handle_*`, then
//! [`Player::poll`] to `None`, then [`Player::poll_timeout`]. Read [`Player`] and [`Action`] first.

mod listing;
mod measurements;
mod opening;
mod player;
#[cfg(test)]
mod tests;
mod urls;

pub use measurements::{Ages, JoinTimes, Measurements, PlayCounts};
pub(crate) use opening::opening_targets;
pub use player::Player;
pub use urls::join_url;

use anabranch_media::hls::{ByteRange, DateTime, PlaylistError};
use anabranch_units::Duration;
use std::fmt;

/// Maximum number of edges of a player.
pub const EDGES_MAX: usize = 64;
/// Duration of media in a player's buffer above which the player requests nothing more.
pub const BUFFER_MAX: Duration = Duration::from_secs(30);
/// Longest URL, in bytes.
pub const URL_BYTES_MAX: usize = 8_192;

/// Behaviour of a player.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PlayerKind {
    /// Always requests the next segment one segment duration after the last segment was received.
    Fixed,
    /// Plays from a buffer, as HLS players do.
    Buffering,
}

impl PlayerKind {
    /// The keyword of this kind in options and rows.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Buffering => "buffering",
        }
    }
}

impl std::str::FromStr for PlayerKind {
    type Err = PlayerKindError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let kinds = [Self::Fixed, Self::Buffering];
        kinds.into_iter().find(|kind| kind.word() == word).ok_or(PlayerKindError)
    }
}

/// A keyword that is not a [`PlayerKind`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PlayerKindError;

impl fmt::Display for PlayerKindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "behaviour of a player: write fixed or buffering")
    }
}

impl std::error::Error for PlayerKindError {}

/// Configuration of a player.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerConfig {
    /// Behaviour of the player.
    pub kind: PlayerKind,
    /// URLs of the channel's playlist, one for each edge, the preferred edge first.
    pub urls: Vec<String>,
    /// Whether DNS is asked for the edges: the addresses of the host in the only URL.
    pub resolves: bool,
    /// Wall-clock time at opening. It is compared with the dates in playlists.
    pub opened_at: DateTime,
    /// Number of rounds over all edges without an answer after which a player gives up. Applies
    /// only before the first video.
    pub rounds_max: u32,
    /// Time without a byte after which a request counts as late, before the first playlist.
    pub first_patience: Duration,
    /// Duration of media in the buffer at which playback starts, and resumes after a stall. If
    /// `None`: two segments or parts at the start, one after a stall, and one for a fixed player.
    pub buffer: Option<Duration>,
}

/// Default of [`PlayerConfig::first_patience`].
pub const FIRST_PATIENCE: Duration = Duration::from_secs(5);

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlayerConfigError {
    /// No URL is given.
    NoUrl,
    /// More URLs than [`EDGES_MAX`].
    TooManyUrls(usize),
    /// A text that is not a plain-HTTP URL, or is longer than [`URL_BYTES_MAX`].
    BadUrl(String),
    /// Several URLs, although DNS is asked for the edges.
    UrlsBesideDns(usize),
    /// A buffer above [`BUFFER_MAX`], which would never fill.
    Buffer(Duration),
}

impl fmt::Display for PlayerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUrl => {
                write!(f, "no URL is given: name a playlist, as http://10.0.0.1:7202/news/index.m3u8")
            }
            Self::TooManyUrls(count) => write!(f, "{count} URLs: at most {EDGES_MAX} are possible"),
            Self::BadUrl(url) => {
                let shown: String = url.chars().take(100).collect();
                write!(
                    f,
                    "URL `{shown}`: must be http://HOST/PATH or https://HOST:PORT/PATH, up to {URL_BYTES_MAX} bytes"
                )
            }
            Self::UrlsBesideDns(count) => {
                write!(f, "{count} URLs with DNS: DNS names the edges, so give one URL")
            }
            Self::Buffer(level) => write!(f, "buffer of {level}: must be at most {BUFFER_MAX}"),
        }
    }
}

impl std::error::Error for PlayerConfigError {}

impl PlayerConfig {
    /// Creates a configuration with these URLs and default limits.
    pub fn new(kind: PlayerKind, urls: Vec<String>, opened_at: DateTime) -> Self {
        Self {
            kind,
            urls,
            resolves: false,
            opened_at,
            rounds_max: 5,
            first_patience: FIRST_PATIENCE,
            buffer: None,
        }
    }

    /// Checks the configuration.
    ///
    /// Errors: see [`PlayerConfigError`].
    pub fn check(&self) -> Result<(), PlayerConfigError> {
        match self.urls.len() {
            0 => return Err(PlayerConfigError::NoUrl),
            count if count > EDGES_MAX => return Err(PlayerConfigError::TooManyUrls(count)),
            count if count > 1 && self.resolves => return Err(PlayerConfigError::UrlsBesideDns(count)),
            _ => {}
        }
        if let Some(level) = self.buffer.filter(|level| *level > BUFFER_MAX) {
            return Err(PlayerConfigError::Buffer(level));
        }
        match self.urls.iter().find(|url| !urls::is_http_url(url)) {
            Some(url) => Err(PlayerConfigError::BadUrl(url.clone())),
            None => Ok(()),
        }
    }
}

/// Number of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Type of a requested resource.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResourceKind {
    /// A playlist.
    Playlist,
    /// An initialisation section.
    Map,
    /// A segment or part.
    Media,
}

/// A request to an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// Number of the request.
    pub id: RequestId,
    /// Index of the edge, among the URLs or among the addresses from DNS.
    pub edge: usize,
    /// Absolute URL.
    pub url: String,
    /// Range of bytes. `None` for the whole resource.
    pub range: Option<ByteRange>,
    /// Type of the resource.
    pub kind: ResourceKind,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask DNS for the addresses of the URL's host, and pass them to [`Player::handle_resolved`].
    Resolve,
    /// Send a request.
    Get(Get),
    /// Abort a request. Further input for it is ignored.
    Abort(RequestId),
}

/// Reason why a request has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlayFailure {
    /// DNS has no address for the host.
    Unresolved,
    /// An answer of this HTTP status, other than 200 and 206.
    Status(u16),
    /// No connection, or a broken connection: the transport's error message.
    Broken(String),
    /// No byte arrived in time.
    TimedOut,
    /// The body is not a valid playlist.
    Playlist(PlaylistError),
}

impl fmt::Display for PlayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved => write!(f, "DNS has no address for its host"),
            Self::Status(status) => write!(f, "answered with HTTP status {status}"),
            Self::Broken(reason) => write!(f, "no connection, or it broke: {reason}"),
            Self::TimedOut => write!(f, "no answer in time"),
            Self::Playlist(error) => error.fmt(f),
        }
    }
}
