//! Routes into one device. Read [`Route`].

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteScope, RouteType,
};
use netlink_packet_route::{IpProtocol, RouteNetlinkMessage as Message};

use super::{Prefix, Rtnetlink, bits, family, is};
use crate::netlink::{NetlinkError, Result};

/// A route without a gateway.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Number of the routing table.
    pub table: u32,
    /// Index of the device.
    pub device: u32,
    /// Destination addresses.
    pub to: Prefix,
    /// Source address of packets whose program sets none; `None` for the kernel's choice.
    pub from: Option<IpAddr>,
    /// MTU of the route in bytes, IP header included; `None` for the device's MTU.
    pub mtu_bytes: Option<u32>,
    /// True if TCP acknowledges each segment immediately on connections whose responses take this
    /// route.
    pub quick_ack: bool,
    /// Number of the program that set the route (`RTPROT_*`).
    pub protocol: u8,
}

impl Route {
    /// Reads a route from a message. `None` if a [`Route`] cannot represent it: a route with a
    /// gateway, of a type other than unicast, or without a destination, a table or a device.
    pub(super) fn read(message: &RouteMessage) -> Option<Self> {
        if message.header.kind != RouteType::Unicast {
            return None;
        }
        let (mut to, mut from, mut device, mut mtu_bytes, mut table) = (None, None, None, None, None);
        let mut quick_ack = false;
        let address = |address: &RouteAddress| match address {
            RouteAddress::Inet(address) => Some(IpAddr::from(*address)),
            RouteAddress::Inet6(address) => Some(IpAddr::from(*address)),
            _ => None,
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => return None,
                RouteAttribute::Destination(value) => to = address(value),
                RouteAttribute::PrefSource(value) => from = address(value),
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Table(number) => table = Some(*number),
                RouteAttribute::Metrics(metrics) => {
                    mtu_bytes = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                    quick_ack = metrics
                        .iter()
                        .any(|metric| matches!(metric, RouteMetric::QuickAck(value) if *value != 0));
                }
                _ => {}
            }
        }
        let to = Prefix { address: to?, bits: message.header.destination_prefix_length };
        let protocol = message.header.protocol.into();
        Some(Self { table: table?, device: device?, to, from, mtu_bytes, quick_ack, protocol })
    }

    /// The message fields that identify the route.
    fn key(&self) -> RouteMessage {
        let Prefix { address, bits } = self.to;
        let mut message = RouteMessage::default();
        message.header.address_family = family(address.is_ipv6());
        message.header.destination_prefix_length = bits;
        message.attributes = vec![
            RouteAttribute::Destination(address.into()),
            RouteAttribute::Table(self.table),
            RouteAttribute::Oif(self.device),
        ];
        message
    }

    pub(super) fn write(&self) -> RouteMessage {
        let mut message = self.key();
        message.header.protocol = self.protocol.into();
        message.header.kind = RouteType::Unicast;
        if !self.to.address.is_ipv6() {
            message.header.scope = RouteScope::Link;
        }
        message.attributes.extend(self.from.map(|from| RouteAttribute::PrefSource(from.into())));
        let mtu = self.mtu_bytes.map(RouteMetric::Mtu);
        let metrics: Vec<_> =
            mtu.into_iter().chain(self.quick_ack.then_some(RouteMetric::QuickAck(1))).collect();
        if !metrics.is_empty() {
            message.attributes.push(RouteAttribute::Metrics(metrics));
        }
        message
    }
}

impl Rtnetlink {
    /// The routes of a table, of one address family, that a [`Route`] can represent: no default
    /// route, and no route with a gateway.
    ///
    /// Errors: the system's.
    pub fn routes(&mut self, is_ipv6: bool, table: u32) -> Result<Vec<Route>> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(is_ipv6);
        request.attributes.push(RouteAttribute::Table(table));
        let mut routes = Vec::new();
        let listed = self.netlink.dump(Message::GetRoute(request), |answer| {
            if let Message::NewRoute(route) = answer {
                routes.extend(Route::read(&route).filter(|route| route.table == table));
            }
        });
        match listed {
            // A table exists only once it has a route.
            Err(error) if is(&error, libc::ENOENT) => Ok(Vec::new()),
            other => other.map(|()| routes),
        }
    }

    /// Index of the device by which packets of this protocol to an address leave; `None` if the
    /// kernel refuses them or finds no route.
    ///
    /// Errors: the system's.
    pub fn device_towards(&mut self, to: IpAddr, protocol: IpProtocol) -> Result<Option<u32>> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(to.is_ipv6());
        request.header.destination_prefix_length = bits(to);
        request.attributes =
            vec![RouteAttribute::Destination(to.into()), RouteAttribute::IpProto(protocol.into())];
        match self.netlink.ask(Message::GetRoute(request)) {
            Ok(Message::NewRoute(route)) => {
                Ok(route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Oif(device) => Some(*device),
                    _ => None,
                }))
            }
            Ok(_) | Err(NetlinkError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets a route, and replaces the table's existing route to the same destinations.
    ///
    /// Errors: the kernel's.
    pub fn set_route(&mut self, route: &Route) -> Result<()> {
        self.netlink.change(Message::NewRoute(route.write()), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes the route with this table, device and destination, regardless of its other fields.
    ///
    /// Errors: the kernel's.
    pub fn delete_route(&mut self, route: &Route) -> Result<()> {
        let mut message = route.key();
        message.header.scope = RouteScope::NoWhere;
        self.netlink.change(Message::DelRoute(message), 0)
    }
}
