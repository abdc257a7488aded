//! The choice of a parent for each upstream request.

use crate::control::TransferMeter;
use anabranch_http::origin::Origin;
use anabranch_live_proto::relay::{Hop, Key};
use axum::http::HeaderMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Time for a parent's answer to a probe.
const PROBE_TIME: Duration = Duration::from_millis(250);
/// Pause between probes of a parent that does not answer.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// Chooses the parent of each upstream request. A [`Hop`] is an index into
/// [`crate::NodeConfig::parents`].
pub trait Route: Send + Sync + 'static {
    /// Address of a parent, if it can differ from the configuration's or came later.
    fn origin(&self, _hop: Hop) -> Option<Origin> {
        None
    }
    /// The parent to ask for an object, outside of `tried`. `None` if there is none at present.
    fn next_hop(&self, key: &Key, tried: &[Hop]) -> Option<Hop>;
    /// The same, as soon as there is one. `None` if no parent will come.
    fn wait(&self, _key: &Key, _tried: &[Hop]) -> Waiting {
        Box::pin(std::future::ready(None))
    }
    /// A meter of the transfer that begins. `is_ready`: the parent has the object whole.
    fn meter(&self, _key: &Key, _hop: Hop, _is_ready: bool) -> Option<TransferMeter> {
        None
    }
    /// A parent has begun to answer.
    fn delivered(&self, _key: &Key, _hop: Hop) {}
    /// A parent was silent while another one delivered this object.
    fn suspect(&self, key: &Key, hop: Hop);
    /// A parent cannot be reached, or broke off its answer.
    fn failed(&self, key: &Key, hop: Hop);
}

/// A parent that is not known yet.
pub type Waiting = Pin<Box<dyn Future<Output = Option<Hop>> + Send>>;

/// Parents in a fixed order of preference: the first one that answers gets all requests.
///
/// A parent that failed or is suspect is the last choice for each request until it answers a
/// probe: any HTTP answer to `GET /health`.
pub struct StaticParents {
    parents: Vec<Arc<Parent>>,
}

struct Parent {
    origin: Origin,
    is_down: AtomicBool,
}

impl StaticParents {
    /// These parents, the preferred one first.
    pub fn new(parents: &[Origin]) -> Self {
        let parent =
            |origin: &Origin| Arc::new(Parent { origin: origin.clone(), is_down: AtomicBool::new(false) });
        Self { parents: parents.iter().map(parent).collect() }
    }

    fn lose(&self, hop: Hop) {
        let Some(parent) = self.parents.get(hop.0 as usize) else { return };
        if parent.is_down.swap(true, Relaxed) {
            return;
        }
        tracing::warn!("parent {}: no answer: the next parent is asked", parent.origin.authority());
        tokio::spawn(probe(Arc::downgrade(parent)));
    }
}

async fn probe(parent: std::sync::Weak<Parent>) {
    loop {
        // The node may have ended meanwhile.
        let Some(parent) = parent.upgrade() else { return };
        let origin = parent.origin.clone();
        if matches!(timeout(PROBE_TIME, origin.get("/health", &HeaderMap::new())).await, Ok(Ok(_))) {
            parent.is_down.store(false, Relaxed);
            tracing::info!("parent {}: answers again", origin.authority());
            return;
        }
        drop(parent);
        sleep(PROBE_PAUSE).await;
    }
}

impl Route for StaticParents {
    fn next_hop(&self, _key: &Key, tried: &[Hop]) -> Option<Hop> {
        let untried = || (0..self.parents.len() as u32).map(Hop).filter(|hop| !tried.contains(hop));
        let is_up = |hop: &Hop| !self.parents[hop.0 as usize].is_down.load(Relaxed);
        untried().find(is_up).or_else(|| untried().next())
    }

    fn suspect(&self, _key: &Key, hop: Hop) {
        self.lose(hop);
    }

    fn failed(&self, _key: &Key, hop: Hop) {
        self.lose(hop);
    }
}
