//! A switch: the ports towards each destination, and a policy that chooses one of several ports.
//!
//! A switch has no queue (its output ports have queues) and takes no time. A policy is one file,
//! and one line in the list of `policies!`: [`ecmp`] keeps a flow on one path, [`rps`] sprays
//! packets over all paths, and so on. A [`PolicyInput`] is a policy's input. Read [`Switch`] first.

pub mod caps;
pub mod drill;
pub mod ecmp;
pub mod freeway;
pub mod letflow;
pub mod presto;
pub mod rps;

use crate::EventQueue;
use crate::element::Cx;
use crate::packet::{Drop, PacketId, PacketMeta};
use crate::target::Target;
use anabranch_units::{ByteCount, RandomStream, RunInstant};

/// Input of a policy: a packet with several targets at equal distance.
pub struct PolicyInput<'a> {
    /// The fabric's time.
    pub now: RunInstant,
    /// The packet.
    pub meta: &'a PacketMeta,
    /// The targets, at least two.
    ways: &'a [Target],
    queues: &'a dyn Fn(Target) -> ByteCount,
}

impl PolicyInput<'_> {
    /// Number of targets, at least two.
    #[inline]
    pub const fn count(&self) -> u32 {
        self.ways.len() as u32
    }
    /// The targets.
    #[inline]
    pub const fn ways(&self) -> &[Target] {
        self.ways
    }
    /// Returns the bytes queued at a target, without the packet being sent. Cost: a check of every
    /// packet in that queue.
    pub fn queue(&self, way: Target) -> ByteCount {
        (self.queues)(way)
    }
}

/// Forwards every packet, without delay, to one of the targets that its table lists for `dst`.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Index in `groups` by destination. A missing entry or an empty group means that there is no
    /// route.
    group_of: Vec<u16>,
    /// Start of each group in `targets`, with one more entry at the end.
    starts: Vec<u32>,
    targets: Vec<Target>,
    policy: Policy,
}

/// The list of policies: each is a file with a type that has `drawn` and `choose`, a name in files,
/// and the field type in a switch. Large states are boxed, so that a switch is no larger than a
/// port, because both are in the same array.
macro_rules! policies {
    ($($(#[$says:meta])* $name:ident: $file:ident, $word:literal, $holds:ty;)*) => {
        /// Policy for choosing among several targets of a destination.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Policy {
            $($(#[$says])* $name($holds),)*
        }

        impl Policy {
            /// Returns the index of the target for the packet.
            #[inline]
            fn choose(&mut self, view: &PolicyInput<'_>) -> u32 {
                match self {
                    $(Self::$name(policy) => policy.choose(view),)*
                }
            }
        }

        /// Kind of a policy.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum PolicyKind {
            $($(#[$says])* $name,)*
        }

        impl PolicyKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Name in files.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Creates the policy of one switch, with random streams of these names.
            pub fn drawn(self, stream: &dyn Fn(&str) -> RandomStream) -> Policy {
                match self {
                    $(Self::$name => Policy::$name(<$holds>::from($file::$name::drawn(stream))),)*
                }
            }
        }
    };
}

policies! {
    /// By flow: see [`ecmp::Ecmp`].
    Ecmp: ecmp, "ecmp", ecmp::Ecmp;
    /// By packet: see [`rps::Rps`].
    Rps: rps, "rps", rps::Rps;
    /// Short flows by packet; long flows by flow while short flows are present: see [`caps::Caps`].
    Caps: caps, "caps", Box<caps::Caps>;
    /// By cell of 64 KiB of a flow, in turns: see [`presto::Presto`].
    Presto: presto, "presto", presto::Presto;
    /// By burst of a flow: see [`letflow::LetFlow`].
    LetFlow: letflow, "letflow", Box<letflow::LetFlow>;
    /// By packet, to the shortest of a few queues: see [`drill::Drill`].
    Drill: drill, "drill", Box<drill::Drill>;
    /// By flow, with separate paths for short and long flows: see [`freeway::Freeway`].
    Freeway: freeway, "freeway", Box<freeway::Freeway>;
}

impl Switch {
    /// Creates a switch with at most one target for each destination. Destinations beyond the
    /// table's end have no route.
    ///
    /// Panics: if there are more than 65,535 different targets.
    pub fn new(next: Vec<Option<Target>>) -> Self {
        let groups: Vec<_> = next.into_iter().map(|to| to.into_iter().collect()).collect();
        Self::with_groups(&groups, Policy::Ecmp(ecmp::Ecmp::new(0)))
    }

    /// Creates a switch that chooses by `policy` among the targets that `by_destination` lists for
    /// each destination. An empty list means that there is no route.
    ///
    /// Panics: if there are more than 65,535 different lists.
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

impl Switch {
    /// Statistics of the paths that short flows left unused; `None` if the policy does not measure
    /// them.
    pub(crate) const fn unused(&self) -> Option<caps::UnusedPathStats> {
        match &self.policy {
            Policy::Caps(policy) => Some(policy.unused()),
            _ => None,
        }
    }

    /// Forwards a packet. `queues` returns the queue length at a target.
    #[inline]
    pub(crate) fn on_packet<Q: EventQueue>(
        &mut self,
        cx: &mut Cx<'_, Q>,
        p: PacketId,
        queues: impl Fn(Target, &[PacketMeta], RunInstant) -> ByteCount,
    ) {
        let meta = *cx.meta(p);
        let group = self.group_of.get(usize::from(meta.dst)).map(|&group| usize::from(group));
        let Some(&[start, end]) = group.and_then(|group| self.starts.get(group..group + 2)) else {
            return cx.drop(p, Drop::NoRoute);
        };
        let to = match end - start {
            0 => return cx.drop(p, Drop::NoRoute),
            1 => self.targets[start as usize],
            _ => {
                let ways = &self.targets[start as usize..end as usize];
                let (now, all) = (cx.now(), &*cx.all_meta());
                let queues = |target| queues(target, all, now);
                ways[self.policy.choose(&PolicyInput { now, meta: &meta, ways, queues: &queues }) as usize]
            }
        };
        cx.forward(to, p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowClass;
    use anabranch_units::Seed;
    use std::collections::BTreeSet;

    fn chosen(policy: &mut Policy, flow: u32, count: u32) -> u32 {
        TestInput::default().of(policy, PacketMeta::new(3, 4, 1_500).with_flow(flow), count)
    }

    /// Input of a policy in tests: a time, and the queue length at each target.
    #[derive(Default)]
    struct TestInput {
        us: u64,
        queues: Vec<u64>,
    }

    impl TestInput {
        fn at(us: u64) -> Self {
            Self { us, ..Self::default() }
        }
        fn of(&self, policy: &mut Policy, meta: PacketMeta, count: u32) -> u32 {
            let ways: Vec<Target> = (0..count).map(Target::element).collect();
            let queues =
                |target: Target| ByteCount::new(self.queues.get(target.index()).copied().unwrap_or_default());
            let now = RunInstant::from_us(self.us);
            policy.choose(&PolicyInput { now, meta: &meta, ways: &ways, queues: &queues })
        }
    }

    fn drawn(kind: PolicyKind) -> Policy {
        kind.drawn(&|name| Seed::new(1).stream(name, 0))
    }
    fn packet(flow: u32, class: FlowClass) -> PacketMeta {
        PacketMeta::new(3, 4, 1_500).with_flow(flow).with_class(class)
    }
    fn used(chosen: impl Iterator<Item = u32>) -> BTreeSet<u32> {
        chosen.collect()
    }

    #[test]
    fn ecmp_changes_path_with_entropy_only() {
        let mut policy = Policy::Ecmp(ecmp::Ecmp::new(7));
        let with = |policy: &mut Policy, entropy| {
            let meta = packet(9, FlowClass::Unknown).with_entropy(entropy);
            TestInput::default().of(policy, meta, 16)
        };
        assert_eq!(with(&mut policy, 0), chosen(&mut policy, 9, 16));
        assert_eq!(with(&mut policy, 77), with(&mut policy, 77));
        assert_eq!(used((0..500).map(|entropy| with(&mut policy, entropy))).len(), 16);
    }

    #[test]
    fn caps_keeps_long_flows_on_one_path_beside_short() {
        let mut policy = drawn(PolicyKind::Caps);
        let mut at = |us, class| TestInput::at(us).of(&mut policy, packet(5, class), 8);
        assert_eq!(used((0..200).map(|_| at(100, FlowClass::Long))).len(), 8, "no short flow was seen");
        assert_eq!(used((0..200).map(|_| at(200, FlowClass::Short))).len(), 8);
        assert_eq!(used((0..200).map(|_| at(300, FlowClass::Long))).len(), 8, "the sample is not over");
        assert_eq!(used((0..200).map(|_| at(600, FlowClass::Long))).len(), 1, "short flows were seen");
        assert_eq!(used((0..200).map(|_| at(1_100, FlowClass::Long))).len(), 8, "none since");
        at(1_200, FlowClass::Short);
        assert_eq!(
            used((0..200).map(|_| at(2_100, FlowClass::Long))).len(),
            8,
            "a sample without any between"
        );
    }

    #[test]
    fn caps_counts_paths_without_short_flows() {
        let mut policy = drawn(PolicyKind::Caps);
        let mut at = |us, class| TestInput::at(us).of(&mut policy, packet(5, class), 8);
        let used = used([at(0, FlowClass::Short), at(100, FlowClass::Short)].into_iter());
        at(600, FlowClass::Long);
        at(1_100, FlowClass::Long);
        let share_sum = 1.0 - used.len() as f64 / 8.0;
        let Policy::Caps(policy) = policy else { unreachable!("it was asked for") };
        assert_eq!(
            policy.unused(),
            caps::UnusedPathStats { samples: 1, share_sum },
            "no short flow was there afterwards"
        );
    }

    #[test]
    fn presto_sends_cells_in_turns_at_the_first_switch() {
        let mut policy = drawn(PolicyKind::Presto);
        let mut with = |entropy, hops| {
            let mut meta = packet(5, FlowClass::Unknown).with_entropy(entropy);
            meta.hops = hops;
            TestInput::default().of(&mut policy, meta, 4)
        };
        let turns: Vec<u32> = (0..9).map(|cell| with(cell, 1)).collect();
        assert!(turns.windows(2).all(|two| two[1] == (two[0] + 1) % 4), "{turns:?}");
        assert_eq!(used((0..100).map(|cell| with(cell, 2))).len(), 4);
    }

    #[test]
    fn letflow_moves_a_flow_only_after_a_pause() {
        let mut policy = drawn(PolicyKind::LetFlow);
        let mut at = |us| TestInput::at(us).of(&mut policy, packet(5, FlowClass::Unknown), 8);
        assert_eq!(used((0..100).map(|n| at(n * 400))).len(), 1);
        assert!(used((1..100).map(|n| at(40_000 + n * 600))).len() > 4);
    }

    #[test]
    fn drill_finds_and_keeps_the_empty_queue() {
        let mut policy = drawn(PolicyKind::Drill);
        let seen = TestInput { us: 0, queues: vec![9, 9, 9, 0, 9, 9] };
        let mut last = 0;
        for _ in 0..100 {
            last = seen.of(&mut policy, packet(5, FlowClass::Unknown), 6);
        }
        assert_eq!(last, 3);
    }

    #[test]
    fn freeway_separates_the_paths_of_two_classes() {
        let mut policy = drawn(PolicyKind::Freeway);
        let mut at = |us, flow, class| TestInput::at(us).of(&mut policy, packet(flow, class), 8);
        assert_eq!(
            used((0..500).map(|flow| at(0, flow, FlowClass::Short))).len(),
            8,
            "no long flow was seen"
        );
        for flow in 0..3 {
            at(100, flow, FlowClass::Long);
        }
        let long = used((0..3).map(|flow| at(600, flow, FlowClass::Long)));
        let short = used((0..500).map(|flow| at(600, flow, FlowClass::Short)));
        assert!(long.is_disjoint(&short) && short.len() == 5, "{long:?} {short:?}");
        assert_eq!(
            used((0..500).map(|flow| at(9_000, flow, FlowClass::Short))).len(),
            8,
            "long flows are over"
        );
    }

    #[test]
    fn ecmp_keeps_flows_on_one_path_and_spreads_evenly() {
        let mut policy = Policy::Ecmp(ecmp::Ecmp::new(7));
        let mut flows = [0u32; 4];
        for flow in 0..40_000 {
            let way = chosen(&mut policy, flow, 4);
            assert_eq!(way, chosen(&mut policy, flow, 4));
            flows[way as usize] += 1;
        }
        // The binomial distribution of 40,000 at 1/4 has a standard deviation of 87. The tolerance
        // is six standard deviations.
        assert!(flows.iter().all(|n| n.abs_diff(10_000) < 520), "{flows:?}");
    }

    #[test]
    fn ecmp_with_different_salts_chooses_independently() {
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
