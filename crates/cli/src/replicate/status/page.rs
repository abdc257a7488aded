//! `anabranch replicate status --web`: the controller's transfers as a page, for a browser on this
//! machine.
//!
//! The page only reads. Leaves out: serving a page (`crate::page`). Read [`serve`] first.

use crate::page::{self, Page, UpstreamError};
use anabranch_graph::{CAPACITY_MAX, Topology};
use anabranch_http::ClientError;
use anabranch_replicate::Client;
use anabranch_replicate_proto::control::TransferId;
use anabranch_replicate_proto::draw::{self, Theme};
use anabranch_replicate_proto::plan::Plan;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::SocketAddr;

/// Serves the page until the future is dropped.
///
/// Errors: an address that is not loopback or cannot be listened on.
pub async fn serve(client: Client, listen: SocketAddr) -> anyhow::Result<()> {
    let trouble = client.with_patience(page::PATIENCE).topology().await.err();
    page::serve(router(client), listen, trouble).await
}

fn router(client: Client) -> Router {
    Page { html: include_str!("page.html"), script: include_str!("page.js") }
        .routes()
        .route("/{token}/topology", get(topology))
        .route("/{token}/transfers", get(transfers))
        .route("/{token}/plan/{id}", get(plan))
        .with_state(client.with_patience(page::PATIENCE))
}

async fn topology(State(client): State<Client>) -> Result<Response, UpstreamError> {
    Ok(page::json(&client.topology().await.map_err(UpstreamError)?))
}

async fn transfers(State(client): State<Client>) -> Result<Response, UpstreamError> {
    Ok(page::json(&client.statuses().await.map_err(UpstreamError)?))
}

/// Options of a plan's picture.
#[derive(serde::Deserialize)]
struct PictureOptions {
    #[serde(default)]
    dark: bool,
}

/// Draws the network with the plan of the attempt that served the most destinations; the network
/// alone before the first attempt.
async fn plan(
    State(client): State<Client>,
    Path((_, id)): Path<(String, u64)>,
    Query(look): Query<PictureOptions>,
) -> Result<Response, UpstreamError> {
    let view = client.topology().await.map_err(UpstreamError)?;
    let plan = match client.widest_plan(TransferId(id)).await {
        Ok(plan) => Some(plan),
        Err(ClientError::Refused { status: 404, .. }) => None,
        Err(error) => return Err(UpstreamError(error)),
    };
    let Ok(topology) = view.topology() else {
        return Ok((StatusCode::BAD_GATEWAY, "the controller's network cannot be read").into_response());
    };
    let theme = if look.dark { Theme::Dark } else { Theme::Light };
    match picture(&topology, plan.as_ref(), theme) {
        Ok(svg) => Ok(page::typed("image/svg+xml", svg)),
        Err(why) => Ok((StatusCode::BAD_GATEWAY, why).into_response()),
    }
}

/// Errors: a plan of another network, for instance after a restart of the controller with another
/// topology.
fn picture(topology: &Topology, plan: Option<&Plan>, theme: Theme) -> Result<String, String> {
    if let Some(plan) = plan {
        // Measurements change capacities after the plan is made, so its loads show nothing.
        let capacities = vec![CAPACITY_MAX; topology.links().len()];
        plan.check_within(topology, &capacities)
            .map_err(|e| format!("the controller's plan is not of its network: {e}"))?;
    }
    Ok(draw::svg(topology, plan, theme))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_net::identity::Identity;
    use anabranch_net::keys::{self, Role};
    use anabranch_net::tls::CredentialFiles;
    use anabranch_replicate_proto::plan::{Planner, Request as PlanRequest, Scheme};
    use anabranch_units::{BitRate, SiteId};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A client of an absent controller.
    fn client() -> Client {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = keys::SetRequest {
            system: anabranch_replicate::SYSTEM,
            sites: vec!["a".into()],
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: keys::VALID_DAYS,
        };
        let set = folder.path().join("keys");
        keys::write_set(&set, &keys::make_set(&request).expect("good names")).expect("a new folder");
        let files = CredentialFiles::in_set(&set, anabranch_replicate::SYSTEM, Role::Operator, "operator");
        let identity = Identity::load(&files).expect("just written");
        Client::new("127.0.0.1:1", &identity, Duration::ZERO).expect("good keys")
    }

    /// Serves the page of this client with the token `secret`. Returns its address.
    async fn served(client: Client) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let routes = page::guarded(router(client), "secret");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    async fn ask(address: SocketAddr, path: &str, host: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("text");
        reply
    }

    #[tokio::test]
    async fn only_requests_that_name_loopback_are_answered() {
        let address = served(client()).await;
        let ask = async |path: &str, host: &str| ask(address, path, host).await;
        for host in ["localhost", "localhost:7170", "127.0.0.1:7170", "[::1]:7170"] {
            for path in ["/secret/", "/secret/page.css", "/secret/common.js", "/secret/page.js"] {
                let page = ask(path, host).await;
                assert!(page.starts_with("HTTP/1.1 200"), "{path} {page}");
                for header in
                    ["nosniff", "same-origin", "frame-ancestors 'none'", "no-referrer", "DENY", "no-store"]
                {
                    assert!(page.contains(header), "{path}: no {header}");
                }
            }
        }
        for host in ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", ""] {
            assert!(ask("/secret/transfers", host).await.starts_with("HTTP/1.1 403"), "{host}");
        }
        let missing = ask("/secret/transfers", "localhost").await;
        assert!(missing.starts_with("HTTP/1.1 502") && missing.contains("127.0.0.1:1"), "{missing}");
        // #17: another user of this machine could use the operator's rights, because any address
        // was answered.
        for path in
            ["/", "/transfers", "/topology", "/secre/", "/secrets/transfers", "/wrong/page.js", "//secret/"]
        {
            let refused = ask(path, "localhost").await;
            assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("nosniff"), "{path} {refused}");
        }
    }

    /// #17: a plan of another network made the picture, and with it the command, panic.
    #[test]
    fn plan_unfit_for_the_network_gives_one_line_error() {
        let network =
            |name| anabranch_graph::builtin::builtin(name, BitRate::mbps(10)).expect("it is built in");
        let (small, large) = (network("butterfly"), network("b4"));
        let request = |topology| PlanRequest::new(topology, SiteId(0), vec![SiteId(3)]);
        let plan_of =
            |topology| Planner::new(request(topology)).expect("a good request").plan(Scheme::SinglePath);
        let plan = plan_of(&large).expect("a path exists").plan;
        assert!(picture(&large, Some(&plan), Theme::Light).expect("its own network").contains("<svg"));
        let mut wrong = plan_of(&small).expect("a path exists").plan;
        wrong.destinations = vec![SiteId(9)];
        let why = picture(&small, Some(&wrong), Theme::Dark).expect_err("there is no site 9");
        assert!(why.contains("is not of its network") && !why.contains('\n'), "{why}");
        assert!(picture(&small, Some(&plan), Theme::Dark).is_err(), "links that are not there");
    }

    /// #17: the page kept showing old data for the ten seconds of a command's retries.
    #[tokio::test]
    async fn lost_controller_is_reported_before_the_client_timeout() {
        let address = served(client().with_patience(Duration::from_secs(3_600))).await;
        let asked = ask(address, "/secret/transfers", "localhost");
        let reply = tokio::time::timeout(Duration::from_secs(60), asked).await.expect("less than an hour");
        assert!(reply.starts_with("HTTP/1.1 502") && reply.contains("127.0.0.1:1"), "{reply}");
    }

    #[tokio::test]
    async fn nothing_but_loopback_is_listened_on() {
        let error = serve(client(), "0.0.0.0:7170".parse().expect("an address")).await.unwrap_err();
        assert!(error.to_string().contains("only a loopback address"), "{error}");
    }
}
