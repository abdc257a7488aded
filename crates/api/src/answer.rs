//! What the routes of all services have in common: how requests are read, and refused in one line of JSON.
//!
//! Leaves out: TLS and connections (the `server` module), the routes. Read [`Refusal`] and [`complete`] first.

use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Bytes of a request: an inventory of the most ranges that a site may report (65 536, of at most 58 bytes) fits.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// One line: what, value, limit, place, what to do.
    pub error: String,
}

/// How a service is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// `ok`, or what is wrong.
    pub status: String,
}

impl HealthView {
    pub(crate) fn reply(trouble: Option<String>) -> (StatusCode, Json<Self>) {
        match trouble {
            None => (StatusCode::OK, Json(Self { status: "ok".into() })),
            Some(status) => (StatusCode::SERVICE_UNAVAILABLE, Json(Self { status })),
        }
    }
}

/// A refusal.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

/// What a route answers.
pub(crate) type Reply<T> = Result<Json<T>, Refusal>;

/// Routes with what all services have: limits, and refusals of one shape.
pub(crate) fn complete<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes
        .fallback(|| async {
            Refusal(StatusCode::NOT_FOUND, "no such address: /openapi.json lists them".into())
        })
        .method_not_allowed_fallback(|| async {
            Refusal(StatusCode::METHOD_NOT_ALLOWED, "not with this method: /openapi.json lists them".into())
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(refuse_in_json))
}

/// Gives refusals of the framework itself (a path or query that does not parse) the shape of ours.
async fn refuse_in_json(response: Response) -> Response {
    let status = response.status();
    let json = response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t == "application/json");
    if json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = axum::body::to_bytes(response.into_body(), 4_096).await.unwrap_or_default();
    let line = String::from_utf8_lossy(&text).lines().next().unwrap_or("").to_owned();
    let error = if line.is_empty() { status.to_string() } else { line };
    Refusal(status, error).into_response()
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Refusal> {
    let bytes = body.map_err(|e| match e.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("body: at most {BODY_BYTES_MAX} bytes"))
        }
        status => Refusal(status, e.body_text()),
    })?;
    serde_json::from_slice(&bytes).map_err(|e| Refusal(StatusCode::BAD_REQUEST, format!("body: {e}")))
}

/// Refuses who may not speak for this site, or host.
pub(crate) fn speaks_for(peer: &PeerIdentity, what: &str, name: &str) -> Result<(), Refusal> {
    if peer.role == Role::Site && peer.name == name {
        return Ok(());
    }
    let reason = format!("{} `{}` may not speak for {what} `{name}`", peer.role.word(), peer.name);
    Err(Refusal(StatusCode::FORBIDDEN, reason))
}
