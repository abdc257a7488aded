//! A site: carries out the controller's commands and reports back, over any number of transfers.
//!
//! Holds one [`Runner`] per installed attempt and one file per path that is arriving. Leaves out: how commands and
//! reports travel (`relay`), and what happens inside an attempt (`runner`).

use super::runner::{Fault, Runner, SharedFile, memory_bytes, wait_for};
use crate::partial::{FinishError, PartialFile, hash_file, inside};
use anabranch_net::admission::{Admission, AdmissionLimits, Arrival, Place, Places};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;
use anabranch_replicate::control::{Command, FailureKind, FileHash, Report, Run, SiteProgram, TransferId};
use anabranch_replicate::msg::{Hello, HelloReply};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsStream;

/// How often each attempt's progress is reported.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How long a peer that greets for an attempt that is not installed yet waits for its answer.
const INSTALL_WAIT: Duration = Duration::from_secs(2);
/// Data connections of peers that have shown who they are, and how many of them may be one site's.
pub const CONNECTIONS_MAX: usize = 8_192;
const PEER_CONNECTIONS_MAX: usize = 2_048;
/// The most attempts installed at once.
const ATTEMPTS_MAX: usize = 1024;

/// How long an attempt waits for another transfer's that writes the same file to be removed.
const PATH_WAIT: Duration = Duration::from_secs(3);
/// The most hashes of source files remembered.
const HASHES_MAX: usize = 1024;

/// A file as it was when it was hashed: path, length, time of change.
type HashKey = (PathBuf, u64, Option<std::time::SystemTime>);

fn hash_key(path: &Path, found: &std::fs::Metadata) -> HashKey {
    (path.to_owned(), found.len(), found.modified().ok())
}

/// What a site needs to know of itself.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// The folder below which files are read and written.
    pub root: PathBuf,
    /// The most bytes that all attempts may take, by [`memory_bytes`].
    pub memory_max: u64,
    /// Data connections of those who have not shown who they are.
    pub half_open: AdmissionLimits,
    /// What it does wrong on purpose, for tests.
    pub fault: Fault,
}

/// The site.
pub struct Service {
    config: SiteConfig,
    identity: Arc<Identity>,
    runners: Mutex<BTreeMap<Run, Arc<Runner>>>,
    files: Mutex<BTreeMap<PathBuf, SharedFile>>,
    /// Files that are being opened, and the bell for those who wait for one.
    opening: Mutex<BTreeSet<PathBuf>>,
    opened: Condvar,
    /// Hashes of whole source files, by path, length and time of change.
    hashes: Mutex<BTreeMap<HashKey, FileHash>>,
    reports: mpsc::UnboundedSender<Report>,
    /// What runners say on its way to `reports`.
    from_runners: mpsc::UnboundedSender<Report>,
    /// Woken when an attempt was installed.
    installed: Notify,
    /// Files to finish when their attempt's sinks are done here.
    finish_later: Mutex<BTreeMap<Run, Finish>>,
    /// Commands that wait for an earlier one of the same transfer; a transfer is here while a thread serves it.
    waiting: Mutex<BTreeMap<TransferId, VecDeque<Command>>>,
}

/// A [`Command::Finish`] that waits for its file.
struct Finish {
    path: String,
    length: u64,
    hash: FileHash,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// A site that sends its reports to `reports`, accepting data connections from `listeners`.
    ///
    /// Must be called inside the runtime.
    pub fn start(
        config: SiteConfig,
        identity: Identity,
        listeners: Vec<TcpListener>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Arc<Self> {
        let (from_runners, mut runner_reports) = mpsc::unbounded_channel();
        let service = Arc::new(Self {
            config,
            identity: Arc::new(identity),
            runners: Mutex::default(),
            files: Mutex::default(),
            opening: Mutex::default(),
            opened: Condvar::new(),
            hashes: Mutex::default(),
            reports,
            from_runners,
            installed: Notify::new(),
            finish_later: Mutex::default(),
            waiting: Mutex::default(),
        });
        let admission = Admission::new(service.config.half_open);
        let places = Places::new(CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, || ());
        for listener in listeners {
            let (service, admission, places) = (Arc::clone(&service), admission.clone(), places.clone());
            tokio::spawn(async move { service.accept(listener, admission, places).await });
        }
        // A thread, as it may have to wait for a file; it ends with the service, which holds the other end.
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
                tokio::time::sleep(PROGRESS_EVERY).await;
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
        // The receiver goes only when the daemon ends.
        let _ = self.reports.send(report);
    }

    /// Completes what a runner cannot know alone.
    fn pass_on(&self, report: Report) {
        match report {
            Report::SinkDone { run, .. } => {
                let Some(have) = self.have(run) else { return };
                let total: u64 = have.iter().map(|r| r.len()).sum();
                self.report(Report::SinkDone { run, have });
                let later = lock(&self.finish_later).remove(&run);
                if let Some(Finish { path, length, hash }) = later.filter(|f| f.length == total) {
                    self.report(self.finish(run, &path, length, hash));
                }
            }
            other => self.report(other),
        }
    }

    fn have(&self, run: Run) -> Option<Vec<anabranch_replicate::control::ByteRange>> {
        let runner = lock(&self.runners).get(&run).cloned()?;
        let path = runner.program().sinks.first()?.path.clone();
        let path = inside(&self.config.root, &path).ok()?;
        let file = lock(&self.files).get(&path).cloned()?;
        let have = lock(&file).have().ranges().to_vec();
        Some(have)
    }

    /// Carries out one command, in the background, and reports when it is done. Those of one transfer are carried out in
    /// the order in which they came (else an attempt might be installed after it was removed).
    ///
    /// Must be called inside the runtime.
    pub fn handle(self: &Arc<Self>, command: Command) {
        tracing::debug!(?command, "command");
        let transfer = match &command {
            Command::Install { program } => program.run.transfer,
            Command::Forget { transfer } => *transfer,
            Command::Inquire { run, .. }
            | Command::Uninstall { run }
            | Command::Finish { run, .. }
            | Command::Hash { run, .. }
            | Command::Audit { run, .. } => run.transfer,
            other => return tracing::warn!(?other, "a command that this version does not know"),
        };
        let mut waiting = lock(&self.waiting);
        if let Some(queue) = waiting.get_mut(&transfer) {
            return queue.push_back(command);
        }
        waiting.insert(transfer, VecDeque::from([command]));
        let service = Arc::clone(self);
        tokio::task::spawn_blocking(move || service.serve(transfer));
    }

    /// Carries out what waits for `transfer`, until nothing does.
    fn serve(self: &Arc<Self>, transfer: TransferId) {
        loop {
            let command = {
                let mut waiting = lock(&self.waiting);
                match waiting.get_mut(&transfer).and_then(VecDeque::pop_front) {
                    Some(command) => command,
                    None => {
                        waiting.remove(&transfer);
                        return;
                    }
                }
            };
            self.carry_out(command);
        }
    }

    fn carry_out(&self, command: Command) {
        match command {
            Command::Inquire { run, is_source, path } => self.report(self.inquire(run, is_source, &path)),
            Command::Install { program } => {
                let run = program.run;
                if let Err((kind, reason)) = self.install(*program) {
                    self.report(Report::Failed { run, kind, reason });
                }
            }
            Command::Uninstall { run } => {
                lock(&self.runners).remove(&run);
                lock(&self.finish_later).remove(&run);
            }
            Command::Finish { run, path, length, hash } => {
                // Under the lock: a sink that is done right now must see either the note or the question answered here.
                let mut later = lock(&self.finish_later);
                if self.have(run).is_some_and(|have| have.iter().map(|r| r.len()).sum::<u64>() < length) {
                    later.insert(run, Finish { path, length, hash });
                    return;
                }
                drop(later);
                self.report(self.finish(run, &path, length, hash));
            }
            Command::Hash { run, path } => self.report(self.hash(run, &path)),
            Command::Audit { run, group, generation, vectors } => {
                let runner = lock(&self.runners).get(&run).cloned();
                let Some(runner) = runner else { return };
                let source = runner.program().source_path.as_ref();
                let source = source.and_then(|p| inside(&self.config.root, p).ok());
                self.report(runner.audit(group, generation, &vectors, source.as_deref()));
            }
            Command::Forget { transfer } => {
                lock(&self.runners).retain(|run, _| run.transfer != transfer);
                // Partial files that no attempt uses are closed; what they hold is verified again when it is wanted.
                lock(&self.files).retain(|_, file| Arc::strong_count(file) > 1);
            }
            _ => {}
        }
    }

    fn inquire(&self, run: Run, is_source: bool, name: &str) -> Report {
        let looked = || -> io::Result<Report> {
            let path = inside(&self.config.root, name)?;
            if is_source {
                let file = std::fs::File::open(&path).map_err(|e| {
                    let hint =
                        "name a file as it is called below this site's --dir, and let the daemon read it";
                    io::Error::new(e.kind(), format!("{}: {e}: {hint}", path.display()))
                })?;
                let found = file.metadata().map_err(|e| named(&path, &e))?;
                if !found.is_file() {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("{}: not a file: send files one by one", path.display()),
                    ));
                }
                let known = lock(&self.hashes).get(&hash_key(&path, &found)).copied();
                return Ok(Report::Inventory { run, length: Some(found.len()), have: vec![], hash: known });
            }
            // A finished file may be an older version of the one that is arriving: both are told.
            let finished = path.is_file().then(|| hash_file(&path)).transpose()?;
            let have = match self.existing(&path)? {
                Some(file) => lock(&file).have().ranges().to_vec(),
                None => vec![],
            };
            let (length, hash) = finished.unzip();
            Ok(Report::Inventory { run, length, have, hash })
        };
        let kind = if is_source { FailureKind::Unreadable } else { FailureKind::Unwritable };
        looked().unwrap_or_else(|error| Report::Failed { run, kind, reason: error.to_string() })
    }

    /// Reads a source file whole and remembers its hash for as long as it does not change.
    fn hash(&self, run: Run, name: &str) -> Report {
        let read = || -> io::Result<FileHash> {
            let path = inside(&self.config.root, name)?;
            let key = hash_key(&path, &std::fs::metadata(&path).map_err(|e| named(&path, &e))?);
            if let Some(known) = lock(&self.hashes).get(&key) {
                return Ok(*known);
            }
            let (_, hash) = hash_file(&path)?;
            let mut hashes = lock(&self.hashes);
            if hashes.len() >= HASHES_MAX {
                hashes.pop_first();
            }
            hashes.insert(key, hash);
            Ok(hash)
        };
        match read() {
            Ok(hash) => Report::Hashed { run, hash },
            Err(error) => Report::Failed { run, kind: FailureKind::Unreadable, reason: error.to_string() },
        }
    }

    /// The file arriving at `path`, if there is part of it.
    fn existing(&self, path: &Path) -> io::Result<Option<SharedFile>> {
        self.arriving(path, || PartialFile::open_existing(path))
    }

    /// The file arriving at `path`, opened if it is not open; never twice at a time, and holding no other file up (reading
    /// back what is there takes long).
    fn arriving(
        &self,
        path: &Path,
        open: impl FnOnce() -> io::Result<Option<PartialFile>>,
    ) -> io::Result<Option<SharedFile>> {
        let mut opening = lock(&self.opening);
        while opening.contains(path) {
            opening = self.opened.wait(opening).unwrap_or_else(PoisonError::into_inner);
        }
        opening.insert(path.to_owned());
        drop(opening);
        let known = lock(&self.files).get(path).cloned();
        let found = match known.filter(|f| !lock(f).is_finished()) {
            Some(file) => Ok(Some(file)),
            None => open().map(|opened| {
                opened.map(|file| {
                    let file = Arc::new(Mutex::new(file));
                    lock(&self.files).insert(path.to_owned(), Arc::clone(&file));
                    file
                })
            }),
        };
        lock(&self.opening).remove(path);
        self.opened.notify_all();
        found
    }

    fn install(&self, program: SiteProgram) -> Result<(), (FailureKind, String)> {
        let unwritable = |e: io::Error| (FailureKind::Unwritable, e.to_string());
        let refused = |reason: String| (FailureKind::Refused, reason);
        let run = program.run;
        let asked: BTreeSet<&String> =
            program.outgoing.iter().filter_map(|o| o.hop.congestion_control.as_ref()).collect();
        for name in asked {
            anabranch_net::socket::check_congestion_control(name).map_err(|e| refused(e.to_string()))?;
        }
        // An attempt takes the place of the transfer's earlier ones.
        lock(&self.runners).retain(|other, _| other.transfer != run.transfer || other.attempt > run.attempt);
        if let Some(sink) = program.sinks.first() {
            self.wait_for_path(run, &sink.path)?;
        }
        let source = program.source_path.as_ref().map(|p| inside(&self.config.root, p));
        let source = source.transpose().map_err(|e| (FailureKind::Unreadable, e.to_string()))?;
        let file = match program.sinks.first() {
            None => None,
            Some(sink) => {
                let path = inside(&self.config.root, &sink.path).map_err(unwritable)?;
                let open = || PartialFile::open(&path, program.length).map(Some);
                let file = self.arriving(&path, open).map_err(unwritable)?.expect("opened if it was not");
                lock(&file).resize(program.length).map_err(unwritable)?;
                Some(file)
            }
        };
        // Under the lock to the end: two attempts must not both take the last memory, and whoever hears that this one is
        // ready must find it.
        let mut runners = lock(&self.runners);
        if runners.len() >= ATTEMPTS_MAX {
            return Err(refused(format!(
                "{} attempts are installed here: at most {ATTEMPTS_MAX}",
                runners.len()
            )));
        }
        let used: u64 = runners.values().map(|r| memory_bytes(r.program())).sum();
        let left = self.config.memory_max.saturating_sub(used);
        let identity = Arc::clone(&self.identity);
        let reports = self.from_runners.clone();
        let runner = Runner::install(program, identity, source, file, left, &self.config, reports)
            .map_err(|e| refused(e.to_string()))?;
        runners.insert(run, Arc::new(runner));
        drop(runners);
        self.installed.notify_waiters();
        Ok(())
    }

    /// Two transfers that write the same file would spoil it for each other: the later one waits a little for the
    /// earlier one's removal, which may be under way, and is refused if it stays.
    fn wait_for_path(&self, run: Run, name: &str) -> Result<(), (FailureKind, String)> {
        let end = Instant::now() + PATH_WAIT;
        loop {
            let writes = |r: &Arc<Runner>| r.program().sinks.iter().any(|s| s.path == name);
            let other = lock(&self.runners)
                .iter()
                .find(|(other, runner)| other.transfer != run.transfer && writes(runner))
                .map(|(other, _)| other.transfer);
            let Some(other) = other else { return Ok(()) };
            if Instant::now() >= end {
                let reason = format!(
                    "{name}: transfer {other} is writing this file: wait for its end, or send under another name"
                );
                return Err((FailureKind::Unwritable, reason));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn finish(&self, run: Run, name: &str, length: u64, hash: FileHash) -> Report {
        let failed = |reason: String| Report::Failed { run, kind: FailureKind::Unwritable, reason };
        let path = match inside(&self.config.root, name) {
            Ok(path) => path,
            Err(error) => return failed(error.to_string()),
        };
        let known = match self.existing(&path) {
            Ok(known) => known,
            Err(error) => return failed(error.to_string()),
        };
        let Some(file) = known else {
            // Finished before, and the answer was lost.
            return match hash_file(&path) {
                Ok((_, found)) if found == hash => Report::Completed { run },
                Ok(_) => Report::SinkDone { run, have: vec![] },
                Err(error) => failed(error.to_string()),
            };
        };
        let finished = lock(&file).finish(length, hash);
        match finished {
            Ok(()) => {
                lock(&self.files).remove(&path);
                Report::Completed { run }
            }
            Err(FinishError::Mismatch { have }) => Report::SinkDone { run, have },
            Err(FinishError::Io(error)) => failed(error.to_string()),
        }
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, admission: Admission, places: Places) {
        loop {
            let arrival = admission.accept(&listener).await;
            let (service, places) = (Arc::clone(&self), places.clone());
            tokio::spawn(async move {
                let from = arrival.from();
                if let Err(error) = service.greet(arrival, &places).await {
                    tracing::debug!(%from, %error, "data connection refused");
                }
            });
        }
    }

    async fn greet(&self, arrival: Arrival, places: &Places) -> io::Result<()> {
        let options = anabranch_net::socket::TcpOptions {
            // This end sends nothing but acknowledgements and heartbeats. Where the cable's other direction is full of data,
            // they would wait in its queue, and the flow that they belong to with them.
            dscp: super::runner::dscp(anabranch_replicate::control::Priority::Interactive),
            user_timeout: Some(anabranch_units::Duration::from_std(super::runner::HOP_TIMEOUT)),
            ..Default::default()
        };
        anabranch_net::socket::configure(arrival.tcp(), &options)?;
        let (stream, peer, half_open) = arrival.identify(self.identity.server_config()).await?;
        let place = places.take(&peer).map_err(|crowded| {
            tracing::warn!("data connection refused: {crowded}");
            io::Error::other(crowded)
        })?;
        half_open.within(self.greeted(stream, peer, place)).await
    }

    async fn greeted(
        &self,
        mut stream: TlsStream<TcpStream>,
        peer: PeerIdentity,
        place: Place,
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
            Some(_) => HelloReply::Refused,
        };
        if runner.as_ref().is_some_and(|r| r.fills(hello.flow)) {
            // Starved, it acknowledges nothing for as long as others need the link.
            let patient = anabranch_net::socket::TcpOptions {
                user_timeout: Some(anabranch_units::Duration::ZERO),
                ..Default::default()
            };
            anabranch_net::socket::configure(stream.get_ref().0, &patient)?;
        }
        stream.write_u8(reply.encode()).await?;
        stream.flush().await?;
        if let (Some(runner), HelloReply::Welcome) = (runner, reply) {
            runner.attach(hello, stream, place);
        }
        Ok(())
    }

    /// The attempt's runner, waited for a little: the controller tells everybody at once, and who is near hears it first.
    async fn runner_soon(&self, run: Run) -> Option<Arc<Runner>> {
        let look = || {
            let runners = lock(&self.runners);
            let newer = runners.keys().any(|r| r.transfer == run.transfer && r.attempt > run.attempt);
            let found = runners.get(&run).cloned();
            (found.is_some() || newer).then_some(found)
        };
        tokio::time::timeout(INSTALL_WAIT, wait_for(&self.installed, look)).await.ok().flatten()
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
