//! Policy rules, by which the kernel selects a packet's routing table. Read [`Rule`].

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{
    RuleAction as Action, RuleAttribute, RuleFlags, RuleMessage, RulePortRange,
};
use netlink_packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage as Message};

use super::{Prefix, Rtnetlink, family};
use crate::netlink::Result;

/// The action of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Looks up a table.
    Lookup(u32),
    /// Continues with the rule of this priority.
    Goto(u32),
    /// No action; the rule is only a target of jumps.
    Nop,
}

/// A policy rule. A selector that is `None` matches every packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Position among all rules; lower numbers are evaluated first.
    pub priority: u32,
    /// Address family.
    pub is_ipv6: bool,
    /// Action for matching packets.
    pub action: RuleAction,
    /// Number of the program that set the rule (`RTPROT_*`); 0 if unspecified.
    pub protocol: u8,
    /// Source addresses.
    pub from: Option<Prefix>,
    /// Destination addresses.
    pub to: Option<Prefix>,
    /// Name of the incoming device; `lo` matches packets that originate on this host.
    pub device_in: Option<String>,
    /// Transport protocol.
    pub ip_protocol: Option<IpProtocol>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// True if the kernel lists attributes that the `netlink-packet-route` crate does not know.
    /// Newer kernels list such attributes for every rule.
    pub has_unknown: bool,
}

impl Rule {
    /// Reads a rule from a message. `None` if it has a selector or an action that [`Rule`] cannot
    /// represent.
    pub(super) fn read(message: &RuleMessage) -> Option<Self> {
        let header = &message.header;
        let (mut table, mut target) = (header.table.into(), None);
        let mut rule = Self {
            priority: 0,
            is_ipv6: header.family == AddressFamily::Inet6,
            action: RuleAction::Nop,
            protocol: 0,
            from: None,
            to: None,
            device_in: None,
            ip_protocol: None,
            source_port: None,
            destination_port: None,
            has_unknown: false,
        };
        let one = |range: &RulePortRange| (range.start == range.end).then_some(range.start);
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(number) => rule.priority = *number,
                RuleAttribute::Protocol(number) => rule.protocol = (*number).into(),
                RuleAttribute::Table(number) => table = *number,
                RuleAttribute::Goto(priority) => target = Some(*priority),
                RuleAttribute::Source(address) => {
                    rule.from = Some(Prefix { address: *address, bits: header.src_len });
                }
                RuleAttribute::Destination(address) => {
                    rule.to = Some(Prefix { address: *address, bits: header.dst_len });
                }
                RuleAttribute::Iifname(name) => rule.device_in = Some(name.clone()),
                RuleAttribute::IpProtocol(protocol) => rule.ip_protocol = Some(*protocol),
                RuleAttribute::SourcePortRange(range) => rule.source_port = Some(one(range)?),
                RuleAttribute::DestinationPortRange(range) => rule.destination_port = Some(one(range)?),
                // Every rule has this attribute; all ones mean no limit.
                RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                RuleAttribute::Other(_) => rule.has_unknown = true,
                _ => return None,
            }
        }
        rule.action = match header.action {
            Action::ToTable => RuleAction::Lookup(table),
            Action::Goto => RuleAction::Goto(target?),
            Action::Nop => RuleAction::Nop,
            _ => return None,
        };
        let is_plain = !header.flags.contains(RuleFlags::Invert) && header.tos == 0;
        is_plain.then_some(rule)
    }

    pub(super) fn write(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = family(self.is_ipv6);
        let attributes = &mut message.attributes;
        attributes.push(RuleAttribute::Priority(self.priority));
        if self.protocol != 0 {
            attributes.push(RuleAttribute::Protocol(RouteProtocol::from(self.protocol)));
        }
        match self.action {
            RuleAction::Lookup(table) => {
                message.header.action = Action::ToTable;
                attributes.push(RuleAttribute::Table(table));
            }
            RuleAction::Goto(target) => {
                message.header.action = Action::Goto;
                attributes.push(RuleAttribute::Goto(target));
            }
            RuleAction::Nop => message.header.action = Action::Nop,
        }
        if let Some(Prefix { address, bits }) = self.to {
            message.header.dst_len = bits;
            attributes.push(RuleAttribute::Destination(address));
        }
        if let Some(Prefix { address, bits }) = self.from {
            message.header.src_len = bits;
            attributes.push(RuleAttribute::Source(address));
        }
        let range = |port| RulePortRange { start: port, end: port };
        attributes.extend(self.device_in.clone().map(RuleAttribute::Iifname));
        attributes.extend(self.ip_protocol.map(RuleAttribute::IpProtocol));
        attributes.extend(self.source_port.map(|port| RuleAttribute::SourcePortRange(range(port))));
        attributes.extend(self.destination_port.map(|port| RuleAttribute::DestinationPortRange(range(port))));
        message
    }
}

impl Rtnetlink {
    /// The rules of one address family that a [`Rule`] can represent.
    ///
    /// Errors: the system's.
    pub fn rules(&mut self, is_ipv6: bool) -> Result<Vec<Rule>> {
        let mut request = RuleMessage::default();
        request.header.family = family(is_ipv6);
        let mut rules = Vec::new();
        self.netlink.dump(Message::GetRule(request), |answer| {
            if let Message::NewRule(rule) = answer {
                rules.extend(Rule::read(&rule).filter(|rule| rule.is_ipv6 == is_ipv6));
            }
        })?;
        Ok(rules)
    }

    /// Adds a rule.
    ///
    /// Errors: the kernel's; `EEXIST` if the rule exists.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<()> {
        self.netlink.change(Message::NewRule(rule.write()), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes a rule.
    ///
    /// Errors: the kernel's.
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<()> {
        self.netlink.change(Message::DelRule(rule.write()), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::DefaultNla;

    const FRA_DPORT_MASK: u16 = 29;

    /// #48: a rule that was read differed from the rule that was written.
    #[test]
    fn rules_decode_as_they_were_encoded() {
        let prefix = |text: &str, bits| Some(Prefix { address: text.parse().expect("good"), bits });
        for (from, to, is_ipv6) in [
            (prefix("10.0.0.1", 32), prefix("10.0.0.0", 8), false),
            (None, prefix("::1", 128), true),
            (None, None, false),
        ] {
            for action in [RuleAction::Lookup(7_200), RuleAction::Goto(7_201), RuleAction::Nop] {
                let rule = Rule {
                    priority: 7_199,
                    is_ipv6,
                    action,
                    protocol: 72,
                    from,
                    to,
                    device_in: from.is_none().then(|| "lo".to_owned()),
                    ip_protocol: Some(IpProtocol::Tcp),
                    source_port: Some(7),
                    destination_port: to.map(|_| 9),
                    has_unknown: false,
                };
                let mut message = rule.write();
                assert_eq!(Rule::read(&message), Some(rule.clone()));
                // The attribute that Linux 6.16 and later list.
                let mask = DefaultNla::new(FRA_DPORT_MASK, vec![0xff; 2]);
                message.attributes.push(RuleAttribute::Other(mask));
                assert_eq!(Rule::read(&message), Some(Rule { has_unknown: true, ..rule }));
                message.attributes.push(RuleAttribute::FwMark(1));
                assert_eq!(Rule::read(&message), None);
            }
        }
    }
}
