//! TDTCP: separate congestion state for each of two networks that a flow uses alternately.
//!
//! The packet network and the circuit network each have a window, a threshold and a base congestion
//! control. Marks of circuits show which network is in use. An acknowledgement of data that was
//! sent before the mark of the last change grows the other network's window, if that window limited
//! the sender at the change.
//!
//! Source: Chen et al., *Time-division TCP for reconfigurable data center networks*, SIGCOMM 2022.
//! Differs: marks on acknowledgements show which network is in use, where the original has ICMP
//! messages of the switch. A loss shrinks the window in use, whichever network lost the segment.
//! Bytes in flight and round trips are counted over both networks. Loss detection expects no
//! reordering between the networks, unless `rack` is on.
//! between the networks, unless `rack` is on.

use super::{Ack, Algorithm, CircuitMark, Properties, Window};
use crate::config::Config;
use anabranch_units::Instant;

/// Window of the network that is not in use.
#[derive(Copy, Clone, Debug)]
struct IdleWindow {
    cwnd: u64,
    /// Slow start threshold; `None` until the network has been in use.
    ssthresh: Option<u64>,
    /// Whether the window limited the sender at the change of network. Later growth depends on this
    /// value, because the sender's present flight fills the other window.
    limited: bool,
}

/// TDTCP with a base congestion control for each network.
#[derive(Clone, Debug)]
pub struct Tdtcp<A> {
    packet: A,
    circuit: A,
    is_circuit: bool,
    idle: IdleWindow,
    /// Position after the last byte sent before the last change of network.
    sent_before: u64,
}

impl<A: Algorithm> Tdtcp<A> {
    /// Base congestion control of the network in use.
    const fn current(&mut self) -> &mut A {
        if self.is_circuit { &mut self.circuit } else { &mut self.packet }
    }
    /// Base congestion control of the network that is not in use.
    const fn other(&mut self) -> &mut A {
        if self.is_circuit { &mut self.packet } else { &mut self.circuit }
    }
}

impl<A: Algorithm> Algorithm for Tdtcp<A> {
    const PROPERTIES: Properties = Properties {
        linux_name: None,
        needs_circuit_marks: true,
        // HyStart++ compares round trips, which differ between the two networks.
        has_hystart: false,
        ..A::PROPERTIES
    };

    fn new(config: &Config) -> Self {
        let cwnd = u64::from(config.mss) * u64::from(config.initial_window_segments);
        Self {
            packet: A::new(config),
            circuit: A::new(config),
            is_circuit: false,
            idle: IdleWindow { cwnd, ssthresh: None, limited: false },
            sent_before: 0,
        }
    }

    fn handle_circuit_mark(&mut self, w: &mut Window, mark: &CircuitMark) {
        if mark.is_up == self.is_circuit {
            return;
        }
        (self.is_circuit, self.sent_before) = (mark.is_up, mark.sent);
        let next = self.idle;
        // The recovery will end in the other network's window, so this window is deflated now (RFC
        // 6582 section 3.2).
        let cwnd = if mark.is_recovering { w.cwnd.min(w.ssthresh) } else { w.cwnd };
        self.idle = IdleWindow { cwnd, ssthresh: Some(w.ssthresh), limited: mark.limited };
        w.cwnd = next.cwnd.min(w.cwnd_max);
        w.ssthresh = next.ssthresh.unwrap_or(u64::MAX);
    }

    fn takes_ack(&mut self, now: Instant, w: &Window, ack: &Ack) -> bool {
        if ack.una > self.sent_before {
            return false;
        }
        if let Some(ssthresh) = self.idle.ssthresh.filter(|_| self.idle.limited) {
            let mut window = Window { cwnd: self.idle.cwnd, ssthresh, ..*w };
            if window.is_slow_start() {
                window.grow(ack.bytes.min(w.abc_limit).min(ssthresh - window.cwnd));
            } else {
                self.other().avoid(now, &mut window, ack);
            }
            self.idle.cwnd = window.cwnd;
        }
        true
    }

    fn observe_marks(&mut self, ack: &Ack) {
        self.current().observe_marks(ack);
    }
    fn avoid(&mut self, now: Instant, w: &mut Window, ack: &Ack) {
        self.current().avoid(now, w, ack);
    }
    fn back_off(&mut self, w: &mut Window, flight: u64) {
        self.current().back_off(w, flight);
    }
    fn handle_marks(&mut self, w: &mut Window) {
        self.current().handle_marks(w);
    }
    fn handle_recovered(&mut self) {
        self.current().handle_recovered();
    }
    fn forget_epoch(&mut self) {
        self.current().forget_epoch();
    }
    fn handle_timeout(&mut self, w: &mut Window, flight: u64, is_first: bool) {
        self.current().handle_timeout(w, flight, is_first);
    }
    fn handle_idle(&mut self, w: &mut Window, initial: u64) {
        self.current().handle_idle(w, initial);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Congestion;
    use super::*;
    use crate::controls::Control;

    const MSS: u64 = 1_000;

    fn window() -> Window {
        Window { cwnd: 8 * MSS, ssthresh: 4 * MSS, mss: MSS, cwnd_max: 1 << 30, abc_limit: MSS }
    }
    fn ack(una: u64, sent: u64) -> Ack {
        Ack { bytes: MSS, marked: false, una, sent, srtt: None, rtt: None, limited: true }
    }
    fn mark(is_up: bool, sent: u64) -> CircuitMark {
        CircuitMark { is_up, sent, limited: true, is_recovering: false }
    }
    fn control() -> Congestion {
        Congestion::new(&Config { control: Control::Tdtcp, mss: MSS as u32, ..Config::default() })
    }

    #[test]
    fn each_network_keeps_its_window() {
        let (mut control, mut w) = (control(), window());
        control.handle_circuit_mark(&mut w, &mark(true, 0));
        assert_eq!((w.cwnd, w.ssthresh), (10 * MSS, u64::MAX), "the circuit begins in slow start");
        control.handle_loss(&mut w, 40 * MSS);
        w.cwnd = w.ssthresh;
        control.handle_circuit_mark(&mut w, &mark(false, 0));
        assert_eq!(w, window());
        control.handle_circuit_mark(&mut w, &mark(true, 0));
        assert_eq!((w.cwnd, w.ssthresh), (28 * MSS, 28 * MSS));
    }

    #[test]
    fn data_of_the_idle_network_grows_its_window() {
        let (mut control, mut w) = (control(), window());
        control.handle_ack(Instant::ZERO, &mut w, &ack(MSS, 9 * MSS));
        control.handle_circuit_mark(&mut w, &mark(true, 9 * MSS));
        for una in 2..=9 {
            control.handle_ack(Instant::ZERO, &mut w, &ack(una * MSS, 9 * MSS));
        }
        assert_eq!(w.cwnd, 10 * MSS);
        control.handle_ack(Instant::ZERO, &mut w, &ack(10 * MSS, 20 * MSS));
        assert_eq!(w.cwnd, 11 * MSS, "data of the circuit");
        control.handle_circuit_mark(&mut w, &mark(false, 20 * MSS));
        assert!((8 * MSS..10 * MSS).contains(&w.cwnd) && w.cwnd > 8 * MSS, "{}", w.cwnd);
    }

    #[test]
    fn data_sent_after_the_mark_grows_its_own_window() {
        let (mut control, mut w) = (control(), window());
        control.handle_ack(Instant::ZERO, &mut w, &ack(MSS, 9 * MSS));
        // Before the first acknowledgement of new data, six segments have left over the circuit.
        control.handle_circuit_mark(&mut w, &mark(true, 9 * MSS));
        control.handle_ack(Instant::ZERO, &mut w, &ack(9 * MSS, 15 * MSS));
        assert_eq!(w.cwnd, 10 * MSS, "data of the packet network");
        control.handle_ack(Instant::ZERO, &mut w, &ack(10 * MSS, 15 * MSS));
        assert_eq!(w.cwnd, 11 * MSS, "data of the circuit");
    }

    /// Growth of the idle window after acknowledgements of eight segments of its data.
    fn idle_growth(limited_before: bool, limited_after: bool) -> u64 {
        let (mut control, mut w) = (control(), window());
        let change = CircuitMark { limited: limited_before, ..mark(true, 9 * MSS) };
        control.handle_circuit_mark(&mut w, &change);
        for una in 2..=9 {
            let ack = Ack { limited: limited_after, ..ack(una * MSS, 9 * MSS) };
            control.handle_ack(Instant::ZERO, &mut w, &ack);
        }
        control.handle_circuit_mark(&mut w, &mark(false, 9 * MSS));
        w.cwnd - window().cwnd
    }

    #[test]
    fn idle_window_grows_only_if_it_limited_the_sender() {
        assert!(idle_growth(true, true) > 0);
        assert_eq!(idle_growth(true, false), idle_growth(true, true));
        assert_eq!((idle_growth(false, true), idle_growth(false, false)), (0, 0));
    }

    #[test]
    fn window_of_an_interrupted_recovery_is_deflated() {
        let (mut control, mut w) = (control(), window());
        control.handle_loss(&mut w, 8 * MSS);
        let ssthresh = w.ssthresh;
        w.cwnd = ssthresh + 9 * MSS;
        control.handle_circuit_mark(&mut w, &CircuitMark { is_recovering: true, ..mark(true, 9 * MSS) });
        control.handle_circuit_mark(&mut w, &mark(false, 9 * MSS));
        assert_eq!((w.cwnd, w.ssthresh), (ssthresh, ssthresh));
    }
}
