//! Changes of the network at run time. The controller and each node receive a change in random
//! order.

use super::world::{ScheduleEvent, World, ladder};
use anabranch_live_proto::{Link, Network, Node, NodeId, Tier};
use anabranch_units::{BitRate, Duration};
use std::collections::BTreeSet;

/// Maximum number of nodes of a network, including added nodes.
const NODES_MAX: usize = 14;

impl World {
    /// Adds a node with its links, adds a link, or raises the capacity of a link.
    pub fn grow(&mut self) {
        let (mut nodes, mut links) = self.parts();
        let kind = self.random.chaos.below(3);
        let mut added = None;
        if kind == 0 && nodes.len() < NODES_MAX {
            let tier = [Tier::Source, Tier::Reflector, Tier::Edge][self.random.chaos.below(3) as usize];
            added = Some(nodes.len());
            nodes.push(Node { name: format!("added{}", nodes.len()), tier });
        }
        let pairs: BTreeSet<_> = links.iter().map(|link| (link.from, link.to)).collect();
        let ids = || (0..nodes.len() as u32).map(NodeId);
        let is_down = |from: NodeId, to: NodeId| {
            let tiers = (nodes[from.index()].tier, nodes[to.index()].tier);
            matches!(tiers, (Tier::Source, Tier::Reflector) | (Tier::Reflector, Tier::Edge))
        };
        let mut free: Vec<_> = ids().flat_map(|from| ids().map(move |to| (from, to))).collect();
        free.retain(|(from, to)| is_down(*from, *to) && !pairs.contains(&(*from, *to)));
        match added.map(|at| NodeId(at as u32)) {
            Some(node) => free.retain(|(from, to)| *from == node || *to == node),
            None if kind == 1 && !free.is_empty() => {
                free = vec![free[self.random.chaos.below(free.len() as u64) as usize]];
            }
            None => {
                free.clear();
                let link = &mut links[self.random.chaos.below(self.shares.len() as u64) as usize];
                let more_bps = 1_000_000 * (1 + self.random.chaos.below(8));
                link.capacity = BitRate::bps(link.capacity.as_bps() + more_bps);
                link.cost = self.random.chaos.below(9) as f64;
            }
        }
        for (from, to) in free {
            let capacity = BitRate::mbps(4 + self.random.chaos.below(16));
            links.push(Link { from, to, capacity, cost: 1.0 });
        }
        self.shares.resize(links.len(), 100);
        if let Some(at) = added {
            self.add_node(at, nodes[at].tier);
        }
        self.change(nodes, links);
    }

    /// Lowers the capacity of a link, possibly to zero.
    pub fn shrink(&mut self, link: usize) {
        let (nodes, mut links) = self.parts();
        let percent = self.random.chaos.below(100);
        let capacity = &mut links[link].capacity;
        let bps = if percent < 25 { 0 } else { capacity.as_bps() * percent / 100 };
        *capacity = BitRate::bps(bps);
        self.change(nodes, links);
    }

    fn parts(&self) -> (Vec<Node>, Vec<Link>) {
        (self.place.network.nodes().to_vec(), self.place.network.links().to_vec())
    }

    fn add_node(&mut self, at: usize, tier: Tier) {
        let node = NodeId(at as u32);
        if tier == Tier::Source {
            let all: BTreeSet<_> =
                self.place.imports.values().flatten().map(|object| object.channel).collect();
            let some = all.into_iter().filter(|_| self.random.chaos.below(2) == 0);
            self.place.imports.insert(node, some.flat_map(ladder).collect());
        }
        if tier == Tier::Edge {
            self.place.groups.iter_mut().for_each(|edges| {
                if self.random.chaos.below(2) == 0 {
                    edges.push(node);
                }
            });
        }
        self.nodes.push(None);
        let delay = Duration::from_ms(self.random.chaos.below(3_000));
        self.schedule.after(delay, ScheduleEvent::StartNode(at));
    }

    fn change(&mut self, nodes: Vec<Node>, links: Vec<Link>) {
        self.place.network = Network::new(nodes, links).expect("tiers are in order");
        for at in 0..self.nodes.len() as u32 {
            let delay = Duration::from_ms(self.random.chaos.below(2_000));
            self.schedule.after(delay, ScheduleEvent::NodeNetwork(NodeId(at)));
        }
        let delay = Duration::from_ms(self.random.chaos.below(2_000));
        self.schedule.after(delay, ScheduleEvent::ControllerNetwork);
    }

    /// Delivers the current network to a node.
    pub fn give_node_network(&mut self, at: NodeId) {
        let (now, network) = (self.now(), self.place.network.clone());
        let Some(process) = self.awake(at) else { return };
        let links = network.links_out(at).iter().map(|link| network.link(*link));
        let is_lower = |link: &Link| {
            let ledger = process.machine.ledger(link.to);
            ledger.is_some_and(|ledger| link.capacity < ledger.capacity().declared)
        };
        let is_lower = links.into_iter().any(is_lower);
        process.machine.handle_network(now, &network).expect("ids stay");
        self.laws.evictor = is_lower.then_some(at);
        self.drain();
        self.laws.evictor = None;
        self.measure();
    }

    /// Delivers the current network to the controller.
    pub fn give_controller_network(&mut self) {
        let (now, network, groups) = (self.now(), self.place.network.clone(), self.place.groups.clone());
        if let Some(running) = &mut self.controller {
            running.machine.handle_network(now, network, groups).expect("ids stay");
        }
    }
}
