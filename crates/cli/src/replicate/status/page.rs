//! `anabranch replicate status --web`: the controller's transfers as a page, for a browser on this machine.
//!
//! The controller speaks only to who has a certificate, which a browser seldom has; this serves the page on loopback and
//! asks the controller in the operator's name. It only reads. Loopback only, and only for requests that name it as the
//! host, so that no other site's script can read it through a name that it controls.
//! Leaves out: changing anything. Read [`serve`] first.

use super::super::send::topology_of;
use anabranch_api::{Client, ClientError};
use anabranch_replicate::control::TransferId;
use anabranch_replicate::draw::{self, Theme};
use anyhow::Context as _;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::net::SocketAddr;

/// Everything the page loads comes from here.
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'";

/// Serves the page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(client: Client, listen: SocketAddr) -> anyhow::Result<()> {
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "--web {listen}: only a loopback address, as the page asks nobody who they are: reach it through ssh -L"
    );
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .with_context(|| format!("--web {listen}: cannot listen"))?;
    eprintln!("http://{} shows the transfers; Ctrl-C ends it", listener.local_addr()?);
    axum::serve(listener, router(client)).await?;
    Ok(())
}

fn router(client: Client) -> Router {
    Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/page.js", get(|| async { typed("text/javascript", include_str!("page.js")) }))
        .route("/page.css", get(|| async { typed("text/css", include_str!("page.css")) }))
        .route("/topology", get(topology))
        .route("/transfers", get(transfers))
        .route("/plan/{id}", get(plan))
        .layer(from_fn(guard))
        .with_state(client)
}

fn typed(kind: &'static str, text: impl Into<String>) -> Response {
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

/// What the controller did not answer, passed on with its line.
struct Unanswered(ClientError);

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

async fn topology(State(client): State<Client>) -> Result<Response, Unanswered> {
    Ok(Json(client.topology().await.map_err(Unanswered)?).into_response())
}

async fn transfers(State(client): State<Client>) -> Result<Response, Unanswered> {
    Ok(Json(client.statuses().await.map_err(Unanswered)?).into_response())
}

/// The network with the plan of a transfer's present or last attempt; the network alone before the first.
async fn plan(State(client): State<Client>, Path(id): Path<u64>) -> Result<Response, Unanswered> {
    let view = client.topology().await.map_err(Unanswered)?;
    let plan = match client.plan(TransferId(id)).await {
        Ok(plan) => Some(plan),
        Err(ClientError::Refused { status: 404, .. }) => None,
        Err(error) => return Err(Unanswered(error)),
    };
    let Ok(topology) = topology_of(&view) else {
        return Ok((StatusCode::BAD_GATEWAY, "the controller's network cannot be read").into_response());
    };
    Ok(typed("image/svg+xml", draw::svg(&topology, plan.as_ref(), Theme::Light)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_net::keys::{self, Role};
    use anabranch_net::tls::{CredentialFiles, Credentials};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A client of a controller that is not there.
    fn client() -> Client {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = keys::SetRequest {
            sites: vec!["a".into()],
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: keys::VALID_DAYS,
        };
        let set = folder.path().join("keys");
        keys::write_set(&set, &keys::make_set(&request).expect("good names")).expect("a new folder");
        let files = CredentialFiles::in_set(&set, Role::Operator, "operator");
        let credentials = Credentials::load(&files).expect("just written");
        Client::new("127.0.0.1:1", &credentials, Duration::ZERO).expect("good keys")
    }

    #[tokio::test]
    async fn only_who_names_loopback_is_answered_and_a_missing_controller_is_said_in_a_line() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, router(client())).await });
        let ask = async |path: &str, host: &str| {
            let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("it reads");
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.expect("text");
            reply
        };
        for host in ["localhost", "localhost:7170", "127.0.0.1:7170", "[::1]:7170"] {
            let page = ask("/", host).await;
            assert!(page.starts_with("HTTP/1.1 200") && page.contains("content-security-policy"), "{page}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", ""] {
            assert!(ask("/transfers", host).await.starts_with("HTTP/1.1 403"), "{host}");
        }
        let missing = ask("/transfers", "localhost").await;
        assert!(missing.starts_with("HTTP/1.1 502") && missing.contains("127.0.0.1:1"), "{missing}");
    }

    #[tokio::test]
    async fn nothing_but_loopback_is_listened_on() {
        let error = serve(client(), "0.0.0.0:7170".parse().expect("an address")).await.unwrap_err();
        assert!(error.to_string().contains("only a loopback address"), "{error}");
    }
}
