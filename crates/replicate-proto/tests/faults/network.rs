//! Connections between sites, as the daemon's runners make and lose them, over links with delays.
//!
//! A frame that cannot pass is retransmitted, as by TCP. The receiving end sends a heartbeat every
//! [`BEAT`]. The sending end gives up after [`HOP_TIMEOUT`] without a heartbeat, and the receiving
//! end after the same time without an acknowledgement of its heartbeat. Filling flows may starve.

use super::runner::Runner;
use super::world::{ScheduleEvent, World};
use anabranch_endpoint::Bytes;
use anabranch_replicate_proto::control::{FlowSide, Report, Run};
use anabranch_replicate_proto::daemon::CONFIRM_EVERY;
use anabranch_replicate_proto::plan::FlowId;
use anabranch_replicate_proto::site::{Frame, Packet, Site};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId, SiteId};
use std::collections::VecDeque;

const BEAT: Duration = Duration::from_secs(1);
const HOP_TIMEOUT: Duration = Duration::from_secs(8);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(13);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
const FIRM_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a greeting waits for the installation of the attempt, and interval of its checks.
const INSTALL_WAIT: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_ms(100);
const PAUSE_MIN: Duration = Duration::from_ms(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Interval of TCP's retransmissions.
pub const AGAIN: Duration = Duration::from_ms(300);
/// Delay of an acknowledgement.
const ACK: Duration = Duration::from_ms(1);
const HEADER_BYTES: u64 = 60;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The end is still connecting, or is not attached to an attempt.
    Not,
    Open,
    /// The end has read the end of the flow.
    Done,
    Closed,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    Sender,
    Receiver,
}

/// Result of a greeting.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum GreetingResult {
    Welcome,
    NotInstalled,
    Refused,
    Nobody,
}

/// An item in transit on a connection.
enum Wire {
    Frame(Frame<Bytes>),
    /// Padding, by its number of bytes.
    Padding(u32),
}

impl Wire {
    fn bytes(&self) -> u64 {
        match self {
            Self::Frame(Frame::Data(packet)) => packet.symbol.len() as u64,
            Self::Frame(Frame::End { .. }) => 0,
            Self::Padding(length) => (*length).into(),
        }
    }
}

/// A link's queue.
#[derive(Copy, Clone, Debug)]
pub struct Queue {
    pub free_at: Instant,
    pub rate: BitRate,
}

/// One connection of a flow.
pub struct Conn {
    pub run: Run,
    flow: FlowId,
    stripe: u16,
    fills: bool,
    pub from: usize,
    pub to: usize,
    link: LinkId,
    /// Sessions of the processes at the connection's ends.
    sessions: [u64; 2],
    pub sender: End,
    pub receiver: End,
    tries: u32,
    failing_since: Option<Instant>,
    is_unreached: bool,
    pause: Duration,
    /// Frames in transit, and frames in the receive buffer.
    flying: VecDeque<Wire>,
    arrived: VecDeque<Wire>,
    last_arrival: Instant,
    /// Whether the sender writes no more. Frames in transit still arrive.
    is_shut: bool,
    heard_at: Instant,
    acked_at: Instant,
    confirmed: u64,
    /// Confirmations in transit.
    words: VecDeque<u64>,
}

impl Conn {
    fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Sender => &mut self.sender,
            Side::Receiver => &mut self.receiver,
        }
    }
    fn site(&self, side: Side) -> (usize, u64) {
        match side {
            Side::Sender => (self.from, self.sessions[0]),
            Side::Receiver => (self.to, self.sessions[1]),
        }
    }
    /// Whether the sender has data or padding to send and waits for the connection.
    fn is_blocked(&self, window: usize, machine: &Site<Bytes>) -> bool {
        let last = self.flying.back().or(self.arrived.back());
        let has_more = machine.can_produce(self.flow) || matches!(last, Some(Wire::Padding(_)));
        self.flying.len() + self.arrived.len() >= window && has_more
    }
    fn is_over(&self) -> bool {
        let is_over = |end| matches!(end, End::Done | End::Closed);
        is_over(self.sender) && (is_over(self.receiver) || self.receiver == End::Not)
    }
}

impl World {
    /// Begins to connect the flows of an attempt.
    pub fn connect(&mut self, site: usize, run: Run) {
        let session = self.hosts[site].process.as_ref().expect("it has just installed it").session;
        let runner = self.runner(site, run).expect("it has just been installed");
        let out: Vec<_> = runner
            .program
            .outgoing
            .iter()
            .flat_map(|o| {
                (0..o.hop.stripes).map(|stripe| (o.flow, stripe, runner.fills(o.group), o.to, o.link))
            })
            .collect();
        let now = self.schedule.now();
        for (flow, stripe, fills, to, link) in out {
            self.conns_so_far += 1;
            let id = self.conns_so_far;
            let conn = Conn {
                run,
                flow,
                stripe,
                fills,
                from: site,
                to: to.index(),
                link,
                sessions: [session, 0],
                sender: End::Not,
                receiver: End::Not,
                tries: 0,
                failing_since: None,
                is_unreached: false,
                pause: PAUSE_MIN,
                flying: VecDeque::new(),
                arrived: VecDeque::new(),
                last_arrival: now,
                is_shut: false,
                heard_at: now,
                acked_at: now,
                confirmed: 0,
                words: VecDeque::new(),
            };
            self.conns.insert(id, conn);
            self.schedule.after(CONNECT_TIMEOUT, ScheduleEvent::Unconnected(id));
            self.greet(id);
        }
    }

    fn greet(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.tries += 1;
        let try_ = conn.tries;
        let delay = self.delay();
        self.schedule.after(delay, ScheduleEvent::Greet(id, try_, self.schedule.now()));
        self.schedule.after(ANSWER_TIMEOUT, ScheduleEvent::Answerless(id, try_));
    }

    /// Whether the connection is still being made, by try `try_`.
    fn is_trying(&self, id: u64, try_: Option<u32>) -> bool {
        self.conns.get(&id).is_some_and(|conn| {
            conn.sender == End::Not
                && try_.is_none_or(|try_| try_ == conn.tries)
                && self.is_session(conn.from, conn.sessions[0])
        })
    }

    pub fn handle_greet(&mut self, id: u64, try_: u32, since: Instant) {
        if !self.is_trying(id, Some(try_)) {
            return;
        }
        let conn = &self.conns[&id];
        let (from, to, run, flow, stripe) = (conn.from, conn.to, conn.run, conn.flow, conn.stripe);
        if !self.is_reached(from, to) {
            return;
        }
        let now = self.schedule.now();
        let answer = match &mut self.hosts[to].process {
            None => GreetingResult::Nobody,
            Some(process) => match process.runners.get_mut(&run) {
                Some(runner) => {
                    let known = runner.program.incoming.iter().find(|i| i.flow == flow);
                    let is_known = known.is_some_and(|i| i.from == SiteId(from as u16) && stripe < i.stripes);
                    if is_known && runner.attached.insert((flow, stripe)) {
                        let conn = self.conns.get_mut(&id).expect("looked up above");
                        (conn.receiver, conn.sessions[1]) = (End::Open, process.session);
                        (conn.heard_at, conn.acked_at) = (now, now);
                        self.schedule.after(BEAT, ScheduleEvent::Beat(id));
                        if conn.fills {
                            self.schedule.after(CONFIRM_EVERY, ScheduleEvent::Confirm(id));
                        }
                        GreetingResult::Welcome
                    } else {
                        GreetingResult::Refused
                    }
                }
                None if process.daemon.is_superseded(run) || now >= since + INSTALL_WAIT => {
                    GreetingResult::NotInstalled
                }
                None => return self.schedule.after(LOOK_EVERY, ScheduleEvent::Greet(id, try_, since)),
            },
        };
        let delay = self.delay();
        self.schedule.after(delay, ScheduleEvent::Greeted(id, try_, answer));
    }

    pub fn handle_greeted(&mut self, id: u64, try_: u32, answer: GreetingResult) {
        if !self.is_trying(id, Some(try_)) {
            return;
        }
        let now = self.schedule.now();
        let conn = self.conns.get_mut(&id).expect("it is being made");
        if self.cuts.contains(&(conn.from.min(conn.to), conn.from.max(conn.to))) {
            return;
        }
        match answer {
            GreetingResult::Welcome => {
                conn.sender = End::Open;
                conn.heard_at = now;
                let (from, run, fills) = (conn.from, conn.run, conn.fills);
                let process = self.hosts[from].process.as_mut().filter(|_| !fills);
                if let Some(process) = process {
                    let local = process.local(now);
                    process.runners.get_mut(&run).into_iter().for_each(|runner| runner.connected(local));
                }
                return self.stir(from, run);
            }
            GreetingResult::Refused => return self.fail(id, Side::Sender, "refused it"),
            GreetingResult::NotInstalled => (conn.failing_since, conn.is_unreached) = (None, false),
            GreetingResult::Nobody => {
                let since = *conn.failing_since.get_or_insert(now);
                conn.is_unreached = true;
                if now >= since + FIRM_TIMEOUT {
                    return self.fail(id, Side::Sender, "nobody listens there");
                }
            }
        }
        conn.tries += 1;
        let pause = conn.pause;
        conn.pause = (pause + pause).min(PAUSE_MAX);
        self.schedule.after(pause, ScheduleEvent::GreetAgain(id));
    }

    pub fn handle_greet_again(&mut self, id: u64) {
        if self.is_trying(id, None) {
            self.greet(id);
        }
    }

    pub fn handle_answerless(&mut self, id: u64, try_: u32) {
        if self.is_trying(id, Some(try_)) {
            self.conns.get_mut(&id).expect("it is being made").is_unreached = true;
            self.fail(id, Side::Sender, "no answer");
        }
    }

    pub fn handle_unconnected(&mut self, id: u64) {
        if self.is_trying(id, None) {
            self.fail(id, Side::Sender, "it was not set up in time");
        }
    }

    /// Handles a broken connection that one end has detected.
    pub fn fail(&mut self, id: u64, side: Side, reason: &str) {
        let conn = self.conns.get_mut(&id).expect("callers looked it up");
        let was_connecting = side == Side::Sender && conn.sender == End::Not;
        if !was_connecting && *conn.end(side) != End::Open {
            return;
        }
        let (run, flow, fills) = (conn.run, conn.flow, conn.fills);
        let unconnected = was_connecting && conn.is_unreached;
        let peer = SiteId(if side == Side::Sender { conn.to } else { conn.from } as u16);
        let (site, session) = conn.site(side);
        self.close(id, side);
        if fills || !self.is_session(site, session) {
            return;
        }
        let Some(runner) = self.runner(site, run) else { return };
        if !std::mem::replace(&mut runner.is_broken, true) {
            let reason = reason.to_owned();
            runner.reports.push_back(Report::HopFailed { run, flow, peer, unconnected, reason });
            self.pass_on(site, run);
        }
    }

    /// Closes one end. The other end is notified if possible.
    pub fn close(&mut self, id: u64, side: Side) {
        let is_reset = self.random.below(2) == 0;
        let conn = self.conns.get_mut(&id).expect("callers looked it up");
        let end = conn.end(side);
        if matches!(*end, End::Done | End::Closed) {
            return;
        }
        *end = End::Closed;
        if side == Side::Sender && is_reset {
            conn.flying.clear();
            conn.arrived.clear();
        }
        conn.is_shut |= side == Side::Sender;
        let other = if side == Side::Sender { Side::Receiver } else { Side::Sender };
        let delay = self.delay();
        self.schedule.after(delay, ScheduleEvent::Closed(id, other));
        self.drop_if_over(id);
    }

    fn drop_if_over(&mut self, id: u64) {
        if self.conns.get(&id).is_some_and(Conn::is_over) {
            self.conns.remove(&id);
        }
    }

    pub fn handle_closed(&mut self, id: u64, side: Side) {
        let Some(conn) = self.conns.get(&id) else { return };
        if !self.is_reached(conn.from, conn.to) {
            return;
        }
        match side {
            Side::Sender => self.fail(id, side, "closed by the other end"),
            Side::Receiver => {
                let (to, run) = (conn.to, conn.run);
                self.stir(to, run);
                self.end_if_drained(id);
            }
        }
    }

    /// Ends a closed connection at its receiver once the receiver has read all frames.
    fn end_if_drained(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id) else { return };
        if conn.is_shut
            && conn.flying.is_empty()
            && conn.arrived.is_empty()
            && self.is_reached(conn.from, conn.to)
        {
            self.fail(id, Side::Receiver, "closed by the other end");
        }
    }

    /// Closes all ends at a site whose attempt is not installed there.
    pub fn close_others(&mut self, site: usize) {
        let process = self.hosts[site].process.as_ref();
        let is_there = |conn: &Conn, side| {
            let (at, session) = conn.site(side);
            at != site || process.is_some_and(|p| p.session == session && p.runners.contains_key(&conn.run))
        };
        let sides = |(id, conn): (&u64, &Conn)| {
            let of = |side, end| (end != End::Not || side == Side::Sender) && !is_there(conn, side);
            let ends = [(Side::Sender, conn.sender), (Side::Receiver, conn.receiver)];
            ends.map(|(side, end)| of(side, end).then_some((*id, side)))
        };
        let gone: Vec<_> = self.conns.iter().flat_map(sides).flatten().collect();
        for (id, side) in gone {
            if self.conns.contains_key(&id) {
                self.close(id, side);
            }
        }
    }

    /// Handles a frame that arrives at the receiving host.
    pub fn handle_frame(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (from, to) = (conn.from, conn.to);
        if conn.flying.is_empty() {
            return;
        }
        if !self.is_reached(from, to) {
            return self.schedule.after(AGAIN, ScheduleEvent::Frame(id));
        }
        let conn = self.conns.get_mut(&id).expect("looked up above");
        let frame = conn.flying.pop_front().expect("looked at above");
        conn.arrived.push_back(frame);
        let run = conn.run;
        if !self.is_frozen(to) {
            self.stir(to, run);
            self.end_if_drained(id);
        }
    }

    /// Handles the heartbeat that the receiving end sends once per second.
    pub fn handle_beat(&mut self, id: u64) {
        let now = self.schedule.now();
        let Some(conn) = self.conns.get(&id) else { return };
        let (from, to, fills) = (conn.from, conn.to, conn.fills);
        let is_reached = self.is_reached(from, to);
        let lives = |(site, session): (usize, u64)| self.is_session(site, session);
        let (sender_lives, receiver_lives) =
            (lives(conn.site(Side::Sender)), lives(conn.site(Side::Receiver)));
        let (sender_acts, receiver_acts) =
            (sender_lives && !self.is_frozen(from), receiver_lives && !self.is_frozen(to));
        let conn = self.conns.get_mut(&id).expect("looked up above");
        if is_reached {
            conn.acked_at = now;
            if receiver_acts && conn.receiver == End::Open {
                conn.heard_at = now;
            }
        }
        let (is_silent, is_unacked) =
            (now >= conn.heard_at + HOP_TIMEOUT, now >= conn.acked_at + HOP_TIMEOUT);
        let (sender, receiver, is_shut) = (conn.sender, conn.receiver, conn.is_shut);
        if !fills && is_silent && sender_acts && sender == End::Open {
            self.fail(id, Side::Sender, "silent for 8 s");
        }
        if !fills && is_unacked && receiver_acts && receiver == End::Open {
            self.fail(id, Side::Receiver, "not acknowledged for 8 s");
        }
        // A reachable host without this connection resets it.
        if is_reached {
            let is_gone = |end, lives: bool| end == End::Closed || !lives;
            if sender_acts && is_gone(receiver, receiver_lives) && self.conns.contains_key(&id) {
                self.fail(id, Side::Sender, "reset");
            }
            if receiver_acts && self.conns.contains_key(&id) && (is_gone(sender, sender_lives) || is_shut) {
                if !sender_lives {
                    self.conns.get_mut(&id).expect("asked above").is_shut = true;
                }
                self.end_if_drained(id);
            }
        }
        if self.conns.contains_key(&id) {
            let has_ends = sender_lives || receiver_lives;
            if has_ends {
                self.schedule.after(BEAT, ScheduleEvent::Beat(id));
            } else {
                self.conns.remove(&id);
            }
        }
    }

    /// Sends the confirmed count of a filling flow from its receiving end.
    pub fn handle_confirm(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.receiver == End::Open) else { return };
        let (to, run, flow) = (conn.to, conn.run, conn.flow);
        let Some(runner) = self.runner(to, run) else { return };
        let confirmed = runner.machine.confirmed(flow);
        let conn = self.conns.get_mut(&id).expect("looked up above");
        if confirmed > conn.confirmed {
            conn.confirmed = confirmed;
            conn.words.push_back(confirmed);
            let delay = self.delay();
            self.schedule.after(delay, ScheduleEvent::Confirmed(id));
        }
        self.schedule.after(CONFIRM_EVERY, ScheduleEvent::Confirm(id));
    }

    pub fn handle_confirmed(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.sender == End::Open) else { return };
        let (from, to, run, flow) = (conn.from, conn.to, conn.run, conn.flow);
        if !self.is_reached(from, to) {
            return self.schedule.after(AGAIN, ScheduleEvent::Confirmed(id));
        }
        let word = self.conns.get_mut(&id).expect("looked up above").words.pop_front();
        let Some((runner, packets)) = self.runner(from, run).zip(word) else { return };
        runner.machine.confirm(flow, packets).expect("machines keep their protocol");
        self.stir(from, run);
    }

    /// Notifies the sending end that the receiving end has read data.
    pub fn handle_acked(&mut self, id: u64) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.sender == End::Open) else { return };
        let (from, to, run) = (conn.from, conn.to, conn.run);
        if self.is_reached(from, to) {
            self.stir(from, run);
        } else {
            self.schedule.after(AGAIN, ScheduleEvent::Acked(id));
        }
    }

    /// Notifies the sending end that the receiving end has read all data.
    pub fn handle_taken(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.sender == End::Open) else { return };
        let (from, to) = (conn.from, conn.to);
        if !self.is_reached(from, to) {
            return self.schedule.after(AGAIN, ScheduleEvent::Taken(id));
        }
        self.conns.get_mut(&id).expect("looked up above").sender = End::Done;
        self.drop_if_over(id);
    }

    /// Passes arrived frames to an attempt while it has room. Returns whether any frame was passed.
    pub fn take_in(&mut self, site: usize, runner: &mut Runner, local: Instant) -> bool {
        let of_run = |(_, conn): &(&u64, &Conn)| {
            conn.to == site
                && conn.run == runner.run()
                && conn.receiver == End::Open
                && !conn.arrived.is_empty()
        };
        let ids: Vec<u64> = self.conns.iter().filter(of_run).map(|(id, _)| *id).collect();
        let mut moved = false;
        for id in ids {
            let conn = self.conns.get_mut(&id).expect("listed above");
            let waited = conn.arrived.len();
            let mut has_room = true;
            while let Some(wire) = conn.arrived.front() {
                if let Wire::Frame(Frame::Data(packet)) = wire
                    && !runner.machine.has_room(conn.flow, packet.generation)
                {
                    has_room = false;
                    break;
                }
                runner.received(conn.flow, wire.bytes());
                let protocol = "machines keep their protocol, and TCP its bytes";
                match conn.arrived.pop_front().expect("looked at above") {
                    Wire::Padding(_) => {}
                    Wire::Frame(Frame::Data(packet)) => {
                        runner.note(conn.flow, FlowSide::Received, &packet);
                        runner.machine.accept(conn.flow, packet).expect(protocol);
                    }
                    Wire::Frame(Frame::End { packets }) => {
                        runner.machine.accept_end(conn.flow, packets).expect(protocol);
                        conn.receiver = End::Done;
                        let delay = Duration::from_ms(self.random.below(20));
                        self.schedule.after(delay, ScheduleEvent::Taken(id));
                        break;
                    }
                }
            }
            runner.note_room(conn.flow, local, has_room);
            if conn.arrived.len() < waited {
                moved = true;
                self.schedule.after(ACK, ScheduleEvent::Acked(id));
            }
            self.drop_if_over(id);
        }
        moved
    }

    /// Sends an attempt's frames over its connections while they accept frames. Returns whether any
    /// frame was sent.
    pub fn send_on(&mut self, site: usize, runner: &mut Runner, local: Instant) -> bool {
        let of_run = |(_, conn): &(&u64, &Conn)| {
            conn.from == site && conn.run == runner.run() && conn.sender == End::Open && !conn.is_shut
        };
        let ids: Vec<u64> = self.conns.iter().filter(of_run).map(|(id, _)| *id).collect();
        let mut moved = false;
        for id in ids {
            let conn = self.conns.get_mut(&id).expect("listed above");
            let flow = conn.flow;
            while conn.flying.len() + conn.arrived.len() < self.window && !conn.is_shut {
                let frame = match runner.ends.get(&flow) {
                    Some(packets) => Some(Frame::End { packets: *packets }),
                    None => runner.machine.produce(flow),
                };
                let mut wire = match frame {
                    Some(frame) => Wire::Frame(frame),
                    None => match runner.machine.poll_padding(runner.since(local), flow) {
                        Some(length) => Wire::Padding(length),
                        None => break,
                    },
                };
                moved = true;
                match &mut wire {
                    Wire::Frame(Frame::Data(packet)) => {
                        if self.random.chance_ppm(self.hosts[site].spoils_ppm)
                            && spoil(packet, &mut self.random)
                        {
                            self.spoilers.insert(site);
                            self.spoiled.insert(runner.run().transfer);
                        }
                        runner.note(flow, FlowSide::Sent, packet);
                    }
                    Wire::Frame(Frame::End { packets }) => {
                        runner.ends.insert(flow, *packets);
                        conn.is_shut = true;
                    }
                    Wire::Padding(_) => {}
                }
                let now = self.schedule.now();
                let queue = self.links.entry(conn.link).or_insert(Queue { free_at: now, rate: self.rate });
                let bytes = ByteCount::new(HEADER_BYTES + wire.bytes());
                queue.free_at = now.max(queue.free_at) + queue.rate.transmit_time(bytes);
                conn.last_arrival =
                    conn.last_arrival.max(queue.free_at + Duration::from_ms(1 + self.random.below(10)));
                conn.flying.push_back(wire);
                self.schedule.at(conn.last_arrival, ScheduleEvent::Frame(id));
            }
            runner.note_blocked(flow, local, conn.is_blocked(self.window, &runner.machine));
        }
        moved
    }

    /// Loses one of the open connections.
    pub fn lose_connection(&mut self) {
        let stand: Vec<u64> =
            self.conns.iter().filter(|(_, c)| c.sender == End::Open).map(|(id, _)| *id).collect();
        if stand.is_empty() {
            return;
        }
        let id = stand[self.random.below(stand.len() as u64) as usize];
        let conn = self.conns.get_mut(&id).expect("listed above");
        conn.flying.clear();
        self.schedule.say(format!("connection {id} of {:?} is lost", conn.run));
        self.fail(id, Side::Sender, "reset");
        if self.conns.contains_key(&id) {
            self.fail(id, Side::Receiver, "reset");
        }
    }
}

/// Flips a bit of a packet. Returns false if the packet is empty.
pub fn spoil(packet: &mut Packet<Bytes>, random: &mut anabranch_units::RandomStream) -> bool {
    if packet.symbol.is_empty() {
        return false;
    }
    let mut bytes = packet.symbol.to_vec();
    let at = random.below(bytes.len() as u64) as usize;
    bytes[at] ^= 1 << random.below(8);
    packet.symbol = bytes.into();
    true
}

/// Rate of the links in a schedule.
pub fn draw_rate(random: &mut anabranch_units::RandomStream) -> BitRate {
    BitRate::bps([200_000, 500_000, 1_000_000, 5_000_000][random.below(4) as usize])
}
