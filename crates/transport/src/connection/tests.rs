//! Two ends of a connection with a link between them that delays, loses, duplicates and reorders
//! segments as each test defines.

use super::*;
use crate::congestion::RequiredSetting;
use crate::controls::Control;
use anabranch_units::{BitRate, ByteCount, RandomStream, Seed};
use proptest::prelude::*;

mod bbr;

const A: PeerId = PeerId(0);
const B: PeerId = PeerId(1);
const DELAY: Duration = Duration::from_ms(10);

/// Fate of a segment: the delay of each copy that arrives; empty for a lost segment.
type SegmentFate = Vec<Duration>;

struct Net<F> {
    now: Instant,
    ends: [Connection; 2],
    /// Segments in flight: arrival time, receiver, a number that orders simultaneous arrivals, and
    /// the segment.
    wire: Vec<(Instant, usize, u64, Segment)>,
    fate: F,
    /// All segments sent: time, sender, and segment.
    log: Vec<(Instant, usize, Segment)>,
    events: [Vec<Event>; 2],
    /// Length of alternating periods in which segments arrive with and without the circuit's mark;
    /// `None` for no marks.
    marks_every: Option<Duration>,
}

fn reliable(_: usize, _: &Segment) -> SegmentFate {
    vec![DELAY]
}

impl<F: FnMut(usize, &Segment) -> SegmentFate> Net<F> {
    fn new(config: &Config, fate: F) -> Self {
        let a = Connection::connect(config, B).expect("good settings");
        let b = Connection::listen(config, A).expect("good settings");
        let events = [vec![], vec![]];
        Self { now: Instant::ZERO, ends: [a, b], wire: vec![], fate, log: vec![], events, marks_every: None }
    }

    fn drain(&mut self) {
        for from in 0..2 {
            while let Some(transmit) = self.ends[from].poll_transmit(self.now) {
                let number = self.log.len() as u64;
                self.log.push((self.now, from, transmit.msg));
                for delay in (self.fate)(from, &transmit.msg) {
                    self.wire.push((self.now + delay, 1 - from, number, transmit.msg));
                }
            }
            while let Some(event) = self.ends[from].poll_event() {
                self.events[from].push(event);
            }
        }
    }

    /// Runs until `until`, or until no event is left. Returns false if time ran out.
    fn run(&mut self, until: Duration) -> bool {
        let until = Instant::ZERO + until;
        loop {
            self.drain();
            let first = self.wire.iter().enumerate().min_by_key(|(_, (at, _, number, _))| (*at, *number));
            let arrival = first.map(|(index, (at, ..))| (*at, index));
            let timeout = self.ends.iter().filter_map(Endpoint::poll_timeout).min();
            let next = [arrival.map(|(at, _)| at), timeout].into_iter().flatten().min();
            let Some(next) = next else {
                self.now = until;
                return true;
            };
            if next > until {
                self.now = until;
                return false;
            }
            assert!(next >= self.now, "time never goes back");
            self.now = next;
            match arrival.filter(|(at, _)| *at <= next) {
                Some((_, index)) => {
                    let (_, to, _, mut segment) = self.wire.swap_remove(index);
                    let since = self.now.saturating_since(Instant::ZERO);
                    segment.circuit =
                        self.marks_every.is_some_and(|every| since.as_ps() / every.as_ps() % 2 == 1);
                    self.ends[to].handle_message(self.now, PeerId(1 - to as u32), segment);
                }
                None => self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now)),
            }
        }
    }

    fn received(&self, at: usize) -> u64 {
        let bytes = self.events[at].iter().map(|e| match e {
            Event::Received { bytes } => *bytes,
            _ => 0,
        });
        bytes.sum()
    }
    /// Data segments sent by A: time and sequence number.
    fn data(&self) -> Vec<(Instant, u64)> {
        self.log
            .iter()
            .filter(|(_, from, s)| *from == 0 && s.len > 0)
            .map(|(at, _, s)| (*at, s.seq))
            .collect()
    }
    fn ms(&self, at: Instant) -> u64 {
        at.saturating_since(Instant::ZERO).as_us() / 1_000
    }
}

fn config() -> Config {
    Config { mss: 1_000, header_bytes: 40, delayed_ack: None, ..Config::default() }
}

/// Loses the data segments of A with these numbers, counted in order of sending.
fn losing(lost: &'static [usize]) -> impl FnMut(usize, &Segment) -> SegmentFate {
    let mut number = 0;
    move |from, segment| {
        if from == 0 && segment.len > 0 {
            number += 1;
            if lost.contains(&(number - 1)) {
                return vec![];
            }
        }
        vec![DELAY]
    }
}

#[test]
fn stream_arrives_and_both_ends_close() {
    let mut net = Net::new(&config(), reliable);
    net.ends[0].write(100_000);
    net.ends[0].close();
    net.ends[1].close();
    assert!(net.run(Duration::from_secs(10)));
    assert_eq!(net.received(1), 100_000);
    for end in 0..2 {
        assert_eq!(net.ends[end].state(), State::Over);
        assert_eq!(net.events[end].first(), Some(&Event::Connected));
        assert!(net.events[end].contains(&Event::PeerClosed) && net.events[end].contains(&Event::Finished));
    }
    assert_eq!(net.data().len(), 100, "nothing was sent twice");
}

#[test]
fn data_waits_for_the_handshake_and_slow_start_doubles() {
    let mut net = Net::new(&config(), reliable);
    net.ends[0].write(150_000);
    net.run(Duration::from_secs(10));
    // The SYN and its answer take 20 ms. Then 10, 20, 40 and 80 segments leave, 20 ms apart.
    let rounds = [20, 40, 60, 80].map(|ms| net.data().iter().filter(|(at, _)| net.ms(*at) == ms).count());
    assert_eq!(rounds, [10, 20, 40, 80]);
}

#[test]
fn sender_respects_the_receive_window() {
    let small = Config { receive_buffer: ByteCount::new(5_500), ..config() };
    let mut net = Net::new(&small, reliable);
    net.ends[0].write(50_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 50_000);
    let first = net.data().iter().filter(|(at, _)| net.ms(*at) == 20).count();
    assert_eq!(first, 5, "five whole segments; a part of one waits");
}

#[test]
fn loss_is_repaired_after_three_duplicates_without_timeout() {
    for sack in [false, true] {
        let mut net = Net::new(&Config { sack, ..config() }, losing(&[3]));
        // There is always new data to send; otherwise RFC 6675 sends the last segment once more.
        net.ends[0].write(60_000);
        net.run(Duration::from_secs(10));
        assert_eq!(net.received(1), 60_000);
        let again: Vec<_> = net.data().into_iter().filter(|(_, seq)| *seq == 3_000).collect();
        assert_eq!(again.len(), 2, "sack {sack}");
        // The segment leaves at 20 ms, and its loss is detected at 40 ms.
        assert_eq!(net.ms(again[1].0), 40, "sack {sack}");
        assert_eq!(net.data().len(), 61, "nothing else was sent twice (sack {sack})");
    }
}

/// A full queue often drops the first retransmission, too, because competing flows have not slowed
/// down yet.
#[test]
fn sack_repairs_a_lost_retransmission_without_timeout() {
    let timeouts_and_end = |sack: bool| {
        let mut copies = 0;
        let fate = move |from: usize, segment: &Segment| {
            let is_it = from == 0 && segment.len > 0 && segment.seq == 3_000;
            copies += u64::from(is_it);
            if is_it && copies <= 3 { vec![] } else { vec![DELAY] }
        };
        let mut net = Net::new(&Config { sack, ..config() }, fate);
        net.ends[0].write(200_000);
        net.run(Duration::from_secs(10));
        assert_eq!(net.received(1), 200_000);
        (net.ends[0].counters().timeouts, net.ms(net.data().last().expect("data was sent").0))
    };
    let (timeouts, end_ms) = timeouts_and_end(true);
    assert_eq!(timeouts, 0);
    // Without a loss the stream ends in the round trip at 100 ms. Each of the three losses costs a
    // round trip, and slow start ends earlier.
    assert!(end_ms < 400, "{end_ms}");
    assert!(timeouts_and_end(false).0 >= 1, "RFC 6582 waits for the timer");
}

#[test]
fn sack_repairs_several_losses_in_one_round_trip() {
    let when = |sack| {
        let mut net = Net::new(&Config { sack, initial_window_segments: 20, ..config() }, losing(&[2, 4, 6]));
        net.ends[0].write(20_000);
        net.run(Duration::from_secs(10));
        assert_eq!(net.received(1), 20_000);
        let of = |seq| net.data().iter().filter(|(_, s)| *s == seq).map(|(at, _)| net.ms(*at)).max();
        [2_000, 4_000, 6_000].map(|seq| of(seq).expect("sent"))
    };
    assert_eq!(when(false), [40, 60, 80]);
    assert_eq!(when(true), [40, 40, 40]);
}

#[test]
fn loss_of_the_last_segment_takes_a_timeout() {
    let mut net = Net::new(&config(), losing(&[4]));
    net.ends[0].write(5_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 5_000);
    let again = net.data().iter().filter(|(_, seq)| *seq == 4_000).map(|(at, _)| net.ms(*at)).max();
    // An acknowledgement at 40 ms restarted the timer, with the minimum timeout of 200 ms.
    assert_eq!(again, Some(240));
}

#[test]
fn timeouts_double_until_the_connection_is_given_up() {
    let deaf = |from: usize, s: &Segment| if from == 0 && s.len > 0 { vec![] } else { vec![DELAY] };
    let mut net = Net::new(&Config { timeouts_max: 3, ..config() }, deaf);
    net.ends[0].write(1_000);
    net.run(Duration::from_secs(100));
    let times: Vec<_> = net.data().iter().map(|(at, _)| net.ms(*at)).collect();
    assert_eq!(times, [20, 220, 620, 1_420]);
    assert_eq!(net.ends[0].state(), State::GivenUp);
    assert_eq!(net.events[0].last(), Some(&Event::GivenUp));
}

#[test]
fn lost_syn_is_sent_again_after_a_second() {
    let mut first = true;
    let mut net =
        Net::new(&config(), move |_, _| if std::mem::take(&mut first) { vec![] } else { vec![DELAY] });
    net.ends[0].write(1_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 1_000);
    assert_eq!(net.data().iter().map(|(at, _)| net.ms(*at)).collect::<Vec<_>>(), [1_020]);
}

#[test]
fn closed_window_is_probed_until_it_opens() {
    let slow = Config { receive_buffer: ByteCount::new(4_000), reads_at_once: false, ..config() };
    // The segment that announces the open window is lost.
    let mut opened = false;
    let mut net = Net::new(&slow, move |from, s: &Segment| {
        if from == 1 && s.window > 0 && s.ack == Some(4_000) && !std::mem::replace(&mut opened, true) {
            vec![]
        } else {
            vec![DELAY]
        }
    });
    net.ends[0].write(8_000);
    net.run(Duration::from_ms(100));
    assert_eq!((net.received(1), net.ends[1].unread_bytes()), (4_000, 4_000));
    net.ends[1].read(4_000);
    net.run(Duration::from_secs(5));
    assert_eq!(net.received(1), 8_000);
}

#[test]
fn acknowledgement_waits_for_a_second_segment_or_timer() {
    let mut net = Net::new(&Config { delayed_ack: Some(Duration::from_ms(40)), ..config() }, reliable);
    net.ends[0].write(3_000);
    net.run(Duration::from_secs(10));
    let acks: Vec<_> = net
        .log
        .iter()
        .filter(|(_, from, s)| *from == 1 && !s.syn)
        .map(|(at, _, s)| (net.ms(*at), s.ack))
        .collect();
    assert_eq!(acks, [(30, Some(2_000)), (70, Some(3_000))]);
}

#[test]
fn window_restarts_after_a_pause() {
    let mut net = Net::new(&config(), reliable);
    net.ends[0].write(100_000);
    net.run(Duration::from_secs(2));
    assert!(net.ends[0].window().cwnd > 40_000);
    net.ends[0].write(100_000);
    net.run(Duration::from_ms(2_001));
    let burst = net.data().iter().filter(|(at, _)| net.ms(*at) == 2_000).count();
    assert_eq!(burst, 10);
}

#[test]
fn marks_halve_the_window_once_per_window() {
    let ecn = Config { ecn: true, sack: false, ..config() };
    let mut net = Net::new(&ecn, reliable);
    net.ends[0].write(1_000_000);
    net.run(Duration::from_ms(65));
    let before = net.ends[0].window().cwnd;
    // Every segment in flight is marked.
    net.wire.iter_mut().filter(|(_, to, ..)| *to == 1).for_each(|(.., s)| s.ce = true);
    net.run(Duration::from_ms(85));
    let after = net.ends[0].window().cwnd;
    assert!(after <= before && after >= before / 4, "{before} {after}");
    assert!(net.log.iter().any(|(_, from, s)| *from == 0 && s.cwr));
    net.run(Duration::from_secs(20));
    assert_eq!(net.received(1), 1_000_000);
    let last = net.log.iter().rfind(|(_, from, _)| *from == 1).expect("it answered");
    assert!(!last.2.ece, "no echo after the sender has said that it slowed down");
}

fn by_time() -> Config {
    Config { rack: true, ..config() }
}

/// Delivers A's data segments as `fate` says for a sequence number and the number of the copy. All
/// other segments arrive after [`DELAY`].
fn by_copy(mut fate: impl FnMut(u64, usize) -> SegmentFate) -> impl FnMut(usize, &Segment) -> SegmentFate {
    let mut copies = std::collections::BTreeMap::new();
    move |from, segment| {
        if from != 0 || segment.len == 0 {
            return vec![DELAY];
        }
        let copy = copies.entry(segment.seq).or_insert(0);
        *copy += 1;
        fate(segment.seq, *copy - 1)
    }
}

/// Times in milliseconds at which the segment with this sequence number left, retransmissions
/// included.
fn times<F: FnMut(usize, &Segment) -> SegmentFate>(net: &Net<F>, position: u64) -> Vec<u64> {
    net.data().into_iter().filter(|(_, seq)| *seq == position).map(|(at, _)| net.ms(at)).collect()
}

#[test]
fn tail_loss_is_repaired_after_two_round_trips() {
    let mut net = Net::new(&by_time(), losing(&[4]));
    net.ends[0].write(5_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 5_000);
    // The last acknowledgement arrived at 40 ms. Without RACK the repair leaves only at 240 ms.
    assert_eq!(times(&net, 4_000), [20, 80]);
    let counters = net.ends[0].counters();
    assert_eq!((counters.timeouts, counters.fast_recoveries, counters.retransmitted_segments), (0, 0, 1));
}

#[test]
fn probe_repairs_the_last_tail_loss_and_reveals_others() {
    let mut net = Net::new(&by_time(), losing(&[2, 3, 4]));
    net.ends[0].write(5_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 5_000);
    // At 100 ms the probe's acknowledgement reveals a gap, and every earlier segment is overdue.
    assert_eq!([2_000, 3_000, 4_000].map(|seq| times(&net, seq)[1]), [100, 100, 80]);
    let counters = net.ends[0].counters();
    assert_eq!((counters.timeouts, counters.fast_recoveries), (0, 1));
}

#[test]
fn probe_sends_new_data_if_the_peer_accepts_it() {
    // All segments of the first window are lost.
    let fate = by_copy(|seq, copy| if seq < 10_000 && copy == 0 { vec![] } else { vec![DELAY] });
    let mut net = Net::new(&by_time(), fate);
    net.ends[0].write(12_000);
    net.run(Duration::from_ms(79));
    assert_eq!(net.data().len(), 11);
    assert_eq!(times(&net, 10_000), [60]);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 12_000);
    assert_eq!(net.ends[0].counters().timeouts, 0);
}

#[test]
fn probe_of_one_segment_allows_for_delayed_acknowledgement() {
    let lose = |seq, copy| if seq == 0 && copy == 0 { vec![] } else { vec![DELAY] };
    let when = |delayed_ack, segments: u64| {
        let mut net = Net::new(&Config { delayed_ack, ..by_time() }, by_copy(lose));
        net.ends[0].write(segments * 1_000);
        net.run(Duration::from_secs(10));
        net.data().get(segments as usize).map(|(at, _)| net.ms(*at))
    };
    assert_eq!(when(None, 1), Some(60));
    assert_eq!(when(Some(Duration::from_ms(40)), 1), Some(100));
    // The timeout is 200 ms, so no probe is sent after it.
    assert_eq!(when(Some(Duration::from_ms(500)), 1), Some(220));
}

#[test]
fn one_probe_precedes_the_retransmission_timer() {
    let mut net = Net::new(&by_time(), by_copy(|_, copy| if copy < 2 { vec![] } else { vec![DELAY] }));
    net.ends[0].write(2_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 2_000);
    // The probe leaves two round trips after the data. The first segment leaves a timeout after the
    // probe, and its acknowledgement triggers the second.
    assert_eq!(
        (times(&net, 1_000)[..2].to_vec(), times(&net, 0)[..2].to_vec()),
        (vec![20, 60], vec![20, 260])
    );
    assert_eq!(net.data().iter().filter(|(at, _)| net.ms(*at) < 260).count(), 3);
}

#[test]
fn probe_reduces_the_window_only_after_a_repair() {
    let window = |is_lost: bool| {
        let late = Duration::from_ms(70);
        let fate = by_copy(move |seq, copy| match (seq, copy) {
            (4_000, 0) if is_lost => vec![],
            (4_000, 0) => vec![late],
            _ => vec![DELAY],
        });
        let mut net = Net::new(&by_time(), fate);
        net.ends[0].write(5_000);
        net.run(Duration::from_ms(150));
        assert_eq!(times(&net, 4_000), [20, 80]);
        net.ends[0].write(1_000);
        net.run(Duration::from_secs(1));
        assert_eq!(net.received(1), 6_000);
        net.ends[0].window().cwnd
    };
    // The window is still ten segments: slow start does not grow it while less than half of it is
    // in use.
    assert!(window(false) >= 10_000);
    assert_eq!(window(true), 2_000);
}

#[test]
fn lost_retransmission_is_detected_by_time() {
    let lose = |seq, copy| if seq == 3_000 && copy < 3 { vec![] } else { vec![DELAY] };
    let mut net = Net::new(&by_time(), by_copy(lose));
    net.ends[0].write(200_000);
    net.run(Duration::from_secs(10));
    assert_eq!(net.received(1), 200_000);
    // Each loss is detected one round trip later, when a later segment is acknowledged.
    assert_eq!(times(&net, 3_000), [20, 40, 60, 80]);
    let counters = net.ends[0].counters();
    assert_eq!((counters.timeouts, counters.fast_recoveries, counters.retransmitted_segments), (0, 1, 3));
}

#[test]
fn only_reordering_beyond_the_window_causes_retransmission() {
    let again = |late_ms: u64, segments: u64| {
        let fate = by_copy(move |seq, copy| {
            vec![if seq == 1_000 && copy == 0 { Duration::from_ms(10 + late_ms) } else { DELAY }]
        });
        let mut net = Net::new(&by_time(), fate);
        net.ends[0].write(segments * 1_000);
        net.run(Duration::from_secs(10));
        assert_eq!(net.received(1), segments * 1_000);
        net.ends[0].counters().retransmitted_segments
    };
    // The reordering window is a quarter of 20 ms while fewer than three segments overtake.
    assert_eq!((again(4, 3), again(6, 3)), (0, 1));
    assert_eq!(again(4, 6), 1, "three that overtake are a loss, as long as no reordering was seen");
    // Once reordering was seen, any number of segments may overtake.
    let fate =
        by_copy(|seq, copy| vec![Duration::from_ms(if seq % 3_000 == 1_000 && copy == 0 { 14 } else { 10 })]);
    let mut net = Net::new(&Config { initial_window_segments: 3, ..by_time() }, fate);
    net.ends[0].write(60_000);
    net.run(Duration::from_secs(10));
    assert_eq!((net.received(1), net.ends[0].counters().retransmitted_segments), (60_000, 0));
}

#[test]
fn loss_near_the_end_needs_no_three_duplicates() {
    // Only one segment follows the lost one, so there is no third duplicate.
    let mut net = Net::new(&by_time(), losing(&[3]));
    net.ends[0].write(5_000);
    net.run(Duration::from_secs(10));
    assert_eq!(times(&net, 3_000), [20, 45]);
    assert_eq!(net.ends[0].counters().fast_recoveries, 1);
}

#[test]
fn timer_repairs_the_loss_of_all_segments() {
    let mut net = Net::new(&by_time(), by_copy(|_, copy| if copy < 2 { vec![] } else { vec![DELAY] }));
    net.ends[0].write(30_000);
    net.run(Duration::from_secs(60));
    assert_eq!(net.received(1), 30_000);
    let counters = net.ends[0].counters();
    assert!(counters.timeouts >= 1);
    let mut deaf =
        Net::new(&Config { timeouts_max: 3, ..by_time() }, |from, s: &Segment| match (from, s.len) {
            (0, 1..) => vec![],
            _ => vec![DELAY],
        });
    deaf.ends[0].write(1_000);
    deaf.run(Duration::from_secs(100));
    // The probe leaves at 60 ms; after it the timer doubles.
    assert_eq!(times(&deaf, 0), [20, 60, 260, 660, 1_460]);
    assert_eq!(deaf.ends[0].state(), State::GivenUp);
}

#[test]
fn no_segment_is_sent_twice_without_loss() {
    let run = |config: &Config| {
        let mut net = Net::new(config, reliable);
        net.ends[0].write(300_000);
        net.ends[0].close();
        net.ends[1].close();
        assert!(net.run(Duration::from_secs(10)));
        (net.data(), net.ends[0].window().cwnd)
    };
    assert_eq!(run(&by_time()), run(&config()));
}

#[test]
fn loss_detection_by_time_needs_selective_acknowledgements() {
    let refused = Config { sack: false, ..by_time() }.check().expect_err("it goes by them");
    assert_eq!(refused.to_string(), "rack true: goes by selective acknowledgements, so set sack = true");
}

#[test]
fn error_lists_all_settings_that_a_control_lacks() {
    let refused = Config { control: Control::Nscc, ..Config::default() }.check().expect_err("it needs three");
    assert_eq!(
        refused.to_string(),
        "control nscc: goes by marks, by when segments left and by the path's product, so set ecn = true and \
         rack = true and cwnd_max to one and a half times the path's product"
    );
}

#[test]
fn new_connection_uses_quick_acknowledgements_if_set() {
    let delayed_ack = Some(Duration::from_ms(40));
    let mut net = Net::new(&Config { delayed_ack, quick_ack: 3, ..config() }, reliable);
    net.ends[0].write(7_000);
    net.run(Duration::from_secs(1));
    let acks = |net: &Net<_>| -> Vec<_> {
        let of_b = net.log.iter().filter(|(_, from, s)| *from == 1 && !s.syn && s.len == 0);
        of_b.map(|(at, _, s)| (net.ms(*at), s.ack.unwrap_or(0) / 1_000)).collect()
    };
    // The first three segments are acknowledged at once, then every second segment.
    assert_eq!(acks(&net), [(30, 1), (30, 2), (30, 3), (30, 5), (30, 7)]);
    // Acknowledgements are immediate again after a pause, but not in conversation.
    net.ends[0].write(1_000);
    net.run(Duration::from_ms(1_020));
    assert_eq!(acks(&net).last(), Some(&(1_010, 8)));
    net.ends[1].write(100);
    net.run(Duration::from_ms(1_040));
    net.ends[0].write(1_000);
    net.run(Duration::from_secs(2));
    assert_eq!(acks(&net).last(), Some(&(1_090, 9)));
}

/// Random loss, duplication and reordering of segments.
fn rough(mut random: RandomStream, loss_ppm: u32) -> impl FnMut(usize, &Segment) -> SegmentFate {
    move |_, _| {
        let mut copies = Vec::new();
        for _ in 0..1 + u32::from(random.chance_ppm(20_000)) {
            if !random.chance_ppm(loss_ppm) {
                copies.push(DELAY + Duration::from_us(random.below(4_000)));
            }
        }
        copies
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn stream_arrives_once_and_in_order_over_any_wire(
        seed: u64, loss_ppm in 0u32..250_000, bytes in 0u64..200_000, sack: bool, delayed: bool,
        rack: bool, quick_ack in 0u32..20, which in 0..Control::ALL.len(), mult in 1u32..20, ack_every in 2u32..10, buffer in 2_000u64..100_000,
    ) {
        let control = Control::ALL[which];
        let needs_rack = control.needs(RequiredSetting::Rack);
        let config = Config {
            sack: sack || needs_rack,
            rack: rack && sack || needs_rack,
            rack_reo_wnd_mult: mult,
            ack_every,
            quick_ack,
            control,
            cwnd_max: control.needs(RequiredSetting::CwndMax).then_some(ByteCount::new(30_000)),
            ecn: control.needs(RequiredSetting::Ecn(true)),
            delayed_ack: delayed.then_some(Duration::from_ms(40)),
            receive_buffer: ByteCount::new(buffer),
            timeouts_max: 1_000,
            ..config()
        };
        let mut net = Net::new(&config, rough(Seed::new(seed).stream("wire", 0), loss_ppm));
        net.marks_every = control.needs_circuit_marks().then_some(Duration::from_ms(60));
        net.ends[0].write(bytes);
        net.ends[0].close();
        net.ends[1].close();
        prop_assert!(net.run(Duration::from_secs(36_000)), "it ends: {:?}", net.ends);
        prop_assert_eq!(net.received(1), bytes);
        prop_assert_eq!(net.ends[0].state(), State::Over);
        prop_assert_eq!(net.ends[1].state(), State::Over);
        // No segment exceeds the receive window, except for a probe's single byte.
        let mut edge = buffer;
        for (_, from, segment) in &net.log {
            if *from == 1 {
                edge = edge.max(segment.ack.unwrap_or(0) + segment.window);
            } else if segment.len > 1 {
                prop_assert!(segment.seq + u64::from(segment.len) <= edge);
            }
        }
    }
}

#[test]
fn window_follows_marks_of_acknowledgements() {
    let mut config = Config { control: Control::ReTcp, initial_window_segments: 2, ..config() };
    config.initial_ssthresh = Some(ByteCount::new(4_000));
    let mut net = Net::new(&config, reliable);
    net.marks_every = Some(Duration::from_ms(200));
    net.ends[0].write(1 << 30);
    net.run(Duration::from_ms(195));
    let before = net.ends[0].window().cwnd;
    net.run(Duration::from_ms(205));
    let raised = net.ends[0].window().cwnd;
    assert!((2 * before..=2 * before + 2_000).contains(&raised), "{before} {raised}");
    net.run(Duration::from_ms(395));
    let raised = net.ends[0].window().cwnd;
    net.run(Duration::from_ms(405));
    let lowered = net.ends[0].window().cwnd;
    assert!((raised / 2..=raised / 2 + 2_000).contains(&lowered), "{raised} {lowered}");
}

/// A flow with little to send loses no packets, and keeps its window.
#[test]
fn nscc_does_not_take_idle_capacity_for_loss() {
    let config = Config {
        control: Control::Nscc,
        initial_window_segments: 20,
        cwnd_max: Some(ByteCount::new(100_000)),
        ecn: true,
        rack: true,
        ..config()
    };
    let mut net = Net::new(&config, reliable);
    for ms in 1..200 {
        net.ends[0].write(1_000);
        net.drain();
        net.run(Duration::from_ms(ms * 50));
    }
    assert_eq!(net.received(1), 199_000);
    assert!(net.ends[0].window().cwnd >= 20_000, "{:?}", net.ends[0].window());
}

/// Data sent by A: time and length in bytes.
fn sent<F>(net: &Net<F>) -> Vec<(Instant, u64)> {
    let data = net.log.iter().filter(|(_, from, s)| *from == 0 && s.len > 0);
    data.map(|(at, _, s)| (*at, s.len.into())).collect()
}

/// Whether at most `limit` was sent in each interval between two segments, the last segment
/// excluded.
fn keeps(limit: BitRate, sent: &[(Instant, u64)]) -> bool {
    sent.iter().enumerate().all(|(first, (from, _))| {
        let mut bytes = 0;
        sent[first..].windows(2).all(|pair| {
            bytes += pair[0].1;
            limit.transmit_time(ByteCount::new(bytes)) <= pair[1].0 - *from
        })
    })
}

#[test]
fn limited_sender_sends_at_its_limit() {
    let mut net = Net::new(&config(), reliable);
    net.ends[0].set_pacing_limit(Some(BitRate::mbps(1)));
    net.ends[0].write(100_000);
    assert!(net.run(Duration::from_secs(10)));
    assert_eq!(net.received(1), 100_000);
    let sent = sent(&net);
    assert!(keeps(BitRate::mbps(1), &sent) && !keeps(BitRate::bps(999_000), &sent));
    // There are 99 intervals of 8 ms between the first and the last segment.
    assert_eq!(net.ms(sent[99].0) - net.ms(sent[0].0), 792);
}

#[test]
fn lifted_or_raised_limit_takes_effect_immediately() {
    for (new, then) in [(None, 0), (Some(BitRate::mbps(8)), 1)] {
        let mut net = Net::new(&config(), reliable);
        net.ends[0].set_pacing_limit(Some(BitRate::bps(8_000)));
        net.ends[0].write(100_000);
        // One segment leaves per second: three so far, and the next one half a second later.
        assert!(!net.run(Duration::from_ms(2_520)));
        assert_eq!(sent(&net).len(), 3);
        net.ends[0].set_pacing_limit(new);
        net.drain();
        let (at, _) = *sent(&net).last().expect("it goes on");
        assert_eq!((at, sent(&net).len() > 4), (net.now, new.is_none()), "the window, or one segment");
        assert!(net.run(Duration::from_ms(5_000)));
        let sent = sent(&net);
        assert_eq!(net.ms(sent[4].0) - net.ms(sent[3].0), then);
        assert_eq!(net.received(1), 100_000);
    }
}

#[test]
fn idle_limited_sender_sets_no_timer() {
    let mut net = Net::new(&config(), reliable);
    net.ends[0].set_pacing_limit(Some(BitRate::bps(8_000)));
    net.ends[0].write(1_000);
    net.drain();
    assert!(net.run(Duration::from_ms(100)), "it is over long before the next segment might go");
    assert_eq!(net.ends[0].poll_timeout(), None);
    // Data written later waits for its time.
    net.ends[0].write(1_000);
    net.drain();
    assert_eq!(sent(&net).len(), 1);
    assert!(net.run(Duration::from_secs(2)));
    assert_eq!(net.received(1), 2_000);
}

proptest! {
    #[test]
    fn limit_holds_and_the_stream_arrives_despite_losses(
        seed: u64, loss_percent in 0u64..30, kbps in 100u64..5_000, sack: bool, rack: bool, bbr: bool
    ) {
        let mut random = Seed::new(seed).stream("loss", 0);
        let fate = move |_: usize, _: &Segment| {
            if random.below(100) < loss_percent { vec![] } else { vec![DELAY] }
        };
        let control = if bbr { Control::Bbr } else { Control::NewReno };
        let rack = rack || bbr;
        let config = Config { control, sack: sack || rack, rack, timeouts_max: 50, ..config() };
        let mut net = Net::new(&config, fate);
        let limit = BitRate::bps(1_000 * kbps);
        net.ends[0].set_pacing_limit(Some(limit));
        net.ends[0].write(50_000);
        for ms in 1..500 {
            net.run(Duration::from_ms(ms));
            // A repeated or changed limit still counts from the last segment sent.
            net.ends[0].set_pacing_limit(Some(BitRate::bps(1)));
            net.ends[0].set_pacing_limit(Some(limit));
        }
        net.run(Duration::from_secs(100_000));
        prop_assert_eq!(net.received(1), 50_000);
        prop_assert!(keeps(limit, &sent(&net)));
    }
}
