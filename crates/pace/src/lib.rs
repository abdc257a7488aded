//! Rates of this host's TCP flows: who sends how much, and limits that the kernel enforces on any program's flows.
//!
//! This is the host's part of a shuffle's enforcement (Flow Chasing, section 5.2): what an agent needs to do what a
//! coordinator says. It knows of neither.
//!
//! - **Flows.** A [`Flow`] is a 5-tuple of the network namespace in which a reader or a pacer was made; the protocol is TCP.
//! - **Listing.** [`FlowReader`] says which flows there are and what each has sent.
//! - **Limits.** [`SocketPacer`] sets `SO_MAX_PACING_RATE` on a duplicate of the owner's descriptor. [`BpfPacer`] has the
//!   kernel set the same option, also on flows whose programs cannot be touched and on those to come. [`HtbPacer`]
//!   shapes what leaves by a device. Lifting a limit brings back what the flow had before, and so does dropping the pacer.
//!
//! Differs: Flow Chasing marks packets in a kernel module and shapes them by HTB; here TCP's own pacing holds the rate where it
//! can, which needs no queue and no module.
//!
//! Linux only. Read [`Flow`], [`FlowReader`] and [`SocketPacer`] first.
//!
//! ```no_run
//! use anabranch_pace::{FlowReader, Limit, SocketPacer};
//! use anabranch_units::BitRate;
//!
//! let listing = FlowReader::new()?.list(1_000)?;
//! let mut pacer = SocketPacer::new()?;
//! for state in listing.flows {
//!     for result in pacer.set(&[(state.flow, Limit::Rate(BitRate::mbps(100)))]) {
//!         result?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it opens sockets and files, and asks the kernel (DESIGN 2)"
)]

mod bpf;
mod diag;
mod error;
mod flow;
mod htb;
mod netlink;
mod owner;
mod socket;
mod sys;

pub use bpf::BpfPacer;
pub use diag::{FlowReader, FlowState, Listing};
pub use error::{PaceError, StartError};
pub use flow::{Flow, Limit};
pub use htb::HtbPacer;
pub use socket::{SocketPacer, pacing_limit, set_pacing_limit};

/// Most flows that can have limits at a time.
pub const FLOWS_MAX: usize = 65_536;

/// A way to hold a flow to its rate.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// `SO_MAX_PACING_RATE` on its socket, by a duplicate of the owner's descriptor.
    Socket,
    /// The same, set by a BPF program in the kernel.
    Bpf,
    /// A class of its own in an HTB qdisc.
    Htb,
}

impl Mechanism {
    /// What it takes.
    pub(crate) const fn needs(self) -> &'static str {
        match self {
            Self::Socket => "needs CAP_SYS_PTRACE for other users' programs: run as root",
            Self::Bpf => {
                "needs Linux 5.16 with BTF, a cgroup2 file system, and CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run as root"
            }
            Self::Htb => {
                "needs sch_htb and cls_u32 (`modprobe`), CAP_NET_ADMIN, and a device without a qdisc of somebody else's"
            }
        }
    }
}

impl std::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Socket => "SO_MAX_PACING_RATE",
            Self::Bpf => "BPF",
            Self::Htb => "HTB",
        })
    }
}
