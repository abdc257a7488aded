//! TFRC (RFC 5348): a rate for a stream of datagrams that is fair beside TCP, and smoother than TCP's.
//!
//! The receiver counts *loss events* (all losses within a round trip are one) and says how often they come and how fast data
//! arrives; the sender puts the loss event rate into TCP's throughput equation. The data is the user's: these are the
//! two halves of the control only, [`Sender`] and [`Receiver`], to be driven beside a data channel.
//!
//! Rates are in bytes a second, as the RFC's, in `f64`: sums, products, quotients and square roots only, which are the same on
//! every machine. Leaves out: history discounting (section 5.5, optional), sending by the sender's idle times (section 4.4's
//! data-limited cases are kept). Read [`Sender`], [`Receiver`] and [`throughput_bytes_per_s`] first.

mod loss;
mod receiver;
mod sender;

pub use loss::LossIntervals;
pub use receiver::{Arrival, Receiver, Report};
pub use sender::{GAP_MAX_S, Sender, SenderConfig};

/// The value for TCP's retransmission timeout in the equation (section 3.1).
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum TcpTimeout {
    /// Four round trips.
    FourRtt,
    /// Four round trips, and at least so many seconds: 1 in RFC 6298, 0.2 for Linux and LTTP.
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

/// How the rate grows until the first loss. Both ends must have the same.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SlowStart {
    /// As the RFC has it: at most twice the bytes that arrived in the round trip before, reported once a round trip; that doubles the rate
    /// in some two round trips.
    #[default]
    Rfc,
    /// As fast as TCP: four reports to a round trip, of which each may double its rate, in some 1.25 round trips. Where
    /// round trips have grown by as much as in HyStart++ (RFC 9406 section 4.2: an eighth, 4 to 16 ms) a queue is building up,
    /// and the rate is but a sixteenth above what arrives, so that the first losses are few.
    ///
    /// Differs: RFC 5348 section 4.3 step 4. Never more than TCP's slow start would send.
    Eager,
}

/// Bytes in a second that TCP would send: segments of `size` bytes, a round trip of `rtt_s`, a timeout of `rto_s`, losses in
/// a share `p` of the segments.
///
/// Source: RFC 5348 section 3.1 with b = 1; LTTP equation 4.
pub fn throughput_bytes_per_s(size: f64, rtt_s: f64, rto_s: f64, p: f64) -> f64 {
    let timeouts = rto_s * 3.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p * p);
    size / (rtt_s * (2.0 * p / 3.0).sqrt() + timeouts)
}

/// The loss event rate at which [`throughput_bytes_per_s`] is `bytes_per_s`; within a millionth.
///
/// Source: RFC 5348 section 6.3.1, which asks for 5 %.
pub fn loss_rate_for(bytes_per_s: f64, size: f64, rtt_s: f64, rto_s: f64) -> f64 {
    // The rate falls as losses grow.
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
