//! Protocols, decoders and rate controls of a pull, and TFRC parameters shared by both ends.
//!
//! Read [`Mode`] and [`RateControl`] first.

use anabranch_transport::tfrc::{SlowStart, TcpTimeout};
use anabranch_units::BitRate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Protocol of a pull.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The paper's protocol: sums with its c and delta, sent until the terminating signal arrives;
    /// TFRC's slow start.
    Lttp,
    /// Blocks first, then as many sums as the client lacks; the client grants rates.
    #[default]
    Counted,
}

impl Mode {
    /// Default rate control of the mode.
    pub const fn rate_control(self) -> RateControl {
        match self {
            Self::Lttp => RateControl::Tfrc,
            Self::Counted => RateControl::Bbr,
        }
    }
}

/// Rate control of a server, chosen by the client.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RateControl {
    /// LTTP's control: each pull reacts to its losses (RFC 5348). Every loss counts as congestion.
    Tfrc,
    /// A model of the path (BBR), shared by all pulls on the path. The model learns the loss rate
    /// of the path without congestion, and does not reduce the rate for these losses.
    Bbr,
}

impl RateControl {
    /// All rate controls.
    pub const ALL: [Self; 2] = [Self::Bbr, Self::Tfrc];
    /// Name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tfrc => "tfrc",
            Self::Bbr => "bbr",
        }
    }
}

/// Decoder of coded packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Improved => "improved",
            Self::Inactivation => "inactivation",
        }
    }
}

/// Timeout in TFRC's equation: 4 round trips (RFC 5348 section 3.1) instead of TCP's retransmission
/// timeout.
pub(crate) const TIMEOUT: TcpTimeout = TcpTimeout::FourRtt;
/// Slow start of a TFRC sender. A grant makes the search for a rate unnecessary.
pub(crate) const fn slow_start(mode: Mode, grant: Option<BitRate>) -> SlowStart {
    match (mode, grant) {
        (Mode::Counted, None) => SlowStart::Eager,
        _ => SlowStart::Rfc,
    }
}
