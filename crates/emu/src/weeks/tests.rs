//! Tests of connections between racks: which calls the control gets for segments and announcements.

use super::*;
use anabranch_sim::circuits::CircuitPlan;
use anabranch_units::Duration;
use proptest::prelude::*;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq, Eq)]
enum ControlCall {
    Announced(u32, [u16; 2], u64),
    Forwarded(u32, u64, u32),
    Closed(u32),
}

/// A control that records its calls.
#[derive(Clone, Debug, Default)]
struct Recorder {
    heard: Arc<Mutex<Vec<ControlCall>>>,
    is_deaf: bool,
}

impl Recorder {
    fn push(&self, heard: ControlCall) {
        self.heard.lock().expect("nobody panics with it").push(heard);
    }
    fn take(&self) -> Vec<ControlCall> {
        std::mem::take(&mut self.heard.lock().expect("nobody panics with it"))
    }
}

impl CircuitPlan for Recorder {
    fn control(&self) -> Box<dyn CircuitControl> {
        Box::new(self.clone())
    }
    fn follows_flows(&self) -> bool {
        !self.is_deaf
    }
}

impl CircuitControl for Recorder {
    fn handle_announced(&mut self, flow: u32, racks: [u16; 2], bytes: ByteCount) {
        self.push(ControlCall::Announced(flow, racks, bytes.as_u64()));
    }
    fn handle_forwarded(&mut self, flow: u32, position: u64, bytes: u32) {
        self.push(ControlCall::Forwarded(flow, position, bytes));
    }
    fn handle_closed(&mut self, flow: u32) {
        self.push(ControlCall::Closed(flow));
    }
    fn handle_queues(&mut self, _: Instant, _: Vec<u64>) {}
    fn poll_timeout(&self) -> Instant {
        Instant::MAX
    }
    fn poll_week(&mut self) -> Option<CircuitWeek> {
        None
    }
}

/// A loop for sites 0 and 1 in rack 0 and site 2 in rack 1, and the record of its control's calls.
fn weeks(is_deaf: bool) -> (Weeks, Recorder) {
    let recorder = Recorder { is_deaf, ..Recorder::default() };
    let (night, day_min, week) = (Duration::from_us(20), Duration::from_us(180), Duration::from_ms(2));
    let schedule = CircuitSchedule { plan: Arc::new(recorder.clone()), night, week, day_min };
    (Weeks::new(schedule, vec![Some(0), Some(0), Some(1)]), recorder)
}

const SYN: u8 = 2;
const FIN: u8 = 1;
const RST: u8 = 4;

fn key(from: u16, to: u16) -> FlowKey {
    let end = |site: u16| SocketAddr::from(([10, 77, 0, site as u8 + 1], 1_000 + site));
    FlowKey { local: end(from), remote: end(to) }
}

fn segment(from: u16, to: u16, flags: u8, seq: u32, payload: usize) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload];
    (packet[0], packet[9], packet[32], packet[33]) = (0x45, 6, 0x50, flags);
    (packet[15], packet[19]) = (from as u8 + 1, to as u8 + 1);
    packet[12..15].copy_from_slice(&[10, 77, 0]);
    packet[16..19].copy_from_slice(&[10, 77, 0]);
    packet[20..22].copy_from_slice(&(1_000 + from).to_be_bytes());
    packet[22..24].copy_from_slice(&(1_000 + to).to_be_bytes());
    packet[24..28].copy_from_slice(&seq.to_be_bytes());
    packet
}

fn announce(weeks: &mut Weeks, coflow: &str, bytes: u64) -> Result<(), AnnounceError> {
    weeks.handle_announced(key(0, 2), coflow, ByteCount::new(bytes))
}

#[test]
fn control_is_notified_from_syn_to_fin() {
    let (mut weeks, control) = weeks(false);
    assert_eq!(announce(&mut weeks, "a", 9), Err(AnnounceError::NoConnection(key(0, 2))));
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 99, 0));
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 99, 0));
    announce(&mut weeks, "a", 50_000).expect("open");
    announce(&mut weeks, "a", 50_000).expect("open");
    announce(&mut weeks, "a", 80_000).expect("open");
    weeks.handle_forwarded(&segment(0, 2, 0, 100, 1_000));
    weeks.handle_forwarded(&segment(0, 2, 0, 1_100, 0));
    weeks.handle_sent(0, 2, &segment(0, 2, FIN, 1_100, 0));
    weeks.handle_forwarded(&segment(0, 2, 0, 100, 1_000));
    let expected = [
        ControlCall::Announced(0, [0, 1], 50_000),
        ControlCall::Announced(0, [0, 1], 30_000),
        ControlCall::Forwarded(0, 0, 1_000),
        ControlCall::Closed(0),
    ];
    assert_eq!(control.take(), expected);
    assert_eq!(announce(&mut weeks, "a", 90_000), Err(AnnounceError::NoConnection(key(0, 2))));
    let figures = weeks.take();
    assert_eq!((figures.announcements, figures.announcements_refused), (3, 2));
}

#[test]
fn second_coflow_of_a_connection_adds_its_own_bytes() {
    let (mut weeks, control) = weeks(false);
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 0, 0));
    for (coflow, bytes) in [("a", 70_000), ("b", 60_000), ("b", 65_000)] {
        announce(&mut weeks, coflow, bytes).expect("open");
    }
    let bytes = control.take().into_iter().map(|heard| match heard {
        ControlCall::Announced(0, _, bytes) => bytes,
        other => panic!("{other:?}"),
    });
    assert_eq!(bytes.sum::<u64>(), 135_000);
}

#[test]
fn reset_closes_both_directions() {
    let (mut weeks, control) = weeks(false);
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 5, 0));
    weeks.handle_sent(2, 0, &segment(2, 0, SYN, 7, 0));
    weeks.handle_sent(2, 0, &segment(2, 0, RST, 8, 0));
    assert_eq!(control.take(), [ControlCall::Closed(1), ControlCall::Closed(0)]);
}

#[test]
fn reused_ports_begin_another_connection() {
    let (mut weeks, control) = weeks(false);
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 5, 0));
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 500, 0));
    weeks.handle_forwarded(&segment(0, 2, 0, 501, 10));
    assert_eq!(control.take(), [ControlCall::Closed(0), ControlCall::Forwarded(1, 0, 10)]);
}

#[test]
fn connections_within_a_rack_have_no_demand() {
    let (mut weeks, control) = weeks(false);
    weeks.handle_sent(0, 1, &segment(0, 1, SYN, 5, 0));
    let within = weeks.handle_announced(key(0, 1), "a", ByteCount::new(9));
    assert_eq!(within, Err(AnnounceError::NoConnection(key(0, 1))));
    assert_eq!(control.take(), []);
}

#[test]
fn circuits_that_follow_queues_refuse_announcements() {
    let (mut weeks, control) = weeks(true);
    weeks.handle_sent(0, 2, &segment(0, 2, SYN, 5, 0));
    assert_eq!(announce(&mut weeks, "a", 9), Err(AnnounceError::NotFollowed));
    assert_eq!(control.take(), []);
}

proptest! {
    /// Each byte is reported at its position in the stream.
    #[test]
    fn positions_survive_wraps_and_retransmissions(
        first in any::<u32>(),
        segments in prop::collection::vec((1u32..60_000, prop::option::of(0usize..8)), 1..200),
    ) {
        let (mut weeks, control) = weeks(false);
        weeks.handle_sent(0, 2, &segment(0, 2, SYN, first.wrapping_sub(1), 0));
        // Starts far into the stream, so that positions exceed 32 bits.
        weeks.connections.get_mut(&key(0, 2)).expect("open").forwarded_until = u64::from(u32::MAX) - 300_000;
        let (mut sent, mut at) = (Vec::new(), u64::from(u32::MAX) - 300_000);
        for (bytes, again) in segments {
            let (position, bytes) = match again.and_then(|back| sent.iter().rev().nth(back)) {
                Some(before) => *before,
                None => (at, bytes),
            };
            let seq = first.wrapping_add(position as u32);
            weeks.handle_forwarded(&segment(0, 2, 0, seq, bytes as usize));
            sent.push((position, bytes));
            at = at.max(position + u64::from(bytes));
        }
        let heard: Vec<_> = sent.iter().map(|(position, bytes)| ControlCall::Forwarded(0, *position, *bytes)).collect();
        prop_assert_eq!(control.take(), heard);
    }

    #[test]
    fn random_bytes_never_make_segment_parsing_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), flags in any::<u8>()) {
        let (mut weeks, _) = weeks(false);
        weeks.handle_sent(0, 2, &bytes);
        weeks.handle_forwarded(&bytes);
        let mut cut = segment(0, 2, flags, 7, 9);
        cut.truncate(bytes.len());
        weeks.handle_sent(0, 2, &cut);
        prop_assert!(weeks.connections.len() <= 2);
    }
}
