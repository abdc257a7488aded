//! The peers of a running agent: peers are added and removed, and each has a session and a link of
//! the forwarding thread.
//!
//! Read [`Members`] first.

use crate::config::Peer;
use crate::forward::ReceiveState;
use crate::metrics::Failures;
use crate::session::{Session, SessionStatus, Shared};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// A peer with a session.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) peer: Peer,
    pub(crate) shown: Arc<Mutex<SessionStatus>>,
    /// Set to true to end the session.
    end: watch::Sender<bool>,
}

/// All peers, by link number.
pub(crate) struct Members {
    shared: Shared,
    slots: Mutex<Vec<Option<Member>>>,
}

impl Members {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared, slots: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Member>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the peers with their link numbers.
    pub(crate) fn list(&self) -> Vec<(usize, Member)> {
        let slots = self.lock();
        slots.iter().enumerate().filter_map(|(link, member)| Some((link, member.clone()?))).collect()
    }

    /// Makes the sessions match `peers`: continues sessions of these peers, begins missing sessions
    /// in `sessions`, and ends all other sessions.
    pub(crate) fn set(&self, peers: &[Peer], sessions: &mut JoinSet<usize>) {
        let mut slots = self.lock();
        for member in slots.iter().flatten() {
            if !peers.contains(&member.peer) {
                let _ = member.end.send(true);
            }
        }
        for peer in peers {
            let is_kept = |member: &&Member| member.peer == *peer && !*member.end.borrow();
            if slots.iter().flatten().any(|member| is_kept(&member)) {
                continue;
            }
            let link = slots.iter().position(Option::is_none).unwrap_or_else(|| {
                slots.push(None);
                slots.len() - 1
            });
            let (member, session) = self.begin(link, peer);
            sessions.spawn(session.run());
            slots[link] = Some(member);
        }
    }

    fn begin(&self, link: usize, peer: &Peer) -> (Member, Session) {
        let (end, is_end) = watch::channel(false);
        let (call, calls) = mpsc::channel(1);
        let shown = Arc::new(Mutex::new(SessionStatus {
            up: None,
            since: std::time::Instant::now(),
            why: Some("its agent was not reached yet".into()),
            failures: Failures::default(),
        }));
        let session = Session {
            number: link,
            peer: peer.clone(),
            place: None,
            resolved_at: None,
            shared: self.shared.clone(),
            came: Arc::<ReceiveState>::default(),
            shown: Arc::clone(&shown),
            routed_bytes: Arc::default(),
            end: is_end,
            call,
            calls,
        };
        (Member { peer: peer.clone(), shown, end }, session)
    }

    /// Handles the end of this link's session: another peer may then use the link.
    pub(crate) fn free(&self, link: usize) {
        if let Some(slot) = self.lock().get_mut(link) {
            *slot = None;
        }
    }

    /// Ends all sessions.
    pub(crate) fn end(&self) {
        self.lock().iter().flatten().for_each(|member| _ = member.end.send(true));
    }
}
