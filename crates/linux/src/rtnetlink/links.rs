//! Links (network devices) and their addresses. Read [`Link`] and [`LinkChange`].

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use super::{Prefix, Rtnetlink, family, is};
use crate::netlink::{NetlinkError, Result};

/// Index of the loopback device, the first of every network namespace.
pub const LOOPBACK: u32 = 1;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The device's number in its network namespace.
    pub index: u32,
    /// True if the device is up.
    pub is_up: bool,
    /// A text that the kernel stores for programs.
    pub alias: Option<String>,
}

impl Link {
    pub(super) fn read(message: &LinkMessage) -> Self {
        let alias = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias.clone()),
            _ => None,
        });
        let is_up = message.header.flags.contains(LinkFlags::Up);
        Self { index: message.header.index, is_up, alias }
    }
}

/// Changes of a device. `None` and false leave a property unchanged.
#[derive(Clone, Debug, Default)]
pub struct LinkChange<'a> {
    /// Sets the device up.
    pub set_up: bool,
    /// MTU of the device, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Length of the transmit queue, in packets.
    pub queue_packets: Option<u32>,
    /// See [`Link::alias`].
    pub alias: Option<&'a str>,
}

/// An IP address of this host.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of its device.
    pub device: u32,
    /// The address, and the length of the device's subnet.
    pub prefix: Prefix,
}

impl Address {
    pub(super) fn read(message: &AddressMessage) -> Option<Self> {
        let (mut local, mut any) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => any = Some(*ip),
                _ => {}
            }
        }
        // On a point-to-point link, `Address` is the peer's address. On other links one of the two
        // attributes may be missing.
        let prefix = Prefix { address: local.or(any)?, bits: message.header.prefix_len };
        Some(Self { device: message.header.index, prefix })
    }
}

impl Rtnetlink {
    /// All devices.
    ///
    /// Errors: the system's.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        self.netlink.dump(Message::GetLink(LinkMessage::default()), |answer| {
            if let Message::NewLink(link) = answer {
                links.push(Link::read(&link));
            }
        })?;
        Ok(links)
    }

    /// A device; `None` if it does not exist.
    ///
    /// Errors: the system's.
    pub fn link(&mut self, index: u32) -> Result<Option<Link>> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        match self.netlink.ask(Message::GetLink(request)) {
            Ok(Message::NewLink(link)) => Ok(Some(Link::read(&link))),
            Ok(_) => Ok(None),
            Err(error) if is(&error, libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Index of the device with this name.
    ///
    /// Errors: the system's; `ENODEV` if no device has the name.
    pub fn index_of(&mut self, name: &str) -> Result<u32> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.netlink.ask(Message::GetLink(request))? {
            Message::NewLink(link) => Ok(link.header.index),
            _ => Err(NetlinkError::Malformed("a question for a device has another answer".into())),
        }
    }

    /// Changes a device.
    ///
    /// Errors: the kernel's.
    pub fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        if change.set_up {
            (request.header.flags, request.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        }
        let attributes = [
            change.mtu_bytes.map(LinkAttribute::Mtu),
            change.queue_packets.map(LinkAttribute::TxQueueLen),
            change.alias.map(|alias| LinkAttribute::IfAlias(alias.to_owned())),
        ];
        request.attributes.extend(attributes.into_iter().flatten());
        self.netlink.change(Message::SetLink(request), 0)
    }

    /// All addresses.
    ///
    /// Errors: the system's.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        let mut addresses = Vec::new();
        self.netlink.dump(Message::GetAddress(AddressMessage::default()), |answer| {
            if let Message::NewAddress(address) = answer {
                addresses.extend(Address::read(&address));
            }
        })?;
        Ok(addresses)
    }

    /// Adds an address to a device.
    ///
    /// Errors: the kernel's; `EEXIST` if the device already has the address.
    pub fn add_address(&mut self, address: Address) -> Result<()> {
        let Address { device, prefix: Prefix { address, bits } } = address;
        let mut request = AddressMessage::default();
        request.header.family = family(address.is_ipv6());
        request.header.prefix_len = bits;
        request.header.index = device;
        request.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.netlink.change(Message::NewAddress(request), NLM_F_CREATE | NLM_F_EXCL)
    }
}
