//! TCP flows of this host: the progress of each flow, and rate limits that the kernel enforces on
//! any program's flows.
//!
//! This is the host's part of a shuffle's enforcement (Flow Chasing, section 5.2): an agent uses
//! the crate to limit flows to a coordinator's rates. The crate itself depends on neither.
//!
//! - **Flows.** A [`FlowKey`] is a 5-tuple in the reader's or pacer's network namespace; the
//!   protocol is TCP.
//! - **Listing.** [`FlowReader`] lists the flows with the bytes that each has sent.
//! - **The host.** [`addresses`] returns the host's addresses, [`link_rate`] the rate of its link.
//! - **Bursts.** [`set_tso_rtt_log`] makes bursts small, so that a raised limit takes effect soon.
//! - **Limits.** A limit applies to a flow or, with a socket's cookie, only to that [`Connection`]
//!   and to no later one with the same addresses. [`SocketPacer`] sets `SO_MAX_PACING_RATE` on a
//!   duplicate of the owner's descriptor, in a separate process that no program can delay for long.
//!   [`BpfPacer`] makes the kernel set the same option, also on flows of inaccessible programs and
//!   on future flows. [`HtbPacer`] shapes packets that leave through a device. Lifting a limit
//!   restores the flow's earlier rate, and so does dropping the pacer. [`Pacer`] selects a working
//!   mechanism for each flow, and returns its name. [`doctor`] lists the mechanisms that work on
//!   this machine.
//!
//! Time to change one flow's rate, among 400 idle flows (`cargo xtask bench pace` in a development
//! build, on two shared cores of a virtual machine with Linux 6.18; the best of 20 rounds):
//!
//! | mechanism | first, of 400 together | again, of 400 together | again, alone |
//! | --- | --- | --- | --- |
//! | socket | 47 us | 6.5 us | 6.5 us |
//! | BPF | 8 us | 7 us | 2.3 ms: one pass over the kernel's table of connections, whatever the number of changes |
//! | HTB | 81 us | 2.7 us | 4.8 us; 1.4 ms by forking `tc` |
//!
//! A listing takes 4 us for each flow. So a coordinator's changes are best applied in batches, as
//! in [`Pacer::set`].
//!
//! Differs: Flow Chasing marks packets in a kernel module and shapes them by HTB. Here TCP's own
//! pacing enforces the rate if possible, without a queue and without a module.
//!
//! Linux only. Read [`FlowKey`], [`FlowReader`] and [`Pacer`] first.
//!
//! ```no_run
//! use anabranch_pace::{FlowReader, Limit, Pacer, PacerOptions};
//! use anabranch_units::BitRate;
//!
//! let mut pacer = Pacer::new(&PacerOptions::default())?;
//! let listing = FlowReader::new()?.list(1_000)?;
//! let limits: Vec<_> =
//!     listing.flows.iter().map(|state| (state.flow, Limit::Rate(BitRate::mbps(100)))).collect();
//! for (state, result) in listing.flows.iter().zip(pacer.set(&limits)) {
//!     match result? {
//!         Some(mechanism) => println!("{}: by {mechanism}", state.flow),
//!         None => println!("{}: no limit", state.flow),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a driver: it opens sockets and files, and asks the kernel")]

mod bpf;
mod bursts;
mod doctor;
mod error;
mod helper;
mod host;
mod htb;
mod limit;
mod owner;
mod pacer;
mod socket;

pub use anabranch_linux::Connection;
pub use anabranch_linux::sock_diag::{FlowReader, FlowState, Listing};
pub use anabranch_units::FlowKey;
pub use bpf::BpfPacer;
pub use bursts::{set_tso_rtt_log, tso_rtt_log};
pub use doctor::doctor;
pub use error::{PaceError, StartError};
pub use host::{LinkError, addresses, link_rate};
pub use htb::HtbPacer;
pub use limit::Limit;
pub use pacer::{NoMechanism, Pacer, PacerOptions};
pub use socket::{SocketPacer, pacing_limit, set_pacing_limit};

/// Exercise for the fuzz target: parses bytes as the kernel's type information. Returns true if
/// they are valid.
#[doc(hidden)]
pub fn exercise_btf(bytes: &[u8]) -> bool {
    bpf::exercise_btf(bytes)
}

/// Maximum number of flows with a limit at the same time.
pub const FLOWS_MAX: usize = 65_536;

/// A mechanism that limits a flow to its rate.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// `SO_MAX_PACING_RATE` on the flow's socket, through a duplicate of the owner's descriptor.
    Socket,
    /// `SO_MAX_PACING_RATE`, set by a BPF program in the kernel.
    Bpf,
    /// A separate class in an HTB qdisc.
    Htb,
}

impl Mechanism {
    /// Rights and kernel features that the mechanism needs.
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
