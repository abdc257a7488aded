//! A network under a controller: source, two reflectors and two edges with their keys, on loopback.

use crate::source::{AUTHORIZATION, TOKEN, fragments, get, put};
use anabranch_http::{ServeConfig, Server};
use anabranch_live::control::{ControlConfig, ControlError, NodeControl};
use anabranch_live::controller::client::ControllerClient;
use anabranch_live::controller::{ControllerConfig, ControllerService};
use anabranch_live::description::Description;
use anabranch_live::{Node, NodeConfig, PublishTokens, SYSTEM, Source, SourceConfig};
use anabranch_live_proto::Tier;
use anabranch_live_proto::control::node::ControlMode;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, VALID_DAYS, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::Duration;
use axum::http::StatusCode;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Names and tiers of the nodes.
const NODES: [(&str, &str); 5] =
    [("s", "source"), ("r1", "reflector"), ("r2", "reflector"), ("e1", "edge"), ("e2", "edge")];
/// Patience of each wait for a change.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

struct TestNetwork {
    folder: PathBuf,
    description: Description,
    controller_address: SocketAddr,
    controller: Option<JoinHandle<()>>,
    nodes: BTreeMap<&'static str, JoinHandle<()>>,
    operator: ControllerClient,
}

/// A port that was free a moment ago, on an address of this test alone.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    listener.local_addr().expect("bound").port()
}

fn description() -> Description {
    let mut text = String::new();
    for (name, tier) in NODES {
        let (media, control) = (free_port(), free_port());
        text += &format!(
            "[[node]]\nname = \"{name}\"\ntier = \"{tier}\"\nmedia = \"http://127.0.0.1:{media}\"\n"
        );
        if tier != "edge" {
            text += &format!("control = \"127.0.0.1:{control}\"\n");
        }
    }
    for (from, to, cost) in
        [("s", "r1", 1), ("s", "r2", 9), ("r1", "e1", 1), ("r2", "e1", 1), ("r1", "e2", 1), ("r2", "e2", 1)]
    {
        text +=
            &format!("[[link]]\nfrom = \"{from}\"\nto = \"{to}\"\ncapacity = \"20Mbit/s\"\ncost = {cost}\n");
    }
    text += "[[group]]\nname = \"here\"\nprefixes = [\"127.0.0.0/8\"]\nedges = [\"e1\", \"e2\"]\n";
    text += "[[channel]]\nname = \"news\"\nrenditions = { main = \"2Mbit/s\", wide = \"9Mbit/s\" }\n";
    Description::from_toml(&text).expect("a good description")
}

impl TestNetwork {
    async fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("anabranch-live-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("room");
        let request = SetRequest {
            system: SYSTEM,
            sites: NODES.iter().map(|(name, _)| (*name).to_owned()).collect(),
            operators: vec!["operator".to_owned()],
            controller_hosts: Vec::new(),
            valid_days: VALID_DAYS,
        };
        write_set(&folder.join("keys"), &make_set(&request).expect("good names")).expect("room");
        let controller_address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let identity = identity(&folder, Role::Operator, "operator");
        let operator = ControllerClient::new(&controller_address.to_string(), &identity, PATIENCE);
        let operator = operator.expect("an address");
        let mut network = Self {
            folder,
            description: description(),
            controller_address,
            controller: None,
            nodes: BTreeMap::new(),
            operator,
        };
        network.start_controller().await;
        for (name, tier) in NODES {
            network.start_node(name, tier).await;
        }
        network
    }

    async fn start_controller(&mut self) {
        let mut config =
            ControllerConfig::new(self.description.clone(), Some(&self.folder.join("live.redb")));
        config.settings.round = Duration::from_secs(2);
        config.settings.node_silence_max = Duration::from_secs(3);
        let service = ControllerService::open(config).expect("a store");
        let identity = identity(&self.folder, Role::Controller, "controller");
        let serve = ServeConfig { address: self.controller_address, ..ServeConfig::default() };
        let server = Server::bind(service, &identity, serve).await.expect("a free port");
        self.controller = Some(tokio::spawn(server.run()));
    }

    fn control(&self, name: &str) -> ControlConfig {
        let entry = self.description.nodes.iter().find(|node| node.name == name).expect("listed");
        ControlConfig {
            name: name.to_owned(),
            controllers: vec![self.controller_address.to_string()],
            identity: identity(&self.folder, Role::Site, name),
            address: entry.control.as_ref().map(|address| address.parse().expect("an address")),
            cache: Some(self.folder.join(format!("{name}.json"))),
            mode: ControlMode::Hybrid,
        }
    }

    fn url(&self, name: &str) -> &str {
        &self.description.nodes.iter().find(|node| node.name == name).expect("listed").media
    }

    async fn start_node(&mut self, name: &'static str, tier: &str) {
        let media = self.url(name).trim_start_matches("http://").parse().expect("an address");
        let control = self.control(name);
        let task = if tier == "source" {
            let control = NodeControl::start(control, (&[Tier::Source], "a source")).await.expect("keys");
            let tokens = PublishTokens::read(&format!("* {TOKEN}")).expect("a token file");
            let mut config = SourceConfig::new(media, tokens);
            config.segment_target = Duration::from_secs(1);
            config.rendition.listed_segments = 20;
            config.control = Some(control);
            let source = Source::bind(config).expect("loopback");
            tokio::spawn(async move { match source.run().await {} })
        } else {
            let tiers = [Tier::Reflector, Tier::Edge];
            let control =
                NodeControl::start(control, (&tiers, "a reflector or an edge")).await.expect("keys");
            let mut config = NodeConfig::new(name, media);
            config.control = Some(control);
            let node = Node::bind(config).expect("loopback");
            tokio::spawn(async move { match node.run().await {} })
        };
        self.nodes.insert(name, task);
    }

    /// Streams as the controller knows them: node and parent.
    async fn streams(&self) -> Vec<(String, String)> {
        let streams = self.operator.trees().await.expect("an operator may look").streams;
        streams.into_iter().map(|stream| (stream.node, stream.parent)).collect()
    }

    async fn wait_for(&self, what: &str, streams: &[(&str, &str)]) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.streams().await;
            if found.len() == streams.len()
                && streams.iter().all(|(node, parent)| found.iter().any(|(n, p)| n == node && p == parent))
            {
                return;
            }
            assert!(Instant::now() < until, "{what}: {found:?} instead of {streams:?}");
            sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        self.nodes.values().chain(&self.controller).for_each(JoinHandle::abort);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn identity(folder: &std::path::Path, role: Role, name: &str) -> Identity {
    let files = CredentialFiles::in_set(&folder.join("keys"), SYSTEM, role, name);
    Identity::load(&files).expect("keys of the set")
}

/// Waits until the playlist is there.
async fn wait_for_playlist(url: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (status, body) = get(url, "/news/main/index.m3u8").await;
        if status == StatusCode::OK {
            return;
        }
        let line = String::from_utf8_lossy(&body).into_owned();
        assert!(Instant::now() < until, "{url}: {status} {line}");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_follow_the_plan_and_survive_a_reflector() {
    let mut network = TestNetwork::start("plan").await;
    let source = network.url("s").to_owned();
    let edge = network.url("e1").to_owned();
    let publisher = tokio::spawn(async move {
        // Again and again: an encoder that connects again continues the stream.
        loop {
            put(&source, "/news/main", AUTHORIZATION, fragments()).await;
        }
    });
    wait_for_playlist(&edge).await;
    let watched = edge.clone();
    let viewer = tokio::spawn(async move {
        let (mut failed, mut asked) = (0_u32, 0_u32);
        loop {
            let (status, _) = get(&watched, "/news/main/index.m3u8").await;
            asked += 1;
            failed += u32::from(status != StatusCode::OK);
            if asked.is_multiple_of(50) {
                println!("{asked} answers, {failed} of them failed");
            }
            assert!(failed == 0, "answer {asked}: {status}");
            sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    network.wait_for("the cheaper reflector", &[("r1", "s"), ("e1", "r1")]).await;

    network.operator.drain("r1", true).await.expect("an operator may drain");
    network.wait_for("r1 is drained", &[("r2", "s"), ("e1", "r2")]).await;
    network.operator.drain("r1", false).await.expect("an operator may drain");
    network.wait_for("r1 carries streams again", &[("r1", "s"), ("e1", "r1")]).await;

    network.nodes.remove("r1").expect("started").abort();
    network.wait_for("r1 has failed", &[("r2", "s"), ("e1", "r2")]).await;

    // Without a controller everything goes on; a later controller takes the next lead.
    network.controller.take().expect("started").abort();
    sleep(std::time::Duration::from_secs(1)).await;
    wait_for_playlist(&edge).await;
    let edges = (&[Tier::Edge][..], "an edge");
    let restarted = NodeControl::start(network.control("e2"), edges).await;
    assert_eq!(restarted.expect("the file has the network").layout().description(), &network.description);
    let without_file = ControlConfig { cache: None, ..network.control("e2") };
    let refused = NodeControl::start(without_file, edges).await;
    assert!(matches!(refused, Err(ControlError::NoDescription(_))), "{refused:?}");
    network.start_controller().await;
    network.wait_for("the next lead", &[("r2", "s"), ("e1", "r2")]).await;
    let nodes = network.operator.nodes().await.expect("an operator may look");
    let edge = nodes.iter().find(|node| node.name == "e1").expect("listed");
    assert!(edge.viewers >= 1 && edge.is_up, "{edge:?}");
    assert!(!viewer.is_finished(), "{:?}", viewer.await);
    viewer.abort();
    publisher.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_streams_and_strangers_are_refused_in_one_line() {
    let network = TestNetwork::start("refusals").await;
    let edge = network.url("e1");
    let (status, line) = get(edge, "/news/main/index.m3u8").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "nothing is published");
    assert_eq!(String::from_utf8_lossy(&line).lines().count(), 1);
    let (status, _) = get(edge, "/sports/main/index.m3u8").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let answer = put(network.url("s"), "/sports/main", AUTHORIZATION, vec![b"ftyp"]).await;
    assert!(answer.contains("no such rendition in the controller's network"), "{answer}");
    // A node may not speak for another one, nor look.
    let identity = identity(&network.folder, Role::Site, "e2");
    let client = ControllerClient::new(&network.controller_address.to_string(), &identity, PATIENCE);
    let error = client.expect("an address").trees().await.expect_err("a node is no operator").to_string();
    assert!(error.contains("ask as an operator"), "{error}");
    let mut unknown = network.control("e1");
    unknown.name = "e9".to_owned();
    let started = NodeControl::start(unknown, (&[Tier::Edge], "an edge")).await;
    assert!(matches!(started, Err(ControlError::UnknownNode(_))), "{started:?}");
    let started = NodeControl::start(network.control("e1"), (&[Tier::Source], "a source")).await;
    assert!(matches!(started, Err(ControlError::OtherTier(..))), "{started:?}");
}
