//! A measuring player of one live channel, without I/O.
//!
//! | kind | what it asks for |
//! | --- | --- |
//! | [`PlayerKind::Fixed`] | the next segment, a segment's duration after the last one was received (§4.7.2) |
//! | [`PlayerKind::Buffering`] | what a player of HLS asks for: parts and blocking reloads where the playlist offers them, else segments |
//!
//! A refused or failed request moves the player to its next edge. Once all edges have refused, it
//! takes the next lower bitrate of the multivariant playlist, and never a higher one again.
//!
//! Source: the thesis, sections 4.7.1 (lower bitrates) and 4.7.2 (fixed requester);
//! draft-pantos-hls-rfc8216bis, sections 6.3.3, 6.3.4 and 6.3.7. Leaves out: sockets, DNS and
//! clocks; adaptation to measured rates; decoding; encryption. Contract: one `handle_*`, then
//! [`Player::poll`] to `None`, then [`Player::poll_timeout`]. Read [`Player`] and [`Action`] first.

mod listing;
mod measurements;
mod player;
#[cfg(test)]
mod tests;
mod urls;

pub use measurements::{Ages, JoinTimes, Measurements, PlayCounts};
pub use player::Player;
pub use urls::join_url;

use anabranch_media::hls::{ByteRange, DateTime, PlaylistError};
use anabranch_units::Duration;
use std::fmt;

/// Most edges of a player.
pub const EDGES_MAX: usize = 64;
/// Media in a player's buffer above which nothing further is loaded.
pub const BUFFER_MAX: Duration = Duration::from_secs(30);
/// Longest URL.
pub const URL_BYTES_MAX: usize = 8_192;

/// Behaviour of a player.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PlayerKind {
    /// Asks for the next segment a segment's duration after the last one was received, always.
    Fixed,
    /// Plays from a buffer, as players of HLS do.
    Buffering,
}

impl PlayerKind {
    /// The word for it in options and rows.
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

/// A word for no [`PlayerKind`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PlayerKindError;

impl fmt::Display for PlayerKindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "behaviour of a player: write fixed or buffering")
    }
}

impl std::error::Error for PlayerKindError {}

/// Set-up of a player.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerConfig {
    /// Its behaviour.
    pub kind: PlayerKind,
    /// URLs of the channel's playlist, one for each edge, the preferred edge first.
    pub urls: Vec<String>,
    /// Whether the edges are the addresses that DNS has for the host of the only URL.
    pub resolves: bool,
    /// Wall-clock time at opening, from the clock that dates of the playlist are compared with.
    pub opened_at: DateTime,
    /// Rounds over all edges without an answer after which a player that has received no video
    /// gives up.
    pub rounds_max: u32,
    /// Time without a byte after which a request is late, before the first playlist.
    pub first_patience: Duration,
    /// Media in the buffer with which playback begins, and goes on after a stall. `None`: two
    /// segments or parts, and one after a stall; a fixed player needs one.
    pub buffer: Option<Duration>,
}

/// Default of [`PlayerConfig::first_patience`].
pub const FIRST_PATIENCE: Duration = Duration::from_secs(5);

/// A set-up that no player can have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlayerConfigError {
    /// No URL.
    NoUrl,
    /// More URLs than [`EDGES_MAX`].
    TooManyUrls(usize),
    /// Text that is no URL of a plain HTTP server, or is longer than [`URL_BYTES_MAX`].
    BadUrl(String),
    /// Several URLs for edges that DNS names.
    UrlsBesideDns(usize),
    /// A buffer above [`BUFFER_MAX`], which never fills.
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
    /// A player of these URLs with default limits.
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

    /// Checks the set-up.
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

/// A request, by its number.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Sort of a requested resource.
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
    /// Its number.
    pub id: RequestId,
    /// Index of the edge: of the URL, or of the address that DNS has for it.
    pub edge: usize,
    /// Absolute URL.
    pub url: String,
    /// Range of bytes. `None` for the whole resource.
    pub range: Option<ByteRange>,
    /// Sort of the resource.
    pub kind: ResourceKind,
}

/// Next action of a player.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask DNS for the addresses of the URL's host. The answer is [`Player::handle_resolved`].
    Resolve,
    /// Send a request.
    Get(Get),
    /// Abort a request. Further news of it is ignored.
    Abort(RequestId),
}

/// Why a request has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlayFailure {
    /// DNS has no address for the host.
    Unresolved,
    /// An answer of this HTTP status, other than 200 and 206.
    Status(u16),
    /// No connection, or one that broke, with the transport's reason.
    Broken(String),
    /// No byte within the time for it.
    TimedOut,
    /// A body that is no playlist.
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
