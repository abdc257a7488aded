//! Tests of a network under a controller: a source, two reflectors and two edges with keys, on
//! loopback. A third reflector and a third edge have keys, and join at run time.

use crate::source::{AUTHORIZATION, TOKEN, fragments, get, put};
use anabranch_http::origin::{Origin, Security};
use anabranch_http::{ClientError, ServeConfig, Server};
use anabranch_live::control::{ControlConfig, ControlError, NodeControl};
use anabranch_live::controller::client::ControllerClient;
use anabranch_live::controller::{ControllerConfig, ControllerService, StoreConfig};
use anabranch_live::description::{
    Change, ChannelEntry, Description, GroupEdgeEntry, GroupEntry, LinkEntry, NodeEntry,
};
use anabranch_live::{EtcdConfig, Node, NodeConfig, PublishTokens, SYSTEM, Source, SourceConfig};
use anabranch_live_proto::Tier;
use anabranch_live_proto::control::node::ControlMode;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, VALID_DAYS, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_testing::ports::free_port;
use anabranch_units::{BitRate, Duration};
use axum::http::{HeaderMap, StatusCode};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Names and tiers of the nodes.
const NODES: [(&str, &str); 5] =
    [("s", "source"), ("r1", "reflector"), ("r2", "reflector"), ("e1", "edge"), ("e2", "edge")];
/// Nodes whose children fetch objects by mutual TLS. Children of other nodes use no TLS.
const SECURE: [&str; 2] = ["s", "r1"];
/// Nodes that join the network at run time.
const LATER: [&str; 2] = ["r3", "e3"];
/// Lease duration of controllers that share an etcd.
pub const LEASE: std::time::Duration = std::time::Duration::from_secs(2);
/// Longest wait for a change.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

pub struct TestNetwork {
    folder: PathBuf,
    description: Description,
    /// URLs without TLS of the nodes in [`SECURE`].
    urls: BTreeMap<&'static str, String>,
    controller_addresses: Vec<SocketAddr>,
    /// Running controllers, by address.
    controllers: BTreeMap<SocketAddr, JoinHandle<()>>,
    /// Endpoints of etcd, if controllers share one.
    etcd: Vec<String>,
    nodes: BTreeMap<&'static str, JoinHandle<()>>,
    pub operator: ControllerClient,
}

fn description() -> Description {
    let mut text = String::new();
    for (name, tier) in NODES {
        let (media, control) = (free_port(), free_port());
        let scheme = if SECURE.contains(&name) { "https" } else { "http" };
        text += &format!(
            "[[node]]\nname = \"{name}\"\ntier = \"{tier}\"\nmedia = \"{scheme}://127.0.0.1:{media}\"\n"
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
        Self::start_with(name, 1, Vec::new()).await
    }

    /// Starts a network under `controllers`. Several controllers share an etcd.
    pub async fn start_with(name: &str, controllers: usize, etcd: Vec<String>) -> Self {
        let folder = std::env::temp_dir().join(format!("anabranch-live-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("room");
        let request = SetRequest {
            system: SYSTEM,
            sites: NODES.iter().map(|(name, _)| *name).chain(LATER).map(str::to_owned).collect(),
            operators: vec!["operator".to_owned()],
            controller_hosts: Vec::new(),
            valid_days: VALID_DAYS,
        };
        write_set(&folder.join("keys"), &make_set(&request).expect("good names")).expect("room");
        let address = |_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let controller_addresses: Vec<SocketAddr> = (0..controllers).map(address).collect();
        let addresses: Vec<String> = controller_addresses.iter().map(ToString::to_string).collect();
        let identity = identity(&folder, Role::Operator, "operator");
        let operator = ControllerClient::of(&addresses, &identity, PATIENCE).expect("addresses");
        let urls = SECURE.map(|name| (name, format!("http://127.0.0.1:{}", free_port())));
        let mut network = Self {
            folder,
            description: description(),
            urls: urls.into(),
            controller_addresses: controller_addresses.clone(),
            controllers: BTreeMap::new(),
            etcd,
            nodes: BTreeMap::new(),
            operator,
        };
        for address in controller_addresses {
            network.start_controller(address).await;
        }
        for (name, tier) in NODES {
            network.start_node(name, tier).await;
        }
        network
    }

    async fn start_controller(&mut self, address: SocketAddr) {
        let mut config =
            ControllerConfig::new(self.description.clone(), Some(&self.folder.join("live.redb")));
        if !self.etcd.is_empty() {
            let etcd = EtcdConfig::new(self.etcd.clone(), "/test/", address.to_string()).with_lease(LEASE);
            config.store = StoreConfig::Etcd(etcd);
        }
        config.settings.round = Duration::from_secs(2);
        // Longer than a busy machine stops a node.
        config.settings.node_silence_max = Duration::from_secs(6);
        let until = Instant::now() + PATIENCE;
        let service = loop {
            // Requests of the previous controller may still be using its store.
            match ControllerService::open(config.clone()) {
                Ok(service) => break service,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            sleep(std::time::Duration::from_millis(50)).await;
        };
        let identity = identity(&self.folder, Role::Controller, "controller");
        let serve = ServeConfig { address, ..ServeConfig::default() };
        let server = Server::bind(service, &identity, serve).await.expect("a free port");
        self.controllers.insert(address, tokio::spawn(server.run()));
    }

    /// Kills a controller.
    pub fn kill_controller(&mut self, address: SocketAddr) {
        self.controllers.remove(&address).expect("started").abort();
    }

    /// Address of the leading controller.
    pub async fn leader(&self) -> SocketAddr {
        self.streams().await;
        self.operator.address().parse().expect("an address")
    }

    /// Clients of all controllers.
    pub fn clients(&self) -> Vec<ControllerClient> {
        let identity = identity(&self.folder, Role::Operator, "operator");
        let client = |address: &SocketAddr| {
            ControllerClient::new(&address.to_string(), &identity, PATIENCE).expect("an address")
        };
        self.controller_addresses.iter().map(client).collect()
    }

    fn control(&self, name: &str) -> ControlConfig {
        let entry = self.description.nodes.iter().find(|node| node.name == name).expect("listed");
        ControlConfig {
            name: name.to_owned(),
            controllers: self.controller_addresses.iter().map(ToString::to_string).collect(),
            identity: identity(&self.folder, Role::Site, name),
            address: entry.control.as_ref().map(|address| address.parse().expect("an address")),
            objects_address: SECURE
                .contains(&name)
                .then(|| entry.media.trim_start_matches("https://").parse().expect("an address")),
            cache: Some(self.folder.join(format!("{name}.json"))),
            mode: ControlMode::Hybrid,
        }
    }

    pub fn url(&self, name: &str) -> &str {
        let of_network =
            || &self.description.nodes.iter().find(|node| node.name == name).expect("listed").media;
        self.urls.get(name).unwrap_or_else(of_network)
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

    /// Streams in the reports to the controller: node and parent.
    async fn streams(&self) -> Vec<(String, String)> {
        let until = Instant::now() + PATIENCE;
        let streams = loop {
            // Until a lease expires, no controller may be leading.
            match self.operator.trees().await {
                Ok(trees) => break trees.streams,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            sleep(std::time::Duration::from_millis(100)).await;
        };
        streams.into_iter().map(|stream| (stream.node, stream.parent)).collect()
    }

    pub async fn wait_for(&self, what: &str, streams: &[(&str, &str)]) {
        self.wait_until(&format!("{what}: {streams:?}"), |found| {
            let has = |(node, parent): &(&str, &str)| found.iter().any(|(n, p)| n == node && p == parent);
            found.len() == streams.len() && streams.iter().all(has)
        })
        .await;
    }

    /// Waits until both channels reach both edges, and no stream passes through `left_out`.
    async fn wait_without(&self, left_out: &str) {
        self.wait_until(&format!("without {left_out}"), |found| {
            let count = |edge| found.iter().filter(|(node, _)| node == edge).count();
            let is_out = found.iter().all(|(node, parent)| node != left_out && parent != left_out);
            is_out && count("e1") == 2 && count("e3") == 2
        })
        .await;
    }

    async fn wait_until(&self, what: &str, is_done: impl Fn(&[(String, String)]) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.streams().await;
            if is_done(&found) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {found:?}");
            sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        self.nodes.values().chain(self.controllers.values()).for_each(JoinHandle::abort);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn identity(folder: &std::path::Path, role: Role, name: &str) -> Identity {
    let files = CredentialFiles::in_set(&folder.join("keys"), SYSTEM, role, name);
    Identity::load(&files).expect("keys of the set")
}

/// Requests a path ten times a second, and panics at the first failed answer.
pub async fn watch(url: String, path: &'static str) {
    for asked in 1.. {
        let (status, body) = get(&url, path).await;
        let line = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(status, StatusCode::OK, "{url}{path}, answer {asked}: {line}");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

pub async fn wait_for_playlist(url: &str) {
    wait_for(url, "/news/main/index.m3u8").await;
}

/// Waits until a path is answered with success.
async fn wait_for(url: &str, path: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (status, body) = get(url, path).await;
        if status == StatusCode::OK {
            return;
        }
        let line = String::from_utf8_lossy(&body).into_owned();
        assert!(Instant::now() < until, "{url}: {status} {line}");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_follow_plans_and_survive_a_failed_reflector() {
    let mut network = TestNetwork::start("plan").await;
    let source = network.url("s").to_owned();
    let edge = network.url("e1").to_owned();
    let publisher = tokio::spawn(async move {
        // The publisher reconnects repeatedly, as an encoder would, and the stream continues.
        loop {
            put(&source, "/news/main", AUTHORIZATION, fragments()).await;
        }
    });
    wait_for_playlist(&edge).await;
    let viewer = tokio::spawn(watch(edge.clone(), "/news/main/index.m3u8"));
    network.wait_for("the cheaper reflector", &[("r1", "s"), ("e1", "r1")]).await;

    network.operator.drain("r1", true).await.expect("an operator may drain");
    network.wait_for("r1 is drained", &[("r2", "s"), ("e1", "r2")]).await;
    network.operator.drain("r1", false).await.expect("an operator may drain");
    network.wait_for("r1 carries streams again", &[("r1", "s"), ("e1", "r1")]).await;

    network.nodes.remove("r1").expect("started").abort();
    network.wait_for("r1 has failed", &[("r2", "s"), ("e1", "r2")]).await;

    // Streams continue without a controller, and a later controller takes the next lead.
    let controller = network.controller_addresses[0];
    network.kill_controller(controller);
    sleep(std::time::Duration::from_secs(1)).await;
    wait_for_playlist(&edge).await;
    let edges = (&[Tier::Edge][..], "an edge");
    let restarted = NodeControl::start(network.control("e2"), edges).await;
    assert_eq!(restarted.expect("the file has the network").layout().description(), &network.description);
    let without_file = ControlConfig { cache: None, ..network.control("e2") };
    let refused = NodeControl::start(without_file, edges).await;
    assert!(matches!(refused, Err(ControlError::NoDescription(_))), "{refused:?}");
    network.start_controller(controller).await;
    network.wait_for("the next lead", &[("r2", "s"), ("e1", "r2")]).await;
    let nodes = network.operator.nodes().await.expect("an operator may look");
    let edge = nodes.iter().find(|node| node.name == "e1").expect("listed");
    assert!(edge.viewers >= 1 && edge.is_up, "{edge:?}");
    assert!(!viewer.is_finished(), "{:?}", viewer.await);
    viewer.abort();
    publisher.abort();
}

fn link(from: &str, to: &str, mbps: u64, cost: f64) -> Change {
    let (from, to, capacity) = (from.to_owned(), to.to_owned(), BitRate::mbps(mbps));
    Change::SetLink(LinkEntry { from, to, capacity, cost })
}

/// Adds channel `sport`, edge `e3` below both reflectors, and reflector `r3` between `s` and `e1`.
fn additions() -> Vec<Change> {
    let url = |port| format!("http://127.0.0.1:{port}");
    let node = |name: &str, tier| NodeEntry {
        name: name.to_owned(),
        tier,
        media: url(free_port()),
        control: (tier != Tier::Edge).then(|| format!("127.0.0.1:{}", free_port())),
        addresses: Vec::new(),
    };
    let edges = ["e1", "e2", "e3"].map(|edge| GroupEdgeEntry::Name(edge.to_owned()));
    let prefixes = vec!["127.0.0.0/8".parse().expect("a prefix")];
    let renditions = [("main".to_owned(), BitRate::mbps(1))].into();
    vec![
        Change::SetChannel(ChannelEntry { name: "sport".to_owned(), renditions }),
        Change::SetNode(node("e3", Tier::Edge)),
        Change::SetNode(node("r3", Tier::Reflector)),
        link("s", "r3", 20, 4.0),
        link("r3", "e1", 20, 1.0),
        link("r1", "e3", 20, 1.0),
        link("r2", "e3", 20, 1.0),
        Change::SetGroup(GroupEntry { name: "here".to_owned(), prefixes, edges: edges.into() }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_changes_interrupt_no_viewer() {
    let mut network = TestNetwork::start("changes").await;
    let publishers = ["/news/main", "/sport/main"].map(|path| {
        let source = network.url("s").to_owned();
        tokio::spawn(async move {
            loop {
                put(&source, path, AUTHORIZATION, fragments()).await;
                sleep(std::time::Duration::from_millis(50)).await;
            }
        })
    });
    let edge = network.url("e1").to_owned();
    wait_for_playlist(&edge).await;
    let mut viewers = vec![tokio::spawn(watch(edge.clone(), "/news/main/index.m3u8"))];
    network.wait_for("the cheaper reflector", &[("r1", "s"), ("e1", "r1")]).await;

    // An edge, a reflector and a channel are added. A second change of the same version is refused.
    let (status, _) = get(&edge, "/sport/main/index.m3u8").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let version = network.operator.change(1, additions()).await.expect("an operator may change it");
    let late = network.operator.change(1, vec![Change::RemoveNode("r2".to_owned())]).await;
    let late = late.expect_err("the network has changed").to_string();
    assert!(version == 2 && late.contains("it has version 2"), "{late}");
    network.description = network.operator.network().await.expect("anyone may look").network;
    network.start_node("r3", "reflector").await;
    network.start_node("e3", "edge").await;
    let new = network.url("e3").to_owned();
    for (edge, path) in
        [(&edge, "/sport/main/index.m3u8"), (&new, "/sport/main/index.m3u8"), (&new, "/news/main/index.m3u8")]
    {
        wait_for(edge, path).await;
        viewers.push(tokio::spawn(watch(edge.clone(), path)));
    }

    // The reflector that carries all streams is removed, and its process ends.
    let removal = vec![Change::RemoveNode("r1".to_owned())];
    let version = network.operator.change(version, removal).await.expect("r1 is there");
    network.wait_without("r1").await;
    network.nodes.remove("r1").expect("started").abort();
    sleep(std::time::Duration::from_secs(1)).await;

    // A capacity drops to zero, so that no channel fits through r3.
    let narrow = vec![link("s", "r3", 0, 4.0)];
    let version = network.operator.change(version, narrow).await.expect("the link is there");
    network.wait_without("r3").await;

    // The changes survive a restart of the controller. Then a channel is removed.
    let controller = network.controller_addresses[0];
    network.kill_controller(controller);
    network.start_controller(controller).await;
    network.wait_without("r3").await;
    let shown = network.operator.nodes().await.expect("an operator may look");
    assert!(shown.len() == 6 && shown.iter().all(|node| node.name != "r1"), "{shown:?}");
    assert!(viewers.iter().all(|viewer| !viewer.is_finished()), "a viewer has lost its stream");
    let viewer = viewers.remove(1);
    viewer.abort();
    viewers.remove(1).abort();
    let removal = vec![Change::RemoveChannel("sport".to_owned())];
    network.operator.change(version, removal).await.expect("the channel is there");
    network.wait_for("sport is removed", &[("r2", "s"), ("e1", "r2"), ("e3", "r2")]).await;
    let (status, _) = get(&edge, "/sport/main/index.m3u8").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(viewers.iter().all(|viewer| !viewer.is_finished()), "a viewer has lost its stream");
    viewers.iter().chain(&publishers).for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_streams_and_unknown_nodes_get_one_line_errors() {
    let network = TestNetwork::start("refusals").await;
    let edge = network.url("e1");
    let (status, line) = get(edge, "/news/main/index.m3u8").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "nothing is published");
    assert_eq!(String::from_utf8_lossy(&line).lines().count(), 1);
    let (status, _) = get(edge, "/sports/main/index.m3u8").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let answer = put(network.url("s"), "/sports/main", AUTHORIZATION, vec![b"ftyp"]).await;
    assert!(answer.contains("no such rendition in the controller's network"), "{answer}");
    // A node may neither act for another node nor view the network.
    let identity = identity(&network.folder, Role::Site, "e2");
    let client = ControllerClient::new(&network.controller_addresses[0].to_string(), &identity, PATIENCE);
    let error = client.expect("an address").trees().await.expect_err("a node is no operator").to_string();
    assert!(error.contains("ask as an operator"), "{error}");
    // Objects are served to children only, even if the client has valid keys.
    let entry = network.description.nodes.iter().find(|node| node.name == "s").expect("listed");
    let ask = async |name: &str| {
        let identity = self::identity(&network.folder, Role::Site, name);
        let security = Security::Mutual { identity, role: Role::Site, name: "s".to_owned() };
        let origin = Origin::with(&entry.media, security, None).expect("a URL");
        origin.get("/health", &HeaderMap::new()).await.map(|reply| reply.status())
    };
    assert_eq!(ask("r2").await.expect("a child"), StatusCode::OK);
    assert!(ask("e1").await.is_err(), "no link leads from s to e1");
    let without = Origin::new(&entry.media.replace("https", "http")).expect("a URL");
    assert!(without.get("/health", &HeaderMap::new()).await.is_err());
    let no_listener = ControlConfig { objects_address: None, ..network.control("s") };
    let started = NodeControl::start(
        ControlConfig { address: Some((Ipv4Addr::LOCALHOST, 0).into()), ..no_listener },
        (&[Tier::Source], "a source"),
    );
    let started = started.await;
    assert!(matches!(started, Err(ControlError::NoObjectsListener(_))), "{started:?}");
    let mut unknown = network.control("e1");
    unknown.name = "e9".to_owned();
    let started = NodeControl::start(unknown, (&[Tier::Edge], "an edge")).await;
    assert!(matches!(started, Err(ControlError::UnknownNode(_))), "{started:?}");
    let started = NodeControl::start(network.control("e1"), (&[Tier::Source], "a source")).await;
    assert!(matches!(started, Err(ControlError::OtherTier(..))), "{started:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_may_neither_drain_nor_change_the_network() {
    let network = TestNetwork::start("rights").await;
    let address = network.controller_addresses[0].to_string();
    let node = identity(&network.folder, Role::Site, "e1");
    let node = ControllerClient::new(&address, &node, PATIENCE).expect("an address");
    let before = network.operator.network().await.expect("it leads");
    let is_forbidden = |error: &ClientError| matches!(error, ClientError::Refused { status: 403, .. });
    let removal = vec![Change::RemoveNode("r2".to_owned())];
    let refused = node.change(before.version, removal.clone()).await;
    assert!(refused.as_ref().is_err_and(is_forbidden), "{refused:?}");
    let refused = node.drain("r2", true).await;
    assert!(refused.as_ref().is_err_and(is_forbidden), "{refused:?}");
    let after = network.operator.network().await.expect("it leads");
    assert_eq!((after.version, after.network), (before.version, before.network));
    let changed = network.operator.change(before.version, removal).await;
    assert_eq!(changed.expect("an operator may change it"), before.version + 1);
}
