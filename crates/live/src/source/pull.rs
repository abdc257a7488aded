//! Pulls from other origins: their playlists and media become renditions of this source.
//!
//! A channel has one URL. A multivariant playlist yields the renditions `v1`, `v2`, … and, for
//! separate audio, `a1`, `a2`, …; a media playlist yields the rendition `main`. Each rendition has
//! an [`Importer`], whose requests are sent here. Leaves out: subtitles; changes of the set of
//! renditions. Read [`Pull`] and [`PulledChannel`] first.
//!
//! [`Importer`]: anabranch_live_proto::origin::Importer

mod client;
mod entry;

use super::Shared;
use super::channel::{Channel, ChannelPath};
use super::tokens::is_name;
use crate::url::split;
use anabranch_http::origin::Origin;
use anabranch_live_proto::origin::{Fetch, FetchKind, ImportConfig, Importer};
use anabranch_live_proto::play::{URL_BYTES_MAX, join_url};
use anabranch_media::hls::{DeliveryDirectives, MultivariantPlaylist, Resource};
use anabranch_net::public::ServerTrust;
use anabranch_units::{RandomStream, Seed};
use client::{FetchError, OriginClient};
use entry::{Entry, PlaylistRole};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration as StdDuration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant as Tick, sleep, sleep_until};

/// First and last delay before an entry playlist is requested again. The actual delay is random
/// between half of it and all of it.
const RETRY_MIN: StdDuration = StdDuration::from_millis(500);
const RETRY_MAX: StdDuration = StdDuration::from_secs(16);
/// Shortest interval between log lines about lost media of one rendition.
const LOG_PAUSE: StdDuration = StdDuration::from_secs(10);
/// Longest time for a complete answer of the origin. It exceeds the longest accepted segment.
const FETCH_TIME: StdDuration = StdDuration::from_secs(90);
/// Interval of the checks whether an ended origin has started a new stream.
const ENDED_PAUSE: StdDuration = StdDuration::from_secs(5);
/// Longest wait of a player's first request for the origin.
pub(super) const START_TIME: StdDuration = StdDuration::from_secs(5);

/// A channel and the URL from which it is pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Name of the channel.
    pub channel: String,
    /// URL of a multivariant or media playlist, over HTTP or HTTPS.
    pub url: String,
}

/// Reason why a text is not a valid [`Pull`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullError {
    /// The text has no `=`.
    NoUrl(String),
    /// The channel is not a valid name.
    BadChannel(String),
    /// The URL is not of an HTTP server, or is longer than 8,192 bytes.
    BadUrl(String),
    /// The URL is of an HTTPS server, but no certificate authorities are configured.
    NoTrust(String),
    /// The channel is configured twice.
    Twice(String),
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUrl(text) => write!(f, "pull `{text}`: must be CHANNEL=URL"),
            Self::BadChannel(name) => {
                write!(f, "pull of channel `{name}`: must have 1 to 63 letters, digits, `-`, `.` or `_`")
            }
            Self::BadUrl(url) => {
                let shown: String = url.chars().take(200).collect();
                write!(f, "pull from `{shown}`: must be http://HOST:PORT/PATH or https://HOST:PORT/PATH")
            }
            Self::NoTrust(server) => {
                write!(f, "pull from {server}: no authority is known for HTTPS: name a file of authorities")
            }
            Self::Twice(name) => write!(f, "pull of channel {name} twice: must be given once"),
        }
    }
}

impl std::error::Error for PullError {}

impl std::str::FromStr for Pull {
    type Err = PullError;

    /// Parses `CHANNEL=URL`.
    ///
    /// Errors: [`PullError`].
    fn from_str(text: &str) -> Result<Self, PullError> {
        let (channel, url) = text.split_once('=').ok_or_else(|| PullError::NoUrl(text.to_owned()))?;
        let pull = Self { channel: channel.to_owned(), url: url.to_owned() };
        pull.check()?;
        Ok(pull)
    }
}

impl Pull {
    /// Whether the origin is an HTTPS server.
    pub fn is_secure(&self) -> bool {
        self.url.starts_with("https://")
    }

    fn check(&self) -> Result<(), PullError> {
        if !is_name(&self.channel) {
            return Err(PullError::BadChannel(self.channel.clone()));
        }
        // Servers have the same form with and without TLS.
        let server = split(&self.url).map(|(server, _)| server.replacen("https://", "http://", 1));
        let is_url = server.is_some_and(|server| Origin::new(&server).is_ok());
        let is_good = is_url && self.url.len() <= URL_BYTES_MAX;
        is_good.then_some(()).ok_or_else(|| PullError::BadUrl(self.url.clone()))
    }

    fn client(&self, trust: Option<&ServerTrust>) -> Result<OriginClient, PullError> {
        self.check()?;
        OriginClient::new(&self.url, trust.cloned()).map_err(|error| match error {
            FetchError::NoTrust(server) => PullError::NoTrust(server),
            _ => PullError::BadUrl(self.url.clone()),
        })
    }
}

/// A channel that is pulled from an origin.
pub(super) struct PulledChannel {
    pull: Pull,
    client: OriginClient,
    /// Multivariant playlist with this source's names. `None` until the origin has answered, and if
    /// the entry is a media playlist.
    variants: Mutex<Option<MultivariantPlaylist>>,
    /// Notified by requests of players.
    pub asked: Notify,
}

impl PulledChannel {
    /// Creates the configured channels, with the certificate authorities of HTTPS origins.
    ///
    /// Errors: [`PullError`].
    pub fn all(pulls: &[Pull], trust: Option<&ServerTrust>) -> Result<Vec<Arc<Self>>, PullError> {
        let mut channels: Vec<Arc<Self>> = Vec::new();
        for pull in pulls {
            if channels.iter().any(|known| known.name() == pull.channel) {
                return Err(PullError::Twice(pull.channel.clone()));
            }
            let client = pull.client(trust)?;
            let (variants, asked) = (Mutex::default(), Notify::new());
            channels.push(Arc::new(Self { pull: pull.clone(), client, variants, asked }));
        }
        Ok(channels)
    }

    pub fn name(&self) -> &str {
        &self.pull.channel
    }

    pub fn variants(&self) -> Option<MultivariantPlaylist> {
        self.variants.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Pulls for ever. On demand, the first request starts the pull.
    pub async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let is_on_demand = shared.config.pull_idle.is_some();
        let mut retries = Retries::new(shared.epoch_unix_ms);
        let mut health = Health::new(self.pull.channel.clone());
        let entry = loop {
            if is_on_demand {
                self.asked.notified().await;
            }
            match self.entry().await {
                Ok(entry) => break entry,
                Err(error) => health.failed(&self.pull.url, &error),
            }
            sleep(retries.next()).await;
        };
        health.works(&self.pull.url);
        let mut imports = JoinSet::new();
        for rendition in entry.renditions() {
            let path = ChannelPath { channel: self.pull.channel.clone(), rendition: rendition.name };
            let config = ImportConfig {
                rendition: shared.config.rendition.clone(),
                predecessor: None,
                seed: retries.seed(),
            };
            match shared.open_pulled(&path, config) {
                Ok(channel) => {
                    let (shared, pulled) = (Arc::clone(&shared), Arc::clone(&self));
                    let seed = retries.seed();
                    imports.spawn(Import::new(shared, pulled, channel, rendition.which, seed).run());
                }
                Err(line) => tracing::warn!("{path}: pull from {}: {line}", self.pull.url),
            }
        }
        *self.variants.lock().unwrap_or_else(PoisonError::into_inner) = entry.into_variants();
        while imports.join_next().await.is_some() {}
        std::future::pending().await
    }

    /// Fetches the playlist at the configured URL.
    async fn entry(&self) -> Result<Entry, FetchError> {
        let (text, url) = self.client.get(&self.pull.url, None).await?.text().await?;
        Entry::read(&text, url).map_err(FetchError::Playlist)
    }
}

/// Delays between retries.
struct Retries {
    delay: StdDuration,
    random: RandomStream,
}

impl Retries {
    fn new(seed: u64) -> Self {
        Self { delay: RETRY_MIN, random: Seed::new(seed).stream("live-pull-retry", 0) }
    }

    fn next(&mut self) -> StdDuration {
        let half = self.delay / 2;
        self.delay = (self.delay * 2).min(RETRY_MAX);
        half + half.mul_f64(self.random.unit_f64())
    }

    fn seed(&mut self) -> u64 {
        self.random.next_u64()
    }
}

/// Failure state of an origin, for the log: one line on failure, one line on recovery.
struct Health {
    what: String,
    is_failing: bool,
    media_logged_at: Option<Tick>,
}

impl Health {
    fn new(what: String) -> Self {
        Self { what, is_failing: false, media_logged_at: None }
    }

    fn failed(&mut self, url: &str, error: &FetchError) {
        let what = &self.what;
        if std::mem::replace(&mut self.is_failing, true) {
            tracing::debug!("{what}: pull from {url}: {error}");
        } else {
            tracing::warn!("{what}: pull from {url}: {error}; the origin is asked again");
        }
    }

    fn media_lost(&mut self, uri: &str, error: &FetchError) {
        let now = Tick::now();
        if self.media_logged_at.is_none_or(|at| now.duration_since(at) >= LOG_PAUSE) {
            self.media_logged_at = Some(now);
            let uri: String = uri.chars().take(200).collect();
            tracing::warn!("{}: {uri}: {error}; its segment is missing", self.what);
        }
    }

    fn works(&mut self, url: &str) {
        if std::mem::replace(&mut self.is_failing, false) {
            tracing::info!("{}: {url} answers again", self.what);
        }
    }
}

/// The import of one rendition.
struct Import {
    shared: Arc<Shared>,
    pulled: Arc<PulledChannel>,
    channel: Arc<Channel>,
    which: PlaylistRole,
    /// URL of the media playlist. `None` before the first answer and after a failure, because a
    /// session number in the URL may have expired.
    playlist_url: Mutex<Option<String>>,
    health: Mutex<Health>,
    seed: u64,
}

impl Import {
    fn new(
        shared: Arc<Shared>,
        pulled: Arc<PulledChannel>,
        channel: Arc<Channel>,
        which: PlaylistRole,
        seed: u64,
    ) -> Arc<Self> {
        let health = Mutex::new(Health::new(channel.path.to_string()));
        Arc::new(Self { shared, pulled, channel, which, playlist_url: Mutex::default(), health, seed })
    }

    async fn run(self: Arc<Self>) {
        loop {
            self.import().await;
            tracing::info!("{}: the origin has ended its stream", self.channel.path);
            while !self.goes_on().await {
                sleep(ENDED_PAUSE).await;
            }
            let config = ImportConfig {
                rendition: self.shared.config.rendition.clone(),
                predecessor: self.channel.predecessor(),
                seed: self.seed,
            };
            if let Ok(importer) = Importer::new(self.shared.now(), config) {
                self.channel.renew(importer);
            }
        }
    }

    /// Sends the importer's requests until the stream ends.
    async fn import(self: &Arc<Self>) {
        let mut fetches = JoinSet::new();
        loop {
            self.rest().await;
            let now = self.shared.now();
            let (fetch, due) = self.channel.import(|importer| {
                importer.handle_timeout(now);
                (importer.poll_fetch(), importer.poll_timeout())
            });
            if let Some(fetch) = fetch {
                fetches.spawn(Arc::clone(self).fetch(fetch));
                continue;
            }
            if fetches.is_empty() && self.channel.is_ended() {
                return;
            }
            let due = due.map(|due| due.saturating_since(now).to_std()).unwrap_or(FETCH_TIME);
            tokio::select! {
                _ = fetches.join_next(), if !fetches.is_empty() => {}
                () = sleep_until(Tick::now() + due) => {}
            }
        }
    }

    /// Waits for a request if the import is on demand and no player has sent one recently.
    async fn rest(&self) {
        let Some(idle) = self.shared.config.pull_idle else { return };
        while self.channel.rests(self.shared.now(), idle) {
            self.channel.asked.notified().await;
        }
    }

    /// Whether an origin whose stream has ended has started a new stream.
    async fn goes_on(&self) -> bool {
        let Ok(url) = self.media_url().await else { return false };
        let Ok(answer) = self.pulled.client.get(&url, None).await else {
            *self.lock_url() = None;
            return false;
        };
        let text = answer.text().await.map(|(text, _)| text).unwrap_or_default();
        anabranch_media::hls::MediaPlaylist::read(&text).is_ok_and(|playlist| !playlist.is_ended)
    }

    async fn fetch(self: Arc<Self>, fetch: Fetch) {
        let made = async {
            match &fetch.kind {
                FetchKind::Playlist(directives) => self.fetch_playlist(&fetch, directives).await,
                FetchKind::Resource(resource) => self.fetch_media(&fetch, resource).await,
            }
        };
        let result = match tokio::time::timeout(FETCH_TIME, made).await {
            Ok(result) => result,
            Err(_) => Err(FetchError::Silent(FETCH_TIME)),
        };
        if result.is_err() {
            let now = self.shared.now();
            self.channel.import(|importer| importer.handle_failure(now, fetch.id));
        }
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        match (result, &fetch.kind) {
            (Ok(()), FetchKind::Playlist(_)) => health.works(&self.pulled.pull.url),
            (Ok(()), FetchKind::Resource(_)) => {}
            (Err(error), FetchKind::Playlist(_)) => {
                *self.lock_url() = None;
                health.failed(&self.pulled.pull.url, &error);
            }
            (Err(error), FetchKind::Resource(resource)) => health.media_lost(&resource.uri, &error),
        }
    }

    async fn fetch_playlist(&self, fetch: &Fetch, directives: &DeliveryDirectives) -> Result<(), FetchError> {
        let url = self.media_url().await?;
        let query = directives.query();
        let join = if url.contains('?') { '&' } else { '?' };
        let asked = if query.is_empty() { url } else { format!("{url}{join}{query}") };
        let mut answer = self.pulled.client.get(&asked, None).await?;
        if directives.query().is_empty() {
            *self.lock_url() = Some(answer.url.clone());
        }
        self.pass_on(fetch, &mut answer).await?;
        answer.finish();
        Ok(())
    }

    async fn fetch_media(&self, fetch: &Fetch, resource: &Resource) -> Result<(), FetchError> {
        let base = self.media_url().await?;
        let url = join_url(&base, &resource.uri);
        let url = url.ok_or_else(|| FetchError::NoUrl(resource.uri.clone()))?;
        let mut answer = self.pulled.client.get(&url, resource.range).await?;
        answer.check_media()?;
        self.pass_on(fetch, &mut answer).await?;
        answer.finish();
        self.channel.refresh();
        Ok(())
    }

    /// Passes an answer to the importer as its bytes arrive.
    async fn pass_on(&self, fetch: &Fetch, answer: &mut client::Answer) -> Result<(), FetchError> {
        let (channel, shared) = (&self.channel, &self.shared);
        while let Some(bytes) = answer.bytes().await? {
            let taken = channel.import(|importer| importer.handle_bytes(shared.now(), fetch.id, &bytes));
            taken.map_err(FetchError::Import)?;
        }
        let taken = channel.import(|importer| importer.handle_end(shared.now(), fetch.id));
        taken.map_err(FetchError::Import)
    }

    /// URL of the media playlist: the last URL that worked, or else the URL that the entry playlist
    /// now contains.
    async fn media_url(&self) -> Result<String, FetchError> {
        if let Some(url) = self.lock_url().clone() {
            return Ok(url);
        }
        let url = match self.which {
            PlaylistRole::Itself => self.pulled.pull.url.clone(),
            which => self.pulled.entry().await?.url(which).ok_or(FetchError::RenditionGone)?,
        };
        *self.lock_url() = Some(url.clone());
        Ok(url)
    }

    fn lock_url(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.playlist_url.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
