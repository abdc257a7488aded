//! Barrier-synchronised requests: a client requests a block from each server, and again once all
//! blocks have arrived.
//!
//! Source: LTTP section II-B (and Phanishayee and others, FAST 2008). Connections are opened before
//! the first round and kept. Requests and blocks travel on the same connection.

use super::{PendingFlow, TrafficState, write};
use crate::end::End;
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::Event;
use anabranch_units::{ByteCount, Duration, Instant, RandomStream};

/// Times of a completed round.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Time of the first request.
    pub began_at: Instant,
    /// Time at which the last byte arrived.
    pub ended_at: Instant,
}

/// Remaining work on the connection of a server.
#[derive(Clone, Debug)]
struct Server {
    host: u16,
    request_left: u64,
    block_left: u64,
}

/// The job of an `incast` workload.
#[derive(Debug)]
pub struct Incast {
    client: u16,
    priority: u8,
    block_bytes: u64,
    request_bytes: u64,
    jitter: Duration,
    random: RandomStream,
    rounds_left: u32,
    warmup_rounds_left: u32,
    servers: Vec<Server>,
    /// Number of servers whose connection or block is still awaited.
    waiting: usize,
    began_at: Instant,
    rounds: Vec<Round>,
    /// Scheduled requests, as time and server, in reverse order: the next request is the last
    /// entry.
    requests: Vec<(Instant, usize)>,
    has_opened: bool,
    /// Flow number of the first server. The other servers' flows follow.
    first_flow: u32,
}

/// Settings of an incast.
#[derive(Clone, Debug)]
pub struct IncastSettings {
    /// Host of the client.
    pub client: u16,
    /// Hosts of the servers.
    pub servers: Vec<u16>,
    /// Bytes of each server's block.
    pub block_bytes: u64,
    /// Bytes of each request.
    pub request_bytes: u64,
    /// Maximum random delay of each request.
    pub jitter: Duration,
    /// Random stream of the request delays.
    pub random: RandomStream,
    /// Number of measured rounds.
    pub rounds: u32,
    /// Number of warm-up rounds.
    pub warmup_rounds: u32,
    /// Strict priority of all packets.
    pub priority: u8,
}

impl Incast {
    /// Creates an incast that begins with the run.
    pub fn new(settings: IncastSettings) -> Self {
        let IncastSettings {
            client,
            servers,
            block_bytes,
            request_bytes,
            jitter,
            random,
            rounds,
            warmup_rounds,
            priority,
        } = settings;
        let server = |host| Server { host, request_left: 0, block_left: 0 };
        Self {
            client,
            priority,
            block_bytes,
            request_bytes,
            jitter,
            random,
            rounds_left: rounds + warmup_rounds,
            warmup_rounds_left: warmup_rounds,
            waiting: servers.len(),
            servers: servers.into_iter().map(server).collect(),
            began_at: Instant::ZERO,
            rounds: Vec::new(),
            requests: Vec::new(),
            has_opened: false,
            first_flow: 0,
        }
    }

    /// Completed measured rounds.
    pub fn rounds(&self) -> &[Round] {
        &self.rounds
    }
    /// Number of servers.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }
    /// Bytes from all servers together in a round.
    pub fn round_bytes(&self) -> u64 {
        self.block_bytes * self.servers.len() as u64
    }
    pub(super) fn is_done(&self) -> bool {
        self.rounds_left == 0 && self.waiting == 0
    }
    pub(super) fn progress(&self) -> f64 {
        let all = self.rounds.len() + self.rounds_left as usize + usize::from(self.waiting > 0);
        self.rounds.len() as f64 / all.max(1) as f64
    }

    pub(super) fn on_timer(&mut self, world: &mut TrafficState, cx: &mut HostsCx<'_, End>, job: u16) {
        if !std::mem::replace(&mut self.has_opened, true) {
            return self.open(world, cx, job);
        }
        while let Some((_, server)) = self.requests.pop_if(|(at, _)| *at <= cx.now()) {
            self.ask(world, cx, server);
        }
    }

    fn open(&mut self, world: &mut TrafficState, cx: &mut HostsCx<'_, End>, job: u16) {
        self.first_flow = world.flows.len() as u32;
        let to_send = Some(ByteCount::new(self.block_bytes));
        for server in &self.servers {
            let (priority, src, dst, doors) = (self.priority, self.client, server.host, [None; 2]);
            let flow =
                world.connect(cx, &PendingFlow { job, priority, src, dst, size: None, to_send, doors });
            // The client opens the connection, but the measured data is sent to the client.
            let flow = &mut world.flows[flow as usize];
            std::mem::swap(&mut flow.sender, &mut flow.receiver);
            std::mem::swap(&mut flow.src, &mut flow.dst);
        }
        if !world.config.handshake {
            self.begin_round(world, cx, job);
        }
    }

    fn begin_round(&mut self, world: &mut TrafficState, cx: &mut HostsCx<'_, End>, job: u16) {
        self.began_at = cx.now();
        self.rounds_left -= 1;
        self.waiting = self.servers.len();
        for server in &mut self.servers {
            (server.request_left, server.block_left) = (self.request_bytes, self.block_bytes);
        }
        if self.jitter == Duration::ZERO {
            return (0..self.servers.len()).for_each(|server| self.ask(world, cx, server));
        }
        for server in 0..self.servers.len() {
            let at = cx.now() + Duration::from_ps(self.random.below(self.jitter.as_ps() + 1));
            self.requests.push((at, server));
            cx.arm(at, job.into());
        }
        self.requests.sort_by_key(|(at, server)| std::cmp::Reverse((*at, *server)));
    }

    fn ask(&self, world: &TrafficState, cx: &mut HostsCx<'_, End>, server: usize) {
        write(cx, world.flows[self.first_flow as usize + server].receiver, self.request_bytes);
    }

    pub(super) fn on_event(
        &mut self,
        world: &mut TrafficState,
        cx: &mut HostsCx<'_, End>,
        number: u32,
        end: PeerId,
        event: Event,
    ) {
        let flow = &world.flows[number as usize];
        let (job, is_client) = (flow.job, end == flow.receiver);
        let server = &mut self.servers[(number - self.first_flow) as usize];
        match event {
            Event::Connected if is_client => self.waiting -= 1,
            Event::Received { bytes } if is_client => {
                server.block_left -= bytes;
                if server.block_left > 0 {
                    return;
                }
                self.waiting -= 1;
                if self.waiting == 0 {
                    match self.warmup_rounds_left.checked_sub(1) {
                        Some(left) => self.warmup_rounds_left = left,
                        None => self.rounds.push(Round { began_at: self.began_at, ended_at: cx.now() }),
                    }
                }
            }
            Event::Received { bytes } => {
                server.request_left -= bytes;
                if server.request_left == 0 {
                    write(cx, end, self.block_bytes);
                }
                return;
            }
            _ => return,
        }
        if self.waiting == 0 && self.rounds_left > 0 {
            self.begin_round(world, cx, job);
        }
    }
}
