//! Translation of a scenario's network to elements: a port for each link, and a switch for each
//! site that forwards.
//!
//! Links with one priority and constant settings get the one-event port. Hosts are numbered in the
//! order of their sites, without the switches, and share one node. Read [`Network`] first.

use crate::scenario::{CircuitSpec, NetworkSpec, PathSpread};
use crate::topologies::GENERATED;
use anabranch_fabric::switch::PolicyKind;
use anabranch_fabric::{
    AnyElement, BufferId, CircuitError, CircuitSettings, CircuitSwitch, FifoPort, Policy, Port, PortError,
    PortSettings, SharedBuffer, Switch, Target,
};
use anabranch_graph::file::{Defaults, LoadedTopology, load_with_warnings};
use anabranch_graph::{LinkProperties, Routes, Topology, TopologyError, datacentre};
use anabranch_units::text::known;
use anabranch_units::{BitRate, ByteCount, LinkId, Seed, SiteId};

/// The node of all hosts.
pub(crate) const HOSTS: Target = Target::node(0);

/// A network from which the elements of each run are built.
#[derive(Debug)]
pub struct Network {
    /// The topology as built, added reverse links included.
    topology: Topology,
    /// The topology without added reverse links; `None` if no reverse links were added.
    named: Option<Topology>,
    /// Warnings about the topology's file.
    warnings: Vec<String>,
    /// Sites of the hosts, by host number.
    hosts: Vec<SiteId>,
    routes: Routes,
    ports: Vec<PortSettings>,
    spread: PathSpread,
    shared: Option<SharedBuffer>,
    /// Site of the hybrid switch, and its settings.
    circuit: Option<(SiteId, CircuitSettings)>,
}

/// Reason why a network cannot be built, with the invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    /// The setting, as in `network.rate`.
    pub field: &'static str,
    /// The reason.
    pub message: String,
}

impl Network {
    /// Creates the network that `spec` describes. `read` returns a file's text by name.
    ///
    /// Errors: an invalid topology, or a rate or delay that a port cannot have.
    pub fn new(
        spec: &NetworkSpec,
        read: &dyn Fn(&str) -> std::io::Result<String>,
    ) -> Result<Self, NetworkError> {
        let wrong = |field, message: String| NetworkError { field, message };
        let loaded = topology(spec, read).map_err(|message| wrong("network.topology", message))?;
        let LoadedTopology { topology, warnings } = loaded;
        let wrong_links = |error: TopologyError| wrong("network.ways_back", error.to_string());
        let wired = spec.ways_back.then(|| topology.with_ways_back()).transpose().map_err(wrong_links)?;
        let (topology, named) = match wired {
            Some(wired) => (wired, Some(topology)),
            None => (topology, None),
        };
        let hosts: Vec<_> = topology.site_ids().filter(|s| !topology.site(*s).is_switch).collect();
        if hosts.len() < 2 {
            return Err(wrong("network.topology", format!("{} hosts: at least 2 are needed", hosts.len())));
        }
        let ports: Vec<_> = topology.link_ids().map(|link| port_settings(spec, &topology, link)).collect();
        for settings in &ports {
            settings.check().map_err(|error| {
                let field = match error {
                    PortError::RateTooLow { .. } => "network.rate",
                    PortError::DelayTooLong { .. } => "network.delay",
                    PortError::BitErrorsTooHigh { .. } => "network.bit_errors_ppt",
                    _ => "network.loss_ppm",
                };
                wrong(field, error.to_string())
            })?;
        }
        // Inside a data centre every hop has the same weight. Between cities the path with the
        // shortest delay is chosen.
        let is_generated = GENERATED.contains(&spec.topology.as_str());
        let length =
            |link| if is_generated { 1 } else { topology.link(link).properties.delay.as_ps().max(1) };
        let lengths: Vec<u64> = topology.link_ids().map(length).collect();
        let routes = Routes::shortest(&topology, &lengths, &hosts);
        let alpha_milli = spec.shared_factor.map(|alpha| (alpha * 1_000.0).round() as u32);
        let shared = spec.shared_buffer.map(|bytes| SharedBuffer::new(bytes, alpha_milli));
        Ok(Self {
            topology,
            named,
            warnings,
            hosts,
            routes,
            ports,
            spread: spec.spread,
            shared,
            circuit: None,
        })
    }

    /// Returns the same network with the hybrid switch that `spec` describes, for packets of at
    /// most `packet`.
    ///
    /// Errors: a switch that does not exist in the topology, or settings that do not fit its links.
    pub(crate) fn with_circuit_spec(
        self,
        spec: &CircuitSpec,
        packet: ByteCount,
    ) -> Result<Self, NetworkError> {
        let wrong = |field, message: String| NetworkError { field, message };
        let site = self.find_switch(&spec.switch).map_err(|error| wrong("circuit.switch", error))?;
        let racks = self.topology.links_out(site).count();
        let settings = spec.settings(racks, packet).map_err(|(field, message)| wrong(field, message))?;
        self.with_circuits(site, settings).map_err(|error| wrong("circuit", error.to_string()))
    }

    /// Finds the switch named `name`.
    ///
    /// Errors: no site has this name, or the site is a host, in one line.
    pub(crate) fn find_switch(&self, name: &str) -> Result<SiteId, String> {
        let site = self.topology.find_site(name).map_err(|error| error.to_string())?;
        if self.topology.site(site).is_switch {
            return Ok(site);
        }
        Err(format!("`{name}` is a host: name a switch"))
    }

    /// Returns the same network with a hybrid switch in place of the switch at `site`. The ports of
    /// the hybrid switch are the site's links, in their order.
    ///
    /// Errors: settings that do not fit these ports.
    pub(crate) fn with_circuits(
        mut self,
        site: SiteId,
        settings: CircuitSettings,
    ) -> Result<Self, CircuitError> {
        self.circuit_switch_at(site, settings.clone())?;
        self.circuit = Some((site, settings));
        Ok(self)
    }

    fn circuit_switch_at(
        &self,
        site: SiteId,
        settings: CircuitSettings,
    ) -> Result<CircuitSwitch, CircuitError> {
        let outputs = self.topology.links_out(site).map(Self::port).collect();
        CircuitSwitch::new(self.ports_of(site), outputs, settings)
    }

    /// Returns, for each host, which of the links of the switch at `site` leads to the host.
    fn ports_of(&self, site: SiteId) -> Vec<Option<u16>> {
        let links: Vec<LinkId> = self.topology.links_out(site).collect();
        let port_of = |host: &SiteId| {
            let link = self.next(site, *host).first();
            let port = link.and_then(|link| links.iter().position(|own| own == link));
            port.map(|port| port as u16)
        };
        self.hosts.iter().map(port_of).collect()
    }

    /// Rack of each host, by host number, and the number of racks behind the hybrid switch. `None`
    /// without a hybrid switch.
    pub(crate) fn racks(&self) -> Option<(Vec<Option<u16>>, u16)> {
        let (site, _) = self.circuit.as_ref()?;
        let racks = self.topology.links_out(*site).count() as u16;
        Some((self.ports_of(*site), racks))
    }

    /// Site and settings of the hybrid switch; `None` in a network without a hybrid switch.
    pub fn circuit(&self) -> Option<(SiteId, &CircuitSettings)> {
        self.circuit.as_ref().map(|(site, settings)| (*site, settings))
    }

    /// Element of the hybrid switch; `None` in a network without a hybrid switch.
    pub(crate) fn circuit_switch(&self) -> Option<Target> {
        let links = self.topology.links().len() as u32;
        self.circuit.as_ref().map(|(site, _)| Target::element(links + u32::from(site.0)))
    }

    /// Sites and links as built, added reverse links included.
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }
    /// The topology without added reverse links, as systems' plans use it. In [`Self::topology`]
    /// the ids of added links follow the ids of these links.
    pub fn named_topology(&self) -> &Topology {
        self.named.as_ref().unwrap_or(&self.topology)
    }
    /// Sites of the hosts, by host number.
    pub fn hosts(&self) -> &[SiteId] {
        &self.hosts
    }
    /// Initial settings of the port of `link`.
    pub fn port_settings(&self, link: LinkId) -> &PortSettings {
        &self.ports[link.index()]
    }
    /// Element of the port of `link`.
    pub const fn port(link: LinkId) -> Target {
        Target::element(link.0)
    }
    /// Nine tenths of the total capacity of a host's links, which is the default rate of systems.
    ///
    /// Panics: if there is no host with this number.
    pub fn usable_rate(&self, host: u16) -> BitRate {
        let site = self.hosts[usize::from(host)];
        let out = self.topology.links().iter().filter(|link| link.from == site);
        let bps: u64 = out.map(|link| link.properties.capacity.as_bps()).sum();
        BitRate::bps(bps / 10 * 9)
    }
    /// Number of the host at `site`; `None` for a switch.
    pub fn host(&self, site: SiteId) -> Option<u16> {
        self.hosts.binary_search(&site).ok().map(|host| host as u16)
    }

    /// Finds the host named `name`.
    ///
    /// Errors: no site has this name, or the site is a switch; one line with the names of the
    /// hosts.
    pub fn find_host(&self, name: &str) -> Result<u16, String> {
        let site = self.topology.find_site(name).map_err(|error| error.to_string())?;
        self.host(site).ok_or_else(|| {
            let hosts = self.hosts.iter().map(|host| &self.topology.site(*host).name);
            format!("`{name}` is a switch: name a host: {}", known(name, hosts))
        })
    }

    /// Number of links between two hosts; 0 without a route.
    pub(crate) fn hops(&self, src: u16, dst: u16) -> u64 {
        let (mut at, end, mut hops) = (self.hosts[usize::from(src)], self.hosts[usize::from(dst)], 0);
        while at != end {
            let Some(link) = self.routes.next(at, end).first() else { return 0 };
            (at, hops) = (self.topology.link(*link).to, hops + 1);
        }
        hops
    }
    /// Warnings about the topology's file.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }
    /// Returns true if every host can reach every other host.
    pub(crate) fn is_connected(&self) -> bool {
        (0..self.hosts.len() as u16).all(|host| self.is_reachable(0, host) && self.is_reachable(host, 0))
    }
    /// Returns true if there is a route from one host to another.
    pub fn is_reachable(&self, src: u16, dst: u16) -> bool {
        src == dst || self.hops(src, dst) > 0
    }

    /// Returns the servers of host `client`: the `count` hosts after it, or, with a seed, `count`
    /// other hosts drawn at random. The same seed and client give the same servers.
    ///
    /// Panics: if `count` is not below the number of hosts.
    pub fn servers(&self, client: u16, count: usize, seed: Option<Seed>) -> Vec<u16> {
        let hosts = self.hosts.len();
        assert!(count < hosts, "the client is none of its servers");
        let mut others: Vec<u16> = (1..hosts).map(|n| ((usize::from(client) + n) % hosts) as u16).collect();
        if let Some(seed) = seed {
            seed.stream("servers", client.into()).shuffle(&mut others);
        }
        others.truncate(count);
        others
    }

    /// Finds the link named `FROM-TO`.
    ///
    /// Errors: no such site or link; the error is a line with a list of the existing sites or
    /// links.
    pub fn find_link(&self, name: &str) -> Result<LinkId, String> {
        self.topology.find_link(name).map_err(|error| error.to_string())
    }

    /// Returns true if `site` receives only its own packets: a host with a single link, or a host
    /// in a network with switches.
    fn is_leaf(&self, site: SiteId) -> bool {
        !self.topology.site(site).is_switch
            && (self.topology.links_out(site).count() == 1
                || self.topology.sites().iter().any(|site| site.is_switch))
    }

    /// Returns how `site` forwards, for an implementation outside this room: its links towards each
    /// site (none towards itself and towards switches), and its policy for choosing among several
    /// links.
    pub fn switching(&self, site: SiteId, seed: Seed) -> (Vec<Vec<LinkId>>, Policy) {
        let next = |dst| match self.host(dst) {
            Some(_) if dst != site => self.next(site, dst).to_vec(),
            _ => Vec::new(),
        };
        (self.topology.site_ids().map(next).collect(), self.policy(site, seed))
    }

    fn policy(&self, site: SiteId, seed: Seed) -> Policy {
        let kind = match self.spread {
            PathSpread::By(kind) => kind,
            PathSpread::DModK | PathSpread::DHash => PolicyKind::Ecmp,
        };
        kind.drawn(&|name| seed.stream(name, site.0.into()))
    }

    /// Returns the links from `site` towards `dst`; a single link if the destination alone decides.
    fn next(&self, site: SiteId, dst: SiteId) -> &[LinkId] {
        let next = self.routes.next(site, dst);
        let half = next.len();
        let Some(core) = self.spread.core(dst.0.into(), half as u64).filter(|_| half > 1) else {
            return next;
        };
        // Sites of a fat tree are numbered in this order: hosts, edge switches, aggregation
        // switches, cores. There are 2h pods with h edge switches and h aggregation switches each.
        let is_edge = site.index() < self.hosts.len() + 2 * half * half;
        let way = if is_edge { core as usize / half } else { core as usize % half };
        &next[way..=way]
    }

    /// Checks that each queue can hold a packet of this size.
    ///
    /// Errors: the first queue that cannot, with its setting.
    pub(crate) fn check_queues(&self, spec: &NetworkSpec, packet: ByteCount) -> Result<(), NetworkError> {
        for link in self.topology.link_ids() {
            let queue = self.ports[link.index()].queue_bytes_max;
            if queue >= packet {
                continue;
            }
            let message =
                format!("{} B: must hold at least a packet of {} B", queue.as_u64(), packet.as_u64());
            return Err(match self.topology.link(link).properties.queue {
                None => NetworkError { field: Kind::of(&self.topology, link).queue(spec).0, message },
                Some(_) => {
                    let message = format!("link {}: queue {message}", self.topology.link_name(link));
                    NetworkError { field: "network.topology", message }
                }
            });
        }
        Ok(())
    }

    /// Builds the elements, the first element of each host's packets, and the shared buffers.
    /// `needs_plain` selects the links that need the two-event port.
    pub(crate) fn build(
        &self,
        seed: Seed,
        needs_plain: impl Fn(LinkId) -> bool,
    ) -> (Vec<AnyElement>, Vec<Target>, Vec<SharedBuffer>) {
        let links = self.topology.links().len() as u32;
        let switch = |site: SiteId| Target::element(links + u32::from(site.0));
        let is_leaf: Vec<bool> = self.topology.site_ids().map(|site| self.is_leaf(site)).collect();
        let mut elements = Vec::with_capacity(links as usize + is_leaf.len());
        for link in self.topology.link_ids() {
            let to = self.topology.link(link).to;
            let from = self.topology.link(link).from;
            let peer = if is_leaf[to.index()] { HOSTS } else { switch(to) };
            let random = seed.stream("wire", link.0.into());
            let checked = "the settings were checked when the network was made";
            let is_shared = self.shared.is_some() && self.topology.site(from).is_switch;
            let settings = self.ports[link.index()];
            elements.push(if is_shared || needs_plain(link) {
                let mut port = Port::new(peer, settings, random).expect(checked);
                if is_shared {
                    port = port.with_buffer(BufferId(from.0));
                }
                AnyElement::Port(Box::new(port))
            } else {
                AnyElement::Fifo(FifoPort::new(peer, settings, random).expect(checked))
            });
        }
        let mut doors = vec![HOSTS; self.hosts.len()];
        for site in self.topology.site_ids() {
            if let Some((_, settings)) = self.circuit.as_ref().filter(|(circuit, _)| *circuit == site) {
                let switch = self.circuit_switch_at(site, settings.clone());
                let switch = switch.expect("the settings were checked when the network got them");
                elements.push(AnyElement::Circuit(Box::new(switch)));
                continue;
            }
            let me = self.host(site);
            if let Some(host) = me {
                let own = self.topology.links_out(site).next().filter(|_| is_leaf[site.index()]);
                doors[usize::from(host)] = match own {
                    Some(link) if self.topology.links_out(site).count() == 1 => Self::port(link),
                    _ => switch(site),
                };
            }
            let next = |dst: &SiteId| match self.host(*dst) {
                host if host.is_some() && host == me => vec![HOSTS],
                _ => self.next(site, *dst).iter().map(|link| Self::port(*link)).collect(),
            };
            let groups: Vec<Vec<Target>> = self.hosts.iter().map(next).collect();
            elements.push(AnyElement::Switch(Switch::with_groups(&groups, self.policy(site, seed))));
        }
        let buffers = self.shared.iter().flat_map(|buffer| vec![buffer.clone(); is_leaf.len()]).collect();
        (elements, doors, buffers)
    }
}

fn topology(
    spec: &NetworkSpec,
    read: &dyn Fn(&str) -> std::io::Result<String>,
) -> Result<LoadedTopology, String> {
    let edge = LinkProperties::new(spec.rate, spec.delay);
    let uplink =
        LinkProperties::new(spec.uplink_rate.unwrap_or(spec.rate), spec.uplink_delay.unwrap_or(spec.delay));
    let number = |n: Option<usize>| n.unwrap_or_default();
    let generated = match spec.topology.as_str() {
        "star" => datacentre::star(number(spec.hosts), &edge),
        "dumbbell" => datacentre::dumbbell(number(spec.pairs), &edge, &uplink),
        "leaf-spine" => {
            datacentre::leaf_spine(number(spec.tors), number(spec.spines), number(spec.hosts), &edge, &uplink)
        }
        "fat-tree" => datacentre::fat_tree(number(spec.k), &edge),
        other => {
            let loaded = load_with_warnings(other, &Defaults::new(spec.rate), read);
            return loaded.map_err(|error| error.to_string());
        }
    };
    let topology = generated.map_err(|error| error.to_string())?;
    Ok(LoadedTopology { topology, warnings: Vec::new() })
}

/// Kind of a link's port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A host's port, in a network with switches.
    Host,
    /// A switch's port towards a host, or any port in a network without switches.
    Edge,
    /// A switch's port towards another switch.
    Uplink,
}

impl Kind {
    fn of(topology: &Topology, link: LinkId) -> Self {
        let anabranch_graph::Link { from, to, .. } = topology.link(link);
        match (topology.site(*from).is_switch, topology.site(*to).is_switch) {
            // In a network without switches every site forwards packets.
            (false, _) if topology.sites().iter().any(|site| site.is_switch) => Self::Host,
            (true, true) => Self::Uplink,
            _ => Self::Edge,
        }
    }

    /// Returns the default queue limit of this kind of port, and the name of its setting.
    fn queue(self, spec: &NetworkSpec) -> (&'static str, ByteCount) {
        match (self, spec.uplink_queue) {
            (Self::Host, _) => ("network.host_queue", spec.host_queue),
            (Self::Uplink, Some(queue)) => ("network.uplink_queue", queue),
            _ => ("network.queue", spec.queue),
        }
    }
}

fn port_settings(spec: &NetworkSpec, topology: &Topology, link: LinkId) -> PortSettings {
    let properties = &topology.link(link).properties;
    let kind = Kind::of(topology, link);
    let queue = properties.queue.unwrap_or(kind.queue(spec).1);
    PortSettings {
        loss_ppm: properties.loss_ppm.max(spec.loss_ppm),
        loss_burst: properties.loss_burst.max(spec.loss_burst),
        bit_errors_ppt: spec.bit_errors_ppt,
        queue_packets_max: spec.queue_packets.filter(|_| kind != Kind::Host),
        mark_bytes: spec.mark.filter(|_| kind != Kind::Host),
        ..PortSettings::new(properties.capacity, properties.delay, queue)
    }
}

/// Total rate of a host's links, in bits per second.
pub(crate) fn host_rate_bps(network: &Network, host: SiteId) -> u64 {
    let links = network.topology.links_out(host);
    links.map(|link| network.topology.link(link).properties.capacity.as_bps()).sum()
}
