//! Checks that the parents of doubled legs have the same timeline of each stream.
//!
//! While a stream is watched, its playlist is requested from all parents at intervals. A parent
//! whose playlist differs from the playlist of the first parent is reported to the route. Read
//! [`TimelineCheck`].

use crate::shared::Shared;
use anabranch_http::origin::Origin;
use anabranch_live_proto::relay::{Hop, Key, share_timeline};
use anabranch_media::hls::{MediaPlaylist, PLAYLIST_BYTES_MAX};
use axum::http::HeaderMap;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Interval between two checks of a stream.
const CHECK_PAUSE: Duration = Duration::from_secs(10);
/// Time for which a stream is checked after the last request for its playlist.
const WATCHED_TIME: Duration = Duration::from_secs(30);
/// Longest wait for a parent's playlist.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Maximum number of streams that are checked.
const STREAMS_MAX: usize = 1_024;

/// Streams that are watched by viewers.
#[derive(Default)]
pub(crate) struct TimelineCheck {
    /// Watched streams, by path of the playlist.
    streams: Mutex<BTreeMap<String, WatchedTimeline>>,
    is_new: Notify,
}

struct WatchedTimeline {
    key: Key,
    seen_at: Instant,
    /// Time of the last check. `None` before the first.
    checked_at: Option<Instant>,
}

impl TimelineCheck {
    /// Records a viewer's request for a playlist.
    pub(crate) fn saw(&self, key: &Key) {
        if !key.is_playlist() {
            return;
        }
        let now = Instant::now();
        let mut streams = self.lock();
        if let Some(known) = streams.get_mut(key.path()) {
            known.seen_at = now;
        } else if streams.len() < STREAMS_MAX {
            // The current playlist is compared, so the key has no delivery directives.
            let Ok(plain) = Key::read(key.path(), anabranch_live_proto::relay::QueryRule::Remove) else {
                return;
            };
            streams.insert(
                key.path().to_owned(),
                WatchedTimeline { key: plain, seen_at: now, checked_at: None },
            );
            self.is_new.notify_one();
        }
    }

    /// Checks watched streams. Never returns.
    pub(crate) async fn run(&self, shared: &Arc<Shared>) -> Infallible {
        loop {
            for key in self.due() {
                check(shared, &key).await;
            }
            let _ = timeout(Duration::from_secs(1), self.is_new.notified()).await;
        }
    }

    /// Playlists whose check is due. They are marked as checked.
    fn due(&self) -> Vec<Key> {
        let now = Instant::now();
        let mut streams = self.lock();
        streams.retain(|_, stream| now.duration_since(stream.seen_at) < WATCHED_TIME);
        let is_due = |stream: &&mut WatchedTimeline| {
            stream.checked_at.is_none_or(|at| now.duration_since(at) >= CHECK_PAUSE)
        };
        let due = streams.values_mut().filter(is_due);
        due.map(|stream| {
            stream.checked_at = Some(now);
            stream.key.clone()
        })
        .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, WatchedTimeline>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares the playlists of all parents, and reports each parent that differs from the first.
async fn check(shared: &Arc<Shared>, key: &Key) {
    let mut answers = JoinSet::new();
    for (number, parent) in shared.parents.iter().enumerate() {
        let (parent, target) = (parent.clone(), key.to_string());
        answers.spawn(async move {
            let playlist = timeout(ANSWER_TIME, playlist(&parent, &target)).await.ok().flatten();
            (number, playlist)
        });
    }
    let mut playlists = BTreeMap::new();
    while let Some(answer) = answers.join_next().await {
        if let Ok((number, Some(playlist))) = answer {
            playlists.insert(number, playlist);
        }
    }
    let mut playlists = playlists.into_iter();
    let Some((_, first)) = playlists.next() else { return };
    for (number, other) in playlists {
        if share_timeline(&first, &other) == Some(false) {
            shared.route.differs(key, Hop(number as u32));
        }
    }
}

/// Fetches a parent's media playlist. `None` if the answer is not a valid playlist.
async fn playlist(parent: &Origin, target: &str) -> Option<MediaPlaylist> {
    let mut reply = parent.get(target, &HeaderMap::new()).await.ok()?;
    let mut text = Vec::new();
    while let Some(bytes) = reply.bytes().await.ok()? {
        text.extend_from_slice(&bytes);
        if text.len() > PLAYLIST_BYTES_MAX {
            return None;
        }
    }
    let is_success = reply.status().is_success();
    reply.finish();
    MediaPlaylist::read(&text).ok().filter(|_| is_success)
}
