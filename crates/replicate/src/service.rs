//! A site: executes the controller's commands and reports back, for any number of transfers.
//!
//! A [`Daemon`] orders the commands and decides which must wait. This module supplies its clock,
//! its threads, the partial files, and one [`Runner`] per installed attempt. Leaves out: transport
//! of commands and reports (`relay`), and the inside of an attempt (`runner`).

mod directories;

use crate::metrics::SiteMetrics;
use crate::runner::{Fault, Runner, SharedFile, SourceFile, failure, wait_for};
use anabranch_disk::folder::{Folder, Name, at};
use anabranch_disk::partial::{FinishError, Naming, PartialFile, attributes, hash_file_at, narrow};
use anabranch_graph::{Topology, TopologyError};
use anabranch_net::admission::{Admission, AdmissionLimits, Arrival, ConnectionSlot, ConnectionSlots};
use anabranch_net::cause::cause;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::refusals::Refusals;
use anabranch_net::tls::{PeerIdentity, stranger};
use anabranch_pieces::name::{NameError, directory, normal};
use anabranch_pieces::{Attributes, ByteRange, FileHash, RangeSet};
use anabranch_replicate_proto::control::{
    Command, DirectoryRules, FailureKind, Finish, Inventory, Report, Run, SiteProgram, Submitter,
};
use anabranch_replicate_proto::daemon::{Daemon, Job, JobResult, PROGRESS_EVERY, transfer_of};
use anabranch_replicate_proto::msg::{Hello, HelloReply};
use anabranch_units::SiteId;
use anabranch_units::text::printable;
use directories::Directories;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// Time for which a connection to an attempt that is not installed yet waits for its installation.
const INSTALL_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of data connections of authenticated peers.
pub const CONNECTIONS_MAX: usize = 8_192;
/// Maximum number of data connections of one site.
pub const PEER_CONNECTIONS_MAX: usize = 2_048;
/// Maximum number of hashes of source files remembered.
const HASHES_MAX: usize = 1024;

/// Identity of a file when it was hashed: device, inode, length, time of change.
type HashKey = (u64, u64, u64, (i64, i64));

fn hash_key(found: &Metadata) -> HashKey {
    (found.dev(), found.ino(), found.len(), (found.mtime(), found.mtime_nsec()))
}

/// A rule: transfers submitted by `site` itself may write below `prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptFrom {
    /// The submitting site.
    pub site: SiteId,
    /// A folder below the served folder. `None`: the whole served folder.
    pub prefix: Option<String>,
}

/// Error of a text that is no rule of [`AcceptFrom`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RuleError {
    /// The text lacks the form `SITE=FOLDER`.
    Form {
        /// The refused text.
        text: String,
    },
    /// The site is unknown.
    Site(TopologyError),
    /// The folder is not below the served folder.
    Folder {
        /// Name of the folder.
        folder: String,
    },
    /// The folder's name is invalid.
    Name(NameError),
}

impl std::fmt::Display for RuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Form { text } => {
                write!(f, "`{text}`: write SITE=FOLDER, with FOLDER below --dir, or SITE=. for all of it")
            }
            Self::Site(error) => error.fmt(f),
            Self::Folder { folder } => write!(f, "`{folder}`: name a folder as it is called below --dir"),
            Self::Name(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for RuleError {}

impl AcceptFrom {
    /// Parses `SITE=FOLDER`; `SITE=.` covers the whole folder.
    ///
    /// Errors: [`RuleError`].
    pub fn parse(text: &str, topology: &Topology) -> Result<Self, RuleError> {
        let parts = text.split_once('=').filter(|(site, prefix)| !site.is_empty() && !prefix.is_empty());
        let (site, prefix) = parts.ok_or_else(|| RuleError::Form { text: text.to_owned() })?;
        let site = topology.find_site(site).map_err(RuleError::Site)?;
        let prefix = match prefix.trim_end_matches('/') {
            "." => None,
            inner if inner.starts_with('/') || inner.is_empty() => {
                return Err(RuleError::Folder { folder: prefix.to_owned() });
            }
            inner => Some(normal(inner).map_err(RuleError::Name)?),
        };
        Ok(Self { site, prefix })
    }
}

/// The configuration of a site.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// Folder that contains all files the site reads and writes.
    pub folder: Arc<Folder>,
    /// Sites that may write files here without an operator.
    pub accept: Vec<AcceptFrom>,
    /// Maximum bytes of all attempts, by `daemon::room::memory_bytes`.
    pub memory_max: u64,
    /// Limits on data connections of unauthenticated peers.
    pub half_open: AdmissionLimits,
    /// Fault to inject, for tests.
    pub fault: Fault,
    /// Metrics of the site.
    pub(crate) metrics: Arc<SiteMetrics>,
}

/// A site's service.
pub struct Service {
    config: SiteConfig,
    identity: Arc<Identity>,
    runners: Mutex<BTreeMap<Run, Arc<Runner>>>,
    files: Mutex<BTreeMap<Name, SharedFile>>,
    /// Partial files being opened, and the signal for callers that wait for one.
    opening: Mutex<BTreeSet<Name>>,
    opened: Condvar,
    /// Hashes of whole source files.
    hashes: Mutex<BTreeMap<HashKey, FileHash>>,
    directories: Directories,
    // Both channels are bounded by the number of attempts and the reports of each (`runner`). While
    // the controller is unreachable, `relay` keeps the newest reports only.
    reports: mpsc::UnboundedSender<Report>,
    /// Runners' reports, which the service completes and passes on to `reports`.
    from_runners: mpsc::UnboundedSender<Report>,
    /// Wakes waiting connections after an installation.
    installed: Notify,
    /// Tasks of the listeners, which end with the service.
    accepting: Mutex<JoinSet<()>>,
    /// The order in which commands are executed.
    orders: Mutex<DaemonState>,
    /// Runtime for jobs, which any thread may start.
    runtime: Handle,
    refusals: Refusals,
}

/// The state machine, and the time for which its timer is set.
struct DaemonState {
    daemon: Daemon,
    /// Zero of the state machine's clock.
    begun: Instant,
    alarm: Option<anabranch_units::Instant>,
}

impl DaemonState {
    /// Converts `real` to the state machine's clock.
    fn now(&self, real: Instant) -> anabranch_units::Instant {
        anabranch_units::Instant::from_std(real.saturating_duration_since(self.begun))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(run: Run, kind: FailureKind, error: &io::Error) -> Report {
    let (kind, reason) = failure(kind, error);
    Report::Failed { run, kind, reason }
}

impl Service {
    /// Starts a site that sends its reports to `reports` and accepts data connections from
    /// `listeners`.
    ///
    /// Must be called inside the runtime.
    pub fn start(
        config: SiteConfig,
        identity: Identity,
        listeners: Vec<TcpListener>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Arc<Self> {
        let (from_runners, mut runner_reports) = mpsc::unbounded_channel();
        let daemon = Daemon::new(&config.folder.path().to_string_lossy(), config.memory_max);
        let service = Arc::new(Self {
            config,
            identity: Arc::new(identity),
            runners: Mutex::default(),
            files: Mutex::default(),
            opening: Mutex::default(),
            opened: Condvar::new(),
            hashes: Mutex::default(),
            directories: Directories::default(),
            reports,
            from_runners,
            installed: Notify::new(),
            accepting: Mutex::default(),
            orders: Mutex::new(DaemonState { daemon, begun: Instant::now(), alarm: None }),
            runtime: Handle::current(),
            refusals: Refusals::default(),
        });
        let admission = Admission::new(service.config.half_open);
        let places = ConnectionSlots::new(CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, || ());
        for listener in listeners {
            let (weak, admission, places) = (Arc::downgrade(&service), admission.clone(), places.clone());
            lock(&service.accepting).spawn(Self::accept(weak, listener, admission, places));
        }
        // A thread, because `pass_on` may wait for a file. The thread ends with the service, which
        // holds the channel's other end.
        let relaying = Arc::downgrade(&service);
        std::thread::spawn(move || {
            while let Some(report) = runner_reports.blocking_recv() {
                let Some(service) = relaying.upgrade() else { return };
                service.pass_on(report);
            }
        });
        let reporting = Arc::downgrade(&service);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PROGRESS_EVERY.to_std()).await;
                let Some(service) = reporting.upgrade() else { return };
                let runners: Vec<Arc<Runner>> = lock(&service.runners).values().cloned().collect();
                for runner in runners {
                    service.report(runner.progress());
                }
            }
        });
        service
    }

    fn report(&self, report: Report) {
        self.config.metrics.note_report(&report);
        if let Report::Failed { run, kind, reason } = &report {
            let (transfer, reason) = (run.transfer.0, printable(reason));
            if run.is_question() {
                tracing::debug!("a question about a file is answered: {reason}");
            } else if *kind == FailureKind::Busy {
                // Retried for hours, hence at debug level.
                tracing::debug!(transfer, "its part here waits: {reason}");
            } else {
                tracing::warn!(transfer, "its part here failed: {reason}");
            }
        }
        // The receiver is dropped only when the daemon ends.
        let _ = self.reports.send(report);
    }

    /// Completes a runner's report with the data that only the service has.
    fn pass_on(self: &Arc<Self>, report: Report) {
        let report = match report {
            // Without the file there is no report: the controller then asks for the inventory again
            // instead of waiting.
            Report::SinkDone { run, .. } => {
                Report::SinkDone { run, have: self.have(run).unwrap_or_default() }
            }
            other => other,
        };
        self.turn(|daemon, now| daemon.handle_report(now, report));
    }

    fn have(&self, run: Run) -> Option<Vec<ByteRange>> {
        let runner = lock(&self.runners).get(&run).cloned()?;
        let path = &runner.program().sinks.first()?.path;
        let name = self.name(path).ok()?;
        let stream = if directory(path).is_some() {
            self.stream_name(run.transfer, &name).ok()?
        } else {
            name.clone()
        };
        let file = lock(&self.files).get(&stream).cloned()?;
        let have = lock(&file).have().clone();
        Some(match directory(path) {
            Some(_) => self.directories.with_local(run.transfer, &name, have).ranges().to_vec(),
            None => have.ranges().to_vec(),
        })
    }

    /// The name of a file, or of a directory without its slash.
    fn name(&self, path: &str) -> io::Result<Name> {
        self.config.folder.name(directory(path).unwrap_or(path))
    }

    /// Executes a command in the background, and reports when it is done. Commands of one transfer
    /// are executed in order; otherwise an attempt might be installed after its removal.
    pub fn handle(self: &Arc<Self>, command: Command) {
        let told = match &command {
            Command::Install { .. } => "to install its part of an attempt",
            Command::Forget { .. } => "to forget the transfer",
            Command::Inquire { .. } => "to send its inventory",
            Command::Uninstall { .. } => "to remove its part of an attempt",
            Command::Finish(_) => "to check and name the file",
            Command::Hash { .. } => "to hash the file",
            Command::Audit { .. } => "to send digests of its flows",
            _ => return tracing::warn!("the controller's command is none that this version knows"),
        };
        let is_question = matches!(&command, Command::Inquire { run, .. } if run.is_question());
        let transfer = transfer_of(&command).filter(|_| !is_question).map(|transfer| transfer.0);
        tracing::debug!(transfer, "told {told}");
        self.turn(|daemon, now| daemon.handle_command(now, command));
    }

    /// Changes the state machine, then executes all resulting actions.
    fn turn(self: &Arc<Self>, change: impl FnOnce(&mut Daemon, anabranch_units::Instant)) {
        let mut orders = lock(&self.orders);
        let now = orders.now(Instant::now());
        change(&mut orders.daemon, now);
        self.follow(&mut orders);
    }

    /// Executes all actions of the state machine.
    fn follow(self: &Arc<Self>, orders: &mut DaemonState) {
        while let Some(report) = orders.daemon.poll_report() {
            self.report(report);
        }
        while let Some(job) = orders.daemon.poll_job() {
            let service = Arc::clone(self);
            self.runtime.spawn_blocking(move || {
                let (transfer, done) = (job.transfer(), service.carry_out(job));
                service.turn(|daemon, now| daemon.handle_done(now, transfer, done));
            });
        }
        let alarm = orders.daemon.poll_timeout();
        if alarm != orders.alarm
            && let Some(alarm) = alarm
        {
            let until = alarm.to_std(orders.begun);
            let service = Arc::downgrade(self);
            self.runtime.spawn(async move {
                // One millisecond more: timers round down.
                tokio::time::sleep_until((until + Duration::from_millis(1)).into()).await;
                let Some(service) = service.upgrade() else { return };
                service.turn(Daemon::handle_timeout);
            });
        }
        orders.alarm = alarm;
        let metrics = &self.config.metrics;
        metrics.attempts.set(orders.daemon.attempts().count() as i64);
        metrics.memory_bytes.set(i64::try_from(orders.daemon.memory_bytes()).unwrap_or(i64::MAX));
    }

    fn carry_out(&self, job: Job) -> JobResult {
        match job {
            Job::Inquire { run, is_source, path, submitter, rules } => {
                JobResult::Answer(self.inquire(run, is_source, &path, submitter, &rules))
            }
            Job::Install { program, asked_packets } => {
                let run = program.run;
                if let Some(asked) = asked_packets {
                    let (transfer, packets) = (run.transfer.0, program.buffer_packets);
                    tracing::info!(
                        transfer,
                        "buffers of {packets} packets instead of {asked}, to fit into the memory of this site"
                    );
                }
                match self.install(*program) {
                    Ok(()) => JobResult::Installed,
                    Err((kind, reason)) => JobResult::Answer(Report::Failed { run, kind, reason }),
                }
            }
            Job::Remove { run } => {
                lock(&self.runners).remove(&run);
                JobResult::Nothing
            }
            Job::Finish(file) => {
                let settled = |have: Vec<ByteRange>| {
                    RangeSet::from_ranges(have.into_iter().chain(file.unsettled.iter().copied()))
                };
                let have = self.have(file.run).map(settled);
                if have.is_some_and(|have| have.ranges().iter().map(|r| r.len()).sum::<u64>() < file.length) {
                    return JobResult::NotYet;
                }
                JobResult::Answer(self.finish(&file))
            }
            Job::Hash { run, path } => JobResult::Answer(self.hash(run, &path)),
            Job::Audit { run, group, generation, vectors } => {
                let runner = lock(&self.runners).get(&run).cloned();
                runner.map_or(JobResult::Nothing, |r| JobResult::Answer(r.audit(group, generation, &vectors)))
            }
            Job::Forget { transfer } => {
                self.config.metrics.take_start(transfer);
                lock(&self.runners).retain(|run, _| run.transfer != transfer);
                // Closes partial files that no attempt uses; their contents are verified again on
                // the next use.
                lock(&self.files).retain(|_, file| Arc::strong_count(file) > 1);
                self.directories.forget(transfer);
                JobResult::Nothing
            }
        }
    }

    /// Opens a source's file.
    fn source(&self, name: &str) -> io::Result<(SourceFile, Metadata)> {
        let folder = &self.config.folder;
        let name = folder.name(name)?;
        let file = folder.file(&name).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                let hint = "name a file as it is called below this site's --dir, and let the daemon read it";
                io::Error::new(e.kind(), format!("{e}: {hint}"))
            }
            io::ErrorKind::InvalidInput if folder.open_folder(Path::new(name.as_str())).is_ok() => {
                let reason = format!("{name}: a folder: write `{name}/` to send it with all its entries");
                io::Error::new(e.kind(), reason)
            }
            _ => e,
        })?;
        let path = folder.path_of(&name);
        let found = at(&path, file.metadata())?;
        Ok((SourceFile::File { file: Arc::new(file), path }, found))
    }

    fn inquire(
        &self,
        run: Run,
        is_source: bool,
        name: &str,
        submitter: Submitter,
        rules: &DirectoryRules,
    ) -> Report {
        let looked = || -> io::Result<Report> {
            self.directories.forget_other(run.transfer, rules);
            if is_source && directory(name).is_some() {
                let source = self.source_directory(name, run, Some(rules))?;
                return Ok(directories::source_inventory(run, &source, rules));
            }
            if is_source {
                let (_, found) = self.source(name)?;
                return Ok(Report::Inventory(Inventory {
                    length: Some(found.len()),
                    hash: lock(&self.hashes).get(&hash_key(&found)).copied(),
                    attributes: Some(attributes(&found)),
                    ..Inventory::new(run)
                }));
            }
            if directory(name).is_some() {
                return self.inquire_directory(run, &self.name(name)?, submitter, rules);
            }
            let name = self.config.folder.name(name).map_err(|e| {
                io::Error::new(e.kind(), format!("{e}; --as gives the file's name at its destinations"))
            })?;
            self.allow(&name, submitter)?;
            self.config.folder.check(&name)?;
            // A finished file may be an older version of the partial one, so both are reported.
            let there = self.finished(&name)?;
            let attributes = there.as_ref().map(|there| there.attributes);
            let (length, hash) = there.map(|there| (there.length, there.hash)).unzip();
            let have = match self.existing(&name)? {
                Some(file) => lock(&file).have().ranges().to_vec(),
                None => vec![],
            };
            Ok(Report::Inventory(Inventory { length, have, hash, attributes, ..Inventory::new(run) }))
        };
        let kind = if is_source { FailureKind::Unreadable } else { FailureKind::Unwritable };
        looked().unwrap_or_else(|error| failed(run, kind, &error))
    }

    /// Checks whether `submitter` may write `name`: operators may, sites need a rule in `accept`.
    fn allow(&self, name: &Name, submitter: Submitter) -> io::Result<()> {
        let Submitter::Site(site) = submitter else { return Ok(()) };
        if self.config.accept.iter().any(|rule| rule.site == site && name.is_below(&rule.prefix)) {
            return Ok(());
        }
        let reason = format!(
            "{name}: the site that sends it may not put it here: have an operator send it, or let the site with \
             relay --accept-from SITE=FOLDER"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }

    /// Length and hash of the finished file with this name, if there is one.
    fn finished(&self, name: &Name) -> io::Result<Option<FinishedFile>> {
        let place = match self.config.folder.place(name, false) {
            Ok(place) => place,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(file) = place.finished()? else { return Ok(None) };
        let attributes = attributes(&at(place.path(), file.metadata())?);
        let (length, hash) = at(place.path(), whole_hash(&file))?;
        Ok(Some(FinishedFile { file, attributes, length, hash }))
    }

    /// Hashes a source file, and remembers the hash for as long as the file does not change.
    fn hash(&self, run: Run, name: &str) -> Report {
        let read = || -> io::Result<FileHash> {
            if directory(name).is_some() {
                return Ok(FileHash(self.source_directory(name, run, None)?.stream.manifest().id().0));
            }
            let (SourceFile::File { file, path }, found) = self.source(name)? else {
                unreachable!("the name is a file's");
            };
            let key = hash_key(&found);
            if let Some(known) = lock(&self.hashes).get(&key) {
                return Ok(*known);
            }
            let (_, hash) = at(&path, whole_hash(&file))?;
            let mut hashes = lock(&self.hashes);
            if hashes.len() >= HASHES_MAX {
                hashes.pop_first();
            }
            hashes.insert(key, hash);
            Ok(hash)
        };
        match read() {
            Ok(hash) => Report::Hashed { run, hash },
            Err(error) => failed(run, FailureKind::Unreadable, &error),
        }
    }

    /// Opens the partial file of `name`, if there is one.
    fn existing(&self, name: &Name) -> io::Result<Option<SharedFile>> {
        self.arriving(name, || match self.config.folder.place(name, false) {
            Ok(place) => PartialFile::open_existing(place),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
    }

    /// Opens or creates the partial file of `name`.
    fn begun(&self, name: &Name, length: u64) -> io::Result<SharedFile> {
        let open = || PartialFile::open(self.config.folder.place(name, true)?, length).map(Some);
        Ok(self.arriving(name, open)?.expect("opened if it was not"))
    }

    /// Opens the partial file of `name` unless it is open. Never opens a file twice at a time, and
    /// does not block other files, because verifying the existing data takes long.
    fn arriving(
        &self,
        name: &Name,
        open: impl FnOnce() -> io::Result<Option<PartialFile>>,
    ) -> io::Result<Option<SharedFile>> {
        let mut opening = lock(&self.opening);
        while opening.contains(name) {
            opening = self.opened.wait(opening).unwrap_or_else(PoisonError::into_inner);
        }
        opening.insert(name.clone());
        drop(opening);
        let known = lock(&self.files).get(name).cloned();
        let found = match known.filter(|f| !lock(f).is_finished()) {
            Some(file) => Ok(Some(file)),
            None => open().map(|opened| {
                opened.map(|file| {
                    let file = Arc::new(Mutex::new(file));
                    lock(&self.files).insert(name.clone(), Arc::clone(&file));
                    file
                })
            }),
        };
        lock(&self.opening).remove(name);
        self.opened.notify_all();
        found
    }

    fn install(&self, program: SiteProgram) -> Result<(), (FailureKind, String)> {
        let unwritable = |e: io::Error| failure(FailureKind::Unwritable, &e);
        let run = program.run;
        let asked: BTreeSet<&String> =
            program.outgoing.iter().filter_map(|o| o.hop.congestion_control.as_ref()).collect();
        for name in asked {
            anabranch_net::socket::check_congestion_control(name)
                .map_err(|e| failure(FailureKind::Refused, &e))?;
        }
        let sink = program.sinks.first().map(|sink| self.name(&sink.path));
        let sink = sink.transpose().map_err(unwritable)?;
        let source = program.source_path.as_ref().map(|name| match directory(name) {
            None => self.source(name).map(|(source, _)| source),
            Some(_) => {
                let stream = self.source_directory(name, run, None)?.stream;
                let is_planned = program.snapshot.is_none_or(|id| id.0 == stream.manifest().id().0);
                let changed =
                    || io::Error::other(format!("{name}: changed during the transfer: send it again"));
                is_planned.then_some(SourceFile::Directory(stream)).ok_or_else(changed)
            }
        });
        let source = source.transpose().map_err(|e| failure(FailureKind::Unreadable, &e))?;
        let is_directory = program.sinks.first().is_some_and(|sink| directory(&sink.path).is_some());
        let file = sink.map(|name| {
            if is_directory {
                let work = program.groups.iter().filter(|group| group.fills.is_none()).flat_map(|g| &g.work);
                return self.begun_stream(&name, &program, work.map(|range| range.len()).sum());
            }
            let file = self.begun(&name, program.length)?;
            lock(&file).resize(program.length)?;
            Ok(file)
        });
        let file = file.transpose().map_err(unwritable)?;
        // The lock is held to the end, because a sender that sees `Ready` must find the runner.
        let mut runners = lock(&self.runners);
        let identity = Arc::clone(&self.identity);
        let reports = self.from_runners.clone();
        let runner = Runner::install(
            program,
            identity,
            source,
            file,
            (&self.config.folder, self.config.fault),
            reports,
            Arc::clone(&self.config.metrics),
        )
        .map_err(|e| (FailureKind::Refused, e.to_string()))?;
        runners.insert(run, Arc::new(runner));
        drop(runners);
        self.config.metrics.note_start(run.transfer);
        self.installed.notify_waiters();
        Ok(())
    }

    fn finish(&self, file: &Finish) -> Report {
        if directory(&file.path).is_some() {
            let finished = self.finish_directory(file);
            return finished.unwrap_or_else(|error| failed(file.run, FailureKind::Unwritable, &error));
        }
        let Finish { run, length, hash, .. } = *file;
        let naming = Naming { attributes: file.attributes, replace: file.replace };
        let finish = || -> io::Result<Report> {
            let name = self.config.folder.name(&file.path)?;
            // An empty file receives no data, so it is created and finished at once.
            let known = if length == 0 { Some(self.begun(&name, 0)?) } else { self.existing(&name)? };
            let Some(known) = known else {
                // The file was finished before, and the answer was lost.
                return Ok(match self.finished(&name)?.filter(|there| there.hash == hash) {
                    Some(there) => {
                        narrow(&there.file, &self.config.folder.path_of(&name), naming.attributes);
                        Report::Completed { run }
                    }
                    None => Report::SinkDone { run, have: vec![] },
                });
            };
            let finished = lock(&known).finish(length, hash, &naming);
            match finished {
                Ok(()) => {
                    lock(&self.files).remove(&name);
                    self.config.metrics.note_file(run.transfer, length);
                    tracing::info!(
                        transfer = run.transfer.0,
                        length_bytes = length,
                        "{name} is here, verified"
                    );
                    Ok(Report::Completed { run })
                }
                Err(FinishError::Mismatch { have }) => Ok(Report::SinkDone { run, have }),
                Err(FinishError::Io(error)) => Err(error),
            }
        };
        finish().unwrap_or_else(|error| failed(run, FailureKind::Unwritable, &error))
    }

    async fn accept(weak: Weak<Self>, listener: TcpListener, admission: Admission, places: ConnectionSlots) {
        loop {
            let arrival = admission.accept(&listener).await;
            let Some(service) = weak.upgrade() else { return };
            let places = places.clone();
            tokio::spawn(async move {
                let from = arrival.from();
                if let Err(error) = service.greet(arrival, &places).await {
                    tracing::debug!("data connection of {from}: {}", cause(&error));
                }
            });
        }
    }

    async fn greet(&self, arrival: Arrival, places: &ConnectionSlots) -> io::Result<()> {
        let options = anabranch_net::socket::TcpOptions {
            // This end sends only acknowledgements and heartbeats. At a lower priority they would
            // wait in the queue of the reverse direction, and delay their flow.
            dscp: crate::runner::dscp(anabranch_replicate_proto::control::Priority::Interactive),
            user_timeout: Some(anabranch_units::Duration::from_std(crate::runner::HOP_TIMEOUT)),
            ..Default::default()
        };
        anabranch_net::socket::configure(arrival.tcp(), &options)?;
        let from = arrival.from().ip().to_canonical();
        let identified = arrival.identify(self.identity.server_config()).await;
        let (stream, peer, half_open) = identified.inspect_err(|error| {
            if let Some(line) = stranger(from, error) {
                self.refusals.note(None, &line);
            }
        })?;
        let place = places.take(&peer).map_err(|crowded| {
            self.refusals.note(Some(&peer), &format!("data connection refused: {crowded}"));
            io::Error::other(crowded)
        })?;
        half_open.within(self.greeted(stream, peer, place)).await
    }

    async fn greeted(
        &self,
        mut stream: TlsStream<TcpStream>,
        peer: PeerIdentity,
        place: ConnectionSlot,
    ) -> io::Result<()> {
        let mut greeting = [0; Hello::LEN];
        stream.read_exact(&mut greeting).await?;
        let hello = Hello::decode(&greeting).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let runner = self.runner_soon(hello.run).await;
        let reply = match &runner {
            None => HelloReply::NotInstalled,
            Some(runner) if peer.role == Role::Site && runner.expects(hello, &peer.name) => {
                HelloReply::Welcome
            }
            Some(_) => {
                let transfer = hello.run.transfer;
                let line = format!("{peer} is refused: it has nothing to send here of transfer {transfer}");
                self.refusals.note(Some(&peer), &line);
                HelloReply::Refused
            }
        };
        if runner.as_ref().is_some_and(|r| r.fills(hello.flow)) {
            // A starved fill flow acknowledges nothing while other traffic needs the link.
            let patient = anabranch_net::socket::TcpOptions {
                user_timeout: Some(anabranch_units::Duration::ZERO),
                ..Default::default()
            };
            anabranch_net::socket::configure(stream.get_ref().0, &patient)?;
        }
        stream.write_u8(reply.encode()).await?;
        stream.flush().await?;
        if let (Some(runner), HelloReply::Welcome) = (runner, reply) {
            let guard = self.identity.guard(stream.get_ref().1);
            runner.attach(hello, stream, guard, place);
        }
        Ok(())
    }

    /// Waits briefly for the attempt's runner. The controller sends commands to all sites at once,
    /// so a near site may connect before this site has installed the attempt.
    async fn runner_soon(&self, run: Run) -> Option<Arc<Runner>> {
        let look = || {
            let runners = lock(&self.runners);
            let found = runners.get(&run).cloned();
            drop(runners);
            (found.is_some() || lock(&self.orders).daemon.is_superseded(run)).then_some(found)
        };
        tokio::time::timeout(INSTALL_WAIT, wait_for(&self.installed, look)).await.ok().flatten()
    }
}

/// A finished file in the folder.
struct FinishedFile {
    file: File,
    attributes: Attributes,
    length: u64,
    hash: FileHash,
}

/// Reads a file, and returns its length and hash.
fn whole_hash(file: &File) -> io::Result<(u64, FileHash)> {
    let length = file.metadata()?.len();
    Ok((length, hash_file_at(file, length)?))
}

#[cfg(test)]
mod tests;
