//! `anabranch broker origin`: serves segments of any length for `broker play`.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::body::{Frame, SizeHint};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};

/// Address of the server.
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on. By default only this machine can connect.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7198", value_parser = crate::network::listen_address_or::<7198>)]
    listen: SocketAddr,
}

/// Maximum bytes of a segment.
const BYTES_MAX: u64 = 1 << 40;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A body of this many zeros.
struct Zeros(u64);

impl hyper::body::Body for Zeros {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let part = self.0.min(ZEROS.len() as u64);
        self.0 -= part;
        Poll::Ready((part > 0).then(|| Ok(Frame::data(Bytes::from_static(&ZEROS[..part as usize])))))
    }
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[derive(serde::Deserialize)]
struct SegmentQuery {
    bytes: u64,
}

async fn segment(Query(SegmentQuery { bytes }): Query<SegmentQuery>) -> Response {
    if bytes > BYTES_MAX {
        return (StatusCode::BAD_REQUEST, format!("bytes={bytes}: at most {BYTES_MAX}\n")).into_response();
    }
    let mut response = Body::new(Zeros(bytes)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("video/mp4"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    crate::process::runtime()?.block_on(async {
        let listener = anabranch_net::socket::listen(args.listen)?;
        if !quiet {
            errln!("origin serves http://{}/segment?bytes=N", listener.local_addr()?);
        }
        let router = Router::new().route("/segment", get(segment));
        tokio::select! {
            served = axum::serve(listener, router).into_future() => served?,
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
