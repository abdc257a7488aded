//! Tests of three controllers with a real etcd. The leader is killed, then etcd, while viewers
//! read.
//!
//! Hundreds of faults are tested in virtual time (`broker-proto`, which uses the same election).

use crate::controlled::{LEASE, PATIENCE, TestNetwork, wait_for_playlist, watch};
use crate::source::{AUTHORIZATION, fragments, put};
use anabranch_http::ClientError;
use anabranch_live::controller::follow::FollowedDirectory;
use anabranch_testing::ports::free_port;
use anabranch_testing::skip::skip;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// An etcd with one member.
struct Etcd {
    folder: tempfile::TempDir,
    clients: SocketAddr,
    peers: SocketAddr,
    child: Option<Child>,
}

impl Etcd {
    /// Prepares an etcd without starting it; `None` if etcd is not installed.
    fn new() -> Option<Self> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).map(|path| path.join("etcd")).find(|path| path.is_file())?;
        let free = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (clients, peers) = (free(), free());
        Some(Self { folder: tempfile::tempdir().expect("a folder"), clients, peers, child: None })
    }

    /// Starts etcd with its existing data.
    fn start(&mut self) {
        let (clients, peers) = (format!("http://{}", self.clients), format!("http://{}", self.peers));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--name", "a", "--initial-cluster", &format!("a={peers}")]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        self.child = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leader_is_replaced_and_killed_etcd_is_harmless() {
    let Some(mut etcd) = Etcd::new() else {
        return skip("several controllers share an etcd, and this machine has none (Debian: etcd-server)");
    };
    etcd.start();
    let mut network = TestNetwork::start_with("shared", 3, vec![format!("http://{}", etcd.clients)]).await;
    let source = network.url("s").to_owned();
    let publisher = tokio::spawn(async move {
        loop {
            put(&source, "/news/main", AUTHORIZATION, fragments()).await;
        }
    });
    let edge = network.url("e1").to_owned();
    wait_for_playlist(&edge).await;
    let viewer = tokio::spawn(watch(edge, "/news/main/index.m3u8"));
    network.wait_for("the cheaper reflector", &[("r1", "s"), ("e1", "r1")]).await;
    let leader = network.leader().await;
    let clients = network.clients();
    for follower in clients.iter().filter(|client| client.address() != leader.to_string()) {
        let refused = follower.change(1, Vec::new()).await;
        let is_refused = matches!(refused, Err(ClientError::Refused { status: 421, .. }));
        assert!(is_refused, "{}: {refused:?}", follower.address());
    }
    let directory = FollowedDirectory::start(network.clients()).await.expect("the leader answers");
    let places = directory.subscribe();
    let follower = tokio::spawn(async move { match directory.run().await {} });
    network.operator.drain("r1", true).await.expect("it leads");
    network.wait_for("r1 is drained", &[("r2", "s"), ("e1", "r2")]).await;

    // Another controller leads with the drained node, and nodes follow its plans.
    network.kill_controller(leader);
    let killed_at = Instant::now();
    // Connections of the killed controller end slightly later.
    while network.leader().await == leader {
        assert!(killed_at.elapsed() < PATIENCE, "no other controller leads");
        sleep(Duration::from_millis(50)).await;
    }
    let took = killed_at.elapsed();
    println!("another controller leads after {took:.1?} of a lease of {LEASE:?}");
    let nodes = network.operator.nodes().await.expect("it leads");
    assert!(nodes.iter().any(|node| node.name == "r1" && node.is_draining), "{nodes:?}");
    network.operator.drain("r1", false).await.expect("it leads");
    network.wait_for("r1 carries streams again", &[("r1", "s"), ("e1", "r1")]).await;
    let lead = places.borrow().version().lead;
    assert!(lead >= 2, "the directory is of lead {lead}");

    // Without etcd no controller leads, and nodes continue by local control.
    etcd.kill();
    let began = Instant::now();
    while network.operator.trees().await.is_ok() {
        assert!(began.elapsed() < PATIENCE, "it leads without a lease");
        sleep(Duration::from_millis(100)).await;
    }
    sleep(LEASE * 2).await;
    assert!(!viewer.is_finished(), "{:?}", viewer.await);
    etcd.start();
    network.wait_for("a controller leads again", &[("r1", "s"), ("e1", "r1")]).await;
    assert!(!viewer.is_finished(), "{:?}", viewer.await);
    viewer.abort();
    follower.abort();
    publisher.abort();
}
