//! The forwarder: a thread that carries packets between the sites' devices and the fabric, under
//! the real clock.
//!
//! The thread sleeps until a device is readable or a packet may leave a link, advances the fabric
//! to the current time, and writes arrived packets. Lateness on one hop does not add to the next
//! hop, because the fabric computes with the intended times.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender};

use anabranch_fabric::{
    AnyElement, CircuitSwitch, DropCounts, EventQueue, Fabric, Flag, Node, NodeCx, PacketMeta, Port,
    PortError, PortSettings, Switch, Target,
};
use anabranch_units::{ByteCount, FlowKey, Instant, LinkId, SiteId};

use crate::Histogram;
use crate::circuits::{CircuitFigures, CircuitObserver, Circuits};
use crate::dilation::Clock;
use crate::lateness::Scheduling;
use crate::route::{self, CircuitMark, Routes};
use crate::weeks::Weeks;
use crate::{AnnounceError, LinkCounters, LinkState, Switching, elevate, sys};

/// A request to the forwarder, handled between packets.
pub(crate) enum Request {
    SetLink { link: LinkId, state: LinkState, reply: Sender<Result<(), PortError>> },
    LinkState { link: LinkId, reply: Sender<LinkState> },
    Counters { reply: Sender<Vec<LinkCounters>> },
    Figures { reply: Sender<Figures> },
    Circuits { reply: Sender<Option<CircuitFigures>> },
    Announce { flow: FlowKey, coflow: String, bytes: ByteCount, reply: Sender<Result<(), AnnounceError>> },
    Stop,
}

/// Counters of the forwarder.
pub(crate) struct Figures {
    pub lateness: Histogram,
    pub drops: DropCounts,
    pub refused: u64,
    pub took_s: f64,
    pub cpu_s: f64,
    pub cpu_share_max: f64,
    pub wait_s: f64,
    pub scheduling: Scheduling,
}

/// Arguments for the start of the forwarder.
pub(crate) struct Setup {
    pub routes: Routes,
    pub tuns: Vec<OwnedFd>,
    pub switching: Vec<Switching>,
    pub ports: Vec<Port>,
    pub circuits: Option<Circuits>,
    pub clock: Clock,
    pub bell: std::sync::Arc<OwnedFd>,
    pub requests: Receiver<Request>,
    pub spin: std::time::Duration,
    pub coalesce: std::time::Duration,
    pub elevate: bool,
}

/// Destination of packets that leave the fabric, with statistics of their lateness.
struct Delivery {
    clock: Clock,
    observer: Option<CircuitObserver>,
    circuit_mark: CircuitMark,
    /// Lateness of deliveries, in emulated time.
    lateness: Histogram,
    refused: u64,
    /// Packet buffers for reuse.
    spare: Vec<Vec<u8>>,
}

/// Maximum number of packet buffers kept for reuse.
const SPARE_MAX: usize = 256;
/// Maximum number of packets read from one device before the next device is read.
const BATCH: usize = 32;
/// Maximum size in bytes of a packet from a device.
const PACKET_MAX: usize = 65_536;

/// A site at the edge of the fabric: packets that arrive are written to its device.
struct SiteNode {
    tun: RawFd,
    delivery: Rc<RefCell<Delivery>>,
}

impl Node for SiteNode {
    type Body = Vec<u8>;
    #[inline]
    fn on_packet<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Vec<u8>, Q>,
        meta: PacketMeta,
        mut body: Vec<u8>,
    ) {
        if meta.has(Flag::Ce) {
            route::mark_ce(&mut body);
        }
        let mut delivery = self.delivery.borrow_mut();
        let delivery = &mut *delivery;
        if meta.has(Flag::Circuit) {
            route::mark_circuit(&mut body, delivery.circuit_mark);
        }
        match sys::write_packet(self.tun, &body) {
            Ok(()) => {
                let (now, meant) = (delivery.clock.now(), cx.now());
                delivery.lateness.record(now.saturating_since(meant).as_ns());
                if let Some(observer) = &mut delivery.observer {
                    observer.handle(now, meant, &meta);
                }
            }
            Err(_) => delivery.refused += 1,
        }
        if delivery.spare.len() < SPARE_MAX {
            body.clear();
            delivery.spare.push(body);
        }
    }
    fn on_timer<Q: EventQueue>(&mut self, _: &mut NodeCx<'_, Vec<u8>, Q>, _: u32) {
        unreachable!("a site arms no timer")
    }
}

/// State of the forwarder's thread.
pub(crate) struct Forwarder {
    fabric: Fabric<SiteNode>,
    setup: Setup,
    delivery: Rc<RefCell<Delivery>>,
    circuits: Option<Target>,
    /// Scheduling loop of circuits that follow demand.
    weeks: Option<Weeks>,
    scheduling: Scheduling,
    /// Start of the current second of the processor share: run time, and processor time used.
    second: (std::time::Duration, std::time::Duration),
    cpu_share_max: f64,
}

impl Forwarder {
    /// Runs on the calling thread until a request to stop.
    pub(crate) fn run(mut setup: Setup) {
        let clock = setup.clock;
        let circuits = setup.circuits.take();
        let circuit_mark = circuits.as_ref().map_or(CircuitMark::Ece, |circuits| circuits.mark);
        let (circuits, observer, schedule) = circuits.map_or((None, None, None), |circuits| {
            (Some((circuits.site, circuits.switch)), Some(circuits.observer), circuits.schedule)
        });
        let weeks = schedule.map(|(schedule, rack_of)| Weeks::new(schedule, rack_of));
        let delivery = Rc::new(RefCell::new(Delivery {
            clock,
            observer,
            circuit_mark,
            lateness: Histogram::new(),
            refused: 0,
            spare: Vec::new(),
        }));
        let nodes =
            setup.tuns.iter().map(|tun| SiteNode { tun: tun.as_raw_fd(), delivery: delivery.clone() });
        let nodes = nodes.collect();
        let links = setup.ports.len();
        let circuits_at = circuits.as_ref().map(|(site, _)| route::switch(*site, links));
        let mut fabric =
            Fabric::new(elements(&setup.switching, std::mem::take(&mut setup.ports), circuits), nodes);
        if let Some(at) = circuits_at.filter(|_| weeks.as_ref().is_some_and(Weeks::follows_flows)) {
            fabric.tap(at);
        }
        sys::wake_on_time();
        let scheduling = if setup.elevate { elevate() } else { Scheduling::Ordinary };
        let second = (clock.started.elapsed(), sys::thread_cpu_time());
        let (circuits, cpu_share_max) = (circuits_at, 0.0);
        let mut forwarder =
            Self { fabric, setup, delivery, circuits, weeks, scheduling, second, cpu_share_max };
        forwarder.forward();
        close_all(std::mem::take(&mut forwarder.setup.tuns));
    }

    fn forward(&mut self) {
        let mut fds: Vec<_> = self.setup.tuns.iter().map(|tun| sys::readable(tun.as_raw_fd())).collect();
        fds.push(sys::readable(self.setup.bell.as_raw_fd()));
        let mut buffer = vec![0; PACKET_MAX];
        let clock = self.setup.clock;
        loop {
            self.fabric.advance(clock.now());
            let week_due = self.follow_demand();
            let due = self.fabric.next_arrival().into_iter().chain(week_due).min();
            let timeout = match due.map(|at| clock.until(at)) {
                // Sleeping and waking up takes longer than this wait, so poll again without
                // sleeping.
                Some(t) if t < self.setup.spin => Some(Default::default()),
                Some(t) => Some(t.max(self.setup.coalesce)),
                None => None,
            };
            sys::wait(&mut fds, timeout);
            let (bell, tuns) = fds.split_last().expect("the bell is always there");
            for (site, _) in tuns.iter().enumerate().filter(|(_, fd)| fd.revents != 0) {
                self.take_in(SiteId(site as u16), &mut buffer);
            }
            if bell.revents != 0 {
                sys::silence(&self.setup.bell);
                while let Ok(request) = self.setup.requests.try_recv() {
                    if matches!(request, Request::Stop) {
                        return;
                    }
                    self.answer(request);
                }
            }
            self.note_share();
        }
    }

    /// Reports forwarded packets to the circuits' control, and gives the switch the weeks that are
    /// due. Returns the time of the next decision; `None` if circuits do not follow demand.
    fn follow_demand(&mut self) -> Option<Instant> {
        let (weeks, at) = self.weeks.as_mut().zip(self.circuits)?;
        if weeks.follows_flows() {
            self.fabric.take_tapped().iter().for_each(|packet| weeks.handle_forwarded(&packet.body));
        }
        let now = self.fabric.now();
        if weeks.poll_timeout() <= now
            && let Some(switch) = self.fabric.circuit_switch(at)
        {
            let (ports, queue) = (switch.ports(), |from, to| switch.queue_bytes(from, to).as_u64());
            let bytes = (0..ports).flat_map(|from| (0..ports).map(move |to| queue(from, to)));
            weeks.handle_queues(now, bytes.collect());
        }
        while let Some((timetable, begins_at)) = weeks.poll_timetable() {
            let installed = self.fabric.handle_timetable(now, at, timetable, begins_at);
            installed.expect("a control's days are matchings of the switch's racks");
        }
        Some(weeks.poll_timeout())
    }

    /// Reads the packets that `site` has sent into the fabric.
    fn take_in(&mut self, site: SiteId, buffer: &mut [u8]) {
        let tun = self.setup.tuns[site.index()].as_raw_fd();
        for _ in 0..BATCH {
            // An error means that a program took the site's device down; only that site's packets
            // are lost.
            let Ok(Some(len)) = sys::read_packet(tun, buffer) else { return };
            let packet = &buffer[..len];
            let (to, meta) = self.setup.routes.ingress(site, packet);
            if let Some(weeks) = &mut self.weeks {
                weeks.handle_sent(meta.src, meta.dst, packet);
            }
            let mut body = self.delivery.borrow_mut().spare.pop().unwrap_or_default();
            body.extend_from_slice(packet);
            self.fabric.inject(self.setup.clock.now(), to, meta, body);
        }
    }

    fn answer(&mut self, request: Request) {
        // The caller may have gone; the reply is then dropped.
        match request {
            Request::SetLink { link, state, reply } => {
                let target = route::port(link);
                let LinkState { up, rate, delay, loss_ppm, loss_burst } = state;
                let before = *self.port(link).settings();
                let settings = PortSettings { rate, delay, loss_ppm, loss_burst, up, ..before };
                let now = self.setup.clock.now();
                let _ = reply.send(self.fabric.handle_port_settings(now, target, settings));
            }
            Request::LinkState { link, reply } => {
                let &PortSettings { rate, delay, loss_ppm, loss_burst, up, .. } = self.port(link).settings();
                let _ = reply.send(LinkState { up, rate, delay, loss_ppm, loss_burst });
            }
            Request::Counters { reply } => {
                let links = self.setup.routes.link_ids();
                let _ = reply.send(links.map(|link| LinkCounters::of(link, self.port(link))).collect());
            }
            Request::Figures { reply } => {
                let delivery = self.delivery.borrow();
                let _ = reply.send(Figures {
                    lateness: delivery.lateness.clone(),
                    drops: self.fabric.totals().drops,
                    refused: delivery.refused,
                    took_s: self.setup.clock.now().as_secs_f64(),
                    cpu_s: sys::thread_cpu_time().as_secs_f64(),
                    cpu_share_max: self.cpu_share_max,
                    wait_s: wait_s(),
                    scheduling: self.scheduling,
                });
            }
            Request::Circuits { reply } => {
                let switch = self.circuits.and_then(|at| self.fabric.circuit_switch(at));
                let observer = &mut self.delivery.borrow_mut().observer;
                let figures = switch.zip(observer.as_mut());
                let schedule = self.weeks.as_mut().map(Weeks::take);
                let figures = figures.map(|(switch, observer)| observer.take(switch.counters(), schedule));
                let _ = reply.send(figures);
            }
            Request::Announce { flow, coflow, bytes, reply } => {
                let weeks = self.weeks.as_mut().ok_or(AnnounceError::NotFollowed);
                let _ = reply.send(weeks.and_then(|weeks| weeks.handle_announced(flow, &coflow, bytes)));
            }
            Request::Stop => unreachable!("handled by the loop"),
        }
    }

    fn port(&self, link: LinkId) -> &Port {
        self.fabric.port(route::port(link)).expect("the handle has checked the link")
    }

    fn note_share(&mut self) {
        let (wall, cpu) = self.second;
        let now = self.setup.clock.started.elapsed();
        if now - wall >= std::time::Duration::from_secs(1) {
            let used = sys::thread_cpu_time();
            self.cpu_share_max =
                self.cpu_share_max.max((used - cpu).as_secs_f64() / (now - wall).as_secs_f64());
            self.second = (now, used);
        }
    }
}

/// Elements of the fabric: ports, then switches, in the order of [`route::port`] and
/// [`route::switch`].
fn elements(
    switching: &[Switching],
    ports: Vec<Port>,
    mut circuits: Option<(SiteId, CircuitSwitch)>,
) -> Vec<AnyElement> {
    let switch = |(site, known): (usize, &Switching)| {
        if let Some((_, switch)) = circuits.take_if(|(circuit, _)| circuit.index() == site) {
            return AnyElement::Circuit(Box::new(switch));
        }
        let next = |(to, links): (usize, &Vec<LinkId>)| match to == site {
            true => vec![Target::node(site as u32)],
            false => links.iter().map(|link| route::port(*link)).collect(),
        };
        let groups: Vec<_> = known.next.iter().enumerate().map(next).collect();
        AnyElement::Switch(Switch::with_groups(&groups, known.policy.clone()))
    };
    let ports = ports.into_iter().map(|port| AnyElement::Port(Box::new(port)));
    ports.chain(switching.iter().enumerate().map(switch)).collect()
}

/// Closes devices in parallel, because the kernel waits 20 ms for each.
fn close_all(mut tuns: Vec<OwnedFd>) {
    const AT_ONCE: usize = 32;
    let chunk = tuns.len().div_ceil(AT_ONCE).max(1);
    std::thread::scope(|scope| {
        while !tuns.is_empty() {
            let some = tuns.split_off(tuns.len().saturating_sub(chunk));
            // If no thread starts, the closure and its devices are dropped here.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(some));
        }
    });
}

/// Time in seconds for which this thread was runnable but did not run: the second field of its
/// schedstat (proc(5)).
fn wait_s() -> f64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", sys::thread_id()));
    let wait_ns = text.ok().and_then(|t| t.split_whitespace().nth(1)?.parse::<u64>().ok());
    wait_ns.unwrap_or(0) as f64 / 1e9
}
