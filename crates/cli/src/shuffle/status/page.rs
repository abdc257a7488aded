//! `anabranch shuffle status --web`: the coordinator's transfers, flows and rates as a page.
//!
//! It only reads. How a page is served, and to whom: `crate::page`. Read [`serve`].

use crate::page::{self, Unanswered};
use anabranch_api::shuffle::Client;
use axum::extract::State;
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::net::SocketAddr;

/// Ended transfers that the page shows.
const HISTORY: u64 = 20;

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
        .route(
            "/page.css",
            get(|| async { page::typed("text/css", include_str!("../../replicate/status/page.css")) }),
        )
        .route("/state", get(state))
        .with_state(client)
}

/// All that the page shows, in one.
async fn state(State(client): State<Client>) -> Result<Response, Unanswered> {
    let hosts = client.hosts().await.map_err(Unanswered)?;
    let under_way = client.transfers().await.map_err(Unanswered)?;
    let history = client.history(HISTORY).await.map_err(Unanswered)?;
    let all = serde_json::json!({ "hosts": hosts, "under_way": under_way, "history": history });
    Ok(Json(all).into_response())
}
