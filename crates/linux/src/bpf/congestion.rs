//! Congestion controls for TCP made of BPF programs (`struct_ops`).
//!
//! A control is a structure of functions, `struct tcp_congestion_ops`, whose members are BPF programs. Programs choose a
//! control by its name (tcp(7), `TCP_CONGESTION`). It is registered in every network namespace. A BPF link holds the registration:
//! the kernel removes it with the link's descriptor, also when the process is killed, and connections that use the control
//! keep it until they close.
//!
//! Source: the kernel's include/net/tcp.h (`struct tcp_congestion_ops`), kernel/bpf/bpf_struct_ops.c, net/ipv4/bpf_tcp_ca.c.
//! Needs Linux 6.4 with `CONFIG_DEBUG_INFO_BTF` and `CONFIG_BPF_JIT`, CAP_BPF and CAP_NET_ADMIN. Leaves out: structures of other kinds.
//! Read [`CongestionControl`].

use std::io;
use std::os::fd::OwnedFd;

use super::btf::{self, Btf};
use super::sys;

/// The structure of functions.
const OPS: &str = "tcp_congestion_ops";
/// The map's value: the kernel's own fields, then the structure as member `data`.
const VALUE: &str = "bpf_struct_ops_tcp_congestion_ops";
/// Flag: programs without CAP_NET_ADMIN may choose the control, and a network namespace may have it as its default.
pub const UNRESTRICTED: u32 = 1;
/// Flag: connections under the control negotiate ECN, whatever `net.ipv4.tcp_ecn` says.
pub const NEEDS_ECN: u32 = 2;
/// Longest name (`TCP_CA_NAME_MAX`, less the zero behind it).
pub(super) const NAME_BYTES_MAX: usize = 15;
/// Largest value. The kernel's is below 1 KiB; a larger size is damage.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Lines of the verifier's log kept in an error. The last lines hold the reason.
const LOG_LINES: usize = 4;
/// Advice beside the kernel's refusal.
pub(super) const NEEDS: &str = "needs Linux 6.4, CAP_BPF and CAP_NET_ADMIN: run as root";

/// Why a control is not registered.
#[derive(Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The kernel takes no such name.
    Name {
        /// The name.
        name: String,
    },
    /// The kernel's types lack a structure or a member.
    Missing {
        /// Its name.
        name: String,
    },
    /// The kernel refuses a program.
    Program {
        /// The member that it is for.
        member: String,
        /// The error number.
        error: io::Error,
        /// The verifier's last lines.
        log: String,
    },
    /// Another control has the name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// The kernel refuses the control.
    Refused {
        /// The step that failed.
        step: &'static str,
        /// The error number.
        error: io::Error,
    },
}

impl std::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name { name } => {
                write!(
                    f,
                    "congestion control `{name}`: must be 1 to {NAME_BYTES_MAX} letters, digits, `_` or `.`"
                )
            }
            Self::Missing { name } => {
                write!(f, "this kernel's types lack `{name}`: Linux 6.4 with CONFIG_DEBUG_INFO_BTF is needed")
            }
            // Without a log the kernel refused before it looked at the program.
            Self::Program { member, error, log } if log.is_empty() => {
                write!(f, "program for `{member}`: {error}: {NEEDS}")
            }
            Self::Program { member, error, log } => write!(f, "program for `{member}`: {error}: {log}"),
            Self::NameTaken { name } => {
                write!(f, "congestion control `{name}`: is registered already: take another name")
            }
            Self::Refused { step, error } => write!(f, "cannot {step}: {error}: {NEEDS}"),
        }
    }
}

impl std::error::Error for RegisterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Program { error, .. } | Self::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A registered control. Dropping it removes the registration.
#[derive(Debug)]
pub struct CongestionControl {
    _link: OwnedFd,
}

impl CongestionControl {
    /// Registers a control. `programs` are members of `struct tcp_congestion_ops` and their instructions; the kernel demands `ssthresh`,
    /// `undo_cwnd`, and one of `cong_avoid` and `cong_control`. `types` are the kernel's; `flags` is a sum of [`UNRESTRICTED`] and
    /// [`NEEDS_ECN`].
    ///
    /// Errors: see [`RegisterError`]; nothing stays then.
    pub fn register(
        types: &Btf<'_>,
        name: &str,
        flags: u32,
        programs: &[(&str, Vec<u64>)],
    ) -> Result<Self, RegisterError> {
        check_name(name)?;
        let missing = |name: &str| RegisterError::Missing { name: name.to_owned() };
        let (ops, _) = types.structure(OPS).ok_or_else(|| missing(OPS))?;
        let (value_type, value_bytes) = types.structure(VALUE).ok_or_else(|| missing(VALUE))?;
        let data = types.member(value_type, "data").ok_or_else(|| missing("data"))?;
        if value_bytes > VALUE_BYTES_MAX {
            return Err(missing(VALUE));
        }
        let mut value = vec![0; value_bytes];
        let mut put = |member: &str, offset: usize, bytes: &[u8]| {
            let at = data.offset_bytes + offset;
            let room = value.get_mut(at..at + bytes.len()).ok_or_else(|| missing(member))?;
            room.copy_from_slice(bytes);
            Ok(())
        };
        let place = |member: &str| types.member(ops, member).ok_or_else(|| missing(member));
        put("name", place("name")?.offset_bytes, name.as_bytes())?;
        put("flags", place("flags")?.offset_bytes, &flags.to_ne_bytes())?;
        let mut loaded = Vec::new();
        for (member, code) in programs {
            let place = place(member)?;
            let program = sys::load_struct_ops(name, code, ops, place.index);
            let program = program.map_err(|error| RegisterError::Program {
                member: (*member).to_owned(),
                error,
                log: last_lines(&sys::struct_ops_log(code, ops, place.index)),
            })?;
            // The kernel reads a pointer's worth of descriptor.
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&program) as u64;
            put(member, place.offset_bytes, &descriptor.to_ne_bytes())?;
            loaded.push(program);
        }
        let refused = |step| move |error| RegisterError::Refused { step, error };
        let own_types = sys::load_btf(&btf::one_integer()).map_err(refused("load type information"))?;
        let map = sys::make_struct_ops_map(name, &own_types, value_type, &value)
            .map_err(refused("make the control"))?;
        let link = sys::link_struct_ops(&map).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RegisterError::NameTaken { name: name.to_owned() },
            _ => RegisterError::Refused { step: "register the control", error },
        })?;
        Ok(Self { _link: link })
    }
}

/// Names of all structures of functions made of BPF programs: controls, and other kinds such as schedulers. A removed control is
/// listed until its last connection has closed and the kernel has freed it.
///
/// Errors: the system's; listing needs CAP_SYS_ADMIN.
pub fn registered() -> io::Result<Vec<String>> {
    sys::struct_ops_maps()
}

/// Errors: the kernel takes no such name.
pub(super) fn check_name(name: &str) -> Result<(), RegisterError> {
    if is_good_name(name) { Ok(()) } else { Err(RegisterError::Name { name: name.to_owned() }) }
}

/// Whether the kernel takes the name, for its map as for the control.
fn is_good_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_good)
}

/// The lines of a verifier's log that hold its reason.
pub(super) fn last_lines(log: &str) -> String {
    // The very last line counts instructions.
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_at_both_bounds_only() {
        for (name, expected) in [
            ("r", true),
            ("retcp_cubic.123", true),
            ("", false),
            ("retcp_cubic.1234", false),
            ("re tcp", false),
            ("re\u{e9}", false),
        ] {
            assert_eq!(is_good_name(name), expected, "{name:?}");
        }
    }

    #[test]
    fn a_kernel_without_the_structure_is_told_apart() {
        let bytes = btf::one_integer();
        let types = Btf::parse(&bytes).expect("well formed");
        let error = CongestionControl::register(&types, "none", 0, &[]).expect_err("no such structure");
        assert!(error.to_string().contains("tcp_congestion_ops"), "{error}");
    }
}
