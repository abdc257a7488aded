//! Listening ports that no rule covers: no rule announces the flows of their connections.
//!
//! Leaves out: rules by address, because a listening port does not show its peers' addresses. Read
//! [`name_uncovered`].

use anabranch_pace::FlowReader;
use anabranch_shuffle_proto::rules::Rules;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Interval between two listings of listening ports.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of ports in one line of the log.
const NAMED_MAX: usize = 16;

/// Logs each uncovered listening port once, for as long as a program listens on it.
pub(super) async fn name_uncovered(rules: Rules) -> Infallible {
    let mut named = BTreeSet::new();
    loop {
        let listed = spawn_blocking(|| FlowReader::new()?.listeners()).await;
        match listed.map_err(std::io::Error::other).and_then(|listed| listed) {
            Ok(listening) => {
                if let Some(line) = uncovered(&listening, &rules, &mut named) {
                    tracing::info!("{line}");
                }
            }
            Err(error) => tracing::debug!("listening ports cannot be listed: {error}"),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns a log line with the uncovered ports that are not in `named`, or `None` without such
/// ports. Sets `named` to all uncovered ports. Loopback addresses do not count, because their flows
/// do not leave the host.
fn uncovered(listening: &BTreeSet<SocketAddr>, rules: &Rules, named: &mut BTreeSet<u16>) -> Option<String> {
    let outer = listening.iter().filter(|at| !at.ip().to_canonical().is_loopback());
    let ports: BTreeSet<u16> = outer.map(SocketAddr::port).filter(|port| !rules.covers_port(*port)).collect();
    let before = std::mem::replace(named, ports.clone());
    let new: Vec<String> = ports.difference(&before).map(u16::to_string).collect();
    let (shown, more) = new.split_at(new.len().min(NAMED_MAX));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    let shown = shown.join(", ");
    (!new.is_empty())
        .then(|| format!("no rule covers the listening ports {shown}{more}: their flows are not announced"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_uncovered_port_is_logged_once() {
        let rules = "[[rule]]\nlocal_port = \"7400-7415\"\ncoflow = \"a\"\n".parse().expect("rules");
        let at = |ip: [u8; 4], port| SocketAddr::from((ip, port));
        let mut listening = BTreeSet::from([
            at([0; 4], 7_400),
            at([0; 4], 7_416),
            at([127, 0, 0, 1], 9),
            at([10, 0, 0, 1], 22),
        ]);
        let mut named = BTreeSet::new();
        let line = "no rule covers the listening ports 22, 7416: their flows are not announced";
        assert_eq!(uncovered(&listening, &rules, &mut named).as_deref(), Some(line));
        assert_eq!(uncovered(&listening, &rules, &mut named), None);
        // A port is logged again after its program has stopped and started again.
        listening.remove(&at([0; 4], 7_416));
        assert_eq!(uncovered(&listening, &rules, &mut named), None);
        listening.insert(at([0; 4], 7_416));
        let line = "no rule covers the listening ports 7416: their flows are not announced";
        assert_eq!(uncovered(&listening, &rules, &mut named).as_deref(), Some(line));
        listening.extend((8_000..8_020).map(|port| at([0; 4], port)));
        let line = uncovered(&listening, &rules, &mut named).expect("they are new");
        assert!(line.ends_with(" 8015 and 4 more: their flows are not announced"), "{line}");
    }

    #[test]
    fn kernel_lists_listening_ports() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let at = listener.local_addr().expect("bound");
        let listed = FlowReader::new().and_then(|mut reader| reader.listeners()).expect("netlink");
        assert!(listed.contains(&at), "{at}: {listed:?}");
    }
}
