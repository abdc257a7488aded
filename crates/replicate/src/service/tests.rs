//! Sites on loopback: real sockets, TLS and files, without a controller.

use super::*;
use anabranch_pieces::ByteRange;
use anabranch_replicate_proto::control::{
    Attempt, Finish, GroupProgram, HopSettings, IncomingSpec, OutgoingSpec, Priority, SinkProgram, Submitter,
    TransferId,
};
use anabranch_replicate_proto::daemon::room::memory_bytes;
use anabranch_replicate_proto::plan::{FlowId, Input, Mode, Term};
use anabranch_units::{LinkId, SiteId};

/// Sites named `s0`, `s1`... on loopback, with a common authority.
struct Loopback {
    folder: tempfile::TempDir,
    sites: Vec<(Arc<Service>, mpsc::UnboundedReceiver<Report>, std::net::SocketAddr)>,
}

fn identities(count: usize) -> Vec<Identity> {
    use anabranch_net::identity::Identity;
    use anabranch_net::keys::{SetRequest, VALID_DAYS, make_set, write_set};
    use anabranch_net::tls::CredentialFiles;
    let sites: Vec<String> = (0..count).map(|i| format!("s{i}")).collect();
    let request = SetRequest {
        system: crate::SYSTEM,
        sites: sites.clone(),
        operators: vec![],
        controller_hosts: vec![],
        valid_days: VALID_DAYS,
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_set(&folder.path().join("keys"), &make_set(&request).expect("good names")).expect("a new folder");
    let load = |name: &String| {
        let files = CredentialFiles::in_set(&folder.path().join("keys"), crate::SYSTEM, Role::Site, name);
        Identity::load(&files).expect("just written")
    };
    sites.iter().map(load).collect()
}

impl Loopback {
    fn start(count: usize) -> Self {
        Self::start_with(count, vec![])
    }

    fn start_with(count: usize, accept: Vec<AcceptFrom>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut topology = Topology::new("loopback");
        (0..count).for_each(|i| _ = topology.add_site(format!("s{i}"), None).expect("a new name"));
        let sites = identities(count)
            .into_iter()
            .enumerate()
            .map(|(i, identity)| {
                let root = folder.path().join(format!("s{i}"));
                std::fs::create_dir(&root).expect("a folder for the site");
                let listener = anabranch_net::socket::listen("127.0.0.1:0".parse().expect("an address"))
                    .expect("a free port");
                let address = listener.local_addr().expect("bound");
                let (reports, reports_in) = mpsc::unbounded_channel();
                let half_open = AdmissionLimits::default();
                let served = Folder::open(&root, anabranch_disk::folder::Links::Refused).expect("just made");
                let folder = Arc::new(served);
                let config = SiteConfig {
                    folder,
                    accept: accept.clone(),
                    memory_max: 64 << 20,
                    half_open,
                    fault: Fault::default(),
                    metrics: Arc::new(SiteMetrics::new(&topology, SiteId(i as u16))),
                };
                (Service::start(config, identity, vec![listener], reports), reports_in, address)
            })
            .collect();
        Self { folder, sites }
    }

    fn path(&self, site: usize, name: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("s{site}")).join(name)
    }

    /// Returns the first report of `site` that `pick` accepts, skipping progress.
    async fn report<T>(&mut self, site: usize, mut pick: impl FnMut(&Report) -> Option<T>) -> T {
        let wait = async {
            loop {
                let report = self.sites[site].1.recv().await.expect("the site runs");
                if let Some(found) = pick(&report) {
                    return found;
                }
                assert!(matches!(report, Report::Progress { .. } | Report::SourceDone { .. }), "{report:?}");
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("a report in time")
    }
}

/// Time limit of every wait. It only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const RUN: Run = Run { transfer: TransferId(7), attempt: Attempt(1) };

/// A program for the chain 0 to 1 to 2, where 2 is the destination.
fn chain(net: &Loopback, site: usize, length: u64, stripes: u16) -> SiteProgram {
    let hop = HopSettings { stripes, congestion_control: Some("reno".into()), priority: Priority::Bulk };
    let incoming = |flow: u32| IncomingSpec {
        flow: FlowId(flow),
        group: 0,
        from: SiteId(flow as u16),
        from_name: format!("s{flow}"),
        link: LinkId(flow),
        stripes,
    };
    let outgoing = |flow: u32, input: Input| OutgoingSpec {
        flow: FlowId(flow),
        group: 0,
        to: SiteId(flow as u16 + 1),
        to_name: format!("s{}", flow + 1),
        link: LinkId(flow),
        address: net.sites[flow as usize + 1].2.to_string(),
        terms: vec![Term { input, coefficient: 1, delayed: false }],
        hop: hop.clone(),
        padding_bytes: 0,
    };
    SiteProgram {
        run: RUN,
        site: SiteId(site as u16),
        length,
        snapshot: None,
        symbol_bytes: 32 << 10,
        buffer_packets: 4,
        groups: vec![GroupProgram {
            streams: 1,
            ceilings: vec![],
            mode: Mode::Routed,
            work: vec![ByteRange { start: 0, end: length }],
            flush: 0,
            fills: None,
            filled: false,
        }],
        source_path: (site == 0).then(|| "in.bin".into()),
        incoming: (site > 0).then(|| incoming(site as u32 - 1)).into_iter().collect(),
        outgoing: match site {
            0 => vec![outgoing(0, Input::Stream(0))],
            1 => vec![outgoing(1, Input::Flow(FlowId(0)))],
            _ => vec![],
        },
        sinks: (site == 2)
            .then(|| SinkProgram { group: 0, inputs: vec![FlowId(1)], decode: None, path: "out.bin".into() })
            .into_iter()
            .collect(),
        store_and_forward: false,
        bandwidth_limit: None,
        submitter: Submitter::Operator,
    }
}

/// A command to finish a file with these bytes.
fn finish(run: Run, path: &str, bytes: &[u8]) -> Command {
    let (length, hash) = (bytes.len() as u64, FileHash(*blake3::hash(bytes).as_bytes()));
    let (path, rules) = (path.to_owned(), DirectoryRules::default());
    Command::Finish(Finish {
        run,
        path,
        length,
        hash,
        attributes: None,
        replace: false,
        rules,
        origin: 0,
        unsettled: vec![],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_crosses_a_relay_over_real_connections() {
    for stripes in [1, 3] {
        let mut net = Loopback::start(3);
        let bytes: Vec<u8> = (0..5_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        std::fs::write(net.path(0, "in.bin"), &bytes).expect("the source's file");
        for site in 0..3 {
            let program = Box::new(chain(&net, site, bytes.len() as u64, stripes));
            net.sites[site].0.handle(Command::Install { program });
        }
        for site in 0..3 {
            net.report(site, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
        }
        let have = net
            .report(2, |r| match r {
                Report::SinkDone { have, .. } => Some(have.clone()),
                _ => None,
            })
            .await;
        assert_eq!(have, [ByteRange { start: 0, end: bytes.len() as u64 }]);
        net.sites[2].0.handle(finish(RUN, "out.bin", &bytes));
        net.report(2, |r| matches!(r, Report::Completed { .. }).then_some(())).await;
        assert!(std::fs::read(net.path(2, "out.bin")).expect("the copy") == bytes, "byte for byte");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn departed_relay_is_reported_by_its_neighbours() {
    let mut net = Loopback::start(3);
    std::fs::write(net.path(0, "in.bin"), vec![1; 3_000_000]).expect("the source's file");
    for site in 0..3 {
        let mut program = Box::new(chain(&net, site, 3_000_000, 1));
        program.bandwidth_limit = Some(anabranch_units::BitRate::mbps(8));
        net.sites[site].0.handle(Command::Install { program });
    }
    for site in 0..3 {
        net.report(site, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    }
    net.report(2, |r| matches!(r, Report::Progress { verified_bytes: 1.., .. }).then_some(())).await;
    net.sites[1].0.handle(Command::Uninstall { run: RUN });
    let failed = |r: &Report| matches!(r, Report::HopFailed { .. }).then_some(());
    net.report(0, failed).await;
    net.report(2, failed).await;
    let have = net.sites[2].0.have(RUN).expect("the destination keeps its part");
    assert!(!have.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_reports_names_that_differ_in_case() {
    use anabranch_sets::folding::Folding;
    let mut net = Loopback::start(3);
    std::fs::create_dir(net.path(0, "data")).expect("the folder is ours");
    for name in ["data/README", "data/readme"] {
        std::fs::write(net.path(0, name), name).expect("the folder is ours");
    }
    for (site, expected) in [(0, vec![Folding::CASE, Folding::CASE_AND_FORM]), (2, vec![])] {
        net.sites[site].0.handle(Command::Inquire {
            run: RUN,
            is_source: site == 0,
            path: "data/".into(),
            submitter: Submitter::Operator,
            rules: DirectoryRules::default(),
        });
        let pick = |report: &Report| match report {
            Report::Inventory(Inventory { names, .. }) => Some(names.clone()),
            _ => None,
        };
        let names = net.report(site, pick).await;
        let foldings: Vec<Folding> = names.collisions.iter().map(|found| found.folding).collect();
        assert_eq!(foldings, expected);
        assert!(names.collisions.iter().all(|found| found.entries == 1), "{names:?}");
        assert!(names.folding.is_none(), "folders of tests keep names apart");
    }
}

/// #54: the stream of a directory stayed after its last transfer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inquiry_ends_a_directory_killed_after_its_last_entry() {
    use anabranch_disk::folder::Place;
    use anabranch_disk::tree::Tree;
    use anabranch_disk::tree::arrival::{Arrival, CopyRules, Snapshot};
    use anabranch_disk::tree::stream::TreeStream;
    let mut net = Loopback::start(3);
    for site in [0, 2] {
        std::fs::create_dir(net.path(site, "data")).expect("the folder is ours");
    }
    std::fs::write(net.path(0, "data/a"), "the content").expect("the folder is ours");
    let tree = Tree::open(&net.path(0, "data")).expect("it is there");
    let source = TreeStream::scan(&tree, None, u64::MAX).expect("it can be read");
    let manifest = source.manifest();
    let snapshot = Snapshot { id: manifest.id().0, length_bytes: manifest.length_bytes() };
    let place = Place::of(&net.path(2, "data")).expect("a name");
    let arrival = Arrival::open(place, snapshot, CopyRules::default(), u64::MAX).expect("it can be opened");
    arrival.expect("it differs").begin(manifest.head().to_vec()).expect("its head");
    let ends = [net.path(0, "data"), net.path(2, "data")];
    let copied = std::process::Command::new("cp").arg("-aT").args(ends).status().expect("cp runs");
    assert!(copied.success());
    let working = |net: &Loopback| {
        let names = std::fs::read_dir(net.path(2, "")).expect("a folder").flatten();
        let names = names.map(|entry| entry.file_name().into_string().expect("plain"));
        names.filter(|name| name.ends_with(".partial") || name.ends_with(".journal")).count()
    };
    assert_eq!(working(&net), 2);
    net.sites[2].0.handle(Command::Inquire {
        run: RUN,
        is_source: false,
        path: "data/".into(),
        submitter: Submitter::Operator,
        rules: DirectoryRules::default(),
    });
    let hash = net
        .report(2, |r| match r {
            Report::Inventory(Inventory { hash, .. }) => Some(*hash),
            _ => None,
        })
        .await;
    assert_eq!((hash, working(&net)), (Some(FileHash(snapshot.id)), 0));
}

/// #18: a dropped site kept its port and its files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_is_dropped_stops_listening() {
    let mut net = Loopback::start(3);
    net.sites[2].0.handle(Command::Install { program: Box::new(chain(&net, 2, 1 << 20, 1)) });
    net.report(2, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    let (service, reports, address) = net.sites.pop().expect("three sites");
    drop((service, reports));
    let gone = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("nobody listens");
}

/// Removes an attempt right after its installation started. The file is large, so that installing
/// takes a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_removed_during_installation_does_not_stay() {
    let net = Loopback::start(3);
    let service = &net.sites[2].0;
    for _ in 0..20 {
        service.handle(Command::Install { program: Box::new(chain(&net, 2, 8 << 20, 1)) });
        service.handle(Command::Uninstall { run: RUN });
    }
    let quiet = async {
        while !lock(&service.orders).daemon.is_idle() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, quiet).await.expect("commands end");
    assert!(lock(&service.runners).is_empty());
}

/// #17: the second attempt must wait, and fits once the first attempt is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_without_memory_is_busy_and_fits_later() {
    let mut net = Loopback::start(3);
    let large = |transfer: u64, path: &str| {
        let mut program = Box::new(chain(&net, 2, 1 << 20, 1));
        program.run.transfer = TransferId(transfer);
        program.buffer_packets = 400;
        program.sinks[0].path = path.into();
        program
    };
    let (first, second) = (large(7, "a.bin"), large(8, "b.bin"));
    let files = |net: &Loopback| std::fs::read_dir(net.path(2, "")).expect("a folder").count();
    assert!(memory_bytes(&first) > 33 << 20 && memory_bytes(&first) < 64 << 20, "one fits, two do not");
    net.sites[2].0.handle(Command::Install { program: first });
    net.report(2, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    let before = files(&net);
    net.sites[2].0.handle(Command::Install { program: second.clone() });
    let reason = net
        .report(2, |r| match r {
            Report::Failed { run, kind: FailureKind::Busy, reason } if run.transfer == TransferId(8) => {
                Some(reason.clone())
            }
            _ => None,
        })
        .await;
    assert!(reason.contains("begins when others have ended"), "{reason}");
    assert_eq!(files(&net), before, "nothing is made for what has no room");
    net.sites[2].0.handle(Command::Uninstall { run: Run { transfer: TransferId(7), ..RUN } });
    net.sites[2].0.handle(Command::Forget { transfer: TransferId(7) });
    let ready =
        |r: &Report| matches!(r, Report::Ready { run } if run.transfer == TransferId(8)).then_some(());
    let until = async {
        // The state machine's list frees the memory; the runner is gone a moment earlier.
        while lock(&net.sites[2].0.orders).daemon.attempts().any(|r| r.transfer == TransferId(7)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, until).await.expect("it is removed");
    net.sites[2].0.handle(Command::Install { program: second });
    net.report(2, ready).await;
}

/// #52: a source with buffers of the usual size refused 120 flows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_reaches_120_destinations_with_reduced_buffers() {
    const DESTINATIONS: usize = 120;
    let mut net = Loopback::start(DESTINATIONS + 1);
    let bytes: Vec<u8> = (0..300_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    std::fs::write(net.path(0, "in.bin"), &bytes).expect("the source's file");
    let part = |site: usize| {
        let mut program = chain(&net, 2, bytes.len() as u64, 1);
        (program.site, program.buffer_packets) = (SiteId(site as u16), 16);
        (program.incoming, program.sinks) = (vec![], vec![]);
        Box::new(program)
    };
    let template = chain(&net, 0, bytes.len() as u64, 1);
    let mut source = part(0);
    source.source_path = template.source_path;
    for site in 1..=DESTINATIONS {
        let flow = FlowId(site as u32);
        let mut program = part(site);
        let incoming = IncomingSpec { flow, ..chain(&net, 1, 0, 1).incoming.remove(0) };
        program.incoming = vec![incoming];
        program.sinks =
            vec![SinkProgram { group: 0, inputs: vec![flow], decode: None, path: "out.bin".into() }];
        net.sites[site].0.handle(Command::Install { program });
        source.outgoing.push(OutgoingSpec {
            flow,
            to: SiteId(site as u16),
            to_name: format!("s{site}"),
            address: net.sites[site].2.to_string(),
            ..template.outgoing[0].clone()
        });
    }
    assert!(memory_bytes(&source) > 64 << 20, "{} bytes", memory_bytes(&source));
    net.sites[0].0.handle(Command::Install { program: source });
    for site in 1..=DESTINATIONS {
        let whole = |r: &Report| match r {
            Report::SinkDone { have, .. } => Some(have.clone()),
            _ => None,
        };
        net.report(site, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
        let have = net.report(site, whole).await;
        assert_eq!(have, [ByteRange { start: 0, end: bytes.len() as u64 }], "site {site}");
    }
    let held = lock(&net.sites[0].0.orders).daemon.memory_bytes();
    assert!(held <= 48 << 20, "{held} bytes: more than three quarters");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_may_not_write_another_transfers_file() {
    let mut net = Loopback::start(3);
    net.sites[2].0.handle(Command::Install { program: Box::new(chain(&net, 2, 1 << 20, 1)) });
    net.report(2, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    let mut second = Box::new(chain(&net, 2, 2 << 20, 1));
    second.run.transfer = TransferId(8);
    net.sites[2].0.handle(Command::Install { program: second.clone() });
    let reason = net
        .report(2, |r| match r {
            Report::Failed { run, kind: FailureKind::Unwritable, reason }
                if run.transfer == TransferId(8) =>
            {
                Some(reason.clone())
            }
            _ => None,
        })
        .await;
    assert!(reason.contains("out.bin") && reason.contains("transfer 7"), "{reason}");
    // Once transfer 7 is forgotten, the second transfer may write the file.
    net.sites[2].0.handle(Command::Forget { transfer: TransferId(7) });
    net.sites[2].0.handle(Command::Install { program: second });
    net.report(2, |r| matches!(r, Report::Ready { run } if run.transfer == TransferId(8)).then_some(()))
        .await;
}

/// #18: a transfer with a complete file took over the file that another transfer was writing,
/// truncated it and renamed it. The other transfer's data was lost, its flows never ended, and it
/// was given up after a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_may_not_finish_another_transfers_file() {
    let mut net = Loopback::start(3);
    net.sites[2].0.handle(Command::Install { program: Box::new(chain(&net, 2, 1 << 20, 1)) });
    net.report(2, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    let finish = |transfer: u64| finish(Run { transfer: TransferId(transfer), ..RUN }, "./out.bin", b"");
    net.sites[2].0.handle(finish(8));
    let said = net
        .report(2, |r| match r {
            Report::Completed { .. } => Some("completed".to_owned()),
            Report::Failed { run, kind: FailureKind::Unwritable, reason } => {
                assert_eq!(run.transfer, TransferId(8));
                Some(reason.clone())
            }
            _ => None,
        })
        .await;
    assert!(said.contains("transfer 7 is writing this file"), "{said}");
    // Once transfer 7 is forgotten, transfer 8 may finish the file.
    net.sites[2].0.handle(Command::Forget { transfer: TransferId(7) });
    net.sites[2].0.handle(finish(8));
    net.report(2, |r| matches!(r, Report::Completed { .. }).then_some(())).await;
}

/// #18: a sink that was done and whose file was gone reported nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn done_sink_reports_that_its_file_is_gone() {
    let mut net = Loopback::start(3);
    std::fs::write(net.path(0, "in.bin"), vec![1; 100_000]).expect("the source's file");
    for site in [2, 1] {
        net.sites[site].0.handle(Command::Install { program: Box::new(chain(&net, site, 100_000, 1)) });
        net.report(site, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    }
    lock(&net.sites[2].0.files).clear();
    net.sites[0].0.handle(Command::Install { program: Box::new(chain(&net, 0, 100_000, 1)) });
    let have = net.report(2, |r| match r {
        Report::SinkDone { have, .. } => Some(have.clone()),
        _ => None,
    });
    assert_eq!(have.await, [], "there is nothing under the name");
}

fn inquire(path: &str, submitter: Submitter) -> Command {
    let rules = DirectoryRules::default();
    Command::Inquire { run: RUN, is_source: false, path: path.into(), submitter, rules }
}

impl Loopback {
    /// Returns the reason why a site refuses a command, or `None` if it does not.
    async fn refusal(&mut self, site: usize, command: Command) -> Option<String> {
        self.sites[site].0.handle(command);
        self.report(site, |r| match r {
            Report::Failed { reason, .. } => {
                assert!(!reason.contains('\n'), "{reason}");
                Some(Some(reason.clone()))
            }
            Report::Inventory(Inventory { .. }) => Some(None),
            _ => None,
        })
        .await
    }
}

/// #17: any site could write any file at any other site.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_write_anywhere_and_sites_where_allowed() {
    let mut topology = Topology::new("four");
    for name in ["s0", "s1", "s2", "s3"] {
        topology.add_site(name, None).expect("a new name");
    }
    let rule = |text: &str| AcceptFrom::parse(text, &topology);
    let rules = ["s1=in/s1/", "s2=."].map(|text| rule(text).expect("a rule"));
    let mut net = Loopback::start_with(1, rules.to_vec());
    let site = |name: &str| Submitter::Site(topology.find_site(name).expect("one of four"));
    for (path, submitter, is_let) in [
        ("x", Submitter::Operator, true),
        ("in/s1/x", site("s1"), true),
        ("./in//s1/y/x", site("s1"), true),
        ("in/s1", site("s1"), false),
        ("in/s10/x", site("s1"), false),
        ("x", site("s1"), false),
        ("in/s1/x", site("s3"), false),
        ("x", site("s2"), true),
    ] {
        let refusal = net.refusal(0, inquire(path, submitter)).await;
        assert_eq!(refusal.is_none(), is_let, "{path} by {submitter:?}: {refusal:?}");
        assert!(refusal.is_none_or(|said| said.contains("--accept-from")), "{path}");
    }
    // A site may put a directory there, but not give it to other users.
    let metadata = anabranch_sets::metadata::MetadataRules { owners: None, xattrs: true };
    for (metadata, is_let) in [(metadata, false), (Default::default(), true)] {
        let rules = DirectoryRules { metadata, ..DirectoryRules::default() };
        let (path, submitter) = ("in/s1/d/".to_owned(), site("s1"));
        let command = Command::Inquire { run: RUN, is_source: false, path, submitter, rules };
        let refusal = net.refusal(0, command).await;
        assert_eq!(refusal.is_none(), is_let, "{refusal:?}");
        assert!(refusal.is_none_or(|said| said.contains("nor set owners and attributes")));
    }
    for bad in ["s1", "s1=", "=x", "s9=x", "s1=/x", "s1=../x", "s1=/"] {
        assert!(rule(bad).is_err(), "{bad}");
    }
}

/// #17: two spellings of one name were two files, and the second transfer never ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_spellings_of_a_name_are_one_file() {
    let mut net = Loopback::start(3);
    net.sites[2].0.handle(Command::Install { program: Box::new(chain(&net, 2, 1 << 20, 1)) });
    net.report(2, |r| matches!(r, Report::Ready { .. }).then_some(())).await;
    let mut second = Box::new(chain(&net, 2, 1 << 20, 1));
    second.run.transfer = TransferId(8);
    second.sinks[0].path = ".//out.bin".into();
    let refusal = net.refusal(2, Command::Install { program: second }).await.expect("it is being written");
    assert!(refusal.contains("transfer 7 is writing this file"), "{refusal}");
}

/// #18: the failure was detected by the words "Too many open files" in the text.
#[test]
fn descriptor_shortage_blames_no_peer() {
    use rustix::io::Errno;
    let path = std::path::Path::new("in.bin");
    let kind = |errno: Errno| {
        let error = at(path, Err::<(), _>(errno)).expect_err("it was one");
        failure(FailureKind::Unreadable, &error).0
    };
    assert_eq!([Errno::MFILE, Errno::NFILE].map(kind), [FailureKind::Busy; 2]);
    assert_eq!([Errno::IO, Errno::NOSPC].map(kind), [FailureKind::Unreadable; 2]);
    let named = io::Error::other("Too many open files.txt: changed while it was read");
    assert_eq!(
        failure(FailureKind::Unreadable, &named).0,
        FailureKind::Unreadable,
        "a file may be called so"
    );
}
