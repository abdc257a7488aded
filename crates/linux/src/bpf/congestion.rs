//! TCP congestion controls made of BPF programs (`struct_ops`).
//!
//! A congestion control is a structure of functions, `struct tcp_congestion_ops`, whose members are
//! BPF programs. Programs choose a congestion control by its name (tcp(7), `TCP_CONGESTION`). The
//! congestion control is registered in every network namespace. A BPF link holds the registration:
//! the kernel removes it with the link's descriptor, also when the process is killed. Connections
//! that use the congestion control keep it until they close.
//!
//! Source: the kernel's include/net/tcp.h (`struct tcp_congestion_ops`),
//! kernel/bpf/bpf_struct_ops.c, net/ipv4/bpf_tcp_ca.c. Needs Linux 6.4 with `CONFIG_DEBUG_INFO_BTF`
//! and `CONFIG_BPF_JIT`, CAP_BPF and CAP_NET_ADMIN. Leaves out: structures of other kinds. Read
//! [`CongestionControl`].

use std::io;
use std::os::fd::OwnedFd;

use super::btf::{self, Btf};
use super::sys;

/// Name of the structure of functions.
const OPS: &str = "tcp_congestion_ops";
/// Name of the map's value type: the kernel's own fields, then the structure as member `data`.
const VALUE: &str = "bpf_struct_ops_tcp_congestion_ops";
/// Flag: programs without CAP_NET_ADMIN may choose the congestion control, and it may be a network
/// namespace's default.
pub const UNRESTRICTED: u32 = 1;
/// Flag: connections under the congestion control negotiate ECN, regardless of `net.ipv4.tcp_ecn`.
pub const NEEDS_ECN: u32 = 2;
/// Maximum length of a name in bytes (`TCP_CA_NAME_MAX`, without the terminating zero).
pub(super) const NAME_BYTES_MAX: usize = 15;
/// Maximum size of a map value in bytes. The kernel's value is below 1 KiB; a larger size means
/// damaged type information.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Number of lines of the verifier's log that are kept in an error. The last lines hold the reason.
const LOG_LINES: usize = 4;
/// Advice that follows the kernel's refusal in a message.
pub(super) const NEEDS: &str = "needs Linux 6.4, CAP_BPF and CAP_NET_ADMIN: run as root";

/// Reason why a congestion control is not registered.
#[derive(Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The kernel does not accept this name.
    Name {
        /// The name.
        name: String,
    },
    /// The kernel's types lack a structure or a member.
    Missing {
        /// Name of the missing structure or member.
        name: String,
    },
    /// The kernel refuses a program.
    Program {
        /// Member of the structure for which the program is.
        member: String,
        /// The error number.
        error: io::Error,
        /// Last lines of the verifier's log.
        log: String,
    },
    /// Another congestion control already has this name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// The kernel refuses the congestion control.
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
            // An empty log means that the kernel refused before it verified the program.
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

/// A registered congestion control. Dropping it removes the registration.
#[derive(Debug)]
pub struct CongestionControl {
    _link: OwnedFd,
}

impl CongestionControl {
    /// Registers a congestion control. `programs` are members of `struct tcp_congestion_ops` with
    /// their instructions. The kernel requires `ssthresh`, `undo_cwnd`, and one of `cong_avoid` and
    /// `cong_control`. `types` is the kernel's type information; `flags` is a sum of
    /// [`UNRESTRICTED`] and [`NEEDS_ECN`].
    ///
    /// Errors: see [`RegisterError`]; no part of the congestion control is then left.
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
            // The kernel reads a descriptor in the size of a pointer.
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

/// Names of all registered structures of functions that are made of BPF programs: congestion
/// controls, and other kinds such as schedulers. A removed congestion control is listed until its
/// last connection has closed and the kernel has freed it.
///
/// Errors: the system's; listing needs CAP_SYS_ADMIN.
pub fn registered() -> io::Result<Vec<String>> {
    sys::struct_ops_maps()
}

/// Errors: the kernel does not accept this name.
pub(super) fn check_name(name: &str) -> Result<(), RegisterError> {
    if is_good_name(name) { Ok(()) } else { Err(RegisterError::Name { name: name.to_owned() }) }
}

/// Returns true if the kernel accepts the name, both for the map and for the congestion control.
fn is_good_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_good)
}

/// Last lines of a verifier's log, which hold its reason.
pub(super) fn last_lines(log: &str) -> String {
    // The final line only counts instructions.
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_control_names_are_accepted_up_to_their_limits() {
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
    fn kernel_without_the_structure_is_reported_as_missing() {
        let bytes = btf::one_integer();
        let types = Btf::parse(&bytes).expect("well formed");
        let error = CongestionControl::register(&types, "none", 0, &[]).expect_err("no such structure");
        assert!(error.to_string().contains("tcp_congestion_ops"), "{error}");
    }
}
