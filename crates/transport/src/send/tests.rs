//! Tests of the marks of circuits on acknowledgements of new data, on duplicates, and in
//! recoveries.
//!
//! Leaves out: the size of the jumps, which each congestion control's file tests. Read [`Path`]
//! first.

use super::*;
use crate::controls::Control;
use crate::segment::SackBlocks;
use anabranch_units::{ByteCount, RunInstant};

const MSS: u64 = 1_000;

/// A sender that always has data, and the acknowledgements that it receives.
struct Path {
    half: SendHalf,
    /// Sequence numbers of the segments sent.
    sent: Vec<u64>,
}

impl Path {
    /// A sender with an initial window of ten segments.
    fn new(control: Control) -> Self {
        Self::with_window(control, 10)
    }

    /// A sender with an initial window of `segments` segments, without selective acknowledgements.
    fn with_window(control: Control, segments: u64) -> Self {
        let initial_ssthresh = Some(ByteCount::new(4 * MSS));
        let base = Config { control, mss: MSS as u32, sack: false, initial_ssthresh, ..Config::default() };
        let mut half = SendHalf::new(&Config { hystart: Some(false), ..base });
        half.window.cwnd = segments * MSS;
        half.open(1 << 30);
        half.write(1 << 30);
        let mut path = Self { half, sent: Vec::new() };
        path.send();
        path
    }

    fn send(&mut self) {
        while let Some(piece) = self.half.poll(Instant::ZERO) {
            self.sent.push(piece.seq);
        }
    }

    /// Handles an acknowledgement of all segments before segment `number`, and then sends.
    fn ack(&mut self, number: u64, circuit: bool) {
        let segment = Segment {
            seq: 0,
            len: 0,
            header_bytes: 40,
            syn: false,
            fin: false,
            ack: Some(number * MSS),
            // The edge of the peer's window does not move, so that an acknowledgement of no new
            // data is a duplicate.
            window: (1 << 30) - number * MSS,
            sack: SackBlocks::default(),
            sent_at: RunInstant::ZERO,
            echo: None,
            ece: false,
            cwr: false,
            ect: false,
            ce: false,
            circuit,
        };
        self.half.handle_ack(Instant::ZERO, &segment);
        self.send();
    }

    fn cwnd(&self) -> u64 {
        self.half.window.cwnd
    }
    fn ssthresh(&self) -> u64 {
        self.half.window.ssthresh
    }
}

#[test]
fn retcp_jumps_before_the_window_takes_the_acknowledgement() {
    let mut path = Path::new(Control::ReTcp);
    path.half.window.ssthresh = 1 << 30;
    path.ack(1, true);
    assert_eq!(path.cwnd(), 21 * MSS, "doubled, then one segment of slow start");
    path.ack(2, false);
    assert_eq!(path.cwnd(), 21 * MSS / 2 + MSS, "halved, then one segment");
}

#[test]
fn retcp_responds_to_marks_of_duplicates() {
    let mut path = Path::new(Control::ReTcp);
    path.ack(0, true);
    assert_eq!((path.cwnd(), path.half.dup_acks), (20 * MSS, 1));
    assert_eq!(path.sent.len(), 21, "the raised window, and one segment for a duplicate (RFC 3042)");
    path.ack(0, false);
    assert_eq!((path.cwnd(), path.half.dup_acks), (10 * MSS, 2));
}

#[test]
fn retcp_halves_in_a_recovery_without_sack() {
    let mut path = Path::new(Control::ReTcp);
    path.ack(0, true);
    (0..2).for_each(|_| path.ack(0, true));
    assert_eq!(path.half.recoveries_total(), 1);
    // In flight are 20 segments of the congestion window and 2 of limited transmit (RFC 3042). The
    // window is half of them, plus one segment for each of three duplicates.
    assert_eq!((path.cwnd(), path.ssthresh()), (14 * MSS, 11 * MSS));
    assert_eq!(path.sent.last(), Some(&0), "the lost segment is sent again");
    path.ack(0, true);
    assert_eq!(path.cwnd(), 15 * MSS, "inflated by a duplicate");
    path.ack(0, false);
    assert_eq!((path.cwnd(), path.ssthresh()), (15 * MSS / 2 + MSS, 11 * MSS), "halved, then inflated");
    path.ack(22, false);
    assert_eq!(path.half.repair, Repair::Nothing);
    assert_eq!(path.cwnd(), 2 * MSS, "no burst: nothing is in flight (RFC 6582 section 3.2)");
}

#[test]
fn tdtcp_takes_the_boundary_from_a_duplicate() {
    let mut path = Path::with_window(Control::Tdtcp, 4);
    assert_eq!(path.half.sent, 4 * MSS);
    // A duplicate carries the mark. Six segments of the congestion window and one of limited
    // transmit (RFC 3042) then leave over the circuit at once.
    path.ack(0, true);
    assert_eq!((path.cwnd(), path.half.sent), (10 * MSS, 11 * MSS));
    path.ack(4, true);
    assert_eq!(path.cwnd(), 10 * MSS, "data of the packet network");
    path.ack(5, true);
    assert_eq!(path.cwnd(), 11 * MSS, "data of the circuit");
}

#[test]
fn tdtcp_recovery_across_a_change_leaves_both_windows_deflated() {
    let mut path = Path::new(Control::Tdtcp);
    (0..5).for_each(|_| path.ack(0, false));
    let ssthresh = path.ssthresh();
    assert_eq!(path.half.recoveries_total(), 1);
    assert_eq!(path.cwnd(), ssthresh + 5 * MSS, "inflated by five duplicates");
    let sent = path.half.sent;
    path.ack(0, true);
    assert_eq!(path.ssthresh(), u64::MAX, "the circuit's first slow start");
    path.ack(sent / MSS, true);
    assert_eq!(path.half.repair, Repair::Nothing);
    path.ack(sent / MSS, false);
    assert_eq!((path.cwnd(), path.ssthresh()), (ssthresh, ssthresh));
}

#[test]
fn tdtcp_counts_recovery_data_as_the_circuits() {
    let mut path = Path::new(Control::Tdtcp);
    (0..3).for_each(|_| path.ack(0, false));
    let boundary = path.half.sent;
    // Duplicates inflate the circuit's window, and new segments leave over the circuit.
    (0..12).for_each(|_| path.ack(0, true));
    assert!(path.half.sent > boundary + MSS, "{} {boundary}", path.half.sent);
    path.ack(boundary / MSS, true);
    assert_eq!(path.half.repair, Repair::Nothing);
    let cwnd = path.cwnd();
    path.ack(boundary / MSS + 1, true);
    assert_eq!(path.cwnd(), cwnd + MSS);
}
