//! A broker, two networks' agents over mutual TLS, and players over plain HTTP.

use anabranch_broker::network::Files;
use anabranch_broker::wire::{
    Bids, Clients, ClientsRequest, ClusterBid, DecisionView, PlaceClients, ShareBids,
};
use anabranch_broker::{
    BrokerService, BrokerServiceConfig, Client, ClientError, NetworkAgent, NetworkConfig, OpenError,
    PublicConfig, PublicServer, ServeConfig, Server, StoreConfig,
};
use anabranch_broker_proto::broker::Settings;
use anabranch_broker_proto::designs;
use anabranch_media::prefixes::PrefixTable;
use anabranch_media::steering::SteeringManifest;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::Duration as Span;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

pub const WITHIN: Duration = Duration::from_secs(60);
/// Longer than each of these tests, so a viewer that sends one request counts until the end.
const TTL_S: u32 = 600;
const CONTRACTS: &str = r#"
[[network]]
name = "cheap"
price_max = 50
[[network.cluster]]
number = 1
host = "cheap-1.example"
[[network]]
name = "near"
"#;

/// A running broker.
pub struct RunningBroker {
    pub players: SocketAddr,
    pub address: String,
    tasks: Vec<AbortHandle>,
}

impl RunningBroker {
    /// Stops the broker as a kill would: none of its tasks runs on.
    pub fn kill(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

/// A folder with keys and files, and a broker if one was started.
pub struct BrokerHome {
    folder: tempfile::TempDir,
    players: SocketAddr,
    address: String,
    running: Vec<AbortHandle>,
}

impl BrokerHome {
    /// Starts a broker with this design. `url` is the public address of its port for players.
    async fn new(design: &str, url: Option<&str>) -> Self {
        let mut house = Self::empty();
        house.start(design, url).await;
        house
    }

    /// Creates the folder without a broker.
    pub fn empty() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let request = SetRequest {
            system: anabranch_broker::SYSTEM,
            sites: names(&["cheap", "near"]),
            operators: names(&["me"]),
            controller_hosts: Vec::new(),
            valid_days: 1,
        };
        write_set(&folder.path().join("keys"), &make_set(&request).expect("names are right")).expect("room");
        let nowhere = ([127, 0, 0, 1], 0).into();
        let house = Self { folder, players: nowhere, address: String::new(), running: Vec::new() };
        house.write("cheap", &[(1, 1.0)], &[("berlin", 1, 20.0)]);
        house.write("near", &[(7, 9.0)], &[("berlin", 7, 19.0), ("paris", 7, 5.0)]);
        house
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn identity(&self, role: Role, name: &str) -> Identity {
        let files = CredentialFiles::in_set(&self.path("keys"), anabranch_broker::SYSTEM, role, name);
        Identity::load(&files).expect("keys were made")
    }

    /// Writes a network's files.
    fn write(&self, network: &str, clusters: &[(u32, f64)], scores: &[(&str, u32, f64)]) {
        let clusters: Vec<String> = clusters
            .iter()
            .map(|(number, cost)| {
                format!("[[cluster]]\nnumber = {number}\ncost = {cost:?}\ncapacity = \"1 Gbit/s\"\n")
            })
            .collect();
        let scores: Vec<String> =
            scores.iter().map(|(place, cluster, score)| format!("{place},*,{cluster},{score}\n")).collect();
        std::fs::write(self.path(&format!("{network}.toml")), clusters.concat()).expect("room");
        let text = format!("location,isp,cluster,score\n{}", scores.concat());
        std::fs::write(self.path(&format!("{network}.csv")), text).expect("room");
    }

    /// Starts a broker in place of the running one.
    async fn start(&mut self, design: &str, url: Option<&str>) {
        for running in self.running.drain(..) {
            running.abort();
        }
        // The store is locked until the previous broker has ended.
        let began = Instant::now();
        let running = loop {
            let store = StoreConfig::File(self.path("store"));
            match self.serve(design, url, store, ([127, 0, 0, 1], 0).into()).await {
                Ok(running) => break running,
                Err(error) if began.elapsed() > WITHIN => panic!("{error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        (self.players, self.address, self.running) = (running.players, running.address, running.tasks);
    }

    /// Starts a broker with this store and this address for networks.
    pub async fn serve(
        &self,
        design: &str,
        url: Option<&str>,
        store: StoreConfig,
        listen: SocketAddr,
    ) -> Result<RunningBroker, OpenError> {
        let settings = Settings {
            every: Span::from_ms(300),
            bids_within: Span::from_secs(5),
            ..Settings::new(designs::by_name(design).expect("there is one"))
        };
        let contracts = CONTRACTS.parse().expect("they are right");
        let service = BrokerService::open(BrokerServiceConfig {
            settings,
            contracts,
            store,
            ttl_s: TTL_S,
            believes_players: true,
        })?;
        let url = url.map(str::to_owned);
        let public = PublicConfig { address: ([127, 0, 0, 1], 0).into(), url, ..PublicConfig::default() };
        let public = PublicServer::bind(service.clone(), public).expect("a free port");
        let players = public.local_addr().expect("it is bound");
        let serve = ServeConfig { address: listen, ..ServeConfig::default() };
        let server = Server::bind(service, &self.identity(Role::Controller, "controller"), serve).await;
        let server = server.expect("a free port");
        let address = server.local_addr().expect("it is bound").to_string();
        let tasks =
            vec![tokio::spawn(public.run()).abort_handle(), tokio::spawn(server.run()).abort_handle()];
        Ok(RunningBroker { players, address, tasks })
    }

    fn agent(&self, name: &str) -> (JoinHandle<()>, oneshot::Sender<()>) {
        self.agent_of(name, vec![self.address.clone()])
    }

    /// Starts a network's agent for these brokers.
    pub fn agent_of(&self, name: &str, brokers: Vec<String>) -> (JoinHandle<()>, oneshot::Sender<()>) {
        let files =
            Files { clusters: self.path(&format!("{name}.toml")), scores: self.path(&format!("{name}.csv")) };
        let config = NetworkConfig { name: name.to_owned(), brokers, files };
        let agent = NetworkAgent::new(config, &self.identity(Role::Site, name)).expect("files are right");
        let (end, ended) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let ended = async {
                let _ = ended.await;
            };
            agent.run(ended).await.expect("it may join");
        });
        (running, end)
    }

    fn operator(&self) -> Client {
        self.operator_of(&self.address)
    }

    /// Creates an operator's client of this broker.
    pub fn operator_of(&self, address: &str) -> Client {
        Client::new(address, &self.identity(Role::Operator, "me"), WITHIN).expect("right")
    }

    async fn count(&self, places: &[(&str, u32)]) {
        let places = places.iter().map(|(location, sessions)| PlaceClients {
            location: (*location).to_owned(),
            isp: "x".to_owned(),
            clients: vec![Clients { bitrate_bps: 3_000_000, sessions: *sessions }],
        });
        let request = ClientsRequest { places: places.collect() };
        self.operator().clients(&request, WITHIN).await.expect("it is taken");
    }

    /// Sends a player's request from a city until the first pathway is `way`. Returns that answer.
    async fn told_first(&self, location: &str, way: &str) -> SteeringManifest {
        let began = Instant::now();
        loop {
            let (status, _, body) =
                ask(self.players, &format!("/steering/hls?location={location}&isp=x&viewer=5"));
            let steering: Option<SteeringManifest> =
                (status == 200).then(|| serde_json::from_str(&body).expect("JSON"));
            match steering {
                Some(steering) if steering.pathway_priority[0] == way => return steering,
                other => assert!(began.elapsed() < WITHIN, "{status} {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Sends a GET request. Returns status, head and body of the answer.
pub fn ask(address: SocketAddr, path: &str) -> (u16, String, String) {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

pub fn send(address: SocketAddr, text: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(WITHIN)).expect("some time");
    stream.write_all(text.as_bytes()).expect("it takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_lowercase(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn players_get_connected_clusters_of_the_decision() {
    let mut house = BrokerHome::new("marketplace", None).await;
    let (status, head, body) = ask(house.players, "/steering/hls");
    assert_eq!(status, 200, "the manifest's own ways are known: {body}");
    assert!(
        head.contains("access-control-allow-origin: *") && head.contains("cache-control: no-store"),
        "{head}"
    );
    assert!(head.contains("content-type: application/vnd.apple.steering-list"), "{head}");

    let (_cheap, _end_cheap) = house.agent("cheap");
    let (_near, _end_near) = house.agent("near");
    house.count(&[("berlin", 40), ("paris", 10)]).await;
    let steering = house.told_first("berlin", "cheap.1").await;
    assert_eq!(steering.ttl, TTL_S);
    assert_eq!(steering.pathway_clones[0].uri_replacement.host, "cheap-1.example");
    // The other pathways follow as fallbacks, although only one network has bid.
    assert_eq!(house.told_first("paris", "near").await.pathway_priority, ["near", "cheap.1", "cheap"]);
    // The reload address repeats the answer, although the broker keeps no state of the player.
    let (_, _, again) = ask(house.players, &format!("/steering/hls{}", steering.reload_uri));
    assert_eq!(serde_json::from_str::<SteeringManifest>(&again).expect("JSON"), steering);
    // A player without content steering is redirected, with the parameters that the cluster needs
    // (#52).
    let signed = "token=a%2fb&location=berlin&_hls_msn=7&isp=x&flag";
    let (status, head, _) = ask(house.players, &format!("/redirect/show/1%20a.m3u8?{signed}"));
    assert_eq!(status, 302);
    let to = "location: https://cheap-1.example/show/1%20a.m3u8?token=a%2fb&_hls_msn=7&flag\r\n";
    assert!(head.contains(to), "{head}");
    let (_, head, _) = ask(house.players, "/redirect/show/1.m3u8?location=berlin&isp=x");
    assert!(head.contains("location: https://cheap-1.example/show/1.m3u8\r\n"), "{head}");

    let status = house.operator().networks().await.expect("it is there");
    assert_eq!(
        status.iter().map(|network| (network.up, network.sessions)).collect::<Vec<_>>(),
        [(true, 40), (true, 10)]
    );

    // A restarted broker resumes with the last decision.
    let before = house.operator().decision().await.expect("it is there");
    house.start("marketplace", None).await;
    let after = house.operator().decision().await.expect("it is there");
    assert!(after.round >= before.round && after.placed == before.placed, "{} {}", after.round, before.round);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn players_of_a_departed_network_are_redirected_immediately() {
    let house = BrokerHome::new("transactions", Some("https://steer.example")).await;
    let (cheap, end) = house.agent("cheap");
    let (_near, _end_near) = house.agent("near");
    house.count(&[("berlin", 40)]).await;
    let steering = house.told_first("berlin", "cheap.1").await;
    // The reload address is absolute, because Shaka resolves a relative one against the manifest's
    // address.
    let whole = "https://steer.example/steering/hls?location=berlin&isp=x&";
    assert!(steering.reload_uri.starts_with(whole), "{}", steering.reload_uri);
    end.send(()).expect("it runs");
    cheap.await.expect("it ends");
    house.told_first("berlin", "near").await;
    let metrics = house.operator().text("/metrics").await.expect("it is there");
    assert!(metrics.contains("broker_networks_up 1"), "{metrics}");
}

/// A host that is cut off is silent: the agent sees no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_soon_leaves_a_silent_broker_for_another() {
    let house = BrokerHome::new("marketplace", None).await;
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = silent.local_addr().expect("it is bound").to_string();
    let (_cheap, _end_cheap) = house.agent_of("cheap", vec![address, house.address.clone()]);
    let began = Instant::now();
    while !house.operator().networks().await.expect("it is there")[0].up {
        assert!(began.elapsed() < WITHIN, "it waits for the first");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A request above the rate is refused with the time of the next attempt. With steering off,
/// players get status 410 and stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_requests_get_429_and_unsteered_players_410() {
    let house = BrokerHome::new("marketplace", None).await;
    house.operator().steers(false, WITHIN).await.expect("it is taken");
    assert_eq!(ask(house.players, "/steering/hls").0, 410);
    house.operator().steers(true, WITHIN).await.expect("it is taken");
    assert_eq!(ask(house.players, "/steering/hls").0, 200);

    let settings = Settings::new(designs::by_name("marketplace").expect("there is one"));
    let contracts = CONTRACTS.parse().expect("they are right");
    let config = BrokerServiceConfig {
        ttl_s: 77,
        ..BrokerServiceConfig::new(settings, contracts, house.path("other"))
    };
    let service = BrokerService::open(config).expect("the file is free");
    let public =
        PublicConfig { address: ([127, 0, 0, 1], 0).into(), answers_per_s_max: 3, ..PublicConfig::default() };
    let public = PublicServer::bind(service, public).expect("a free port");
    let address = public.local_addr().expect("it is bound");
    let running = tokio::spawn(public.run());
    let answers: Vec<(u16, String)> = (0..20)
        .map(|_| {
            let (status, head, _) = ask(address, "/steering/dash");
            (status, head)
        })
        .collect();
    let late: Vec<_> = answers.iter().filter(|(status, _)| *status == 429).collect();
    assert!(answers.iter().any(|(status, _)| *status == 200) && !late.is_empty(), "{answers:?}");
    assert!(late.iter().all(|(_, head)| head.contains("retry-after: 77")), "{late:?}");
    // A dropped broker stops listening.
    running.abort();
    let began = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(began.elapsed() < WITHIN, "it still listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// #52: browsers send a preflight before a request with the player's own headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preflights_allow_all_requests_of_players() {
    let house = BrokerHome::new("marketplace", None).await;
    let asks = "Origin: https://page.example\r\nAccess-Control-Request-Method: GET\r\n\
                Access-Control-Request-Headers: cmcd-session,authorization\r\nConnection: close\r\n";
    for path in ["/steering/hls", "/steering/dash", "/redirect/a", "/cmcd"] {
        let (status, head, _) =
            send(house.players, &format!("OPTIONS {path} HTTP/1.1\r\nHost: x\r\n{asks}\r\n"));
        assert_eq!(status, 204, "{path}");
        assert!(head.contains("access-control-allow-headers: cmcd-session,authorization"), "{path}: {head}");
    }
    for (path, status) in [("/steering/hls?bitrate=fast", 400), ("/steering/smooth", 404), ("/", 404)] {
        let (found, head, _) = ask(house.players, path);
        assert_eq!(found, status, "{path}");
        assert!(head.contains("access-control-allow-origin: *"), "{path}: {head}");
        assert!(head.contains("retry-after") && head.contains("cache-control: no-store"), "{path}: {head}");
    }
}

/// #52: a proxy, as the documents recommend it, hid the viewers' addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_behind_a_proxy_keep_their_own_places() {
    let house = BrokerHome::new("marketplace", None).await;
    let settings = Settings::new(designs::by_name("marketplace").expect("there is one"));
    let contracts = CONTRACTS.parse().expect("they are right");
    let config = BrokerServiceConfig::new(settings, contracts, house.path("other"));
    let service = BrokerService::open(config).expect("the file is free");
    let table = "prefix,location,isp\n203.0.113.0/24,berlin,x\n127.0.0.0/8,proxytown,x\n";
    let places = PrefixTable::read(table.as_bytes()).expect("a table");
    let public = PublicConfig { address: ([127, 0, 0, 1], 0).into(), places, ..PublicConfig::default() };
    let public = PublicServer::bind(service, public).expect("a free port");
    let address = public.local_addr().expect("it is bound");
    tokio::spawn(public.run());
    for (header, location) in [
        ("X-Forwarded-For: 198.51.100.1, 203.0.113.9", "berlin"),
        ("Forwarded: for=\"203.0.113.9:4711\"", "berlin"),
        ("X-Forwarded-For: unknown", "proxytown"),
        ("Accept: */*", "proxytown"),
    ] {
        let asks = "GET /steering/hls HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        let (_, _, body) = send(address, &format!("{asks}{header}\r\n\r\n"));
        assert!(body.contains(&format!("?location={location}&")), "{header}: {body}");
    }
}

/// Reports in CMCD arrive with steering requests and separately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_with_stalled_players_loses_trust_across_restarts() {
    let mut house = BrokerHome::new("marketplace", None).await;
    let (_cheap, _end_cheap) = house.agent("cheap");
    let (_near, _end_near) = house.agent("near");
    house.count(&[("berlin", 40)]).await;
    house.told_first("berlin", "cheap.1").await;
    for _ in 0..30 {
        let (status, _, _) =
            ask(house.players, "/steering/dash?_DASH_pathway=%22cheap.1%22&CMCD=bs%2Cmtp%3D400");
        assert_eq!(status, 200);
    }
    let report = "e=rr,rc=206,cdn=\"near\",ttfb=20,v=2\n".repeat(30);
    let head = "POST /cmcd HTTP/1.1\r\nHost: x\r\nContent-Type: application/cmcd\r\nConnection: close\r\n";
    let (status, head, body) =
        send(house.players, &format!("{head}Content-Length: {}\r\n\r\n{report}", report.len()));
    assert_eq!((status, &*body), (204, ""), "{head}");
    let began = Instant::now();
    loop {
        let networks = house.operator().networks().await.expect("it is there");
        let trusts = (networks[0].capacity_trust, networks[1].capacity_trust);
        if trusts.0 < 0.95 {
            assert!(trusts.1 > 0.99, "{trusts:?}");
            break;
        }
        assert!(began.elapsed() < WITHIN, "{trusts:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The trust is stored with the next decision.
    let kept = loop {
        let decision = house.operator().decision().await.expect("it is there");
        match decision.standings.first() {
            Some(standing) if standing.capacity_trust < 0.95 => break standing.capacity_trust,
            other => assert!(began.elapsed() < WITHIN, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    house.start("marketplace", None).await;
    let networks = house.operator().networks().await.expect("it is there");
    assert!(!networks[0].up && networks[0].capacity_trust >= kept, "it comes back as it does better");
    assert!(networks[0].capacity_trust < 0.97, "{} {kept}", networks[0].capacity_trust);
}

/// A restarted broker places the viewers of its stored decision, before all viewers have sent
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_last_decision_survive_a_restart() {
    let mut house = BrokerHome::new("marketplace", None).await;
    let (_cheap, _end_cheap) = house.agent("cheap");
    for _ in 0..30 {
        ask(house.players, "/steering/hls?location=berlin&isp=x");
    }
    house.told_first("berlin", "cheap.1").await;
    let placed = |decision: &DecisionView| decision.placed.iter().map(|placed| placed.sessions).sum::<u32>();
    let began = Instant::now();
    let before = loop {
        let decision = house.operator().decision().await.expect("it is there");
        if placed(&decision) >= 30 {
            break decision;
        }
        assert!(began.elapsed() < WITHIN, "{decision:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    house.start("marketplace", None).await;
    let (_again, _end_again) = house.agent("cheap");
    loop {
        let decision = house.operator().decision().await.expect("it is there");
        // The previous broker may have stored another round after the one read above.
        assert!(placed(&decision) >= 30, "{decision:?}");
        if decision.round > before.round && house.operator().rounds().await.expect("it is there").len() >= 3 {
            break;
        }
        assert!(began.elapsed() < WITHIN, "{decision:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_are_refused_in_one_line() {
    let house = BrokerHome::new("marketplace", None).await;
    let player = |path: &str| {
        let (status, _, body) = ask(house.players, path);
        (status, body)
    };
    assert_eq!(player("/steering/flash"), (404, "there are /steering/hls and /steering/dash\n".to_owned()));
    assert_eq!(
        player("/steering/dash?bitrate=much"),
        (400, "bitrate=much: must be a whole number of bit/s, 1 to 10^12\n".to_owned())
    );
    assert_eq!(player(&format!("/steering/hls?x={}", "y".repeat(3_000))).0, 400);
    assert_eq!(player("/redirect/a").0, 503, "no cluster was ever chosen");
    let (status, _, _) = send(
        house.players,
        "POST /steering/hls HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(status, 405);

    // An agent may send requests for its own network only, and only after it has joined.
    let near = Client::new(&house.address, &house.identity(Role::Site, "near"), WITHIN).expect("right");
    let said = |result: Result<(), ClientError>| match result {
        Err(ClientError::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(said(near.join("cheap", 1, WITHIN).await), 403);
    assert_eq!(said(near.bids("near", 1, &Bids::default(), WITHIN).await.map(drop)), 409);
    assert_eq!(said(near.clients(&ClientsRequest { places: Vec::new() }, WITHIN).await), 403);
    near.join("near", 1, WITHIN).await.expect("it may");
    let late = Bids {
        round: 3,
        clusters: vec![ClusterBid { cluster: 7, price: Some(1.0), capacity_bps: Some(1) }],
        shares: vec![ShareBids { share: 0, clusters: vec![(7, 1.0)] }],
        more: false,
    };
    let reply = near.bids("near", 1, &late, WITHIN).await.expect("it is answered");
    assert_eq!(
        (reply.taken, reply.refused, reply.reasons),
        (0, 1, vec!["round 3: is not open for bids".to_owned()])
    );
}
