//! Tests of `shuffle`'s coordinator on loopback, with mutual TLS over real sockets and scripted
//! agents.
#![allow(clippy::disallowed_methods, reason = "real sockets and files under test")]

use anabranch_fluid::{ActiveFlows, Allocator, Event};
use anabranch_http::answer::BODY_BYTES_MAX;
use anabranch_http::exercise::damages;
use anabranch_http::{ClientError, ServeConfig, Server};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_shuffle::wire::{JoinRequest, ReportsRequest};
use anabranch_shuffle::{Client, CoordinatorService, CoordinatorServiceConfig};
use anabranch_shuffle_proto::ChasePlus;
use anabranch_shuffle_proto::control::{FlowKey, Limit, Report};
use anabranch_shuffle_proto::hosts::Hosts;
use anabranch_units::Duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration as StdDuration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const PATIENCE: StdDuration = StdDuration::from_secs(60);
const HOSTS: [&str; 3] = ["h0", "h1", "h2"];
const LINK_BPS: u64 = 100_000_000;

struct World {
    folder: PathBuf,
    running: Option<JoinHandle<()>>,
    address: SocketAddr,
    silence_max: Duration,
    /// The hosts file. Without one, the agents' claims are accepted.
    hosts: Option<Hosts>,
    gate: Arc<Gate>,
}

/// A gate that blocks decisions while it is shut.
#[derive(Default)]
struct Gate {
    /// True if the gate is shut, and true if a decision waits at the gate.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn set_shut(&self, is_shut: bool) {
        self.state.lock().expect("no panic").0 = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.1 = state.0;
        // The timeout ends a test that failed.
        state = self.changed.wait_timeout_while(state, PATIENCE, |state| state.0).expect("no panic").0;
        state.1 = false;
    }

    fn is_waited_at(&self) -> bool {
        self.state.lock().expect("no panic").1
    }
}

/// A scheduler that passes the gate before each decision.
struct GatedScheduler {
    inner: ChasePlus,
    gate: Arc<Gate>,
}

impl Allocator for GatedScheduler {
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        self.gate.pass();
        self.inner.allocate(event, active);
    }
}

impl World {
    async fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("anabranch-shuffle-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let request = SetRequest {
            system: anabranch_shuffle::SYSTEM,
            sites: HOSTS.map(str::to_owned).to_vec(),
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: 2,
        };
        write_set(&folder, &make_set(&request).expect("a good request")).expect("an empty folder");
        let silence_max = Duration::from_secs(60);
        let mut world = Self {
            folder,
            running: None,
            address: ([127, 0, 0, 1], 0).into(),
            silence_max,
            hosts: None,
            gate: Arc::default(),
        };
        world.start().await;
        world
    }

    async fn start(&mut self) {
        // Connections of a killed task are closed with a delay, so the store may still be open.
        let mut tries = 0;
        let service = loop {
            let store = self.folder.join("coordinator.redb");
            let gate = Arc::clone(&self.gate);
            let allocator = move || -> Box<dyn Allocator + Send> {
                Box::new(GatedScheduler { inner: ChasePlus::default(), gate: Arc::clone(&gate) })
            };
            let mut config = CoordinatorServiceConfig::new(allocator, store);
            config.sessions.silence_max = self.silence_max;
            (config.are_addresses_trusted, config.hosts) = (self.hosts.is_none(), self.hosts.clone());
            match CoordinatorService::open(config) {
                Ok(service) => break service,
                Err(error) if tries == 3_000 => panic!("{error}"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(StdDuration::from_millis(20)).await;
        };
        let config = ServeConfig { address: self.address, ..ServeConfig::default() };
        let identity = self.credentials(Role::Controller, "controller");
        let server = Server::bind(service, &identity, config).await.expect("a free port");
        self.address = server.local_addr().expect("it is bound");
        self.running = Some(tokio::spawn(server.run()));
    }

    async fn restart(&mut self) {
        let running = self.running.take().expect("it runs");
        running.abort();
        let _ = running.await;
        self.start().await;
    }

    fn credentials(&self, role: Role, name: &str) -> Identity {
        Identity::load(&CredentialFiles::in_set(&self.folder, anabranch_shuffle::SYSTEM, role, name))
            .expect("they were written")
    }

    fn client(&self, role: Role, name: &str) -> Client {
        Client::new(&format!("https://{}", self.address), &self.credentials(role, name), PATIENCE)
            .expect("good settings")
    }

    fn operator(&self) -> Client {
        self.client(Role::Operator, "operator")
    }

    /// Returns a joined agent of one host.
    async fn agent(&self, host: usize) -> Agent {
        let agent = Agent { client: self.client(Role::Site, HOSTS[host]), host, session: 1 };
        agent.join(vec![]).await.expect("it joins");
        agent
    }

    /// Sends bytes as a host's agent, and returns the coordinator's answer.
    async fn raw(&self, host: usize, request: &str) -> String {
        let identity = self.credentials(Role::Site, HOSTS[host]);
        let tcp = TcpStream::connect(self.address).await.expect("it listens");
        let mut stream = identity.connect(tcp, Role::Controller, "controller").await.expect("it is the one");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("text");
        reply
    }

    async fn post(&self, host: usize, path: &str, body: &str) -> String {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}");
        self.raw(host, &format!("{head}\r\n\r\n{body}")).await
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Agent {
    client: Client,
    host: usize,
    session: u64,
}

impl Agent {
    async fn join(&self, reports: Vec<Report>) -> Result<(), ClientError> {
        let addresses = vec![[10, 0, 0, self.host as u8].into()];
        let request = JoinRequest { session: self.session, addresses, link_rate_bps: LINK_BPS, reports };
        self.client.join(HOSTS[self.host], &request, PATIENCE).await
    }

    async fn report(&self, reports: Vec<Report>) -> Result<(), ClientError> {
        let request = ReportsRequest { session: self.session, reports };
        self.client.report(HOSTS[self.host], &request, PATIENCE).await
    }

    async fn limits(&self) -> Result<Vec<Limit>, ClientError> {
        let wait = StdDuration::from_secs(10);
        self.client.limits(HOSTS[self.host], self.session, wait, PATIENCE).await
    }

    /// Waits until the only flow has this limit, which may take several answers.
    async fn limited(&self, flow: FlowKey, bps: u64) {
        let mut last = Vec::new();
        for _ in 0..8 {
            last = self.limits().await.expect("an answer");
            if last == [Limit { flow, rate_bps: Some(bps) }] {
                return;
            }
        }
        panic!("{last:?}");
    }
}

fn key(from: u8, to: u8, port: u16) -> FlowKey {
    FlowKey { local: ([10, 0, 0, from], port).into(), remote: ([10, 0, 0, to], 7_000).into() }
}

fn flow(flow: FlowKey, coflow: &str, megabytes: u64) -> Report {
    Report::Flow { flow, coflow: coflow.into(), size_bytes: 1_000_000 * megabytes, open_ended: false }
}

fn status(result: Result<impl std::fmt::Debug, ClientError>) -> u16 {
    match result {
        Err(ClientError::Refused { status, error }) => {
            assert!(!error.contains('\n'), "{error}");
            status
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_of_one_agent_becomes_anothers_limit() {
    let mut world = World::new("whole").await;
    let agents = [world.agent(0).await, world.agent(1).await, world.agent(2).await];
    agents[0].report(vec![flow(key(0, 2, 1), "a", 30)]).await.expect("it is taken");
    let all = LINK_BPS;
    agents[0].limited(key(0, 2, 1), all).await;
    // The larger coflow on the same link waits, with the minimum rate of a flow.
    let (waiting, reported) =
        tokio::join!(agents[1].limits(), agents[1].report(vec![flow(key(1, 2, 2), "b", 90)]));
    reported.expect("it is taken");
    let waiting = waiting.expect("one");
    assert!(waiting[0].flow == key(1, 2, 2) && waiting[0].rate_bps < Some(all / 10), "{waiting:?}");
    agents[0]
        .report(vec![Report::Moved { flow: key(0, 2, 1), moved_bytes: 30_000_000 }])
        .await
        .expect("taken");
    let (freed, ended) =
        tokio::join!(agents[1].limits(), agents[0].report(vec![Report::Ended { flow: key(0, 2, 1) }]));
    ended.expect("it is taken");
    if freed.expect("one") != [Limit { flow: key(1, 2, 2), rate_bps: Some(all) }] {
        agents[1].limited(key(1, 2, 2), all).await;
    }

    let operator = world.operator();
    let view = operator.coflows().await.expect("it is there");
    assert_eq!((view.coflows.len(), view.flows_left_out), (1, 0));
    let b = &view.coflows[0];
    assert_eq!((b.name.as_str(), b.flows[0].host.as_str(), b.flows[0].rate_bps), ("b", "h1", Some(all)));
    assert_eq!(b.flows[0].remote, key(1, 2, 2).remote);
    let hosts = operator.hosts().await.expect("it is there");
    assert!(hosts.iter().all(|host| host.up && host.link_rate_bps == all) && hosts.len() == 3);
    let metrics = operator.text("/metrics").await.expect("text");
    for line in ["hosts_up 3", "flows 1", "coflows 1", "reports_total 4"] {
        assert!(metrics.contains(&format!("\nanabranch_shuffle_{line}\n")), "{line}: {metrics}");
    }
    assert!(metrics.contains("anabranch_shuffle_decision_seconds_count "), "{metrics}");
    anabranch_testing::exposition::check_table("docs/shuffle.md", "shuffle coordinator", &metrics);
    assert!(operator.text("/healthz").await.expect("text").contains("ok"));
    assert!(operator.text("/openapi.json").await.expect("text").contains("/v1/hosts/{host}/limits"));

    let ended = loop {
        let ended = operator.history(9).await.expect("it is there");
        if !ended.is_empty() {
            break ended;
        }
        tokio::time::sleep(StdDuration::from_millis(5)).await;
    };
    assert_eq!((ended[0].name.as_str(), ended[0].flows, ended[0].moved_bytes), ("a", 1, 30_000_000));
    world.restart().await;
    assert_eq!(world.operator().history(9).await.expect("it is there"), ended);

    // Agents of the earlier session must join again, and report all flows at once.
    let left = vec![flow(key(1, 2, 2), "b", 90)];
    assert_eq!(status(agents[1].report(vec![]).await), 409);
    assert_eq!(status(agents[1].limits().await), 409);
    agents[1].join(left).await.expect("it joins");
    agents[1].limited(key(1, 2, 2), all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_report_only_themselves_and_garbage_is_refused() {
    let world = World::new("refused").await;
    let agent = world.agent(0).await;
    let as_another = Agent { client: world.client(Role::Site, "h1"), host: 0, session: 1 };
    let as_operator = Agent { client: world.operator(), host: 0, session: 1 };
    for other in [as_another, as_operator] {
        assert_eq!(status(other.join(vec![]).await), 403);
        assert_eq!(status(other.report(vec![]).await), 403);
        assert_eq!(status(other.limits().await), 403);
        assert_eq!(status(other.client.leave("h0", 1, PATIENCE).await), 403);
    }
    assert_eq!(status(agent.client.coflows().await), 403);
    let stranger = Agent { client: world.client(Role::Site, "h0"), host: 0, session: 9 };
    assert_eq!(status(stranger.report(vec![]).await), 409);
    assert_eq!(status(stranger.limits().await), 409);
    assert_eq!(status(agent.report(vec![flow(key(0, 1, 1), "two words", 1)]).await), 400);
    let good = r#"{"session":1,"addresses":["10.0.0.1"],"link_rate_bps":1000001}"#;
    for (path, body) in [
        ("join", "{"),
        ("join", "\u{0}\u{ff}"),
        ("join", "[]"),
        ("join", &good.replace("1000001}", "99999}")),
        ("join", &good.replace("1000001}", "-1}")),
        ("join", &good.replace("10.0.0.1", "10.0.0.256")),
        ("join", &good.replace('}', r#","more":1}"#)),
        ("reports", r#"{"session":1,"reports":[{"report":"flow"}]}"#),
        ("reports", r#"{"session":1,"reports":[{"report":"nothing"}]}"#),
        ("leave", r#"{"session":"1"}"#),
    ] {
        let reply = world.post(0, &format!("/v1/hosts/h0/{path}"), body).await;
        let (head, body) = reply.split_once("\r\n\r\n").expect("a body");
        assert!(head.starts_with("HTTP/1.1 400") && body.starts_with(r#"{"error":""#), "{path}: {reply}");
        assert!(!body.contains('\n'), "{reply}");
    }
    let large = format!("[{}", " ".repeat(5 << 20));
    let reply = world.post(0, "/v1/hosts/h0/reports", &large).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    agent.report(vec![]).await.expect("nothing of it has done any harm");
}

/// The connection was reset while the peer still sent, so under load the peer lost the answer
/// (#18).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_sender_may_continue_and_learns_the_reason() {
    let world = World::new("lingers").await;
    let identity = world.credentials(Role::Site, HOSTS[0]);
    let tcp = TcpStream::connect(world.address).await.expect("it listens");
    let mut stream = identity.connect(tcp, Role::Controller, "controller").await.expect("it is the one");
    let (taken, rest) = (BODY_BYTES_MAX + 1, 4 << 20);
    let head = "POST /v1/hosts/h0/reports HTTP/1.1\r\nHost: a\r\nContent-Length:";
    stream.write_all(format!("{head} {}\r\n\r\n", taken + rest).as_bytes()).await.expect("it reads");
    stream.write_all(&vec![b' '; taken]).await.expect("it reads");
    let mut reply = Vec::new();
    while !reply.ends_with(b"}") {
        assert_ne!(stream.read_buf(&mut reply).await.expect("an answer"), 0);
    }
    assert!(reply.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&reply));
    stream.write_all(&vec![b' '; rest]).await.expect("it reads on");
    stream.shutdown().await.expect("it reads on");
    assert_eq!(stream.read_buf(&mut reply).await.expect("the end, and no reset"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_agent_leaves_after_a_timeout_leaving_one_immediately() {
    let mut world = World::new("silent").await;
    // Longer than a busy machine stops an agent that reports.
    world.silence_max = Duration::from_secs(5);
    world.restart().await;
    let (talks, silent) = (world.agent(0).await, world.agent(1).await);
    let ups = async || {
        let hosts = world.operator().hosts().await.expect("it is there");
        hosts.into_iter().filter(|host| host.up).map(|host| host.name).collect::<Vec<_>>()
    };
    let talking = async {
        loop {
            talks.report(vec![]).await.expect("it is known");
            tokio::time::sleep(StdDuration::from_millis(50)).await;
        }
    };
    let refused = tokio::select! { never = talking => never, refused = silent.limits() => refused };
    assert_eq!(status(refused), 409);
    assert_eq!(ups().await, ["h0"]);
    talks.client.leave("h0", 1, PATIENCE).await.expect("it is known");
    assert_eq!(ups().await, Vec::<String>::new());
    silent.join(vec![]).await.expect("it joins again");
    assert_eq!(ups().await, ["h1"]);
    let hosts = world.operator().hosts().await.expect("it is there");
    assert_eq!(hosts.iter().map(|host| host.joins).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_agent_replaces_the_previous_one() {
    let world = World::new("again").await;
    let first = world.agent(0).await;
    let second = Agent { client: world.client(Role::Site, "h0"), host: 0, session: 2 };
    let (refused, joined) = tokio::join!(first.limits(), async {
        // The second agent joins later, so that the first agent's request may already wait. That
        // request is refused in any case.
        tokio::time::sleep(StdDuration::from_millis(20)).await;
        second.join(vec![flow(key(0, 1, 1), "a", 1)]).await
    });
    joined.expect("it joins");
    assert_eq!(status(refused), 409);
    assert_eq!(status(first.report(vec![]).await), 409);
    first.client.leave("h0", 1, PATIENCE).await.expect("who has gone may say so");
    assert_eq!(second.limits().await.expect("one").len(), 1);
}

/// A host could claim any address, even other hosts' addresses, and so slow down their traffic
/// (#17).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_has_its_files_addresses_or_its_own() {
    let mut world = World::new("addresses").await;
    let join = async |world: &World, host: usize, addresses: &[&str]| {
        let client = world.client(Role::Site, HOSTS[host]);
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        let request = JoinRequest { session: 7, addresses, link_rate_bps: LINK_BPS, reports: Vec::new() };
        client.join(HOSTS[host], &request, PATIENCE).await
    };
    let refused = |result: Result<(), ClientError>, says: &str| {
        let Err(ClientError::Refused { status: 403, error }) = result else { panic!("{result:?}") };
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    };
    world.hosts = Some(
        "[[uplink]]\nname = 'rack'\nrate = '1 Gbit/s'\n\
        [[host]]\nname = 'h0'\naddresses = ['10.0.0.1', '10.0.1.1']\nlink = '1 Gbit/s'\nuplinks = ['rack']\n\
        [[host]]\nname = 'h1'\n"
            .parse()
            .expect("good hosts"),
    );
    world.restart().await;
    refused(join(&world, 0, &["10.0.0.9"]).await, "10.0.0.9: is not host h0's");
    refused(join(&world, 0, &["10.0.0.1", "127.0.0.1"]).await, "127.0.0.1: is not host h0's");
    refused(join(&world, 2, &[]).await, "h2: is not in the coordinator's --hosts file");
    for addresses in [&["10.0.1.1"][..], &[]] {
        join(&world, 0, addresses).await.expect("its own");
    }
    // A host without addresses in the file may claim its source address and the addresses of this
    // machine.
    refused(join(&world, 1, &["10.0.0.1"]).await, "speaks from 127.0.0.1");
    for addresses in [&["127.0.0.3"][..], &[]] {
        join(&world, 1, addresses).await.expect("its own");
    }
    assert_eq!(status(join(&world, 1, &["224.0.0.1"]).await), 400);
    let hosts = world.operator().hosts().await.expect("it is there");
    let h0 = &hosts[0];
    assert_eq!((h0.link_rate_bps, h0.uplinks[0].name.as_str()), (1_000_000_000, "rack"));
    assert_eq!((hosts[1].link_rate_bps, hosts[1].uplinks.len()), (LINK_BPS, 0));
    // A join with the host's own address is accepted, and does not count as refused.
    join(&world, 1, &["127.0.0.1"]).await.expect("its own");
    let metrics = world.operator().text("/metrics").await.expect("text");
    assert!(metrics.contains("anabranch_shuffle_joins_refused_total 5"), "{metrics}");
}

/// #17: with 64,000 flows of one host a decision took more than a second, during which no request
/// was answered, so all agents lifted their limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_operators_are_served_during_a_decision() {
    let world = World::new("held").await;
    let (first, second) = (world.agent(0).await, world.agent(1).await);
    world.gate.set_shut(true);
    first.report(vec![flow(key(0, 1, 1), "a", 100)]).await.expect("it is heard");
    while !world.gate.is_waited_at() {
        tokio::time::sleep(StdDuration::from_millis(5)).await;
    }
    // Each of these requests is answered before the decision ends.
    second.report(vec![flow(key(1, 0, 2), "b", 100)]).await.expect("it is heard");
    let third = world.agent(2).await;
    third.report(vec![flow(key(2, 0, 3), "c", 100)]).await.expect("it is heard");
    third.report(vec![Report::Ended { flow: key(2, 0, 3) }]).await.expect("it is heard");
    assert_eq!(world.operator().coflows().await.expect("an answer").coflows.len(), 2);
    assert!(world.gate.is_waited_at(), "nothing was decided yet");
    world.gate.set_shut(false);
    first.limited(key(0, 1, 1), LINK_BPS).await;
    second.limited(key(1, 0, 2), LINK_BPS).await;
}

/// #17: a damaged store made the start panic.
#[tokio::test]
async fn damaged_store_is_refused_or_read_as_it_was() {
    let folder = std::env::temp_dir().join(format!("anabranch-shuffle-{}-damaged", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable temporary folder");
    damages(&folder.join("store.redb"), |path| {
        let config = CoordinatorServiceConfig::new(|| Box::new(ChasePlus::default()), path);
        CoordinatorService::open(config).map(drop)
    });
    std::fs::remove_dir_all(&folder).expect("ours");
}

/// Replays the corpora of the fuzz targets. The coordinator must refuse files whose names begin
/// with `bad`, and accept all other files.
#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    assert!(anabranch_testing::replay("shuffle_http", anabranch_shuffle::exercise) >= 8);
    assert!(anabranch_testing::replay("shuffle_limits", anabranch_shuffle::exercise_limits) >= 8);
}
