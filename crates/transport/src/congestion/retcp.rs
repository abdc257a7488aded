//! reTCP: a window-based congestion control whose window jumps when the network signals that a
//! circuit comes up or is torn down.
//!
//! [`ReTcp`] wraps any congestion control that has a window. The jump is decided on each
//! acknowledgement, before the wrapped congestion control handles it. An acknowledgement without a
//! mark thus ends the raised window even in a recovery. The slow start threshold keeps its value.
//!
//! Source: Mukerjee's thesis (CMU-CS-18-106, 2018), §2.4.4. Differs: the original program jumps
//! only on acknowledgements that let the window grow, and halves a window of one segment to none.
//! Here a jump also begins a new epoch of the growth function, because CUBIC's estimate of Reno's
//! window would undo the jump at once.

use super::bbr::ModelControl;
use super::nscc::Arrival;
use super::{Ack, Algorithm, CircuitMark, Properties, Window};
use crate::config::Config;
use anabranch_units::{Instant, Seed};

/// Factor of the congestion window when marks begin (§2.4.4: alpha).
const ALPHA: u64 = 2;
/// Divisor of the congestion window when the marks end (§2.4.4: beta is 0.5).
const BETA_DIVISOR: u64 = 2;

/// A window-based congestion control whose window jumps with the marks of circuits.
#[derive(Clone, Debug)]
pub struct ReTcp<A> {
    base: A,
    /// Whether the last jump was upwards.
    is_raised: bool,
}

impl<A: Algorithm> Algorithm for ReTcp<A> {
    const PROPERTIES: Properties =
        Properties { linux_name: None, needs_circuit_marks: true, ..A::PROPERTIES };

    fn new(config: &Config) -> Self {
        Self { base: A::new(config), is_raised: false }
    }

    /// Source: §2.4.4. The factor is alpha when marks begin, and beta when they end.
    fn handle_circuit_mark(&mut self, w: &mut Window, mark: &CircuitMark) {
        if mark.is_up == self.is_raised {
            return;
        }
        self.is_raised = mark.is_up;
        self.base.forget_epoch();
        w.cwnd =
            if mark.is_up { (w.cwnd * ALPHA).min(w.cwnd_max) } else { (w.cwnd / BETA_DIVISOR).max(w.mss) };
    }

    fn set_seed(&mut self, seed: Seed) {
        self.base.set_seed(seed);
    }
    fn model(&mut self) -> Option<&mut ModelControl> {
        self.base.model()
    }
    fn paced_until(&self) -> Option<Instant> {
        self.base.paced_until()
    }
    fn grows_by_acks(&self) -> bool {
        self.base.grows_by_acks()
    }
    fn observe_marks(&mut self, ack: &Ack) {
        self.base.observe_marks(ack);
    }
    fn avoid(&mut self, now: Instant, w: &mut Window, ack: &Ack) {
        self.base.avoid(now, w, ack);
    }
    fn back_off(&mut self, w: &mut Window, flight: u64) {
        self.base.back_off(w, flight);
    }
    fn takes_marks_for_loss(&self) -> bool {
        self.base.takes_marks_for_loss()
    }
    fn handle_marks(&mut self, w: &mut Window) {
        self.base.handle_marks(w);
    }
    fn handle_arrived(&mut self, now: Instant, w: &mut Window, arrival: &Arrival) {
        self.base.handle_arrived(now, w, arrival);
    }
    fn handle_lost(&mut self, w: &mut Window, bytes: u64) {
        self.base.handle_lost(w, bytes);
    }
    fn handle_recovered(&mut self) {
        self.base.handle_recovered();
    }
    fn forget_epoch(&mut self) {
        self.base.forget_epoch();
    }
    fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        self.base.handle_timeout(w, flight, is_first);
    }
    fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        self.base.handle_idle(w, initial);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Congestion;
    use super::*;
    use crate::controls::Control;
    use anabranch_units::Duration;
    use proptest::prelude::*;

    const MSS: u64 = 1_000;
    const CWND_MAX: u64 = 60 * MSS;
    /// Each congestion control with jumps, paired with the congestion control that it wraps.
    const PAIRS: [(Control, Control); 3] = [
        (Control::ReTcp, Control::NewReno),
        (Control::ReTcpCubic, Control::Cubic),
        (Control::ReTcpDctcp, Control::Dctcp),
    ];

    /// An event of a connection.
    #[derive(Clone, Debug)]
    enum Step {
        Ack { bytes: u64, is_marked: bool, is_limited: bool },
        Loss { flight: u64 },
        Marks { flight: u64 },
        Recovered,
        Timeout { flight: u64, is_first: bool },
        Idle,
    }

    fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
        let ack = (1..3_000u64, any::<bool>(), prop::bool::weighted(0.9))
            .prop_map(|(bytes, is_marked, is_limited)| Step::Ack { bytes, is_marked, is_limited });
        let step = prop_oneof![
            20 => ack,
            2 => (0..80_000u64).prop_map(|flight| Step::Loss { flight }),
            2 => (0..80_000u64).prop_map(|flight| Step::Marks { flight }),
            1 => Just(Step::Recovered),
            1 => (0..80_000u64, any::<bool>())
                .prop_map(|(flight, is_first)| Step::Timeout { flight, is_first }),
            1 => Just(Step::Idle),
        ];
        prop::collection::vec((step, any::<bool>()), 0..200)
    }

    fn config(control: Control) -> Config {
        Config { control, mss: MSS as u32, ecn: true, ..Config::default() }
    }

    fn window() -> Window {
        Window { cwnd: 10 * MSS, ssthresh: 1 << 30, mss: MSS, cwnd_max: CWND_MAX, abc_limit: MSS }
    }

    /// A congestion control with its window, in a connection that has transferred `una` bytes.
    struct Sender {
        control: Congestion,
        window: Window,
        una: u64,
    }

    impl Sender {
        fn new(control: Control) -> Self {
            Self { control: Congestion::new(&config(control)), window: window(), una: 0 }
        }

        fn mark(&mut self, is_up: bool) {
            let mark = CircuitMark { is_up, sent: self.una, limited: true, is_recovering: false };
            self.control.handle_circuit_mark(&mut self.window, &mark);
        }

        fn handle(&mut self, number: usize, step: &Step) {
            let now = Instant::ZERO + Duration::from_us(37 * number as u64);
            let (control, w) = (&mut self.control, &mut self.window);
            match *step {
                Step::Ack { bytes, is_marked, is_limited } => {
                    self.una += bytes;
                    let rtt = Some(Duration::from_us(60));
                    let (una, sent) = (self.una, self.una + w.cwnd);
                    let ack =
                        Ack { bytes, marked: is_marked, una, sent, srtt: rtt, rtt, limited: is_limited };
                    control.handle_ack(now, w, &ack);
                }
                Step::Loss { flight } => {
                    control.handle_loss(w, flight);
                    w.cwnd = w.ssthresh;
                }
                Step::Marks { flight } => control.handle_marks(w, flight),
                Step::Recovered => control.handle_recovered(),
                Step::Timeout { flight, is_first } => control.handle_timeout(w, flight, is_first),
                Step::Idle => control.handle_idle(w, 10 * MSS),
            }
        }
    }

    proptest! {
        #[test]
        fn retcp_without_circuit_marks_behaves_as_its_base_algorithm(steps in steps(), which in 0..PAIRS.len()) {
            let (with_jumps, base) = PAIRS[which];
            let (mut ours, mut base) = (Sender::new(with_jumps), Sender::new(base));
            for (number, (step, _)) in steps.iter().enumerate() {
                ours.mark(false);
                ours.handle(number, step);
                base.handle(number, step);
                prop_assert_eq!(ours.window, base.window);
            }
        }

        #[test]
        fn jumps_alternate_and_keep_their_bounds(steps in steps(), which in 0..PAIRS.len()) {
            let mut sender = Sender::new(PAIRS[which].0);
            let mut is_raised = false;
            for (number, (step, is_marked)) in steps.iter().enumerate() {
                let before = sender.window;
                sender.mark(*is_marked);
                let expected = match (is_raised, is_marked) {
                    (false, true) => (ALPHA * before.cwnd).min(CWND_MAX),
                    (true, false) => (before.cwnd / BETA_DIVISOR).max(MSS),
                    _ => before.cwnd,
                };
                prop_assert_eq!(sender.window, Window { cwnd: expected, ..before });
                is_raised = *is_marked;
                sender.handle(number, step);
            }
        }
    }

    #[test]
    fn jump_begins_a_new_cubic_epoch() {
        let mut sender = Sender::new(Control::ReTcpCubic);
        sender.handle(0, &Step::Loss { flight: 20 * MSS });
        let ack = Step::Ack { bytes: MSS, is_marked: false, is_limited: true };
        (0..10).for_each(|number| sender.handle(number, &ack));
        sender.mark(true);
        (10..20).for_each(|number| sender.handle(number, &ack));
        sender.mark(false);
        let halved = sender.window.cwnd;
        sender.handle(20, &ack);
        assert!(sender.window.cwnd < halved + MSS, "{} {halved}", sender.window.cwnd);
    }
}
