//! The kernel's rules, routes and devices that concern an agent: lists and changes.
//!
//! An agent's device has the table's number in its alias. The device ends with its process, so the
//! alias shows other agents that this agent runs. Leaves out: netlink
//! (`anabranch_linux::rtnetlink`), and the choice of rules and routes (`spray_proto::kernel`). Read
//! [`Kernel`] first.

use anabranch_linux::netlink::Result;
use anabranch_linux::rtnetlink::{self as linux, IpProtocol, LinkChange, Prefix, Rtnetlink};
use anabranch_spray_proto::kernel::{PROTOCOL, Port, Route, Rule, RuleAction, Selector};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Alias of an agent's device up to the table's number.
const ALIAS: &str = "anabranch spray, table ";
/// Input device of packets that originate on this host.
const LOOPBACK: &str = "lo";

/// A socket to the kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    rtnetlink: Rtnetlink,
}

impl Kernel {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// Errors: the system's.
    pub(crate) fn open() -> Result<Self> {
        Ok(Self { rtnetlink: Rtnetlink::open()? })
    }

    /// Lists the rules of one address family that have the form of agents' rules.
    ///
    /// Errors: the system's.
    pub(crate) fn rules(&mut self, is_ipv6: bool) -> Result<Vec<Rule>> {
        Ok(self.rtnetlink.rules(is_ipv6)?.iter().filter_map(read_rule).collect())
    }

    /// Lists the host routes of one table and address family, each with the index of its device.
    ///
    /// Errors: the system's.
    pub(crate) fn routes(&mut self, is_ipv6: bool, table: u32) -> Result<Vec<(u32, Route)>> {
        let routes = self.rtnetlink.routes(is_ipv6, table)?;
        Ok(routes.iter().filter_map(read_route).collect())
    }

    /// Returns whether a device is up; `None` if it does not exist.
    ///
    /// Errors: the system's.
    pub(crate) fn device_is_up(&mut self, index: u32) -> Result<Option<bool>> {
        Ok(self.rtnetlink.link(index)?.map(|link| link.is_up))
    }

    /// Lists the tables of running agents.
    ///
    /// Errors: the system's.
    pub(crate) fn live_tables(&mut self) -> Result<BTreeSet<u32>> {
        let table = |link: &linux::Link| link.alias.as_deref()?.strip_prefix(ALIAS)?.parse().ok();
        Ok(self.rtnetlink.links()?.iter().filter_map(table).collect())
    }

    /// Gives a device the alias by which other agents see that an agent with this table runs.
    ///
    /// Errors: the kernel's.
    pub(crate) fn mark_device(&mut self, index: u32, table: u32) -> Result<()> {
        let alias = format!("{ALIAS}{table}");
        self.rtnetlink.change_link(index, &LinkChange { alias: Some(&alias), ..LinkChange::default() })
    }

    /// Sets a device up.
    ///
    /// Errors: the kernel's.
    pub(crate) fn raise_device(&mut self, index: u32) -> Result<()> {
        self.rtnetlink.change_link(index, &LinkChange { set_up: true, ..LinkChange::default() })
    }

    /// Returns true if TCP from this host to `to` leaves through `device`. False without a route.
    ///
    /// Errors: the system's.
    pub(crate) fn goes_by(&mut self, to: IpAddr, device: u32) -> Result<bool> {
        Ok(self.rtnetlink.device_towards(to, IpProtocol::Tcp)? == Some(device))
    }

    /// Adds a rule.
    ///
    /// Errors: the kernel's.
    pub(crate) fn add_rule(&mut self, rule: &Rule) -> Result<()> {
        self.rtnetlink.add_rule(&write_rule(rule))
    }

    /// Deletes a rule.
    ///
    /// Errors: the kernel's.
    pub(crate) fn delete_rule(&mut self, rule: &Rule) -> Result<()> {
        self.rtnetlink.delete_rule(&write_rule(rule))
    }

    /// Sets a route into a device.
    ///
    /// Errors: the kernel's.
    pub(crate) fn set_route(&mut self, table: u32, device: u32, route: &Route) -> Result<()> {
        self.rtnetlink.set_route(&linux::Route {
            from: Some(route.from),
            mtu_bytes: Some(route.mtu_bytes),
            ..route_to(table, device, route.to)
        })
    }

    /// Deletes a route into a device.
    ///
    /// Errors: the kernel's.
    pub(crate) fn delete_route(&mut self, table: u32, device: u32, to: IpAddr) -> Result<()> {
        self.rtnetlink.delete_route(&route_to(table, device, to))
    }

    /// Deletes the rules of the agent with this table. Returns how many of them remain in the
    /// kernel.
    ///
    /// Errors: the kernel does not list its rules.
    pub(crate) fn delete_rules(&mut self, table: u32) -> Result<usize> {
        for rule in self.rules_of(table)? {
            // The count below includes a rule that could not be deleted.
            let _ = self.delete_rule(&rule);
        }
        Ok(self.rules_of(table)?.len())
    }

    fn rules_of(&mut self, table: u32) -> Result<Vec<Rule>> {
        let mut rules = self.rules(false)?;
        // A kernel without IPv6 has no rules for it.
        rules.extend(self.rules(true).unwrap_or_default());
        rules.retain(|rule| rule.table() == Some(table));
        Ok(rules)
    }

    /// Deletes all routes of a table. Returns their number.
    pub(crate) fn delete_routes(&mut self, table: u32) -> usize {
        let mut count = 0;
        for is_ipv6 in [false, true] {
            for (device, route) in self.routes(is_ipv6, table).unwrap_or_default() {
                count += usize::from(self.delete_route(table, device, route.to).is_ok());
            }
        }
        count
    }
}

fn route_to(table: u32, device: u32, to: IpAddr) -> linux::Route {
    let to = Prefix::host(to);
    linux::Route { table, device, to, from: None, mtu_bytes: None, quick_ack: false, protocol: PROTOCOL }
}

/// Converts a host route; `None` for any other route.
fn read_route(route: &linux::Route) -> Option<(u32, Route)> {
    let to = route.to.address;
    // An agent's route always has a source and an MTU. The values for a route without them differ
    // from every agent's route.
    let (from, mtu_bytes) = (route.from.unwrap_or(to), route.mtu_bytes.unwrap_or(0));
    route.to.is_host().then_some((route.device, Route { to, from, mtu_bytes }))
}

fn write_rule(rule: &Rule) -> linux::Rule {
    let port = rule.selector.and_then(|selector| selector.port);
    linux::Rule {
        priority: rule.priority,
        is_ipv6: rule.is_ipv6,
        action: match rule.action {
            RuleAction::Lookup(table) => linux::RuleAction::Lookup(table),
            RuleAction::Goto(target) => linux::RuleAction::Goto(target),
            RuleAction::Nop => linux::RuleAction::Nop,
        },
        protocol: rule.protocol,
        from: rule.selector.and_then(|selector| selector.from).map(Prefix::host),
        to: rule.selector.map(|selector| Prefix::host(selector.to)),
        device_in: rule.selector.filter(|selector| selector.from.is_none()).map(|_| LOOPBACK.to_owned()),
        ip_protocol: rule.selector.map(|_| IpProtocol::Tcp),
        source_port: match port {
            Some(Port::Source(port)) => Some(port),
            _ => None,
        },
        destination_port: match port {
            Some(Port::Destination(port)) => Some(port),
            _ => None,
        },
        has_unknown: false,
    }
}

/// Converts a rule of the form that agents use; `None` for any other rule.
fn read_rule(rule: &linux::Rule) -> Option<Rule> {
    let action = match rule.action {
        linux::RuleAction::Lookup(table) => RuleAction::Lookup(table),
        linux::RuleAction::Goto(target) => RuleAction::Goto(target),
        linux::RuleAction::Nop => RuleAction::Nop,
    };
    let port = match (rule.source_port, rule.destination_port) {
        (Some(_), Some(_)) => return None,
        (Some(port), None) => Some(Port::Source(port)),
        (None, port) => port.map(Port::Destination),
    };
    let host = |prefix: Prefix| prefix.is_host().then_some(prefix.address);
    let selector = match rule.to {
        Some(to) => {
            let from = match rule.from {
                Some(from) => Some(host(from)?),
                None => None,
            };
            Some(Selector { from, to: host(to)?, port })
        }
        None => None,
    };
    let read =
        Rule { priority: rule.priority, is_ipv6: rule.is_ipv6, selector, action, protocol: rule.protocol };
    // Newer kernels list attributes that the agent did not write, such as port masks.
    let is_whole = !rule.has_unknown || rule.protocol == PROTOCOL;
    (is_whole && write_rule(&read) == linux::Rule { has_unknown: false, ..rule.clone() }).then_some(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// #48: a rule is read back as written, and a rule with further attributes is not an agent's.
    #[test]
    fn rules_read_back_as_written() {
        let pairs: [(IpAddr, IpAddr); 2] = [
            (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into()),
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into()),
        ];
        for (local, to) in pairs {
            for from in [None, Some(local)] {
                for port in [None, Some(Port::Source(7)), Some(Port::Destination(9))] {
                    let selector = Some(Selector { from, to, port });
                    for (action, selector) in [
                        (RuleAction::Lookup(7_200), selector),
                        (RuleAction::Goto(7_201), selector),
                        (RuleAction::Nop, None),
                    ] {
                        let is_ipv6 = to.is_ipv6();
                        let rule = Rule { priority: 7_199, is_ipv6, selector, action, protocol: PROTOCOL };
                        let listed = linux::Rule { has_unknown: true, ..write_rule(&rule) };
                        assert_eq!(
                            (read_rule(&write_rule(&rule)), read_rule(&listed)),
                            (Some(rule), Some(rule))
                        );
                        let wider = Prefix { address: to, bits: 8 };
                        for other in [
                            linux::Rule { protocol: 1, ..listed.clone() },
                            linux::Rule { to: Some(wider), ..listed.clone() },
                            linux::Rule { ip_protocol: Some(IpProtocol::Udp), ..listed.clone() },
                            linux::Rule { device_in: Some("v0".to_owned()), ..listed.clone() },
                            linux::Rule { source_port: Some(7), destination_port: Some(9), ..listed },
                        ] {
                            assert_eq!(read_rule(&other), None, "{other:?}");
                        }
                    }
                }
            }
        }
    }
}
