//! Pulls a directory from many servers at once.
//!
//! All servers are asked for the id of the directory's snapshot; the ones with the same id are used
//! together. The list of entries is fetched and compared with the directory here, and then the
//! contents that are missing here are pulled as one object. Files get their names at the end, once
//! their hashes are verified.
//!
//! Leaves out: the pull itself ([`Get`]), the files ([`Arrival`]). Read [`DirectoryTarget`],
//! [`GetDirectory`] and [`DirectoryReport`] first.

mod versions;

pub use versions::{DirectoryVersion, describe_directory};

use crate::get::report::{GetEvent, Note, ObjectFailure, Report, Verdict};
use crate::get::{DirectorySink, Get, GetConfig, GetError, lock};
use crate::targets::{ManifestPart, Target, TargetError, split};
use anabranch_disk::folder::Place;
use anabranch_disk::tree::arrival::{Arrival, CopyRules, Snapshot, compare};
use anabranch_disk::tree::index::Origin;
use anabranch_disk::tree::unpack::Unpacked;
use anabranch_gather_proto::snapshot::{ROOT, SnapshotObject, SnapshotPart, is_directory};
use anabranch_net::identity::Identity;
use anabranch_pieces::Attributes;
use anabranch_pieces::name::normal_entry;
use anabranch_sets::comparison::Comparison;
use anabranch_sets::deletes::MaxDelete;
use anabranch_sets::filter::Filter;
use anabranch_sets::metadata::MetadataRules;
use anabranch_sets::publication::Publication;
use anabranch_units::Duration;
use anabranch_units::text::printable;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant as Clock;
use versions::Choice;

/// A directory to pull, and the servers that may hold it.
#[derive(Clone, Debug)]
pub struct DirectoryTarget {
    /// Name of the directory at its servers, with a slash at its end; `./` for the served folder.
    pub name: String,
    /// Address `[NAME@]HOST:PORT` of each server. The version of the first one is preferred.
    pub holders: Vec<String>,
    /// Path of the directory on this machine.
    pub path: PathBuf,
    /// Id of the snapshot that is wanted; `None` for any.
    pub snapshot: Option<[u8; 32]>,
    /// Whether entries here that the servers lack are counted.
    pub counts_surplus: bool,
    /// Most entries to delete because the servers lack them; `None` to delete nothing.
    pub delete: Option<MaxDelete>,
    /// Path of the directory for entries that are deleted or overwritten.
    pub backup: Option<PathBuf>,
    /// How entries get their names.
    pub publication: Publication,
    /// The entries that are pulled. Entries here that it excludes by their paths stay as they are.
    pub filter: Arc<Filter>,
}

impl DirectoryTarget {
    /// Parses `[NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/DIR/`; without `DIR/` it is the whole served
    /// folder. [`DirectoryTarget::at`] sets the destination.
    ///
    /// Errors: see [`TargetError`].
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let (holders, name) = split(text)?;
        let normal = if name.is_empty() { ROOT.to_owned() } else { normal_entry(name)? };
        if !is_directory(&normal) {
            return Err(TargetError::DirectoryName(name.to_owned()));
        }
        Ok(Self {
            name: normal,
            holders,
            path: PathBuf::new(),
            snapshot: None,
            counts_surplus: false,
            delete: None,
            backup: None,
            publication: Publication::Each,
            filter: Arc::default(),
        })
    }

    /// Returns true for a text that names a directory: it ends with a slash.
    pub fn is_named_by(text: &str) -> bool {
        text.ends_with('/')
    }

    /// Returns the same target with destination `path`.
    #[must_use]
    pub fn at(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }

    /// The part of a snapshot as an object of these servers.
    fn object(&self, part: SnapshotPart, snapshot: Snapshot, holders: Vec<String>) -> Target {
        let name = SnapshotObject { directory: self.name.clone(), id: snapshot.id, part }.to_string();
        let part = ManifestPart { name, bytes: None, blake3: None, holders };
        let (name, path) = (self.name.clone(), self.path.clone());
        Target { name, path, bytes: None, hash: None, attributes: None, parts: vec![part] }
    }
}

/// Final report of a directory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DirectoryReport {
    /// Name of the directory at its servers.
    pub name: String,
    /// Path on this machine.
    pub path: PathBuf,
    /// Id of the snapshot that was chosen, of the whole directory; `None` if no server stated one.
    pub snapshot: Option<[u8; 32]>,
    /// Servers with another version, each with a description of it.
    pub other_versions: BTreeMap<String, String>,
    /// Files that were written, and entries that were deleted, or left because another program
    /// changed them.
    pub written: Unpacked,
    /// Entries here that the servers lack, and that were not deleted; 0 if they are not counted, as
    /// with a filter that looks at more than paths.
    pub surplus: u64,
    /// Differences of the directory from the snapshot, if it was compared.
    pub comparison: Option<Comparison>,
    /// Outcome. A directory with conflicts is verified.
    pub verdict: Verdict,
    /// Report of the pull of the contents; `None` if it did not begin.
    pub contents: Option<Report>,
    /// Duration.
    pub elapsed: Duration,
}

impl DirectoryReport {
    /// Whether bytes are kept from which the next try can resume.
    pub fn can_go_on(&self) -> bool {
        self.contents.as_ref().is_some_and(|report| report.objects.iter().any(|object| object.can_go_on()))
    }
}

/// A fetch of a directory.
pub struct GetDirectory<'a> {
    identity: &'a Identity,
    target: DirectoryTarget,
    config: &'a GetConfig,
    /// Whether the directory is compared and not written.
    compares: bool,
}

/// Why a step did not end as it should.
enum Stopped {
    Interrupted,
    Failed(ObjectFailure),
    /// The user was told already.
    Told(Verdict),
    Fatal(GetError),
}

impl From<GetError> for Stopped {
    fn from(error: GetError) -> Self {
        Self::Fatal(error)
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Failed(ObjectFailure::NotWritten(error.to_string()))
    }
}

/// Maximum bytes of the line about entries that a list lacks.
const GAPS_BYTES_MAX: u64 = 4_096;

/// Buffer for a part of a snapshot, with a limit.
struct PartWriter {
    bytes: Arc<Mutex<Vec<u8>>>,
    bytes_max: u64,
    part: SnapshotPart,
}

impl Write for PartWriter {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let mut bytes = lock(&self.bytes);
        if (bytes.len() + more.len()) as u64 > self.bytes_max {
            let limit = anabranch_units::ByteCount::new(self.bytes_max);
            let reason = match self.part {
                SnapshotPart::Gaps => format!("a line about missing entries of more than {limit}"),
                _ => format!("a list of entries of more than {limit}, half of --memory: give more"),
            };
            return Err(io::Error::other(reason));
        }
        bytes.extend_from_slice(more);
        Ok(more.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does `work` on a separate thread. An interrupted command does not wait for the thread.
async fn aside<T: Send + 'static>(
    stop: Pin<&mut impl Future<Output = ()>>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Stopped> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("directory".into()).spawn(move || drop(done.send(work())))?;
    tokio::select! {
        result = result => match result {
            Ok(result) => Ok(result?),
            Err(_) => Err(io::Error::other("the scan of the directory failed").into()),
        },
        () = stop => Err(Stopped::Interrupted),
    }
}

impl<'a> GetDirectory<'a> {
    /// A fetch of `target` to its path.
    pub const fn new(identity: &'a Identity, target: DirectoryTarget, config: &'a GetConfig) -> Self {
        Self { identity, target, config, compares: false }
    }

    /// Compares the directory with the servers' and writes nothing but its index.
    #[must_use]
    pub fn comparing(self) -> Self {
        Self { compares: true, ..self }
    }

    /// The directory, and its servers.
    pub fn target(&self) -> &DirectoryTarget {
        &self.target
    }

    /// Rules of the copy. All servers of one directory's name are one source.
    fn rules(&self) -> CopyRules {
        let mut hasher = blake3::Hasher::new_derive_key("anabranch gather: source of a directory");
        let hash = hasher.update(self.target.name.as_bytes()).finalize();
        let number = u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"));
        CopyRules {
            origin: Origin(number.max(1)),
            replace: self.config.replace,
            counts_surplus: self.target.counts_surplus,
            delete: self.target.delete,
            backup: self.target.backup.clone(),
            publication: self.target.publication,
            filter: Arc::clone(&self.target.filter),
            // Servers list modes and times only.
            metadata: MetadataRules::default(),
        }
    }

    /// Runs until the directory is written, or until `stop` resolves; received bytes are kept in
    /// that case. `hear` is called with progress and other events, and must return soon.
    ///
    /// Errors: the whole fetch cannot run. A failed directory is in the report, not an error.
    pub async fn until(
        self,
        stop: impl Future<Output = ()>,
        mut hear: impl FnMut(GetEvent<'_>),
    ) -> Result<DirectoryReport, GetError> {
        self.config.check()?;
        let begun_at = Clock::now();
        let mut report = DirectoryReport {
            name: self.target.name.clone(),
            path: self.target.path.clone(),
            snapshot: None,
            other_versions: BTreeMap::new(),
            written: Unpacked::default(),
            surplus: 0,
            comparison: None,
            verdict: Verdict::Verified,
            contents: None,
            elapsed: Duration::ZERO,
        };
        let stop = std::pin::pin!(stop);
        report.verdict = match self.run(&mut report, stop, &mut hear).await {
            Ok(()) => Verdict::Verified,
            Err(Stopped::Interrupted) => Verdict::Interrupted,
            Err(Stopped::Failed(failure)) => {
                let object = report.name.clone();
                hear(GetEvent::Note(Note::Failed { object, failure: failure.clone() }));
                Verdict::Failed(failure)
            }
            Err(Stopped::Told(verdict)) => verdict,
            Err(Stopped::Fatal(error)) => return Err(error),
        };
        report.elapsed = Duration::from_std(begun_at.elapsed());
        Ok(report)
    }

    async fn run(
        &self,
        report: &mut DirectoryReport,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        hear: &mut impl FnMut(GetEvent<'_>),
    ) -> Result<(), Stopped> {
        let Choice { snapshot, holders } = self.choose(report, stop.as_mut(), hear).await?;
        let memory_max = self.config.memory.as_u64() / 2;
        let (path, rules) = (self.target.path.clone(), self.rules());
        if rules.delete.is_some() {
            self.check_gaps(snapshot, &holders, stop.as_mut(), hear).await?;
        }
        if self.compares {
            let list = self.part(SnapshotPart::List, snapshot, holders, stop.as_mut(), hear).await?;
            let compared = move || compare(&path, snapshot, list, &rules, memory_max);
            let found = aside(stop, compared).await?;
            report.surplus = found.surplus.unwrap_or(0);
            report.comparison = Some(found);
            return Ok(());
        }
        let opened = move || Arrival::open(Place::of(&path)?, snapshot, rules, memory_max);
        let Some(mut arrival) = aside(stop.as_mut(), opened).await? else { return Ok(()) };
        if !arrival.is_begun() {
            let list = self.part(SnapshotPart::List, snapshot, holders.clone(), stop.as_mut(), hear).await?;
            let begin = move || arrival.begin(list).map(|differs| differs.then_some(arrival));
            let Some(begun) = aside(stop.as_mut(), begin).await? else { return Ok(()) };
            arrival = begun;
        }
        let target = Target {
            bytes: Some(snapshot.length_bytes),
            // The id of a snapshot determines every byte of its stream.
            hash: Some(snapshot.id),
            attributes: Some(Attributes { mode: 0, modified_ns: 0 }),
            ..self.target.object(SnapshotPart::Stream, snapshot, holders)
        };
        let sink = DirectorySink::shared(arrival);
        let get = Get::new(self.identity, vec![target], self.config).into_directory(Arc::clone(&sink));
        let contents = get.until(stop, hear).await?;
        let verdict = contents.objects.first().map(|object| object.verdict.clone());
        report.contents = Some(contents);
        // An interrupted command may have written the directory to its end.
        let mut sink = lock(&sink);
        report.written = sink.take_written();
        report.surplus = sink.surplus_entries().saturating_sub(report.written.deleted);
        match verdict {
            Some(Verdict::Verified) => Ok(()),
            Some(other) => Err(Stopped::Told(other)),
            None => Err(Stopped::Interrupted),
        }
    }

    /// Asks all servers for their versions, and chooses one.
    async fn choose(
        &self,
        report: &mut DirectoryReport,
        stop: Pin<&mut impl Future<Output = ()>>,
        hear: &mut impl FnMut(GetEvent<'_>),
    ) -> Result<Choice, Stopped> {
        let asked = versions::ask(self.identity, &self.target, self.config.give_up);
        let answers = tokio::select! {
            answers = asked => answers,
            () = stop => return Err(Stopped::Interrupted),
        };
        let chosen = versions::choose(&answers, self.target.snapshot);
        report.other_versions = versions::others(&answers, chosen.as_ref());
        let Some(choice) = chosen else {
            let failures: Vec<(String, String)> = answers
                .iter()
                .filter_map(|(holder, answer)| Some((holder.clone(), answer.clone().err()?)))
                .collect();
            return Err(Stopped::Failed(if report.other_versions.is_empty() {
                ObjectFailure::NotBrought(failures)
            } else {
                ObjectFailure::OtherSnapshot(report.other_versions.clone())
            }));
        };
        report.snapshot = Some(choice.snapshot.id);
        for (server, answer) in &answers {
            if let Err(reason) = answer {
                let (server, reason) = (server.clone(), reason.clone());
                hear(GetEvent::Note(Note::ServerLost { server, reason }));
            }
        }
        if self.config.is_strict && !report.other_versions.is_empty() {
            return Err(Stopped::Failed(ObjectFailure::Differ(report.other_versions.clone())));
        }
        let taken =
            format!("that of {} is taken: {}", choice.holders[0], versions::shown(&choice.snapshot.id));
        for (server, version) in &report.other_versions {
            let (object, server) = (self.target.name.clone(), server.clone());
            let version = format!("{version}; {taken}");
            hear(GetEvent::Note(Note::OtherVersion { object, server, version, taken: None }));
        }
        Ok(choice)
    }

    /// Checks that the list of entries has every entry that a delete here could take. The first
    /// server that answers decides.
    async fn check_gaps(
        &self,
        snapshot: Snapshot,
        holders: &[String],
        mut stop: Pin<&mut impl Future<Output = ()>>,
        hear: &mut impl FnMut(GetEvent<'_>),
    ) -> Result<(), Stopped> {
        let mut failure = None;
        for holder in holders {
            let one = vec![holder.clone()];
            match self.part(SnapshotPart::Gaps, snapshot, one, stop.as_mut(), hear).await {
                Ok(line) if line.is_empty() => return Ok(()),
                Ok(line) => {
                    let line = String::from_utf8_lossy(&line);
                    let reason = format!("{holder}: {}: nothing was fetched", printable(&line));
                    return Err(Stopped::Failed(ObjectFailure::NotWritten(reason)));
                }
                Err(told @ Stopped::Told(Verdict::Failed(_))) => failure = Some(told),
                Err(other) => return Err(other),
            }
        }
        Err(failure.unwrap_or(Stopped::Interrupted))
    }

    /// Fetches a part of a snapshot into memory.
    async fn part(
        &self,
        part: SnapshotPart,
        snapshot: Snapshot,
        holders: Vec<String>,
        stop: Pin<&mut impl Future<Output = ()>>,
        hear: &mut impl FnMut(GetEvent<'_>),
    ) -> Result<Vec<u8>, Stopped> {
        let target = self.target.object(part, snapshot, holders);
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let bytes_max = match part {
            SnapshotPart::Gaps => GAPS_BYTES_MAX,
            _ => self.config.memory.as_u64() / 2,
        };
        let writer = PartWriter { bytes: Arc::clone(&bytes), bytes_max, part };
        let get = Get::new(self.identity, vec![target], self.config).streamed(Box::new(writer));
        // The progress of a part is not the directory's.
        let only_notes = |event: GetEvent<'_>| match event {
            GetEvent::Progress { .. } => {}
            note => hear(note),
        };
        let report = get.until(stop, only_notes).await?;
        match report.objects.into_iter().next().map(|object| object.verdict) {
            Some(Verdict::Verified) => Ok(std::mem::take(&mut lock(&bytes))),
            Some(other) => Err(Stopped::Told(other)),
            None => Err(Stopped::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_gather_proto::snapshot::DIRECTORY_BYTES_MAX;

    #[test]
    fn directories_are_parsed_and_mistakes_are_named() {
        let target = DirectoryTarget::parse("s1@a:1,b:2/x//y/").expect("good");
        assert_eq!(
            (target.name.as_str(), &target.holders[..]),
            ("x/y/", &["s1@a:1".to_owned(), "b:2".to_owned()][..])
        );
        assert_eq!(DirectoryTarget::parse("a:1/").expect("the whole folder").name, "./");
        let long = format!("a:1/{}", "d/".repeat(DIRECTORY_BYTES_MAX / 2 + 1));
        for (bad, said) in [
            ("a:1//", "this names no file"),
            ("a:1//etc/", "a directory's name is"),
            ("a:1/x", "a directory's name is"),
            ("a:1/../x/", "`..`"),
            ("a:1/.anabranch-x/", "are kept for files that are still arriving"),
            (&*long, "a directory's name is"),
            ("a/x/", "a server is HOST:PORT"),
            ("x", "write [NAME@]HOST:PORT"),
        ] {
            let error = DirectoryTarget::parse(bad).expect_err("must be refused").to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }

    #[test]
    fn list_above_the_memory_limit_is_refused() {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let mut writer = PartWriter { bytes: Arc::clone(&bytes), bytes_max: 10, part: SnapshotPart::List };
        writer.write_all(&[1; 10]).expect("at the limit");
        let error = writer.write_all(&[1]).expect_err("above the limit");
        assert_eq!(error.to_string(), "a list of entries of more than 10 B, half of --memory: give more");
        assert_eq!(lock(&bytes).len(), 10);
    }
}
