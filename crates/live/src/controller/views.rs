//! The operators' view of the controller: nodes, links, streams, events, metrics.
//!
//! Leaves out: HTTP (`http`). Read [`super::wire`] first.

use super::wire::{EventView, LinkView, NodeView, RoundView, StreamView};
use super::{ControllerService, LeadState, RequestRefusal, lock, running};
use crate::description::Description;
use anabranch_http::metrics::Metrics;
use anabranch_live_proto::{NodeId, Object};
use std::collections::BTreeMap;

impl ControllerService {
    /// Lead, version and description of the network.
    ///
    /// Errors: no state has been read from the store yet.
    pub(super) fn network(&self) -> Result<(u64, u64, Description), RequestRefusal> {
        let state = lock(&self.shared.state);
        let known = state.replica.known().ok_or_else(|| state.follows())?;
        Ok((known.lead, state.version, state.layout.description().clone()))
    }

    /// All nodes that are in the network or still report.
    ///
    /// Errors: another controller leads.
    pub(super) fn nodes(&self) -> Result<Vec<NodeView>, RequestRefusal> {
        let state = lock(&self.shared.state);
        let (LeadState { machine, .. }, layout) = state.leading()?;
        let nodes = layout.description().nodes.iter().zip((0..).map(NodeId));
        // A removed node is listed until its reports end.
        let shown = nodes.filter(|(_, node)| machine.is_reporting(*node) || !layout.is_removed(*node));
        let view = |(entry, node): (&crate::description::NodeEntry, NodeId)| NodeView {
            name: entry.name.clone(),
            tier: entry.tier,
            is_up: machine.is_reporting(node),
            is_draining: machine.draining().contains(&node),
            version: machine.installed(node).to_string(),
            streams: machine.streams(node).count() as u64,
            viewers: machine.viewers_at(node).map(|(_, viewers)| viewers).sum(),
        };
        Ok(shown.map(view).collect())
    }

    /// All links, with the load of the streams that nodes report.
    ///
    /// Errors: another controller leads.
    pub(super) fn links(&self) -> Result<Vec<LinkView>, RequestRefusal> {
        let state = lock(&self.shared.state);
        let (LeadState { machine, .. }, layout) = state.leading()?;
        let name = |node: NodeId| layout.entry(node).name.clone();
        let mut used: BTreeMap<(NodeId, NodeId), u64> = BTreeMap::new();
        for (object, node, parent) in running(machine, layout) {
            *used.entry((parent, node)).or_default() += object.bitrate.as_bps();
        }
        let removed = &layout.description().removed;
        let is_shown = |(link, _): &(&anabranch_live_proto::Link, anabranch_units::BitRate)| {
            let is_used = used.contains_key(&(link.from, link.to));
            let ends = [link.from, link.to];
            let is_removed = removed.links.contains(&(name(link.from), name(link.to)));
            is_used || !(is_removed || ends.iter().any(|end| layout.is_removed(*end)))
        };
        let links = layout.network().links().iter().zip(machine.believed()).filter(is_shown);
        let view = |(link, believed): (&anabranch_live_proto::Link, anabranch_units::BitRate)| LinkView {
            from: name(link.from),
            to: name(link.to),
            capacity_bps: link.capacity.as_bps(),
            believed_bps: believed.as_bps(),
            used_bps: used.get(&(link.from, link.to)).copied().unwrap_or(0),
            cost: link.cost,
        };
        Ok(links.map(view).collect())
    }

    /// All streams that nodes report.
    ///
    /// Errors: another controller leads.
    pub(super) fn streams(&self) -> Result<Vec<StreamView>, RequestRefusal> {
        let state = lock(&self.shared.state);
        let (LeadState { machine, .. }, layout) = state.leading()?;
        let view = |(object, node, parent): (Object, NodeId, NodeId)| {
            let (channel, rendition) = layout.names(object)?;
            Some(StreamView {
                channel: channel.to_owned(),
                rendition: rendition.to_owned(),
                bitrate_bps: object.bitrate.as_bps(),
                node: layout.entry(node).name.clone(),
                parent: layout.entry(parent).name.clone(),
            })
        };
        Ok(running(machine, layout).filter_map(view).collect())
    }

    /// Events after this number. Waits for up to `wait` if there are none.
    pub(super) async fn events(&self, after: u64, wait: std::time::Duration) -> Vec<EventView> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let told = self.shared.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let found: Vec<EventView> = {
                let state = lock(&self.shared.state);
                state.events.iter().filter(|event| event.number > after).cloned().collect()
            };
            if !found.is_empty() || tokio::time::timeout_at(until, told).await.is_err() {
                return found;
            }
        }
    }

    pub(super) fn rounds(&self) -> Vec<RoundView> {
        lock(&self.shared.state).rounds.iter().cloned().collect()
    }

    /// Formats the metrics for Prometheus.
    pub(super) fn metrics(&self) -> String {
        let mut text = Metrics::default();
        let (nodes, links) = (self.nodes().unwrap_or_default(), self.links().unwrap_or_default());
        let state = lock(&self.shared.state);
        let version = state.lead.as_ref().map(|lead| lead.machine.version()).unwrap_or_default();
        let up = nodes.iter().filter(|node| node.is_up).count() as u64;
        let mut gauge = |name: &str, help, value| text.gauge(&format!("live_controller_{name}"), help, value);
        gauge("leads", "1 if this controller leads", u64::from(state.lead.is_some()));
        gauge("network_version", "Version of the network", state.version);
        gauge("nodes_up", "Nodes that report", up);
        gauge("lead", "Number of the lead", version.lead);
        gauge("decision", "Number of the last tables of this lead", version.decision);
        gauge("rounds", "Rounds that are kept for operators", state.rounds.len() as u64);
        let mut count =
            |name: &str, help, value| text.counter(&format!("live_controller_{name}"), help, value);
        count("reports_total", "Reports of nodes", state.reports);
        count("events_total", "Events", state.events_ever);
        count("messages_dropped_total", "Messages that full mailboxes dropped", state.dropped);
        drop(state);
        let viewers = nodes.iter().map(|node| ([node.name.clone()], node.viewers));
        text.gauges("live_node_viewers", "Viewers that nodes report", ["node"], viewers);
        let of_link = |link: &LinkView, bps| ([link.from.clone(), link.to.clone()], bps);
        let used = links.iter().map(|link| of_link(link, link.used_bps));
        let help = "Sum of the bitrates of a link's streams";
        text.gauges("live_link_used_bps", help, ["from", "to"], used);
        let believed = links.iter().map(|link| of_link(link, link.believed_bps));
        let help = "Capacity of a link as nodes report it";
        text.gauges("live_link_capacity_bps", help, ["from", "to"], believed);
        text.text()
    }

    /// The problem that `/healthz` reports; `None` if there is none.
    pub(super) fn trouble(&self) -> Option<String> {
        let nodes = match self.nodes() {
            Ok(nodes) => nodes,
            Err(RequestRefusal::Follows(Some(_))) => return None,
            Err(error) => return Some(error.to_string()),
        };
        let silent = nodes.iter().filter(|node| !node.is_up).count();
        (2 * silent > nodes.len()).then(|| format!("{silent} of {} nodes do not report", nodes.len()))
    }
}
