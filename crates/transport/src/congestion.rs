//! Congestion control: how the window grows, and how losses and marks reduce it.
//!
//! Each congestion control is one file with an [`Algorithm`], and one line of the list `controls`.
//! [`Congestion`] has the rules that window-based congestion controls share: slow start (which
//! `hystart` may end early), and the window after marks and timeouts. BBR shares none of these
//! rules: `send` reports each segment to its path model. NSCC shares only the window after a
//! timeout. reTCP and TDTCP wrap other congestion controls. Leaves out: the detection of losses,
//! and the choice of data to retransmit (`send`).

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

/// The congestion window and its limits, all in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The congestion window.
    pub cwnd: u64,
    /// Slow start threshold: below it the window is in slow start.
    pub ssthresh: u64,
    /// Data of a full segment.
    pub mss: u64,
    /// Maximum of `cwnd`.
    pub cwnd_max: u64,
    /// Maximum growth per acknowledgement in slow start.
    pub abc_limit: u64,
}

impl Window {
    /// Whether the window is in slow start, where it doubles in every round trip (RFC 5681 section
    /// 3.1).
    pub const fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.cwnd = (self.cwnd + bytes).min(self.cwnd_max);
    }
    /// Minimum window after a reduction: two segments (RFC 5681 equation 4).
    pub(crate) const fn least(&self) -> u64 {
        2 * self.mss
    }
}

/// An acknowledgement of new data.
#[derive(Copy, Clone, Debug)]
pub struct Ack {
    /// Newly acknowledged bytes.
    pub bytes: u64,
    /// Whether the peer echoes ECN marks for these bytes.
    pub marked: bool,
    /// First unacknowledged position.
    pub una: u64,
    /// Position after the last byte sent.
    pub sent: u64,
    /// Smoothed round-trip time; `None` before the first measurement.
    pub srtt: Option<Duration>,
    /// Round-trip time measured by this acknowledgement, if any.
    pub rtt: Option<Duration>,
    /// Whether the window limited the sender. The window grows only then (RFC 9438 section 5.8, RFC
    /// 7661).
    pub limited: bool,
}

/// The circuit mark of an acknowledgement, and the sender's state before it handles the
/// acknowledgement.
#[derive(Copy, Clone, Debug)]
pub struct CircuitMark {
    /// Whether the network marked the acknowledgement: a circuit is up or will be up soon.
    pub is_up: bool,
    /// Position after the last byte sent.
    pub sent: u64,
    /// Whether the window limits the sender, as in [`Ack::limited`].
    pub limited: bool,
    /// Whether a fast recovery is under way, whose duplicate acknowledgements may have inflated the
    /// window (RFC 5681 section 3.2).
    pub is_recovering: bool,
}

/// A congestion control. The default methods suit a congestion control whose window grows with
/// acknowledgements.
trait Algorithm {
    /// Properties that other parts of a connection depend on.
    const PROPERTIES: Properties;

    /// Creates the state at the beginning of a connection.
    fn new(config: &Config) -> Self;

    /// Seeds the congestion control's random draws.
    fn set_seed(&mut self, _seed: Seed) {}

    /// The path model; `None` if the congestion control has no model.
    fn model(&mut self) -> Option<&mut ModelControl> {
        None
    }

    /// Time at which pacing lets the next segment leave; `None` without pacing.
    fn paced_until(&self) -> Option<Instant> {
        None
    }

    /// Whether acknowledgements of new data grow the window: in slow start, and then by
    /// [`Algorithm::avoid`].
    fn grows_by_acks(&self) -> bool {
        true
    }

    /// Whether an acknowledgement of new data belongs to a window that is not in use. The
    /// congestion control then grows that window itself.
    fn takes_ack(&mut self, _now: Instant, _w: &Window, _ack: &Ack) -> bool {
        false
    }

    /// Observes the marks that an acknowledgement echoes.
    fn observe_marks(&mut self, _ack: &Ack) {}

    /// Handles the circuit mark of an arriving acknowledgement.
    fn handle_circuit_mark(&mut self, _w: &mut Window, _mark: &CircuitMark) {}

    /// Grows the window in congestion avoidance.
    fn avoid(&mut self, now: Instant, w: &mut Window, ack: &Ack);

    /// Sets `ssthresh` after a loss, with `flight` bytes in flight.
    fn back_off(&mut self, w: &mut Window, flight: u64);

    /// Whether ECN marks count as a loss (RFC 3168 section 6.1.2). If not,
    /// [`Algorithm::handle_marks`] responds to marks.
    fn takes_marks_for_loss(&self) -> bool {
        true
    }

    /// Sets the window after ECN marks. Called at most once per window of data.
    fn handle_marks(&mut self, _w: &mut Window) {}

    /// Handles the arrival of data at the peer, in any order.
    fn handle_arrived(&mut self, _now: Instant, _w: &mut Window, _arrival: &Arrival) {}

    /// Handles the loss of `bytes` bytes.
    fn handle_lost(&mut self, _w: &mut Window, _bytes: u64) {}

    /// Handles the end of a recovery.
    fn handle_recovered(&mut self) {}

    /// Ends the current epoch of the growth function.
    fn forget_epoch(&mut self) {}

    /// Handles an expiration of the retransmission timer. `is_first` is false for further
    /// expirations during back-off (RFC 5681 section 3.1).
    fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        if is_first {
            self.back_off(w, flight);
        }
        self.forget_epoch();
        w.cwnd = w.mss;
    }

    /// Handles an idle time of at least one timeout (RFC 5681 section 4.1).
    fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        self.forget_epoch();
        w.cwnd = w.cwnd.min(initial);
    }
}

/// Defines [`State`] from the list of congestion controls.
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
    /// Creates the congestion control that `config` names, at the beginning of a connection.
    pub fn new(config: &Config) -> Self {
        let has_hystart = config.hystart.unwrap_or(config.control.properties().has_hystart);
        Self { state: State::new(config), hystart: has_hystart.then(Box::default) }
    }

    /// Seeds the congestion control's random draws. Must be called before the first segment is
    /// sent.
    pub fn set_seed(&mut self, seed: Seed) {
        with!(&mut self.state, it => it.set_seed(seed));
    }
    /// The path model; `None` if the congestion control has no model.
    pub(crate) fn model(&mut self) -> Option<&mut ModelControl> {
        with!(&mut self.state, it => it.model())
    }
    /// Time at which pacing lets the next segment leave; `None` without pacing.
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        with!(&self.state, it => it.paced_until())
    }

    /// Handles the circuit mark of an arriving acknowledgement, whether or not it is for new data.
    /// Must be called before the acknowledgement's other effects.
    pub fn handle_circuit_mark(&mut self, w: &mut Window, mark: &CircuitMark) {
        with!(&mut self.state, it => it.handle_circuit_mark(w, mark));
    }

    /// Handles an acknowledgement of new data outside of a recovery.
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
        // Slow start ends at the threshold. The remaining bytes of the acknowledgement do not grow
        // the window.
        let bytes = ack.bytes.min(w.abc_limit).min(w.ssthresh - w.cwnd);
        let bytes = self.hystart.as_mut().map_or(bytes, |hystart| hystart.growth(w, ack, bytes));
        w.grow(bytes);
    }

    /// Handles a loss that an acknowledgement revealed, with `flight` bytes in flight. Sets
    /// `ssthresh` only.
    pub fn handle_loss(&mut self, w: &mut Window, flight: u64) {
        // RFC 9406 section 4.3: HyStart++ applies to the first slow start only.
        self.hystart = None;
        with!(&mut self.state, it => it.back_off(w, flight));
    }

    /// Handles the arrival of data at the peer, in any order.
    pub(crate) fn handle_arrived(&mut self, now: Instant, w: &mut Window, arrival: &Arrival) {
        with!(&mut self.state, it => it.handle_arrived(now, w, arrival));
    }
    /// Handles the loss of `bytes` bytes.
    pub(crate) fn handle_lost(&mut self, w: &mut Window, bytes: u64) {
        with!(&mut self.state, it => it.handle_lost(w, bytes));
    }

    /// Handles the end of a recovery.
    pub(crate) fn handle_recovered(&mut self) {
        with!(&mut self.state, it => it.handle_recovered());
    }

    /// Handles echoed ECN marks by setting the window. Must be called at most once per window of
    /// data.
    pub fn handle_marks(&mut self, w: &mut Window, flight: u64) {
        if with!(&self.state, it => it.takes_marks_for_loss()) {
            self.handle_loss(w, flight);
            w.cwnd = w.ssthresh;
        } else {
            with!(&mut self.state, it => it.handle_marks(w));
        }
    }

    /// Handles an expiration of the retransmission timer (RFC 5681 section 3.1: the window becomes
    /// one segment).
    pub fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        self.hystart = self.hystart.take().filter(|_| !is_first);
        with!(&mut self.state, it => it.handle_timeout(w, flight, is_first));
    }

    /// Handles an idle time of at least one timeout (RFC 5681 section 4.1).
    pub fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        with!(&mut self.state, it => it.handle_idle(w, initial));
    }
}
