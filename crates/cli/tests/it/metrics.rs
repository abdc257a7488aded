//! Metrics of daemons on loopback, after a known amount of work.
//!
//! Each answer is parsed by a strict parser of Prometheus' format. The tests of `shuffle` and
//! `spray` scrape their agents, which need namespaces. Read [`scrape`] first.

use crate::net::{PATIENCE, TWO, noise};
use crate::silent::{World, block_on, free_address};
use anabranch_broker::wire::{Clients, ClientsRequest, PlaceClients};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use anabranch_testing::exposition::Exposition;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of each transferred file: not a multiple of a block.
const FILE_BYTES: usize = 3_000_001;

/// Scrapes the metrics of the daemon at this address.
pub fn scrape(at: SocketAddr) -> Exposition {
    let mut tcp = TcpStream::connect(at).expect("it listens");
    tcp.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).expect("text");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    Exposition::read(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// Scrapes until `holds` returns true.
fn scrape_until(at: SocketAddr, holds: impl Fn(&Exposition) -> bool) -> Exposition {
    let end = Instant::now() + PATIENCE;
    loop {
        let all = scrape(at);
        if holds(&all) {
            return all;
        }
        assert!(Instant::now() < end, "{all:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asserts values of series; names omit their prefix.
fn assert_values(all: &Exposition, wanted: &[(&str, usize)]) {
    for (series, value) in wanted {
        assert_eq!(all.value(series), Some(*value as f64), "{series}: {all:?}");
    }
}

fn identity(world: &World, keys: &str, system: System, (role, name): (Role, &str)) -> Identity {
    let files = CredentialFiles::in_set(&world.path(keys), system, role, name);
    Identity::load(&files).expect("they were made")
}

/// Starts a daemon with metrics, and returns the address of its metrics.
fn start(world: &mut World, words: &[&str]) -> SocketAddr {
    let at = free_address();
    let mut command = world.command(words);
    command.args(["--metrics", &at.to_string()]);
    world.start(command, at);
    at
}

#[test]
fn relays_and_controller_count_a_transfer_exactly() {
    let mut world = World::new();
    std::fs::write(world.path("network.toml"), TWO).expect("the folder is ours");
    world.done(&["replicate", "keys", "init", "--topology", "network.toml", "--out", "keys"]);
    let controller = free_address();
    let controller_at = controller.to_string();
    let mut command =
        world.command(&["replicate", "controller", "--topology", "network.toml", "--keys", "keys"]);
    command.args(["--store", "r.redb", "--listen", &controller_at]);
    world.start(command, controller);
    let relays = ["s", "d"].map(|site| {
        std::fs::create_dir(world.path(site)).expect("a new folder");
        let listen = free_address().to_string();
        let words = ["replicate", "relay", "--topology", "network.toml", "--keys", "keys", "--site", site];
        let more = ["--dir", site, "--controller", &controller_at, "--listen", &listen];
        start(&mut world, &[&words[..], &more].concat())
    });
    std::fs::write(world.path("s/file"), noise(1, FILE_BYTES)).expect("the folder is ours");
    let send = ["replicate", "send", "file", "--from", "s", "--to", "d", "--keys", "keys", "--controller"];
    world.done(&[&send[..], &[&controller_at]].concat());

    let ended = |all: &Exposition| all.value("replicate_relay_attempts") == Some(0.0);
    let [source, destination] = relays.map(|at| scrape_until(at, ended));
    assert_values(
        &source,
        &[
            ("replicate_relay_sent_bytes_total{to=\"d\"}", FILE_BYTES),
            ("replicate_relay_received_bytes_total{from=\"d\"}", 0),
            ("replicate_relay_files_total", 0),
            ("replicate_relay_attempt_seconds_count", 1),
            ("replicate_relay_memory_bytes", 0),
        ],
    );
    assert_values(
        &destination,
        &[
            ("replicate_relay_sent_bytes_total{to=\"s\"}", 0),
            ("replicate_relay_received_bytes_total{from=\"s\"}", FILE_BYTES),
            ("replicate_relay_files_total", 1),
            ("replicate_relay_file_bytes_total", FILE_BYTES),
            ("replicate_relay_file_seconds_count", 1),
            ("replicate_relay_attempt_seconds_count", 1),
        ],
    );
    for all in [&source, &destination] {
        assert_eq!(all.sum("replicate_relay_failures_total"), Some(0.0), "{all:?}");
    }
    let operator = identity(&world, "keys", anabranch_replicate::SYSTEM, (Role::Operator, "operator"));
    block_on(async {
        let client = anabranch_replicate::Client::new(&controller_at, &operator, PATIENCE);
        let text = client.expect("good settings").text("/metrics").await.expect("it answers");
        let all = Exposition::read(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
        assert_values(
            &all,
            &[
                ("replicate_delivered_bytes_total{site=\"d\"}", FILE_BYTES),
                ("replicate_delivered_bytes_total{site=\"s\"}", 0),
                ("replicate_verdicts_total{site=\"d\",verdict=\"done\"}", 1),
                ("replicate_transfers_ended_total{outcome=\"done\"}", 1),
                ("replicate_transfer_seconds_count", 1),
                ("replicate_transfers{state=\"over\"}", 1),
                ("replicate_site_up{site=\"d\"}", 1),
            ],
        );
        assert_eq!(all.sum("replicate_failures_total"), Some(0.0), "{text}");
    });
}

#[test]
fn gather_server_counts_the_bytes_of_an_object() {
    let mut world = World::new();
    world.done(&["gather", "keys", "--out", "keys"]);
    world.done(&["gather", "keys", "--out", "foreign"]);
    std::fs::create_dir(world.path("served")).expect("a new folder");
    std::fs::write(world.path("served/file"), noise(2, FILE_BYTES)).expect("the folder is ours");
    std::fs::write(world.path("served/short"), noise(3, 1_000)).expect("the folder is ours");
    let listen = free_address().to_string();
    let at = start(&mut world, &["gather", "serve", "served", "--keys", "keys", "--listen", &listen]);
    let get = |name: &str, keys: &str| {
        let (object, out) = (format!("{listen}/{name}"), format!("{keys}-{name}"));
        world.command(&["gather", "get", &object, "--keys", keys, "-o", &out]).output().expect("it runs")
    };
    assert!(get("file", "keys").status.success());
    let left = |all: &Exposition| all.value("gather_clients") == Some(0.0);
    let all = scrape_until(at, left);
    assert_values(&all, &[("gather_object_bytes_total", FILE_BYTES), ("gather_clients_total", 1)]);
    assert_eq!(all.value("gather_pulls_total"), all.value("gather_pull_seconds_count"), "{all:?}");
    assert!(all.value("gather_sent_bytes_total") > Some(FILE_BYTES as f64), "{all:?}");
    assert_eq!(all.sum("gather_failures_total"), Some(0.0), "{all:?}");

    assert!(get("short", "keys").status.success());
    let all = scrape_until(at, |all| left(all) && all.value("gather_clients_total") == Some(2.0));
    assert_values(&all, &[("gather_object_bytes_total", FILE_BYTES + 1_000)]);
    assert!(!get("file", "foreign").status.success(), "another authority signed these keys");
    let refused = "gather_failures_total{cause=\"no_client\"}";
    let all = scrape_until(at, |all| all.value(refused) > Some(0.0));
    assert_eq!(all.sum("gather_failures_total"), all.value(refused), "{all:?}");
}

#[test]
fn agent_of_a_network_counts_an_accepted_round() {
    let mut world = World::new();
    world.done(&["broker", "keys", "--networks", "near", "--operators", "operator", "--out", "keys"]);
    let folder = world.path(".");
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("the folder is ours");
    write("contracts.toml", "[[network]]\nname = \"near\"\n");
    write("clusters.toml", "[[cluster]]\nnumber = 1\ncost = 1.0\ncapacity = \"1 Gbit/s\"\n");
    write("scores.csv", "location,isp,cluster,score\nberlin,*,1,10\n");
    let (listen, players) = (free_address(), free_address());
    let (listen_at, players_at) = (listen.to_string(), players.to_string());
    let words = ["broker", "serve", "--keys", "keys", "--every", "1", "--bids-within", "60", "--listen"];
    let command = world.command(&[&words[..], &[&listen_at, "--players", &players_at]].concat());
    world.start(command, players);
    let words = ["broker", "cdn", "--keys", "keys", "--name", "near", "--broker", &listen_at];
    let at = start(&mut world, &words);
    let operator = identity(&world, "keys", anabranch_broker::SYSTEM, (Role::Operator, "operator"));
    let client = anabranch_broker::Client::new(&listen_at, &operator, PATIENCE).expect("good settings");
    block_on(async {
        let clients = vec![Clients { bitrate_bps: 1_000_000, sessions: 40 }];
        let place = PlaceClients { location: "berlin".to_owned(), isp: "x".to_owned(), clients };
        client.clients(&ClientsRequest { places: vec![place] }, PATIENCE).await.expect("it takes them");
    });
    let all = scrape_until(at, |all| all.value("broker_agent_sessions") == Some(40.0));
    assert_values(
        &all,
        &[("broker_agent_joined", 1), ("broker_agent_joins_total", 1), ("broker_agent_rate_bps", 40_000_000)],
    );
    assert!(all.value("broker_agent_rounds_total") >= Some(1.0), "{all:?}");
    assert!(all.value("broker_agent_bids_total") >= Some(1.0), "{all:?}");
    assert!(all.value("broker_agent_request_seconds_count") >= Some(2.0), "a join and bids: {all:?}");
    assert_eq!(all.sum("broker_agent_failures_total"), Some(0.0), "{all:?}");
    // The scores name cluster 2, which does not exist.
    write("scores.csv", "location,isp,cluster,score\nberlin,*,2,10\n");
    let files = "broker_agent_failures_total{broker=\"\",cause=\"files\"}";
    scrape_until(at, |all| all.value(files) >= Some(1.0));
    block_on(async {
        let text = client.text("/metrics").await.expect("it answers");
        let all = Exposition::read(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
        assert!(all.value("broker_rounds_total") >= Some(1.0), "{text}");
        assert_values(&all, &[("broker_networks_up", 1), ("broker_joins_total", 1)]);
        assert_eq!(all.sum("broker_failures_total"), Some(0.0), "{text}");
    });
}
