//! Three brokers around a real etcd: the leader is killed, and then etcd.
//!
//! The simulation in `broker-proto` covers hundreds of faults. These tests verify its assumptions
//! about the store.

use crate::service::{BrokerHome, RunningBroker, WITHIN, ask};
use anabranch_broker::wire::{Clients, ClientsRequest, PlaceClients};
use anabranch_broker::{ClientError, EtcdConfig, StoreConfig};
use anabranch_media::steering::SteeringManifest;
use anabranch_net::keys::Role;
use anabranch_testing::ports::free_port;
use anabranch_testing::skip::skip;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const LEASE: Duration = Duration::from_secs(2);

fn free() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

pub struct Etcd {
    program: PathBuf,
    folder: tempfile::TempDir,
    pub clients: SocketAddr,
    peers: SocketAddr,
    child: Option<Child>,
}

impl Etcd {
    pub fn new() -> Option<Self> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let program =
            std::env::split_paths(&paths).map(|path| path.join("etcd")).find(|path| path.is_file())?;
        let folder = tempfile::tempdir().expect("a folder");
        Some(Self { program, folder, clients: free(), peers: free(), child: None })
    }

    /// Starts etcd with the data of its last run.
    pub fn start(&mut self) {
        let (clients, peers) = (format!("http://{}", self.clients), format!("http://{}", self.peers));
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--name", "a", "--initial-cluster", &format!("a={peers}")]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        self.child = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it begins"));
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Etcd {
    /// Starts etcd without data, as if another store had replaced it.
    pub fn start_empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).expect("it was there");
        self.start();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Stage {
    pub house: BrokerHome,
    pub brokers: Vec<RunningBroker>,
}

impl Stage {
    pub async fn new(etcd: &Etcd) -> Self {
        let house = BrokerHome::empty();
        let mut brokers = Vec::new();
        for _ in 0..3 {
            let listen = free();
            let members = vec![format!("http://{}", etcd.clients)];
            let etcd = EtcdConfig::new(members, "/test/", listen.to_string()).with_lease(LEASE);
            let identity = house.identity(Role::Controller, "controller");
            let store = StoreConfig::Etcd { etcd, identity };
            brokers.push(house.serve("marketplace", None, store, listen).await.expect("it may begin"));
        }
        Self { house, brokers }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.brokers.iter().map(|broker| broker.address.clone()).collect()
    }

    async fn leads(&self, at: usize) -> bool {
        let metrics = self.house.operator_of(&self.brokers[at].address).text("/metrics").await;
        metrics.expect("it answers").contains("\nanabranch_broker_leads 1\n")
    }

    /// Waits for a leader among the brokers `of`, and returns its index.
    pub async fn leader(&self, of: &[usize]) -> usize {
        let began = Instant::now();
        loop {
            for &at in of {
                if self.leads(at).await {
                    return at;
                }
            }
            assert!(began.elapsed() < WITHIN, "nobody leads");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn round(&self, at: usize) -> u64 {
        self.house.operator_of(&self.brokers[at].address).decision().await.expect("it answers").round
    }

    /// Waits until broker `at` has a decision of a round after `round`. Returns the number of that
    /// round.
    async fn knows_after(&self, at: usize, round: u64) -> u64 {
        let began = Instant::now();
        loop {
            let now = self.round(at).await;
            if now > round {
                return now;
            }
            assert!(began.elapsed() < WITHIN, "broker {at} knows {now}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the first pathway in a broker's answer to a player.
    pub fn first(&self, at: usize) -> String {
        let (status, _, body) = ask(self.brokers[at].players, "/steering/hls?location=berlin&isp=x&viewer=5");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<SteeringManifest>(&body).expect("JSON").pathway_priority[0].clone()
    }

    /// Waits until a broker reports a network's agent as connected or disconnected.
    async fn is_up(&self, at: usize, network: &str, is_up: bool) {
        let began = Instant::now();
        loop {
            let networks = self.house.operator_of(&self.brokers[at].address).networks().await;
            let networks = networks.expect("it answers");
            if networks.iter().any(|one| one.name == network && one.up == is_up) {
                return;
            }
            assert!(began.elapsed() < WITHIN, "broker {at}: {networks:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sets clients at broker `at`; only the leader accepts them.
    async fn count(&self, at: usize) -> Result<(), ClientError> {
        let places = vec![PlaceClients {
            location: "berlin".to_owned(),
            isp: "x".to_owned(),
            clients: vec![Clients { bitrate_bps: 3_000_000, sessions: 40 }],
        }];
        let operator = self.house.operator_of(&self.brokers[at].address);
        operator.clients(&ClientsRequest { places }, WITHIN).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_broker_is_replaced_and_players_survive_killed_etcd() {
    let Some(mut etcd) = Etcd::new() else {
        return skip("several brokers share an etcd, and this machine has none (Debian: etcd-server)");
    };
    etcd.start();
    let mut stage = Stage::new(&etcd).await;
    let (_cheap, end_cheap) = stage.house.agent_of("cheap", stage.addresses());
    let (_near, _end_near) = stage.house.agent_of("near", stage.addresses());

    // One broker leads, and also counts the players of the other brokers.
    let first = stage.leader(&[0, 1, 2]).await;
    let others: Vec<usize> = (0..3).filter(|at| *at != first).collect();
    match stage.count(others[0]).await {
        Err(ClientError::Refused { status: 421, .. }) => {}
        other => panic!("{other:?}"),
    }
    for _ in 0..30 {
        stage.first(others[0]);
    }
    for at in 0..3 {
        stage.knows_after(at, 0).await;
        assert_eq!(stage.first(at), "cheap.1");
    }
    let decision =
        stage.house.operator_of(&stage.brokers[first].address).decision().await.expect("it answers");
    assert!(decision.placed.iter().map(|placed| placed.sessions).sum::<u32>() >= 30, "{decision:?}");

    // Followers also receive the list of connected networks between rounds.
    stage.is_up(others[0], "cheap", true).await;

    // The leader is killed.
    let before = stage.round(first).await;
    let killed_at = Instant::now();
    stage.brokers[first].kill();
    let second = stage.leader(&others).await;
    println!("another broker leads after {:.1?} of a lease of {LEASE:?}", killed_at.elapsed());
    stage.count(second).await.expect("it leads");
    let after = stage.knows_after(second, before).await;
    let third = others[usize::from(others[0] == second)];
    stage.knows_after(third, after).await;

    // etcd is killed: players are still served by the last decision, but no broker leads, and no
    // round is accepted.
    etcd.kill();
    let began = Instant::now();
    while stage.leads(second).await {
        assert!(began.elapsed() < WITHIN, "it cannot renew its lease, and leads");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stands = stage.round(second).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(stage.round(second).await, stands);
    assert_eq!((&*stage.first(second), &*stage.first(third)), ("cheap.1", "cheap.1"));

    // etcd starts again with its data.
    etcd.start();
    let again = stage.leader(&others).await;
    stage.count(again).await.expect("it leads");
    stage.knows_after(again, stands).await;

    // A network's agent ends, and the followers report the network as disconnected.
    let follows = if again == second { third } else { second };
    stage.is_up(follows, "cheap", true).await;
    end_cheap.send(()).expect("it runs");
    stage.is_up(follows, "cheap", false).await;
    let began = Instant::now();
    while stage.first(follows) != "near" {
        assert!(began.elapsed() < WITHIN, "players are told with the broker");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
