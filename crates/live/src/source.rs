//! A source of `live`. Publishers upload channels, or the source pulls channels from other origins.
//! Nodes and players fetch them as HLS.
//!
//! | request | meaning |
//! | --- | --- |
//! | `PUT /CHANNEL/RENDITION` | publish one long stream of fragmented MP4, which is cut into parts |
//! | `PUT /CHANNEL/RENDITION/FILE` | publish a file of an HLS muxer: `.mp4`, `.m4s`; playlists are ignored |
//! | `GET /CHANNEL/index.m3u8` | multivariant playlist |
//! | `GET /CHANNEL/RENDITION/index.m3u8` | media playlist, with delivery directives or without |
//! | `GET /CHANNEL/RENDITION/NAME` | initialisation section, segment or part |
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 4.4.6 and 6.2. Leaves out: cutting and answers
//! ([`anabranch_live_proto::origin`]); rendition reports in playlists; byte ranges. Read
//! [`Source`] and [`SourceConfig`] first.

mod channel;
mod metrics;
mod multivariant;
mod publish;
mod pull;
mod tokens;

pub use multivariant::SourceSteering;
pub use pull::{Pull, PullError};
pub use tokens::{PublishTokens, TokenFileError};

use crate::body::{self, RETRY_AFTER_S, UNSENT_BYTES_MAX};
use crate::control::NodeControl;
use crate::secure::SecureListener;
use anabranch_http::PeerAddress;
use anabranch_http::plain::{Clients, CrossOrigin, PlainLimits, PlainServer};
use anabranch_live_proto::origin::{
    Answer, Freshness, Head, ImportConfig, Importer, Name, PackageError, Packager, PackagerConfig,
    RenditionConfig, Status,
};
use anabranch_media::cmaf::{CutConfig, MediaTime, Timeline};
use anabranch_media::hls::{DateTime, DeliveryDirectives, MultivariantPlaylist};
use anabranch_net::public::ServerTrust;
use anabranch_net::refusals::Refusals;
use anabranch_units::{Duration, Instant};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use channel::{Channel, ChannelPath};
use hyper::body::Incoming;
use hyper::{Request, Response};
use metrics::{Cause, SourceMetrics};
use multivariant::ListedRendition;
use publish::Upload;
use pull::{PulledChannel, START_TIME};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokens::is_name;

/// Interval of the checks of deadlines of requests and publishers.
const TICK: std::time::Duration = std::time::Duration::from_millis(250);
/// Interval of the checks whether a pulled channel has started.
const START_TICK: std::time::Duration = std::time::Duration::from_millis(20);

/// Body of an answer.
type SourceBody = body::Body<channel::Request>;

/// Configuration of a source.
#[derive(Clone)]
pub struct SourceConfig {
    /// Address on which to listen for publishers, nodes and players. Port 0 selects a free port.
    pub address: SocketAddr,
    /// Tokens of publishers.
    pub tokens: PublishTokens,
    /// Settings of each rendition.
    pub rendition: RenditionConfig,
    /// Target duration of segments. Must not be shorter than the interval of key frames.
    pub segment_target: Duration,
    /// Target duration of parts.
    pub part_target: Duration,
    /// Whether published segments are numbered by the media time, so that two sources that receive
    /// one encoder's output yield equal names and bytes. The media time must never decrease.
    pub is_timeline_shared: bool,
    /// Maximum number of renditions of all channels.
    pub renditions_max: usize,
    /// Time without a byte after which a publisher is disconnected, and time without a publisher
    /// after which the stream ends for players.
    pub silence_max: Duration,
    /// Content steering in multivariant playlists. If `None`, players stay at the edge that served
    /// the playlist.
    pub steering: Option<SourceSteering>,
    /// TLS listener for the same requests. `None` for no TLS.
    pub secure: Option<SecureListener>,
    /// Limits of each listener.
    pub limits: PlainLimits,
    /// Trusted proxies, and web origins that may send credentials.
    pub clients: Clients,
    /// Control that announces the published streams to the next tier. `None` without a controller.
    pub control: Option<NodeControl>,
    /// Channels to pull from other origins.
    pub pulls: Vec<Pull>,
    /// Certificate authorities of pulled HTTPS origins. If `None`, only HTTP origins can be pulled.
    pub pull_trust: Option<ServerTrust>,
    /// Time without a request after which the pull of a rendition pauses until the next request. If
    /// `None`, renditions are always pulled.
    pub pull_idle: Option<Duration>,
}

impl SourceConfig {
    /// Creates a configuration with default limits: segments of 2 s, parts of 200 ms, 64
    /// renditions.
    pub fn new(address: SocketAddr, tokens: PublishTokens) -> Self {
        Self {
            address,
            tokens,
            rendition: RenditionConfig::default(),
            segment_target: Duration::from_secs(2),
            part_target: Duration::from_ms(200),
            is_timeline_shared: false,
            renditions_max: 64,
            silence_max: Duration::from_secs(10),
            steering: None,
            secure: None,
            limits: PlainLimits { unsent_bytes_max: UNSENT_BYTES_MAX, ..PlainLimits::default() },
            clients: Clients::default(),
            control: None,
            pulls: Vec::new(),
            pull_trust: None,
            pull_idle: None,
        }
    }

    fn packager(&self, first: u64, date: Option<DateTime>) -> PackagerConfig {
        let cut = CutConfig {
            segment_target: self.segment_target,
            part_target: self.part_target,
            fragments_per_part: 1,
            timeline: if self.is_timeline_shared {
                Timeline::Shared { epoch: MediaTime::default() }
            } else {
                Timeline::Own { first }
            },
        };
        // On a shared timeline the media time itself is the date, so that the dates of two sources
        // agree.
        let date = if self.is_timeline_shared { DateTime::from_unix_ms(0) } else { date };
        PackagerConfig { rendition: self.rendition.clone(), cut, date, predecessor: None }
    }
}

/// Reason why a source cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceError {
    /// A setting of renditions or of the cutter is out of range.
    BadSetting(PackageError),
    /// A channel cannot be pulled.
    BadPull(PullError),
    /// The limit of renditions is zero.
    NoRendition,
    /// The address cannot be bound.
    Bind {
        /// Address of the listener.
        address: SocketAddr,
        /// Error of the system.
        error: std::io::Error,
    },
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSetting(error) => error.fmt(f),
            Self::BadPull(error) => error.fmt(f),
            Self::NoRendition => write!(f, "0 renditions: must be at least 1"),
            Self::Bind { address, error } => write!(f, "listening at {address}: {error}"),
        }
    }
}

impl std::error::Error for SourceError {}

/// A bound source that does not serve yet.
///
/// Memory: [`RenditionConfig::window_bytes_max`] for each rendition, and one segment for each slow
/// client.
pub struct Source {
    server: PlainServer,
    secure: Option<PlainServer>,
    shared: Arc<Shared>,
}

struct Shared {
    config: SourceConfig,
    channels: Mutex<BTreeMap<ChannelPath, Arc<Channel>>>,
    pulled: Vec<Arc<PulledChannel>>,
    epoch: tokio::time::Instant,
    /// Wall-clock time of the epoch, in milliseconds since 1970.
    epoch_unix_ms: u64,
    /// Log lines about wrong tokens. They cannot suppress lines about publishers with right ones.
    wrong_tokens: Refusals,
    /// Log lines about failed uploads.
    refusals: Refusals,
    metrics: SourceMetrics,
}

impl Source {
    /// Binds the listeners.
    ///
    /// Errors: see [`SourceError`].
    pub fn bind(config: SourceConfig) -> Result<Self, SourceError> {
        if config.renditions_max == 0 {
            return Err(SourceError::NoRendition);
        }
        Packager::new(config.packager(0, None)).map_err(SourceError::BadSetting)?;
        let pulled = PulledChannel::all(&config.pulls, config.pull_trust.as_ref());
        let pulled = pulled.map_err(SourceError::BadPull)?;
        let address = config.address;
        let proxies = &config.clients.proxies;
        let server = PlainServer::bind(address, config.limits)
            .map_err(|error| SourceError::Bind { address, error })?
            .with_proxies(proxies.clone());
        let secure = config.secure.clone().map(|secure| {
            let address = secure.address;
            secure.bind(config.limits, proxies.clone()).map_err(|error| SourceError::Bind { address, error })
        });
        let secure = secure.transpose()?;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let shared = Shared {
            config,
            channels: Mutex::default(),
            pulled,
            epoch: tokio::time::Instant::now(),
            epoch_unix_ms: u64::try_from(since_1970.as_millis()).unwrap_or(0),
            wrong_tokens: Refusals::default(),
            refusals: Refusals::default(),
            metrics: SourceMetrics::default(),
        };
        Ok(Self { server, secure, shared: Arc::new(shared) })
    }

    /// Address of the listener.
    ///
    /// Errors: an error of the system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Address of the TLS listener. `None` if there is none.
    ///
    /// Errors: an error of the system.
    pub fn secure_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.secure.as_ref().map(PlainServer::local_addr).transpose()
    }

    /// Returns a function that formats the metrics for Prometheus. It can be called while the
    /// source runs.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || {
            let running = shared.channels().values().filter(|channel| !channel.is_ended()).count();
            shared.metrics.text(running)
        }
    }

    /// Serves requests. Never returns; stops when dropped.
    pub async fn run(self) -> Infallible {
        let Self { server, secure, shared } = self;
        let ticking = Arc::clone(&shared);
        let control = shared.config.control.clone();
        let (children_control, limits) = (control.clone(), shared.config.limits);
        let control = async {
            match control {
                Some(control) => control.run().await,
                None => std::future::pending().await,
            }
        };
        let mut pulls = tokio::task::JoinSet::new();
        for pulled in &shared.pulled {
            pulls.spawn(Arc::clone(pulled).run(Arc::clone(&shared)));
        }
        let answer = move |PeerAddress(from), request| {
            let shared = Arc::clone(&shared);
            async move { shared.answer(from, request).await }
        };
        let (for_secure, for_children) = (answer.clone(), answer.clone());
        let serves_children = async {
            match children_control {
                Some(control) => control.serve_objects(for_children, limits).await,
                None => std::future::pending().await,
            }
        };
        let serves_securely = async {
            match secure {
                Some(server) => server.run_answers(for_secure).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            never = server.run_answers(answer) => never,
            never = serves_securely => never,
            never = serves_children => never,
            () = ticking.run_timer() => unreachable!("the timer never ends"),
            () = control => unreachable!("the control never ends"),
        }
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    async fn run_timer(&self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let channels: Vec<_> = self.channels().values().map(Arc::clone).collect();
            for channel in channels {
                if channel.handle_timeout(self.now(), self.config.silence_max) {
                    tracing::info!("{}: the stream has ended: no publisher", channel.path);
                }
            }
            self.import();
        }
    }

    /// Sets the control's imports to the published streams.
    fn import(&self) {
        let Some(control) = &self.config.control else { return };
        let published: Vec<_> = self.channels().values().map(Arc::clone).collect();
        let published = published.iter().filter(|channel| !channel.is_ended());
        let object = |channel: &Arc<Channel>| {
            let ChannelPath { channel, rendition } = &channel.path;
            control.layout().object(&format!("/{channel}/{rendition}/"))
        };
        control.set_imports(&published.filter_map(object).collect());
    }

    fn channels(&self) -> std::sync::MutexGuard<'_, BTreeMap<ChannelPath, Arc<Channel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, from: IpAddr, request: Request<Incoming>) -> Response<SourceBody> {
        let (head, body) = request.into_parts();
        let method = head.method.clone();
        let asked = CrossOrigin::of(&method, &head.headers);
        let mut response = match method {
            Method::GET | Method::HEAD => self.fetch(&head).await,
            Method::PUT | Method::POST => self.publish(from, &head, body).await,
            // HLS muxers delete old segments. The window drops them itself, so these requests are
            // ignored.
            Method::DELETE => match self.check_publisher(from, &head) {
                Ok(_) => text(StatusCode::NO_CONTENT, ""),
                Err(refusal) => *refusal,
            },
            Method::OPTIONS => text(StatusCode::NO_CONTENT, ""),
            _ => text(StatusCode::METHOD_NOT_ALLOWED, ""),
        };
        if method == Method::HEAD {
            let length = hyper::body::Body::size_hint(response.body()).exact();
            *response.body_mut() = SourceBody::Text(None);
            if let Some(length) = length {
                response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            }
        }
        self.config.clients.cors.share(&asked, response.headers_mut());
        response
    }

    async fn fetch(&self, head: &Parts) -> Response<SourceBody> {
        let words: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        match words[..] {
            ["health"] => text(StatusCode::OK, "ok\n"),
            [channel, "index.m3u8"] => match self.pulled.iter().find(|pulled| pulled.name() == channel) {
                Some(pulled) => self.pulled_multivariant(pulled).await,
                None => self.multivariant(channel),
            },
            [channel, rendition, name] => {
                let path = ChannelPath { channel: channel.to_owned(), rendition: rendition.to_owned() };
                let found = self.find(&path).await;
                let (Some(channel), Some(name)) = (found, Name::read(name)) else { return not_found() };
                let query = head.uri.query().unwrap_or("");
                let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                match DeliveryDirectives::read(pairs) {
                    Ok(directives) if channel.is_pulled && name == Name::Playlist => {
                        self.pulled_playlist(&channel, directives).await
                    }
                    Ok(directives) => resource(&channel, self.now(), name, directives).await,
                    Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
                }
            }
            _ => not_found(),
        }
    }

    /// The rendition at a path. If its origin has not answered yet, waits for the origin.
    async fn find(&self, path: &ChannelPath) -> Option<Arc<Channel>> {
        let known = || self.channels().get(path).map(Arc::clone);
        let pulled = self.pulled.iter().find(|pulled| pulled.name() == path.channel);
        let (None, Some(pulled)) = (known(), pulled) else { return known() };
        pulled.asked.notify_one();
        let has_begun = || known().is_some() || self.channels().keys().any(|of| of.channel == path.channel);
        begun(has_begun).await;
        known()
    }

    /// Multivariant playlist of a pulled channel: the origin's playlist with this source's names.
    async fn pulled_multivariant(&self, pulled: &PulledChannel) -> Response<SourceBody> {
        pulled.asked.notify_one();
        let main = ChannelPath { channel: pulled.name().to_owned(), rendition: "main".to_owned() };
        let main = || self.channels().get(&main).map(Arc::clone);
        begun(|| {
            // If the origin has no variants, the bitrate must be measured by pulling.
            main().inspect(|main| main.ask(self.now())).is_some_and(|main| main.peak_rate().is_some())
                || pulled.variants().is_some()
        })
        .await;
        match pulled.variants() {
            Some(playlist) => multivariant_answer(&playlist),
            None if main().is_some() => self.multivariant(pulled.name()),
            None => unavailable("the origin has not answered yet\n"),
        }
    }

    /// Playlist of a pulled rendition. The first request after a pause waits for the origin.
    async fn pulled_playlist(
        &self,
        channel: &Arc<Channel>,
        directives: DeliveryDirectives,
    ) -> Response<SourceBody> {
        channel.ask(self.now());
        let until = tokio::time::Instant::now() + START_TIME;
        begun(|| channel.is_fresh()).await;
        loop {
            let response = resource(channel, self.now(), Name::Playlist, directives).await;
            let is_unavailable = response.status().as_u16() == Status::Unavailable.code();
            if !is_unavailable || tokio::time::Instant::now() >= until {
                return response;
            }
            tokio::time::sleep(START_TICK).await;
        }
    }

    /// Multivariant playlist of a channel's renditions, in order of decreasing bitrate.
    fn multivariant(&self, name: &str) -> Response<SourceBody> {
        let of_channel: Vec<Arc<Channel>> =
            self.channels().values().filter(|channel| channel.path.channel == name).map(Arc::clone).collect();
        if of_channel.is_empty() {
            return not_found();
        }
        let listed = |channel: &Arc<Channel>| {
            let (rendition, codecs) = (channel.path.rendition.clone(), channel.codecs());
            Some(ListedRendition { rendition, peak_rate: channel.peak_rate()?, codecs })
        };
        let running = of_channel.iter().filter(|channel| !channel.is_ended());
        let listed: Vec<ListedRendition> = running.filter_map(listed).collect();
        if listed.is_empty() {
            return unavailable("no segment yet\n");
        }
        multivariant_answer(&multivariant::playlist(name, listed, self.config.steering.as_ref()))
    }

    /// Checks the path and token of an upload. Returns the rendition and the kind of upload.
    fn check_publisher(
        &self,
        from: IpAddr,
        head: &Parts,
    ) -> Result<(ChannelPath, Upload), Box<Response<SourceBody>>> {
        let words: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        let (channel, rendition, upload) = match words[..] {
            [channel, rendition] | [channel, rendition, ""] => (channel, rendition, Upload::Stream),
            [channel, rendition, file] if file.ends_with(".m3u8") => (channel, rendition, Upload::Ignored),
            [channel, rendition, _] => (channel, rendition, Upload::File),
            _ => ("", "", Upload::Stream),
        };
        if !is_name(channel) || !is_name(rendition) || rendition.ends_with(".m3u8") {
            let line = "path: publish to /CHANNEL/RENDITION, names of letters, digits, `-`, `.` and `_`\n";
            return Err(Box::new(text(StatusCode::BAD_REQUEST, line)));
        }
        if !self.config.tokens.allow(channel, &head.headers) {
            // Clients with Basic credentials first send a request without them.
            if head.headers.contains_key(header::AUTHORIZATION) {
                self.metrics.note_failure(Cause::Token);
                self.wrong_tokens.note(None, &format!("{channel}: publisher {from}: wrong token"));
            }
            let line =
                format!("channel {channel}: wrong or missing token: send `Authorization: Bearer TOKEN`\n");
            let mut response = text(StatusCode::UNAUTHORIZED, line);
            let challenge = HeaderValue::from_static("Basic realm=\"publish\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            return Err(Box::new(response));
        }
        let path = ChannelPath { channel: channel.to_owned(), rendition: rendition.to_owned() };
        Ok((path, upload))
    }

    async fn publish(&self, from: IpAddr, head: &Parts, body: Incoming) -> Response<SourceBody> {
        let (path, upload) = match self.check_publisher(from, head) {
            Ok(checked) => checked,
            Err(refusal) => return *refusal,
        };
        let channel = match self.open(&path) {
            Ok(channel) => channel,
            Err(line) => {
                self.refusals.note(None, &format!("{path}: publisher {from}: {line}"));
                self.metrics.note_failure(Cause::Full);
                return unavailable(format!("{line}\n"));
            }
        };
        let silence = std::time::Duration::from_nanos(self.config.silence_max.as_ns());
        let clock = || self.now();
        let logs = (&self.metrics, &self.refusals);
        let uploaded = publish::upload(&channel, logs, from, (upload, body), silence, clock);
        let (status, line) = uploaded.await;
        text(status, if line.is_empty() { line } else { format!("{line}\n") })
    }

    /// The rendition at a path. Creates it if the limit permits. A stream that has ended continues
    /// with the next segment number.
    fn open(&self, path: &ChannelPath) -> Result<Arc<Channel>, String> {
        if self.pulled.iter().any(|pulled| pulled.name() == path.channel) {
            return Err(format!("channel {} is pulled from an origin: publish another one", path.channel));
        }
        let mut channels = self.channels();
        let before = channels.get(path);
        if let Some(running) = before.filter(|channel| !channel.is_ended()) {
            return Ok(Arc::clone(running));
        }
        let is_numbered = !self.config.is_timeline_shared;
        let predecessor = before.filter(|_| is_numbered).and_then(|channel| channel.predecessor());
        let renditions_max = self.config.renditions_max;
        if before.is_none() && channels.len() >= renditions_max {
            let ended = channels
                .iter()
                .find(|(_, channel)| !channel.is_pulled && channel.is_ended())
                .map(|(path, _)| path.clone());
            let Some(ended) = ended else {
                return Err(format!("{renditions_max} renditions are published: at most {renditions_max}"));
            };
            channels.remove(&ended);
        }
        self.check_declared(path)?;
        let now = self.now();
        let unix_ms = self.epoch_unix_ms + now.as_ns() / 1_000_000;
        // Time advances as fast as segment numbers, so numbers do not decrease when the source
        // restarts.
        let first = unix_ms / (self.config.segment_target.as_ns() / 1_000_000).max(1);
        let config = self.config.packager(first, DateTime::from_unix_ms(self.epoch_unix_ms));
        let config = PackagerConfig { predecessor, ..config };
        let channel = Channel::new(path.clone(), now, config).map_err(|error| error.to_string())?;
        channels.insert(path.clone(), Arc::clone(&channel));
        Ok(channel)
    }

    /// Creates a pulled rendition.
    ///
    /// Errors: a message of one line.
    fn open_pulled(&self, path: &ChannelPath, config: ImportConfig) -> Result<Arc<Channel>, String> {
        self.check_declared(path)?;
        let mut channels = self.channels();
        let renditions_max = self.config.renditions_max;
        if channels.len() >= renditions_max {
            return Err(format!("{renditions_max} renditions are there: at most {renditions_max}"));
        }
        let importer = Importer::new(self.now(), config).map_err(|error| error.to_string())?;
        let channel = Channel::pulled(path.clone(), self.now(), importer);
        channels.insert(path.clone(), Arc::clone(&channel));
        Ok(channel)
    }

    /// Refuses a rendition that is not part of the controller's network.
    fn check_declared(&self, path: &ChannelPath) -> Result<(), String> {
        match &self.config.control {
            Some(control)
                if control.layout().object(&format!("/{}/{}/", path.channel, path.rendition)).is_none() =>
            {
                Err(format!("{path}: no such rendition in the controller's network: add it there"))
            }
            _ => Ok(()),
        }
    }
}

/// Waits until `has_begun` returns true, for at most [`START_TIME`].
async fn begun(has_begun: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + START_TIME;
    while !has_begun() && tokio::time::Instant::now() < until {
        tokio::time::sleep(START_TICK).await;
    }
}

fn multivariant_answer(playlist: &MultivariantPlaylist) -> Response<SourceBody> {
    let mut response = text(StatusCode::OK, playlist.write());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/vnd.apple.mpegurl"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=1"));
    response
}

/// Answers a request as soon as the headers of the answer are available.
async fn resource(
    channel: &Arc<Channel>,
    now: Instant,
    name: Name,
    directives: DeliveryDirectives,
) -> Response<SourceBody> {
    let mut request = channel.request(now, name, directives);
    match request.answers.recv().await {
        Some(Answer::Head(head)) => {
            let left = head.length.map(anabranch_units::ByteCount::as_u64);
            let mut response = Response::new(SourceBody::Resource { pieces: request, left });
            *response.status_mut() =
                StatusCode::from_u16(head.status.code()).expect("three digits are a status");
            pass_on(response.headers_mut(), &head);
            response
        }
        _ => unavailable("the stream was cut short\n"),
    }
}

fn pass_on(headers: &mut HeaderMap, head: &Head) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(head.content_type));
    let cache = match head.freshness {
        Freshness::NoStore => HeaderValue::from_static("no-store"),
        Freshness::MaxAge(time) => {
            HeaderValue::from_str(&format!("max-age={}", whole_seconds(time))).expect("it is made of digits")
        }
    };
    headers.insert(header::CACHE_CONTROL, cache);
    headers.insert(header::AGE, HeaderValue::from(whole_seconds(head.age)));
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_ns() / 1_000_000_000
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<SourceBody> {
    let mut response = body::text(status, text);
    if !status.is_success() {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

fn not_found() -> Response<SourceBody> {
    text(StatusCode::NOT_FOUND, "no such channel or resource\n")
}

fn unavailable(line: impl Into<Bytes>) -> Response<SourceBody> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, line);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    response
}
