//! Limits of this host's flows as they come, in a thread of its own; and what of them a killed agent leaves.
//!
//! Before a flow gets its first limit, a line in the state file says which connection it is and what it had before. An agent
//! that is killed leaves limits on sockets and those lines; the agent's guard, or the next agent, reads them, and lifts
//! what it finds ([`Left`]); lines of what it cannot lift stay for who comes next. Another line says what is to be set again for all
//! sockets. Leaves out: how a limit is enforced (the `pace` room). Read [`Enforcer`] first.

use anabranch_net::private;
use anabranch_pace::{Flow, FlowReader, Limit, PaceError, Pacer};
use anabranch_shuffle::book::Socket;
use anabranch_shuffle::state::{self, Limited, Line};
use anabranch_units::BitRate;
use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use tokio::sync::{mpsc, oneshot};

/// The most orders that wait; who gives more waits.
const ORDERS_MAX: usize = 64;
/// The most bytes of a state file that are read: a line for each flow that may have a limit, with room.
const STATE_BYTES_MAX: u64 = 64 << 20;
/// Lines beyond twice those that count after which the file is written anew.
const LINES_SPARE: usize = 1_024;

/// What the kernel calls the connection.
fn flow(limited: &Limited) -> Flow {
    Flow::new(limited.local, limited.remote)
}

/// The state file of a host's agent, held by one process at a time.
pub struct State {
    file: File,
    /// Lines of flows that have or had limits of this process.
    lines: usize,
    tso_rtt_log: Option<u8>,
    /// What could not be lifted of what was left.
    stuck: Vec<Limited>,
    /// Held for as long as this is.
    _lock: File,
}

/// What a process that is gone has left.
pub struct Left(Vec<Limited>);

impl State {
    /// Opens or makes the file, and reads what was left in it.
    ///
    /// Errors: another process holds it; the system's.
    pub fn open(path: &Path) -> anyhow::Result<(Self, Left)> {
        let open = |path: &Path| {
            let opened = private::open(path, File::options().read(true).write(true));
            opened.with_context(|| format!("--state {}", path.display()))
        };
        let mut lock_path = path.to_owned().into_os_string();
        lock_path.push(".lock");
        let lock = open(&PathBuf::from(lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("--state {}: another agent of this host runs", path.display()))?;
        let file = open(path)?;
        let mut text = Vec::new();
        (&file).take(STATE_BYTES_MAX).read_to_end(&mut text)?;
        let state::Left { limited, tso_rtt_log, whole_bytes } = state::read(&text);
        // The next line is not to be the rest of one that was cut off.
        file.set_len(whole_bytes as u64)?;
        let lines = limited.len();
        Ok((Self { file, lines, tso_rtt_log, stuck: Vec::new(), _lock: lock }, Left(limited)))
    }

    /// What `net.ipv4.tcp_tso_rtt_log` is to be set to again: what the first agent found that has changed it.
    pub fn tso_rtt_log(&self) -> Option<u8> {
        self.tso_rtt_log
    }

    /// Notes that, before it is changed; none after it is as it was.
    pub fn note_tso_rtt_log(&mut self, tso_rtt_log: Option<u8>) -> std::io::Result<()> {
        self.write([Line::Bursts { tso_rtt_log }])?;
        self.tso_rtt_log = tso_rtt_log;
        Ok(())
    }

    fn write(&mut self, lines: impl IntoIterator<Item = Line>) -> std::io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        let end = self.file.seek(std::io::SeekFrom::End(0))?;
        // What is written outlives this process; the machine's end is that of its connections.
        self.file.write_all(&text).inspect_err(|_| {
            // The next line is not to be the rest of one that was cut off.
            let _ = self.file.set_len(end);
        })
    }

    fn add(&mut self, limited: &[Limited]) -> std::io::Result<()> {
        self.write(limited.iter().copied().map(Line::Limited))?;
        self.lines += limited.len();
        Ok(())
    }

    /// Forgets all flows but these and those that are stuck. A process that is killed meanwhile leaves limits that nobody knows
    /// of; a write takes microseconds.
    fn keep_only<'a>(&mut self, limited: impl IntoIterator<Item = &'a Limited>) -> std::io::Result<()> {
        let limited: Vec<Line> = limited.into_iter().copied().map(Line::Limited).collect();
        let tso_rtt_log = self.tso_rtt_log;
        let bursts = tso_rtt_log.map(|_| Line::Bursts { tso_rtt_log });
        let stuck: Vec<Line> = self.stuck.iter().copied().map(Line::Limited).collect();
        self.file.set_len(0)?;
        self.lines = limited.len();
        self.write(bursts.into_iter().chain(stuck).chain(limited))
    }
}

impl Left {
    /// Whether nothing was left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lifts what was left on connections that are still there, and says on how many.
    ///
    /// Errors: the system's.
    pub fn lift(self, state: &mut State, pacer: &mut Pacer) -> anyhow::Result<usize> {
        let mut reader = FlowReader::new()?;
        let mut lifted = 0;
        // The first line of a connection says what it had before any limit of ours.
        let mut seen = BTreeSet::new();
        for limited in self.0 {
            let flow = flow(&limited);
            let Some(found) = reader.find(flow)?.filter(|found| found.cookie() == limited.cookie) else {
                continue;
            };
            let Some(rate) = found.pacing_limit.filter(|_| seen.insert(limited.cookie)) else { continue };
            let before = limited.before();
            if before == Some(rate) {
                continue;
            }
            let result = pacer.adopt(flow, rate.max(Limit::RATE_MIN), before);
            match result.map(|_| pacer.set(&[(flow, Limit::None)]).pop()) {
                // It has ended meanwhile.
                Ok(Some(Err(PaceError::NoSuchFlow { .. }))) | Err(PaceError::NoSuchFlow { .. }) => {}
                Ok(Some(Err(error))) | Err(error) => {
                    tracing::warn!("a limit was left behind: {error}");
                    state.stuck.push(limited);
                }
                Ok(_) => lifted += 1,
            }
        }
        state.keep_only([])?;
        Ok(lifted)
    }
}

/// What the enforcing thread is to do.
enum Order {
    Set(Vec<(Flow, Option<BitRate>, Socket)>),
    Keep(BTreeSet<Flow>),
    BeginSession,
    LiftOld,
    LiftAll(oneshot::Sender<()>),
}

/// Has limits set by a thread. Dropping it lifts them all.
pub struct Enforcer {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Enforcer {
    /// Starts it.
    ///
    /// Errors: the system's, if there can be no thread.
    pub fn start(pacer: Pacer, state: State) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let worker = Worker::new(pacer, state);
        let thread = std::thread::Builder::new().name("enforcer".into()).spawn(move || worker.run(inbox))?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    async fn order(&self, order: Order) {
        let orders = self.orders.as_ref().expect("until it is dropped");
        // The thread ends after this only.
        let _ = orders.send(order).await;
    }

    /// Sets limits; no rate lifts.
    pub async fn set(&self, limits: Vec<(Flow, Option<BitRate>, Socket)>) {
        self.order(Order::Set(limits)).await;
    }

    /// Forgets the limits of all flows but these, and tries again to lift those that could not be lifted.
    pub async fn keep(&self, flows: BTreeSet<Flow>) {
        self.order(Order::Keep(flows)).await;
    }

    /// From now on limits are those of a new session.
    pub async fn begin_session(&self) {
        self.order(Order::BeginSession).await;
    }

    /// Lifts the limits that were not set since the session began.
    pub async fn lift_old(&self) {
        self.order(Order::LiftOld).await;
    }

    /// Lifts all limits; done when this returns.
    pub async fn lift_all(&self) {
        let (tell, done) = oneshot::channel();
        self.order(Order::LiftAll(tell)).await;
        let _ = done.await;
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    pacer: Pacer,
    state: State,
    limited: BTreeMap<Flow, Limited>,
    /// Those with limits of this session.
    fresh: BTreeSet<Flow>,
    /// Those whose limits were to be lifted, and could not.
    unlifted: BTreeSet<Flow>,
    is_warned: bool,
}

impl Worker {
    fn new(pacer: Pacer, state: State) -> Self {
        let (limited, fresh, unlifted) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { pacer, state, limited, fresh, unlifted, is_warned: false }
    }

    fn run(mut self, mut inbox: mpsc::Receiver<Order>) {
        while let Some(order) = inbox.blocking_recv() {
            match order {
                Order::Set(mut limits) => {
                    // What else has come is set with it, so that all of it costs one pass; the last word counts.
                    let mut next = None;
                    while let Ok(order) = inbox.try_recv() {
                        match order {
                            Order::Set(more) => limits.extend(more),
                            other => {
                                next = Some(other);
                                break;
                            }
                        }
                    }
                    let last: BTreeMap<_, _> =
                        limits.into_iter().map(|(flow, rate, socket)| (flow, (rate, socket))).collect();
                    self.set(last);
                    if let Some(order) = next {
                        self.carry_out(order);
                    }
                }
                other => self.carry_out(other),
            }
        }
        self.lift(|_| true);
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Set(limits) => {
                self.set(limits.into_iter().map(|(flow, rate, socket)| (flow, (rate, socket))).collect());
            }
            Order::Keep(flows) => {
                // What could not be lifted is tried again, as often as flows are looked at.
                let unlifted = self.unlifted.clone();
                self.lift(|flow| !flows.contains(flow) || unlifted.contains(flow));
            }
            Order::BeginSession => self.fresh.clear(),
            Order::LiftOld => {
                let fresh = std::mem::take(&mut self.fresh);
                self.lift(|flow| !fresh.contains(flow));
                self.fresh = fresh;
            }
            Order::LiftAll(done) => {
                self.lift(|_| true);
                let _ = done.send(());
            }
        }
    }

    fn set(&mut self, mut limits: BTreeMap<Flow, (Option<BitRate>, Socket)>) {
        let mut news = Vec::new();
        for (flow, (rate, socket)) in &limits {
            let is_known = self.limited.get(flow).is_some_and(|limited| limited.cookie == socket.cookie);
            if rate.is_some() && !is_known {
                let before_bps = socket.limit.map(BitRate::as_bps);
                let (local, remote) = (flow.local(), flow.remote());
                news.push(Limited { local, remote, cookie: socket.cookie, before_bps });
            }
        }
        if !news.is_empty() {
            match self.state.add(&news) {
                Ok(()) => self.limited.extend(news.into_iter().map(|limited| (flow(&limited), limited))),
                // A limit that nobody knows of is worse than none; those that are known go on.
                Err(error) => {
                    for limited in &news {
                        limits.remove(&flow(limited));
                    }
                    tracing::error!(
                        "{} flows get no limit: cannot write the state file: {error}",
                        news.len()
                    );
                }
            }
        }
        let changes: Vec<(Flow, Limit)> = limits
            .iter()
            .map(|(flow, (rate, _))| {
                (*flow, rate.map_or(Limit::None, |rate| Limit::Rate(rate.max(Limit::RATE_MIN))))
            })
            .collect();
        for ((flow, limit), result) in changes.iter().zip(self.pacer.set(&changes)) {
            match (result, limit) {
                (Ok(_), Limit::Rate(_)) => {
                    self.fresh.insert(*flow);
                    self.unlifted.remove(flow);
                }
                (Ok(_), Limit::None) => {
                    self.fresh.remove(flow);
                    self.unlifted.remove(flow);
                }
                // It has ended; the next listing says so.
                (Err(PaceError::NoSuchFlow { .. }), _) => {}
                (Err(error), Limit::None) => self.note_unlifted(*flow, &error),
                (Err(error), _) if !std::mem::replace(&mut self.is_warned, true) => {
                    tracing::warn!("a flow runs without its limit: {error}");
                }
                (Err(error), _) => tracing::debug!("a flow runs without its limit: {error}"),
            }
        }
    }

    /// Says it once of a flow, however often it is tried.
    fn note_unlifted(&mut self, flow: Flow, error: &PaceError) {
        if self.unlifted.insert(flow) {
            tracing::warn!("cannot lift a limit, trying on: {error}");
        }
    }

    /// Lifts the limits of the flows for which this says yes.
    fn lift(&mut self, is_lifted: impl Fn(&Flow) -> bool) {
        let flows: Vec<Flow> = self.limited.keys().filter(|flow| is_lifted(flow)).copied().collect();
        if flows.is_empty() {
            return;
        }
        let lifts: Vec<_> = flows.iter().map(|flow| (*flow, Limit::None)).collect();
        for (flow, result) in flows.into_iter().zip(self.pacer.set(&lifts)) {
            match result {
                Ok(_) | Err(PaceError::NoSuchFlow { .. }) => {
                    self.limited.remove(&flow);
                    self.fresh.remove(&flow);
                    self.unlifted.remove(&flow);
                }
                Err(error) => self.note_unlifted(flow, &error),
            }
        }
        let is_long = self.limited.is_empty() || self.state.lines > 2 * self.limited.len() + LINES_SPARE;
        if is_long && let Err(error) = self.state.keep_only(self.limited.values()) {
            tracing::warn!("the state file cannot be written: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
