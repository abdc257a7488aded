//! `anabranch shuffle status --web`: the coordinator's coflows, flows and rates as a page.
//!
//! The page only reads. Leaves out: serving a page (`crate::page`). Read [`serve`].

use crate::page::{self, Page, UpstreamError};
use anabranch_shuffle::Client;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use std::net::SocketAddr;

/// Number of ended coflows on the page.
const HISTORY: u64 = 20;

/// Serves the page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(client: Client, listen: SocketAddr) -> anyhow::Result<()> {
    let trouble = client.with_patience(page::PATIENCE).hosts().await.err();
    page::serve(router(client), listen, trouble).await
}

fn router(client: Client) -> Router {
    Page { html: include_str!("page.html"), script: include_str!("page.js") }
        .routes()
        .route("/{token}/state", get(state))
        .with_state(client.with_patience(page::PATIENCE))
}

/// All data of the page in one answer.
async fn state(State(client): State<Client>) -> Result<Response, UpstreamError> {
    let hosts = client.hosts().await.map_err(UpstreamError)?;
    let under_way = client.coflows().await.map_err(UpstreamError)?;
    let history = client.history(HISTORY).await.map_err(UpstreamError)?;
    let all = serde_json::json!({ "hosts": hosts, "under_way": under_way, "history": history });
    Ok(page::json(&all))
}
