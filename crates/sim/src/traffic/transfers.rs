//! Flows with start times: the flows of `long` workloads, of traces, and of Poisson arrivals.
//!
//! Small flows may be sent twice. The first complete copy counts: Xu and Li, *RepFlow: Minimizing
//! flow completion times with replicated flows in data centers* (2014).

use super::TrafficState;
use crate::end::End;
use crate::sizes::Sizes;
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::{Control, Event, exponential};
use anabranch_units::{ByteCount, Duration, Instant, RandomStream};

/// A flow to start.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Start time.
    pub at: Instant,
    /// Sending host.
    pub src: u16,
    /// Receiving host, which differs from the sending host.
    pub dst: u16,
    /// Size of the flow; `None` if it is endless.
    pub size: Option<ByteCount>,
}

/// Random starts of flows, drawn one after the other.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// Mean interval between two starts.
    pub gap: Duration,
    /// Sizes of the flows.
    pub sizes: Sizes,
    /// Number of hosts from which both ends are drawn, at least two.
    pub hosts: u16,
    /// Number of remaining flows; `None` for an endless sequence.
    pub left: Option<u64>,
    /// Random stream of the draws.
    pub random: RandomStream,
}

impl Arrivals {
    fn next(&mut self, after: Instant) -> Option<Start> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        // A start beyond the maximum time is never reached.
        let gap = exponential(self.gap, &mut self.random);
        let at = after + gap;
        let src = self.random.below(self.hosts.into()) as u16;
        let other = self.random.below(u64::from(self.hosts) - 1) as u16;
        let dst = other + u16::from(other >= src);
        Some(Start { at, src, dst, size: Some(self.sizes.draw(&mut self.random)) })
    }
}

/// The job of workloads with start times.
#[derive(Debug)]
pub struct Transfers {
    priority: u8,
    control: Option<Control>,
    /// Size below which flows are sent twice.
    twice_below: Option<ByteCount>,
    /// Listed starts in reverse order: the next start is the last entry.
    listed: Vec<Start>,
    arrivals: Option<Arrivals>,
    next: Option<Start>,
    begun: u64,
    expected: Option<u64>,
}

impl Transfers {
    /// Creates flows with the listed starts, in any order.
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
    /// Returns the same job with another congestion control than the transport's.
    pub(crate) const fn with_control(mut self, control: Option<Control>) -> Self {
        self.control = control;
        self
    }

    /// Returns the same job with flows below this size sent twice.
    pub(crate) const fn with_copies(mut self, twice_below: Option<ByteCount>) -> Self {
        self.twice_below = twice_below;
        self
    }

    /// Creates flows that arrive at random from the beginning of the run.
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

    /// Returns all starts in order. No flow may have started before.
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

    pub(super) fn on_timer(&mut self, world: &mut TrafficState, cx: &mut HostsCx<'_, End>, job: u16) {
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

/// Returns the start that follows a start at `at`.
fn following(arrivals: &mut Option<Arrivals>, listed: &mut Vec<Start>, at: Instant) -> Option<Start> {
    match arrivals {
        Some(arrivals) => arrivals.next(at),
        None => listed.pop(),
    }
}

/// Handles an event of a flow. A flow is complete when its receiver has all bytes. Its machines are
/// removed when its sender knows that. If the flow is sent twice, both copies are removed then.
pub(super) fn on_event(
    world: &mut TrafficState,
    cx: &mut HostsCx<'_, End>,
    number: u32,
    end: PeerId,
    event: Event,
) {
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
        // The peer does not answer, so the flow stays incomplete.
        (Event::GivenUp, _) => true,
        _ => false,
    };
    if is_over {
        forget(world, cx, number);
    }
}

/// Removes the machines of a flow, and keeps their counters.
fn forget(world: &mut TrafficState, cx: &mut HostsCx<'_, End>, number: u32) {
    let flow = &mut world.flows[number as usize];
    if let Some(End::Tcp(sender)) = cx.remove(flow.sender) {
        flow.sent = Some(sender.counters());
    }
    if let Some(End::Tcp(receiver)) = cx.remove(flow.receiver) {
        flow.out_of_order_segments = receiver.counters().out_of_order_segments;
    }
}
