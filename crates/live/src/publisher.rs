//! A publisher of test patterns: many channels of any bitrate, without an encoder.
//!
//! Each rendition is one long `PUT`. A publisher that loses its connection reconnects. Leaves out:
//! pictures ([`TestPattern`] has none). Read [`Publisher`] first.

use anabranch_http::origin::{Origin, OriginUrlError};
use anabranch_media::cmaf::TestPattern;
use anabranch_units::{BitRate, Duration};
use axum::http::{HeaderValue, Method, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::{Channel, Sender};
use hyper::Request;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::fmt;
use std::io;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause before a lost connection is opened again.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// Maximum number of fragments that wait for a slow connection.
const FRAGMENTS_MAX: usize = 4;
/// Number of bytes of an answer that a log line shows.
const SHOWN_MAX: usize = 200;

/// Configuration of one published rendition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedRendition {
    /// Name of the channel.
    pub channel: String,
    /// Name of the rendition.
    pub rendition: String,
    /// Bitrate of the rendition.
    pub bitrate: BitRate,
    /// Delay of the first fragment.
    pub delay: Duration,
}

/// Configuration of a publisher.
#[derive(Clone)]
pub struct PublisherConfig {
    /// URL of the source, `http://HOST:PORT`.
    pub source: String,
    /// Bearer token of the publisher.
    pub token: String,
    /// Renditions to publish.
    pub renditions: Vec<PublishedRendition>,
    /// Duration of a fragment.
    pub fragment: Duration,
    /// Interval between key frames.
    pub key: Duration,
}

/// Reason why a publisher cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublisherError {
    /// The source's URL is invalid.
    BadSource(OriginUrlError),
    /// The token cannot be sent in a header.
    BadToken,
}

impl fmt::Display for PublisherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSource(error) => write!(f, "source: {error}"),
            Self::BadToken => write!(f, "token: must be printable ASCII"),
        }
    }
}

impl std::error::Error for PublisherError {}

/// A publisher of test patterns.
pub struct Publisher {
    config: PublisherConfig,
    source: Origin,
    authorization: HeaderValue,
}

impl Publisher {
    /// Creates a publisher with this configuration.
    ///
    /// Errors: see [`PublisherError`].
    pub fn new(config: PublisherConfig) -> Result<Self, PublisherError> {
        let source = Origin::new(&config.source).map_err(PublisherError::BadSource)?;
        let authorization = HeaderValue::from_str(&format!("Bearer {}", config.token));
        let authorization = authorization.map_err(|_| PublisherError::BadToken)?;
        Ok(Self { config, source, authorization })
    }

    /// Publishes all renditions. Never returns; stops when dropped.
    pub async fn run(self) -> Infallible {
        let mut tasks = tokio::task::JoinSet::new();
        let began = Instant::now();
        for rendition in self.config.renditions {
            let (source, authorization) = (self.source.clone(), self.authorization.clone());
            let pattern = TestPattern::new(rendition.bitrate, self.config.fragment, self.config.key);
            tasks.spawn(async move {
                sleep_until(began + rendition.delay.to_std()).await;
                let path = format!("/{}/{}", rendition.channel, rendition.rendition);
                let mut said = None;
                loop {
                    let Err(error) = publish(&source, &path, &authorization, pattern.clone()).await;
                    let error = error.to_string();
                    if said.as_ref() != Some(&error) {
                        tracing::warn!("{path}: {error}: it is tried again each second");
                    }
                    said = Some(error);
                    sleep(PAUSE).await;
                }
            });
        }
        std::future::pending().await
    }
}

async fn publish(
    source: &Origin,
    path: &str,
    authorization: &HeaderValue,
    pattern: TestPattern,
) -> Result<Infallible, io::Error> {
    let tcp = TcpStream::connect(source.authority()).await?;
    tcp.set_nodelay(true)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(io::Error::other)?;
    let (fragments, body) = Channel::<Bytes, Infallible>::new(FRAGMENTS_MAX);
    let request = Request::builder()
        .method(Method::PUT)
        .uri(path)
        .header(header::HOST, source.authority())
        .header(header::AUTHORIZATION, authorization)
        .body(body)
        .map_err(io::Error::other)?;
    let answered = async {
        let mut response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let mut line = Vec::new();
        while let Some(Ok(frame)) = response.frame().await
            && line.len() < SHOWN_MAX
        {
            line.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
        }
        let line = anabranch_units::text::brief(&String::from_utf8_lossy(&line), SHOWN_MAX);
        Err(io::Error::other(format!("the source answers {status}: {}", line.trim_end())))
    };
    tokio::select! {
        answer = answered => answer,
        ended = connection => Err(ended.err().map_or_else(
            || io::Error::from(io::ErrorKind::UnexpectedEof), io::Error::other,
        )),
        () = send(fragments, pattern) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Sends fragments in real time until the connection ends.
async fn send(mut fragments: Sender<Bytes>, mut pattern: TestPattern) {
    if fragments.send_data(pattern.init().into()).await.is_err() {
        return;
    }
    let mut due = Instant::now();
    loop {
        due += pattern.fragment_time().to_std();
        sleep_until(due).await;
        if fragments.send_data(pattern.next_fragment().into()).await.is_err() {
            return;
        }
    }
}
