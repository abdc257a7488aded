//! A site: carries out the controller's commands and reports back, over any number of transfers.
//!
//! Holds one [`Runner`] per installed attempt and one file per path that is arriving. Leaves out: how commands and
//! reports travel (`relay`), and what happens inside an attempt (`runner`).

use super::partial::{FinishError, PartialFile, hash_file, inside};
use super::runner::{Fault, Runner, SharedFile};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_replicate::control::{Command, FailureKind, FileHash, Report, Run, SiteProgram};
use anabranch_replicate::msg::{Hello, HelloReply};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// How often each attempt's progress is reported.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How long a peer may take from connecting to its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The most data connections that wait for their greeting at once.
const GREETINGS_MAX: usize = 256;
/// The most attempts installed at once.
const ATTEMPTS_MAX: usize = 1024;

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
    /// The most bytes that all attempts' buffers may take.
    pub memory_max: u64,
    /// What it does wrong on purpose, for tests.
    pub fault: Fault,
}

/// The site.
pub struct Service {
    config: SiteConfig,
    identity: Arc<Identity>,
    runners: Mutex<BTreeMap<Run, Arc<Runner>>>,
    files: Mutex<BTreeMap<PathBuf, SharedFile>>,
    /// Hashes of whole source files, by path, length and time of change.
    hashes: Mutex<BTreeMap<HashKey, FileHash>>,
    reports: mpsc::UnboundedSender<Report>,
    /// What runners say on its way to `reports`.
    from_runners: mpsc::UnboundedSender<Report>,
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
            hashes: Mutex::default(),
            reports,
            from_runners,
        });
        let greetings = Arc::new(tokio::sync::Semaphore::new(GREETINGS_MAX));
        for listener in listeners {
            let (service, greetings) = (Arc::clone(&service), Arc::clone(&greetings));
            tokio::spawn(async move { service.accept(listener, greetings).await });
        }
        let relaying = Arc::clone(&service);
        tokio::spawn(async move {
            while let Some(report) = runner_reports.recv().await {
                relaying.pass_on(report);
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
                if let Some(have) = self.have(run) {
                    self.report(Report::SinkDone { run, have });
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

    /// Carries out one command. Slow ones go on in the background and report when they are done.
    pub fn handle(self: &Arc<Self>, command: Command) {
        tracing::debug!(?command, "command");
        match command {
            Command::Inquire { run, is_source, path } => {
                let service = Arc::clone(self);
                tokio::task::spawn_blocking(move || {
                    let report = service.inquire(run, is_source, &path);
                    service.report(report);
                });
            }
            Command::Install { program } => {
                let service = Arc::clone(self);
                tokio::task::spawn_blocking(move || {
                    let run = program.run;
                    if let Err((kind, reason)) = service.install(*program) {
                        service.report(Report::Failed { run, kind, reason });
                    }
                });
            }
            Command::Start { run } => {
                if let Some(runner) = lock(&self.runners).get(&run) {
                    runner.start();
                }
            }
            Command::Uninstall { run } => {
                lock(&self.runners).remove(&run);
            }
            Command::Finish { run, path, length, hash } => {
                let service = Arc::clone(self);
                tokio::task::spawn_blocking(move || {
                    let report = service.finish(run, &path, length, hash);
                    service.report(report);
                });
            }
            Command::Hash { run, path } => {
                let service = Arc::clone(self);
                tokio::task::spawn_blocking(move || {
                    let report = service.hash(run, &path);
                    service.report(report);
                });
            }
            Command::Audit { run, group, generation, vectors } => {
                let runner = lock(&self.runners).get(&run).cloned();
                let (Some(runner), service) = (runner, Arc::clone(self)) else { return };
                tokio::task::spawn_blocking(move || {
                    let source = runner.program().source_path.as_ref();
                    let source = source.and_then(|p| inside(&service.config.root, p).ok());
                    service.report(runner.audit(group, generation, &vectors, source.as_deref()));
                });
            }
            Command::Forget { transfer } => {
                lock(&self.runners).retain(|run, _| run.transfer != transfer);
            }
            other => tracing::warn!(?other, "a command that this version does not know"),
        }
    }

    fn inquire(&self, run: Run, is_source: bool, name: &str) -> Report {
        let looked = || -> io::Result<Report> {
            let path = inside(&self.config.root, name)?;
            if is_source {
                let file = std::fs::File::open(&path).map_err(|e| named(&path, &e))?;
                let found = file.metadata().map_err(|e| named(&path, &e))?;
                if !found.is_file() {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("{}: not a file", path.display()),
                    ));
                }
                let known = lock(&self.hashes).get(&hash_key(&path, &found)).copied();
                return Ok(Report::Inventory { run, length: Some(found.len()), have: vec![], hash: known });
            }
            if path.is_file() {
                let (length, hash) = hash_file(&path)?;
                return Ok(Report::Inventory { run, length: Some(length), have: vec![], hash: Some(hash) });
            }
            let have = match self.existing(&path)? {
                Some(file) => lock(&file).have().ranges().to_vec(),
                None => vec![],
            };
            Ok(Report::Inventory { run, length: None, have, hash: None })
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
        let mut files = lock(&self.files);
        if let Some(file) = files.get(path) {
            return Ok(Some(Arc::clone(file)));
        }
        Ok(PartialFile::open_existing(path)?.map(|file| {
            let file = Arc::new(Mutex::new(file));
            files.insert(path.to_owned(), Arc::clone(&file));
            file
        }))
    }

    fn install(&self, program: SiteProgram) -> Result<(), (FailureKind, String)> {
        let unwritable = |e: io::Error| (FailureKind::Unwritable, e.to_string());
        let refused = |reason: String| (FailureKind::Refused, reason);
        let run = program.run;
        let source = program.source_path.as_ref().map(|p| inside(&self.config.root, p));
        let source = source.transpose().map_err(|e| (FailureKind::Unreadable, e.to_string()))?;
        let file = match program.sinks.first() {
            None => None,
            Some(sink) => {
                let path = inside(&self.config.root, &sink.path).map_err(unwritable)?;
                let file = match self.existing(&path).map_err(unwritable)? {
                    Some(file) => file,
                    None => {
                        let file = PartialFile::open(&path, program.length).map_err(unwritable)?;
                        let file = Arc::new(Mutex::new(file));
                        lock(&self.files).insert(path, Arc::clone(&file));
                        file
                    }
                };
                lock(&file).resize(program.length).map_err(unwritable)?;
                Some(file)
            }
        };
        let used: u64 = {
            let runners = lock(&self.runners);
            if runners.len() >= ATTEMPTS_MAX {
                return Err(refused(format!(
                    "{} attempts are installed here: at most {ATTEMPTS_MAX}",
                    runners.len()
                )));
            }
            runners.values().map(|r| r.program().memory_bytes()).sum()
        };
        let left = self.config.memory_max.saturating_sub(used);
        let identity = Arc::clone(&self.identity);
        let reports = self.from_runners.clone();
        let runner = Runner::install(program, identity, source, file, left, self.config.fault, reports)
            .map_err(|e| refused(e.to_string()))?;
        lock(&self.runners).insert(run, Arc::new(runner));
        Ok(())
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

    async fn accept(self: Arc<Self>, listener: TcpListener, greetings: Arc<tokio::sync::Semaphore>) {
        loop {
            let Ok(permit) = Arc::clone(&greetings).acquire_owned().await else { return };
            let tcp = match listener.accept().await {
                Ok((tcp, _)) => tcp,
                Err(error) => {
                    // Out of descriptors, most likely: wait for some to come back.
                    tracing::warn!(%error, "accepting a data connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let service = Arc::clone(&self);
            tokio::spawn(async move {
                let _permit = permit;
                let peer = tcp.peer_addr();
                match tokio::time::timeout(GREETING_TIMEOUT, service.greet(tcp)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(?peer, %error, "data connection refused"),
                    Err(_) => tracing::debug!(?peer, "data connection without a greeting"),
                }
            });
        }
    }

    async fn greet(&self, tcp: TcpStream) -> io::Result<()> {
        let options = anabranch_net::socket::TcpOptions {
            user_timeout: Some(anabranch_units::Duration::from_std(super::runner::HOP_TIMEOUT)),
            ..Default::default()
        };
        anabranch_net::socket::configure(&tcp, &options)?;
        let (mut stream, peer) = self.identity.accept(tcp).await?;
        let mut greeting = [0; Hello::LEN];
        stream.read_exact(&mut greeting).await?;
        let hello = Hello::decode(&greeting).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let runner = lock(&self.runners).get(&hello.run).cloned();
        let reply = match &runner {
            None => HelloReply::NotInstalled,
            Some(runner) if peer.role == Role::Site && runner.expects(hello, &peer.name) => {
                HelloReply::Welcome
            }
            Some(_) => HelloReply::Refused,
        };
        stream.write_u8(reply.encode()).await?;
        stream.flush().await?;
        if let (Some(runner), HelloReply::Welcome) = (runner, reply) {
            runner.attach(hello, stream);
        }
        Ok(())
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
