//! A controller on loopback, with real mutual TLS and scripted sites.
#![allow(clippy::disallowed_methods, reason = "real sockets and files under test")]

use anabranch_graph::file::{Defaults, Format, parse};
use anabranch_graph::{LinkProperties, Topology};
use anabranch_http::{ClientError, ServeConfig, Server, exercise::damages};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{KeySet, Role, SetRequest, make_set, revoke, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_pieces::{ByteRange, FileHash};
use anabranch_replicate::wire::{
    DestinationRequest, LinkAddress, RegisterRequest, SubmitRequest, TopologyDigest,
};
use anabranch_replicate::{Client, Controller, ControllerConfig, SiteLink, WatchItem};
use anabranch_replicate_proto::control::{Command, Inventory, Report, TransferId};
use anabranch_replicate_proto::coordinator::{
    EventKind, Outcome, PhaseName, PlanRequest, QUESTIONS_MAX, SubmitResult, TransferRequest, Verdict,
};
use anabranch_replicate_proto::plan::{Flow, Group, Input, Mode, Plan, Scheme, Sink, Term};
use anabranch_testing::replay;
use anabranch_units::{BitRate, Duration, LinkId};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration as StdDuration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsStream;

const LENGTH: u64 = 1_000;
const HASH: FileHash = FileHash([9; 32]);
const PATIENCE: StdDuration = StdDuration::from_secs(60);

fn pair() -> Topology {
    let mut t = Topology::new("pair");
    let a = t.add_site("seattle", None).expect("a good name");
    let b = t.add_site("New York", None).expect("a good name");
    t.add_cable(a, b, LinkProperties::new(BitRate::mbps(20), Duration::from_ms(1))).expect("a good cable");
    t
}

/// Plans over the single link.
fn planner(request: &PlanRequest<'_>) -> Result<Plan, String> {
    if request.avoid_links.contains(&LinkId(0)) {
        return Err("no path from seattle to New York".into());
    }
    let site = request.destinations[0];
    Ok(Plan {
        scheme: Scheme::SinglePath,
        source: request.source,
        destinations: request.destinations.to_vec(),
        unit: BitRate::mbps(20),
        groups: vec![Group {
            streams: 1,
            weights: vec![],
            mode: Mode::Routed,
            sinks: vec![Sink {
                site,
                inputs: vec![anabranch_replicate_proto::plan::FlowId(0)],
                decode: None,
            }],
            fills: None,
        }],
        flows: vec![Flow {
            group: 0,
            link: LinkId(0),
            terms: vec![Term { input: Input::Stream(0), coefficient: 1, delayed: false }],
        }],
        rate: BitRate::mbps(20),
        bound: BitRate::mbps(20),
        store_and_forward: false,
    })
}

struct World {
    folder: PathBuf,
    controller: Option<JoinHandle<()>>,
    address: SocketAddr,
    /// Time limit of a request's body.
    patience: StdDuration,
    /// Identity that the controller trusts.
    identity: Option<Identity>,
    topology: Topology,
}

fn keys() -> KeySet {
    make_set(&SetRequest {
        system: anabranch_replicate::SYSTEM,
        sites: vec!["seattle".into(), "New York".into(), "denver".into()],
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: 2,
    })
    .expect("a good request")
}

impl World {
    async fn new(name: &str) -> Self {
        Self::on(name, pair()).await
    }

    async fn on(name: &str, topology: Topology) -> Self {
        let folder = std::env::temp_dir().join(format!("anabranch-replicate-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        write_set(&folder, &keys()).expect("an empty folder");
        let patience = ServeConfig::default().patience;
        let address = ([127, 0, 0, 1], 0).into();
        let mut world = Self { folder, controller: None, address, patience, identity: None, topology };
        world.start().await;
        world
    }

    async fn start(&mut self) {
        // A killed process leaves no lock behind; connections of a killed task close with a delay.
        let mut tries = 0;
        let controller = loop {
            let config =
                ControllerConfig::new(self.topology.clone(), planner, self.folder.join("controller.redb"));
            match Controller::open(config) {
                Ok(controller) => break controller,
                Err(error) if tries == 3_000 => panic!("{error}"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(StdDuration::from_millis(20)).await;
        };
        let serve = ServeConfig { address: self.address, patience: self.patience, ..ServeConfig::default() };
        let identity = self.credentials(Role::Controller, "controller");
        let server = Server::bind(controller, &identity, serve).await.expect("a free port");
        self.address = server.local_addr().expect("it is bound");
        self.identity = Some(identity);
        self.controller = Some(tokio::spawn(server.run()));
    }

    /// Drops the controller in the middle of its work: nothing more is flushed.
    async fn kill(&mut self) {
        let controller = self.controller.take().expect("it runs");
        controller.abort();
        let _ = controller.await;
    }

    fn credentials(&self, role: Role, name: &str) -> Identity {
        Identity::load(&CredentialFiles::in_set(&self.folder, anabranch_replicate::SYSTEM, role, name))
            .expect("they were written")
    }

    fn client(&self, role: Role, name: &str) -> Client {
        Client::new(self.address.to_string(), &self.credentials(role, name), PATIENCE).expect("good settings")
    }

    fn link(&self, name: &str, session: u64) -> SiteLink {
        let link = LinkId(if name == "seattle" { 1 } else { 0 });
        let addresses = vec![LinkAddress { link, address: "127.0.0.1:9".into() }];
        SiteLink::new(self.client(Role::Site, name), name, RegisterRequest::new(session, addresses))
    }

    /// Starts both sites. Returns a flag to hold the file back, and the number of starts.
    fn sites(&self, held: bool) -> ([JoinHandle<()>; 2], Arc<AtomicBool>, Arc<AtomicU64>) {
        let (hold, starts) = (Arc::new(AtomicBool::new(held)), Arc::new(AtomicU64::new(0)));
        let both = [("seattle", 1), ("New York", 2)];
        let sites = both.map(|(name, session)| site(self.link(name, session), hold.clone(), starts.clone()));
        (sites, hold, starts)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn submit_request() -> SubmitRequest {
    let path = "/data/out".into();
    SubmitRequest::new("seattle", "/data/in", vec![DestinationRequest { site: "New York".into(), path }])
}

/// Answers commands like a correct site until dropped; `hold` makes it hold the file back.
fn site(link: SiteLink, hold: Arc<AtomicBool>, starts: Arc<AtomicU64>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let whole = vec![ByteRange { start: 0, end: LENGTH }];
        loop {
            let commands = link.next_commands().await.unwrap_or_else(|error| panic!("{error}"));
            for command in commands {
                let reports = match command {
                    Command::Inquire { run, is_source, .. } => {
                        vec![Report::Inventory(Inventory {
                            length: is_source.then_some(LENGTH),
                            ..Inventory::new(run)
                        })]
                    }
                    Command::Install { program } => {
                        let is_sink = !program.sinks.is_empty();
                        let mut reports = vec![Report::Ready { run: program.run }];
                        if is_sink && !hold.load(Ordering::SeqCst) {
                            reports.push(Report::SinkDone { run: program.run, have: whole.clone() });
                        }
                        if program.source_path.is_some() {
                            starts.fetch_add(1, Ordering::SeqCst);
                            reports.push(Report::SourceDone { run: program.run, hash: Some(HASH) });
                        }
                        reports
                    }
                    Command::Finish(file) if !hold.load(Ordering::SeqCst) => {
                        vec![Report::Completed { run: file.run }]
                    }
                    _ => vec![],
                };
                if !reports.is_empty() {
                    link.report(&reports).await.expect("the controller is or comes back");
                }
            }
        }
    })
}

async fn wait_for_phase(client: &Client, id: TransferId, phase: PhaseName) {
    for _ in 0..1_200 {
        if client.status(id).await.expect("it is remembered").phase == phase {
            return;
        }
        tokio::time::sleep(StdDuration::from_millis(50)).await;
    }
    panic!("never {phase:?}: {:?}", client.status(id).await);
}

/// Forwards connections to `target`. Each value on the returned channel cuts earlier connections
/// without a FIN, as a power loss does: their senders get a reset, as from a restarted machine.
async fn forgetful_way(target: SocketAddr) -> (SocketAddr, tokio::sync::watch::Sender<u64>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (losses, lost) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.expect("it listens");
            let mut lost = lost.clone();
            lost.mark_unchanged();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(target).await else { return };
                tokio::select! {
                    biased;
                    _ = lost.changed() => {}
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                }
                drop(far);
                let _ = near.read(&mut [0; 1]).await;
            });
        }
    });
    (address, losses)
}

/// #18: a site's request waited for 25 s on a dead connection after the site had registered again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reregistered_site_asks_for_commands_immediately() {
    let mut world = World::new("anew").await;
    let (address, losses) = forgetful_way(world.address).await;
    let client = Client::new(address.to_string(), &world.credentials(Role::Site, "seattle"), PATIENCE);
    let registration = RegisterRequest::new(1, vec![]);
    let link = Arc::new(SiteLink::new(client.expect("good settings"), "seattle", registration));
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    let asking = link.clone();
    tokio::spawn(async move {
        while let Ok(new) = asking.next_commands().await {
            new.into_iter().for_each(|command| sender.send(command).expect("it is waited for"));
        }
    });
    // The transfer needs both sites.
    let _other = site(world.link("New York", 2), Arc::default(), Arc::default());
    let operator = world.client(Role::Operator, "operator");
    let are_up = async |operator: &Client| {
        while operator.topology().await.expect("it answers").sites.iter().any(|site| !site.up) {
            tokio::time::sleep(StdDuration::from_millis(20)).await;
        }
    };
    are_up(&operator).await;
    // The site's request for commands waits.
    tokio::time::sleep(StdDuration::from_millis(300)).await;
    losses.send_modify(|losses| *losses += 1);
    world.kill().await;
    world.start().await;
    link.report(&[]).await.expect("the controller is there again");
    are_up(&operator).await;
    operator.submit(&submit_request()).await.expect("a good request");
    let command = tokio::time::timeout(StdDuration::from_secs(20), commands.recv()).await;
    assert!(matches!(command, Ok(Some(Command::Inquire { .. }))), "{command:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_runs_from_submission_to_finish() {
    let world = World::new("whole").await;
    let (sites, _, starts) = world.sites(false);
    let operator = world.client(Role::Operator, "operator");
    let id = operator.submit(&submit_request()).await.expect("a good request");
    let mut watch = operator.watch(id);
    let (mut kinds, mut last, mut began) = (Vec::new(), None, Some(1));
    while let Some(item) = watch.next().await.expect("the controller is there") {
        match item {
            WatchItem::Event(view) => {
                assert!(view.at_unix_ms >= began, "{view:?}");
                began = view.at_unix_ms;
                kinds.push(view.event.kind);
            }
            WatchItem::Status(view) => last = Some(view),
            WatchItem::Away(why) => panic!("{why}"),
        }
    }
    let last = last.expect("a status ends the stream");
    assert_eq!((last.outcome, last.exit_code), (Some(Outcome::Done), Some(0)));
    assert_eq!(last.destinations[0].verdict, Some(Verdict::Done));
    assert_eq!((last.destinations[0].site.as_str(), last.hash), ("New York", Some(HASH)));
    assert_eq!(kinds.first(), Some(&EventKind::Submitted));
    assert_eq!(kinds.last(), Some(&EventKind::Finished { outcome: Outcome::Done }));
    let site = "New York".to_owned();
    assert!(
        kinds.contains(&EventKind::Verdict { site, verdict: Verdict::Done }),
        "sites have names: {kinds:?}"
    );
    assert_eq!(starts.load(Ordering::SeqCst), 1);

    let topology = operator.topology().await.expect("it is there");
    assert!(topology.sites.iter().all(|s| s.up) && topology.links.len() == 2);
    assert_eq!(operator.statuses().await.expect("it is there").len(), 1);
    assert_eq!(operator.plan(id).await.expect("it is kept").flows.len(), 1);
    let metrics = operator.text("/metrics").await.expect("text");
    assert!(metrics.contains("anabranch_replicate_site_up{site=\"New York\"} 1"), "{metrics}");
    assert!(metrics.contains("anabranch_replicate_transfers{state=\"over\"} 1"), "{metrics}");
    assert!(operator.text("/healthz").await.expect("text").contains("ok"));
    let openapi = operator.text("/openapi.json").await.expect("text");
    for path in ["/v1/transfers/{id}/events", "/v1/sites/{site}/commands", "/metrics"] {
        assert!(openapi.contains(path), "{path}");
    }
    assert_eq!(operator.cancel(id).await, Ok(false), "a transfer that is over needs no cancelling");
    sites.iter().for_each(JoinHandle::abort);
}

/// #17: after a lost answer or terminal, the only choice was a second equal transfer, which failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_request_of_the_submitter_finds_the_running_transfer() {
    let world = World::new("attach").await;
    let (operator, seattle) = (world.client(Role::Operator, "operator"), world.client(Role::Site, "seattle"));
    let id = operator.submit(&submit_request()).await.expect("a good request");
    assert_eq!(operator.submit_or_attach(&submit_request()).await, Ok(SubmitResult::Attached(id)));
    let other = SubmitRequest { fill: true, ..submit_request() };
    let refused = operator.submit_or_attach(&other).await.expect_err("it runs by other settings");
    assert!(
        matches!(&refused, ClientError::Refused { status: 409, error } if error.contains("fill off, not on"))
    );
    // A site's transfers have a site's rights; an operator's have more.
    let own = seattle.submit_or_attach(&submit_request()).await.expect("its own file");
    assert!(matches!(own, SubmitResult::New(own) if own != id), "{own:?}");
    assert_eq!(
        operator.submit(&submit_request()).await,
        Ok(TransferId(3)),
        "who does not ask for it gets a new one"
    );
    let openapi = operator.text("/openapi.json").await.expect("text");
    for word in ["\"attach\"", "\"attached\"", "at_unix_ms", "\"409\""] {
        assert!(openapi.contains(word), "{word}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_controller_resumes_its_transfers() {
    let mut world = World::new("restart").await;
    let (sites, hold, starts) = world.sites(true);
    let operator = world.client(Role::Operator, "operator");
    let id = operator.submit(&submit_request()).await.expect("a good request");
    let mut watch = operator.watch(id);
    wait_for_phase(&operator, id, PhaseName::Running).await;
    let before = operator.status(id).await.expect("it is remembered");
    assert!(before.began_unix_ms.is_some() && before.ended_unix_ms.is_none(), "{before:?}");
    while starts.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(StdDuration::from_millis(10)).await;
    }
    assert!(matches!(watch.next().await, Ok(Some(WatchItem::Status(_)))));
    world.kill().await;
    // #17: the watcher learned nothing of the outage, and gave up soon after.
    let mut watch = watch.with_patience(StdDuration::from_secs(60));
    loop {
        if let Some(WatchItem::Away(why)) = watch.next().await.expect("it is tried on") {
            assert!(why.contains("controller at 127.0.0.1:"), "{why}");
            break;
        }
    }
    hold.store(false, Ordering::SeqCst);
    world.start().await;
    let mut last = None;
    while let Some(item) = watch.next().await.expect("the controller comes back") {
        if let WatchItem::Status(view) = item {
            last = Some(view);
        }
    }
    let last = last.expect("a status ends the stream");
    assert_eq!((last.outcome, last.attempts), (Some(Outcome::Done), 2));
    // #17: the start and duration of a transfer were not reported.
    assert_eq!(last.began_unix_ms, before.began_unix_ms, "kept over the restart");
    assert!(last.ended_unix_ms >= last.began_unix_ms && last.ended_unix_ms.is_some(), "{last:?}");
    let second = operator.submit(&submit_request()).await.expect("a good request");
    assert!(second > id, "no id is used twice");
    sites.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_site_counts_as_down() {
    let world = World::new("silent").await;
    let (hold, starts) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let link = site(world.link("seattle", 1), hold.clone(), starts.clone());
    let _other = site(world.link("New York", 2), Arc::default(), Arc::default());
    let operator = world.client(Role::Operator, "operator");
    let is_up = async |want: bool| {
        for _ in 0..1_200 {
            if operator.topology().await.expect("it is there").sites[0].up == want {
                return true;
            }
            tokio::time::sleep(StdDuration::from_millis(50)).await;
        }
        false
    };
    assert!(is_up(true).await);
    link.abort();
    assert!(is_up(false).await);
    let _again = site(world.link("seattle", 3), hold, starts);
    assert!(is_up(true).await);
}

fn refusal(result: Result<Vec<Command>, ClientError>) -> (u16, String) {
    match result {
        Err(ClientError::Refused { status, error }) => (status, error),
        other => panic!("{other:?}"),
    }
}

/// #17: two processes of one site replaced each other silently and split a transfer's parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_process_of_a_site_is_refused_meanwhile() {
    let world = World::new("second").await;
    let (hold, starts) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let first = site(world.link("seattle", 1), hold.clone(), starts.clone());
    let operator = world.client(Role::Operator, "operator");
    while !operator.topology().await.expect("it is there").sites[0].up {
        tokio::time::sleep(StdDuration::from_millis(20)).await;
    }
    for _ in 0..3 {
        let (status, error) = refusal(world.link("seattle", 2).next_commands().await);
        assert_eq!(status, 423);
        assert!(error.contains("127.0.0.1:9") && error.contains("0000000000000001"), "{error}");
        assert!(error.contains("--take-over"), "{error}");
    }
    assert!(!first.is_finished());
    // A dead process makes room once it fails to respond.
    first.abort();
    let _ = first.await;
    let _second = site(world.link("seattle", 3), hold.clone(), starts.clone());
    let session = async || refusal(world.link("seattle", 4).next_commands().await).1;
    tokio::time::sleep(StdDuration::from_secs(10)).await;
    assert!(session().await.contains("0000000000000003"));
    // With the operator's consent the new process takes over, and the old one is told.
    let link = world.link("seattle", 3);
    let mut registration =
        RegisterRequest::new(5, vec![LinkAddress { link: LinkId(1), address: "127.0.0.1:9".into() }]);
    registration.take_over = true;
    let new = SiteLink::new(world.client(Role::Site, "seattle"), "seattle", registration);
    let _third = site(new, hold, starts);
    tokio::time::sleep(StdDuration::from_secs(5)).await;
    let (status, error) = refusal(link.next_commands().await);
    assert!(status == 423 && error.contains("0000000000000005"), "{error}");
}

/// #17: a site with another topology was accepted silently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_rates_warn_and_other_sites_are_refused() {
    let world = World::new("other-topology").await;
    let client = world.client(Role::Site, "seattle");
    let register = async |topology: &Topology| {
        let mut request = RegisterRequest::new(1, vec![]);
        request.topology = Some(TopologyDigest::of(topology));
        client.register("seattle", &request).await
    };
    assert_eq!(register(&pair()).await.expect("the same").warning, None);
    let with = |rate, sites: &[&str]| {
        let mut t = Topology::new("pair");
        let ids: Vec<_> = sites.iter().map(|s| t.add_site(*s, None).expect("names differ")).collect();
        t.add_cable(ids[0], ids[1], LinkProperties::new(rate, Duration::from_ms(1))).expect("a good cable");
        t
    };
    let warning =
        register(&with(BitRate::mbps(7), &["seattle", "New York"])).await.expect("sites fit").warning;
    assert!(warning.is_some_and(|w| w.contains("other rates or delays")));
    let error = register(&with(BitRate::mbps(20), &["seattle", "oslo"])).await.expect_err("no").to_string();
    assert!(error.contains("other sites or links"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_permission_are_refused() {
    let world = World::new("refused").await;
    // A site that uses another site's name, with its own certificate.
    let seattle = world.client(Role::Site, "seattle");
    let impostor = SiteLink::new(seattle.clone(), "New York", RegisterRequest::new(1, vec![]));
    let error = impostor.next_commands().await.expect_err("another's name");
    let ClientError::Refused { status: 403, error } = error else { panic!("{error:?}") };
    assert!(error.contains("site `seattle` may not speak for site `New York`"), "{error}");
    assert!(error.contains(&world.address.to_string()), "{error}");
    // An operator is no site.
    let operator = world.client(Role::Operator, "operator");
    let error = SiteLink::new(operator.clone(), "seattle", RegisterRequest::new(1, vec![]))
        .next_commands()
        .await
        .expect_err("no site");
    assert!(matches!(error, ClientError::Refused { status: 403, .. }), "{error:?}");
    // A site submits its own files only.
    let other = SubmitRequest::new(
        "New York",
        "/x",
        vec![DestinationRequest { site: "seattle".into(), path: "/y".into() }],
    );
    let error = seattle.submit(&other).await.expect_err("another's file");
    assert!(matches!(error, ClientError::Refused { status: 403, .. }), "{error:?}");
    let own = seattle.submit(&submit_request()).await.expect("its own file");
    let new_york = world.client(Role::Site, "New York");
    // Source and destination see the transfer; an uninvolved site does not.
    for part in [&seattle, &new_york, &operator] {
        assert_eq!(part.statuses().await.expect("it answers").len(), 1);
        part.status(own).await.expect("its own");
    }
    let denver = world.client(Role::Site, "denver");
    assert_eq!(denver.statuses().await.expect("it answers").len(), 0);
    let Err(ClientError::Refused { status: 404, error }) = denver.status(own).await else {
        panic!("another's transfer")
    };
    let Err(ClientError::Refused { status: 404, error: unknown }) = denver.status(TransferId(9_999)).await
    else {
        panic!("no transfer")
    };
    let same = error.replace(&format!("transfer {}:", own.0), "transfer 9999:");
    assert_eq!(same, unknown, "as if it were not");
    for path in ["plan", "events"] {
        let error =
            denver.text(&format!("/v1/transfers/{}/{path}", own.0)).await.expect_err("another's transfer");
        assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error:?}");
    }
    let error = denver.cancel(own).await.expect_err("another's transfer");
    assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error:?}");
    let error = new_york.cancel(own).await.expect_err("another's transfer");
    assert!(matches!(error, ClientError::Refused { status: 403, .. }), "{error:?}");
    assert_eq!(operator.cancel(own).await, Ok(true), "operators may");
    assert_eq!(operator.status(own).await.expect("it is remembered").exit_code, Some(5));
    // #48: metrics cover all transfers, so a site may not read them.
    let error = denver.text("/metrics").await.expect_err("others' transfers");
    assert!(matches!(error, ClientError::Refused { status: 403, .. }), "{error:?}");
    assert!(operator.text("/metrics").await.expect("operators may").contains("anabranch_replicate_site_up"));
    // An address for a link that ends at another site.
    let wrong = vec![LinkAddress { link: LinkId(0), address: "127.0.0.1:9".into() }];
    let error = SiteLink::new(seattle, "seattle", RegisterRequest::new(1, wrong))
        .next_commands()
        .await
        .expect_err("not its link");
    assert!(error.to_string().contains("link 0 does not end at site `seattle`"), "{error}");
}

/// #17: a site could register any address, and all other sites connected to it. (Relays connect to
/// registered addresses only, because they know no other.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn site_is_found_only_at_its_topology_address() {
    let text = r#"
        [[site]]
        name = "seattle"
        address = "seattle.example"
        [[site]]
        name = "New York"
        address = "10.1.0.0/16"
        [[cable]]
        between = ["seattle", "New York"]
        capacity = "20 Mbit/s"
        delay = "1 ms"
    "#;
    let topology = parse(text, Format::Toml, "it", &Defaults::new(BitRate::mbps(20))).expect("a topology");
    let world = World::on("addresses", topology).await;
    let register = async |site: &str, address: &str| {
        let link = LinkId(if site == "seattle" { 1 } else { 0 });
        let addresses = vec![LinkAddress { link, address: address.to_owned() }];
        world.client(Role::Site, site).register(site, &RegisterRequest::new(1, addresses)).await
    };
    for (site, others) in [
        ("New York", &["10.2.0.1:9", "127.0.0.1:9", "[::1]:9", "[::ffff:10.2.0.1]:9", "localhost:9"][..]),
        // Other spellings of an internal address, and names that begin with an allowed one.
        (
            "New York",
            &["0x0a010203:9", "167838211:9", "10.1.2.3.example:9", "10.1.2.3@127.0.0.1:9", " 10.1.2.3:9"],
        ),
        (
            "seattle",
            &["seattle.example.evil:9", "evil.seattle.example:9", "xseattle.example:9", "10.1.2.3:9"],
        ),
    ] {
        for address in others {
            let refused = register(site, address).await.expect_err(address);
            let ClientError::Refused { status: 400, error } = refused else {
                panic!("{address}: {refused:?}")
            };
            assert!(error.contains("the topology has site") && error.contains(site), "{address}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
    let sites = world.client(Role::Operator, "operator").topology().await.expect("it answers").sites;
    assert!(sites.iter().all(|site| !site.up), "{sites:?}");
    for (site, address) in
        [("New York", "10.1.2.3:9"), ("New York", "10.1.255.255:1"), ("seattle", "SEATTLE.example:9")]
    {
        register(site, address).await.unwrap_or_else(|error| panic!("{address}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_another_authority_is_refused() {
    let world = World::new("authority").await;
    let folder = world.folder.join("other");
    write_set(&folder, &keys()).expect("an empty folder");
    let quick = StdDuration::from_millis(300);
    let load = |ca: &Path| {
        let own = CredentialFiles::in_set(&folder, anabranch_replicate::SYSTEM, Role::Operator, "operator");
        Identity::load(&CredentialFiles { ca: ca.join("ca.pem"), ..own })
    };
    let stranger = Client::new(world.address.to_string(), &load(&folder).expect("one set"), quick)
        .expect("good settings");
    let error = stranger.topology().await.expect_err("another authority").to_string();
    assert!(error.contains("another authority") && error.contains(&world.address.to_string()), "{error}");
    let error = load(&world.folder).expect_err("files of two sets").to_string();
    assert!(error.contains("was not made by the authority"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_get_one_line() {
    let world = World::new("bad").await;
    let operator = world.client(Role::Operator, "operator");
    let bad = async |request: SubmitRequest, text: &str| {
        let error = operator.submit(&request).await.expect_err(text);
        assert!(matches!(error, ClientError::Refused { status: 400, .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(text) && !error.contains('\n'), "{error}");
    };
    bad(
        SubmitRequest::new("portland", "/x", vec![]),
        "no site `portland` in this topology: there are seattle, New York",
    )
    .await;
    bad(SubmitRequest::new("seattle", "/x", vec![]), "no destination").await;
    bad(SubmitRequest { symbol_bytes: 0, ..submit_request() }, "symbol_bytes 0").await;
    let error = operator.status(TransferId(77)).await.expect_err("no such transfer");
    assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error:?}");
    let error = operator.watch(TransferId(77)).next().await.expect_err("no such transfer");
    assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error:?}");
    let error = operator.text("/nowhere").await.expect_err("no such path");
    assert!(error.to_string().contains("no such path"), "{error}");
    let error = operator.text("/v1/transfers/seven").await.expect_err("not a number").to_string();
    assert!(error.contains("Cannot parse"), "what the framework refuses is told in JSON too: {error}");
    let identity = world.credentials(Role::Operator, "operator");
    assert!(Client::new("localhost", &identity, PATIENCE).is_err(), "no port");
    let nobody = Client::new("127.0.0.1:1", &identity, StdDuration::from_millis(300)).expect("good settings");
    let error = nobody.topology().await.expect_err("nobody listens").to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn store_of_another_topology_is_refused() {
    let folder = std::env::temp_dir().join(format!("anabranch-replicate-{}-store", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable temporary folder");
    let path = folder.join("controller.redb");
    drop(Controller::open(ControllerConfig::new(pair(), planner, &path)).expect("a new store"));
    let mut other = pair();
    other.add_site("portland", None).expect("a new name");
    let error =
        Controller::open(ControllerConfig::new(other, planner, &path)).err().expect("another topology");
    assert!(error.to_string().contains("was written on another topology"), "{error}");
    drop(Controller::open(ControllerConfig::new(pair(), planner, &path)).expect("the same again"));
    std::fs::write(&path, b"not a store").expect("ours");
    assert!(Controller::open(ControllerConfig::new(pair(), planner, &path)).is_err());
    std::fs::remove_dir_all(&folder).expect("ours");
}

/// #17: questions outlived their callers.
#[tokio::test]
async fn question_ends_when_its_caller_does() {
    let folder = std::env::temp_dir().join(format!("anabranch-replicate-{}-asked", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable temporary folder");
    let config = ControllerConfig::new(pair(), planner, folder.join("controller.redb"));
    let controller = Controller::open(config).expect("a new store");
    let request = serde_json::json!({
        "source": 0, "source_path": "/data/in", "destinations": [{"site": 1, "path": "/data/out"}],
        "hop": {"stripes": 1, "congestion_control": null, "priority": "bulk"},
        "symbol_bytes": 1_400, "buffer_packets": 64, "submitter": {"site": 0},
    });
    let request: TransferRequest = serde_json::from_value(request).expect("a request");
    for _ in 0..2 * QUESTIONS_MAX {
        // Polled once, then dropped.
        let asked = tokio::time::timeout(StdDuration::ZERO, controller.ask_source(request.clone())).await;
        assert!(asked.is_err(), "{asked:?}");
    }
    drop(controller);
    std::fs::remove_dir_all(&folder).expect("ours");
}

/// #17: of 347 random damages of a store, 13 made the start panic, one of them fatally.
#[tokio::test]
async fn damaged_store_is_refused_or_read_as_it_was() {
    let folder = std::env::temp_dir().join(format!("anabranch-replicate-{}-damaged", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable temporary folder");
    damages(&folder.join("store.redb"), |path| {
        Controller::open(ControllerConfig::new(pair(), planner, path)).map(drop)
    });
    std::fs::remove_dir_all(&folder).expect("ours");
}

/// #17: a peer kept an open connection after its certificate was revoked.
#[tokio::test]
async fn kept_connection_ends_only_for_its_revoked_peer() {
    let world = World::new("revoked").await;
    let kept = async |name: &str| {
        let identity = world.credentials(Role::Site, name);
        let tcp = TcpStream::connect(world.address).await.expect("it listens");
        identity.connect(tcp, Role::Controller, "controller").await.expect("good keys")
    };
    let ask = async |stream: &mut TlsStream<TcpStream>| {
        stream.write_all(b"GET /v1/topology HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        let mut reply = vec![0; 64 << 10];
        let length = stream.read(&mut reply).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&reply[..length]).starts_with("HTTP/1.1 200"))
    };
    let (mut lost, mut other) = (kept("seattle").await, kept("New York").await);
    assert!(ask(&mut lost).await.expect("it answers") && ask(&mut other).await.expect("it answers"));
    let controller = world.identity.as_ref().expect("it runs");
    let seattle = world.credentials(Role::Site, "seattle");
    revoke(&world.folder, anabranch_replicate::SYSTEM, std::slice::from_ref(seattle.own()))
        .expect("the set is there");
    controller.reload().expect("a good list");
    // The connection is closed even without a request.
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, lost.read_to_end(&mut rest)).await.expect("it is closed");
    assert!(rest.is_empty(), "{closed:?}");
    assert!(ask(&mut other).await.expect("it answers"));
    let client = Client::new(world.address.to_string(), &seattle, StdDuration::ZERO).expect("good settings");
    let error = client.topology().await.expect_err("revoked").to_string();
    assert!(error.contains("refused our certificate: it was revoked"), "{error}");
}

#[tokio::test]
async fn bodies_are_timely_and_large_ones_come_singly() {
    let mut world = World::new("bodies").await;
    world.kill().await;
    world.patience = StdDuration::from_secs(8);
    world.start().await;
    let identity = world.credentials(Role::Site, "seattle");
    // The head of a request, without its body.
    let begin = async |length: usize| {
        let tcp = TcpStream::connect(world.address).await.expect("it listens");
        let mut stream = identity.connect(tcp, Role::Controller, "controller").await.expect("good keys");
        let to = "/v1/sites/seattle/reports";
        let head = format!("POST {to} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        stream.flush().await.expect("it reads");
        stream
    };
    let answer = async |mut stream: TlsStream<TcpStream>| {
        let mut line = [0; 12];
        stream.read_exact(&mut line).await.expect("an answer");
        String::from_utf8_lossy(&line).into_owned()
    };
    let small = begin(100).await;
    let large = [begin(1 << 20).await, begin(1 << 20).await];
    assert_eq!(answer(small).await, "HTTP/1.1 408");
    let [one, other] = large.map(answer);
    let mut answers = [one.await, other.await];
    answers.sort();
    assert_eq!(answers, ["HTTP/1.1 408", "HTTP/1.1 429"]);
    // Both requests have ended, so the next one is served.
    assert_eq!(answer(begin(1 << 20).await).await, "HTTP/1.1 408");
}

#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    for (target, exercise) in [
        ("api_json", anabranch_replicate::exercise as fn(&[u8]) -> bool),
        ("api_replies", anabranch_replicate::exercise_replies),
        ("replicate_http", anabranch_replicate::exercise_http),
    ] {
        assert!(replay(target, exercise) >= 8, "{target}");
    }
}

/// #17: one site filled the controller's memory, store and slots; no status could be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_of_a_site_are_bounded_and_readable() {
    let world = World::new("flood").await;
    let (seattle, operator) = (world.client(Role::Site, "seattle"), world.client(Role::Operator, "operator"));
    let largest = || {
        let path = || vec!["x".repeat(203); 20].join("/");
        let destination = DestinationRequest { site: "New York".into(), path: path() };
        SubmitRequest::new("seattle", path(), vec![destination])
    };
    let mut named = largest();
    named.hop.congestion_control = Some("x".repeat(70_000));
    let error = seattle.submit(&named).await.expect_err("too much of it");
    assert!(matches!(error, ClientError::Refused { status: 413, .. }), "{error:?}");
    named.hop.congestion_control = Some("x".repeat(16));
    let error = seattle.submit(&named).await.expect_err("no kernel's");
    assert!(matches!(error, ClientError::Refused { status: 400, .. }), "{error:?}");
    for _ in 0..100 {
        seattle.submit(&largest()).await.expect("it has a tenth of the places");
    }
    let error = seattle.submit(&largest()).await.expect_err("and no more");
    assert!(matches!(error, ClientError::Refused { status: 429, .. }), "{error:?}");
    for _ in 0..50 {
        operator.submit(&largest()).await.expect("operators' places are free");
    }
    let all = operator.statuses().await.expect("page by page");
    assert!(all.iter().map(|t| t.id).eq(1..=150), "each once, in order");
    let page = operator.text("/v1/transfers?after=0").await.expect("the first");
    assert!(page.len() < 2 << 20 && page.contains("\"more\":true"), "{} bytes", page.len());
    let store = world.folder.join("controller.redb").metadata().expect("it is there").len();
    assert!(store < 32 << 20, "{store} bytes in the store");
}
