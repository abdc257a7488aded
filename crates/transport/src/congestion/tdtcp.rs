//! TDTCP: a congestion state for each of two networks that a flow uses in turns.
//!
//! The packet network and the circuit have a window, a threshold and a base control each. Marks of
//! circuits say which network is in use. An acknowledgement of data that was sent before the last
//! change lets the other network's window grow.
//!
//! Source: Chen et al., *Time-division TCP for reconfigurable data center networks*, SIGCOMM 2022.
//! Differs: marks on acknowledgements say which network is in use, where the original has ICMP
//! messages of the switch. A loss shrinks the window in use, whichever network lost the segment.
//! Flight and round trips are counted over both networks. Loss detection expects no reordering
//! between the networks, unless `rack` is on.

use super::{Ack, Algorithm, Properties, Window};
use crate::config::Config;
use anabranch_units::Instant;

/// Window of the network that is not in use.
#[derive(Copy, Clone, Debug)]
struct Idle {
    cwnd: u64,
    /// `None` until the network has been in use.
    ssthresh: Option<u64>,
}

/// A base control for each network.
#[derive(Clone, Debug)]
pub struct Tdtcp<A> {
    packet: A,
    circuit: A,
    is_circuit: bool,
    idle: Idle,
    /// Position behind the data that was sent before the last change of network.
    sent_before: u64,
    /// Whether the network has changed since the last acknowledgement of new data.
    has_changed: bool,
}

impl<A: Algorithm> Tdtcp<A> {
    /// Base control of the network in use.
    const fn current(&mut self) -> &mut A {
        if self.is_circuit { &mut self.circuit } else { &mut self.packet }
    }
    /// Base control of the other network.
    const fn other(&mut self) -> &mut A {
        if self.is_circuit { &mut self.packet } else { &mut self.circuit }
    }
}

impl<A: Algorithm> Algorithm for Tdtcp<A> {
    const PROPERTIES: Properties = Properties {
        linux_name: None,
        needs_circuit_marks: true,
        // HyStart++ compares round trips, which differ between the networks.
        has_hystart: false,
        ..A::PROPERTIES
    };

    fn new(config: &Config) -> Self {
        let cwnd = u64::from(config.mss) * u64::from(config.initial_window_segments);
        Self {
            packet: A::new(config),
            circuit: A::new(config),
            is_circuit: false,
            idle: Idle { cwnd, ssthresh: None },
            sent_before: 0,
            has_changed: false,
        }
    }

    fn handle_circuit_mark(&mut self, w: &mut Window, is_marked: bool) {
        if is_marked == self.is_circuit {
            return;
        }
        (self.is_circuit, self.has_changed) = (is_marked, true);
        let next = self.idle;
        self.idle = Idle { cwnd: w.cwnd, ssthresh: Some(w.ssthresh) };
        w.cwnd = next.cwnd.min(w.cwnd_max);
        w.ssthresh = next.ssthresh.unwrap_or(u64::MAX);
    }

    fn takes_ack(&mut self, now: Instant, w: &Window, ack: &Ack) -> bool {
        if std::mem::take(&mut self.has_changed) {
            self.sent_before = ack.sent;
        }
        if ack.una > self.sent_before {
            return false;
        }
        if let Some(ssthresh) = self.idle.ssthresh.filter(|_| ack.limited) {
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
    fn control() -> Congestion {
        Congestion::new(&Config { control: Control::Tdtcp, mss: MSS as u32, ..Config::default() })
    }

    #[test]
    fn each_network_keeps_its_window() {
        let (mut control, mut w) = (control(), window());
        control.handle_circuit_mark(&mut w, true);
        assert_eq!((w.cwnd, w.ssthresh), (10 * MSS, u64::MAX), "the circuit begins in slow start");
        control.handle_loss(&mut w, 40 * MSS);
        w.cwnd = w.ssthresh;
        control.handle_circuit_mark(&mut w, false);
        assert_eq!(w, window());
        control.handle_circuit_mark(&mut w, true);
        assert_eq!((w.cwnd, w.ssthresh), (28 * MSS, 28 * MSS));
    }

    #[test]
    fn data_of_the_other_network_grows_the_other_window() {
        let (mut control, mut w) = (control(), window());
        control.handle_ack(Instant::ZERO, &mut w, &ack(MSS, 9 * MSS));
        control.handle_circuit_mark(&mut w, true);
        for una in 2..=9 {
            control.handle_ack(Instant::ZERO, &mut w, &ack(una * MSS, 9 * MSS));
        }
        assert_eq!(w.cwnd, 10 * MSS);
        control.handle_ack(Instant::ZERO, &mut w, &ack(10 * MSS, 20 * MSS));
        assert_eq!(w.cwnd, 11 * MSS, "data of the circuit");
        control.handle_circuit_mark(&mut w, false);
        assert!((8 * MSS..10 * MSS).contains(&w.cwnd) && w.cwnd > 8 * MSS, "{}", w.cwnd);
    }
}
