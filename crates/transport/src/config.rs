//! Settings of a TCP connection.

use crate::controls::Control;
use anabranch_units::{ByteCount, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum window in bytes.
pub(crate) const WINDOW_BYTES_MAX: u64 = 1 << 40;

/// Settings of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Maximum bytes of data in a segment; at least 1.
    pub mss: u32,
    /// Header bytes of every segment.
    pub header_bytes: u32,
    /// Congestion control.
    pub control: Control,
    /// Segments that may be sent before the first acknowledgement (RFC 6928: 10).
    pub initial_window_segments: u32,
    /// Maximum growth of the congestion window per acknowledgement in slow start, in segments,
    /// however many segments are acknowledged: L of RFC 3465.
    ///
    /// Differs: RFC 5681 section 3.1 has 1, as here; Linux has no limit.
    pub abc_limit_segments: u32,
    /// Initial slow start threshold; without it slow start ends at the first loss.
    pub initial_ssthresh: Option<ByteCount>,
    /// Whether the first slow start ends when round trips grow longer (HyStart++, RFC 9406). By
    /// default with Cubic only (RFC 9438 section 4.10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hystart: Option<bool>,
    /// Maximum congestion window.
    pub cwnd_max: Option<ByteCount>,
    /// Weight of a window's marks in DCTCP's mean, in millionths: g of RFC 8257 section 3.3, which
    /// has 1/16.
    pub dctcp_gain_ppm: u32,
    /// Initial value of DCTCP's mean, in millionths: RFC 8257 section 3.3 has 1, so that the first
    /// marks count as much as a loss; the ns-2 code of DCTCP's authors has 0.
    pub dctcp_alpha_ppm: u32,
    /// Whether selective acknowledgements are sent and used.
    pub sack: bool,
    /// Whether losses are found by time, and the loss of a tail by a probe (RFC 8985: RACK and
    /// TLP). Needs `sack`.
    ///
    /// Differs: off by default, so that earlier measurements stay comparable; Linux has both on.
    pub rack: bool,
    /// Reordering window in quarters of the minimum round trip: a segment counts as lost if it is
    /// overtaken by more. At most a smoothed round trip (RFC 8985 section 6.2 step 4:
    /// RACK.reo_wnd_mult).
    ///
    /// Differs: RFC 8985 begins with 1, as here, and raises it after spurious retransmissions.
    pub rack_reo_wnd_mult: u32,
    /// Whether queues may mark segments.
    pub ecn: bool,
    /// Maximum delay of an acknowledgement that waits for a second segment. In text `off` for no
    /// delay.
    #[serde(with = "off_or_duration")]
    #[schemars(with = "Duration")]
    pub delayed_ack: Option<Duration>,
    /// Maximum full segments per acknowledgement, if acknowledgements may wait. Above 2, one in
    /// this many segments is acknowledged, out-of-order segments included.
    ///
    /// Differs: RFC 5681 section 4.2 has 2, as here, with immediate acknowledgement of out-of-order
    /// segments; larger values are not TCP's.
    pub ack_every: u32,
    /// Number of immediate acknowledgements when a connection is new, was idle, or has a gap,
    /// unless it is in conversation; 0 for none.
    ///
    /// Source: Linux's quick acknowledgements (net/ipv4/tcp_input.c), up to 16.
    pub quick_ack: u32,
    /// Minimum retransmission timeout.
    ///
    /// Differs: RFC 6298 section 2.4 says 1 s; Linux 200 ms.
    pub rto_min: Duration,
    /// Timeout before the first sample (RFC 6298 section 2.1: 1 s).
    pub rto_initial: Duration,
    /// Maximum timeout after back-off (section 2.5: at least 60 s).
    pub rto_max: Duration,
    /// Consecutive timeouts after which the connection is given up (RFC 9293 section 3.8.3: R2).
    pub timeouts_max: u32,
    /// Receive buffer in bytes, gaps included. Its initial value is the first window.
    pub receive_buffer: ByteCount,
    /// Whether the user reads all arriving bytes at once.
    pub reads_at_once: bool,
    /// Whether the window restarts after a pause of one timeout (RFC 5681 section 4.1).
    pub slow_start_restart: bool,
    /// Whether the connection begins with SYN segments. Without SYN segments both ends are
    /// connected at once.
    pub handshake: bool,
}

/// A duration, or `off`.
mod off_or_duration {
    use anabranch_units::Duration;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => duration.serialize(s),
            None => s.serialize_str("off"),
        }
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        if text == "off" { Ok(None) } else { text.parse().map(Some).map_err(D::Error::custom) }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1_448,
            header_bytes: 52,
            control: Control::NewReno,
            initial_window_segments: 10,
            abc_limit_segments: 1,
            initial_ssthresh: None,
            hystart: None,
            cwnd_max: None,
            dctcp_gain_ppm: 62_500,
            dctcp_alpha_ppm: 1_000_000,
            sack: true,
            rack: false,
            rack_reo_wnd_mult: 1,
            ecn: false,
            delayed_ack: Some(Duration::from_ms(40)),
            ack_every: 2,
            quick_ack: 0,
            rto_min: Duration::from_ms(200),
            rto_initial: Duration::from_secs(1),
            rto_max: Duration::from_secs(60),
            timeouts_max: 15,
            receive_buffer: ByteCount::mib(4),
            reads_at_once: true,
            slow_start_restart: true,
            handshake: true,
        }
    }
}

/// The reason why settings are invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is out of its range.
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Value of the setting.
        value: u64,
        /// Minimum and maximum allowed value.
        allowed: (u64, u64),
    },
    /// A congestion control lacks settings that it needs.
    ControlNeeds {
        /// The congestion control.
        control: Control,
        /// Each lacking setting: the reason in error messages, and the setting as written in a
        /// scenario.
        missing: Vec<(&'static str, &'static str)>,
    },
    /// Loss detection by time is on, but the selective acknowledgements that it needs are off.
    RackWithoutSack,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfRange { what, value, allowed: (least, most) } => {
                write!(f, "{what} {value}: must be {least} to {most}")
            }
            Self::ControlNeeds { control, missing } => {
                write!(f, "control {}:", control.word())?;
                let mut before = None;
                for (reason, remedy) in missing {
                    match before {
                        Some(known) if known == reason => write!(f, " and {remedy}")?,
                        Some(_) => write!(f, "; {reason}, so set {remedy}")?,
                        None => write!(f, " {reason}, so set {remedy}")?,
                    }
                    before = Some(reason);
                }
                Ok(())
            }
            Self::RackWithoutSack => {
                write!(f, "rack true: goes by selective acknowledgements, so set sack = true")
            }
        }
    }
}
impl std::error::Error for ConfigError {}

impl Config {
    /// Checks that the settings are valid for a connection.
    ///
    /// Errors: see [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let between = |what, value, least, most| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange { what, value, allowed: (least, most) })
            }
        };
        let ns = |d: Duration| d.as_ns();
        between("mss in bytes", self.mss.into(), 1, 1 << 20)?;
        between("header in bytes", self.header_bytes.into(), 0, 1_000)?;
        between("initial window in segments", self.initial_window_segments.into(), 1, 1_000)?;
        between("segments that an acknowledgement counts for", self.abc_limit_segments.into(), 1, 1_000_000)?;
        let mss = u64::from(self.mss);
        between("receive buffer in bytes", self.receive_buffer.as_u64(), mss, WINDOW_BYTES_MAX)?;
        if let Some(most) = self.cwnd_max {
            between("largest congestion window in bytes", most.as_u64(), mss, WINDOW_BYTES_MAX)?;
        }
        between("least retransmission timeout in ns", ns(self.rto_min), 1_000, 60_000_000_000)?;
        between("first retransmission timeout in ns", ns(self.rto_initial), 1_000, 60_000_000_000)?;
        between(
            "longest retransmission timeout in ns",
            ns(self.rto_max),
            ns(self.rto_min.max(self.rto_initial)),
            3_600_000_000_000,
        )?;
        between("timeouts in a row", self.timeouts_max.into(), 1, 1_000)?;
        if let Some(wait) = self.delayed_ack {
            // RFC 5681 section 4.2: at most 500 ms.
            between("delayed acknowledgement in ns", ns(wait), 1, 500_000_000)?;
        }
        between("gain of DCTCP in millionths", self.dctcp_gain_ppm.into(), 1, 1_000_000)?;
        between("first alpha of DCTCP in millionths", self.dctcp_alpha_ppm.into(), 0, 1_000_000)?;
        between("quarters of the reordering window", self.rack_reo_wnd_mult.into(), 1, 1_000)?;
        between("segments for each acknowledgement", self.ack_every.into(), 2, 1_000)?;
        between("quick acknowledgements", self.quick_ack.into(), 0, 1_000)?;
        self.control.check(self)?;
        if self.rack && !self.sack {
            return Err(ConfigError::RackWithoutSack);
        }
        Ok(())
    }
}
