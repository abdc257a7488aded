//! Possible loss rates of packets in bursts, used by all parsers and checks of link settings.
//!
//! A link with random loss has a mean share of lost packets, `loss_ppm`, and a mean number of
//! packets in a burst of losses, `loss_burst`. With a burst of 1, packets are lost independently.
//! Longer bursts follow Gilbert's model (*Capacity of a burst-noise channel*, Bell System Technical
//! Journal, 1960): in the good state the link loses no packet, in the bad state every packet. The
//! link leaves the bad state with probability 1 / `loss_burst`, and enters it with the probability
//! that yields the mean. Elliott's generalisation (1963) has losses in the good state and arrivals
//! in the bad state. It is left out, because it needs two more numbers, which are unknown for a
//! real path.
//!
//! Leaves out: the random draws (`fabric`). Read [`loss_ppm_max`] first.

/// Maximum mean length of a burst of losses, in packets.
pub const LOSS_BURST_MAX: u32 = 1_000_000;

/// Maximum loss rate in parts per million for bursts of `loss_burst` packets on average; `None` if
/// `loss_burst` is out of range. Between two bursts at least one packet arrives, so at least one of
/// `loss_burst` + 1 packets arrives.
///
/// ```
/// use anabranch_units::loss_ppm_max;
/// assert_eq!(loss_ppm_max(1), Some(1_000_000), "each packet on its own: all of them may be lost");
/// assert_eq!(loss_ppm_max(4), Some(800_000));
/// assert_eq!(loss_ppm_max(0), None);
/// ```
pub const fn loss_ppm_max(loss_burst: u32) -> Option<u32> {
    match loss_burst {
        1 => Some(1_000_000),
        2..=LOSS_BURST_MAX => Some((1_000_000 * loss_burst as u64 / (loss_burst as u64 + 1)) as u32),
        _ => None,
    }
}
