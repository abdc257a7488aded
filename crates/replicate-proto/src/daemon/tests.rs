//! A daemon between random commands and a driver that does its jobs in any order.

use super::*;
use crate::control::{Attempt, GroupProgram, SinkProgram};
use crate::plan::Mode;
use anabranch_pieces::FileHash;
use proptest::prelude::*;

const MEMORY: u64 = 2 << 20;

fn run(transfer: u64, attempt: u32) -> Run {
    Run { transfer: TransferId(transfer), attempt: Attempt(attempt) }
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

/// A destination's program, which needs more than 1 MiB.
fn program(run: Run, path: &str, length: u64) -> Box<SiteProgram> {
    Box::new(SiteProgram {
        run,
        site: anabranch_units::SiteId(1),
        length,
        snapshot: None,
        symbol_bytes: 32 << 10,
        buffer_packets: 4,
        groups: vec![GroupProgram {
            streams: 1,
            ceilings: vec![],
            mode: Mode::Routed,
            work: vec![],
            flush: 0,
            fills: None,
            filled: false,
        }],
        source_path: None,
        incoming: vec![],
        outgoing: vec![],
        sinks: vec![SinkProgram {
            group: 0,
            inputs: (0..3).map(crate::plan::FlowId).collect(),
            decode: None,
            path: path.into(),
        }],
        store_and_forward: false,
        bandwidth_limit: None,
        submitter: Submitter::Operator,
    })
}

fn install(run: Run, path: &str) -> Command {
    Command::Install { program: program(run, path, 100) }
}

fn finish_with(run: Run, path: &str, length: u64, hash: FileHash) -> Command {
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

fn finish(run: Run, path: &str, length: u64) -> Command {
    let hash = FileHash([0; 32]);
    finish_with(run, path, length, hash)
}

/// A finish command whose hash contains its number.
fn question(n: u32, run: Run, path: &str) -> Command {
    let mut hash = FileHash([0; 32]);
    hash.0[..4].copy_from_slice(&n.to_le_bytes());
    finish_with(run, path, 100, hash)
}

fn number(file: &Finish) -> u32 {
    u32::from_le_bytes(file.hash.0[..4].try_into().unwrap())
}

fn daemon() -> Daemon {
    Daemon::new("/srv/files", MEMORY)
}

/// The pending jobs and reports of a daemon.
fn out(daemon: &mut Daemon) -> (Vec<Job>, Vec<Report>) {
    let jobs = std::iter::from_fn(|| daemon.poll_job()).collect();
    (jobs, std::iter::from_fn(|| daemon.poll_report()).collect())
}

/// Installs an attempt.
fn installed(daemon: &mut Daemon, run: Run, path: &str) {
    daemon.handle_command(at(0), install(run, path));
    let (jobs, reports) = out(daemon);
    assert!(matches!(jobs[..], [Job::Install { .. }]) && reports.is_empty(), "{jobs:?} {reports:?}");
    daemon.handle_done(at(0), run.transfer, JobResult::Installed);
}

/// #18: a complete transfer took a file that another transfer was writing, and the other transfer
/// waited for a minute.
#[test]
fn file_finishes_only_when_no_other_transfer_writes_it() {
    for path in ["out", "./out", "/srv/files//out"] {
        let mut daemon = daemon();
        installed(&mut daemon, run(7, 1), "out");
        daemon.handle_command(at(10), finish(run(8, 1), path, 1));
        assert_eq!(out(&mut daemon), (vec![], vec![]), "it waits");
        assert_eq!(daemon.poll_timeout(), Some(at(10) + PATH_WAIT));
        daemon.handle_timeout(at(10) + PATH_WAIT);
        let (jobs, reports) = out(&mut daemon);
        assert_eq!(jobs, []);
        let [Report::Failed { kind: FailureKind::Unwritable, reason, .. }] = &reports[..] else {
            panic!("{reports:?}")
        };
        assert!(reason.contains("out: transfer 7 is writing this file"), "{reason}");
    }
    // A transfer waits for one that ends in time, and the next transfer waits until the file is
    // finished.
    let mut daemon = daemon();
    installed(&mut daemon, run(7, 1), "out");
    daemon.handle_command(at(10), finish(run(8, 1), "out", 1));
    daemon.handle_command(at(20), Command::Uninstall { run: run(7, 1) });
    assert!(matches!(out(&mut daemon).0[..], [Job::Remove { .. }]));
    daemon.handle_done(at(30), TransferId(7), JobResult::Nothing);
    assert!(matches!(out(&mut daemon).0[..], [Job::Finish(_)]));
    daemon.handle_command(at(40), install(run(9, 1), "out"));
    assert_eq!(out(&mut daemon), (vec![], vec![]));
    daemon.handle_done(at(50), TransferId(8), JobResult::Answer(Report::Completed { run: run(8, 1) }));
    let (jobs, reports) = out(&mut daemon);
    assert!(matches!(jobs[..], [Job::Install { .. }]));
    assert_eq!(reports, [Report::Completed { run: run(8, 1) }]);
}

/// #54: after Ctrl-C a destination went on writing, and the next transfer scanned it half written.
#[test]
fn inquiries_wait_while_another_transfer_writes_the_directory() {
    let inquire = |transfer, path: &str| Command::Inquire {
        run: run(transfer, 1),
        is_source: false,
        path: path.to_owned(),
        submitter: Submitter::Operator,
        rules: DirectoryRules::default(),
    };
    for path in ["in/", "./in/", "in/below/", "/srv/files/in/"] {
        let mut daemon = daemon();
        daemon.handle_command(at(0), finish(run(7, 1), "in/", 1));
        assert!(matches!(out(&mut daemon).0[..], [Job::Finish(_)]));
        daemon.handle_command(at(10), inquire(8, path));
        daemon.handle_timeout(at(20) + PATH_WAIT);
        assert_eq!(out(&mut daemon), (vec![], vec![]), "{path}: it waits longer than a file's transfer");
        daemon.handle_command(at(5_000), inquire(9, "other/"));
        assert!(matches!(out(&mut daemon).0[..], [Job::Inquire { .. }]), "{path}");
        daemon.handle_done(at(5_010), TransferId(7), JobResult::Nothing);
        let jobs = out(&mut daemon).0;
        assert!(matches!(jobs[..], [Job::Inquire { run, .. }] if run.transfer == TransferId(8)), "{jobs:?}");
    }
}

/// #52: the wait for a file must not reduce the buffers twice, nor forget the reduction.
#[test]
fn reduced_buffers_are_reported_after_a_wait() {
    let mut daemon = daemon();
    let mut small = program(run(7, 1), "out", 100);
    small.buffer_packets = 1;
    daemon.handle_command(at(0), Command::Install { program: small });
    assert!(matches!(out(&mut daemon).0[..], [Job::Install { asked_packets: None, .. }]));
    daemon.handle_done(at(0), TransferId(7), JobResult::Installed);
    daemon.handle_command(at(1), Command::Uninstall { run: run(7, 1) });
    assert!(matches!(out(&mut daemon).0[..], [Job::Remove { .. }]));
    let mut large = program(run(8, 1), "out", 100);
    large.buffer_packets = 12;
    daemon.handle_command(at(2), Command::Install { program: large });
    assert_eq!(out(&mut daemon), (vec![], vec![]), "it waits for the removal");
    daemon.handle_done(at(3), TransferId(7), JobResult::Nothing);
    let (jobs, reports) = out(&mut daemon);
    let [Job::Install { program, asked_packets: Some(12) }] = &jobs[..] else {
        panic!("{jobs:?} {reports:?}")
    };
    assert!((1..12).contains(&program.buffer_packets), "{} packets", program.buffer_packets);
    assert!(daemon.memory_bytes() <= MEMORY, "{} bytes", daemon.memory_bytes());
}

#[test]
fn early_hash_is_used_when_the_sinks_are_done() {
    let have = |end| vec![anabranch_pieces::ByteRange { start: 0, end }];
    for (arrived, is_finished) in [(100, true), (99, false)] {
        for is_done_first in [false, true] {
            let mut daemon = daemon();
            let r = run(1, 1);
            installed(&mut daemon, r, "out");
            daemon.handle_command(at(1), finish(r, "out", 100));
            assert!(matches!(out(&mut daemon).0[..], [Job::Finish(_)]));
            let done = Report::SinkDone { run: r, have: have(arrived) };
            if is_done_first {
                daemon.handle_report(at(2), done.clone());
                daemon.handle_done(at(3), r.transfer, JobResult::NotYet);
            } else {
                daemon.handle_done(at(2), r.transfer, JobResult::NotYet);
                daemon.handle_report(at(3), done.clone());
            }
            let (jobs, reports) = out(&mut daemon);
            assert_eq!(reports, [done]);
            assert_eq!(matches!(jobs[..], [Job::Finish(_)]), is_finished, "{arrived} {is_done_first}");
        }
    }
    // The removal of an attempt also removes its announced hash.
    let mut daemon = daemon();
    installed(&mut daemon, run(1, 1), "out");
    daemon.handle_command(at(1), finish(run(1, 1), "out", 100));
    out(&mut daemon);
    daemon.handle_done(at(1), TransferId(1), JobResult::NotYet);
    daemon.handle_command(at(2), Command::Uninstall { run: run(1, 1) });
    daemon.handle_report(at(3), Report::SinkDone { run: run(1, 1), have: have(100) });
    assert!(matches!(out(&mut daemon).0[..], [Job::Remove { .. }]));
}

#[test]
fn later_attempt_replaces_earlier_ones_and_their_memory() {
    let mut daemon = daemon();
    installed(&mut daemon, run(1, 1), "a");
    let each = daemon.memory_bytes();
    assert!(2 * each > MEMORY, "one fits, two do not: {each}");
    daemon.handle_command(at(1), install(run(2, 1), "b"));
    let (jobs, reports) = out(&mut daemon);
    assert!(jobs.is_empty() && matches!(reports[..], [Report::Failed { kind: FailureKind::Busy, .. }]));
    daemon.handle_command(at(2), install(run(1, 2), "a"));
    assert_eq!(out(&mut daemon).0, [Job::Remove { run: run(1, 1) }]);
    daemon.handle_done(at(3), TransferId(1), JobResult::Nothing);
    assert!(matches!(&out(&mut daemon).0[..], [Job::Install { program, .. }] if program.run == run(1, 2)));
    assert!(daemon.is_superseded(run(1, 1)) && !daemon.is_superseded(run(1, 2)));
    // An attempt that was not set up returns its memory.
    let failed = Report::Failed { run: run(1, 2), kind: FailureKind::Unwritable, reason: "no".into() };
    daemon.handle_done(at(4), TransferId(1), JobResult::Answer(failed));
    assert_eq!(daemon.memory_bytes(), 0);
    assert!(daemon.is_idle());
}

/// #48: after 213 days a relay's clock overflowed, and a deadline in three seconds was in the past.
#[test]
fn commands_wait_for_files_at_any_clock_value() {
    const YEARS: std::time::Duration = std::time::Duration::from_secs(40 * 366 * 86_400);
    for now in [at(0), Instant::from_std(YEARS)] {
        let mut daemon = daemon();
        installed(&mut daemon, run(1, 1), "a");
        daemon.handle_command(now, finish(run(2, 1), "a", 100));
        assert_eq!(out(&mut daemon), (vec![], vec![]), "it waits");
        assert!(daemon.poll_timeout().is_some_and(|t| t > now));
        let due = daemon.poll_timeout().expect("it waits");
        assert!(due <= now + Duration::from_secs(3), "{due:?}");
        daemon.handle_timeout(due);
        assert!(matches!(out(&mut daemon).1[..], [Report::Failed { kind: FailureKind::Unwritable, .. }]));
    }
}

/// #48: at each try, a destination without room read its part of the file to finish it.
#[test]
fn refused_attempts_read_no_file() {
    let mut daemon = daemon();
    installed(&mut daemon, run(1, 1), "a");
    for attempt in 1..3 {
        daemon.handle_command(at(1), install(run(2, attempt), "b"));
        daemon.handle_command(at(1), finish(run(2, attempt), "b", 100));
        let (jobs, reports) = out(&mut daemon);
        let busy = |r: &Report| matches!(r, Report::Failed { kind: FailureKind::Busy, .. });
        assert!(jobs.is_empty() && reports.len() == 2 && reports.iter().all(busy));
    }
    // A file that is already complete is finished under the number of an inquiry.
    daemon.handle_command(at(2), finish(run(2, 3), "b", 100));
    assert!(matches!(out(&mut daemon).0[..], [Job::Finish(_)]));
}

/// #54: a destination with all data, and without room to relay in the attempt, did not finish it.
#[test]
fn refused_relay_finishes_its_complete_file() {
    let mut daemon = daemon();
    let mut relay = program(run(2, 1), "b", 100);
    relay.sinks.clear();
    daemon.handle_command(at(0), Command::Install { program: relay });
    assert!(matches!(out(&mut daemon).0[..], [Job::Install { .. }]));
    let (kind, reason) = (FailureKind::Busy, "no descriptors".to_owned());
    let answer = JobResult::Answer(Report::Failed { run: run(2, 1), kind, reason });
    daemon.handle_done(at(1), TransferId(2), answer);
    daemon.handle_command(at(1), finish(run(2, 1), "b", 100));
    assert!(matches!(out(&mut daemon).0[..], [Job::Finish(_)]));
}

#[test]
fn commands_beyond_the_limit_are_refused_and_counted() {
    let mut daemon = daemon();
    let hash = |n| Command::Hash { run: run(1, n), path: "x".into() };
    daemon.handle_command(at(0), hash(0));
    (0..COMMANDS_MAX as u32).for_each(|n| daemon.handle_command(at(0), hash(n)));
    assert_eq!((out(&mut daemon).1, daemon.commands_dropped()), (vec![], 0));
    daemon.handle_command(at(0), hash(0));
    assert!(matches!(out(&mut daemon).1[..], [Report::Failed { kind: FailureKind::Busy, .. }]));
    assert_eq!(daemon.commands_dropped(), 1);
}

#[derive(Clone, Debug)]
enum Act {
    Tell(u64, u32, u8, u8),
    /// The driver ends the job of a transfer that has one, with success or failure.
    Do(usize, bool),
    SinkDone(u64, u32, bool),
    Pass(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (1..5u64, 1..4u32, 0..6u8, 0..2u8).prop_map(|(t, a, what, path)| Act::Tell(t, a, what, path)),
        4 => (0..8usize, any::<bool>()).prop_map(|(which, well)| Act::Do(which, well)),
        1 => (1..5u64, 1..4u32, any::<bool>()).prop_map(|(t, a, whole)| Act::SinkDone(t, a, whole)),
        1 => (1..4_000u64).prop_map(Act::Pass),
    ];
    proptest::collection::vec(act, 1..200)
}

/// The file that a job changes until the job ends or, after an installation, until the removal.
fn changes(job: &Job) -> Option<&str> {
    match job {
        Job::Install { program, .. } => Some(&program.sinks[0].path),
        Job::Finish(file) => Some(&file.path),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Property for all commands and results: a transfer has at most one job at a time, and two
    /// transfers never change one file. Memory stays within its bound. Every question is answered
    /// once, and no command waits when all jobs are done.
    #[test]
    fn random_commands_keep_order_file_exclusion_and_answers(acts in acts()) {
        let mut daemon = Daemon::new("/srv", 2 * MEMORY);
        let mut now = Instant::ZERO;
        // Numbers of the questions, which their hash or name contains. `refused` counts installs
        // and finishes that were refused because of their file.
        let (mut asked, mut answered, mut put_off) = (0u32, BTreeSet::new(), BTreeSet::new());
        let mut refused = 0;
        let mut jobs: Vec<Job> = Vec::new();
        let mut stand: BTreeMap<Run, String> = BTreeMap::new();
        let ends = std::iter::repeat_n([Act::Do(0, true), Act::Pass(5_000)], 400).flatten();
        for act in acts.into_iter().chain(ends) {
            match act {
                Act::Tell(t, a, what, path) => {
                    let (run, path) = (run(t, a), ["p", "./q"][usize::from(path)]);
                    let command = match what {
                        0 => install(run, path),
                        1 => Command::Uninstall { run },
                        2 => question(asked, run, path),
                        3 => Command::Hash { run, path: asked.to_string() },
                        4 => Command::Forget { transfer: run.transfer },
                        _ => {
                            let (path, submitter) = (asked.to_string(), Submitter::Operator);
                            let rules = DirectoryRules::default();
                            Command::Inquire { run, is_source: false, path, submitter, rules }
                        }
                    };
                    asked += u32::from(matches!(what, 2 | 3 | 5));
                    daemon.handle_command(now, command);
                }
                Act::Do(which, well) if !jobs.is_empty() => {
                    let job = jobs.remove(which % jobs.len());
                    let transfer = job.transfer();
                    let completed = |run| JobResult::Answer(Report::Completed { run });
                    let done = match job {
                        Job::Install { program, .. } if well => {
                            stand.insert(program.run, program.sinks[0].path.clone());
                            JobResult::Installed
                        }
                        Job::Install { program, .. } => {
                            JobResult::Answer(Report::Failed { run: program.run, kind: FailureKind::Refused, reason: String::new() })
                        }
                        Job::Remove { run } => {
                            prop_assert!(stand.remove(&run).is_some());
                            JobResult::Nothing
                        }
                        Job::Forget { transfer } => {
                            stand.retain(|run, _| run.transfer != transfer);
                            JobResult::Nothing
                        }
                        Job::Finish(file) if !well => {
                            // The announced hash may be removed with its attempt. The answer is
                            // then no longer needed.
                            put_off.insert(number(&file));
                            JobResult::NotYet
                        }
                        Job::Finish(file) => {
                            prop_assert!(answered.insert(number(&file)), "answered twice");
                            completed(file.run)
                        }
                        Job::Inquire { run, path, .. } | Job::Hash { run, path } => {
                            prop_assert!(answered.insert(path.parse().unwrap()), "answered twice");
                            completed(run)
                        }
                        Job::Audit { .. } => unreachable!("nobody asks for one"),
                    };
                    daemon.handle_done(now, transfer, done);
                }
                Act::Do(..) => {}
                Act::SinkDone(t, a, whole) => {
                    let have = vec![anabranch_pieces::ByteRange { start: 0, end: if whole { 100 } else { 50 } }];
                    daemon.handle_report(now, Report::SinkDone { run: run(t, a), have });
                }
                Act::Pass(ms) => {
                    now += Duration::from_ms(ms);
                    if daemon.poll_timeout().is_some_and(|t| t <= now) {
                        daemon.handle_timeout(now);
                    }
                    prop_assert!(daemon.poll_timeout().is_none_or(|t| t > now), "what was due is dealt with");
                }
            }
            while let Some(report) = daemon.poll_report() {
                refused += usize::from(matches!(report, Report::Failed { kind, reason, .. }
                    if kind == FailureKind::Unwritable || reason == NOT_INSTALLED));
            }
            jobs.extend(std::iter::from_fn(|| daemon.poll_job()));
            let transfers: BTreeSet<TransferId> = jobs.iter().map(Job::transfer).collect();
            prop_assert_eq!(transfers.len(), jobs.len(), "one job of each transfer: {:?}", jobs);
            let mut writers: BTreeMap<&str, TransferId> = BTreeMap::new();
            let held = stand.iter().map(|(run, path)| (path.as_str(), run.transfer));
            for (path, transfer) in jobs.iter().filter_map(|j| Some((changes(j)?, j.transfer()))).chain(held) {
                let first = *writers.entry(path).or_insert(transfer);
                prop_assert_eq!(first, transfer, "{} is changed by two", path);
            }
            prop_assert!(daemon.memory_bytes() <= 2 * MEMORY);
        }
        prop_assert!(daemon.is_idle() && jobs.is_empty());
        let unanswered = (0..asked).filter(|n| !answered.contains(n) && !put_off.contains(n)).count();
        prop_assert!(unanswered <= refused, "{unanswered} of {asked} without an answer, {refused} refused");
    }
}
