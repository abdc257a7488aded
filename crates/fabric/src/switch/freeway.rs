//! Freeway: some paths are reserved for long flows and the remaining paths for short flows. The
//! ratio follows the number of long flows.
//!
//! Source: Wang and others, *Freeway: Adaptively isolating the elephant and mice flows on different
//! transmission paths* (2014), as described and simulated by Hu and others (*CAPS*, sections II and
//! IX). Choices that neither paper states: the number of paths for long flows equals the number of
//! long flows in the last sample of 500 us, up to half of all paths. Without long flows all paths
//! are for short flows. A flow is hashed to one of the paths for its class. Hosts state which flows
//! are short.

use super::PolicyInput;
use super::ecmp::Ecmp;
use crate::packet::FlowClass;
use anabranch_units::{Duration, RandomStream};

/// Duration of a sample.
const SAMPLE: Duration = Duration::from_us(500);
/// Maximum number of long flows that are counted separately.
const FLOWS_MAX: usize = 256;

/// State of the policy: the long flows in this sample, and their number in the last sample.
#[derive(Clone, Debug)]
pub struct Freeway {
    hash: Ecmp,
    sample: u64,
    /// Numbers of the long flows in this sample, sorted.
    flows: Vec<u32>,
    before: u32,
}

impl Freeway {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { hash: Ecmp::drawn(stream), sample: 0, flows: Vec::new(), before: 0 }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &PolicyInput<'_>) -> u32 {
        let sample = view.now.as_ps() / SAMPLE.as_ps();
        if sample != self.sample {
            self.before = if sample == self.sample + 1 { self.flows.len() as u32 } else { 0 };
            self.flows.clear();
            self.sample = sample;
        }
        let (count, is_long) = (view.count(), view.meta.class == FlowClass::Long);
        if is_long
            && self.flows.len() < FLOWS_MAX
            && let Err(at) = self.flows.binary_search(&view.meta.flow)
        {
            self.flows.insert(at, view.meta.flow);
        }
        let long = self.before.max(u32::from(is_long)).min(count / 2);
        if is_long { self.hash.way(view, long) } else { long + self.hash.way(view, count - long) }
    }
}
