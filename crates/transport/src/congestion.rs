//! Congestion control: how the window grows, and how loss and marks shrink it.
//!
//! One file for each; [`Control`] lists them, and [`Congestion`] dispatches by `match`. Rules that all share stand here: slow
//! start (whose end `hystart` may see coming), and the window after a timeout. BBR shares none: it has a model of the path, which
//! `send` tells of each segment. NSCC shares the window after a timeout only: it hears of all that arrives, in whatever order. Leaves
//! out: which loss counts, and which data is sent again (`send`).

mod bbr;
mod cubic;
mod dctcp;
mod hystart;
mod newreno;
mod nscc;

use crate::config::{Config, Control};
use anabranch_units::{Duration, Instant, Seed};
pub(crate) use bbr::ByModel;
pub(crate) use nscc::Arrival;

/// The congestion window. All in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The congestion window.
    pub cwnd: u64,
    /// Below it, slow start.
    pub ssthresh: u64,
    /// A full segment's data.
    pub mss: u64,
    /// The most that `cwnd` grows to.
    pub cwnd_max: u64,
    /// The most that one acknowledgement lets it grow by in slow start.
    pub abc_limit: u64,
}

impl Window {
    /// Whether the window doubles with every round trip (RFC 5681 section 3.1).
    pub const fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.cwnd = (self.cwnd + bytes).min(self.cwnd_max);
    }
    /// Two segments: below that nothing shrinks (RFC 5681 equation 4).
    pub(crate) const fn least(&self) -> u64 {
        2 * self.mss
    }
}

/// What an acknowledgement of new data says.
#[derive(Copy, Clone, Debug)]
pub struct Ack {
    /// Bytes that are acknowledged now and were not before.
    pub bytes: u64,
    /// Of them, those behind which the peer has seen marks.
    pub marked: bool,
    /// Positions: what is acknowledged, and what has been sent.
    pub una: u64,
    /// The position behind the last byte sent.
    pub sent: u64,
    /// The smoothed round trip, once known.
    pub srtt: Option<Duration>,
    /// The round trip that this acknowledgement measured, if it did.
    pub rtt: Option<Duration>,
    /// Whether the window is what kept the sender back. Only then it grows (RFC 9438 section 5.8, RFC 7661).
    pub limited: bool,
}

/// A congestion control with its state.
#[derive(Clone, Debug)]
pub struct Congestion {
    avoidance: Avoidance,
    /// Until the first slow start is over, where it ends by round trips.
    hystart: Option<Box<hystart::HyStart>>,
}

/// What a window does beyond slow start.
#[derive(Clone, Debug)]
enum Avoidance {
    NewReno(newreno::NewReno),
    Cubic(cubic::Cubic),
    Dctcp(dctcp::Dctcp),
    Bbr(Box<ByModel>),
    Nscc(Box<nscc::Nscc>),
}

impl Congestion {
    /// The one that `config` names, at the beginning of a connection.
    pub fn new(config: &Config) -> Self {
        let avoidance = match config.control {
            Control::NewReno => Avoidance::NewReno(newreno::NewReno::default()),
            Control::Cubic => Avoidance::Cubic(cubic::Cubic::default()),
            Control::Dctcp => Avoidance::Dctcp(dctcp::Dctcp::new(config)),
            Control::Bbr | Control::Bbr1 => Avoidance::Bbr(Box::new(ByModel::new(config))),
            Control::Nscc => Avoidance::Nscc(Box::default()),
        };
        Self { avoidance, hystart: config.has_hystart().then(Box::default) }
    }

    /// What its draws come from, where it draws. To be said before anything leaves.
    pub fn set_seed(&mut self, seed: Seed) {
        if let Avoidance::Bbr(control) = &mut self.avoidance {
            control.set_seed(seed);
        }
    }
    /// The model of the path, of a control that has one.
    pub(crate) fn model(&mut self) -> Option<&mut ByModel> {
        match &mut self.avoidance {
            Avoidance::Bbr(control) => Some(control),
            _ => None,
        }
    }
    /// When a segment may leave that the control keeps back by pacing.
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        match &self.avoidance {
            Avoidance::Bbr(control) => control.paced_until(),
            _ => None,
        }
    }

    /// New data was acknowledged outside of a recovery.
    ///
    /// Source: slow start is RFC 5681 equation 2, `cwnd += min(N, SMSS)`, with RFC 3465's L in place of one segment.
    pub fn handle_ack(&mut self, now: Instant, w: &mut Window, ack: &Ack) {
        if let Avoidance::Dctcp(control) = &mut self.avoidance {
            control.note(ack);
        }
        if !ack.limited || matches!(self.avoidance, Avoidance::Bbr(_) | Avoidance::Nscc(_)) {
            return;
        }
        if w.is_slow_start() {
            // Growth ends at the threshold: the rest of the acknowledgement belongs to what follows.
            let bytes = ack.bytes.min(w.abc_limit).min(w.ssthresh - w.cwnd);
            let bytes = self.hystart.as_mut().map_or(bytes, |hystart| hystart.growth(w, ack, bytes));
            return w.grow(bytes);
        }
        match &mut self.avoidance {
            Avoidance::NewReno(control) => control.avoid(w, ack),
            Avoidance::Cubic(control) => control.avoid(now, w, ack),
            Avoidance::Dctcp(control) => control.reno.avoid(w, ack),
            Avoidance::Bbr(_) | Avoidance::Nscc(_) => {}
        }
    }

    /// A loss was found by what was acknowledged; `flight` bytes were on their way. Sets `ssthresh` only.
    pub fn handle_loss(&mut self, w: &mut Window, flight: u64) {
        // RFC 9406 section 4.3: only for the first slow start.
        self.hystart = None;
        match &mut self.avoidance {
            Avoidance::NewReno(control) => control.back_off(w, flight),
            Avoidance::Cubic(control) => control.back_off(w, flight),
            // RFC 8257 section 3.5: as a conventional TCP.
            Avoidance::Dctcp(control) => control.reno.back_off(w, flight),
            Avoidance::Bbr(control) => {
                control.handle_loss();
                w.ssthresh = w.cwnd;
            }
            Avoidance::Nscc(_) => w.ssthresh = w.cwnd,
        }
    }

    /// Data has arrived, in whatever order.
    pub(crate) fn handle_arrived(&mut self, now: Instant, w: &mut Window, arrival: &Arrival) {
        if let Avoidance::Nscc(control) = &mut self.avoidance {
            control.handle_arrived(now, w, arrival);
        }
    }
    /// So many bytes were found lost just now.
    pub(crate) fn handle_lost(&mut self, w: &mut Window, bytes: u64) {
        if let Avoidance::Nscc(control) = &mut self.avoidance {
            control.handle_lost(w, bytes);
        }
    }

    /// What was lost is repaired.
    pub(crate) fn handle_recovered(&mut self) {
        if let Avoidance::Bbr(control) = &mut self.avoidance {
            control.handle_recovered();
        }
    }

    /// Marks were echoed; at most once for a window of data. Sets the window.
    pub fn handle_marks(&mut self, w: &mut Window, flight: u64) {
        match &mut self.avoidance {
            Avoidance::Dctcp(control) => control.back_off(w),
            Avoidance::Nscc(_) => {}
            _ => {
                // RFC 3168 section 6.1.2: as for a loss, but nothing is sent again.
                self.handle_loss(w, flight);
                w.cwnd = w.ssthresh;
            }
        }
    }

    /// The retransmission timer went off (RFC 5681 section 3.1: the window becomes one segment).
    pub fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        if let Avoidance::Bbr(control) = &mut self.avoidance {
            return control.handle_timeout(w);
        }
        if is_first {
            self.handle_loss(w, flight);
        }
        self.forget_epoch();
        w.cwnd = w.mss;
    }

    /// The connection was idle for long (RFC 5681 section 4.1).
    pub fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        if matches!(self.avoidance, Avoidance::Bbr(_)) {
            // Its section 5.4: the window stays, and pacing prevents a burst.
            return;
        }
        self.forget_epoch();
        w.cwnd = w.cwnd.min(initial);
    }

    fn forget_epoch(&mut self) {
        if let Avoidance::Cubic(control) = &mut self.avoidance {
            control.forget_epoch();
        }
    }
}
