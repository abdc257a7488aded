//! `anabranch live status --web`: the trees of streams, link use and events as a page.
//!
//! The page only reads. Leaves out: serving a page (`crate::page`). Read [`serve`].

use crate::page::{self, Page, UpstreamError};
use anabranch_http::ClientError;
use anabranch_live::controller::client::ControllerClient;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// Serves the page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(client: ControllerClient, listen: SocketAddr) -> anyhow::Result<()> {
    let trouble = client.nodes().await.err();
    page::serve(router(client), listen, trouble).await
}

fn router(client: ControllerClient) -> Router {
    Page { html: include_str!("page.html"), script: include_str!("page.js") }
        .routes()
        .route("/{token}/state", get(state))
        .with_state(client)
}

/// Returns nodes, links, streams, rounds and events as one JSON object.
///
/// Errors: see [`ClientError`].
pub(super) async fn all(client: &ControllerClient) -> Result<Value, ClientError> {
    let (nodes, trees, rounds) = (client.nodes().await?, client.trees().await?, client.rounds().await?);
    let events = client.events(0, Duration::ZERO).await?;
    Ok(serde_json::json!({
        "nodes": nodes, "links": trees.links, "streams": trees.streams, "rounds": rounds, "events": events
    }))
}

async fn state(State(client): State<ControllerClient>) -> Result<Response, UpstreamError> {
    Ok(page::json(&all(&client).await.map_err(UpstreamError)?))
}
