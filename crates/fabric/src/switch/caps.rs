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
}

impl Caps {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        let (by_flow, by_packet) = (Ecmp::drawn(stream), Rps::drawn(stream));
        Self { by_flow, by_packet, sample: 0, is_on: false, was_seen: false }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &View<'_>) -> u32 {
        let sample = view.now.as_ps() / SAMPLE.as_ps();
        if sample != self.sample {
            self.is_on = self.was_seen && sample == self.sample + 1;
            (self.sample, self.was_seen) = (sample, false);
        }
        let is_short = view.meta.class == FlowClass::Short;
        self.was_seen |= is_short;
        if self.is_on && !is_short { self.by_flow.choose(view) } else { self.by_packet.choose(view) }
    }
}
