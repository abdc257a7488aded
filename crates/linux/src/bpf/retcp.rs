//! reTCP over one of three congestion controls, registered as BPF programs: Reno, CUBIC or DCTCP.
//!
//! reTCP is for networks of circuits and packets. The switch marks acknowledgements while a flow's
//! circuit is up, or will soon be. The sender doubles its window when the mark appears, and halves
//! it when the mark disappears. Between these transitions, the base congestion control sets the
//! window:
//!
//! | base | implementation | clock |
//! | --- | --- | --- |
//! | [`Base::Reno`] | the kernel's Reno | none |
//! | [`Base::Cubic`] | the kernel's CUBIC | time since the last loss, stretched by `dilation` |
//! | [`Base::Dctcp`] | programs of this room | none |
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions* (CMU-CS-18-106, 2018),
//! §2.4.4: a factor of 2 on the 0 -> 1 transition of the mark, of 0.5 on the 1 -> 0 transition.
//! Differs: the original changes the kernel to read ECE without ECN; here a program of the cgroup
//! reads ECE. Leaves out: IPv6 extension headers; with [`Mark::Ece`], connections that choose the
//! congestion control after they are established. Read [`attach`] and [`ControlSpec`].

mod cubic;
mod dctcp;
mod fields;
mod marks;
mod reno;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use anabranch_units::Dilation;
use rustix::fs::{Mode, OFlags};

use super::btf::{Btf, VMLINUX};
use super::congestion::{
    CongestionControl, NEEDS, NEEDS_ECN, RegisterError, UNRESTRICTED, check_name, last_lines,
};
use super::sys::{self, CgroupHook, Map, SocketStorage};
use crate::cgroup;
use fields::Fields;

/// Largest DSCP (RFC 2474, section 3: six bits).
const DSCP_MAX: u8 = 63;

/// The congestion control between transitions of the mark.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// Reno, by the kernel's own functions.
    Reno,
    /// CUBIC, by the kernel's own functions.
    Cubic,
    /// DCTCP (RFC 8257), by programs of this room, because kernels may lack it. Connections
    /// negotiate ECN.
    Dctcp,
}

/// The mark on an acknowledgement while the flow's circuit is up.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// ECE in the TCP header. Only for connections without ECN, which gives ECE another meaning.
    Ece,
    /// This DSCP in the IP header. ECN may be on.
    Dscp(u8),
}

/// A congestion control to register.
#[derive(Copy, Clone, Debug)]
pub struct ControlSpec<'a> {
    /// Name by which programs choose the congestion control: 1 to 15 letters, digits, `_` or `.`.
    pub name: &'a str,
    /// Congestion control between transitions of the mark.
    pub base: Base,
    /// Mark to which reTCP reacts. `None` for the base congestion control alone.
    pub mark: Option<Mark>,
    /// Time dilation: CUBIC counts one second for as many real seconds as the factor.
    pub dilation: Dilation,
}

/// Counters of a congestion control, over all its connections.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RetcpCounts {
    /// Acknowledgements that arrived.
    pub acks: u64,
    /// Acknowledgements that carried the mark.
    pub marked_acks: u64,
    /// Windows doubled.
    pub jumps_up: u64,
    /// Windows halved because the mark disappeared.
    pub jumps_down: u64,
}

/// Index of each counter of [`RetcpCounts`] in the kernel's array.
#[derive(Copy, Clone, Debug)]
enum Counter {
    Acks,
    MarkedAcks,
    JumpsUp,
    JumpsDown,
}

impl Counter {
    const COUNT: u32 = 4;
}

/// Reason why a congestion control is not attached.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// ECE is the mark, but DCTCP negotiates ECN, which uses ECE.
    EceWithEcn,
    /// The DSCP is out of range, or is 0, the DSCP of unmarked packets.
    Dscp {
        /// The requested DSCP.
        value: u8,
    },
    /// The kernel's types lack a structure, a field or a function.
    Missing {
        /// Name of the missing structure, field or function.
        name: String,
    },
    /// The congestion control could not be registered.
    Register(RegisterError),
    /// The kernel refuses a program that reads marks.
    Watcher {
        /// The error number.
        error: io::Error,
        /// Last lines of the verifier's log.
        log: String,
    },
    /// The system refused a step.
    Refused {
        /// The step that failed.
        step: &'static str,
        /// The error number.
        error: io::Error,
    },
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EceWithEcn => {
                write!(f, "mark ECE under DCTCP: ECN has ECE there: mark by DSCP")
            }
            Self::Dscp { value } => write!(f, "mark DSCP {value}: must be from 1 to {DSCP_MAX}"),
            Self::Missing { name } => {
                write!(f, "this kernel lacks `{name}`: Linux 6.4 with CONFIG_DEBUG_INFO_BTF is needed")
            }
            Self::Register(error) => write!(f, "{error}"),
            Self::Watcher { error, log } => write!(f, "program that reads marks: {error}: {log}"),
            Self::Refused { step, error } => write!(f, "cannot {step}: {error}: {NEEDS}"),
        }
    }
}

impl std::error::Error for AttachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Register(error) => Some(error),
            Self::Watcher { error, .. } | Self::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<RegisterError> for AttachError {
    fn from(error: RegisterError) -> Self {
        Self::Register(error)
    }
}

/// A registered congestion control. Dropping it removes the registration; connections that use the
/// congestion control keep it until they close.
#[derive(Debug)]
pub struct Retcp {
    _control: CongestionControl,
    _watcher: Option<OwnedFd>,
    counters: Map<4, 8>,
}

impl Retcp {
    /// The counters so far. All are zero if the congestion control has no mark.
    ///
    /// Errors: the system's.
    pub fn counts(&self) -> io::Result<RetcpCounts> {
        let read = |counter: Counter| -> io::Result<u64> {
            let value = self.counters.find(&(counter as u32).to_ne_bytes())?;
            Ok(value.map_or(0, u64::from_ne_bytes))
        };
        Ok(RetcpCounts {
            acks: read(Counter::Acks)?,
            marked_acks: read(Counter::MarkedAcks)?,
            jumps_up: read(Counter::JumpsUp)?,
            jumps_down: read(Counter::JumpsDown)?,
        })
    }
}

/// Returns true if the kernel still has programs or maps of a congestion control with this name.
/// They exist while its guard or one of its connections exists.
///
/// Errors: the system's; listing needs CAP_SYS_ADMIN.
pub fn is_left(name: &str) -> io::Result<bool> {
    Ok(sys::count_named(name)? != (0, 0))
}

/// Registers a congestion control in every network namespace. Marks are read for connections of
/// programs in `cgroup` or below it; `None` is the root cgroup, so marks are read for all programs.
/// No default congestion control changes: programs or sysctls choose the congestion control by its
/// name.
///
/// ```no_run
/// # // no_run: it needs root and a kernel with BPF.
/// use anabranch_linux::bpf::retcp::{Base, ControlSpec, Mark, attach};
///
/// let dilation = anabranch_units::Dilation::try_from(20)?;
/// let mark = Some(Mark::Dscp(46));
/// let settings = ControlSpec { name: "retcp", base: Base::Cubic, mark, dilation };
/// let retcp = attach(&settings, None)?;
/// // Run programs in a namespace where net.ipv4.tcp_congestion_control is "retcp".
/// println!("{} jumps up", retcp.counts()?.jumps_up);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Errors: settings out of range; a part that this kernel lacks or refuses. No part of the
/// congestion control is then left.
pub fn attach(settings: &ControlSpec<'_>, cgroup: Option<&Path>) -> Result<Retcp, AttachError> {
    check(settings)?;
    let refused = |step| move |error| AttachError::Refused { step, error };
    let bytes = std::fs::read(VMLINUX).map_err(refused("read the kernel's types"))?;
    let types = Btf::parse(&bytes).ok_or_else(|| AttachError::Missing { name: "types (BTF)".to_owned() })?;
    let fields = Fields::new(&types)?;
    let counters = Map::new_array(settings.name, Counter::COUNT).map_err(refused("make counters"))?;
    let storage = match settings.mark {
        Some(_) => Some(SocketStorage::new(settings.name).map_err(refused("make storage for marks"))?),
        None => None,
    };
    let marks = settings.mark.zip(storage.as_ref()).map(|(mark, storage)| marks::Marks {
        mark,
        storage: storage.raw_fd(),
        counters: counters.raw_fd(),
    });
    let programs = match settings.base {
        Base::Reno => reno::programs(&fields, marks)?,
        Base::Cubic => cubic::programs(&fields, marks, settings.dilation.factor())?,
        Base::Dctcp => dctcp::programs(&fields, marks)?,
    };
    let watcher = match marks {
        Some(marks) => Some(watch(marks, settings.name, &fields, cgroup)?),
        None => None,
    };
    let flags = UNRESTRICTED | if settings.base == Base::Dctcp { NEEDS_ECN } else { 0 };
    let control = CongestionControl::register(&types, settings.name, flags, &programs)?;
    Ok(Retcp { _control: control, _watcher: watcher, counters })
}

fn check(settings: &ControlSpec<'_>) -> Result<(), AttachError> {
    check_name(settings.name)?;
    match settings.mark {
        Some(Mark::Ece) if settings.base == Base::Dctcp => return Err(AttachError::EceWithEcn),
        Some(Mark::Dscp(value)) if !(1..=DSCP_MAX).contains(&value) => {
            return Err(AttachError::Dscp { value });
        }
        _ => {}
    }
    Ok(())
}

/// Attaches the program that reads marks to the cgroup, and returns the link.
fn watch(
    marks: marks::Marks,
    name: &str,
    fields: &Fields<'_>,
    cgroup: Option<&Path>,
) -> Result<OwnedFd, AttachError> {
    let refused = |step| move |error| AttachError::Refused { step, error };
    let root = match cgroup {
        Some(path) => path.to_owned(),
        None => cgroup::root().map_err(refused("find a cgroup2 file system"))?,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cgroup = rustix::fs::open(&root, flags, Mode::empty())
        .map_err(|error| refused("open the cgroup")(error.into()))?;
    let (hook, code) = match marks.mark {
        Mark::Ece => (CgroupHook::SockOps, marks::watch_ece(marks.storage, name, fields)?),
        Mark::Dscp(value) => (CgroupHook::Ingress, marks::watch_dscp(marks.storage, value, fields)?),
    };
    let program = sys::load_for_cgroup(name, &code, hook)
        .map_err(|error| AttachError::Watcher { error, log: last_lines(&sys::cgroup_log(&code, hook)) })?;
    sys::attach_to_cgroup(&program, &cgroup, hook).map_err(refused("attach to the cgroup"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let good =
            ControlSpec { name: "retcp", base: Base::Reno, mark: Some(Mark::Ece), dilation: Dilation::NONE };
        let check = |settings: ControlSpec<'_>| check(&settings).map_err(|error| error.to_string());
        assert_eq!(check(good), Ok(()));
        for mark in [Mark::Dscp(1), Mark::Dscp(DSCP_MAX)] {
            assert_eq!(check(ControlSpec { mark: Some(mark), ..good }), Ok(()));
        }
        for (settings, words) in [
            (ControlSpec { name: "a name that is too long", ..good }, "1 to 15"),
            (ControlSpec { base: Base::Dctcp, ..good }, "ECE under DCTCP"),
            (ControlSpec { mark: Some(Mark::Dscp(0)), ..good }, "DSCP 0"),
            (ControlSpec { mark: Some(Mark::Dscp(DSCP_MAX + 1)), ..good }, "DSCP 64"),
        ] {
            let error = check(settings).expect_err("out of range");
            assert!(error.contains(words), "{error}");
        }
    }
}
