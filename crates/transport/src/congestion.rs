//! Congestion control: how the window grows, and how loss and marks shrink it.
//!
//! Each control is one file with an [`Algorithm`], and one line of the list `controls`.
//! [`Congestion`] has the rules that window-based controls share: slow start (whose end `hystart`
//! may see coming), and the window after marks and timeouts. BBR shares none: it has a model of the
//! path, which `send` tells of each segment. NSCC shares the window after a timeout only. reTCP and
//! TDTCP wrap other controls. Leaves out: which loss counts, and which data is sent again (`send`).

mod bbr;
mod cubic;
mod dctcp;
mod hystart;
mod newreno;
mod nscc;
mod properties;
mod retcp;
mod tdtcp;

use crate::config::Config;
use crate::controls::{Control, controls};
use anabranch_units::{Duration, Instant, Seed};
pub(crate) use bbr::ModelControl;
pub(crate) use nscc::Arrival;
use properties::Properties;
#[cfg(test)]
pub(crate) use properties::RequiredSetting;

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
    /// Maximum growth per acknowledgement in slow start.
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
    /// Two segments: no reduction goes below it (RFC 5681 equation 4).
    pub(crate) const fn least(&self) -> u64 {
        2 * self.mss
    }
}

/// An acknowledgement of new data.
#[derive(Copy, Clone, Debug)]
pub struct Ack {
    /// Newly acknowledged bytes.
    pub bytes: u64,
    /// Whether the peer echoes marks for them.
    pub marked: bool,
    /// First unacknowledged position.
    pub una: u64,
    /// The position behind the last byte sent.
    pub sent: u64,
    /// Smoothed round-trip time, once known.
    pub srtt: Option<Duration>,
    /// Round-trip time measured by this acknowledgement, if any.
    pub rtt: Option<Duration>,
    /// Whether the window limited the sender. Only then it grows (RFC 9438 section 5.8, RFC 7661).
    pub limited: bool,
}

/// The mark of an acknowledgement, and the sender's state before it takes the acknowledgement in.
#[derive(Copy, Clone, Debug)]
pub struct CircuitMark {
    /// Whether a circuit is up or near, as the network told the acknowledgement on its way.
    pub is_up: bool,
    /// The position behind the last byte sent.
    pub sent: u64,
    /// Whether the window limits the sender, as [`Ack::limited`] has it.
    pub limited: bool,
    /// Whether a fast recovery is under way, whose duplicate acknowledgements may have inflated the
    /// window (RFC 5681 section 3.2).
    pub is_recovering: bool,
}

/// One congestion control. The defaults suit a control whose window grows with acknowledgements.
trait Algorithm {
    /// Properties that other parts of a connection depend on.
    const PROPERTIES: Properties;

    /// The state at the beginning of a connection.
    fn new(config: &Config) -> Self;

    /// Seeds the control's random draws.
    fn set_seed(&mut self, _seed: Seed) {}

    /// The model of the path, where the control has one.
    fn model(&mut self) -> Option<&mut ModelControl> {
        None
    }

    /// When pacing lets the next segment leave. `None` without pacing.
    fn paced_until(&self) -> Option<Instant> {
        None
    }

    /// Whether acknowledgements of new data let the window grow: slow start, then
    /// [`Algorithm::avoid`].
    fn grows_by_acks(&self) -> bool {
        true
    }

    /// Whether an acknowledgement of new data belongs to a window that is not in use, which the
    /// control then grows.
    fn takes_ack(&mut self, _now: Instant, _w: &Window, _ack: &Ack) -> bool {
        false
    }

    /// Observes the marks that an acknowledgement echoes.
    fn observe_marks(&mut self, _ack: &Ack) {}

    /// An acknowledgement has arrived, with its mark.
    fn handle_circuit_mark(&mut self, _w: &mut Window, _mark: &CircuitMark) {}

    /// Grows the window in congestion avoidance.
    fn avoid(&mut self, now: Instant, w: &mut Window, ack: &Ack);

    /// Sets `ssthresh` after a loss, with `flight` bytes in flight.
    fn back_off(&mut self, w: &mut Window, flight: u64);

    /// Whether marks count as a loss (RFC 3168 section 6.1.2). If not, [`Algorithm::handle_marks`]
    /// responds.
    fn takes_marks_for_loss(&self) -> bool {
        true
    }

    /// Sets the window after marks, at most once for a window of data.
    fn handle_marks(&mut self, _w: &mut Window) {}

    /// Data has arrived, in whatever order.
    fn handle_arrived(&mut self, _now: Instant, _w: &mut Window, _arrival: &Arrival) {}

    /// `bytes` were found lost.
    fn handle_lost(&mut self, _w: &mut Window, _bytes: u64) {}

    /// A recovery has ended.
    fn handle_recovered(&mut self) {}

    /// Ends the epoch of the growth function.
    fn forget_epoch(&mut self) {}

    /// The retransmission timer expired; `is_first` is false while it backs off (RFC 5681 section
    /// 3.1).
    fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        if is_first {
            self.back_off(w, flight);
        }
        self.forget_epoch();
        w.cwnd = w.mss;
    }

    /// The connection was idle for a timeout (RFC 5681 section 4.1).
    fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        self.forget_epoch();
        w.cwnd = w.cwnd.min(initial);
    }
}

/// Defines [`State`] from the list of controls.
macro_rules! states {
    ($($(#[$doc:meta])* $name:ident: $state:ty, $word:literal, $holds:ty;)*) => {
        /// The state of one connection's congestion control.
        #[derive(Clone, Debug)]
        enum State {
            $($name($holds),)*
        }

        impl State {
            fn new(config: &Config) -> Self {
                match config.control {
                    $(Control::$name => Self::$name(<$holds>::from(<$state>::new(config))),)*
                }
            }
        }

        impl Control {
            const fn properties(self) -> Properties {
                match self {
                    $(Self::$name => <$state as Algorithm>::PROPERTIES,)*
                }
            }
        }

        /// Evaluates an expression with the state's algorithm.
        macro_rules! with {
            ($on:expr, $it:ident => $does:expr) => {
                match $on {
                    $(State::$name($it) => $does,)*
                }
            };
        }
    };
}
controls!(states);

/// A congestion control with its state.
#[derive(Clone, Debug)]
pub struct Congestion {
    state: State,
    /// State of HyStart++ during the first slow start, if enabled.
    hystart: Option<Box<hystart::HyStart>>,
}

impl Congestion {
    /// The control that `config` names, at the beginning of a connection.
    pub fn new(config: &Config) -> Self {
        let has_hystart = config.hystart.unwrap_or(config.control.properties().has_hystart);
        Self { state: State::new(config), hystart: has_hystart.then(Box::default) }
    }

    /// Seeds the control's random draws. Must be called before the first segment leaves.
    pub fn set_seed(&mut self, seed: Seed) {
        with!(&mut self.state, it => it.set_seed(seed));
    }
    /// The model of the path, of a control that has one.
    pub(crate) fn model(&mut self) -> Option<&mut ModelControl> {
        with!(&mut self.state, it => it.model())
    }
    /// When pacing lets the next segment leave.
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        with!(&self.state, it => it.paced_until())
    }

    /// An acknowledgement has arrived, of new data or not. To be called before all else that it
    /// causes.
    pub fn handle_circuit_mark(&mut self, w: &mut Window, mark: &CircuitMark) {
        with!(&mut self.state, it => it.handle_circuit_mark(w, mark));
    }

    /// New data was acknowledged outside of a recovery.
    ///
    /// Source: slow start is RFC 5681 equation 2, `cwnd += min(N, SMSS)`, with RFC 3465's L in
    /// place of one segment.
    pub fn handle_ack(&mut self, now: Instant, w: &mut Window, ack: &Ack) {
        with!(&mut self.state, it => {
            if it.takes_ack(now, w, ack) {
                return;
            }
            it.observe_marks(ack);
            if !ack.limited || !it.grows_by_acks() {
                return;
            }
            if !w.is_slow_start() {
                return it.avoid(now, w, ack);
            }
        });
        // Growth ends at the threshold: the rest of the acknowledgement belongs to congestion
        // avoidance.
        let bytes = ack.bytes.min(w.abc_limit).min(w.ssthresh - w.cwnd);
        let bytes = self.hystart.as_mut().map_or(bytes, |hystart| hystart.growth(w, ack, bytes));
        w.grow(bytes);
    }

    /// A loss was found by an acknowledgement, with `flight` bytes in flight. Sets `ssthresh` only.
    pub fn handle_loss(&mut self, w: &mut Window, flight: u64) {
        // RFC 9406 section 4.3: only for the first slow start.
        self.hystart = None;
        with!(&mut self.state, it => it.back_off(w, flight));
    }

    /// Data has arrived, in whatever order.
    pub(crate) fn handle_arrived(&mut self, now: Instant, w: &mut Window, arrival: &Arrival) {
        with!(&mut self.state, it => it.handle_arrived(now, w, arrival));
    }
    /// `bytes` were found lost.
    pub(crate) fn handle_lost(&mut self, w: &mut Window, bytes: u64) {
        with!(&mut self.state, it => it.handle_lost(w, bytes));
    }

    /// A recovery has ended.
    pub(crate) fn handle_recovered(&mut self) {
        with!(&mut self.state, it => it.handle_recovered());
    }

    /// Marks were echoed; at most once for a window of data. Sets the window.
    pub fn handle_marks(&mut self, w: &mut Window, flight: u64) {
        if with!(&self.state, it => it.takes_marks_for_loss()) {
            self.handle_loss(w, flight);
            w.cwnd = w.ssthresh;
        } else {
            with!(&mut self.state, it => it.handle_marks(w));
        }
    }

    /// The retransmission timer expired (RFC 5681 section 3.1: the window becomes one segment).
    pub fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        self.hystart = self.hystart.take().filter(|_| !is_first);
        with!(&mut self.state, it => it.handle_timeout(w, flight, is_first));
    }

    /// The connection was idle for a timeout (RFC 5681 section 4.1).
    pub fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        with!(&mut self.state, it => it.handle_idle(w, initial));
    }
}
