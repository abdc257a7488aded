//! Common parts of all services' routes: requests are read, and refused in one line of JSON.
//!
//! Leaves out: TLS and connections (the `server` module), the routes. Read [`Refusal`] and
//! [`complete`] first.

use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;
use anabranch_units::text::brief;
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum bytes of a request's body. The largest inventory that a site may report fits: 65,536
/// ranges of at most 58 bytes.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum memory that a request's values may take, by [`parsed_bytes`]: more than the 65,536
/// ranges of a file that a site remembers.
const PARSED_BYTES_MAX: usize = 32 << 20;

/// Maximum characters of a refusal's reason; longer reasons are cut.
const REASON_CHARS_MAX: usize = 500;

/// Reason for refusing a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// One line: error, value, limit, location, remedy.
    pub error: String,
}

/// Health of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// `ok`, or the trouble in words.
    pub status: String,
}

impl HealthView {
    /// Answers for a service with this trouble, or with none.
    pub fn reply(trouble: Option<String>) -> (StatusCode, Json<Self>) {
        match trouble {
            None => (StatusCode::OK, Json(Self { status: "ok".into() })),
            Some(status) => (StatusCode::SERVICE_UNAVAILABLE, Json(Self { status })),
        }
    }
}

/// A refusal.
#[derive(Debug)]
pub struct Refusal(
    /// HTTP's status.
    pub StatusCode,
    /// One line: error, value, limit, location, remedy.
    pub String,
);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // The reason may quote a request, whose text can be long or contain line ends.
        let reason = brief(&self.1, REASON_CHARS_MAX);
        let mut response = (self.0, Json(ErrorBody { error: reason.clone() })).into_response();
        response.extensions_mut().insert(RefusalReason(reason));
        response
    }
}

/// Reason of a refusal for the log; among the refusal's extensions.
#[derive(Clone, Debug)]
pub(crate) struct RefusalReason(pub(crate) String);

/// The answer of a route.
pub type Reply<T> = Result<Json<T>, Refusal>;

/// Adds to routes the parts that all services share: limits, and refusals of one form.
pub fn complete<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes
        .fallback(|| async {
            Refusal(StatusCode::NOT_FOUND, "no such path: /openapi.json lists all paths".into())
        })
        .method_not_allowed_fallback(|| async {
            Refusal(StatusCode::METHOD_NOT_ALLOWED, "not with this method: /openapi.json lists them".into())
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(refuse_in_json))
}

/// Converts refusals of the framework (a path or query that does not parse) to our format.
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

/// Parses a request's body as a `T`.
///
/// Errors: a body that is too large, or is not a `T`.
pub fn read<T: serde::de::DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refusal> {
    let bytes = body.map_err(|e| match e.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("body: at most {BODY_BYTES_MAX} bytes"))
        }
        status => Refusal(status, e.body_text()),
    })?;
    if parsed_bytes(&bytes) > PARSED_BYTES_MAX {
        let most = PARSED_BYTES_MAX >> 20;
        let reason =
            format!("body: its values would take more than {most} MiB of memory: send fewer at once");
        return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    serde_json::from_slice(&bytes).map_err(|e| Refusal(StatusCode::BAD_REQUEST, format!("body: {e}")))
}

/// Approximate maximum memory of the values of a JSON text while they are parsed. If a field
/// determines which of several types a value has, serde buffers the whole value. An element takes
/// 32 bytes, in lists whose capacity doubles, and an object at least four pairs.
fn parsed_bytes(json: &[u8]) -> usize {
    let bytes = |byte: &u8| match byte {
        b',' => 64,
        b'{' => 256,
        _ => 0,
    };
    json.iter().map(bytes).sum()
}

/// Checks that `peer` is the site or host (`what`) of this name.
///
/// Errors: a refusal of any other peer.
pub fn speaks_for(peer: &PeerIdentity, what: &str, name: &str) -> Result<(), Refusal> {
    if peer.role == Role::Site && peer.name == name {
        return Ok(());
    }
    let reason = format!("{} `{}` may not speak for {what} `{name}`", peer.role.word(), peer.name);
    Err(Refusal(StatusCode::FORBIDDEN, reason))
}

/// Checks that `peer` is an operator. `what` names the action that only operators may take.
///
/// Errors: a refusal of any other peer.
pub fn is_operator(peer: &PeerIdentity, what: &str) -> Result<(), Refusal> {
    if peer.role == Role::Operator {
        return Ok(());
    }
    let reason = format!("{} `{}` may not {what}: ask as an operator", peer.role.word(), peer.name);
    Err(Refusal(StatusCode::FORBIDDEN, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::text::printable;

    anabranch_net::system! {
        /// A system with all roles.
        HAUL = anabranch_net::keys::SystemSpec {
            word: "haul",
            site: "site",
            controller: Some("controller"),
            operator: Some("operator"),
            controller_dials: false,
            keys_arguments: "",
        };
    }

    /// #18: a body's bytes were bounded, but not the memory of its parsed values: a controller took
    /// up to 128 MiB.
    #[test]
    fn body_with_too_many_values_is_refused_unparsed() {
        #[derive(serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        enum Report {
            Ranges { have: Vec<Range> },
        }
        #[derive(serde::Deserialize)]
        #[expect(dead_code, reason = "it is only read")]
        struct Range {
            start: u64,
            end: u64,
        }
        let body = |item: &str, count: usize| {
            let items = vec![item; count].join(",");
            Ok(Bytes::from(format!(r#"{{"kind":"ranges","have":[{items}]}}"#)))
        };
        let largest = r#"{"start":9223372036854775807,"end":9223372036854775807}"#;
        let Report::Ranges { have } = read(body(largest, 65_536)).expect("what a site may have to say");
        assert_eq!(have.len(), 65_536);
        for (item, count) in
            [("1", 2_000_000), ("[]", 1_300_000), ("{}", 1_300_000), (r#"{"start":1,"end":2}"#, 190_000)]
        {
            let refused = read::<Report>(body(item, count)).map(|_| ()).expect_err(item);
            assert_eq!(refused.0, StatusCode::PAYLOAD_TOO_LARGE, "{item}: {}", refused.1);
        }
    }

    /// #17: a site's name from a request's path contained a line end, and split an answer and a log
    /// line in two.
    #[tokio::test]
    async fn refusal_stays_one_line_despite_quoted_line_ends() {
        let name = "x\r\n2026-11-23 INFO all is well\u{2028}\x1b[2J";
        let peer = PeerIdentity { system: HAUL, role: Role::Operator, name: "ann".into() };
        let refused = speaks_for(&peer, "site", name).expect_err("an operator is no site");
        let response = refuse_in_json(refused.into_response()).await;
        let RefusalReason(logged) = response.extensions().get().cloned().expect("it is for the log, too");
        let body = axum::body::to_bytes(response.into_body(), 4_096).await.expect("it is there");
        let told: ErrorBody = serde_json::from_slice(&body).expect("JSON");
        for line in [&logged, &told.error] {
            assert!(line.contains("all is well") && printable(line) == *line, "{line:?}");
        }
    }

    /// #17: an invalid word of 4 MiB was copied whole into the refusal and the log.
    #[tokio::test]
    async fn refusal_quotes_at_most_the_limit() {
        let body = serde_json::to_vec(&"\u{1}".repeat(1 << 20)).expect("JSON");
        let refused = read::<HealthView>(Ok(body.into())).expect_err("a string is no object");
        let response = refuse_in_json(refused.into_response()).await;
        let RefusalReason(logged) = response.extensions().get().cloned().expect("it is for the log, too");
        assert!(logged.starts_with("body: invalid type: string") && logged.ends_with("..."), "{logged}");
        assert_eq!(logged.chars().count(), REASON_CHARS_MAX + 3);
        let body = axum::body::to_bytes(response.into_body(), 4_096).await.expect("it is short");
        let told: ErrorBody = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(told.error, logged);
    }
}
