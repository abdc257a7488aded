//! A site's host and its daemon's process, which executes jobs as `service.rs` of the service does.

use super::controller::Link;
use super::directories::RememberedDirectories;
use super::disk::{Disk, DiskFull, FinishResult, file_hash};
use super::network::spoil;
use super::runner::{DiskTask, Runner, Source};
use super::world::{ScheduleEvent, World};
use anabranch_pieces::name::{directory, normal_entry};
use anabranch_replicate_proto::control::{Command, FailureKind, Finish, Inventory, Report, Run, SiteProgram};
use anabranch_replicate_proto::daemon::{Daemon, Job, JobResult, PROGRESS_EVERY};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A machine with a disk, which may run a daemon.
#[derive(Default)]
pub struct Host {
    pub disk: Disk,
    pub process: Option<Process>,
    /// Whether the machine is off, so that connection attempts receive no answer.
    pub is_dark: bool,
    /// Symbols per million that the machine's memory corrupts before they are sent.
    pub spoils_ppm: u32,
    /// Whether the site refuses each attempt because it has no room.
    pub is_crowded: bool,
    /// Maximum delay of the site's disk in milliseconds.
    pub disk_ms: u64,
}

pub struct Process {
    pub session: u64,
    pub daemon: Daemon,
    began: Instant,
    /// Total of the clock's jumps since the process began.
    pub ahead: Duration,
    pub runners: BTreeMap<Run, Runner>,
    pub link: Link,
    /// Source files with a known hash.
    hashed: BTreeSet<String>,
    pub directories: RememberedDirectories,
    /// Number of the freeze that has stopped the process, and the events that are handled
    /// afterwards.
    pub frozen: Option<u64>,
    pub held: Vec<ScheduleEvent>,
}

impl Process {
    pub fn local(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.began) + self.ahead
    }

    /// Next due time of the process, in the world's time.
    pub fn due(&self) -> Option<Instant> {
        let paces = self.runners.values().filter_map(|runner| runner.due).min();
        let daemon = self.daemon.poll_timeout().into_iter().chain(paces).min();
        daemon.map(|local| self.began + local.saturating_since(Instant::ZERO + self.ahead))
    }
}

/// The normal form of a name.
pub fn path(name: &str) -> String {
    normal_entry(name).expect("names are good")
}

fn failed(run: Run, what: &str) -> Report {
    let reason = format!("{what}: no space left on device");
    Report::Failed { run, kind: FailureKind::Unwritable, reason }
}

impl World {
    pub fn start_site(&mut self, site: usize) {
        self.schedule.say(format!("site {site} starts"));
        let session = self.random.next_u64();
        let host = &mut self.hosts[site];
        host.is_dark = false;
        host.process = Some(Process {
            session,
            daemon: Daemon::new("/srv", self.memory_max),
            began: self.schedule.now(),
            ahead: Duration::ZERO,
            runners: BTreeMap::new(),
            link: Link::default(),
            hashed: BTreeSet::new(),
            directories: RememberedDirectories::default(),
            frozen: None,
            held: Vec::new(),
        });
        self.schedule.after(PROGRESS_EVERY, ScheduleEvent::Progress { site, session });
        self.converse(site, session);
    }

    /// Fails the process. With `is_dark` the machine fails, too, so that no peer sees its
    /// connections close.
    pub fn crash_site(&mut self, site: usize, is_dark: bool) {
        let Some(process) = self.hosts[site].process.take() else { return };
        self.schedule.say(format!("site {site} dies{}", if is_dark { " with its machine" } else { "" }));
        self.hosts[site].is_dark = is_dark;
        let power = is_dark.then_some(&mut self.random);
        self.hosts[site].disk.crash(power);
        self.hang_up(site, process.session);
        self.close_others(site);
    }

    pub fn is_session(&self, site: usize, session: u64) -> bool {
        self.hosts[site].process.as_ref().is_some_and(|process| process.session == session)
    }

    pub fn runner(&mut self, site: usize, run: Run) -> Option<&mut Runner> {
        self.hosts[site].process.as_mut()?.runners.get_mut(&run)
    }

    pub fn command(&mut self, site: usize, command: Command) {
        let now = self.schedule.now();
        if let Command::Install { program } = &command
            && self.hosts[site].is_crowded
        {
            let (run, reason) = (program.run, "no room".to_owned());
            return self.say(site, Report::Failed { run, kind: FailureKind::Busy, reason });
        }
        let Some(process) = &mut self.hosts[site].process else { return };
        let local = process.local(now);
        process.daemon.handle_command(local, command);
        self.turn(site);
    }

    /// Handles a daemon's jobs and reports.
    fn turn(&mut self, site: usize) {
        let Some(process) = &mut self.hosts[site].process else { return };
        let session = process.session;
        let reports: Vec<_> = std::iter::from_fn(|| process.daemon.poll_report()).collect();
        let jobs: Vec<_> = std::iter::from_fn(|| process.daemon.poll_job()).collect();
        reports.into_iter().for_each(|report| self.say(site, report));
        for job in jobs {
            let takes = self.disk_delay(site);
            self.schedule.after(takes, ScheduleEvent::Job { site, session, job: Box::new(job) });
        }
    }

    pub fn handle_job(&mut self, site: usize, session: u64, job: Job) {
        if !self.is_session(site, session) {
            return;
        }
        let transfer = job.transfer();
        let installed = match &job {
            Job::Install { program, .. } => Some(program.run),
            _ => None,
        };
        let done = self.carry_out(site, job);
        let stands = installed.filter(|_| done == JobResult::Installed);
        let now = self.schedule.now();
        let process = self.hosts[site].process.as_mut().expect("asked above");
        let local = process.local(now);
        process.daemon.handle_done(local, transfer, done);
        if let Some(run) = stands {
            self.connect(site, run);
            self.stir(site, run);
        }
        self.close_others(site);
        self.turn(site);
    }

    fn carry_out(&mut self, site: usize, job: Job) -> JobResult {
        match &job {
            Job::Inquire { run, is_source, path: name, .. } if directory(name).is_some() => {
                let (run, is_source) = (*run, *is_source);
                return JobResult::Answer(if is_source {
                    self.inquire_source(site, run, name)
                } else {
                    self.inquire_sink(site, run, &path(name))
                });
            }
            Job::Hash { run, path: name } if directory(name).is_some() => {
                let hash = self.stream_of(site, name, run.transfer).stream.hash;
                return JobResult::Answer(Report::Hashed { run: *run, hash });
            }
            _ => {}
        }
        let Host { disk, process, .. } = &mut self.hosts[site];
        let process = process.as_mut().expect("callers asked");
        match job {
            Job::Inquire { run, is_source: true, path, .. } => {
                let source = &self.sources.files[&path];
                let hash = process.hashed.contains(&path).then_some(source.hash);
                let length = Some(source.bytes.len() as u64);
                JobResult::Answer(Report::Inventory(Inventory { length, hash, ..Inventory::new(run) }))
            }
            Job::Inquire { run, path: name, .. } => {
                let path = path(&name);
                let there = disk.finished(&path).map(|bytes| (bytes.len() as u64, file_hash(bytes)));
                let (length, hash) = there.unzip();
                JobResult::Answer(match disk.have(&path) {
                    Ok(have) => Report::Inventory(Inventory { length, have, hash, ..Inventory::new(run) }),
                    Err(DiskFull) => failed(run, &path),
                })
            }
            Job::Install { program, .. } => self.install(site, *program),
            Job::Remove { run } => {
                process.runners.remove(&run);
                JobResult::Nothing
            }
            Job::Forget { transfer } => {
                process.runners.retain(|run, _| run.transfer != transfer);
                process.directories.forget(transfer);
                let written =
                    process.runners.values().filter_map(|r| r.file.as_ref().map(|(path, _)| path.clone()));
                disk.close_but(&written.collect());
                JobResult::Nothing
            }
            Job::Hash { run, path } => {
                let hash = self.sources.files[&path].hash;
                process.hashed.insert(path);
                JobResult::Answer(Report::Hashed { run, hash })
            }
            Job::Audit { run, group, generation, vectors } => {
                let runner = process.runners.get(&run);
                runner.map_or(JobResult::Nothing, |r| JobResult::Answer(r.audit(group, generation, &vectors)))
            }
            Job::Finish(file) => self.finish(site, &file),
        }
    }

    fn install(&mut self, site: usize, program: SiteProgram) -> JobResult {
        let (now, run) = (self.schedule.now(), program.run);
        let is_directory = |name: &String| directory(name).is_some();
        let snapshot = program.source_path.as_ref().filter(|name| is_directory(name));
        let snapshot = snapshot.map(|name| self.stream_of(site, name, run.transfer));
        if snapshot.as_ref().is_some_and(|s| program.snapshot.is_some_and(|id| id != s.head.id)) {
            let (kind, reason) = (FailureKind::Unreadable, "changed during the transfer".to_owned());
            return JobResult::Answer(Report::Failed { run, kind, reason });
        }
        let file = program.sinks.first().map(|sink| {
            let path = path(&sink.path);
            let begun = match directory(&path) {
                Some(_) => self.begin_stream(site, &path, &program),
                None => self.hosts[site].disk.begin(&path, program.length),
            };
            begun.map(|number| (path, number))
        });
        let file = match file.transpose() {
            Ok(file) => file,
            Err(DiskFull) => return JobResult::Answer(failed(run, "a file")),
        };
        let current = program.source_path.as_ref().and_then(|name| self.sources.snapshots.get(name)?.last());
        let has_changed = snapshot.as_ref().zip(current).is_some_and(|(s, now)| s.head.id != now.head.id);
        let source = program.source_path.as_ref().map(|name| match &snapshot {
            Some(snapshot) => snapshot.stream.clone(),
            None => self.sources.files[name].clone(),
        });
        let process = self.hosts[site].process.as_mut().expect("callers asked");
        let local = process.local(now);
        let mut runner = Runner::new(program, file, source, local);
        if has_changed {
            runner.stop_reading();
        }
        process.runners.insert(run, runner);
        JobResult::Installed
    }

    fn finish(&mut self, site: usize, file: &Finish) -> JobResult {
        let (run, path) = (file.run, path(&file.path));
        let Host { disk, process, .. } = &mut self.hosts[site];
        let process = process.as_mut().expect("callers asked");
        let written = process.runners.get(&run).and_then(|runner| runner.file.as_ref());
        let have = written.and_then(|(path, number)| disk.have_of(path, *number));
        let have = have.map(|have| self.arrived(site, run.transfer, &path, have));
        if have.is_some_and(|have| have.iter().map(|r| r.len()).sum::<u64>() < file.length) {
            return JobResult::NotYet;
        }
        if directory(&path).is_some() {
            return JobResult::Answer(self.finish_directory(site, file, &path));
        }
        let disk = &mut self.hosts[site].disk;
        JobResult::Answer(match disk.finish(&path, file.length, file.hash, file.replace) {
            Ok(FinishResult::Named) => {
                self.check_named(site, &path);
                Report::Completed { run }
            }
            Ok(FinishResult::Missing(have)) => Report::SinkDone { run, have },
            Ok(FinishResult::OtherFile) => {
                let (kind, reason) = (FailureKind::Unwritable, "another file has this name".to_owned());
                Report::Failed { run, kind, reason }
            }
            Err(DiskFull) => failed(run, &path),
        })
    }

    /// Lets an attempt do everything that it can do now.
    pub fn stir(&mut self, site: usize, run: Run) {
        let now = self.schedule.now();
        if self.is_frozen(site) {
            return;
        }
        let Some(process) = &mut self.hosts[site].process else { return };
        let local = process.local(now);
        let Some(mut runner) = process.runners.remove(&run) else { return };
        loop {
            let mut moved = self.take_in(site, &mut runner, local);
            moved |= runner.work(local, &mut self.random);
            moved |= self.send_on(site, &mut runner, local);
            if !moved {
                break;
            }
        }
        let live = runner.live_bytes();
        assert!(live <= runner.program.memory_bytes(), "{run:?} at {site}: {live} bytes are live");
        let process = self.hosts[site].process.as_mut().expect("looked up above");
        let session = process.session;
        let (writes, errand) = (
            !runner.writes.is_empty() && !runner.is_writing,
            !runner.errands.is_empty() && !runner.is_on_errand,
        );
        runner.is_writing |= writes;
        runner.is_on_errand |= errand;
        process.runners.insert(run, runner);
        if writes {
            let takes = self.disk_delay(site);
            self.schedule.after(takes, ScheduleEvent::Written { site, session, run });
        }
        if errand {
            let takes = self.disk_delay(site);
            self.schedule.after(takes, ScheduleEvent::Errand { site, session, run });
        }
        self.pass_on(site, run);
    }

    /// Passes an attempt's reports to the daemon and adds the data that the runner does not have.
    pub fn pass_on(&mut self, site: usize, run: Run) {
        let now = self.schedule.now();
        let Host { disk, process, .. } = &mut self.hosts[site];
        let Some(process) = process else { return };
        let local = process.local(now);
        let Some(runner) = process.runners.get_mut(&run) else { return };
        let (reports, file) = (std::mem::take(&mut runner.reports), runner.file.clone());
        if reports.is_empty() {
            return;
        }
        let have = file.and_then(|(path, number)| Some((disk.have_of(&path, number)?, path)));
        let have = have.map(|(have, path)| self.arrived(site, run.transfer, &path, have));
        for report in reports {
            let report = match report {
                Report::SinkDone { run, .. } => {
                    Report::SinkDone { run, have: have.clone().unwrap_or_default() }
                }
                other => other,
            };
            let Some(process) = &mut self.hosts[site].process else { return };
            process.daemon.handle_report(local, report);
        }
        self.turn(site);
    }

    /// Handles a failed disk operation of an attempt.
    fn break_down(&mut self, site: usize, run: Run) {
        let Some(runner) = self.runner(site, run) else { return };
        if !std::mem::replace(&mut runner.is_broken, true) {
            runner.reports.push_back(failed(run, "a write"));
        }
        self.pass_on(site, run);
    }

    /// Handles the end of an attempt's first pending write.
    pub fn handle_written(&mut self, site: usize, session: u64, run: Run) {
        if !self.is_session(site, session) {
            return;
        }
        let Host { disk, process, .. } = &mut self.hosts[site];
        let process = process.as_mut().expect("asked above");
        let Some(runner) = process.runners.get_mut(&run) else { return };
        let write = runner.writes.pop_front().expect("it was begun");
        let (path, number) = runner.file.as_ref().expect("a sink has a file");
        let bytes: Vec<u8> = write.parts.iter().flat_map(|part| part.iter().copied()).collect();
        // A failed write ends the attempt's writer.
        if disk.write((path, *number), write.range, &bytes, write.piece.hash) == Err(DiskFull) {
            return self.break_down(site, run);
        }
        runner.machine.handle_written(write.sink, write.range);
        runner.is_writing = false;
        self.stir(site, run);
    }

    /// Handles the end of an attempt's disk task: a packet was stored or fetched.
    pub fn handle_errand(&mut self, site: usize, session: u64, run: Run) {
        if !self.is_session(site, session) {
            return;
        }
        let (is_full, spoils_ppm) = (self.hosts[site].disk.is_full, self.hosts[site].spoils_ppm);
        let process = self.hosts[site].process.as_mut().expect("asked above");
        let Some(runner) = process.runners.get_mut(&run) else { return };
        match runner.errands.pop_front().expect("it was begun") {
            DiskTask::Store(_) if is_full => return self.break_down(site, run),
            DiskTask::Store(store) => {
                let mut packet = store.packet;
                if self.random.chance_ppm(spoils_ppm) && spoil(&mut packet, &mut self.random) {
                    self.spoilers.insert(site);
                    self.spoiled.insert(run.transfer);
                }
                runner.shelves.insert((store.flow, store.index), packet);
                runner.machine.handle_stored(store.flow);
            }
            DiskTask::Fetch(fetch) => {
                let packet = runner.shelves[&(fetch.flow, fetch.index)].clone();
                runner.machine.fetched(fetch, packet);
            }
        }
        runner.is_on_errand = false;
        self.stir(site, run);
    }

    pub fn handle_progress(&mut self, site: usize, session: u64) {
        if !self.is_session(site, session) {
            return;
        }
        let now = self.schedule.now();
        let process = self.hosts[site].process.as_mut().expect("asked above");
        let local = process.local(now);
        let reports: Vec<Report> = process.runners.values_mut().map(|r| r.progress(local)).collect();
        reports.into_iter().for_each(|report| self.say(site, report));
        self.schedule.after(PROGRESS_EVERY, ScheduleEvent::Progress { site, session });
    }

    /// Handles everything that is due at a site.
    pub fn keep_site_time(&mut self, site: usize) {
        let now = self.schedule.now();
        let Some(process) = &mut self.hosts[site].process else { return };
        let local = process.local(now);
        if process.daemon.poll_timeout().is_some_and(|t| t <= local) {
            process.daemon.handle_timeout(local);
        }
        let runners = process.runners.iter().filter(|(_, runner)| runner.due.is_some_and(|t| t <= local));
        let due: Vec<Run> = runners.map(|(run, _)| *run).collect();
        self.turn(site);
        due.into_iter().for_each(|run| self.stir(site, run));
    }

    /// Delay of a disk operation.
    fn disk_delay(&mut self, site: usize) -> Duration {
        Duration::from_us(1 + self.random.below(1_000 * self.hosts[site].disk_ms))
    }
}

/// A source's file.
pub fn source(number: usize, length: u64) -> Source {
    let mut random = anabranch_units::Seed::new(number as u64).stream("file", 0);
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.next_u64() as u8).take(length as usize).collect();
    Source { hash: file_hash(&bytes), bytes: std::sync::Arc::new(bytes) }
}
