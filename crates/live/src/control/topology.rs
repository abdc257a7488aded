//! A node's copy of the network, and how it follows changes of the network.
//!
//! A controller's answers to reports contain the lead and version of the network. A node with an
//! earlier version reads the network again. A network that cannot be read, or that changes ids, is
//! refused completely, and the last network stays in force. Leaves out: the effects on streams
//! (`live_proto::control::node`). Read [`Topology`].

use super::{ControlConfig, ControlError, Shared, origin};
use crate::controller::client::ControllerClient;
use crate::controller::wire::{NetworkView, ReportReply};
use crate::description::{Description, Layout};
use anabranch_http::origin::{Origin, OriginUrlError};
use anabranch_live_proto::NodeId;
use anabranch_net::identity::Identity;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Longest wait for a controller's answer with a changed network.
const NETWORK_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// Lead and version of a network. Later networks have greater values.
type NetworkStamp = (u64, u64);

/// A node's copy of the network.
pub(super) struct Topology {
    /// Lead and version; zero for a network read from the node's file.
    pub(super) stamp: NetworkStamp,
    pub(super) layout: Arc<Layout>,
    /// Parents, indexed by `Hop`. Added parents are appended, and removed parents keep their
    /// index.
    pub(super) parents: Vec<(NodeId, Origin)>,
}

impl Topology {
    /// Parents of a node: first the parents in `earlier`, then new parents in the order of the
    /// description.
    ///
    /// Errors: a parent's URL is invalid.
    pub(super) fn new(
        stamp: NetworkStamp,
        layout: Layout,
        (id, identity): (NodeId, &Identity),
        earlier: &[(NodeId, Origin)],
    ) -> Result<Self, OriginUrlError> {
        let mut order: Vec<NodeId> = earlier.iter().map(|(parent, _)| *parent).collect();
        for link in layout.network().links_in(id) {
            let parent = layout.network().link(*link).from;
            if !order.contains(&parent) {
                order.push(parent);
            }
        }
        let reached = |parent: NodeId| Ok((parent, origin(layout.entry(parent), identity)?));
        let parents = order.into_iter().map(reached).collect::<Result<_, _>>()?;
        Ok(Self { stamp, layout: Arc::new(layout), parents })
    }

    /// Fetches the network from the first controller that answers, or else reads it from the node's
    /// file.
    ///
    /// Errors: see [`ControlError`].
    pub(super) async fn start(
        controllers: &[ControllerClient],
        config: &ControlConfig,
    ) -> Result<(NetworkStamp, Layout), ControlError> {
        let mut last = String::new();
        for client in controllers {
            match client.network().await {
                Ok(NetworkView { lead, version, network }) => {
                    let layout = Layout::new(network).map_err(ControlError::Description)?;
                    keep(config.cache.as_deref(), layout.description());
                    return Ok(((lead, version), layout));
                }
                Err(error) => last = error.to_string(),
            }
        }
        let Some(path) = &config.cache else { return Err(ControlError::NoDescription(last)) };
        let kept = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let kept = kept.and_then(|text| {
            let read = serde_json::from_slice::<Description>(&text);
            read.map_err(|error| format!("{}: {error}", path.display()))
        });
        let description = kept.map_err(|error| ControlError::NoDescription(format!("{last}; {error}")))?;
        tracing::warn!("{last}: the network is as {} has it", path.display());
        Ok(((0, 0), Layout::new(description).map_err(ControlError::Description)?))
    }
}

/// Saves a description completely or not at all, for a start without a controller.
fn keep(path: Option<&Path>, description: &Description) {
    let Some(path) = path else { return };
    let text = serde_json::to_vec(description).expect("a description is plain data");
    let new = path.with_extension("new");
    let write = || {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&text)?;
        // Without this, a power failure could leave the new name without the contents.
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    if let Err(error) = write() {
        tracing::warn!(
            "{}: the network is not kept for a start without a controller: {error}",
            path.display()
        );
    }
}

/// State with which a node follows changes of the network.
#[derive(Default)]
pub(super) struct NetworkFollower {
    /// The last refused network, so that its refusal is logged once.
    refused: Option<NetworkStamp>,
}

impl NetworkFollower {
    /// Fetches and applies the controller's network if it is later than the node's.
    pub(super) async fn follow(&mut self, shared: &Shared, client: &ControllerClient, reply: &ReportReply) {
        let told = (reply.lead, reply.network);
        if told <= shared.topology().stamp || self.refused == Some(told) {
            return;
        }
        let view = match tokio::time::timeout(NETWORK_TIME, client.network()).await {
            Ok(Ok(view)) => view,
            // The next report triggers another attempt.
            Ok(Err(error)) => return tracing::debug!("{error}"),
            Err(_) => return tracing::debug!("controller at {}: no network in time", client.address()),
        };
        let stamp = (view.lead, view.version);
        if let Err(reason) = shared.take_network(view) {
            tracing::warn!("version {} of the network is refused, and the last one stays: {reason}", stamp.1);
            self.refused = Some(told);
        }
    }
}

impl Shared {
    /// Applies a later network completely or not at all.
    ///
    /// Errors: the defect, in one line.
    fn take_network(&self, view: NetworkView) -> Result<(), String> {
        let before = self.topology();
        let stamp = (view.lead, view.version);
        if stamp <= before.stamp {
            return Ok(());
        }
        let layout = Layout::new(view.network).map_err(|error| error.to_string())?;
        layout.check_extends(&before.layout).map_err(|error| error.to_string())?;
        let is_new = layout != *before.layout;
        let topology = Topology::new(stamp, layout, (self.id, &self.identity), &before.parents);
        let topology = Arc::new(topology.map_err(|error| format!("parent: {error}"))?);
        self.with(|state, now| {
            let taken = state.node.handle_network(now, topology.layout.network());
            taken.map_err(|error| error.to_string())?;
            self.set_topology(Arc::clone(&topology));
            self.transfers.declare(&topology, self.id);
            Ok::<(), String>(())
        })?;
        if is_new {
            let has_children = !topology.layout.network().links_out(self.id).is_empty();
            if has_children && !self.has_listener {
                tracing::warn!("children connect to this node, and it has no --control: start it with one");
            }
            tracing::info!("version {} of the network is in force", stamp.1);
            keep(self.cache.as_deref(), topology.layout.description());
            self.signals.grown.notify_one();
        }
        Ok(())
    }
}
