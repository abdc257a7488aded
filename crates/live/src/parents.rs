//! The choice of a parent for each upstream request.

use crate::control::TransferMeter;
use anabranch_http::origin::Origin;
use anabranch_live_proto::relay::{Hop, Key};
use anabranch_net::refusals::Refusals;
use axum::http::HeaderMap;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Longest wait for a parent's answer to a probe.
const PROBE_TIME: Duration = Duration::from_millis(250);
/// Pause between probes of a parent that does not answer.
const PROBE_PAUSE: Duration = Duration::from_millis(500);
/// Time after which a failure gets a line although an equal line was left out before.
const UNLOGGED_MAX: Duration = Duration::from_secs(60);
/// Time for which a parent with another timeline is not asked for that stream.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// Maximum number of streams for which parents are refused.
const REFUSED_MAX: usize = 4_096;

/// Chooses the parent of each upstream request. A [`Hop`] is an index into
/// [`crate::NodeConfig::parents`].
pub trait Route: Send + Sync + 'static {
    /// Address of a parent, if it was added later or may differ from the configured address.
    fn origin(&self, _hop: Hop) -> Option<Origin> {
        None
    }
    /// The parent to ask for an object, other than `tried`. `None` if there is none now.
    fn next_hop(&self, key: &Key, tried: &[Hop]) -> Option<Hop>;
    /// Waits for a parent to ask, as for [`Route::next_hop`]. `None` if none can be expected.
    fn wait(&self, _key: &Key, _tried: &[Hop]) -> PendingHop {
        Box::pin(std::future::ready(None))
    }
    /// Starts a meter of a transfer. `is_ready` means that the parent has the whole object.
    fn meter(&self, _key: &Key, _hop: Hop, _is_ready: bool) -> Option<TransferMeter> {
        None
    }
    /// Called when a parent has begun to answer.
    fn delivered(&self, _key: &Key, _hop: Hop) {}
    /// Called when a parent was silent while another parent delivered this object.
    fn suspect(&self, key: &Key, hop: Hop);
    /// Called when a parent was unreachable or broke off its answer.
    fn failed(&self, key: &Key, hop: Hop);
    /// Called when a parent's media for this object differ from another parent's.
    fn differs(&self, _key: &Key, _hop: Hop) {}
}

/// Future that resolves to a parent once one can be asked.
pub type PendingHop = Pin<Box<dyn Future<Output = Option<Hop>> + Send>>;

/// Parents in a fixed order of preference. The first parent that answers gets all requests.
///
/// A failed or suspect parent is the last choice until it answers a probe: `GET /health`, with any
/// status. If a parent's media differ from another parent's media, the parent is not asked for that
/// stream for a minute, unless all other parents fail. So players do not receive two timelines.
pub struct StaticParents {
    parents: Vec<Arc<Parent>>,
    /// Refused parents by folder of the stream, with the end of each refusal.
    refused: Mutex<BTreeMap<String, BTreeMap<Hop, Instant>>>,
    /// Limiter of log lines about parents, which may break each answer and still answer each probe.
    refusals: Refusals,
}

struct Parent {
    origin: Origin,
    is_down: AtomicBool,
}

impl StaticParents {
    /// Creates a route over these parents, in order of preference.
    pub fn new(parents: &[Origin]) -> Self {
        let parent =
            |origin: &Origin| Arc::new(Parent { origin: origin.clone(), is_down: AtomicBool::new(false) });
        let parents = parents.iter().map(parent).collect();
        Self { parents, refused: Mutex::default(), refusals: Refusals::default() }
    }

    /// Parents that are currently refused for an object's stream.
    fn refused(&self, key: &Key) -> Vec<Hop> {
        let now = Instant::now();
        let table = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let hops = table.get(key.folder()).into_iter().flatten();
        hops.filter(|(_, until)| **until > now).map(|(hop, _)| *hop).collect()
    }

    fn lose(&self, hop: Hop) {
        let Some(parent) = self.parents.get(hop.0 as usize) else { return };
        if parent.is_down.swap(true, Relaxed) {
            return;
        }
        let line = format!("parent {}: no answer: the next parent is asked", parent.origin.authority());
        let is_logged = self.refusals.tell(None, &line);
        tokio::spawn(probe(Arc::downgrade(parent), is_logged));
    }
}

/// Asks a parent until it answers. The answer is logged if the failure was.
async fn probe(parent: std::sync::Weak<Parent>, mut is_logged: bool) {
    let began = Instant::now();
    loop {
        // The node may have ended in the meantime.
        let Some(parent) = parent.upgrade() else { return };
        let origin = parent.origin.clone();
        if matches!(timeout(PROBE_TIME, origin.get("/health", &HeaderMap::new())).await, Ok(Ok(_))) {
            parent.is_down.store(false, Relaxed);
            if is_logged {
                tracing::info!("parent {}: answers again", origin.authority());
            }
            return;
        }
        if !is_logged && began.elapsed() >= UNLOGGED_MAX {
            is_logged = true;
            tracing::warn!("parent {}: no answer for {} s", origin.authority(), UNLOGGED_MAX.as_secs());
        }
        drop(parent);
        sleep(PROBE_PAUSE).await;
    }
}

impl Route for StaticParents {
    fn next_hop(&self, key: &Key, tried: &[Hop]) -> Option<Hop> {
        let refused = self.refused(key);
        let all = || (0..self.parents.len() as u32).map(Hop);
        let untried = || all().filter(|hop| !tried.contains(hop));
        let is_up = |hop: &Hop| !self.parents[hop.0 as usize].is_down.load(Relaxed);
        let agrees = |hop: &Hop| !refused.contains(hop);
        let last_choice = || untried().next().filter(|_| !all().any(|hop| agrees(&hop) && is_up(&hop)));
        untried()
            .find(|hop| agrees(hop) && is_up(hop))
            .or_else(|| untried().find(agrees))
            .or_else(last_choice)
    }

    fn suspect(&self, _key: &Key, hop: Hop) {
        self.lose(hop);
    }

    fn failed(&self, _key: &Key, hop: Hop) {
        self.lose(hop);
    }

    fn differs(&self, key: &Key, hop: Hop) {
        let Some(parent) = self.parents.get(hop.0 as usize) else { return };
        let refused = self.refused(key);
        let has_other =
            (0..self.parents.len() as u32).map(Hop).any(|other| other != hop && !refused.contains(&other));
        if refused.contains(&hop) || !has_other {
            return;
        }
        let now = Instant::now();
        let mut table = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= REFUSED_MAX {
            table.retain(|_, hops| hops.values().any(|until| *until > now));
        }
        if table.len() < REFUSED_MAX {
            table.entry(key.folder().to_owned()).or_default().insert(hop, now + REFUSED_TIME);
            tracing::warn!(
                "{}: parent {} gives other media than another parent ({}): their sources have different \
                 timelines, and it is not asked for this stream for {} s; give both sources one stream and \
                 --shared-timeline",
                key.folder(),
                parent.origin.authority(),
                key.path().rsplit('/').next().unwrap_or_default(),
                REFUSED_TIME.as_secs(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_live_proto::relay::QueryRule;

    fn key(target: &str) -> Key {
        Key::read(target, QueryRule::Remove).expect("a good target")
    }

    #[tokio::test]
    async fn parent_with_another_timeline_is_refused_for_its_stream() {
        let origin = |port| Origin::new(&format!("http://127.0.0.1:{port}")).expect("a URL");
        let parents = StaticParents::new(&[origin(1), origin(2)]);
        let (stream, other) = (key("/a/main/1.m4s"), key("/b/main/1.m4s"));
        assert_eq!(parents.next_hop(&stream, &[Hop(0)]), Some(Hop(1)));
        parents.differs(&stream, Hop(1));
        // Other objects in flight may report the other parent.
        parents.differs(&stream, Hop(0));
        assert_eq!(parents.next_hop(&stream, &[]), Some(Hop(0)));
        assert_eq!(parents.next_hop(&stream, &[Hop(0)]), None, "no second leg");
        assert_eq!(parents.next_hop(&other, &[Hop(0)]), Some(Hop(1)));
        parents.parents[0].is_down.store(true, Relaxed);
        assert_eq!(parents.next_hop(&stream, &[Hop(0)]), Some(Hop(1)), "the last choice");
        parents.parents[0].is_down.store(false, Relaxed);
        let mut table = parents.refused.lock().expect("no panic");
        let until = table.get_mut("/a/main/").and_then(|hops| hops.get_mut(&Hop(1))).expect("it is refused");
        *until = Instant::now();
        drop(table);
        assert_eq!(parents.next_hop(&stream, &[Hop(0)]), Some(Hop(1)));
    }
}
