//! A publisher's upload: one long stream, or one file of an HLS muxer.
//!
//! Read [`upload`].

use super::channel::{Channel, PublisherTurn};
use super::metrics::{Cause, SourceMetrics};
use anabranch_http::metrics::Counter;
use anabranch_live_proto::origin::PackageError;
use anabranch_net::refusals::Refusals;
use anabranch_units::Instant;
use axum::body::HttpBody as _;
use axum::http::StatusCode;
use hyper::body::{Bytes, Incoming};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of bytes of an uploaded playlist. Uploaded playlists are ignored.
const IGNORED_BYTES_MAX: usize = 1 << 20;

/// Kind of an upload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// `PUT /CHANNEL/RENDITION`: a stream that lasts as long as the broadcast.
    Stream,
    /// `PUT /CHANNEL/RENDITION/FILE`: an initialisation section or a segment.
    File,
    /// A playlist, which is ignored because the source writes its own playlists.
    Ignored,
}

/// Dropping the guard ends a publisher's turn, and logs the end unless it is logged elsewhere.
struct TurnGuard<'a> {
    channel: &'a Channel,
    from: IpAddr,
    turn: PublisherTurn,
    is_logged: bool,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.channel.end_turn(self.turn.number);
        if !self.is_logged {
            // Some encoders close the connection before they read the answer.
            tracing::info!("{}: publisher {} has closed its connection", self.channel.path, self.from);
        }
    }
}

/// Reason why an upload ends early.
enum UploadError {
    Refused(PackageError),
    Silent,
    Lost(hyper::Error),
    Replaced,
}

/// Reads an upload to its end. Returns the status and body of the answer.
pub(super) async fn upload(
    channel: &Arc<Channel>,
    (metrics, refusals): (&SourceMetrics, &Refusals),
    from: IpAddr,
    (upload, mut body): (Upload, Incoming),
    silence_max: Duration,
    clock: impl Fn() -> Instant,
) -> (StatusCode, String) {
    let _queued = match upload {
        Upload::Ignored => return ignore(body, silence_max).await,
        Upload::Stream => None,
        // Muxers start to upload a file before the previous file is acknowledged.
        Upload::File => match timeout(silence_max, channel.files.lock()).await {
            Ok(turn) => Some(turn),
            Err(_) => {
                metrics.note_failure(Cause::Full);
                return (StatusCode::SERVICE_UNAVAILABLE, "files: too many at once".to_owned());
            }
        },
    };
    let turn = channel.begin_turn();
    // A publisher may connect again at once, and each stream has two lines.
    let is_told = upload == Upload::Stream && channel.logs_publisher(clock());
    let mut guard = TurnGuard { channel, from, turn, is_logged: !is_told };
    if is_told {
        tracing::info!("{}: publisher {from} begins", channel.path);
    }
    let begun_at = std::time::Instant::now();
    let result = read(channel, &guard.turn, (&mut body, &metrics.published_bytes), silence_max, clock).await;
    let path = &channel.path;
    let (status, line) = match result {
        Ok(bytes) => {
            metrics.upload_seconds.observe(begun_at.elapsed().as_secs_f64());
            if is_told {
                tracing::info!("{path}: publisher {from} has ended its stream of {bytes} bytes");
            }
            (StatusCode::CREATED, String::new())
        }
        Err(error) => {
            let (cause, status, line) = match error {
                UploadError::Refused(error) => (Cause::Refused, StatusCode::BAD_REQUEST, error.to_string()),
                UploadError::Silent => {
                    let line = format!("no byte for {} s", silence_max.as_secs());
                    (Cause::Silent, StatusCode::REQUEST_TIMEOUT, line)
                }
                UploadError::Lost(error) => {
                    (Cause::Lost, StatusCode::BAD_REQUEST, format!("connection lost: {error}"))
                }
                UploadError::Replaced => {
                    let line = "another publisher took its place".to_owned();
                    (Cause::Replaced, StatusCode::CONFLICT, line)
                }
            };
            metrics.note_failure(cause);
            refusals.note(None, &format!("{path}: publisher {from}: {line}"));
            (status, line)
        }
    };
    guard.is_logged = true;
    (status, line)
}

async fn read(
    channel: &Channel,
    turn: &PublisherTurn,
    (body, published_bytes): (&mut Incoming, &Counter),
    silence_max: Duration,
    clock: impl Fn() -> Instant,
) -> Result<u64, UploadError> {
    let mut total = 0;
    loop {
        let bytes = tokio::select! {
            bytes = timeout(silence_max, next(body)) => bytes.map_err(|_| UploadError::Silent)?,
            () = turn.replaced.notified() => return Err(UploadError::Replaced),
        };
        let Some(bytes) = bytes else { return Ok(total) };
        let bytes = bytes.map_err(UploadError::Lost)?;
        total += bytes.len() as u64;
        published_bytes.inc_by(bytes.len() as u64);
        channel.publish(clock(), turn.number, &bytes).map_err(UploadError::Refused)?;
    }
}

async fn ignore(mut body: Incoming, time: Duration) -> (StatusCode, String) {
    let mut left = IGNORED_BYTES_MAX;
    let reads = async {
        while let Some(Ok(bytes)) = next(&mut body).await {
            left = left.checked_sub(bytes.len())?;
        }
        Some(())
    };
    match timeout(time, reads).await {
        Ok(Some(())) => (StatusCode::CREATED, String::new()),
        Ok(None) => (StatusCode::PAYLOAD_TOO_LARGE, format!("playlist: at most {IGNORED_BYTES_MAX} bytes")),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, format!("playlist: not here within {} s", time.as_secs())),
    }
}

/// The next bytes of a body. `None` at its end.
async fn next(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(bytes)) => return Some(Ok(bytes)),
            // Trailers are ignored.
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}
