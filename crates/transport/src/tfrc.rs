//! TFRC (RFC 5348): a rate for a stream of datagrams that is fair beside TCP, and smoother than
//! TCP's.
//!
//! The receiver counts *loss events* (all losses within a round trip are one event), and reports
//! their rate and the receive rate. The sender puts the loss event rate into TCP's throughput
//! equation. The module contains the two halves of the congestion control only, [`Sender`] and
//! [`Receiver`], which are driven beside the user's data channel.
//!
//! Rates are in bytes per second, as in the RFC, in `f64`. Only sums, products, quotients and
//! square roots are used, which are the same on every machine. Leaves out: history discounting
//! (section 5.5, optional), and the sender's idle times (the data-limited cases of section 4.4 are
//! included). Read [`Sender`], [`Receiver`] and [`throughput_bytes_per_s`] first.

mod loss;
mod receiver;
mod sender;

pub use loss::LossIntervals;
pub use receiver::{Arrival, Receiver, Report};
pub use sender::{GAP_MAX_S, Sender, SenderConfig};

/// Value of TCP's retransmission timeout in the throughput equation (section 3.1).
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum TcpTimeout {
    /// Four round trips.
    FourRtt,
    /// Four round trips, and at least this many seconds: 1 in RFC 6298, 0.2 for Linux and LTTP.
    AtLeast(f64),
}

impl TcpTimeout {
    fn seconds(self, rtt_s: f64) -> f64 {
        match self {
            Self::FourRtt => 4.0 * rtt_s,
            Self::AtLeast(least) => (4.0 * rtt_s).max(least),
        }
    }
}

/// Growth of the rate until the first loss. Sender and receiver must use the same rule.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SlowStart {
    /// As in the RFC: at most twice the bytes that arrived in the previous round trip. Reports are
    /// sent once per round trip, so the rate doubles in some two round trips.
    #[default]
    Rfc,
    /// As fast as TCP: four reports per round trip are sent, and each may double the rate, in some
    /// 1.25 round trips. If round trips have grown by as much as in HyStart++ (RFC 9406 section
    /// 4.2: an eighth, 4 to 16 ms), a queue is building up. The rate is then limited to a sixteenth
    /// above the receive rate, so that the first losses are few.
    ///
    /// Differs: RFC 5348 section 4.3 step 4. The rate never exceeds what TCP's slow start would
    /// send.
    Eager,
}

/// TCP's throughput in bytes per second, for segments of `size` bytes, a round trip of `rtt_s`, a
/// timeout of `rto_s`, and a loss event rate `p`.
///
/// Source: RFC 5348 section 3.1 with b = 1; LTTP equation 4.
pub fn throughput_bytes_per_s(size: f64, rtt_s: f64, rto_s: f64, p: f64) -> f64 {
    let timeouts = rto_s * 3.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p * p);
    size / (rtt_s * (2.0 * p / 3.0).sqrt() + timeouts)
}

/// The loss event rate at which [`throughput_bytes_per_s`] is `bytes_per_s`, exact to a millionth.
///
/// Source: RFC 5348 section 6.3.1, which requires 5 %.
pub fn loss_rate_for(bytes_per_s: f64, size: f64, rtt_s: f64, rto_s: f64) -> f64 {
    // The throughput falls with growing loss, so bisection applies.
    let (mut low, mut high) = (1e-12f64, 1.0f64);
    for _ in 0..200 {
        let middle = (low * high).sqrt();
        if throughput_bytes_per_s(size, rtt_s, rto_s, middle) > bytes_per_s {
            low = middle;
        } else {
            high = middle;
        }
        if high / low < 1.000_001 {
            break;
        }
    }
    high
}

#[cfg(test)]
mod tests;
