//! Circuits that follow demand: a system decides the days of each week of a scenario's hybrid
//! switch.
//!
//! This room has the switch, its queues and the flows. The system has the estimate and the
//! scheduler. The run asks the system once a week, installs its answer in the switch, and keeps a
//! row for each week. Read [`CircuitControl`] first. Leaves out: the switch
//! ([`anabranch_fabric::CircuitSwitch`]), and the decisions (the system's).

use crate::end::Msg;
use crate::rows::WeekRow;
use crate::traffic::{ENDLESS_BYTES, Job, Traffic};
use anabranch_fabric::{
    CircuitCounters, CircuitSwitch, Envelope, EventQueue, Fabric, Hosts, Matching, TappedPacket, Target,
    Timetable,
};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::fmt::Debug;
use std::sync::Arc;

/// The validated control of a hybrid switch, from which runs create their controls.
pub trait CircuitPlan: Debug + Send + Sync {
    /// Creates the control of one run.
    fn control(&self) -> Box<dyn CircuitControl>;
    /// Returns true if the control receives events of flows and of packets that leave the switch.
    fn follows_flows(&self) -> bool;
}

/// The control that decides the weeks of a hybrid switch in one run.
///
/// At the time of `poll_timeout` the run first reports all events of flows since the last report,
/// in order. Then it calls `handle_queues`, and `poll_week` until `None`. The first week is
/// available from the beginning of the run.
pub trait CircuitControl: Debug {
    /// Handles the start of flow `flow` between two racks, with `bytes` to send.
    fn handle_announced(&mut self, flow: u32, racks: [u16; 2], bytes: ByteCount);
    /// Handles the forwarding of `bytes` of `flow`, from `position` in its stream on. The flow may
    /// have ended, or may not have announced its bytes.
    fn handle_forwarded(&mut self, flow: u32, position: u64, bytes: u32);
    /// Handles the end of flow `flow`.
    fn handle_closed(&mut self, flow: u32);
    /// Handles the bytes that wait in the switch's queues, for each source rack in turn and for
    /// each destination.
    ///
    /// Panics: may panic if it is not called at the time of `poll_timeout`.
    fn handle_queues(&mut self, now: Instant, bytes: Vec<u64>);
    /// Time of the next call of `handle_queues`.
    fn poll_timeout(&self) -> Instant;
    /// Returns the next week for the switch, until `None`.
    fn poll_week(&mut self) -> Option<CircuitWeek>;
}

/// Days of one week. They repeat in the following weeks until a new week begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitWeek {
    /// Time at which the week begins.
    pub begins_at: Instant,
    /// Total demand on which the decision was based.
    pub demand: ByteCount,
    /// Number of reports of flows so far that exceeded a limit of the control, so that its demand
    /// may be wrong.
    pub unknown_reports: u64,
    /// Duration and matching of each day. A night precedes each day. No circuit is up in the
    /// remaining time of the week.
    pub days: Vec<(Duration, Matching)>,
}

/// A control with the times of its weeks, for simulated and emulated runs.
#[derive(Clone, Debug)]
pub struct CircuitSchedule {
    /// The validated control.
    pub plan: Arc<dyn CircuitPlan>,
    /// Time before each day in which no circuit is up.
    pub night: Duration,
    /// Total time of all days and nights of a week.
    pub week: Duration,
    /// Minimum length of a day.
    pub day_min: Duration,
}

impl CircuitSchedule {
    /// Returns the timetable of a week: each day after its night, then the remaining time without
    /// circuits.
    ///
    /// Panics: if days and nights last longer than the week.
    pub fn timetable(&self, week: &CircuitWeek) -> Timetable<Matching> {
        let mut slots = Vec::new();
        let mut left = self.week;
        for (length, matching) in &week.days {
            slots.extend([(self.night, Matching::new()), (*length, matching.clone())]);
            left = left - self.night - *length;
        }
        if left > Duration::ZERO {
            slots.push((left, Matching::new()));
        }
        Timetable::new(slots).expect("nights and days have a length")
    }
}

/// Maximum number of weeks whose rows a run keeps. Later weeks count in totals only.
const ROWS_MAX: usize = 1_000_000;

/// The weeks of one run.
#[derive(Debug)]
pub(crate) struct Weeks {
    control: Box<dyn CircuitControl>,
    follows_flows: bool,
    switch: Target,
    /// Rack of each host, by host number.
    racks: Vec<Option<u16>>,
    schedule: CircuitSchedule,
    /// Rate of each circuit.
    rate: BitRate,
    /// Number of flows reported to the control, including ended flows.
    flows: usize,
    /// Numbers of the announced flows that have not ended.
    open: Vec<u32>,
    /// The week in force, and the week after it.
    current: CircuitWeek,
    next: Option<CircuitWeek>,
    /// End of the week whose bytes are being counted.
    ends_at: Instant,
    counted: CircuitCounters,
    rows: Vec<WeekRow>,
    weeks: u64,
    days: u64,
}

impl Weeks {
    /// Creates the weeks of a run. The hybrid switch at `switch` has circuits of `rate`, and
    /// `racks` has the rack of each host.
    pub(crate) fn new<Q: EventQueue>(
        schedule: CircuitSchedule,
        rate: BitRate,
        switch: Target,
        racks: Vec<Option<u16>>,
        fabric: &mut Fabric<Hosts<Traffic>, Q>,
    ) -> Self {
        let mut control = schedule.plan.control();
        let first = control.poll_week().expect("the first week is there from the beginning");
        let (week, follows_flows) = (schedule.week, schedule.plan.follows_flows());
        if follows_flows {
            fabric.tap(switch);
        }
        let weeks = Self {
            control,
            follows_flows,
            switch,
            racks,
            schedule,
            rate,
            flows: 0,
            open: Vec::new(),
            current: first.clone(),
            next: None,
            ends_at: Instant::ZERO + week,
            counted: CircuitCounters::default(),
            rows: Vec::new(),
            weeks: 0,
            days: 0,
        };
        weeks.install(Instant::ZERO, &first, fabric);
        weeks
    }

    /// Time of the next call of [`Self::advance`].
    pub(crate) fn next_at(&self) -> Instant {
        self.control.poll_timeout().min(self.ends_at)
    }

    /// Counts the week that ends at `now`, and decides the next week if that is due. Packets that
    /// left the switch are removed from `tapped`; packets of other taps stay.
    pub(crate) fn advance<Q: EventQueue>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric<Hosts<Traffic>, Q>,
        tapped: &mut Vec<TappedPacket<Envelope<Msg>>>,
    ) {
        if self.ends_at <= now {
            self.count(switch(fabric, self.switch), self.ends_at);
            if self.next.as_ref().is_some_and(|next| next.begins_at <= self.ends_at) {
                self.current = self.next.take().expect("it was looked at");
            }
            self.ends_at += self.schedule.week;
        }
        if self.control.poll_timeout() > now {
            return;
        }
        if self.follows_flows {
            self.tell_of_flows(fabric.nodes()[0].user(), tapped);
        }
        let element = switch(fabric, self.switch);
        let ports = element.ports();
        let pairs = (0..ports).flat_map(|source| (0..ports).map(move |destination| (source, destination)));
        let queues = pairs.map(|(source, destination)| element.queue_bytes(source, destination).as_u64());
        self.control.handle_queues(now, queues.collect());
        while let Some(week) = self.control.poll_week() {
            self.install(now, &week, fabric);
            self.next = Some(week);
        }
    }

    /// Returns the rows of the weeks, the last one counted up to `now`, and the numbers of weeks
    /// and days.
    pub(crate) fn finish(mut self, switch: &CircuitSwitch, now: Instant) -> (Vec<WeekRow>, u64, u64) {
        if now.saturating_since(self.ends_at - self.schedule.week) > Duration::ZERO {
            self.count(switch, now);
        }
        (self.rows, self.weeks, self.days)
    }

    fn install<Q: EventQueue>(
        &self,
        now: Instant,
        week: &CircuitWeek,
        fabric: &mut Fabric<Hosts<Traffic>, Q>,
    ) {
        let timetable = self.schedule.timetable(week);
        let installed = fabric.handle_timetable(now, self.switch, timetable, week.begins_at);
        installed.expect("a control's days are matchings of the switch's racks");
    }

    /// Adds the row of the week that ends at `until`.
    fn count(&mut self, switch: &CircuitSwitch, until: Instant) {
        let begins_at = self.ends_at - self.schedule.week;
        let before = std::mem::replace(&mut self.counted, switch.counters());
        let up_ps = |(length, matching): &(Duration, Matching)| {
            u128::from(length.as_ps()) * matching.iter().flatten().count() as u128
        };
        let up_ps: u128 = self.current.days.iter().map(up_ps).sum();
        let could_bytes = up_ps as f64 * self.rate.as_bps() as f64 / 8e12;
        let circuit_bytes = self.counted.circuit_bytes - before.circuit_bytes;
        self.weeks += 1;
        self.days += self.current.days.len() as u64;
        if self.rows.len() >= ROWS_MAX {
            return;
        }
        let is_whole = until == self.ends_at;
        self.rows.push(WeekRow {
            begins_s: begins_at.as_secs_f64(),
            length_s: until.saturating_since(begins_at).as_secs_f64(),
            days: self.current.days.len() as u64,
            demand_bytes: self.current.demand.as_u64(),
            unknown_reports: self.current.unknown_reports,
            circuit_bytes,
            packet_network_bytes: self.counted.packet_bytes - before.packet_bytes,
            circuit_use_share: (is_whole && up_ps > 0).then(|| circuit_bytes as f64 / could_bytes),
        });
    }

    /// Reports flows to the control: their starts, the bytes that the switch has forwarded, and
    /// their ends.
    ///
    /// A flow announces its size when it starts, like a program that writes all data at once. An
    /// endless flow announces the bytes that it writes. A system's flow without a known size
    /// announces nothing.
    fn tell_of_flows(&mut self, traffic: &Traffic, tapped: &mut Vec<TappedPacket<Envelope<Msg>>>) {
        let flows = traffic.flows();
        let rack = |host: u16| self.racks.get(usize::from(host)).copied().flatten();
        for (number, flow) in (0u32..).zip(flows).skip(self.flows) {
            let is_endless = matches!(traffic.jobs()[usize::from(flow.job)], Job::Transfers(_));
            let size = flow.size.or(is_endless.then_some(ByteCount::new(ENDLESS_BYTES)));
            let racks =
                rack(flow.src).zip(rack(flow.dst)).filter(|(source, destination)| source != destination);
            if let (Some((source, destination)), Some(size)) = (racks, size) {
                self.control.handle_announced(number, [source, destination], size);
                self.open.push(number);
            }
        }
        self.flows = flows.len();
        tapped.retain(|packet| {
            let is_of_switch = packet.port == self.switch;
            if let (true, Msg::Segment(segment)) = (is_of_switch, &packet.body.msg)
                && let Some(flow) = flows.get(packet.meta.flow as usize)
                && flow.src == packet.meta.src
            {
                self.control.handle_forwarded(packet.meta.flow, segment.seq, segment.len);
            }
            !is_of_switch
        });
        let control = &mut self.control;
        self.open.retain(|number| {
            let is_over = flows[*number as usize].is_over();
            if is_over {
                control.handle_closed(*number);
            }
            !is_over
        });
    }
}

fn switch<Q: EventQueue>(fabric: &Fabric<Hosts<Traffic>, Q>, at: Target) -> &CircuitSwitch {
    fabric.circuit_switch(at).expect("a plan with weeks has a hybrid switch")
}
