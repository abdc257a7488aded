//! Limits of this host's flows, which a separate thread sets, and the limits of a killed agent.
//!
//! Before a flow gets its first limit, a line in the state file records its connection and its
//! earlier rate. A killed agent leaves limits on sockets, and these lines. The agent's guard or the
//! next agent reads the lines and lifts the limits (`LeftoverLimits`). Lines of limits that could
//! not be lifted are kept for the next agent. A second kind of line records the kernel setting to
//! restore for all sockets. Leaves out: how a limit is enforced (the `pace` room). Read `Enforcer`
//! first.

use super::AgentError;
use super::metrics::AgentMetrics;
use anabranch_net::private;
use anabranch_pace::{Connection, FlowReader, Limit, Mechanism, PaceError, Pacer};
use anabranch_shuffle_proto::announced_flows::Socket;
use anabranch_shuffle_proto::control::FlowKey;
use anabranch_shuffle_proto::enforcement::{
    Change, Enforcement, Host, LeftoverHost, LimitOrder, LimitProblem, Outcome, lift_left,
};
use anabranch_shuffle_proto::state::{self, LimitedConnection, StateLine};
use anabranch_units::BitRate;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Capacity of the queue of orders. A sender waits while the queue is full.
const ORDERS_MAX: usize = 64;
/// Maximum bytes read from a state file. A file with one line for each flow of a host is much
/// shorter.
const STATE_BYTES_MAX: u64 = 64 << 20;
/// Number of lines, beyond twice the valid lines, above which the file is rewritten.
const LINES_SPARE: usize = 1_024;

/// State file of a host's agent, locked by one process at a time.
#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    /// Number of connection lines in the file.
    lines: usize,
    tso_rtt_log: Option<u8>,
    /// Limits of an earlier process that could not be lifted.
    stuck: Vec<LimitedConnection>,
    /// Lock of the file, held for as long as this value exists.
    _lock: Lock,
}

/// An exclusive lock on a file, released when dropped.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a recently forked process shares the descriptor and its
        // lock until it closes its copy (flock(2)).
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Limits that an earlier process has left.
pub(super) struct LeftoverLimits(Vec<LimitedConnection>);

impl StateFile {
    /// Opens or creates the file, and reads the records of an earlier process.
    ///
    /// Errors: another process holds the lock; the system's errors.
    pub(super) fn open(path: &Path) -> Result<(Self, LeftoverLimits), AgentError> {
        let open = |file: &Path| {
            let opened = private::open(file, File::options().read(true).write(true));
            opened.map_err(|error| AgentError::State { path: path.to_owned(), error })
        };
        let mut lock_path = path.to_owned().into_os_string();
        lock_path.push(".lock");
        let lock = open(&PathBuf::from(lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| AgentError::Held { path: path.to_owned(), error: error.into() })?;
        let lock = Lock(lock);
        let file = open(path)?;
        let mut text = Vec::new();
        (&file).take(STATE_BYTES_MAX).read_to_end(&mut text)?;
        let state::LeftoverState { limited, tso_rtt_log, whole_bytes } = state::read(&text);
        // Removes a truncated last line, to which the next line would be appended.
        file.set_len(whole_bytes as u64)?;
        let lines = limited.len();
        Ok((Self { file, lines, tso_rtt_log, stuck: Vec::new(), _lock: lock }, LeftoverLimits(limited)))
    }

    /// Value of `net.ipv4.tcp_tso_rtt_log` to restore, as the first agent that changed the setting
    /// found it.
    pub(super) fn tso_rtt_log(&self) -> Option<u8> {
        self.tso_rtt_log
    }

    /// Records the value to restore, before the setting changes; `None` once it is restored.
    pub(super) fn note_tso_rtt_log(&mut self, tso_rtt_log: Option<u8>) -> std::io::Result<()> {
        self.write([StateLine::Bursts { tso_rtt_log }])?;
        self.tso_rtt_log = tso_rtt_log;
        Ok(())
    }

    fn write(&mut self, lines: impl IntoIterator<Item = StateLine>) -> std::io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        let end = self.file.seek(std::io::SeekFrom::End(0))?;
        // Data that is written survives this process without a sync. A crash of the machine also
        // ends the connections.
        self.file.write_all(&text).inspect_err(|_| {
            // Removes a partial line, to which the next line would be appended.
            let _ = self.file.set_len(end);
        })
    }

    fn add(&mut self, limited: &[LimitedConnection]) -> std::io::Result<()> {
        self.write(limited.iter().copied().map(StateLine::Limited))?;
        self.lines += limited.len();
        Ok(())
    }

    /// Rewrites the file with only these flows and the limits that could not be lifted. If the
    /// process is killed during the write, which takes microseconds, limits remain without a
    /// record.
    fn keep_only<'a>(
        &mut self,
        limited: impl IntoIterator<Item = &'a LimitedConnection>,
    ) -> std::io::Result<()> {
        let limited: Vec<StateLine> = limited.into_iter().copied().map(StateLine::Limited).collect();
        let tso_rtt_log = self.tso_rtt_log;
        let bursts = tso_rtt_log.map(|_| StateLine::Bursts { tso_rtt_log });
        let stuck: Vec<StateLine> = self.stuck.iter().copied().map(StateLine::Limited).collect();
        self.file.set_len(0)?;
        self.lines = limited.len();
        self.write(bursts.into_iter().chain(stuck).chain(limited))
    }
}

impl LeftoverLimits {
    /// Returns true if an earlier process left no limits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lifts the limits on connections that still exist. Returns the number of lifted limits.
    ///
    /// Errors: the system's.
    pub(super) fn lift(self, state: &mut StateFile, pacer: &mut Pacer) -> Result<usize, AgentError> {
        let lifted = lift_left(self.0, &mut LeftoverConnections { reader: FlowReader::new()?, pacer })?;
        for (limited, error) in lifted.stuck {
            tracing::warn!("a limit was left behind: {error}");
            state.stuck.push(limited);
        }
        state.keep_only([])?;
        Ok(lifted.lifted)
    }
}

/// Connections with limits of an earlier process.
struct LeftoverConnections<'a> {
    reader: FlowReader,
    pacer: &'a mut Pacer,
}

impl LeftoverHost for LeftoverConnections<'_> {
    type Error = std::io::Error;

    fn find(&mut self, flow: FlowKey) -> std::io::Result<Option<Socket>> {
        let found = self.reader.find(flow)?;
        Ok(found.map(|found| Socket { cookie: found.cookie(), limit: found.pacing_limit }))
    }

    fn restore(&mut self, limited: &LimitedConnection, limit: BitRate) -> Outcome {
        let LimitedConnection { local, remote, cookie, .. } = *limited;
        let connection = Connection { flow: FlowKey { local, remote }, cookie: Some(cookie) };
        let adopted = self.pacer.adopt(connection, limit.max(Limit::RATE_MIN), limited.before());
        let lift = |_| self.pacer.set(&[(connection, Limit::None)]).pop().unwrap_or(Ok(None));
        outcome(adopted.and_then(lift))
    }
}

fn outcome(result: Result<Option<Mechanism>, PaceError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Done,
        Err(PaceError::NoSuchFlow { .. }) => Outcome::Gone,
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Tasks of the thread that sets limits.
enum Task {
    Order(LimitOrder),
    /// Confirm that all earlier tasks are done.
    Say(oneshot::Sender<()>),
}

/// Handle of the thread that sets limits. Dropping the handle lifts all limits.
pub(super) struct Enforcer {
    tasks: Option<mpsc::Sender<Task>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Enforcer {
    /// Starts the thread.
    ///
    /// Errors: the system's, if the thread cannot be started.
    pub(super) fn start(pacer: Pacer, state: StateFile, metrics: Arc<AgentMetrics>) -> std::io::Result<Self> {
        let (tasks, inbox) = mpsc::channel(ORDERS_MAX);
        let worker = Enforcement::new(Kernel { pacer, state, metrics });
        let thread = std::thread::Builder::new().name("enforcer".into()).spawn(move || run(worker, inbox))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    async fn give(&self, task: Task) {
        let tasks = self.tasks.as_ref().expect("until it is dropped");
        // The thread runs for as long as this handle exists.
        let _ = tasks.send(task).await;
    }

    /// Queues an order. Waits only while the queue is full.
    pub(super) async fn order(&self, order: LimitOrder) {
        self.give(Task::Order(order)).await;
    }

    /// Waits until all queued orders have been executed.
    pub(super) async fn done(&self) {
        let (tell, done) = oneshot::channel();
        self.give(Task::Say(tell)).await;
        let _ = done.await;
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Executes orders until all senders are dropped, then lifts all limits.
fn run(mut limits: Enforcement<Kernel>, mut inbox: mpsc::Receiver<Task>) {
    let mut next = None;
    while let Some(task) = next.take().or_else(|| inbox.blocking_recv()) {
        match task {
            Task::Order(LimitOrder::Set(mut set)) => {
                // Orders that are already queued are executed in one pass. The latest limit of a
                // flow counts.
                while let Ok(task) = inbox.try_recv() {
                    match task {
                        Task::Order(LimitOrder::Set(more)) => set.extend(more),
                        other => {
                            next = Some(other);
                            break;
                        }
                    }
                }
                limits.carry_out(LimitOrder::Set(set));
            }
            Task::Order(order) => limits.carry_out(order),
            Task::Say(done) => drop(done.send(())),
        }
        limits.host().metrics.limited.set(limits.limited().len() as i64);
    }
    limits.carry_out(LimitOrder::LiftAll);
}

/// Access to the kernel's limits, and their records in the state file.
#[derive(Debug)]
struct Kernel {
    pacer: Pacer,
    state: StateFile,
    metrics: Arc<AgentMetrics>,
}

impl Host for Kernel {
    fn note(&mut self, limited: &[LimitedConnection]) -> Result<(), String> {
        self.state.add(limited).map_err(|error| error.to_string())
    }

    fn set(&mut self, changes: &[Change]) -> Vec<Outcome> {
        let change = |Change { flow, cookie, rate }: &Change| {
            let connection = Connection { flow: *flow, cookie: Some(*cookie) };
            let limit = rate.map_or(Limit::None, |rate| Limit::Rate(rate.max(Limit::RATE_MIN)));
            (connection, limit)
        };
        let connections: Vec<_> = changes.iter().map(change).collect();
        let outcomes: Vec<_> = self.pacer.set(&connections).into_iter().map(outcome).collect();
        let is_set =
            |(change, outcome): &(&Change, &Outcome)| change.rate.is_some() && **outcome == Outcome::Done;
        let set = changes.iter().zip(&outcomes).filter(is_set).count();
        self.metrics.limits.inc_by(set as u64);
        outcomes
    }

    fn forget_all_but(&mut self, limited: &BTreeMap<FlowKey, LimitedConnection>) {
        let is_long = limited.is_empty() || self.state.lines > 2 * limited.len() + LINES_SPARE;
        if is_long && let Err(error) = self.state.keep_only(limited.values()) {
            tracing::warn!("the state file cannot be written: {error}");
        }
    }

    fn warn(&mut self, trouble: &LimitProblem) {
        self.metrics.note_trouble(trouble);
        match trouble {
            LimitProblem::Unnoted { .. } => tracing::error!("{trouble}"),
            LimitProblem::Unlimited { is_first: false, .. } => tracing::debug!("{trouble}"),
            LimitProblem::Unlimited { .. } | LimitProblem::Unlifted { .. } => tracing::warn!("{trouble}"),
        }
    }
}

#[cfg(test)]
mod tests;
