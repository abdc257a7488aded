//! Coding-based adaptive packet spraying (CAPS): short flows are sprayed; long ones keep to one path while short ones are there, and are
//! sprayed while they are not.
//!
//! Source: Hu and others, *CAPS: Coding-Based Adaptive Packet Spraying to Reduce Flow Completion Time in Data Center* (2019), section V
//! and Algorithm 1. Differs: hosts say which flows are short, as they know and count it, where the paper's switch adds up each
//! flow's bytes itself; and only packets for which there is a choice are sampled, not those on their way down. A packet of
//! whose flow nobody says anything is as one of a long flow. Leaves out: coding (`spray-proto`).

use super::View;
use super::ecmp::Ecmp;
use super::rps::Rps;
use crate::packet::FlowClass;
use anabranch_units::{Duration, RandomStream};

/// How long a sample is.
const SAMPLE: Duration = Duration::from_us(500);

/// The policy's state: what the sample before this one said, and what was seen in this one.
#[derive(Clone, Debug)]
pub struct Caps {
    by_flow: Ecmp,
    by_packet: Rps,
    /// The sample's number.
    sample: u64,
    /// Whether short flows were there in the sample before.
    is_on: bool,
    was_seen: bool,
    /// The ways that short flows have taken in this sample, a bit for each of up to [`WAYS_MAX`], and how many there are.
    used: u64,
    ways: u32,
    unused: Unused,
}

/// The most ways that are told apart.
const WAYS_MAX: u32 = 64;

/// Ways that no short flow took in a sample in which some were there: long flows keep off them, too (section IX-E, Figure 23 c).
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Unused {
    /// Samples with short flows.
    pub samples: u64,
    /// The shares of the ways that none of them took, all samples together.
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
            unused: Unused::default(),
        }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &View<'_>) -> u32 {
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

    /// What short flows left unused in the samples that are over.
    pub(crate) const fn unused(&self) -> Unused {
        self.unused
    }
}
