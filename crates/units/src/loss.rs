//! Which shares of packets can be lost in bursts, for all who read or check a link's settings.
//!
//! A link that loses packets by chance has a mean share that is lost, `loss_ppm`, and a mean number of packets that a burst of
//! losses takes, `loss_burst`. With a burst of 1 each packet is lost or not on its own. Longer bursts are Gilbert's model (*Capacity
//! of a burst-noise channel*, Bell System Technical Journal, 1960): the link is good and loses nothing, or bad and loses all.
//! It leaves the bad state with the chance 1 / `loss_burst`, and enters it with a chance that makes the mean. Elliott's
//! generalisation (1963), in which the good state loses some and the bad one not all, is left out: two more numbers that nobody
//! can name for a path.
//!
//! Leaves out: the drawing, which is the fabric's. Read [`loss_ppm_max`] first.

/// The longest burst of losses, in packets.
pub const LOSS_BURST_MAX: u32 = 1_000_000;

/// The greatest share that is lost, in parts per million, where a burst takes `loss_burst` packets in the mean; none where no
/// burst can be so long. Between two bursts at least one packet arrives, so that of `loss_burst` + 1 packets one does.
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
