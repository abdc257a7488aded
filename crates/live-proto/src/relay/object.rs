//! One object of the relay: its bytes, the legs that fetch it, and its viewers.

use super::body::Body;
use super::head::Head;
use super::key::Key;
use super::pace::WaitKind;
use anabranch_units::{Duration, Instant};
use std::fmt;
use std::sync::Arc;

/// HTTP status of a request that has looped back to a relay (RFC 5842, section 7.2).
pub(super) const LOOP_DETECTED: u16 = 508;

/// Number of an upstream request. Numbers are not reused.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LegId(pub(super) u64);

/// Number of a parent, chosen by the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop(pub u32);

/// Number of a viewer's request, from [`super::Relay::handle_join`] to
/// [`super::Relay::handle_leave`]. Afterwards the number is reused.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ViewerId(pub(super) u32);

impl ViewerId {
    /// The id as an index into a table of viewers.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Reason why an object is not delivered, or not completely.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A parent's answer other than 200 or 206, by its HTTP status.
    Status(u16),
    /// No parent is left to ask.
    NoParent,
    /// Parents were unreachable, or broke off their answers.
    Broke,
    /// Parents were silent for [`super::RelayConfig::give_up_after`].
    Silent,
    /// A second leg's head or bytes differ from the first leg's.
    Differs,
    /// The viewer is behind by more than [`super::RelayConfig::object_bytes_max`].
    TooSlow,
    /// The memory for objects is full.
    NoMemory,
    /// The viewer's range contains no byte of the object, whose length in bytes this is.
    OutOfRange(u64),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(LOOP_DETECTED) => {
                write!(f, "parent answered {LOOP_DETECTED}: the nodes are a ring: change a parent")
            }
            Self::Status(status) => write!(f, "parent answered {status}"),
            Self::NoParent => write!(f, "no parent is left to ask: add one, or wait until one is back"),
            Self::Broke => write!(f, "parents cannot be reached, or break off"),
            Self::Silent => write!(f, "parents do not answer in time"),
            Self::Differs => {
                write!(f, "two parents give different bytes: declare one identity for one stream")
            }
            Self::TooSlow => write!(f, "viewer is too far behind"),
            Self::NoMemory => write!(f, "memory for objects is full: raise its limit"),
            Self::OutOfRange(length) => write!(f, "range is outside of the object's {length} bytes"),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// Whether another parent may succeed.
    pub(super) fn is_retried(self) -> bool {
        match self {
            Self::Status(status) => matches!(status, 404 | 408 | 429 | 500..),
            Self::Broke | Self::Silent | Self::Differs => true,
            Self::NoParent | Self::TooSlow | Self::NoMemory | Self::OutOfRange(_) => false,
        }
    }
}

/// An object's key in the table of objects.
pub(super) type ObjectId = u64;

#[derive(Debug)]
pub(super) enum ObjectState {
    Fetching,
    Whole,
    /// The failure is returned to new viewers until this time.
    Failed(Failure, Instant),
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) key: Key,
    /// `CDN-Loop` value of requests to parents: the relays that joined requests have passed.
    pub(super) passed: String,
    /// Head of the first leg that received one.
    pub(super) head: Option<Arc<Head>>,
    pub(super) head_at: Instant,
    pub(super) body: Body,
    pub(super) state: ObjectState,
    pub(super) viewers: Vec<ViewerId>,
    /// Time at which the last viewer left, or at which the relay read the object ahead. `None`
    /// while there are viewers.
    pub(super) idle_since: Option<Instant>,
    pub(super) fresh_until: Instant,
    /// Whether new viewers of the key join this object.
    pub(super) is_listed: bool,
    /// Number of playlists between a viewer's request and this object; 0 for an object that a
    /// viewer requested first.
    pub(super) depth: u8,
    /// Sequence number of the last use.
    pub(super) used: u64,
    /// Deadline of the object in the table of timers.
    pub(super) timer: Option<Instant>,
    pub(super) fetch: Fetch,
}

/// The upstream side of an object.
#[derive(Debug, Default)]
pub(super) struct Fetch {
    /// Current legs, the oldest first.
    pub(super) legs: Vec<LegId>,
    /// Parents asked so far. A silent parent may be removed to ask it again.
    pub(super) tried: Vec<Hop>,
    /// Number of legs begun.
    pub(super) begun: u32,
    /// Longest time between two pieces of a leg.
    pub(super) longest_gap: Duration,
    /// Whether the driver had no further parent.
    pub(super) is_out_of_hops: bool,
    /// First HTTP error status of an ended leg, or else its last failure.
    pub(super) failure: Option<Failure>,
    /// Whether relays have joined that no parent has yet seen in `CDN-Loop`.
    pub(super) has_new_relays: bool,
    /// Whether the legs wait until viewers have read more.
    pub(super) is_paused: bool,
}

/// A current upstream request.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) object: ObjectId,
    /// The parent. `None` until the driver has chosen it.
    pub(super) hop: Option<Hop>,
    pub(super) asked_at: Instant,
    /// Time of the last piece, or of the request before the first piece.
    pub(super) heard_at: Instant,
    /// First byte of the requested range; 0 for the whole object.
    pub(super) from: u64,
    /// Position of the next byte. `None` before the response headers.
    pub(super) next: Option<u64>,
    /// Whether the leg has been silent for longer than usual.
    pub(super) is_suspect: bool,
}

impl Object {
    /// Length of the whole object, if known.
    pub(super) fn total(&self) -> Option<u64> {
        match self.state {
            ObjectState::Whole => Some(self.body.end()),
            _ => self.head.as_ref().and_then(|head| head.total()),
        }
    }

    pub(super) fn is_fetching(&self) -> bool {
        matches!(self.state, ObjectState::Fetching)
    }

    /// Whether a new viewer may share this object.
    pub(super) fn admits(&self, now: Instant) -> bool {
        match self.state {
            ObjectState::Fetching => {
                self.body.base() == 0 && self.head.as_ref().is_none_or(|head| !head.cache.is_unshared)
            }
            ObjectState::Whole => self.body.base() == 0 && now < self.fresh_until,
            ObjectState::Failed(_, until) => now < until,
        }
    }

    /// The kind of event that a leg waits for.
    pub(super) fn wait(&self, leg: &Leg) -> WaitKind {
        match (leg.next, self.key.is_blocking(), self.key.names_part()) {
            (Some(_), ..) => WaitKind::Piece,
            (None, true, true) => WaitKind::PartListed,
            (None, true, false) => WaitKind::SegmentListed,
            (None, false, _) => WaitKind::Head,
        }
    }
}
