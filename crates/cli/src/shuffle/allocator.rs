//! The schedulers that there are, by their names on the command line.

use anabranch_fluid::{Aalo, Allocator, Fifo, MaxMin, Sincronia, Srf, Varys, Wss};
use anabranch_shuffle::{Chase, ChasePlus, Priority, Without};

/// A scheduler.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Max-min fair rates, as ideal transports reach them.
    MaxMin,
    /// Transfers in the order of their arrival.
    Fifo,
    /// Weighted shuffle scheduling (Orchestra): fair among transfers, a flow's weight is its volume.
    Wss,
    /// The flow with the least to move first, whatever its transfer (pFabric, idealised).
    Srf,
    /// Queues by what a transfer has sent, as volumes are not known (D-CLAS).
    Aalo,
    /// The transfer with the shortest bottleneck first, its flows just in time (SEBF and MADD).
    Varys,
    /// The bottleneck's largest transfer last, again and again (BSSI).
    Sincronia,
    /// Flow Chasing as published; what remains of transfers is their priority.
    Chase,
    /// Flow Chasing as published; the total volume of transfers is their priority.
    ChaseTotal,
    /// Flow Chasing as published, but links that no transfer would end earlier by are left idle.
    #[value(name = "chase-without-conservation")]
    ChaseWithoutConservation,
    /// Flow Chasing, further: who could be through first, flows in proportion, and nobody starves.
    #[value(name = "chase+")]
    ChasePlus,
    /// chase+ with transfers ordered by what each needs alone.
    #[value(name = "chase+without-order")]
    ChasePlusWithoutOrder,
    /// chase+ with MADD and backfilling in place of flows in proportion.
    #[value(name = "chase+without-chase")]
    ChasePlusWithoutChase,
    /// chase+ with transfers that may starve.
    #[value(name = "chase+without-due")]
    ChasePlusWithoutDue,
}

impl Name {
    /// All but those that only show what a part of another brings.
    pub const WHOLE: [Self; 10] = [
        Self::MaxMin,
        Self::Fifo,
        Self::Wss,
        Self::Srf,
        Self::Aalo,
        Self::Varys,
        Self::Sincronia,
        Self::Chase,
        Self::ChaseTotal,
        Self::ChasePlus,
    ];

    /// The scheduler by CoflowSim's rules, where it is known to be the same.
    pub fn make_like_coflowsim(self) -> Option<Box<dyn Allocator + Send>> {
        match self {
            Self::Varys => Some(Box::new(Varys::like_coflowsim())),
            Self::Fifo => Some(Box::new(Fifo::like_coflowsim())),
            _ => None,
        }
    }

    /// As the command line has it.
    pub fn text(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self).expect("no scheduler is hidden");
        value.get_name().to_owned()
    }

    /// A scheduler that has decided nothing yet.
    pub fn make(self) -> Box<dyn Allocator + Send> {
        let without = |part| Box::new(ChasePlus::without([part]));
        match self {
            Self::MaxMin => Box::new(MaxMin::default()),
            Self::Fifo => Box::new(Fifo::default()),
            Self::Wss => Box::new(Wss::default()),
            Self::Srf => Box::new(Srf::default()),
            Self::Aalo => Box::new(Aalo::default()),
            Self::Varys => Box::new(Varys::default()),
            Self::Sincronia => Box::new(Sincronia::default()),
            Self::Chase => Box::new(Chase::new(Priority::Remaining, true)),
            Self::ChaseTotal => Box::new(Chase::new(Priority::Total, true)),
            Self::ChaseWithoutConservation => Box::new(Chase::new(Priority::Remaining, false)),
            Self::ChasePlus => Box::new(ChasePlus::default()),
            Self::ChasePlusWithoutOrder => without(Without::Order),
            Self::ChasePlusWithoutChase => without(Without::Chase),
            Self::ChasePlusWithoutDue => without(Without::Due),
        }
    }
}
