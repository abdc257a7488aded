//! Which packets the kernel gives the agent: rules and a table of its own, set by iproute2's `ip`.
//!
//! Three rules stand for each peer, of which the first two let agents speak to each other by the ordinary way: TCP to the peer's agent, and TCP
//! from ours, jump over the third, by which all other TCP that begins on this host looks into the agent's table. There a peer has a route into
//! the device while packets go by datagrams, and none otherwise: then the kernel goes on to the next rules. The device goes with the agent's
//! process, and its routes with the device, so a killed agent leaves rules that lead nowhere; the next one takes them away.
//! Where the system drops packets that came by another way than answers would take (`rp_filter`), three more say the same of packets of our
//! address, wherever these are looked up: the others are none for packets that come.
//! Leaves out: forwarded packets, which keep their way. Read [`Routing`] first.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};

/// Where the program `ip` may be beside where the environment says: on many systems only root looks there.
const PLACES: [&str; 3] = ["ip", "/sbin/ip", "/usr/sbin/ip"];
/// Rules that one agent may have left: none has more.
const LEFT_MAX: usize = 6 * crate::config::PEERS_MAX;

/// Why the kernel's rules cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// The program cannot be run.
    #[error("ip: cannot be run: {0}: install iproute2")]
    NoProgram(io::Error),
    /// It refused.
    #[error("ip {command}: {said}: an agent sets routes: run it as root, or with CAP_NET_ADMIN")]
    Refused {
        /// What it was to do.
        command: String,
        /// What it said.
        said: String,
    },
}

/// A peer, as far as routes go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its address, and our own towards it.
    pub(crate) address: IpAddr,
    pub(crate) local: IpAddr,
    /// Where its agent listens.
    pub(crate) port: u16,
}

/// The rules of one agent. They are taken away when it is dropped.
#[derive(Debug)]
pub(crate) struct Routing {
    device: String,
    table: u32,
    families: Vec<bool>,
}

impl Routing {
    /// Takes away what an agent has left, and sets the rules of this one, which listens on `port`.
    ///
    /// Errors: see [`RoutingError`]; nothing stays then.
    pub(crate) fn set_up(
        device: &str,
        table: u32,
        port: u16,
        places: &[Place],
    ) -> Result<Self, RoutingError> {
        let mut families: Vec<bool> = places.iter().map(|place| place.address.is_ipv6()).collect();
        families.sort_unstable();
        families.dedup();
        let routing = Self { device: device.to_owned(), table, families };
        routing.take_away();
        let (before, after) = (table - 1, table + 1);
        let is_filtered = std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter")
            .is_ok_and(|value| value.trim() != "0");
        for is_ipv6 in &routing.families {
            let mut lines = vec![format!("rule add pref {after} nop")];
            for Place { address, local, port: theirs } in
                places.iter().filter(|place| place.address.is_ipv6() == *is_ipv6)
            {
                let to = format!("iif lo to {address} ipproto tcp");
                lines.push(format!("rule add pref {before} {to} dport {theirs} goto {after}"));
                lines.push(format!("rule add pref {before} {to} sport {port} goto {after}"));
                lines.push(format!("rule add pref {table} {to} lookup {table}"));
                if is_filtered && !is_ipv6 {
                    let back = format!("from {local} to {address} ipproto tcp");
                    for end in [format!("dport {theirs}"), format!("sport {port}")] {
                        lines.push(format!("rule add pref {before} {back} {end} goto {after}"));
                    }
                    lines.push(format!("rule add pref {table} {back} lookup {table}"));
                }
            }
            // What was set before an error goes with the value.
            ip(*is_ipv6, &lines)?;
        }
        Ok(routing)
    }

    /// Has packets for a peer come to the agent, of so many bytes at most.
    ///
    /// Errors: see [`RoutingError`].
    pub(crate) fn up(&self, place: &Place, mtu: usize) -> Result<(), RoutingError> {
        let Place { address, local, .. } = place;
        let (device, table) = (&self.device, self.table);
        let line = format!("route replace {address} dev {device} src {local} mtu {mtu} table {table}");
        ip(address.is_ipv6(), &[line])
    }

    /// Has them go the ordinary way.
    ///
    /// Errors: see [`RoutingError`].
    pub(crate) fn down(&self, place: &Place) -> Result<(), RoutingError> {
        let line = format!("route del {} dev {} table {}", place.address, self.device, self.table);
        ip(place.address.is_ipv6(), &[line])
    }

    /// Takes all rules of this number away, whoever has set them.
    fn take_away(&self) {
        let table = self.table;
        for is_ipv6 in &self.families {
            for rule in
                [format!("pref {} goto {}", table - 1, table + 1), format!("pref {table} lookup {table}")]
            {
                let mut left = LEFT_MAX;
                while left > 0 && ip(*is_ipv6, &[format!("rule del {rule}")]).is_ok() {
                    left -= 1;
                }
            }
            let _ = ip(*is_ipv6, &[format!("rule del pref {} nop", table + 1)]);
        }
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        self.take_away();
    }
}

/// Runs `ip` with these lines, until one fails.
fn ip(is_ipv6: bool, lines: &[String]) -> Result<(), RoutingError> {
    let run = |program: &str| {
        let mut command = Command::new(program);
        command.args([if is_ipv6 { "-6" } else { "-4" }, "-batch", "-"]).env("LC_ALL", "C");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().expect("it is piped");
        // It may end at the first line; what it says then is read below.
        let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
        drop(input);
        child.wait_with_output()
    };
    let mut done = run(PLACES[0]);
    for place in &PLACES[1..] {
        if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            done = run(place);
        }
    }
    let done = done.map_err(RoutingError::NoProgram)?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let number = said.lines().find_map(|line| line.strip_prefix("Command failed -:")?.parse::<usize>().ok());
    let command = number.and_then(|number| lines.get(number.checked_sub(1)?)).unwrap_or(&lines[0]).clone();
    let first = said.lines().find(|line| !line.starts_with("Command failed")).unwrap_or("no word");
    Err(RoutingError::Refused { command, said: first.trim_start_matches("Error: ").trim().to_owned() })
}
