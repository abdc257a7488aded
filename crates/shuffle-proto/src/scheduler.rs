//! The list of schedulers, by name: command lines and scenarios choose among them.
//!
//! A new scheduler needs one entry in [`Scheduler::ALL`], besides its allocator. Read
//! [`Scheduler`].

use crate::{Ablation, Chase, ChasePlus, Priority};
use anabranch_fluid::{Aalo, Allocator, Fifo, MaxMin, Sincronia, Srf, Varys, Wss};
use std::fmt;
use std::str::FromStr;

/// An allocator of any type, as [`Scheduler::make`] creates it.
pub type BoxedAllocator = Box<dyn Allocator + Send>;

/// A named scheduling rule.
#[derive(Copy, Clone)]
pub struct Scheduler {
    name: &'static str,
    about: &'static str,
    make: fn() -> BoxedAllocator,
    make_like_coflowsim: Option<fn() -> BoxedAllocator>,
    is_whole: bool,
}

impl Scheduler {
    /// All schedulers, in the order of listings.
    pub const ALL: [Self; 14] = [
        Self::new("max-min", "Max-min fair rates, as ideal transports reach them", || {
            Box::new(MaxMin::default())
        }),
        Self::new("fifo", "Coflows in the order of their arrival", || Box::new(Fifo::default()))
            .like_coflowsim(|| Box::new(Fifo::like_coflowsim())),
        Self::new(
            "wss",
            "Weighted shuffle scheduling (Orchestra): fair among coflows, a flow's weight is its volume",
            || Box::new(Wss::default()),
        ),
        Self::new(
            "srf",
            "The flow with the least to move first, whatever its coflow (pFabric, idealised)",
            || Box::new(Srf::default()),
        ),
        Self::new("aalo", "Queues by a coflow's sent bytes, as volumes are not known (D-CLAS)", || {
            Box::new(Aalo::default())
        }),
        Self::new(
            "varys",
            "The coflow with the shortest bottleneck first, its flows just in time (SEBF and MADD)",
            || Box::new(Varys::default()),
        )
        .like_coflowsim(|| Box::new(Varys::like_coflowsim())),
        Self::new("sincronia", "The bottleneck's largest coflow last, again and again (BSSI)", || {
            Box::new(Sincronia::default())
        }),
        Self::new(
            "chase",
            "Flow Chasing as published; the remaining volume of coflows is their priority",
            || Box::new(Chase::new(Priority::Remaining, true)),
        ),
        Self::new(
            "chase-total",
            "Flow Chasing as published; the total volume of coflows is their priority",
            || Box::new(Chase::new(Priority::Total, true)),
        ),
        Self::new(
            "chase-without-conservation",
            "Flow Chasing as published, but links that no coflow would end earlier by are left idle",
            || Box::new(Chase::new(Priority::Remaining, false)),
        )
        .part(),
        Self::new(
            "chase+",
            "Flow Chasing, further: the coflow that could be through first, flows in proportion, and nobody starves",
            || Box::new(ChasePlus::default()),
        ),
        Self::new(
            "chase+without-order",
            "chase+ with coflows ordered by the time that each needs alone",
            || Box::new(ChasePlus::without([Ablation::Order])),
        )
        .part(),
        Self::new(
            "chase+without-chase",
            "chase+ with MADD and backfilling in place of flows in proportion",
            || Box::new(ChasePlus::without([Ablation::Chase])),
        )
        .part(),
        Self::new("chase+without-due", "chase+ with coflows that may starve", || {
            Box::new(ChasePlus::without([Ablation::Due]))
        })
        .part(),
    ];

    const fn new(name: &'static str, about: &'static str, make: fn() -> BoxedAllocator) -> Self {
        Self { name, about, make, make_like_coflowsim: None, is_whole: true }
    }

    const fn like_coflowsim(self, make: fn() -> BoxedAllocator) -> Self {
        Self { make_like_coflowsim: Some(make), ..self }
    }

    /// Marks a variant that lacks one part of a scheduler, to show the part's contribution.
    const fn part(self) -> Self {
        Self { is_whole: false, ..self }
    }

    /// Name on command lines and in scenarios.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Short description.
    pub const fn about(self) -> &'static str {
        self.about
    }

    /// Returns true for a full scheduler, false for a variant that shows the contribution of one
    /// part.
    pub const fn is_whole(self) -> bool {
        self.is_whole
    }

    /// Creates the scheduler's allocator.
    pub fn make(self) -> BoxedAllocator {
        (self.make)()
    }

    /// Creates the scheduler's allocator with CoflowSim's rules; `None` if CoflowSim has no known
    /// counterpart.
    pub fn make_like_coflowsim(self) -> Option<BoxedAllocator> {
        self.make_like_coflowsim.map(|make| make())
    }
}

impl Default for Scheduler {
    /// `chase+`.
    fn default() -> Self {
        "chase+".parse().expect("it is among all")
    }
}

impl PartialEq for Scheduler {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Scheduler {}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error of an unknown scheduler's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScheduler(String);

impl fmt::Display for UnknownScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Scheduler::ALL.map(Scheduler::name).join(", ");
        write!(f, "`{}`: must be one of {all}", self.0)
    }
}

impl std::error::Error for UnknownScheduler {}

impl FromStr for Scheduler {
    type Err = UnknownScheduler;
    fn from_str(text: &str) -> Result<Self, UnknownScheduler> {
        let found = Self::ALL.into_iter().find(|scheduler| scheduler.name == text);
        found.ok_or_else(|| UnknownScheduler(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_fluid::{ActiveFlows, CoflowId, LinkId, Network};
    use anabranch_units::{BitRate, ByteCount};

    /// max-min set the rate of a flow that no longer existed, so it panicked, or the link was
    /// overloaded (#18).
    #[test]
    fn short_flow_between_decisions_leaves_rates_unchanged() {
        for scheduler in Scheduler::ALL {
            let network = Network::new(vec![BitRate::mbps(80)]).expect("a link");
            let (mut active, mut allocator) = (ActiveFlows::new(network), scheduler.make());
            let insert = |active: &mut ActiveFlows, coflow| {
                active.insert(CoflowId(coflow), &[LinkId(0)], ByteCount::new(1_000_000))
            };
            let stays = insert(&mut active, 1);
            active.decide(&mut allocator).expect("the link carries it");
            let bps = active.bps(stays);
            for coflow in 1..4 {
                let goes = insert(&mut active, coflow);
                active.withdraw(goes);
                active.decide(&mut allocator).expect("the link carries it");
                assert_eq!(active.bps(stays), bps, "{scheduler}");
            }
        }
    }

    #[test]
    fn each_scheduler_name_is_unique_and_parses() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.name().parse(), Ok(scheduler));
            let same = Scheduler::ALL.into_iter().filter(|other| *other == scheduler).count();
            assert_eq!(same, 1, "{scheduler}");
            assert!(!scheduler.about().is_empty() && !scheduler.about().ends_with('.'), "{scheduler}");
        }
        assert_eq!(Scheduler::default().name(), "chase+");
        let error = "fast".parse::<Scheduler>().expect_err("no scheduler").to_string();
        assert!(error.starts_with("`fast`: must be one of max-min, fifo, "), "{error}");
    }
}
