//! The kernel's rules, routes and devices over rtnetlink(7): lists and changes.
//!
//! A socket is bound to the network namespace of the thread that opens it. Lists are asked for with filters, so a host with many routes costs
//! no more than one with few. An agent's device bears its table's number in its alias, by which other agents see that it runs: the device goes with
//! its process. Leaves out: what is needed (`spray_proto::kernel`). Read [`Kernel`] first.

use anabranch_linux::netlink::Netlink;
use anabranch_spray_proto::kernel::{PROTOCOL, Port, Route, Rule, RuleAction, Selector};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAttribute, RuleMessage, RulePortRange};
use netlink_packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage as Message};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

/// The alias of an agent's device, before its table's number.
const ALIAS: &str = "anabranch spray, table ";
/// The device of packets that begin on this host.
const LOOPBACK: &str = "lo";

/// A socket to the kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    netlink: Netlink,
}

impl Kernel {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// Errors: the system's.
    pub(crate) fn open() -> io::Result<Self> {
        let netlink = Netlink::open(None)?;
        // Older kernels list more; the readers below skip the rest.
        let _ = netlink.filter_dumps();
        Ok(Self { netlink })
    }

    /// Rules of the form that agents' rules have, of one address family.
    ///
    /// Errors: the system's.
    pub(crate) fn rules(&mut self, is_ipv6: bool) -> io::Result<Vec<Rule>> {
        let mut request = RuleMessage::default();
        request.header.family = family(is_ipv6);
        let mut rules = Vec::new();
        self.netlink.dump(Message::GetRule(request), |answer| {
            if let Message::NewRule(rule) = answer {
                rules.extend(read_rule(&rule).filter(|rule| rule.is_ipv6 == is_ipv6));
            }
        })?;
        Ok(rules)
    }

    /// Routes of a table, of one address family, each with the index of its device.
    ///
    /// Errors: the system's.
    pub(crate) fn routes(&mut self, is_ipv6: bool, table: u32) -> io::Result<Vec<(u32, Route)>> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(is_ipv6);
        request.attributes.push(RouteAttribute::Table(table));
        let mut routes = Vec::new();
        let listed = self.netlink.dump(Message::GetRoute(request), |answer| {
            if let Message::NewRoute(route) = answer {
                routes.extend(read_route(&route, table));
            }
        });
        match listed {
            // A table is made with its first route.
            Err(error) if is(&error, Errno::NOENT) => Ok(Vec::new()),
            other => other.map(|()| routes),
        }
    }

    /// Whether a device is up; `None` if it does not exist.
    ///
    /// Errors: the system's.
    pub(crate) fn device_is_up(&mut self, index: u32) -> io::Result<Option<bool>> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        match self.netlink.ask(Message::GetLink(request)) {
            Ok(Message::NewLink(link)) => Ok(Some(link.header.flags.contains(LinkFlags::Up))),
            Ok(_) => Ok(None),
            Err(error) if is(&error, Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The tables of agents that run.
    ///
    /// Errors: the system's.
    pub(crate) fn live_tables(&mut self) -> io::Result<BTreeSet<u32>> {
        let mut tables = BTreeSet::new();
        self.netlink.dump(Message::GetLink(LinkMessage::default()), |answer| {
            if let Message::NewLink(link) = answer {
                tables.extend(link.attributes.iter().filter_map(|attribute| match attribute {
                    LinkAttribute::IfAlias(alias) => alias.strip_prefix(ALIAS)?.parse::<u32>().ok(),
                    _ => None,
                }));
            }
        })?;
        Ok(tables)
    }

    /// Gives a device the alias by which other agents see that an agent with this table runs.
    ///
    /// Errors: the kernel's.
    pub(crate) fn mark_device(&mut self, index: u32, table: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        request.attributes.push(LinkAttribute::IfAlias(format!("{ALIAS}{table}")));
        self.change(Message::SetLink(request), 0)
    }

    /// Sets a device up.
    ///
    /// Errors: the kernel's.
    pub(crate) fn raise_device(&mut self, index: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        (request.header.flags, request.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        self.change(Message::SetLink(request), 0)
    }

    /// Whether TCP from this host to an address goes out by a device.
    ///
    /// Errors: the system's; a way that the kernel does not find is none by that device.
    pub(crate) fn goes_by(&mut self, to: IpAddr, device: u32) -> io::Result<bool> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(to.is_ipv6());
        request.header.destination_prefix_length = bits(to);
        request.attributes =
            vec![RouteAttribute::Destination(to.into()), RouteAttribute::IpProto(IpProtocol::Tcp.into())];
        match self.netlink.ask(Message::GetRoute(request)) {
            Ok(Message::NewRoute(route)) => Ok(route.attributes.contains(&RouteAttribute::Oif(device))),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            // Some rule refuses it.
            Err(_) => Ok(false),
        }
    }

    /// Adds a rule.
    ///
    /// Errors: the kernel's.
    pub(crate) fn add_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.change(Message::NewRule(write_rule(rule)), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes a rule.
    ///
    /// Errors: the kernel's.
    pub(crate) fn delete_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.change(Message::DelRule(write_rule(rule)), 0)
    }

    /// Sets a route into a device.
    ///
    /// Errors: the kernel's.
    pub(crate) fn set_route(&mut self, table: u32, device: u32, route: &Route) -> io::Result<()> {
        let mut message = route_message(table, device, route.to);
        message.header.protocol = PROTOCOL.into();
        message.header.kind = RouteType::Unicast;
        if !route.to.is_ipv6() {
            message.header.scope = RouteScope::Link;
        }
        message.attributes.push(RouteAttribute::PrefSource(route.from.into()));
        message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(route.mtu_bytes)]));
        self.change(Message::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes a route into a device.
    ///
    /// Errors: the kernel's.
    pub(crate) fn delete_route(&mut self, table: u32, device: u32, to: IpAddr) -> io::Result<()> {
        let mut message = route_message(table, device, to);
        message.header.scope = RouteScope::NoWhere;
        self.change(Message::DelRoute(message), 0)
    }

    /// Deletes the rules of the agent with this table.
    pub(crate) fn delete_rules(&mut self, table: u32) {
        for is_ipv6 in [false, true] {
            for rule in self.rules(is_ipv6).unwrap_or_default() {
                if rule.table() == Some(table) {
                    let _ = self.delete_rule(&rule);
                }
            }
        }
    }

    /// Deletes all routes of a table; returns their count.
    pub(crate) fn delete_routes(&mut self, table: u32) -> usize {
        let mut count = 0;
        for is_ipv6 in [false, true] {
            for (device, route) in self.routes(is_ipv6, table).unwrap_or_default() {
                count += usize::from(self.delete_route(table, device, route.to).is_ok());
            }
        }
        count
    }

    fn change(&mut self, request: Message, flags: u16) -> io::Result<()> {
        self.netlink.change(vec![(request, flags)])?.pop().unwrap_or(Ok(()))
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

fn family(is_ipv6: bool) -> AddressFamily {
    if is_ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv6() { 128 } else { 32 }
}

fn route_message(table: u32, device: u32, to: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(to.is_ipv6());
    message.header.destination_prefix_length = bits(to);
    message.attributes = vec![
        RouteAttribute::Destination(to.into()),
        RouteAttribute::Table(table),
        RouteAttribute::Oif(device),
    ];
    message
}

/// A route of this table to one address; `None` for others.
fn read_route(message: &RouteMessage, table: u32) -> Option<(u32, Route)> {
    let (mut to, mut from, mut device, mut mtu_bytes, mut found) = (None, None, None, None, None);
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::from(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::from(*address)),
        _ => None,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(value) => to = address(value),
            RouteAttribute::PrefSource(value) => from = address(value),
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Table(number) => found = Some(*number),
            RouteAttribute::Metrics(metrics) => {
                mtu_bytes = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let to = to.filter(|to| found == Some(table) && message.header.destination_prefix_length == bits(*to))?;
    // A route without a source or a length is none of an agent's, and differs from any.
    let route = Route { to, from: from.unwrap_or(to), mtu_bytes: mtu_bytes.unwrap_or(0) };
    Some((device?, route))
}

fn write_rule(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.is_ipv6);
    message.attributes = vec![RuleAttribute::Priority(rule.priority)];
    if rule.protocol != 0 {
        message.attributes.push(RuleAttribute::Protocol(RouteProtocol::from(rule.protocol)));
    }
    match rule.action {
        RuleAction::Lookup(table) => {
            message.header.action = netlink_packet_route::rule::RuleAction::ToTable;
            message.attributes.push(RuleAttribute::Table(table));
        }
        RuleAction::Goto(target) => {
            message.header.action = netlink_packet_route::rule::RuleAction::Goto;
            message.attributes.push(RuleAttribute::Goto(target));
        }
        RuleAction::Nop => message.header.action = netlink_packet_route::rule::RuleAction::Nop,
    }
    if let Some(Selector { from, to, port }) = rule.selector {
        message.header.dst_len = bits(to);
        message.attributes.push(RuleAttribute::Destination(to));
        match from {
            Some(from) => {
                message.header.src_len = bits(from);
                message.attributes.push(RuleAttribute::Source(from));
            }
            None => message.attributes.push(RuleAttribute::Iifname(LOOPBACK.into())),
        }
        message.attributes.push(RuleAttribute::IpProtocol(IpProtocol::Tcp));
        let range = |port| RulePortRange { start: port, end: port };
        message.attributes.extend(port.map(|port| match port {
            Port::Source(port) => RuleAttribute::SourcePortRange(range(port)),
            Port::Destination(port) => RuleAttribute::DestinationPortRange(range(port)),
        }));
    }
    message
}

/// A rule of the form that agents' rules have; `None` for others.
fn read_rule(message: &RuleMessage) -> Option<Rule> {
    let header = &message.header;
    let (mut priority, mut protocol, mut table, mut target) = (0, 0, header.table.into(), None);
    let (mut from, mut to, mut is_local, mut is_tcp, mut port) = (None, None, false, false, None);
    let mut is_known = true;
    let one = |range: &RulePortRange| (range.start == range.end).then_some(range.start);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::Protocol(number) => protocol = (*number).into(),
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Goto(priority) => target = Some(*priority),
            RuleAttribute::Source(address) => from = Some(*address),
            RuleAttribute::Destination(address) => to = Some(*address),
            RuleAttribute::Iifname(name) if name == LOOPBACK => is_local = true,
            RuleAttribute::IpProtocol(IpProtocol::Tcp) => is_tcp = true,
            RuleAttribute::SourcePortRange(range) if port.is_none() => port = Some(Port::Source(one(range)?)),
            RuleAttribute::DestinationPortRange(range) if port.is_none() => {
                port = Some(Port::Destination(one(range)?));
            }
            // All rules have it, with all ones for none.
            RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            RuleAttribute::Other(_) => is_known = false,
            _ => return None,
        }
    }
    let action = match header.action {
        netlink_packet_route::rule::RuleAction::ToTable => RuleAction::Lookup(table),
        netlink_packet_route::rule::RuleAction::Goto => RuleAction::Goto(target?),
        netlink_packet_route::rule::RuleAction::Nop => RuleAction::Nop,
        _ => return None,
    };
    let selector = match to {
        Some(to) => {
            let is_one = header.dst_len == bits(to) && from.is_none_or(|from| header.src_len == bits(from));
            (is_one && is_tcp && is_local == from.is_none()).then_some(Selector { from, to, port })?.into()
        }
        None if from.is_none() && !is_local && !is_tcp && port.is_none() => None,
        None => return None,
    };
    let is_inverted = header.flags.contains(netlink_packet_route::rule::RuleFlags::Invert);
    let rule = Rule { priority, is_ipv6: header.family == AddressFamily::Inet6, selector, action, protocol };
    // Newer kernels say more of an agent's rules than it wrote, as the masks of ports.
    (!is_inverted && header.tos == 0 && (is_known || protocol == PROTOCOL)).then_some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::DefaultNla;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const FRA_DPORT_MASK: u16 = 29;

    /// #48: a rule is read as it was written, and one that says more is none of an agent's.
    #[test]
    fn rules_are_read_as_written() {
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
                        let mut message = write_rule(&rule);
                        assert_eq!(read_rule(&message), Some(rule));
                        // As Linux 6.16 and later list it.
                        let mask = DefaultNla::new(FRA_DPORT_MASK, vec![0xff; 2]);
                        message.attributes.push(RuleAttribute::Other(mask));
                        assert_eq!(read_rule(&message), Some(rule));
                        message.attributes.push(RuleAttribute::FwMark(1));
                        assert_eq!(read_rule(&message), None);
                    }
                }
            }
        }
    }
}
