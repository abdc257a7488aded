//! A host of the world: its kernel's flows, their programs, and its agent with its persistent
//! state.

use anabranch_shuffle_proto::agent::{Agent, AgentConfig};
use anabranch_shuffle_proto::announced_flows::{ListedConnection, Socket};
use anabranch_shuffle_proto::control::FlowKey;
use anabranch_shuffle_proto::enforcement::{
    Change, Enforcement, Host as Machine, LeftoverHost, LimitProblem, Outcome, lift_left,
};
use anabranch_shuffle_proto::state::LimitedConnection;
use anabranch_units::{BitRate, Duration, Instant, RandomStream};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

/// Rate of all links.
pub const LINK: BitRate = BitRate::mbps(100);

/// Address of a host.
pub fn address(host: usize) -> IpAddr {
    [10, 0, 0, host as u8 + 1].into()
}

/// A TCP connection over which a program sends.
#[derive(Debug)]
pub struct Flow {
    pub cookie: u64,
    pub coflow: String,
    pub size_bytes: u64,
    pub acked_bytes: u64,
    /// Rate limit that the flow's program has set.
    pub own: Option<BitRate>,
    pub limit: Option<BitRate>,
    /// Time at which an agent last set a limit on the flow.
    pub limited_at: Option<Instant>,
    /// Generation of the agent that received the flow's announcement, and the time; `None` before
    /// that.
    pub told: Option<(u64, Instant)>,
    /// True if the flow's program announces the end before it closes the connection.
    pub says_end: bool,
}

/// State of a host that survives an agent: the host's flows, and the state file.
#[derive(Debug)]
pub struct Kernel {
    pub flows: BTreeMap<FlowKey, Flow>,
    pub notes: Vec<LimitedConnection>,
    /// Failure rates in parts per million: of setting limits, and of writing the state file.
    pub refused_ppm: u32,
    pub full_ppm: u32,
    pub refused_at: Option<Instant>,
    pub now: Instant,
    pub random: RandomStream,
}

impl Kernel {
    /// Returns all connections in the order of flows.
    pub fn listing(&self) -> Vec<ListedConnection> {
        let seen = |(flow, state): (&FlowKey, &Flow)| ListedConnection {
            flow: *flow,
            cookie: state.cookie,
            user: 0,
            may_send: true,
            acked_bytes: state.acked_bytes,
            written_bytes: state.size_bytes.min(state.acked_bytes + 100_000),
            limit: state.limit,
        };
        self.flows.iter().map(seen).collect()
    }

    /// Flows whose rate limit differs from the limit that their program has set.
    pub fn limited(&self) -> impl Iterator<Item = (&FlowKey, &Flow)> {
        self.flows.iter().filter(|(_, flow)| flow.limit != flow.own)
    }

    /// Lifts all recorded limits, as a guard or the next agent does.
    pub fn lift_left(&mut self) {
        let Ok(_) = lift_left(std::mem::take(&mut self.notes), self);
    }

    /// Returns true if setting the next limit fails.
    fn refuses(&mut self) -> bool {
        let is_refused = self.random.chance_ppm(self.refused_ppm);
        if is_refused {
            self.refused_at = Some(self.now);
        }
        is_refused
    }
}

impl LeftoverHost for Kernel {
    type Error = std::convert::Infallible;

    fn find(&mut self, flow: FlowKey) -> Result<Option<Socket>, Self::Error> {
        Ok(self.flows.get(&flow).map(|flow| Socket { cookie: flow.cookie, limit: flow.limit }))
    }

    fn restore(&mut self, limited: &LimitedConnection, _: BitRate) -> Outcome {
        let key = FlowKey { local: limited.local, remote: limited.remote };
        self.flows.get_mut(&key).expect("it was found").limit = limited.before();
        Outcome::Done
    }
}

/// The agent's access to its kernel.
#[derive(Clone, Debug)]
pub struct KernelHandle(pub Rc<RefCell<Kernel>>);

impl Machine for KernelHandle {
    fn note(&mut self, limited: &[LimitedConnection]) -> Result<(), String> {
        let kernel = &mut *self.0.borrow_mut();
        if kernel.random.chance_ppm(kernel.full_ppm) {
            return Err("no space left on device".to_owned());
        }
        kernel.notes.extend_from_slice(limited);
        Ok(())
    }

    fn set(&mut self, changes: &[Change]) -> Vec<Outcome> {
        let kernel = &mut *self.0.borrow_mut();
        let now = kernel.now;
        let set = |Change { flow, cookie, rate }: &Change| {
            if kernel.flows.get(flow).is_none_or(|flow| flow.cookie != *cookie) {
                return Outcome::Gone;
            }
            if kernel.refuses() {
                return Outcome::Failed("refused".to_owned());
            }
            let flow = kernel.flows.get_mut(flow).expect("it is there");
            (flow.limit, flow.limited_at) = (rate.or(flow.own), Some(now));
            Outcome::Done
        };
        changes.iter().map(set).collect()
    }

    fn forget_all_but(&mut self, limited: &BTreeMap<FlowKey, LimitedConnection>) {
        // The notes model the agent's state file. A real agent rewrites this file only once it is
        // long, so old records also remain for a while here.
        let kernel = &mut *self.0.borrow_mut();
        if limited.is_empty() || kernel.notes.len() > 2 * limited.len() + 4 {
            kernel.notes = limited.values().copied().collect();
        }
    }

    fn warn(&mut self, _: &LimitProblem) {}
}

/// A running agent process.
#[derive(Debug)]
pub struct Process {
    pub machine: Agent,
    pub limits: Enforcement<KernelHandle>,
    /// Number that distinguishes the process from other agents of its host.
    pub generation: u64,
    pub frozen_until: Option<Instant>,
    /// End of the last period in which the process was frozen. Answers from that period are older.
    pub thawed_at: Option<Instant>,
    /// Time by which the clock of the process is ahead.
    pub ahead: Duration,
    pub armed: Option<Instant>,
    /// Start of the process's last session.
    pub joined_at: Option<Instant>,
    /// Number of the last session that the process has requested.
    pub session: u64,
    /// Time of the coordinator's last valid answer.
    pub heard_at: Instant,
}

/// A host of the world.
#[derive(Debug)]
pub struct Host {
    pub kernel: Rc<RefCell<Kernel>>,
    pub agent: Option<Process>,
    /// End of the current partition between the host and the coordinator.
    pub cut_until: Instant,
    pub flows_so_far: u64,
}

impl Host {
    pub fn new(random: RandomStream, refused_ppm: u32, full_ppm: u32) -> Self {
        let kernel = Kernel {
            flows: BTreeMap::new(),
            notes: Vec::new(),
            refused_ppm,
            full_ppm,
            refused_at: None,
            now: Instant::ZERO,
            random,
        };
        let kernel = Rc::new(RefCell::new(kernel));
        Self { kernel, agent: None, cut_until: Instant::ZERO, flows_so_far: 0 }
    }

    /// Starts an agent, which lifts the limits of the previous agent.
    pub fn start(&mut self, now: Instant, host: usize, generation: u64) {
        self.kernel.borrow_mut().lift_left();
        let config = AgentConfig { addresses: vec![address(host)], ..AgentConfig::new(LINK) };
        self.agent = Some(Process {
            machine: Agent::new(now, config),
            limits: Enforcement::new(KernelHandle(self.kernel.clone())),
            generation,
            frozen_until: None,
            thawed_at: None,
            ahead: Duration::ZERO,
            armed: None,
            joined_at: None,
            session: 0,
            heard_at: now,
        });
    }
}
