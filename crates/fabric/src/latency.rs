//! Time that packets spend in a hybrid switch, for each network that carries them.
//!
//! Source: Mukerjee's thesis (as in [`crate::CircuitSwitch`]), §2.4.1: the latency of each packet
//! is measured from entering to leaving the switch. The thesis's program counts packets with more
//! than 1,000 bytes of payload, which excludes acknowledgements. Read [`CircuitLatency`] first.

use anabranch_units::{Histogram, RunInstant};

/// Maximum size in bytes of packets that are not counted, such as acknowledgements.
const DATA_BYTES_MIN: u32 = 1_000;

/// Latency of data packets through a hybrid switch.
#[derive(Clone, Debug, Default)]
pub struct CircuitLatency {
    /// Latency of packets that took a circuit.
    pub circuit: Histogram,
    /// Latency of packets that took the packet network.
    pub packet: Histogram,
}

/// The network through which a packet leaves.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// A circuit.
    Circuit,
    /// The packet network.
    Packet,
}

/// Measures the latency of a switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyMeter {
    /// Time at which each packet entered, by the packet's index in the arena.
    entered: Vec<RunInstant>,
    latency: CircuitLatency,
}

impl LatencyMeter {
    /// Records that packet `index` enters the switch.
    #[inline]
    pub(crate) fn handle_arrival(&mut self, now: RunInstant, index: usize) {
        if index >= self.entered.len() {
            self.entered.resize(index + 1, RunInstant::ZERO);
        }
        self.entered[index] = now;
    }

    /// Counts the latency of packet `index`, which leaves the switch.
    #[inline]
    pub(crate) fn handle_departure(&mut self, now: RunInstant, index: usize, size_bytes: u32, by: Network) {
        if size_bytes <= DATA_BYTES_MIN {
            return;
        }
        let latency_ns = (now - self.entered[index]).as_ns();
        match by {
            Network::Circuit => self.latency.circuit.record(latency_ns),
            Network::Packet => self.latency.packet.record(latency_ns),
        }
    }

    /// Latency of the packets counted so far.
    pub(crate) const fn latency(&self) -> &CircuitLatency {
        &self.latency
    }
}
