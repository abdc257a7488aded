//! A switch: for every destination the ports that lead to it, and a policy that chooses among several.
//!
//! A switch has no queue (its output ports have) and takes no time. A policy is one file, and one line in the list of
//! `policies!`: [`ecmp`] keeps a flow on one path, [`rps`] sends every packet its own way. Read [`Switch`] first.

pub mod ecmp;
pub mod rps;

use crate::EventQueue;
use crate::element::{Cx, Element};
use crate::packet::{Drop, PacketId, PacketMeta};
use crate::target::Target;
use anabranch_units::RandomStream;

/// Forwards every packet to a target that its table names for `dst`, with no delay.
#[derive(Clone, Debug)]
pub struct Switch {
    /// By destination, which of `groups`; beyond the end, and at an empty group, there is no route.
    group_of: Vec<u16>,
    /// Where each group begins in `targets`; one more at the end.
    starts: Vec<u32>,
    targets: Vec<Target>,
    policy: Policy,
}

/// The list of policies: each is a file with a type that has `drawn` and `choose`, and a word of its own.
macro_rules! policies {
    ($($(#[$says:meta])* $name:ident: $file:ident, $word:literal;)*) => {
        /// How a switch chooses where several targets lead to a destination.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Policy {
            $($(#[$says])* $name($file::$name),)*
        }

        impl Policy {
            /// Which of `count` targets, at least two, `meta` goes to.
            #[inline]
            fn choose(&mut self, meta: &PacketMeta, count: u32) -> u32 {
                match self {
                    $(Self::$name(policy) => policy.choose(meta, count),)*
                }
            }
        }

        /// A policy's name.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum PolicyKind {
            $($(#[$says])* $name,)*
        }

        impl PolicyKind {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its word in files.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// The policy of one switch, which draws from the streams of these names.
            pub fn drawn(self, stream: &dyn Fn(&str) -> RandomStream) -> Policy {
                match self {
                    $(Self::$name => Policy::$name($file::$name::drawn(stream)),)*
                }
            }
        }
    };
}

policies! {
    /// By flow: see [`ecmp::Ecmp`].
    Ecmp: ecmp, "ecmp";
    /// By packet: see [`rps::Rps`].
    Rps: rps, "rps";
}

impl Switch {
    /// A switch with at most one target for each destination. Destinations beyond the table's end have no route.
    ///
    /// Panics: for more than 65,535 different targets.
    pub fn new(next: Vec<Option<Target>>) -> Self {
        let groups: Vec<_> = next.into_iter().map(|to| to.into_iter().collect()).collect();
        Self::with_groups(&groups, Policy::Ecmp(ecmp::Ecmp::new(0)))
    }

    /// A switch that chooses by `policy` among the targets that `by_destination` lists for each destination; none is no
    /// route.
    ///
    /// Panics: for more than 65,535 different lists.
    pub fn with_groups(by_destination: &[Vec<Target>], policy: Policy) -> Self {
        let mut known = std::collections::BTreeMap::new();
        let mut new = Self { group_of: Vec::new(), starts: vec![0], targets: Vec::new(), policy };
        for group in by_destination {
            let ids: Vec<u32> = group.iter().map(|target| target.raw()).collect();
            let id = *known.entry(ids).or_insert_with(|| {
                new.targets.extend(group);
                new.starts.push(new.targets.len() as u32);
                new.starts.len() - 2
            });
            new.group_of.push(u16::try_from(id).expect("a switch has at most 65,535 groups of targets"));
        }
        new
    }
}

impl Element for Switch {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let meta = cx.meta(p);
        let group = self.group_of.get(usize::from(meta.dst)).map(|&group| usize::from(group));
        let Some(&[start, end]) = group.and_then(|group| self.starts.get(group..group + 2)) else {
            return cx.drop(p, Drop::NoRoute);
        };
        let to = match end - start {
            0 => return cx.drop(p, Drop::NoRoute),
            1 => self.targets[start as usize],
            count => self.targets[(start + self.policy.choose(meta, count)) as usize],
        };
        cx.forward(to, p);
    }
    fn on_timer<Q: EventQueue>(&mut self, _: &mut Cx<'_, Q>, _: u32) {
        unreachable!("a switch arms no timer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;

    fn chosen(policy: &mut Policy, flow: u32, count: u32) -> u32 {
        policy.choose(&PacketMeta::new(3, 4, 1_500).with_flow(flow), count)
    }

    #[test]
    fn ecmp_keeps_a_flow_on_one_path_and_spreads_flows_evenly() {
        let mut policy = Policy::Ecmp(ecmp::Ecmp::new(7));
        let mut flows = [0u32; 4];
        for flow in 0..40_000 {
            let way = chosen(&mut policy, flow, 4);
            assert_eq!(way, chosen(&mut policy, flow, 4));
            flows[way as usize] += 1;
        }
        // A binomial of 40,000 at 1/4 has a standard deviation of 87: six of them.
        assert!(flows.iter().all(|n| n.abs_diff(10_000) < 520), "{flows:?}");
    }

    #[test]
    fn ecmp_of_different_salts_chooses_independently() {
        let (mut a, mut b) = (Policy::Ecmp(ecmp::Ecmp::new(1)), Policy::Ecmp(ecmp::Ecmp::new(2)));
        let same = (0..10_000).filter(|&flow| chosen(&mut a, flow, 2) == chosen(&mut b, flow, 2)).count();
        assert!(same.abs_diff(5_000) < 300, "{same}: without it, every layer would send a flow the same way");
    }

    #[test]
    fn rps_uses_every_path_for_one_flow() {
        let mut policy = Policy::Rps(rps::Rps::new(Seed::new(1).stream("rps", 0)));
        let mut packets = [0u32; 4];
        for _ in 0..40_000 {
            packets[chosen(&mut policy, 9, 4) as usize] += 1;
        }
        assert!(packets.iter().all(|n| n.abs_diff(10_000) < 520), "{packets:?}");
    }
}
