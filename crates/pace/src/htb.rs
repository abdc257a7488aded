//! Rate limits by HTB: one class for each flow on one device, to which the flow's packets are
//! steered.
//!
//! This is Flow Chasing's method (section 5.2) without its kernel module. If the socket's
//! descriptor can be duplicated, the socket's `SO_PRIORITY` selects the class, which HTB reads
//! first (tc-htb(8)). Otherwise a u32 filter on addresses and ports selects it. HTB queues packets
//! instead of slowing TCP down, so it is the last choice. It is the only mechanism that counts all
//! bytes on the wire, link headers included. A packet without a class passes as if there were no
//! HTB.
//!
//! Changes are sent to the kernel over rtnetlink(7), many in one datagram. Filters are matched one
//! after the other for every packet, so hundreds of flows without descriptors cost time.
//!
//! A qdisc of this module is recognised by its handle and an unusual default class. The next start
//! on the device removes a qdisc that a killed process has left. A root qdisc of another program is
//! never touched, and neither is the qdisc of a living pacer. To show that it is alive, a pacer
//! also holds the name of a socket, which the kernel frees when the process dies. A killed process
//! leaves priorities on sockets, too; without classes they have little effect.
//!
//! Leaves out: further connections with the same addresses, which a filter cannot distinguish until
//! the limit is lifted; ingress; several devices; borrowing between flows; filters on `mark` (a
//! kernel without `CONFIG_CLS_U32_MARK` accepts them and matches every packet). Read [`HtbPacer`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use anabranch_linux::netlink::{Netlink, NetlinkError};
use anabranch_linux::rtnetlink::Rtnetlink;
use anabranch_units::BitRate;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, Nla as _, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcFilterU32Option, TcHandle, TcMessage, TcOption, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};

use crate::helper::{Change, Helper, SocketLocation};
use crate::limit::canonical;
use crate::owner::Sockets;
use crate::{Connection, FlowKey, Limit, Mechanism, PaceError, StartError};

/// Major number of our qdisc.
const MAJOR: u16 = 0xab0a;
/// Default class, which never exists. So packets without a class are not shaped, and the qdisc is
/// recognised as ours.
const DEFAULT_CLASS: u32 = 0xfa1e;
/// Upper bound of the minor numbers of classes.
const CLASSES_MAX: u16 = 0x7fff;

const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// Interface version that HTB checks, from include/uapi/linux/pkt_sched.h.
const HTB_VERSION: u32 = 3;
/// Link layer for which the kernel needs no rate tables, which older tools computed.
const LINKLAYER_ETHERNET: u8 = 1;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Method that assigns a flow's packets to their class.
#[derive(Copy, Clone, Debug)]
enum Steering {
    /// The socket's priority; `before` is the socket's earlier priority.
    Priority { place: SocketLocation, before: u32 },
    /// A u32 filter, whose preference is the class's minor number.
    Filter,
}

#[derive(Debug)]
struct Class {
    /// Cookie of the only socket to which the limit applies; `None` for any socket of the flow.
    cookie: Option<u64>,
    minor: u16,
    rate: BitRate,
    steering: Steering,
}

/// Limits the rates of flows that leave through one device, by an HTB class for each flow.
///
/// Dropping the pacer removes its qdisc from the device, with all classes, and restores the
/// sockets' priorities.
#[derive(Debug)]
pub struct HtbPacer {
    netlink: Netlink,
    sockets: Sockets,
    helper: Helper,
    device: i32,
    classes: BTreeMap<FlowKey, Class>,
    /// Minor numbers below `next` that are free again.
    free: Vec<u16>,
    next: u16,
    _only_one: UnixListener,
}

impl HtbPacer {
    /// Creates a pacer on this device of the thread's network namespace, replacing the device's
    /// default qdisc.
    ///
    /// Errors: a missing or refused kernel feature, with the step; a root qdisc that is not ours;
    /// another pacer on the device.
    pub fn new(device: &str) -> Result<Self, StartError> {
        // Created before any change of the device: from then on, only a pacer that is dropped
        // undoes the changes.
        let sockets = Sockets::new().map_err(failed("list flows"))?;
        let (mut netlink, device, only_one) = take(device)?;
        clear_leftover(&mut netlink, device)?;
        // The kernel accepts these flags only if the device has its default qdisc; another qdisc
        // stays.
        let mut qdisc = root(device);
        qdisc.attributes = kind("htb", vec![(TCA_HTB_INIT, global_options())]);
        let add = RouteNetlinkMessage::NewQueueDiscipline(qdisc);
        netlink.change(add, NLM_F_CREATE | NLM_F_EXCL).map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => {
                failed("make a root qdisc: the device has another program's, which stays")(error.into())
            }
            _ => failed("make a root qdisc")(error.into()),
        })?;
        let mut pacer = Self {
            netlink,
            sockets,
            helper: Helper::new(),
            device,
            classes: BTreeMap::new(),
            free: Vec::new(),
            next: 1,
            _only_one: only_one,
        };
        // A kernel without u32 filters fails here, at the start.
        let probe = FlowKey::new(SocketAddr::from(([0, 0, 0, 0], 0)), SocketAddr::from(([0, 0, 0, 0], 0)));
        for request in [pacer.add_filter(probe, CLASSES_MAX), pacer.delete_filter(probe, CLASSES_MAX)] {
            let tried = pacer.netlink.change(request.0, request.1);
            tried.map_err(|error| failed("make a u32 filter")(error.into()))?;
        }
        Ok(pacer)
    }

    /// Removes the leftovers of a killed pacer from this device of the thread's network namespace.
    /// Returns true if there were any.
    ///
    /// Errors: the step that the kernel refused; a live pacer uses the device.
    pub fn clear(device: &str) -> Result<bool, StartError> {
        let (mut netlink, device, _only_one) = take(device)?;
        clear_leftover(&mut netlink, device)
    }

    /// Sets these limits in order, and returns the result for each. A flow need not exist yet.
    ///
    /// Lifting a limit drops the packets in the class; TCP retransmits them.
    /// Errors: one for each flow; a failed flow does not affect other flows.
    /// Cost: one message of a shared datagram for each known flow; one pass over `/proc` for all
    /// new flows together.
    pub fn set<C: Into<Connection> + Copy>(&mut self, changes: &[(C, Limit)]) -> Vec<Result<(), PaceError>> {
        let changes = canonical(changes);
        let is_new = |(c, limit): &&(Connection, Limit)| *limit != Limit::None && !self.is_known(*c);
        let new: Vec<Connection> = changes.iter().filter(is_new).map(|(c, _)| *c).collect();
        let places = self.sockets.find(&new);
        let mut places: BTreeMap<FlowKey, _> = new.iter().map(|c| c.flow).zip(places).collect();
        let mut requests = Vec::new();
        let mut results = Vec::with_capacity(changes.len());
        for (i, (connection, limit)) in changes.iter().enumerate() {
            let result = match places.remove(&connection.flow) {
                Some(Err(gone @ PaceError::NoSuchFlow { .. })) if connection.cookie.is_some() => Err(gone),
                found => self.plan(*connection, *limit, found.and_then(Result::ok).as_ref()),
            };
            results.push(result.map(|planned| requests.extend(planned.into_iter().map(|r| (i, r)))));
        }
        let (owners, requests): (Vec<usize>, Vec<_>) = requests.into_iter().unzip();
        match self.netlink.change_all(requests) {
            Ok(verdicts) => {
                for (i, verdict) in owners.into_iter().zip(verdicts) {
                    if let Err(error) = verdict {
                        results[i] = Err(refused(changes[i].0.flow, error.into()));
                    }
                }
            }
            Err(error) => {
                for i in owners {
                    let error = io::Error::new(error.kind(), error.to_string());
                    results[i] = Err(refused(changes[i].0.flow, error));
                }
            }
        }
        // A flow for which one request failed gets no class and no filter.
        let mut undo = Vec::new();
        for ((connection, _), result) in changes.iter().zip(&results) {
            if result.is_err() && new.contains(connection) {
                undo.extend(self.plan(*connection, Limit::None, None).unwrap_or_default());
            }
        }
        let _ = self.netlink.change_all(undo);
        results
    }

    /// The flows with a limit, each with its rate.
    pub fn limits(&self) -> impl Iterator<Item = (FlowKey, BitRate)> {
        self.classes.iter().map(|(flow, class)| (*flow, class.rate))
    }

    /// Returns true if this connection has a class.
    fn is_known(&self, connection: Connection) -> bool {
        self.classes.get(&connection.flow).is_some_and(|class| connection.may_be(class.cookie))
    }

    /// Removes a flow's class. Returns the requests for the kernel.
    fn lift(&mut self, flow: FlowKey) -> Vec<(RouteNetlinkMessage, u16)> {
        let Some(class) = self.classes.remove(&flow) else { return Vec::new() };
        let mut requests = Vec::new();
        match class.steering {
            Steering::Filter => requests.push(self.delete_filter(flow, class.minor)),
            Steering::Priority { place, before } => self.restore(flow, place, before),
        }
        requests.push((RouteNetlinkMessage::DelTrafficClass(self.class(class.minor)), 0));
        self.free.push(class.minor);
        requests
    }

    /// Sets up or changes a flow's class and steering. Returns the requests for the kernel.
    fn plan(
        &mut self,
        connection: Connection,
        limit: Limit,
        place: Option<&SocketLocation>,
    ) -> Result<Vec<(RouteNetlinkMessage, u16)>, PaceError> {
        let bytes = limit.bytes_per_second(u64::MAX / 8)?;
        let (is_known, Connection { flow, cookie }) = (self.is_known(connection), connection);
        let (Some(bytes), Limit::Rate(rate)) = (bytes, limit) else {
            return Ok(if is_known { self.lift(flow) } else { Vec::new() });
        };
        if let Some(class) = self.classes.get_mut(&flow).filter(|_| is_known) {
            class.rate = rate;
            let minor = class.minor;
            return Ok(vec![self.set_class(minor, bytes, 0)]);
        }
        // An earlier connection with the same addresses has ended.
        let mut requests = self.lift(flow);
        let full = PaceError::Full { flows_max: usize::from(CLASSES_MAX) - 1 };
        let minor = match self.free.pop() {
            Some(minor) => minor,
            None if self.next < CLASSES_MAX => {
                self.next += 1;
                self.next - 1
            }
            None => return Err(full),
        };
        requests.push(self.set_class(minor, bytes, NLM_F_CREATE | NLM_F_EXCL));
        let steering = match place.and_then(|place| self.steer(*place, minor)) {
            Some(priority) => priority,
            None => {
                requests.push(self.add_filter(flow, minor));
                Steering::Filter
            }
        };
        self.classes.insert(flow, Class { cookie, minor, rate, steering });
        Ok(requests)
    }

    /// Steers the socket's packets to this class; `None` if the socket's priority cannot be set.
    fn steer(&mut self, place: SocketLocation, minor: u16) -> Option<Steering> {
        let before = self.set_priority(place, TcHandle { major: MAJOR, minor }.into())?;
        Some(Steering::Priority { place, before })
    }

    /// Restores a socket's priority, also if the socket has moved; a closed socket needs no change.
    fn restore(&mut self, flow: FlowKey, place: SocketLocation, before: u32) {
        if self.set_priority(place, before).is_none() {
            let connection = Connection { flow, cookie: Some(place.cookie) };
            let found = self.sockets.find(&[connection]).pop().and_then(Result::ok);
            found.and_then(|found| self.set_priority(found, before));
        }
    }

    /// Sets a socket's priority. Returns the earlier priority; `None` if it could not be set.
    fn set_priority(&mut self, place: SocketLocation, priority: u32) -> Option<u32> {
        let answer = self.helper.carry_out(&[(place, Change::Priority(priority))]).pop()?;
        u32::try_from(answer.ok()?).ok()
    }

    fn class(&self, minor: u16) -> TcMessage {
        let mut class = TcMessage::with_index(self.device);
        class.header.handle = TcHandle { major: MAJOR, minor };
        class
    }

    fn set_class(&self, minor: u16, bytes_per_second: u64, flags: u16) -> (RouteNetlinkMessage, u16) {
        let mut class = self.class(minor);
        class.header.parent = TcHandle { major: MAJOR, minor: 0 };
        class.attributes = kind("htb", class_options(bytes_per_second));
        (RouteNetlinkMessage::NewTrafficClass(class), flags)
    }

    fn filter(&self, flow: FlowKey, minor: u16) -> TcMessage {
        let mut filter = TcMessage::with_index(self.device);
        filter.header.parent = TcHandle { major: MAJOR, minor: 0 };
        let protocol = if flow.local.is_ipv4() { ETH_P_IP } else { ETH_P_IPV6 };
        filter.header.info = u32::from(minor) << 16 | u32::from(protocol.to_be());
        filter
    }

    fn add_filter(&self, flow: FlowKey, minor: u16) -> (RouteNetlinkMessage, u16) {
        let mut filter = self.filter(flow, minor);
        filter.attributes = vec![
            TcAttribute::Kind("u32".into()),
            TcAttribute::Options(vec![
                TcOption::U32(TcFilterU32Option::ClassId(TcHandle { major: MAJOR, minor })),
                TcOption::U32(TcFilterU32Option::Selector(selector(flow))),
            ]),
        ];
        (RouteNetlinkMessage::NewTrafficFilter(filter), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn delete_filter(&self, flow: FlowKey, minor: u16) -> (RouteNetlinkMessage, u16) {
        (RouteNetlinkMessage::DelTrafficFilter(self.filter(flow, minor)), 0)
    }
}

impl Drop for HtbPacer {
    fn drop(&mut self) {
        for (flow, class) in std::mem::take(&mut self.classes) {
            if let Steering::Priority { place, before } = class.steering {
                self.restore(flow, place, before);
            }
        }
        let delete = RouteNetlinkMessage::DelQueueDiscipline(root(self.device));
        let _ = self.netlink.change(delete, 0);
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError { mechanism: Mechanism::Htb, step, error }
}

/// Opens a netlink handle for this device. Also returns the device's index, and the lock that
/// excludes other pacers.
fn take(device: &str) -> Result<(Netlink, i32, UnixListener), StartError> {
    let index = Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.index_of(device));
    let index = index.map_err(|error| failed("find the device")(error.into()))?;
    let only_one = claim(index).map_err(failed("claim the device, which another pacer has"))?;
    let netlink = Netlink::open(None).map_err(|error| failed("open a netlink socket")(error.into()))?;
    Ok((netlink, index as i32, only_one))
}

/// Deletes the leftovers of a killed pacer from the device. Returns true if there were any.
fn clear_leftover(netlink: &mut Netlink, device: i32) -> Result<bool, StartError> {
    let is_there = leftover(netlink, device).map_err(|error| failed("list qdiscs")(error.into()))?;
    if is_there {
        let delete = RouteNetlinkMessage::DelQueueDiscipline(root(device));
        let cleared = netlink.change(delete, 0);
        cleared.map_err(|error| failed("clear a killed pacer's qdisc")(error.into()))?;
    }
    Ok(is_there)
}

/// Takes a name in this network namespace that only one living process can hold.
fn claim(device: u32) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(format!("anabranch-pace-htb-{device}"))?)
}

/// Returns true if the device's root qdisc is a leftover of ours.
fn leftover(netlink: &mut Netlink, device: i32) -> Result<bool, NetlinkError> {
    let mut ours = false;
    netlink.dump(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(device)), |answer| {
        if let RouteNetlinkMessage::NewQueueDiscipline(qdisc) = answer
            && (qdisc.header.index, qdisc.header.parent) == (device, TcHandle::ROOT)
        {
            ours = is_ours(&qdisc);
        }
    })?;
    Ok(ours)
}

fn is_ours(qdisc: &TcMessage) -> bool {
    let htb = TcAttribute::Kind("htb".into());
    let default_class = qdisc.attributes.iter().find_map(|attribute| {
        let TcAttribute::Options(options) = attribute else { return None };
        let [TcOption::Other(options)] = &options[..] else { return None };
        let mut bytes = vec![0; options.value_len()];
        options.emit_value(&mut bytes);
        let init = NlasIterator::new(&bytes[..]).flatten().find(|nla| nla.kind() == TCA_HTB_INIT)?;
        init.value().get(8..)?.first_chunk().map(|class| u32::from_ne_bytes(*class))
    });
    qdisc.header.handle == TcHandle { major: MAJOR, minor: 0 }
        && qdisc.attributes.contains(&htb)
        && default_class == Some(DEFAULT_CLASS)
}

/// The message for our root qdisc on this device.
fn root(device: i32) -> TcMessage {
    let mut qdisc = TcMessage::with_index(device);
    qdisc.header.parent = TcHandle::ROOT;
    qdisc.header.handle = TcHandle { major: MAJOR, minor: 0 };
    qdisc
}

fn kind(name: &str, options: Vec<(u16, Vec<u8>)>) -> Vec<TcAttribute> {
    let options = options.into_iter().map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value)));
    vec![TcAttribute::Kind(name.into()), TcAttribute::Options(options.collect())]
}

/// A `tc_htb_glob`: version, divisor for quanta, default class, debug, count of unshaped packets.
fn global_options() -> Vec<u8> {
    [HTB_VERSION, 10, DEFAULT_CLASS, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Duration of the maximum burst, in nanoseconds; one packet, in bytes, is added.
const BURST_NS: u64 = 2_000_000;
const BURST_PACKET_BYTES: u64 = 1_600;
/// Bytes that a class may send at its turn. HTB requires the value, but it has no effect as no
/// class borrows.
const QUANTUM_BYTES: u32 = 60_000;

/// Encodes a `tc_htb_opt`; rates beyond 32 bits are separate attributes.
fn class_options(bytes_per_second: u64) -> Vec<(u16, Vec<u8>)> {
    let rate = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
    let mut spec = vec![0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    spec.extend(rate.to_ne_bytes());
    // In the scheduler's ticks of 64 ns.
    let packet_ns = BURST_PACKET_BYTES * 1_000_000_000 / bytes_per_second.max(1);
    let ticks = u32::try_from((BURST_NS + packet_ns) >> 6).unwrap_or(u32::MAX);
    let mut options = [spec.clone(), spec].concat();
    options.extend([ticks, ticks, QUANTUM_BYTES, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
    let mut all = vec![(TCA_HTB_PARMS, options)];
    if bytes_per_second >= u64::from(u32::MAX) {
        let wide = bytes_per_second.to_ne_bytes().to_vec();
        all.extend([(TCA_HTB_RATE64, wide.clone()), (TCA_HTB_CEIL64, wide)]);
    }
    all
}

/// Matches the packets that the flow sends, if TCP follows the IP header without options or
/// extension headers.
fn selector(flow: FlowKey) -> TcU32Selector {
    let mut keys = Vec::new();
    let mut push = |off: usize, mask: u32, val: u32| {
        let mut key = TcU32Key::default();
        (key.off, key.mask, key.val) = (off as i32, mask, val);
        keys.push(key);
    };
    let ports = u32::from(flow.local.port()) << 16 | u32::from(flow.remote.port());
    let tcp = libc::IPPROTO_TCP as u32;
    match (flow.local.ip(), flow.remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            push(0, 0xff00_0000, 0x4500_0000);
            push(8, 0x00ff_0000, tcp << 16);
            push(12, u32::MAX, local.into());
            push(16, u32::MAX, remote.into());
            push(20, u32::MAX, ports);
        }
        (local, remote) => {
            push(4, 0x0000_ff00, tcp << 8);
            for (at, ip) in [(8, local), (24, remote)] {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                for (word, bytes) in ip.octets().as_chunks::<4>().0.iter().enumerate() {
                    push(at + 4 * word, u32::MAX, u32::from_be_bytes(*bytes));
                }
            }
            push(40, u32::MAX, ports);
        }
    }
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = keys.len() as u8;
    selector.keys = keys;
    selector
}

fn refused(flow: FlowKey, error: io::Error) -> PaceError {
    PaceError::Refused { flow, mechanism: Mechanism::Htb, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qdisc_is_ours_by_handle_and_default_class() {
        let qdisc = |class: u32, major| {
            let mut init = vec![28, 0, TCA_HTB_INIT as u8, 0];
            init[..2].copy_from_slice(&24u16.to_ne_bytes());
            init[2..].copy_from_slice(&TCA_HTB_INIT.to_ne_bytes());
            init.extend([HTB_VERSION, 10, class, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
            let mut qdisc = root(1);
            qdisc.header.handle.major = major;
            qdisc.attributes = vec![
                TcAttribute::Kind("htb".into()),
                TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(2, init))]),
            ];
            qdisc
        };
        assert!(is_ours(&qdisc(DEFAULT_CLASS, MAJOR)));
        assert!(!is_ours(&qdisc(1, MAJOR)));
        assert!(!is_ours(&qdisc(DEFAULT_CLASS, 1)));
        assert!(!is_ours(&root(1)));
    }

    #[test]
    fn rates_beyond_32_bits_use_separate_attributes() {
        assert_eq!(class_options(u64::from(u32::MAX) - 1).len(), 1);
        let wide = class_options(u64::from(u32::MAX));
        assert_eq!(wide.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [1, 6, 7]);
        assert_eq!(wide[0].1.len(), 44);
    }
}
