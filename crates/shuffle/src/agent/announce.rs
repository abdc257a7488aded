//! Server of announcements from programs, over a Unix socket: for a host's agent, and for an
//! emulated network whose circuits follow demand.
//!
//! Each request is one JSON object on a line (`shuffle_proto::announcement`), each answer one line.
//! A host's flow may be announced only by root or by the user who created its socket. An idle
//! connection is closed soon, to free its slot; the client libraries reconnect as needed. If all
//! slots are in use, a new connection evicts the longest idle connection of the user with the most
//! connections. Leaves out: the effect of announcements, and the socket (`net::local`). Read
//! [`answer`] and [`of_own_flows`].

use super::seen;
use anabranch_pace::FlowReader;
use anabranch_shuffle_proto::announced_flows::{AnnounceError, ListedConnection};
use anabranch_shuffle_proto::announcement::{Announcement, LINE_BYTES_MAX, LineError, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Maximum number of connections.
pub const CONNECTIONS_MAX: usize = 256;
/// Time after which a connection is closed if the program sends nothing, or does not read its
/// answer.
pub const IDLE_MAX: Duration = Duration::from_secs(5);

/// Minimum interval between two logged refusals.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);

/// Rate limit for logged refusals. Refusals are logged, because some programs read no answers.
#[derive(Default)]
struct Refusals {
    said_at: Option<Instant>,
    /// Number of refusals since the last logged refusal.
    unsaid: u64,
}

impl Refusals {
    /// Returns the log line for a refusal, or `None` within `REFUSALS_EVERY` of the last line.
    fn line(&mut self, now: Instant, reason: &str) -> Option<String> {
        if self.said_at.is_some_and(|at| now.saturating_duration_since(at) < REFUSALS_EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.said_at = Some(now);
        let more = match std::mem::take(&mut self.unsaid) {
            0 => String::new(),
            unsaid => format!(" ({unsaid} more since the last that was said)"),
        };
        Some(format!("an announcement is refused: {reason}{more}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn log(refusals: &Mutex<Refusals>, reason: &str) {
    let line = lock(refusals).line(Instant::now(), reason);
    if let Some(line) = line {
        tracing::info!("{line}");
    }
}

/// Slots of the connections, in order of the connections' arrival.
#[derive(Default)]
struct ConnectionSlots {
    taken: BTreeMap<u64, ConnectionSlot>,
    so_far: u64,
}

struct ConnectionSlot {
    user: u32,
    heard_at: Instant,
    /// Signal for the connection to close.
    leave: Arc<Notify>,
}

impl ConnectionSlots {
    /// Assigns a slot to a connection of this user. Returns the slot's number, the signal for its
    /// eviction, and the user whose connection was evicted for it.
    fn take(&mut self, user: u32, now: Instant) -> (u64, Arc<Notify>, Option<u32>) {
        let loser = (self.taken.len() >= CONNECTIONS_MAX).then(|| self.loser()).flatten();
        let lost = loser.and_then(|number| self.taken.remove(&number));
        if let Some(lost) = &lost {
            lost.leave.notify_one();
        }
        let (number, leave) = (self.so_far, Arc::new(Notify::new()));
        self.so_far += 1;
        self.taken.insert(number, ConnectionSlot { user, heard_at: now, leave: leave.clone() });
        (number, leave, lost.map(|lost| lost.user))
    }

    /// Finds the slot to evict: the longest idle slot among the slots of the users with the most
    /// connections.
    fn loser(&self) -> Option<u64> {
        let mut counts = BTreeMap::<u32, usize>::new();
        for place in self.taken.values() {
            *counts.entry(place.user).or_default() += 1;
        }
        let most = counts.into_values().max()?;
        let count = |user: u32| self.taken.values().filter(|place| place.user == user).count();
        let of_the_most: BTreeSet<u32> =
            self.taken.values().map(|place| place.user).filter(|user| count(*user) == most).collect();
        let theirs = self.taken.iter().filter(|(_, place)| of_the_most.contains(&place.user));
        theirs.min_by_key(|(_, place)| place.heard_at).map(|(number, _)| *number)
    }

    fn hear(&mut self, number: u64, now: Instant) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.heard_at = now;
        }
    }
}

/// A slot in use, freed when its connection ends.
struct Guard {
    places: Arc<Mutex<ConnectionSlots>>,
    number: u64,
}

impl Guard {
    fn hear(&self) {
        lock(&self.places).hear(self.number, Instant::now());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock(&self.places).taken.remove(&self.number);
    }
}

/// Serves programs until dropped. Closes connections that are idle for `idle_max`. `take` handles
/// each announcement with the program's user, or refuses it with one line for the program's author.
pub async fn answer<F>(listener: UnixListener, take: F, idle_max: Duration)
where
    F: Fn(&Announcement, u32) -> Result<(), String> + Send + Sync + 'static,
{
    let (take, places) = (Arc::new(take), Arc::<Mutex<ConnectionSlots>>::default());
    let refusals = Arc::<Mutex<Refusals>>::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Accepting fails most likely for lack of descriptors; open connections will free
                // some.
                tracing::warn!("cannot take an announcement: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        // A connection without peer credentials is already closed.
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        let (number, leave, lost) = lock(&places).take(user, Instant::now());
        if let Some(lost) = lost {
            log(
                &refusals,
                &format!("{CONNECTIONS_MAX} programs are connected: one of user {lost} has to go"),
            );
        }
        let place = Guard { places: places.clone(), number };
        let (take, refusals) = (take.clone(), refusals.clone());
        tokio::spawn(async move {
            let speaks = converse(stream, user, &place, &*take, &refusals, idle_max);
            tokio::select! {
                ended = speaks => if let Err(error) = ended {
                    tracing::debug!("a program that announces: {error}");
                },
                () = leave.notified() => {}
            }
        });
    }
}

async fn converse(
    stream: UnixStream,
    uid: u32,
    place: &Guard,
    take: &(impl Fn(&Announcement, u32) -> Result<(), String> + Sync),
    refusals: &Mutex<Refusals>,
    idle_max: Duration,
) -> io::Result<()> {
    let (lines, mut replies) = stream.into_split();
    let mut lines = BufReader::new(lines);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut lines).take(LINE_BYTES_MAX as u64);
        let length = timeout(idle_max, bounded.read_until(b'\n', &mut line)).await??;
        if length == 0 {
            return Ok(());
        }
        place.hear();
        let is_whole = line.ends_with(b"\n");
        let said = if is_whole || length < LINE_BYTES_MAX {
            Announcement::read(&line).map_err(|error| error.to_string()).and_then(|said| take(&said, uid))
        } else {
            Err(LineError::TooLong.to_string())
        };
        if let Err(reason) = &said {
            log(refusals, &format!("of user {uid}: {reason}"));
        }
        timeout(idle_max, replies.write_all(&reply(said)?)).await??;
        if !is_whole {
            return Ok(());
        }
    }
}

/// Encodes the line of an answer.
fn reply(said: Result<(), String>) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(&Reply { ok: said.is_ok(), error: said.err() })?;
    text.push(b'\n');
    Ok(text)
}

/// Returns a handler for [`answer`]. The handler passes announcements of connections in this
/// network namespace to `take`, if root or the connection's user made them.
pub fn of_own_flows(
    reader: FlowReader,
    take: impl Fn(&Announcement, &ListedConnection) -> Result<(), AnnounceError>,
) -> impl Fn(&Announcement, u32) -> Result<(), String> {
    let reader = Mutex::new(reader);
    move |said, uid| {
        let (Announcement::Flow { flow: key, .. } | Announcement::Ended { flow: key, .. }) = said;
        let flow = key.canonical();
        let found = lock(&reader).find(flow);
        let state = found
            .map_err(|error| format!("flow {flow}: {error}"))?
            .ok_or_else(|| format!("flow {flow}: no such connection in the agent's network namespace"))?;
        if uid != 0 && uid != state.uid {
            return Err(format!("flow {flow}: is another user's: only its owner or root may speak of it"));
        }
        take(said, &seen(&state)).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    /// Sends a line, and returns the answer, which is empty if the connection was closed without an
    /// answer.
    fn say(path: &Path, line: &str) -> String {
        let stream = UnixStream::connect(path).expect("it listens");
        // The server may close an evicted connection before this write.
        let _ = (&stream).write_all(line.as_bytes());
        let mut said = String::new();
        let _ = BufReader::new(&stream).read_line(&mut said);
        said
    }

    #[test]
    fn refusals_are_logged_at_intervals_and_counted_between() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let mut line = |after_ms| refusals.line(begun + Duration::from_millis(after_ms), "a reason");
        assert_eq!(line(0).as_deref(), Some("an announcement is refused: a reason"));
        assert_eq!((line(1), line(999)), (None, None));
        let counted = "an announcement is refused: a reason (2 more since the last that was said)";
        assert_eq!(line(1_000).as_deref(), Some(counted));
        assert_eq!(line(2_000).as_deref(), Some("an announcement is refused: a reason"));
    }

    /// A user of the socket's group could deny all slots to other users by sending a line from time
    /// to time (#17).
    #[test]
    fn new_connection_evicts_one_of_the_largest_user() {
        let (mut places, begun) = (ConnectionSlots::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        let mut kept = Vec::new();
        for number in 0..CONNECTIONS_MAX as u64 {
            let user = if number < 3 { 2 } else { 1 };
            let (number, leave, lost) = places.take(user, at(number));
            assert_eq!(lost, None);
            kept.push((number, leave));
        }
        // The oldest connection of the largest user has sent a line since. The connections of the
        // other user have been idle for longer.
        places.hear(3, at(1_000));
        let (newest, _, lost) = places.take(2, at(2_000));
        assert_eq!(lost, Some(1));
        assert!(!places.taken.contains_key(&4) && places.taken.contains_key(&3));
        assert!([0, 1, 2, newest].iter().all(|number| places.taken.contains_key(number)));
        // A further connection of a user evicts that user's own connection, if the user has the
        // most connections.
        assert_eq!(places.take(1, at(3_000)).2, Some(1));
        assert_eq!(places.taken.len(), CONNECTIONS_MAX);
    }

    #[test]
    fn silent_connections_do_not_deny_slots_to_other_connections() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("agent.sock");
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let _inside = runtime.enter();
        let listener = anabranch_net::local::listen(&path, None).expect("ours");
        runtime.spawn(answer(listener, |_, _| Ok(()), Duration::from_secs(60)));
        let silent: Vec<_> =
            (0..=CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).expect("it listens")).collect();
        let said = say(&path, "{}\n");
        assert!(said.contains("write flow, coflow and size_bytes"), "{said}");
        // The longest idle connection was evicted.
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut &silent[0], &mut rest).expect("it is closed");
        assert!(rest.is_empty(), "{rest:?}");
    }
}
