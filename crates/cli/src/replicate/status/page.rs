//! `anabranch replicate status --web`: the controller's transfers as a page, for a browser on this machine.
//!
//! It only reads. How a page is served, and to whom: `crate::page`.
//! Leaves out: changing anything. Read [`serve`] first.

use super::super::send::topology_of;
use crate::page::{self, Unanswered};
use anabranch_api::{Client, ClientError};
use anabranch_replicate::control::TransferId;
use anabranch_replicate::draw::{self, Theme};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::net::SocketAddr;

/// Serves the page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(client: Client, listen: SocketAddr) -> anyhow::Result<()> {
    page::serve(router(client), listen).await
}

fn router(client: Client) -> Router {
    Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/page.js", get(|| async { page::typed("text/javascript", include_str!("page.js")) }))
        .route("/page.css", get(|| async { page::typed("text/css", include_str!("page.css")) }))
        .route("/topology", get(topology))
        .route("/transfers", get(transfers))
        .route("/plan/{id}", get(plan))
        .with_state(client)
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
    Ok(page::typed("image/svg+xml", draw::svg(&topology, plan.as_ref(), Theme::Light)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_net::keys::{self, Role, System};
    use anabranch_net::tls::{CredentialFiles, Credentials};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A client of a controller that is not there.
    fn client() -> Client {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = keys::SetRequest {
            system: System::Replicate,
            sites: vec!["a".into()],
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: keys::VALID_DAYS,
        };
        let set = folder.path().join("keys");
        keys::write_set(&set, &keys::make_set(&request).expect("good names")).expect("a new folder");
        let files = CredentialFiles::in_set(&set, System::Replicate, Role::Operator, "operator");
        let credentials = Credentials::load(&files).expect("just written");
        Client::new("127.0.0.1:1", &credentials, Duration::ZERO).expect("good keys")
    }

    #[tokio::test]
    async fn only_who_names_loopback_is_answered_and_a_missing_controller_is_said_in_a_line() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, page::guarded(router(client()))).await });
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
