//! Freeway: some paths are for long flows, the others for short ones, and how many changes with the long flows there are.
//!
//! Source: Wang and others, *Freeway: Adaptively isolating the elephant and mice flows on different transmission paths* (2014), as Hu and
//! others describe and simulate it (*CAPS*, sections II and IX). Choices that neither states: there are as many paths for long flows
//! as long flows were seen in the last 500 us, and half of all at most; with none all paths are for short ones. Within its part a flow is
//! hashed to a path. Hosts say which flows are short.

use super::View;
use super::ecmp::Ecmp;
use crate::packet::FlowClass;
use anabranch_units::{Duration, RandomStream};

/// How long a sample is.
const SAMPLE: Duration = Duration::from_us(500);
/// The most long flows that are told apart.
const FLOWS_MAX: usize = 256;

/// The policy's state: the long flows of this sample, and how many there were in the one before.
#[derive(Clone, Debug)]
pub struct Freeway {
    hash: Ecmp,
    sample: u64,
    /// In order.
    flows: Vec<u32>,
    before: u32,
}

impl Freeway {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { hash: Ecmp::drawn(stream), sample: 0, flows: Vec::new(), before: 0 }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &View<'_>) -> u32 {
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
