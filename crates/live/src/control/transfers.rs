//! Transfers from parents, from which the capacity of each link is estimated.
//!
//! Leaves out: the estimator (`live_proto::control::capacity`). Read [`TransferMeter`].

use super::Shared;
use super::topology::Topology;
use anabranch_live_proto::NodeId;
use anabranch_live_proto::control::capacity::CapacityEstimator;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Longest interval between two checks of the transfers.
const LOOK_EVERY: Duration = Duration::from_ms(100);
/// Share of the declared capacity, in percent, below which the log reports a link as degraded.
const DEGRADED_PERCENT: u64 = 80;

/// Estimators of the links from all parents.
pub(super) struct Transfers {
    links: Mutex<BTreeMap<NodeId, (BitRate, CapacityEstimator)>>,
    epoch: tokio::time::Instant,
    /// Number of transfers so far.
    count: AtomicU64,
}

/// One transfer from a parent. Dropping the meter ends the transfer.
pub struct TransferMeter {
    transfers: Arc<Transfers>,
    parent: NodeId,
    /// Number of the transfer. Transfers of objects that the parent is itself receiving share
    /// number 0.
    number: u64,
}

impl Transfers {
    pub(super) fn new(epoch: tokio::time::Instant) -> Arc<Self> {
        Arc::new(Self { links: Mutex::default(), epoch, count: AtomicU64::new(0) })
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    fn with<T>(&self, call: impl FnOnce(&mut BTreeMap<NodeId, (BitRate, CapacityEstimator)>) -> T) -> T {
        call(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the declared capacities of the links from the parents.
    pub(super) fn declare(&self, topology: &Topology, id: NodeId) {
        let network = topology.layout.network();
        self.with(|links| {
            for link in network.links_in(id).iter().map(|link| network.link(*link)) {
                let new = || (link.capacity, CapacityEstimator::new(link.capacity));
                let (declared, estimator) = links.entry(link.from).or_insert_with(new);
                *declared = link.capacity;
                estimator.redeclare(link.capacity);
            }
        });
    }

    /// Parents with a link to this node.
    fn parents(&self) -> Vec<NodeId> {
        self.with(|links| links.keys().copied().collect())
    }

    /// Starts a transfer. `ready` is the stream's bitrate if the parent has the whole object.
    pub(super) fn start(self: &Arc<Self>, parent: NodeId, ready: Option<BitRate>) -> TransferMeter {
        let number = ready.map_or(0, |_| self.count.fetch_add(1, Relaxed) + 1);
        if let Some(bitrate) = ready {
            let now = self.now();
            self.with(|links| {
                if let Some((_, estimator)) = links.get_mut(&parent) {
                    estimator.handle_start(now, number, bitrate);
                }
            });
        }
        TransferMeter { transfers: Arc::clone(self), parent, number }
    }

    /// Runs the estimators. `is_parent_limited` states whether a link to a parent limits the
    /// parent's transfers. Returns the measurement of each link, and the time until the next check.
    fn look(&self, is_parent_limited: impl Fn(NodeId) -> bool) -> (Vec<LinkMeasurement>, Duration) {
        let now = self.now();
        self.with(|links| {
            let mut next = now + LOOK_EVERY;
            let mut shown = Vec::new();
            for (parent, (declared, estimator)) in links {
                estimator.handle_parent_limited(is_parent_limited(*parent));
                if estimator.poll_timeout().is_some_and(|at| at <= now) {
                    estimator.handle_timeout(now);
                }
                next = estimator.poll_timeout().map_or(next, |at| at.min(next));
                shown.push(LinkMeasurement {
                    parent: *parent,
                    declared: *declared,
                    estimate: estimator.estimate(),
                    is_limiting: estimator.is_limiting(now),
                });
            }
            (shown, next.saturating_since(now))
        })
    }
}

/// Measurement of the link from one parent.
struct LinkMeasurement {
    parent: NodeId,
    declared: BitRate,
    /// Estimated capacity. `None` until the link has limited transfers.
    estimate: Option<BitRate>,
    is_limiting: bool,
}

impl TransferMeter {
    /// Counts received bytes.
    pub(crate) fn note(&self, bytes: u64) {
        self.transfers.with(|links| {
            if let Some((_, estimator)) = links.get_mut(&self.parent) {
                estimator.handle_bytes(self.number, ByteCount::new(bytes));
            }
        });
    }
}

impl Drop for TransferMeter {
    fn drop(&mut self) {
        let now = self.transfers.now();
        self.transfers.with(|links| {
            if let Some((_, estimator)) = links.get_mut(&self.parent) {
                estimator.handle_end(now, self.number);
            }
        });
    }
}

/// Passes changed estimates to the control. Never returns.
pub(super) async fn measure(shared: Arc<Shared>) {
    let mut given: BTreeMap<NodeId, BitRate> = BTreeMap::new();
    loop {
        let limited = shared.with(|state, _| {
            let parents = shared.transfers.parents().into_iter();
            parents.filter(|parent| state.node.is_parent_limited(*parent)).collect::<Vec<_>>()
        });
        let (shown, wait) = shared.transfers.look(|parent| limited.contains(&parent));
        for LinkMeasurement { parent, declared, estimate, is_limiting } in shown {
            shared.with(|state, _| state.node.handle_limiting(parent, is_limiting));
            let Some(estimate) = estimate else { continue };
            let before = given.insert(parent, estimate);
            if before == Some(estimate) {
                continue;
            }
            let is_degraded = |rate: BitRate| {
                u128::from(rate.as_bps()) * 100 < u128::from(declared.as_bps()) * u128::from(DEGRADED_PERCENT)
            };
            match (before.is_some_and(is_degraded), is_degraded(estimate)) {
                (false, true) => tracing::warn!(
                    "link from {}: transfers show {estimate}, and {declared} is declared",
                    shared.name(parent)
                ),
                (true, false) => {
                    tracing::info!("link from {}: counts as {estimate} again", shared.name(parent));
                }
                _ => {}
            }
            shared.with(|state, _| state.node.handle_measured(parent, estimate));
        }
        tokio::time::sleep(wait.to_std() + std::time::Duration::from_millis(1)).await;
    }
}
