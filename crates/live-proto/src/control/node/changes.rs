//! Changes of the network at run time, at one node.
//!
//! Differs: the thesis has a fixed network whose capacities and costs change between rounds (§4.5);
//! nodes and links can be added here. Leaves out: how the driver receives a change. Read
//! [`Node::handle_network`].

use super::{ChildSession, Node, ParentSession};
use crate::control::ledger::{Capacity, LinkLedger};
use crate::{ChangeError, Link, Network};
use anabranch_units::{Instant, LinkId};

impl Node {
    /// Takes a changed network: changed capacities, and added neighbours, with which sessions start
    /// at once. Streams that fit continue. Streams that exceed a lower capacity are refused, as in
    /// [`Node::handle_capacity`].
    ///
    /// Errors: [`ChangeError`], for this node and its links; nothing is changed then.
    pub fn handle_network(&mut self, now: Instant, network: &Network) -> Result<(), ChangeError> {
        self.check_network(network)?;
        for link in network.links_in(self.id) {
            self.declare_parent(*link, network.link(*link));
        }
        for link in network.links_out(self.id) {
            self.declare_child(*link, network.link(*link));
        }
        self.timers.heartbeat = self.timers.heartbeat.min(now);
        Ok(())
    }

    fn check_network(&self, network: &Network) -> Result<(), ChangeError> {
        let (least, after) = (self.id.index() + 1, network.nodes().len());
        if after < least {
            return Err(ChangeError::FewerNodes { before: least, after });
        }
        let parents = self.neighbours.parents().zip(self.neighbours.links());
        let inwards = parents.map(|(parent, (link, _))| (link, parent, self.id));
        let outwards = self.children.iter().map(|(child, session)| (session.link, self.id, *child));
        for (id, from, to) in inwards.chain(outwards) {
            match network.links().get(id.index()) {
                None => {
                    let (before, after) = (id.index() + 1, network.links().len());
                    return Err(ChangeError::FewerLinks { before, after });
                }
                Some(link) if (link.from, link.to) != (from, to) => return Err(ChangeError::OtherEnds(id)),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn declare_parent(&mut self, id: LinkId, link: &Link) {
        let (parent, declared) = (link.from, link.capacity);
        if self.neighbours.add(parent, id) {
            self.parents.insert(parent, ParentSession::new(declared));
        }
        // Parents beyond the limit have no session.
        let Some(session) = self.parents.get_mut(&parent) else { return };
        if session.declared != declared {
            (session.declared, session.measured) = (declared, None);
        }
        if let Some(offer) = self.neighbours.offer(parent) {
            self.neighbours.handle_offer(parent, offer.limited(declared));
        }
    }

    fn declare_child(&mut self, id: LinkId, link: &Link) {
        let (child, declared) = (link.to, link.capacity);
        let new = || ChildSession::new(id, LinkLedger::new(Capacity::declared(declared)));
        let capacity = self.children.entry(child).or_insert_with(new).ledger.capacity();
        if capacity.declared != declared {
            self.handle_capacity(child, capacity.redeclared(declared));
        }
    }
}
