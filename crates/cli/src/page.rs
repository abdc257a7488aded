//! Pages about a service, for a browser on this machine.
//!
//! Services accept only peers with a certificate, which a browser rarely has. So an operator's
//! command serves a page on loopback, and sends requests to the service on the operator's behalf.
//! Three measures keep other users and web sites from using the operator's rights. The page is
//! served on loopback only. Requests must name loopback as the host, so that a web site's script
//! cannot read the page through a name that the site controls. The page is below an unguessable
//! path, which the command prints, so that other users of this machine cannot read it. Leaves out:
//! the pages' contents. Read [`serve`].

use anabranch_http::{ClientError, secret};
use anabranch_units::text::printable;
use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time after which the page reports that the service does not answer. The page sends a request
/// every second.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Headers of every answer. The page may load only from this listener, and no other page may embed
/// it.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Parts of a page besides the common ones.
pub struct Page {
    /// HTML document.
    pub html: &'static str,
    /// Script of the page.
    pub script: &'static str,
}

impl Page {
    /// Routes of the page's files, below the unguessable path. Requests of the page's script have
    /// routes `/{token}/NAME`.
    pub fn routes<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let Self { html, script } = self;
        let javascript = |text: &'static str| get(move || async move { typed("text/javascript", text) });
        Router::new()
            .route("/{token}/", get(move || async move { Html(html) }))
            .route("/{token}/page.css", get(|| async { typed("text/css", include_str!("page/page.css")) }))
            .route("/{token}/common.js", javascript(include_str!("page/common.js")))
            .route("/{token}/page.js", javascript(script))
    }
}

/// Serves a page until the future is dropped. `trouble` is the error of the service's last request,
/// if any.
///
/// Errors: an address that is not loopback or cannot be bound.
pub async fn serve(routes: Router, listen: SocketAddr, trouble: Option<ClientError>) -> anyhow::Result<()> {
    ensure_usage!(
        listen.ip().is_loopback(),
        "--web {listen}: only a loopback address, as the page asks for no certificate: reach it through ssh -L"
    );
    let listener = anabranch_net::socket::listen(listen).context("--web")?;
    if let Some(trouble) = trouble {
        errln!("{trouble}; the page goes on asking");
    }
    let token = format!("{:016x}{:016x}", anabranch_net::random()?, anabranch_net::random()?);
    errln!("http://{}/{token}/ shows what is under way; Ctrl-C ends it", listener.local_addr()?);
    axum::serve(listener, guarded(routes, &token)).await?;
    Ok(())
}

/// Adds a guard: requests must name loopback and contain the `token`.
pub fn guarded(routes: Router, token: &str) -> Router {
    routes.layer(from_fn_with_state(Arc::<str>::from(token), guard))
}

/// Builds an answer of this media type.
pub fn typed(kind: &'static str, text: impl Into<String>) -> Response {
    ([(header::CONTENT_TYPE, kind)], text.into()).into_response()
}

/// Builds a JSON answer for a page's script. Untrusted peers choose some names in it, so characters
/// that could falsify the display are replaced, as on a terminal.
pub fn json(value: &impl serde::Serialize) -> Response {
    let text = serde_json::to_string(value).expect("views are made of strings and numbers");
    typed("application/json", printable(&text))
}

/// Refuses requests with another host name, or without the token.
async fn guard(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let ip = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    let first = request.uri().path().split('/').nth(1).unwrap_or_default();
    let mut response = if name != "localhost" && !ip.is_ok_and(|ip| ip.is_loopback()) {
        (StatusCode::FORBIDDEN, "ask for localhost or a loopback address\n").into_response()
    } else if !secret::is_equal(first.as_bytes(), token.as_bytes()) {
        (StatusCode::FORBIDDEN, "open the whole address that the command printed\n").into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Error of a request to the service, which the page shows in one line.
pub struct UpstreamError(pub ClientError);

impl IntoResponse for UpstreamError {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// #48: a name of a viewer's place could reverse the direction of the text beside it.
    #[tokio::test]
    async fn page_data_replaces_characters_that_reverse_text() {
        let response = json(&["a\u{202e}b", "line\nend"]);
        let body = axum::body::to_bytes(response.into_body(), 100).await.expect("it is short");
        assert_eq!(body, "[\"a\u{fffd}b\",\"line\\nend\"]");
    }
}
