//! Everything Everywhere: each object is sent to every edge, and each group uses its nearest edge
//! (§4.7.1, "EE").
//!
//! Objects are sent in order of arrival, over the cheapest links with room.

use super::arrival_states::{ArrivalStates, Metrics, Window, arrival_order};
use super::ledger::Ledger;
use crate::network::{NodeId, Object, Tier};
use anabranch_units::LinkId;

/// Metrics of Everything Everywhere for one window.
pub fn everything_everywhere(window: &Window<'_>) -> Metrics {
    let mut asks = ArrivalStates::new(window.trace);
    let mut ledger = Ledger::new(window);
    loop {
        let program = asks.program(window);
        for id in arrival_order(&program, &asks) {
            push(window, &mut ledger, program.offers()[id as usize].object);
        }
        for request in program.requests() {
            let object = program.offers()[request.object.index()].object;
            let nearest = ledger.to_group[request.group.index()].first().copied();
            let Some(link) = nearest else { continue };
            let edge = window.topology.group_links[link.index()].edge;
            let is_new = !ledger.serves(object, request.group);
            if is_new && ledger.receives(object, edge) && ledger.has_group_room(object, link) {
                ledger.serve(object, link);
            }
        }
        if !asks.lower(window.trace, ledger.all_served()) {
            return asks.metrics(ledger.cost);
        }
    }
}

/// Sends `object` to every edge whose path has room.
fn push(window: &Window<'_>, ledger: &mut Ledger<'_>, object: Object) {
    let network = &window.topology.network;
    let cheapest = |ledger: &Ledger<'_>, node: NodeId| -> Option<LinkId> {
        let usable = network.links_in(node).iter().copied().filter(|&link| {
            let from = network.link(link).from;
            let has_it = network.node(from).tier == Tier::Source || ledger.receives(object, from);
            has_it && ledger.has_room(object, link)
        });
        usable.min_by(|&a, &b| network.link(a).cost.total_cmp(&network.link(b).cost))
    };
    for tier in [Tier::Reflector, Tier::Edge] {
        for node in network.tier(tier) {
            if !ledger.receives(object, node)
                && let Some(link) = cheapest(ledger, node)
            {
                ledger.carry(object, link);
            }
        }
    }
}
