//! Socket options that rustix lacks, each behind a safe function.
//!
//! Read [`max_pacing_rate`] and [`netns_cookie`].

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

// Linux's numbers on all architectures except Alpha, MIPS, PA-RISC and SPARC
// (include/uapi/asm-generic/socket.h).
/// Number of the `setsockopt` option that [`max_pacing_rate`] reads.
pub const SO_MAX_PACING_RATE: libc::c_int = 47;
const SO_NETNS_COOKIE: libc::c_int = 71;
const NETLINK_CAP_ACK: libc::c_int = 10;
const NETLINK_EXT_ACK: libc::c_int = 11;
const NETLINK_GET_STRICT_CHK: libc::c_int = 12;

/// Maximum rate at which the kernel paces this socket (socket(7), `SO_MAX_PACING_RATE`).
///
/// Units: bytes per second; all ones mean no limit.
/// Errors: the system's.
pub fn max_pacing_rate(socket: impl AsFd) -> Result<u64> {
    let mut bytes = [0; 8];
    // Kernels before 4.20 return only 32 bits.
    match option(socket, SO_MAX_PACING_RATE, &mut bytes)? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => {
            let [a, b, c, d, ..] = bytes;
            let rate = u32::from_ne_bytes([a, b, c, d]);
            Ok(if rate == u32::MAX { u64::MAX } else { rate.into() })
        }
    }
}

/// Sets the rate that [`max_pacing_rate`] reads.
///
/// Units: bytes per second; all ones mean no limit.
/// Errors: the system's.
pub fn set_max_pacing_rate(socket: impl AsFd, rate: u64) -> Result<()> {
    set_option(socket, SO_MAX_PACING_RATE, &rate.to_ne_bytes())
}

/// Priority of the socket's packets (socket(7), `SO_PRIORITY`).
pub fn priority(socket: impl AsFd) -> Result<u32> {
    let mut bytes = [0; 4];
    option(socket, libc::SO_PRIORITY, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Sets the priority that [`priority`] reads.
///
/// Errors: the system's.
pub fn set_priority(socket: impl AsFd, priority: u32) -> Result<()> {
    set_option(socket, libc::SO_PRIORITY, &priority.to_ne_bytes())
}

/// Cookie of the socket's network namespace (`SO_NETNS_COOKIE`).
///
/// Errors: the system's.
pub fn netns_cookie(socket: impl AsFd) -> Result<u64> {
    let mut bytes = [0; 8];
    option(socket, SO_NETNS_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Congestion window of a TCP connection (tcp(7), `TCP_INFO`).
///
/// Units: packets.
/// Errors: the system's.
pub fn window_packets(socket: impl AsFd) -> Result<u32> {
    // Offset of `tcpi_snd_cwnd` in `struct tcp_info` (include/uapi/linux/tcp.h); the kernel never
    // moves its fields.
    const AT: usize = 80;
    let mut info = [0; AT + 4];
    option_at(libc::IPPROTO_TCP, socket, libc::TCP_INFO, &mut info)?;
    let [.., a, b, c, d] = info;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Makes the kernel apply the filters in dump requests of a netlink socket (netlink(7),
/// `NETLINK_GET_STRICT_CHK`).
pub fn filter_dumps(socket: impl AsFd) -> Result<()> {
    set_option_at(libc::SOL_NETLINK, socket, NETLINK_GET_STRICT_CHK, &1_i32.to_ne_bytes())
}

/// Makes the kernel explain its refusals on a netlink socket, without a copy of the request
/// (netlink(7), `NETLINK_EXT_ACK` and `NETLINK_CAP_ACK`).
///
/// Errors: the system's.
pub fn explain_errors(socket: impl AsFd) -> Result<()> {
    for name in [NETLINK_CAP_ACK, NETLINK_EXT_ACK] {
        set_option_at(libc::SOL_NETLINK, &socket, name, &1_i32.to_ne_bytes())?;
    }
    Ok(())
}

/// Reads a `SOL_SOCKET` option, and returns the number of bytes read.
fn option(socket: impl AsFd, name: libc::c_int, value: &mut [u8]) -> Result<usize> {
    option_at(libc::SOL_SOCKET, socket, name, value)
}

fn option_at(level: libc::c_int, socket: impl AsFd, name: libc::c_int, value: &mut [u8]) -> Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, and the length to `length`; both
    // outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut length)
    };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(length as usize) }
}

fn set_option(socket: impl AsFd, name: libc::c_int, value: &[u8]) -> Result<()> {
    set_option_at(libc::SOL_SOCKET, socket, name, value)
}

fn set_option_at(level: libc::c_int, socket: impl AsFd, name: libc::c_int, value: &[u8]) -> Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
