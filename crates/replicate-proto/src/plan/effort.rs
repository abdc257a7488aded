//! The effort of sending a file with a plan: time, and bytes on links.
//!
//! Leaves out: headers, and filling flows. Read [`FileToSend::by`].

use super::Plan;
use anabranch_graph::Topology;
use anabranch_units::{BitRate, ByteCount, LinkId};
use std::collections::BTreeMap;

/// A file to be sent with a plan.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FileToSend {
    /// Size of the file.
    pub size: ByteCount,
    /// Maximum rate of the source, over all copies.
    pub limit: Option<BitRate>,
}

/// The effort of sending the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Duration. At a low rate it can be months, which exceeds this project's own type of
    /// durations.
    pub time: std::time::Duration,
    /// The resulting rate, if the limit slows the plan down.
    pub limited: Option<BitRate>,
    /// Bytes on each link.
    pub links: BTreeMap<LinkId, ByteCount>,
    /// Bytes on all links together.
    pub traffic: ByteCount,
}

impl FileToSend {
    /// The effort with `plan` on `topology`.
    pub fn by(self, plan: &Plan, topology: &Topology) -> Effort {
        let links = plan.bytes_per_link(self.size);
        let from_source = links.iter().filter(|(id, _)| topology.link(**id).from == plan.source);
        let from_source: ByteCount = from_source.map(|(_, bytes)| *bytes).sum();
        let alone = passes_in(self.size, plan.rate);
        let held =
            self.limit.map(|limit| (limit, passes_in(from_source, limit))).filter(|(_, held)| *held > alone);
        let time = held.map_or(alone, |(_, held)| held);
        let limited = held.map(|(limit, _)| {
            // The result is at most the limit, because the source sends each byte at least once.
            let bps = u128::from(limit.as_bps()) * u128::from(self.size.as_u64())
                / u128::from(from_source.as_u64());
            BitRate::bps(u64::try_from(bps).unwrap_or(limit.as_bps()))
        });
        Effort { time, limited, traffic: links.values().copied().sum(), links }
    }
}

/// Time that `size` takes at `rate`, to a nanosecond.
fn passes_in(size: ByteCount, rate: BitRate) -> std::time::Duration {
    const NS: u128 = 1_000_000_000;
    let ns = u128::from(size.as_u64()) * 8 * NS / u128::from(rate.as_bps().max(1));
    std::time::Duration::new(u64::try_from(ns / NS).unwrap_or(u64::MAX), (ns % NS) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Planner, Request, Scheme};
    use anabranch_graph::LinkProperties;
    use anabranch_units::{Duration, time_in_words};

    /// #17: the time was truncated without notice from 213 days on, and its text overflowed.
    #[test]
    fn estimate_of_more_than_a_year_is_printed() {
        let mut topology = Topology::new("two");
        let (a, b) = (topology.add_site("a", None), topology.add_site("b", None));
        let (a, b) = (a.expect("a new name"), b.expect("a new name"));
        let properties = LinkProperties::new(BitRate::mbps(10), Duration::from_ms(1));
        topology.add_link(a, b, properties).expect("a new link");
        let planner = Planner::new(Request::new(&topology, a, vec![b])).expect("planned");
        let plan = planner.plan(Scheme::SinglePath).expect("there is a path").plan;
        let terabyte = 1_000_000_000_000;
        let of = |size: u64, limit| FileToSend { size: ByteCount::new(size), limit }.by(&plan, &topology);
        let unlimited = of(50 * terabyte, None);
        assert_eq!((unlimited.time.as_secs(), unlimited.limited), (40_000_000, None));
        assert_eq!(time_in_words(unlimited.time), "462 d 23 h");
        let slow = of(terabyte / 20, Some(BitRate::bps(10_000)));
        assert_eq!((slow.time.as_secs(), slow.limited), (40_000_000, Some(BitRate::bps(10_000))));
        assert_eq!(
            of(terabyte, Some(BitRate::mbps(20))).limited,
            None,
            "a limit above the plan's rate holds nothing"
        );
        // Extreme requests do not overflow.
        let _ = time_in_words(of(u64::MAX, Some(BitRate::bps(1))).time);
    }
}
