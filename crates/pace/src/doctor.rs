//! Checks whether this machine can limit flows to rates, with the fix for each missing requirement.
//!
//! Read [`doctor`].

use std::net::{TcpListener, TcpStream};

use anabranch_linux::namespace::Namespace;
use anabranch_units::{BitRate, Finding};

use crate::{BpfPacer, FlowKey, FlowReader, HtbPacer, Limit, Mechanism, SocketPacer};

/// Tries every mechanism: on a loopback connection of this process and, for HTB, in a separate
/// network namespace. All changes are undone.
pub fn doctor() -> Vec<Finding> {
    vec![
        finding("flow listing", list(), "needs CONFIG_INET_DIAG: sudo modprobe inet_diag tcp_diag"),
        finding("rates by socket", by_socket(), Mechanism::Socket.needs()),
        finding("rates by BPF", by_bpf(), Mechanism::Bpf.needs()),
        finding("rates by HTB", by_htb(), Mechanism::Htb.needs()),
        finding("small bursts", small_bursts(), "sysctl -w net.ipv4.tcp_tso_rtt_log=0, or run as root"),
    ]
}

fn finding(name: &'static str, result: Result<String, String>, fix: &str) -> Finding {
    let ok = result.is_ok();
    Finding::new(name, ok, result.unwrap_or_else(|detail| detail), fix)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Opens a connection from this process to itself. Returns both ends, and its addresses and ports.
fn connection() -> std::io::Result<(TcpStream, TcpStream, FlowKey)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let flow = FlowKey::new(near.local_addr()?, near.peer_addr()?);
    Ok((near, far, flow))
}

/// Checks that raised limits take effect soon.
fn small_bursts() -> Result<String, String> {
    match crate::tso_rtt_log() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok("as the rate has them".into()),
        Ok(0) => Ok("as the rate has them".into()),
        // Writes the present value back, to test the permission.
        Ok(log) => crate::set_tso_rtt_log(log)
            .map(|()| format!("net.ipv4.tcp_tso_rtt_log is {log}: an agent sets it to 0 while it runs"))
            .map_err(|error| format!("raised limits take effect late: {error}")),
        Err(error) => Err(error.to_string()),
    }
}

fn list() -> Result<String, String> {
    let connection = connection().map_err(text)?;
    let found = FlowReader::new().and_then(|mut reader| reader.find(connection.2)).map_err(text)?;
    let state = found.ok_or("a connection of our own is not listed")?;
    match state.bytes_sent {
        Some(_) => Ok("tells how much each flow has sent".into()),
        None => Err("does not tell how much flows have sent: needs Linux 4.19".into()),
    }
}

/// Rate with which both mechanisms that set the option are tried.
const RATE: BitRate = BitRate::mbps(8);

fn by_socket() -> Result<String, String> {
    let connection = connection().map_err(text)?;
    let mut pacer = SocketPacer::new().map_err(text)?;
    pacer
        .set(&[(connection.2, Limit::Rate(RATE))])
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .map_err(text)?;
    took_effect(&connection.0)?;
    Ok(if rustix::process::geteuid().is_root() {
        "a duplicated descriptor takes a rate".into()
    } else {
        "a duplicated descriptor takes a rate; other users' programs need root".into()
    })
}

fn by_bpf() -> Result<String, String> {
    let connection = connection().map_err(text)?;
    let mut pacer = BpfPacer::new(None).map_err(text)?;
    pacer
        .set(&[(connection.2, Limit::Rate(RATE))])
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .map_err(text)?;
    took_effect(&connection.0)?;
    Ok("programs load, attach and set a rate".into())
}

fn took_effect(stream: &TcpStream) -> Result<(), String> {
    match crate::pacing_limit(stream).map_err(text)? {
        Some(RATE) => Ok(()),
        other => Err(format!("{RATE} was set, but the socket says {other:?}")),
    }
}

/// Tries HTB on the loopback device of a new network namespace.
fn by_htb() -> Result<String, String> {
    let tried = Namespace::new_network()
        .and_then(|namespace| namespace.run(|| HtbPacer::new("lo").map(drop).map_err(text)))
        .map_err(|error| format!("no network namespace to try it in: {error}"))?;
    tried?;
    Ok("a qdisc and filters can be made".into())
}
