//! Coding-based adaptive packet spraying (CAPS): short flows are sprayed. A long flow keeps to one
//! path while short flows are present, and is sprayed otherwise.
//!
//! Source: Hu and others, *CAPS: Coding-Based Adaptive Packet Spraying to Reduce Flow Completion
//! Time in Data Center* (2019), section V and Algorithm 1. Differs: hosts state which flows are
//! short, because they count each flow's bytes, where the paper's switch counts them. Only packets
//! with a choice of paths are sampled, not packets on their way down to a host. A packet without a
//! stated class counts as a long flow's packet. Leaves out: coding (`spray-proto`).

use super::PolicyInput;
use super::ecmp::Ecmp;
use super::rps::Rps;
use crate::packet::FlowClass;
use anabranch_units::{Duration, RandomStream};

/// Duration of a sample.
const SAMPLE: Duration = Duration::from_us(500);

/// State of the policy: the result of the last sample, and the observations in the current sample.
#[derive(Clone, Debug)]
pub struct Caps {
    by_flow: Ecmp,
    by_packet: Rps,
    /// Number of the current sample.
    sample: u64,
    /// True if the last sample had short flows.
    is_on: bool,
    was_seen: bool,
    /// Bit map of the paths that short flows took in this sample, up to [`WAYS_MAX`], and the
    /// number of paths.
    used: u64,
    ways: u32,
    unused: UnusedPathStats,
}

/// Maximum number of paths that are counted separately.
const WAYS_MAX: u32 = 64;

/// Statistics of paths without short flows in samples that had short flows. Long flows avoid these
/// paths, too (section IX-E, Figure 23 c).
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct UnusedPathStats {
    /// Number of samples with short flows.
    pub samples: u64,
    /// Sum, over these samples, of the share of paths without short flows.
    pub share_sum: f64,
}

impl Caps {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        let (by_flow, by_packet) = (Ecmp::drawn(stream), Rps::drawn(stream));
        Self {
            by_flow,
            by_packet,
            sample: 0,
            is_on: false,
            was_seen: false,
            used: 0,
            ways: 0,
            unused: UnusedPathStats::default(),
        }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &PolicyInput<'_>) -> u32 {
        let sample = view.now.as_ps() / SAMPLE.as_ps();
        if sample != self.sample {
            self.is_on = self.was_seen && sample == self.sample + 1;
            if self.was_seen {
                self.unused.samples += 1;
                self.unused.share_sum += 1.0 - f64::from(self.used.count_ones()) / f64::from(self.ways);
            }
            (self.sample, self.was_seen, self.used) = (sample, false, 0);
        }
        let is_short = view.meta.class == FlowClass::Short;
        self.was_seen |= is_short;
        if self.is_on && !is_short {
            return self.by_flow.choose(view);
        }
        let way = self.by_packet.choose(view);
        if is_short {
            self.ways = view.count().min(WAYS_MAX);
            self.used |= 1 << (way % WAYS_MAX);
        }
        way
    }

    /// Statistics of the paths that short flows left unused in completed samples.
    pub(crate) const fn unused(&self) -> UnusedPathStats {
        self.unused
    }
}
