//! Pages for a browser on this machine, of what a service says.
//!
//! Services speak only to who has a certificate, which a browser seldom has; an operator's command serves a page on loopback
//! and asks in the operator's name. Loopback only, and only for requests that name it as the host, so that no other site's
//! script can read it through a name that it controls. Leaves out: the pages. Read [`serve`].

use anabranch_api::ClientError;
use anyhow::Context as _;
use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use std::net::SocketAddr;

/// Everything the page loads comes from here.
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'";

/// Serves a page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(routes: Router, listen: SocketAddr) -> anyhow::Result<()> {
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "--web {listen}: only a loopback address, as the page asks nobody who they are: reach it through ssh -L"
    );
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .with_context(|| format!("--web {listen}: cannot listen"))?;
    eprintln!("http://{} shows the transfers; Ctrl-C ends it", listener.local_addr()?);
    axum::serve(listener, guarded(routes)).await?;
    Ok(())
}

/// Routes that answer only who names loopback.
pub fn guarded(routes: Router) -> Router {
    routes.layer(from_fn(guard))
}

/// Text of this type.
pub fn typed(kind: &'static str, text: impl Into<String>) -> Response {
    ([(header::CONTENT_TYPE, kind)], text.into()).into_response()
}

/// Refuses who calls this machine by another's name.
async fn guard(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let ip = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    if name != "localhost" && !ip.is_ok_and(|ip| ip.is_loopback()) {
        return (StatusCode::FORBIDDEN, "ask for localhost or a loopback address\n").into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, header::HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

/// What a service did not answer, passed on with its line.
pub struct Unanswered(pub ClientError);

impl IntoResponse for Unanswered {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            ClientError::Refused { status, .. } => {
                StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_GATEWAY)
            }
            _ => StatusCode::BAD_GATEWAY,
        };
        (status, self.0.to_string()).into_response()
    }
}
