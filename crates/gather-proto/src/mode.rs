//! The protocols that a pull may speak, its decoders, its rate controls, and what both ends of a pull must know of TFRC.
//!
//! Read [`Mode`] and [`RateControl`] first.

use anabranch_transport::tfrc::{SlowStart, TcpTimeout};
use anabranch_units::BitRate;
use serde::{Deserialize, Serialize};

/// Which protocol a pull speaks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The paper's: sums with its c and delta, sent until the terminating signal comes; TFRC's slow start.
    Lttp,
    /// Blocks, then as many sums as the client says that it lacks; the client grants rates.
    #[default]
    Counted,
}

impl Mode {
    /// What usually decides how fast a server sends in it.
    pub const fn rate_control(self) -> RateControl {
        match self {
            Self::Lttp => RateControl::Tfrc,
            Self::Counted => RateControl::Bbr,
        }
    }
}

/// What decides how fast a server sends. The client chooses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateControl {
    /// LTTP's: each pull by its own losses, which count as congestion whatever their cause (RFC 5348).
    Tfrc,
    /// A model of the path, which all pulls on it share. Loss that the path has without a queue is learnt, and costs little more
    /// than itself.
    Bbr,
}

impl RateControl {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Bbr, Self::Tfrc];
    /// As settings say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tfrc => "tfrc",
            Self::Bbr => "bbr",
        }
    }
}

/// How packets become blocks again.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderKind {
    /// LTTP's Algorithm 1.
    Standard,
    /// LTTP's Algorithm 2.
    Improved,
    /// Peeling with elimination.
    #[default]
    Inactivation,
}

impl DecoderKind {
    /// As settings say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Improved => "improved",
            Self::Inactivation => "inactivation",
        }
    }
}

/// What TFRC's equation counts with instead of TCP's timeout: 4 round trips (RFC 5348 section 3.1).
pub(crate) const TIMEOUT: TcpTimeout = TcpTimeout::FourRtt;
/// Who is not granted a rate finds it as fast as TCP; a grant needs no finding.
pub(crate) const fn slow_start(mode: Mode, grant: Option<BitRate>) -> SlowStart {
    match (mode, grant) {
        (Mode::Counted, None) => SlowStart::Eager,
        _ => SlowStart::Rfc,
    }
}
