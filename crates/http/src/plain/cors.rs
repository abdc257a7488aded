//! Answers that pages of other origins may read, because players run in browsers (CORS).
//!
//! Pages of any origin may send requests without credentials; pages of listed origins may send
//! requests with credentials. Source: the Fetch standard, section 3.3, *CORS protocol*. Leaves out:
//! limits by route, because a request without credentials has no more rights than a request outside
//! a browser. Read [`Cors`] first, then [`CrossOrigin`].

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

/// Headers of answers that scripts may read, besides the headers that browsers always expose.
const EXPOSED: &str = "age, content-length, content-range, date, retry-after";
/// Methods that a preflight allows.
const METHODS: &str = "GET, HEAD, POST";
/// Seconds for which a browser caches a preflight's answer: a day, if the browser allows that long.
const MAX_AGE: &str = "86400";

/// Origins whose pages may send requests with credentials: cookies, or client certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    credentialed: Arc<BTreeSet<String>>,
}

/// Error: text that is not an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginError(String);

impl std::fmt::Display for OriginError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = anabranch_units::text::brief(&self.0, 64);
        write!(f, "origin `{text}`: write http://HOST or https://HOST, with :PORT if it is not the usual one")
    }
}
impl std::error::Error for OriginError {}

impl FromStr for Cors {
    type Err = OriginError;

    /// Parses origins, as `https://page.example,https://play.example:8443`.
    fn from_str(text: &str) -> Result<Self, OriginError> {
        let origin = |text: &str| {
            let text = text.trim().to_ascii_lowercase();
            let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            let is_host = host.is_some_and(|host| {
                let is_allowed = |c: char| c.is_ascii_alphanumeric() || ".-:[]_".contains(c);
                !host.is_empty() && host.chars().all(is_allowed)
            });
            if is_host { Ok(text) } else { Err(OriginError(text)) }
        };
        Ok(Self { credentialed: Arc::new(text.split(',').map(origin).collect::<Result<_, _>>()?) })
    }
}

/// The part of a request that decides which origin may read the answer.
#[derive(Clone, Debug)]
pub struct CrossOrigin {
    origin: Option<HeaderValue>,
    /// Headers that the page wants to send. `None` if the request is no preflight, or names no
    /// headers.
    headers: Option<HeaderValue>,
    is_preflight: bool,
}

impl CrossOrigin {
    /// Reads the relevant headers of a request.
    pub fn of(method: &Method, headers: &HeaderMap) -> Self {
        let origin = headers.get(header::ORIGIN).cloned();
        let names_method = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        let is_preflight = *method == Method::OPTIONS && origin.is_some() && names_method;
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        Self { origin, headers: asked.filter(|_| is_preflight).cloned(), is_preflight }
    }

    /// Returns true for a preflight, which asks only for permission; status 204 answers it.
    pub const fn is_preflight(&self) -> bool {
        self.is_preflight
    }
}

impl Cors {
    /// Adds the CORS headers to an answer.
    pub fn share(&self, asked: &CrossOrigin, headers: &mut HeaderMap) {
        let has_credentials = |origin: &HeaderValue| {
            origin.to_str().is_ok_and(|origin| self.credentialed.contains(&origin.to_ascii_lowercase()))
        };
        if !self.credentialed.is_empty() {
            headers.append(header::VARY, HeaderValue::from_static("origin"));
        }
        match asked.origin.clone().filter(has_credentials) {
            Some(origin) => {
                headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
                headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            }
            None => {
                headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            }
        }
        if asked.is_preflight {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
            // The headers are listed by name, because `*` does not cover `authorization`, and has
            // no effect with credentials.
            let named = asked.headers.clone().unwrap_or(HeaderValue::from_static("*"));
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, named);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
            headers.append(header::VARY, HeaderValue::from_static("access-control-request-headers"));
        } else {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }
}

/// Answers preflights of all routes, and adds CORS headers to all other answers, including refusals
/// of unknown routes. An answer without a `Cache-Control` header is marked `no-store`.
pub(super) async fn layer(State(cors): State<Cors>, request: Request, next: Next) -> Response {
    let asked = CrossOrigin::of(request.method(), request.headers());
    let mut response =
        if asked.is_preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    cors.share(&asked, headers);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(cors: &str, method: Method, asked: &[(&'static str, &'static str)]) -> HeaderMap {
        let cors: Cors = if cors.is_empty() { Cors::default() } else { cors.parse().expect("origins") };
        let header = |(name, text)| (header::HeaderName::from_static(name), HeaderValue::from_static(text));
        let asked = asked.iter().copied().map(header);
        let mut headers = HeaderMap::new();
        cors.share(&CrossOrigin::of(&method, &asked.collect()), &mut headers);
        headers
    }

    const PREFLIGHT: [(&str, &str); 3] = [
        ("origin", "https://page.example"),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "cmcd-session,authorization"),
    ];

    #[test]
    fn preflight_allows_the_requested_headers() {
        let headers = shared("", Method::OPTIONS, &PREFLIGHT);
        assert_eq!(headers["access-control-allow-origin"], "*");
        assert_eq!(headers["access-control-allow-headers"], "cmcd-session,authorization");
        assert!(headers.get("access-control-expose-headers").is_none());
        assert_eq!(shared("", Method::OPTIONS, &PREFLIGHT[..2])["access-control-allow-headers"], "*");
        // An OPTIONS request without an origin is no preflight.
        let bare = shared("", Method::OPTIONS, &[]);
        assert!(bare.get("access-control-allow-methods").is_none());
    }

    #[test]
    fn scripts_can_read_retry_after_and_date_headers() {
        let headers = shared("", Method::GET, &PREFLIGHT[..1]);
        assert_eq!(headers["access-control-allow-origin"], "*");
        assert_eq!(headers["access-control-expose-headers"], EXPOSED);
        assert!(EXPOSED.contains("retry-after") && EXPOSED.contains("date"));
        assert!(headers.get("vary").is_none(), "all origins get the same answer");
    }

    #[test]
    fn only_listed_origins_may_send_credentials() {
        let origins = "https://page.example, http://localhost:8080";
        let headers = shared(origins, Method::OPTIONS, &PREFLIGHT);
        assert_eq!(headers["access-control-allow-origin"], "https://page.example");
        assert_eq!(headers["access-control-allow-credentials"], "true");
        for other in ["https://page.example.org", "http://page.example", "null"] {
            let headers = shared(origins, Method::GET, &[("origin", other)]);
            assert_eq!(headers["access-control-allow-origin"], "*", "{other}");
            assert!(headers.get("access-control-allow-credentials").is_none(), "{other}");
            assert_eq!(headers["vary"], "origin", "a cache keeps answers apart");
        }
    }

    #[test]
    fn invalid_origins_are_refused() {
        for bad in ["*", "page.example", "https://page.example/", "https://", "https://a b", "https://a,,"] {
            assert!(bad.parse::<Cors>().is_err(), "{bad}");
        }
    }
}
