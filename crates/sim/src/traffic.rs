//! Traffic of the hosts: the user of all machines, which opens flows, answers requests, and keeps
//! figures for the report.
//!
//! Each workload of a scenario is a *job*; each flow belongs to one job. [`Traffic`] holds jobs and
//! flows, and is the only user of the fabric's hosts, so that a job may span several hosts (as a
//! barrier does). Each kind of job has its file, and `app` is the file for systems. Leaves out: the
//! report of the figures (`report`). Read [`Traffic`], [`Flow`] and [`Job`] first.

mod app;
mod incast;
mod messages;
mod racks;
mod transfers;
mod udp;

pub use app::{App, AppCx, Coflow, Side, StreamEvent, StreamSpec};
pub use incast::{Incast, IncastSettings, Round};
pub use messages::Messages;
pub use racks::RackLoad;
pub use transfers::{Arrivals, Start, Transfers};
pub use udp::{SendPattern, Udp, UdpFlow};

use crate::end::{End, Report};
use anabranch_endpoint::PeerId;
use anabranch_fabric::{HostsCx, Target, User};
use anabranch_transport::{Config, Connection, Control, Counters, Event};
use anabranch_units::{ByteCount, Instant, Seed};

/// Bytes that TLS 1.3 adds to a record (RFC 8446 section 5.2), for jobs that model encrypted
/// connections.
pub const TLS_RECORD_BYTES: u64 = 22;
/// Bytes of the header of an HTTP request or answer.
pub const HEAD_BYTES: u64 = 250;

/// A flow: bytes from one host to another.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Index of the flow's job.
    pub job: u16,
    /// Sending host.
    pub src: u16,
    /// Receiving host.
    pub dst: u16,
    /// Size of the flow; `None` if it is endless.
    pub size: Option<ByteCount>,
    /// Time at which the flow was opened.
    pub started_at: Instant,
    /// Time at which the last byte arrived in order.
    pub finished_at: Option<Instant>,
    /// Bytes received in order.
    pub delivered_bytes: u64,
    /// Bytes received before the end of the warm-up.
    pub warmup_bytes: u64,
    /// Id of the sending machine.
    pub sender: PeerId,
    /// Id of the receiving machine.
    pub receiver: PeerId,
    /// Counters of the sender after it was removed; `None` while the sender exists.
    pub sent: Option<Counters>,
    /// Segments received out of order, counted when the receiver is removed.
    pub out_of_order_segments: u64,
    /// True if the flow only carries control messages about data of other flows.
    pub is_control: bool,
    /// The other flow with the same bytes, if the data is sent twice.
    pub twin: Option<u32>,
    /// True for the second copy. Results of both copies are reported for the first.
    pub is_copy: bool,
}

impl Flow {
    /// Returns true if the flow's last byte has arrived, or its sender has given up.
    pub const fn is_over(&self) -> bool {
        self.finished_at.is_some() || self.sent.is_some()
    }
}

/// The traffic of one workload in a run.
#[derive(Debug)]
pub enum Job {
    /// Flows with start times.
    Transfers(Transfers),
    /// Barrier-synchronised requests.
    Incast(Incast),
    /// Datagrams.
    Udp(Udp),
    /// A system's machines.
    App(Box<dyn App>),
}

/// The traffic of all hosts of a run.
#[derive(Debug)]
pub struct Traffic {
    jobs: Vec<Job>,
    world: TrafficState,
}

/// State shared by jobs.
#[derive(Debug)]
pub struct TrafficState {
    config: Config,
    /// True if packets of receivers (acknowledgements) have the first priority.
    acks_first: bool,
    seed: Seed,
    /// All flows, by flow number.
    flows: Vec<Flow>,
    /// Number of incomplete flows with a known size.
    unfinished: u64,
}

/// Timer token that ends the warm-up. Lower tokens belong to jobs.
const WARMUP: u32 = u32::MAX >> 1;

/// Bytes written at once to an endless stream. At 400 Gbit/s they take 6 hours to send.
pub(crate) const ENDLESS_BYTES: u64 = 1 << 50;

/// A flow to open.
#[derive(Copy, Clone, Debug)]
struct PendingFlow {
    job: u16,
    priority: u8,
    src: u16,
    dst: u16,
    size: Option<ByteCount>,
    /// Number of bytes that the sender is certain to send without a pause: the flow's size, or the
    /// answer to one request.
    to_send: Option<ByteCount>,
    /// First elements of the packets of both ends; `None` if the network chooses the element.
    doors: [Option<Target>; 2],
}

impl TrafficState {
    /// Opens a connection from `src` to `dst`, and writes the flow's data.
    fn open(
        &mut self,
        cx: &mut HostsCx<'_, End>,
        (job, priority, control): (u16, u8, Option<Control>),
        start: &Start,
    ) -> u32 {
        let Start { src, dst, size, .. } = *start;
        let own = self.config.control;
        self.config.control = control.unwrap_or(own);
        let to_send = size.or(Some(ByteCount::new(ENDLESS_BYTES)));
        let flow =
            self.connect(cx, &PendingFlow { job, priority, src, dst, size, to_send, doors: [None; 2] });
        self.config.control = own;
        let sender = self.flows[flow as usize].sender;
        self.unfinished += u64::from(size.is_some());
        write(cx, sender, size.map_or(ENDLESS_BYTES, ByteCount::as_u64));
        flow
    }

    /// Opens a connection from `src` without writing data.
    fn connect(&mut self, cx: &mut HostsCx<'_, End>, opening: &PendingFlow) -> u32 {
        let checked = "a scenario's transport is checked before it runs";
        let (flow, sender, receiver) = self.enter(cx, opening);
        let mut random = self.seed.stream("tcp", flow.into());
        let mut place = |at, mut end: Connection| {
            end.set_seed(Seed::new(random.next_u64()));
            cx.place(at, End::Tcp(end));
        };
        place(receiver, Connection::listen(&self.config, sender).expect(checked));
        place(sender, Connection::connect(&self.config, receiver).expect(checked));
        flow
    }

    /// Opens a connection like [`Self::connect`], but received data waits until it is read.
    fn connect_unread(&mut self, cx: &mut HostsCx<'_, End>, opening: &PendingFlow) -> u32 {
        let reads_at_once = std::mem::replace(&mut self.config.reads_at_once, false);
        let flow = self.connect(cx, opening);
        self.config.reads_at_once = reads_at_once;
        flow
    }

    /// Reserves ids for both machines of a flow, and records the flow.
    fn enter(&mut self, cx: &mut HostsCx<'_, End>, opening: &PendingFlow) -> (u32, PeerId, PeerId) {
        let PendingFlow { job, priority, src, dst, size, to_send, doors } = *opening;
        let flow = u32::try_from(self.flows.len()).expect("so many flows do not fit into memory");
        let mut reserve = |door: Option<Target>, host, priority| match door {
            None => cx.reserve(host, flow, priority),
            Some(door) => cx.reserve_via(door, host, flow, priority),
        };
        let of_acks = if self.acks_first { 0 } else { priority };
        let (sender, receiver) = (reserve(doors[0], src, priority), reserve(doors[1], dst, of_acks));
        for end in [sender, receiver] {
            cx.note_flow_size(end, to_send);
        }
        self.flows.push(Flow {
            job,
            src,
            dst,
            size,
            started_at: cx.now(),
            finished_at: None,
            delivered_bytes: 0,
            warmup_bytes: 0,
            sender,
            receiver,
            sent: None,
            out_of_order_segments: 0,
            is_control: false,
            twin: None,
            is_copy: false,
        });
        (flow, sender, receiver)
    }

    /// All flows.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }
}

/// Writes further bytes to a connection.
fn write(cx: &mut HostsCx<'_, End>, id: PeerId, bytes: u64) {
    if let Some(End::Tcp(connection)) = cx.end_mut(id) {
        connection.write(bytes);
    }
}

impl Traffic {
    /// Creates the user for these jobs, with TCP settings `config`.
    pub const fn new(config: Config, jobs: Vec<Job>) -> Self {
        Self {
            jobs,
            world: TrafficState {
                config,
                acks_first: false,
                seed: Seed::new(0),
                flows: Vec::new(),
                unfinished: 0,
            },
        }
    }
    /// Returns the same user with this seed for the connections' random draws.
    #[must_use]
    pub const fn with_seed(mut self, seed: Seed) -> Self {
        self.world.seed = seed;
        self
    }
    /// Returns the same user with first priority for packets of flows' receivers.
    #[must_use]
    pub const fn with_acks_first(mut self, acks_first: bool) -> Self {
        self.world.acks_first = acks_first;
        self
    }
    /// The jobs, by number.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }
    /// All opened flows, by number.
    pub fn flows(&self) -> &[Flow] {
        self.world.flows()
    }
    /// Returns the first timer of each job, with its token.
    pub fn first_timers(&self) -> impl Iterator<Item = (Instant, u32)> + '_ {
        self.jobs.iter().enumerate().filter_map(|(number, job)| {
            let at = match job {
                Job::Transfers(job) => job.next_at()?,
                Job::Incast(_) => Instant::ZERO,
                Job::Udp(job) => job.start,
                Job::App(_) => Instant::ZERO,
            };
            Some((at, number as u32))
        })
    }
    /// Token of the timer that ends the warm-up.
    pub const fn warmup_token() -> u32 {
        WARMUP
    }
    /// Returns true if all jobs are done.
    pub fn is_done(&self) -> bool {
        self.world.unfinished == 0
            && self.jobs.iter().all(|job| match job {
                Job::Transfers(job) => job.is_done(),
                Job::Incast(job) => job.is_done(),
                Job::Udp(job) => job.is_done(),
                Job::App(job) => job.ended_at().is_some(),
            })
    }
    /// Time at which the last job ended; `None` while a job is not done.
    pub fn ended_at(&self) -> Option<Instant> {
        if !self.is_done() {
            return None;
        }
        let flows = self.world.flows.iter().filter_map(|flow| flow.finished_at);
        let jobs = self.jobs.iter().filter_map(|job| match job {
            Job::Transfers(_) => None,
            Job::Incast(job) => job.rounds().last().map(|round| round.ended_at),
            Job::Udp(job) => job.stop,
            Job::App(job) => job.ended_at(),
        });
        flows.chain(jobs).max()
    }
    /// Share of the jobs' work that is done; `None` if a job is endless.
    pub fn progress(&self) -> Option<f64> {
        let shares: Option<Vec<f64>> = self
            .jobs
            .iter()
            .map(|job| match job {
                Job::Transfers(job) => job.progress(),
                Job::Incast(job) => Some(job.progress()),
                Job::Udp(_) => None,
                Job::App(job) => job.progress(),
            })
            .collect();
        shares.filter(|s| !s.is_empty()).map(|s| s.iter().sum::<f64>() / s.len() as f64)
    }
}

impl User for Traffic {
    type End = End;

    #[inline]
    fn on_event(&mut self, cx: &mut HostsCx<'_, End>, end: PeerId, report: Report) {
        let number = cx.flow(end);
        let flow = &mut self.world.flows[number as usize];
        let event = match report {
            Report::Tcp(event) => event,
            Report::Datagrams { bytes } => {
                flow.delivered_bytes += bytes;
                return;
            }
            Report::Datagram(datagram) => {
                let side = if end == flow.sender { Side::Opener } else { Side::Acceptor };
                let job = flow.job;
                if let Job::App(app) = &mut self.jobs[usize::from(job)] {
                    let mut cx = AppCx { world: &mut self.world, cx, job };
                    app.on_datagram(&mut cx, number, side, datagram.number);
                }
                return;
            }
        };
        if let (Event::Received { bytes }, true) = (event, end == flow.receiver) {
            flow.delivered_bytes += bytes;
        }
        let job = flow.job;
        match &mut self.jobs[usize::from(job)] {
            Job::Transfers(_) => transfers::on_event(&mut self.world, cx, number, end, event),
            Job::Incast(incast) => incast.on_event(&mut self.world, cx, number, end, event),
            Job::Udp(_) => {}
            Job::App(app) => {
                if flow.size.is_some_and(|size| flow.delivered_bytes >= size.as_u64()) {
                    flow.finished_at.get_or_insert(cx.now());
                }
                let side = if end == flow.sender { Side::Opener } else { Side::Acceptor };
                if let Some(event) = app::stream_event(event) {
                    let mut cx = AppCx { world: &mut self.world, cx, job };
                    app.on_stream(&mut cx, number, side, event);
                }
            }
        }
    }

    fn on_timer(&mut self, cx: &mut HostsCx<'_, End>, token: u32) {
        if token == WARMUP {
            for flow in &mut self.world.flows {
                flow.warmup_bytes = flow.delivered_bytes;
            }
            for job in &mut self.jobs {
                if let Job::App(app) = job {
                    app.end_warmup();
                }
            }
            return;
        }
        // Tokens of an app have the app's own number in the upper bits, above the job's number.
        let (job, own) = (token as u16, (token >> 16) as u16);
        let number = job;
        match &mut self.jobs[usize::from(job)] {
            Job::Transfers(job) => job.on_timer(&mut self.world, cx, number),
            Job::Incast(job) => job.on_timer(&mut self.world, cx, number),
            Job::Udp(job) => job.on_timer(&mut self.world, cx, number),
            Job::App(app) => {
                let mut cx = AppCx { world: &mut self.world, cx, job };
                match own.checked_sub(1) {
                    None => app.start(&mut cx),
                    Some(token) => app.on_timer(&mut cx, token),
                }
            }
        }
    }
}
