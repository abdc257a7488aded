//! State machine of a site's daemon: the order in which it executes the controller's commands, and
//! which of them wait.
//!
//! Commands of one transfer are executed one after the other, in the order of their arrival
//! (otherwise an attempt might be installed after its removal). Commands of different transfers run
//! in parallel. Two transfers never change one file at the same time: the later one waits for the
//! end of the earlier one for [`PATH_WAIT`], and is then refused. An inquiry about a directory
//! waits until no other transfer writes it. An attempt begins only if there is room for it
//! ([`room`]). A file whose hash is announced early is finished when its sinks are done.
//!
//! Sans-IO: time comes in as `now`. Work that needs files, sockets or much time is a [`Job`] for
//! the driver, at most one per transfer at a time, which ends with [`Daemon::handle_done`]. After
//! any `handle_*`: drain [`Daemon::poll_report`] and [`Daemon::poll_job`], then read
//! [`Daemon::poll_timeout`].
//!
//! Leaves out: the contents of an attempt ([`crate::site`]), the transport of commands and reports,
//! and files. Read [`Daemon`] and [`Job`] first.

pub mod room;
#[cfg(test)]
mod tests;

use crate::control::{
    Command, DirectoryRules, FailureKind, Finish, FlowVector, Report, Run, SiteProgram, Submitter, TransferId,
};
use anabranch_pieces::name::{directory, normal_entry};
use anabranch_units::text::printable;
use anabranch_units::{Duration, Instant};
use room::{find_room, memory_bytes, reduce_buffers};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Interval between progress reports of each attempt.
pub const PROGRESS_EVERY: Duration = Duration::from_ms(500);
/// Minimum interval between two confirmations of a filling flow.
pub const CONFIRM_EVERY: Duration = Duration::from_ms(50);
/// Time for which a command waits for the removal of another transfer that writes the same file.
pub const PATH_WAIT: Duration = Duration::from_secs(3);
/// Maximum number of installed attempts.
pub const ATTEMPTS_MAX: usize = 1024;
/// Maximum number of waiting commands, of all transfers together. A controller that keeps to its
/// limit for one site sends no more.
pub const COMMANDS_MAX: usize = 16_384;

/// Answer to the finish of an attempt that was not installed.
const NOT_INSTALLED: &str = "the attempt is not installed here";

/// Work of the driver for a transfer, which ends with [`Daemon::handle_done`].
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// Find the ranges of a file that the site holds. Ends with [`JobResult::Answer`].
    Inquire {
        /// The attempt that needs the ranges.
        run: Run,
        /// Whether the site is the source.
        is_source: bool,
        /// The file.
        path: String,
        /// The submitter of the transfer.
        submitter: Submitter,
        /// Rules of a directory.
        rules: DirectoryRules,
    },
    /// Set up an attempt; no other transfer may change its file until its removal. Ends with
    /// [`JobResult::Installed`], or with a [`JobResult::Answer`] with the reason of a failure.
    Install {
        /// The attempt.
        program: Box<SiteProgram>,
        /// Capacity of each buffer in packets that the controller asked for, if the program's
        /// buffers were reduced to fit into the memory ([`room`]).
        asked_packets: Option<u16>,
    },
    /// Remove an attempt. Ends with [`JobResult::Nothing`].
    Remove {
        /// The attempt.
        run: Run,
    },
    /// Check a file and give it its name; no other transfer changes it in the meantime. Ends with
    /// [`JobResult::Answer`], or with [`JobResult::NotYet`] if the attempt writes the file here and
    /// it is not complete.
    Finish(Finish),
    /// Read the whole file of the source. Ends with [`JobResult::Answer`].
    Hash {
        /// The attempt or inquiry that needs the hash.
        run: Run,
        /// The file.
        path: String,
    },
    /// Report the digests of the data that an installed attempt received and sent. Ends with
    /// [`JobResult::Answer`].
    Audit {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation or chunk.
        generation: u64,
        /// The vector of each flow; see [`Command::Audit`].
        vectors: Vec<FlowVector>,
    },
    /// Remove all attempts of a transfer, and close its unused resources. Ends with
    /// [`JobResult::Nothing`].
    Forget {
        /// The transfer.
        transfer: TransferId,
    },
}

impl Job {
    /// The transfer of the job.
    pub fn transfer(&self) -> TransferId {
        match self {
            Self::Install { program, .. } => program.run.transfer,
            Self::Forget { transfer } => *transfer,
            Self::Finish(file) => file.run.transfer,
            Self::Inquire { run, .. }
            | Self::Remove { run }
            | Self::Hash { run, .. }
            | Self::Audit { run, .. } => run.transfer,
        }
    }
}

/// Result of a [`Job`].
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, and most are answers")]
pub enum JobResult {
    /// A report for the controller.
    Answer(Report),
    /// The attempt is installed.
    Installed,
    /// The file to be finished is not complete yet.
    NotYet,
    /// Nothing to report.
    Nothing,
}

/// An attempt that is installed, or being installed.
#[derive(Clone, Debug)]
struct InstalledAttempt {
    submitter: Submitter,
    memory_bytes: u64,
    /// Files that the attempt writes, by their normalised names.
    writes: BTreeSet<String>,
    /// Number of bytes of the file that existed when the sinks were done; `None` before.
    arrived: Option<u64>,
}

/// State of a transfer's current command.
#[derive(Debug)]
enum CommandState {
    /// The driver runs a job for the command.
    Job(Kind),
    /// The command waits for another transfer to release a file.
    Waits { command: Box<Command>, until: Instant },
}

/// The part of a job that is needed when the job is done.
#[derive(Debug)]
enum Kind {
    Install(Run),
    Remove(Run),
    Finish(Box<Finish>),
    Forget,
    Other,
}

/// A transfer that has commands.
#[derive(Debug, Default)]
struct CommandQueue {
    doing: Option<CommandState>,
    waiting: VecDeque<Command>,
}

/// The state machine: see the module.
#[derive(Debug)]
pub struct Daemon {
    /// Path of the served folder. Names of files may begin with it.
    folder: String,
    memory_max: u64,
    lanes: BTreeMap<TransferId, CommandQueue>,
    /// Number of waiting commands in all lanes.
    commands: usize,
    parts: BTreeMap<Run, InstalledAttempt>,
    /// Files that a job is finishing, with their transfers.
    claims: BTreeMap<String, TransferId>,
    /// Files to finish when their attempt's sinks are done.
    later: BTreeMap<Run, Finish>,
    /// Latest attempt of each transfer that would have written a file here and was refused, for at
    /// most [`ATTEMPTS_MAX`] transfers. The daemon refuses to finish the file of a refused attempt.
    refused: BTreeMap<TransferId, Run>,
    jobs: VecDeque<Job>,
    reports: VecDeque<Report>,
    dropped: u64,
}

impl Daemon {
    /// A daemon without commands that serves the folder at this path. All attempts together may use
    /// `memory_max` bytes.
    pub fn new(folder: &str, memory_max: u64) -> Self {
        Self {
            folder: format!("{}/", folder.trim_end_matches('/')),
            memory_max,
            lanes: BTreeMap::new(),
            commands: 0,
            parts: BTreeMap::new(),
            claims: BTreeMap::new(),
            later: BTreeMap::new(),
            refused: BTreeMap::new(),
            jobs: VecDeque::new(),
            reports: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Handles a command of the controller.
    pub fn handle_command(&mut self, now: Instant, command: Command) {
        let Some(transfer) = transfer_of(&command) else { return };
        if self.commands >= COMMANDS_MAX {
            self.dropped += 1;
            if let Some(run) = asks(&command) {
                let reason = format!("{COMMANDS_MAX} commands wait here, which is the limit");
                self.reports.push_back(Report::Failed { run, kind: FailureKind::Busy, reason });
            }
            return;
        }
        self.commands += 1;
        self.lanes.entry(transfer).or_default().waiting.push_back(command);
        self.advance(now, transfer);
    }

    /// Handles the end of a transfer's job.
    ///
    /// Panics: if the transfer has no job, which is a mistake of the driver.
    pub fn handle_done(&mut self, now: Instant, transfer: TransferId, done: JobResult) {
        let lane = self.lanes.get_mut(&transfer).expect("a transfer with a job has a lane");
        let Some(CommandState::Job(kind)) = lane.doing.take() else {
            panic!("{transfer}: no job is under way")
        };
        match (kind, &done) {
            (Kind::Install(run), JobResult::Answer(_)) => {
                if let Some(part) = self.parts.remove(&run) {
                    self.note_refused(run, &part);
                }
            }
            (Kind::Remove(run), _) => {
                self.parts.remove(&run);
            }
            (Kind::Forget, _) => self.parts.retain(|run, _| run.transfer != transfer),
            (Kind::Finish(file), _) => {
                if let Some(name) = self.spelling(&file.path) {
                    self.claims.remove(&name);
                }
                if done == JobResult::NotYet {
                    self.put_off(*file);
                }
            }
            _ => {}
        }
        if let JobResult::Answer(report) = done {
            self.reports.push_back(report);
        }
        self.advance(now, transfer);
        self.look_again(now);
    }

    /// Handles a report of an attempt. If the attempt's sinks are done, the report contains the
    /// existing ranges of the file.
    pub fn handle_report(&mut self, now: Instant, report: Report) {
        let Report::SinkDone { run, have } = &report else { return self.reports.push_back(report) };
        let (run, arrived) = (*run, have.iter().map(|range| range.len()).sum());
        self.reports.push_back(report);
        let Some(part) = self.parts.get_mut(&run) else { return };
        part.arrived = Some(arrived);
        if let Some(file) = self.later.remove(&run)
            && file.length == arrived
        {
            self.finish_first(file);
            self.advance(now, run.transfer);
        }
    }

    /// Handles all deadlines that are due at the time of [`Daemon::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.look_again(now);
    }

    /// The next job, or `None`.
    pub fn poll_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// The next report for the controller, or `None`.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// Next time to call [`Daemon::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let untils = self.lanes.values().filter_map(|lane| match &lane.doing {
            Some(CommandState::Waits { until, .. }) => Some(*until),
            _ => None,
        });
        untils.min()
    }

    /// Whether a later attempt of the same transfer is installed, so that `run` never will be.
    pub fn is_superseded(&self, run: Run) -> bool {
        self.parts.keys().any(|other| other.transfer == run.transfer && other.attempt > run.attempt)
    }

    /// Whether no command is running or waiting.
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Attempts that are installed, or being installed.
    pub fn attempts(&self) -> impl Iterator<Item = Run> + '_ {
        self.parts.keys().copied()
    }

    /// Memory of the installed attempts in bytes, by [`room::memory_bytes`].
    pub fn memory_bytes(&self) -> u64 {
        self.parts.values().map(|part| part.memory_bytes).sum()
    }

    /// Number of commands that were refused because too many commands waited.
    pub fn commands_dropped(&self) -> u64 {
        self.dropped
    }

    /// Executes the waiting commands of a transfer until one needs the driver.
    fn advance(&mut self, now: Instant, transfer: TransferId) {
        while let Some(lane) = self.lanes.get_mut(&transfer).filter(|lane| lane.doing.is_none()) {
            let Some(command) = lane.waiting.pop_front() else {
                self.lanes.remove(&transfer);
                return;
            };
            self.commands -= 1;
            let doing = self.carry_out(now, command, now + PATH_WAIT);
            self.lanes.get_mut(&transfer).expect("looked up above").doing = doing;
        }
    }

    /// Retries the commands that wait for a file.
    fn look_again(&mut self, now: Instant) {
        let waiting =
            self.lanes.iter().filter(|(_, lane)| matches!(lane.doing, Some(CommandState::Waits { .. })));
        let waiting: Vec<TransferId> = waiting.map(|(transfer, _)| *transfer).collect();
        for transfer in waiting {
            let lane = self.lanes.get_mut(&transfer).expect("listed above");
            let Some(CommandState::Waits { command, until }) = lane.doing.take() else { continue };
            let doing = self.carry_out(now, *command, until);
            self.lanes.get_mut(&transfer).expect("listed above").doing = doing;
            self.advance(now, transfer);
        }
    }

    /// Begins a command. The command waits for a file until `until` at most. Returns `None` if the
    /// command is done at once.
    fn carry_out(&mut self, now: Instant, command: Command, until: Instant) -> Option<CommandState> {
        match command {
            Command::Inquire { run, is_source, path, submitter, rules } => {
                // A directory that another transfer writes would be scanned half written. The
                // controller limits the wait.
                let name = self.spelling(&path).filter(|_| directory(&path).is_some());
                if let Some(name) = name
                    && self.finisher(run.transfer, &name).is_some()
                {
                    let command = Box::new(Command::Inquire { run, is_source, path, submitter, rules });
                    return Some(CommandState::Waits { command, until: now + PATH_WAIT });
                }
                self.job(Kind::Other, Job::Inquire { run, is_source, path, submitter, rules })
            }
            Command::Hash { run, path } => self.job(Kind::Other, Job::Hash { run, path }),
            Command::Audit { run, group, generation, vectors } if self.parts.contains_key(&run) => {
                self.job(Kind::Other, Job::Audit { run, group, generation, vectors })
            }
            Command::Uninstall { run } => {
                self.later.remove(&run);
                self.parts.contains_key(&run).then(|| self.removal(run))
            }
            Command::Forget { transfer } => {
                self.later.retain(|run, _| run.transfer != transfer);
                self.refused.remove(&transfer);
                self.job(Kind::Forget, Job::Forget { transfer })
            }
            Command::Install { program } => self.install(now, program, until),
            Command::Finish(file) => self.finish(now, file, until),
            _ => None,
        }
    }

    fn job(&mut self, kind: Kind, job: Job) -> Option<CommandState> {
        self.jobs.push_back(job);
        Some(CommandState::Job(kind))
    }

    fn removal(&mut self, run: Run) -> CommandState {
        self.jobs.push_back(Job::Remove { run });
        CommandState::Job(Kind::Remove(run))
    }

    fn refuse(&mut self, run: Run, kind: FailureKind, reason: String) -> Option<CommandState> {
        self.reports.push_back(Report::Failed { run, kind, reason });
        None
    }

    fn install(
        &mut self,
        now: Instant,
        mut program: Box<SiteProgram>,
        until: Instant,
    ) -> Option<CommandState> {
        let run = program.run;
        // An attempt replaces the earlier attempts of the transfer.
        let mut earlier =
            self.parts.keys().filter(|r| r.transfer == run.transfer && r.attempt <= run.attempt);
        if let Some(earlier) = earlier.next().copied() {
            self.put_first(Command::Install { program });
            self.later.remove(&earlier);
            return Some(self.removal(earlier));
        }
        let asked_packets = reduce_buffers(self.memory_max, &mut program);
        let part = InstalledAttempt {
            submitter: program.submitter,
            memory_bytes: memory_bytes(&program),
            writes: program.sinks.iter().filter_map(|sink| self.spelling(&sink.path)).collect(),
            arrived: None,
        };
        self.refused.remove(&run.transfer);
        if let Err((kind, reason)) = self.find_room(&part) {
            self.note_refused(run, &part);
            return self.refuse(run, kind, reason);
        }
        if let Some((name, other)) = self.writer(run.transfer, part.writes.iter()) {
            program.buffer_packets = asked_packets.unwrap_or(program.buffer_packets);
            return self.wait(now, (Command::Install { program }, run), until, &name, other);
        }
        self.parts.insert(run, part);
        self.job(Kind::Install(run), Job::Install { program, asked_packets })
    }

    fn note_refused(&mut self, run: Run, part: &InstalledAttempt) {
        // The file of a site that only relays does not depend on the attempt.
        if part.writes.is_empty() {
            return;
        }
        if self.refused.len() >= ATTEMPTS_MAX {
            self.refused.pop_first();
        }
        self.refused.insert(run.transfer, run);
    }

    fn find_room(&self, part: &InstalledAttempt) -> Result<(), (FailureKind, String)> {
        if self.parts.len() >= ATTEMPTS_MAX {
            let reason = format!("{ATTEMPTS_MAX} attempts are installed here, which is the limit");
            return Err((FailureKind::Busy, reason));
        }
        let others = self.parts.values().map(|other| (other.submitter, other.memory_bytes));
        find_room(self.memory_max, others, (part.submitter, part.memory_bytes))
    }

    fn finish(&mut self, now: Instant, file: Finish, until: Instant) -> Option<CommandState> {
        // The attempt was refused after its hash was announced, so its data will not arrive. A
        // check would read the whole file in vain.
        if self.refused.get(&file.run.transfer) == Some(&file.run) {
            return self.refuse(file.run, FailureKind::Busy, NOT_INSTALLED.to_owned());
        }
        if let Some(name) = self.spelling(&file.path) {
            if let Some((name, other)) = self.writer(file.run.transfer, std::iter::once(&name)) {
                let run = file.run;
                return self.wait(now, (Command::Finish(file), run), until, &name, other);
            }
            self.claims.insert(name, file.run.transfer);
        }
        self.job(Kind::Finish(Box::new(file.clone())), Job::Finish(file))
    }

    /// Puts off a file that is not complete: finishes it when its sinks are done, or now, if they
    /// are done already.
    fn put_off(&mut self, file: Finish) {
        match self.parts.get(&file.run).map(|part| part.arrived) {
            Some(None) => {
                self.later.insert(file.run, file);
            }
            Some(Some(arrived)) if arrived == file.length => self.finish_first(file),
            // The controller knows the missing ranges, or has removed the attempt.
            _ => {}
        }
    }

    /// Normal form of a name; `None` for an invalid name. The driver reports an invalid name when
    /// it looks for the file.
    fn spelling(&self, path: &str) -> Option<String> {
        let normal = normal_entry(path).ok()?;
        Some(normal.strip_prefix(&self.folder).unwrap_or(&normal).to_owned())
    }

    /// Finishes a file before all other waiting commands of its transfer.
    fn finish_first(&mut self, file: Finish) {
        self.put_first(Command::Finish(file));
    }

    fn put_first(&mut self, command: Command) {
        let transfer = transfer_of(&command).expect("callers hand in commands that have one");
        self.commands += 1;
        self.lanes.entry(transfer).or_default().waiting.push_front(command);
    }

    /// Another transfer than `own` that is finishing this file now, or a file in this directory.
    fn finisher(&self, own: TransferId, name: &str) -> Option<TransferId> {
        let mut claims = self.claims.iter().filter(|(_, transfer)| **transfer != own);
        claims.find(|(claimed, _)| overlap(claimed, name)).map(|(_, transfer)| *transfer)
    }

    /// The transfer, other than `own`, that changes one of these files now.
    fn writer<'a>(
        &self,
        own: TransferId,
        mut names: impl Iterator<Item = &'a String>,
    ) -> Option<(String, TransferId)> {
        names.find_map(|name| {
            let mut others = self.parts.iter().filter(|(run, _)| run.transfer != own);
            let overlaps = |part: &InstalledAttempt| part.writes.iter().any(|written| overlap(written, name));
            let writes = || others.find(|(_, part)| overlaps(part)).map(|(run, _)| run.transfer);
            self.finisher(own, name).or_else(writes).map(|transfer| (name.clone(), transfer))
        })
    }

    /// Makes a command wait that would change a file of another transfer: both would corrupt each
    /// other's data. The command waits for a short time for the end of the other transfer, and is
    /// then refused.
    fn wait(
        &mut self,
        now: Instant,
        (command, run): (Command, Run),
        until: Instant,
        name: &str,
        other: TransferId,
    ) -> Option<CommandState> {
        if now < until {
            return Some(CommandState::Waits { command: Box::new(command), until });
        }
        let name = printable(name);
        let reason = format!(
            "{name}: transfer {other} is writing this file: wait for its end, or send under another name"
        );
        self.refuse(run, FailureKind::Unwritable, reason)
    }
}

/// Whether two names are equal, or one is a directory that contains the other.
fn overlap(a: &str, b: &str) -> bool {
    let holds = |directory: &str, name: &str| directory.ends_with('/') && name.starts_with(directory);
    a.trim_end_matches('/') == b.trim_end_matches('/') || holds(a, b) || holds(b, a)
}

/// The transfer of a command, if this version knows the command.
pub fn transfer_of(command: &Command) -> Option<TransferId> {
    Some(match command {
        Command::Install { program } => program.run.transfer,
        Command::Forget { transfer } => *transfer,
        Command::Finish(file) => file.run.transfer,
        Command::Inquire { run, .. }
        | Command::Uninstall { run }
        | Command::Hash { run, .. }
        | Command::Audit { run, .. } => run.transfer,
    })
}

/// The run of a command that needs an answer.
fn asks(command: &Command) -> Option<Run> {
    match command {
        Command::Install { program } => Some(program.run),
        Command::Finish(file) => Some(file.run),
        Command::Inquire { run, .. } | Command::Hash { run, .. } => Some(*run),
        _ => None,
    }
}
