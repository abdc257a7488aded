//! The relay machine behind a lock, with the tasks that drive it.

use crate::leg;
use crate::parents::Route;
use anabranch_http::origin::Origin;
use anabranch_live_proto::relay::{Action, FetchRequest, LegId, Read, Relay, ViewerId};
use anabranch_units::Instant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// State shared by all tasks of a node.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// Origin of the machine's time.
    epoch: tokio::time::Instant,
    /// Woken when the next deadline has become earlier.
    earlier: Notify,
    pub(crate) route: Arc<dyn Route>,
    /// Parents by the number of their hop.
    pub(crate) parents: Vec<Origin>,
}

struct Inner {
    relay: Relay,
    /// By [`ViewerId::index`].
    wakers: Vec<Option<Waker>>,
    legs: BTreeMap<LegId, LegTask>,
    /// The deadline for which the timer's task sleeps.
    sleeps_until: Option<Instant>,
}

struct LegTask {
    task: AbortHandle,
    /// Woken when a paused leg reads on.
    goes_on: Arc<Notify>,
}

impl Shared {
    pub(crate) fn new(relay: Relay, route: Arc<dyn Route>, parents: Vec<Origin>) -> Arc<Self> {
        let inner = Inner { relay, wakers: Vec::new(), legs: BTreeMap::new(), sleeps_until: None };
        Arc::new(Self {
            inner: Mutex::new(inner),
            epoch: tokio::time::Instant::now(),
            earlier: Notify::new(),
            route,
            parents,
        })
    }

    fn now(&self) -> Instant {
        Instant::from_ns(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// One call of the machine, and all that follows from it.
    pub(crate) fn with<T>(self: &Arc<Self>, call: impl FnOnce(&mut Relay, Instant) -> T) -> T {
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        let now = self.now();
        let result = call(&mut inner.relay, now);
        while let Some(action) = inner.relay.poll_action() {
            self.act(inner, now, action);
        }
        let mut woken = Vec::new();
        while let Some(viewer) = inner.relay.poll_ready() {
            woken.extend(inner.wakers.get_mut(viewer.index()).and_then(Option::take));
        }
        let next = inner.relay.poll_timeout();
        let is_earlier = next.is_some_and(|next| inner.sleeps_until.is_none_or(|until| next < until));
        if is_earlier {
            inner.sleeps_until = next;
        }
        drop(guard);
        if is_earlier {
            self.earlier.notify_one();
        }
        for waker in woken {
            waker.wake();
        }
        result
    }

    fn act(self: &Arc<Self>, inner: &mut Inner, now: Instant, action: Action) {
        match action {
            Action::Fetch(request) => self.fetch(inner, now, request),
            Action::Cancel(leg) => {
                if let Some(leg) = inner.legs.remove(&leg) {
                    leg.task.abort();
                }
            }
            Action::Continue(leg) => {
                if let Some(leg) = inner.legs.get(&leg) {
                    leg.goes_on.notify_one();
                }
            }
            Action::Suspect(hop) => self.route.suspect(hop),
        }
    }

    fn fetch(self: &Arc<Self>, inner: &mut Inner, now: Instant, request: FetchRequest) {
        let leg = request.leg;
        let hop = self.route.next_hop(&request.key, inner.relay.tried(leg));
        let parent = hop.and_then(|hop| Some((hop, self.parents.get(hop.0 as usize)?.clone())));
        inner.relay.handle_hop(now, leg, parent.as_ref().map(|(hop, _)| *hop));
        let Some((hop, parent)) = parent else { return };
        let goes_on = Arc::new(Notify::new());
        let task = tokio::spawn(leg::run(Arc::clone(self), hop, parent, request, Arc::clone(&goes_on)));
        inner.legs.insert(leg, LegTask { task: task.abort_handle(), goes_on });
    }

    /// A leg's task is over.
    pub(crate) fn forget(&self, leg: LegId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).legs.remove(&leg);
    }

    /// The next of a viewer's answer.
    pub(crate) fn poll_read(self: &Arc<Self>, cx: &mut Context<'_>, viewer: ViewerId) -> Poll<Read> {
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        let now = self.now();
        let read = inner.relay.handle_read(now, viewer);
        while let Some(action) = inner.relay.poll_action() {
            self.act(inner, now, action);
        }
        if read != Read::Pending {
            return Poll::Ready(read);
        }
        if inner.wakers.len() <= viewer.index() {
            inner.wakers.resize(viewer.index() + 1, None);
        }
        match &mut inner.wakers[viewer.index()] {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// A viewer leaves.
    pub(crate) fn leave(self: &Arc<Self>, viewer: ViewerId) {
        self.with(|relay, now| relay.handle_leave(now, viewer));
    }

    /// Runs the machine's deadlines. Never returns.
    pub(crate) async fn run_timer(self: Arc<Self>) {
        loop {
            let next = {
                let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                inner.sleeps_until = inner.relay.poll_timeout();
                inner.sleeps_until
            };
            match next {
                None => self.earlier.notified().await,
                Some(at) => {
                    let at = self.epoch + std::time::Duration::from_nanos(at.as_ps().div_ceil(1_000));
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {
                            self.with(|relay, now| relay.handle_timeout(now));
                        }
                        () = self.earlier.notified() => {}
                    }
                }
            }
        }
    }
}
