//! Flows that start at their times: long ones, those of a trace, and Poisson arrivals.
//!
//! Small ones may be sent twice, of which the first to be whole counts: Xu and Li, *RepFlow: Minimizing flow completion times with
//! replicated flows in data centers* (2014).

use super::World;
use crate::end::End;
use crate::sizes::Sizes;
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::{Control, Event, exponential};
use anabranch_units::{ByteCount, Duration, Instant, RandomStream};

/// A flow that is to start.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// When.
    pub at: Instant,
    /// The host that sends.
    pub src: u16,
    /// The host that receives, another one.
    pub dst: u16,
    /// How much; endless without.
    pub size: Option<ByteCount>,
}

/// Starts that are drawn as they come.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// Mean time between two.
    pub gap: Duration,
    /// How large they are.
    pub sizes: Sizes,
    /// Both ends are drawn among so many hosts, at least two.
    pub hosts: u16,
    /// How many are left; without an end if none.
    pub left: Option<u64>,
    /// What draws them.
    pub random: RandomStream,
}

impl Arrivals {
    fn next(&mut self, after: Instant) -> Option<Start> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        // Past the end of time nobody waits for it.
        let gap = exponential(self.gap, &mut self.random);
        let at = after + gap;
        let src = self.random.below(self.hosts.into()) as u16;
        let other = self.random.below(u64::from(self.hosts) - 1) as u16;
        let dst = other + u16::from(other >= src);
        Some(Start { at, src, dst, size: Some(self.sizes.draw(&mut self.random)) })
    }
}

/// The job.
#[derive(Debug)]
pub struct Transfers {
    priority: u8,
    control: Option<Control>,
    /// Smaller flows are sent twice.
    twice_below: Option<ByteCount>,
    /// Those that are listed, the next one last.
    listed: Vec<Start>,
    arrivals: Option<Arrivals>,
    next: Option<Start>,
    begun: u64,
    expected: Option<u64>,
}

impl Transfers {
    /// Flows that start as listed, in any order.
    pub fn listed(mut starts: Vec<Start>, priority: u8) -> Self {
        // Equal times keep the order of the list.
        starts.reverse();
        starts.sort_by_key(|start| std::cmp::Reverse(start.at));
        let is_finite = starts.iter().all(|start| start.size.is_some());
        let expected = is_finite.then_some(starts.len() as u64);
        let next = starts.pop();
        Self {
            priority,
            control: None,
            twice_below: None,
            listed: starts,
            arrivals: None,
            next,
            begun: 0,
            expected,
        }
    }
    /// The same by another congestion control than the transport's.
    pub(crate) const fn with_control(mut self, control: Option<Control>) -> Self {
        self.control = control;
        self
    }

    /// The same, with flows smaller than this sent twice.
    pub(crate) const fn with_copies(mut self, twice_below: Option<ByteCount>) -> Self {
        self.twice_below = twice_below;
        self
    }

    /// Flows that arrive at random from the beginning on.
    pub fn arriving(mut arrivals: Arrivals, priority: u8) -> Self {
        let expected = arrivals.left;
        let next = arrivals.next(Instant::ZERO);
        let listed = Vec::new();
        Self {
            priority,
            control: None,
            twice_below: None,
            listed,
            arrivals: Some(arrivals),
            next,
            begun: 0,
            expected,
        }
    }

    /// The starts as they will come, before any has.
    pub(crate) fn into_starts(self) -> impl Iterator<Item = Start> {
        let Self { next, mut listed, mut arrivals, .. } = self;
        std::iter::successors(next, move |start| following(&mut arrivals, &mut listed, start.at))
    }
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.next.map(|start| start.at)
    }
    pub(super) fn is_done(&self) -> bool {
        self.next.is_none() && self.expected.is_some()
    }
    pub(super) fn progress(&self) -> Option<f64> {
        self.expected.map(|expected| self.begun as f64 / expected.max(1) as f64)
    }

    pub(super) fn on_timer(&mut self, world: &mut World, cx: &mut HostsCx<'_, End>, job: u16) {
        while let Some(start) = self.next.filter(|start| start.at <= cx.now()) {
            let opening = (job, self.priority, self.control);
            let flow = world.open(cx, opening, &start);
            if start.size.is_some_and(|size| self.twice_below.is_some_and(|below| size < below)) {
                let copy = world.open(cx, opening, &start);
                world.flows[flow as usize].twin = Some(copy);
                let copy = &mut world.flows[copy as usize];
                (copy.twin, copy.is_copy) = (Some(flow), true);
            }
            self.begun += 1;
            self.next = following(&mut self.arrivals, &mut self.listed, start.at);
        }
        if let Some(start) = self.next {
            cx.arm(start.at, job.into());
        }
    }
}

/// The start that comes after one at `at`.
fn following(arrivals: &mut Option<Arrivals>, listed: &mut Vec<Start>, at: Instant) -> Option<Start> {
    match arrivals {
        Some(arrivals) => arrivals.next(at),
        None => listed.pop(),
    }
}

/// A flow of such a job is over when its receiver has all bytes, and is forgotten when its sender knows. Of two that carry the same, both
/// are then.
pub(super) fn on_event(world: &mut World, cx: &mut HostsCx<'_, End>, number: u32, end: PeerId, event: Event) {
    let flow = &world.flows[number as usize];
    let Some(size) = flow.size else { return };
    let twin = flow.twin;
    if end == flow.receiver {
        if flow.delivered_bytes < size.as_u64() || flow.finished_at.is_some() {
            return;
        }
        for number in std::iter::once(number).chain(twin) {
            let flow = &mut world.flows[number as usize];
            (flow.finished_at, flow.delivered_bytes) = (Some(cx.now()), size.as_u64());
            world.unfinished -= 1;
        }
        if let Some(twin) = twin {
            forget(world, cx, twin);
        }
        return;
    }
    let is_over = match (event, cx.end(end)) {
        (Event::Acknowledged { .. }, Some(End::Tcp(sender))) => sender.unacknowledged_bytes() == 0,
        // Nobody answers: it stays unfinished.
        (Event::GivenUp, _) => true,
        _ => false,
    };
    if is_over {
        forget(world, cx, number);
    }
}

/// Takes away the machines of a flow, and keeps what they have counted.
fn forget(world: &mut World, cx: &mut HostsCx<'_, End>, number: u32) {
    let flow = &mut world.flows[number as usize];
    if let Some(End::Tcp(sender)) = cx.remove(flow.sender) {
        flow.sent = Some(sender.counters());
    }
    if let Some(End::Tcp(receiver)) = cx.remove(flow.receiver) {
        flow.out_of_order_segments = receiver.counters().out_of_order_segments;
    }
}
