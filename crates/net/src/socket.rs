//! TCP sockets with per-hop settings: congestion control, priority by DSCP, and a limit on the wait
//! for a dead peer.
//!
//! Leaves out: TLS (the module `tls`) and the messages of each system.

use anabranch_units::Duration;
use nix::sys::socket::{getsockopt, setsockopt, sockopt::TcpFastOpenConnect};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Options of a TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Congestion control by the kernel's name; `None` leaves the machine's default.
    pub congestion_control: Option<String>,
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
    /// Time after which unacknowledged data ends the connection (`TCP_USER_TIMEOUT`, RFC 5482);
    /// zero and `None` leave the system's own limit. Set this only for the end that never faces a
    /// closed window: Linux also counts the time for which the receiver's window is closed.
    pub user_timeout: Option<Duration>,
    /// Address of this machine that connections leave from; `None` leaves the choice to its routes.
    pub from: Option<IpAddr>,
    /// True to use TCP Fast Open (RFC 7413). If the peer permits it ([`let_open_fast`]) and this
    /// machine has connected to the peer before, the first data leaves with the first packet, a
    /// round trip sooner. [`connect`] then reports success before any packet has left, and a
    /// failure shows only at the first read or write.
    ///
    /// The peer may receive the first bytes twice, so this suits only connections that begin with a
    /// handshake, as in TLS.
    pub opens_fast: bool,
}

impl TcpOptions {
    fn apply(&self, socket: impl std::os::fd::AsFd) -> io::Result<()> {
        use rustix::net::sockopt;
        let socket = socket.as_fd();
        if let Some(name) = &self.congestion_control {
            sockopt::set_tcp_congestion(socket, name).map_err(|e| {
                io::Error::new(
                    io::Error::from(e).kind(),
                    format!(
                        "congestion control `{name}`: {e} (see net.ipv4.tcp_available_congestion_control)"
                    ),
                )
            })?;
        }
        if self.dscp > 0 {
            // The two low bits belong to ECN. An IPv6 socket that sends IPv4 needs both options.
            let _ = sockopt::set_ipv6_tclass(socket, u32::from(self.dscp) << 2);
            let _ = sockopt::set_ip_tos(socket, self.dscp << 2);
        }
        if let Some(timeout) = self.user_timeout {
            sockopt::set_tcp_user_timeout(socket, (timeout.as_us() / 1_000) as u32)?;
        }
        if self.opens_fast {
            // A kernel without TCP Fast Open connects as usual.
            let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
        }
        Ok(())
    }
}

/// Connects to `to`.
///
/// Errors: the system's, with the address in the text.
pub async fn connect(to: SocketAddr, options: &TcpOptions) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    options.apply(&socket)?;
    if let Some(from) = options.from {
        socket.bind((from, 0).into()).map_err(|e| io::Error::new(e.kind(), format!("from {from}: {e}")))?;
    }
    let stream = socket.connect(to).await.map_err(|e| io::Error::new(e.kind(), format!("{to}: {e}")))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Checks that this machine has the congestion control `name`, without a connection.
///
/// Errors: the machine lacks `name` or does not permit it to this process (the error lists the
/// available ones); the system's errors.
pub fn check_congestion_control(name: &str) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    let error = match rustix::net::sockopt::set_tcp_congestion(&socket, name) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let known = known.map_or_else(
        |_| "its own default".to_owned(),
        |k| k.split_whitespace().collect::<Vec<_>>().join(", "),
    );
    let why = match error {
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
            "not allowed to this process: run it as root, or add it to net.ipv4.tcp_allowed_congestion_control"
        }
        _ => "unknown to this machine's kernel: choose another, or load its module",
    };
    Err(io::Error::new(
        io::Error::from(error).kind(),
        format!("congestion control `{name}`: {why} (it has {known})"),
    ))
}

/// Maximum number of connections that wait to be accepted. Beyond this number the kernel drops SYN
/// packets, which the callers retransmit a second later. The kernel has its own limit, too
/// (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

/// Listens at `at`.
///
/// Errors: the system's, in the words of [`cannot_listen`].
pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(at).and_then(|()| socket.listen(BACKLOG)).map_err(|e| cannot_listen(at, &e))
}

/// Lets returning callers send data with their first packet (TCP Fast Open, RFC 7413), if the
/// machine permits it to listeners (`net.ipv4.tcp_fastopen`, bit 2).
///
/// Errors: the system's.
pub fn let_open_fast(listener: &TcpListener) -> io::Result<()> {
    Ok(setsockopt(listener, FastOpenQueue, &OPEN_FAST_MAX)?)
}

/// The kernel's smoothed round-trip time of a connection, without the processing time of the two
/// programs. `None` before the first acknowledgement.
///
/// After a lost SYN, the time until its retransmission counts, too: a second or more.
pub fn rtt(stream: &TcpStream) -> Option<std::time::Duration> {
    let info = getsockopt(stream, TcpInfo).ok()?;
    (info.tcpi_rtt > 0).then(|| std::time::Duration::from_micros(info.tcpi_rtt.into()))
}

/// Limits the unsent bytes that the kernel buffers for each connection of `listener`
/// (`TCP_NOTSENT_LOWAT`). Otherwise `net.ipv4.tcp_wmem` limits them, to 4 MB on most machines.
///
/// Errors: the system's.
pub fn bound_unsent(listener: &TcpListener, bytes: u32) -> io::Result<()> {
    Ok(setsockopt(listener, UnsentMax, &bytes)?)
}

/// Maximum number of pending callers whose first packet carried data.
const OPEN_FAST_MAX: u32 = 64;

sockopt_impl!(
    /// Queue length of fast-open callers.
    FastOpenQueue,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN,
    u32
);
sockopt_impl!(
    /// Unsent bytes above which a connection accepts no further data.
    UnsentMax,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_NOTSENT_LOWAT,
    u32
);
sockopt_impl!(
    /// The kernel's statistics of a connection.
    TcpInfo,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info
);

/// Explains in one line why listening at `at` failed: the address, the cause, the remedy.
pub fn cannot_listen(at: SocketAddr, error: &io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens there already, perhaps this daemon itself (`ss -lntup` names it): end that one, or choose \
             another address or port"
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose one of its own (`ip address` lists them)".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "not allowed to this user: choose a port from 1024 on, or run it as root".to_owned()
        }
        _ => format!("cannot listen there: {error}: choose another address or port"),
    };
    io::Error::new(error.kind(), format!("{at}: {why}"))
}

/// Applies the options to an accepted connection.
///
/// Errors: the system's.
pub fn configure(stream: &TcpStream, options: &TcpOptions) -> io::Result<()> {
    stream.set_nodelay(true)?;
    options.apply(stream)
}

/// The congestion control that a connection uses, by the kernel's name.
///
/// Errors: the system's.
pub fn congestion_control(stream: &TcpStream) -> io::Result<String> {
    use std::os::fd::AsFd;
    Ok(rustix::net::sockopt::tcp_congestion(stream.as_fd())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_uses_the_requested_congestion_control() {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let to = listener.local_addr().expect("bound");
        let options =
            TcpOptions { congestion_control: Some("reno".into()), dscp: 10, ..TcpOptions::default() };
        let stream = connect(to, &options).await.expect("a listener is there");
        assert_eq!(congestion_control(&stream).expect("linux tells"), "reno");
        let unknown = TcpOptions { congestion_control: Some("nosuch".into()), ..options };
        let error = connect(to, &unknown).await.expect_err("no such algorithm");
        assert!(error.to_string().contains("nosuch"), "{error}");
        assert_eq!(check_congestion_control("reno").map_err(|e| e.to_string()), Ok(()));
        let error = check_congestion_control("nosuch").expect_err("no such algorithm").to_string();
        assert!(error.contains("`nosuch`") && error.contains("reno"), "{error}");
    }

    /// #17: an address in use was reported by the system's error number alone.
    #[tokio::test]
    async fn impossible_listening_address_is_named_with_the_cause() {
        let first = listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let at = first.local_addr().expect("bound");
        let said = listen(at).expect_err("it is taken").to_string();
        assert!(said.starts_with(&format!("{at}: another program listens there already")), "{said}");
        // TEST-NET-1 belongs to no machine (RFC 5737).
        let said = listen(([192, 0, 2, 1], 0).into()).expect_err("not ours").to_string();
        assert!(said.starts_with("192.0.2.1:0: this machine has no such address"), "{said}");
    }
}
