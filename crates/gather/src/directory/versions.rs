//! Versions of a directory at its servers, and the choice of one.
//!
//! The version of the first server listed is taken, among the servers that answer in time. A server
//! that reads a directory for the first time may take long. Each server has twice the time of the
//! first answer, and 5 s.

use super::DirectoryTarget;
use crate::connection::{ANSWER_TIME_MIN, GreetedServer, greet_within};
use crate::control::farewell;
use anabranch_disk::tree::arrival::Snapshot;
use anabranch_gather_proto::msg::{Control, ObjectDescription};
use anabranch_net::identity::Identity;
use anabranch_units::text::printable;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

/// Maximum time without any message of a server that reads a directory. It tells each second that
/// it does.
const SILENCE: Duration = Duration::from_secs(30);
/// Minimum time for the other servers after the first answer.
const OTHERS_TIME: Duration = Duration::from_secs(5);

/// Version of a directory at one server.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectoryVersion {
    /// Id of the snapshot.
    pub snapshot: [u8; 32],
    /// Bytes of the list of entries and of all contents.
    pub stream_bytes: u64,
}

/// A server's address, and its version or the reason why there is none, as the server's action.
type Answer = (String, Result<DirectoryVersion, String>);

/// A version, and the servers that have it.
#[derive(Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) snapshot: Snapshot,
    pub(super) holders: Vec<String>,
}

/// The id of a snapshot as users read it.
pub(super) fn shown(id: &[u8; 32]) -> String {
    format!("snapshot {}", blake3::Hash::from(*id).to_hex())
}

/// Asks a server for its version of the directory `name`, which ends with a slash. The server may
/// have to read the directory first.
///
/// Errors: the reason in one line, without the server's name.
pub async fn describe_directory(
    identity: &Identity,
    holder: &str,
    name: &str,
    give_up: Option<anabranch_units::Duration>,
) -> Result<DirectoryVersion, String> {
    let silence = give_up.map_or(SILENCE, |time| time.to_std().max(ANSWER_TIME_MIN));
    let greeted = greet_within(identity, holder, give_up.map(anabranch_units::Duration::to_std)).await;
    let GreetedServer { mut reader, .. } = greeted.map_err(|error| error.to_string())?;
    let gone = |error: std::io::Error| format!("it {}", farewell(&error));
    let ask = Control::Describe { object: name.to_owned(), with_hash: true };
    reader.write([ask]).await.map_err(gone)?;
    loop {
        let message = timeout(silence, reader.next()).await;
        let message = message.map_err(|_| format!("no answer in {} s", silence.as_secs()))?;
        match message.map_err(gone)? {
            Some(Control::Described { object, found }) if object == name => match found {
                Ok(ObjectDescription { bytes: stream_bytes, hash: Some(snapshot), .. }) => {
                    return Ok(DirectoryVersion { snapshot, stream_bytes });
                }
                Ok(_) => return Err("it tells no id of a snapshot: does it have this release?".to_owned()),
                Err(reason) => return Err(printable(&reason).into_owned()),
            },
            Some(Control::Goodbye { reason }) => {
                return Err(format!("it closed the connection: {}", printable(&reason)));
            }
            Some(_) => {}
            None => return Err("it closed the connection".to_owned()),
        }
    }
}

/// Asks all servers of a directory at once. The answers come in the order of the servers.
pub(super) async fn ask(
    identity: &Identity,
    target: &DirectoryTarget,
    give_up: Option<anabranch_units::Duration>,
) -> Vec<Answer> {
    let begun_at = Instant::now();
    let mut asking = JoinSet::new();
    for (at, holder) in target.holders.iter().enumerate() {
        let (identity, holder, name) = (identity.clone(), holder.clone(), target.name.clone());
        asking.spawn(async move { (at, describe_directory(&identity, &holder, &name, give_up).await) });
    }
    let mut answers: Vec<Option<Result<DirectoryVersion, String>>> = vec![None; target.holders.len()];
    let mut until: Option<Instant> = None;
    loop {
        let late = async {
            match until {
                Some(until) => sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = asking.join_next() => match answer {
                Some(Ok((at, answer))) => {
                    let is_wanted = |found: &DirectoryVersion| target.snapshot.is_none_or(|id| id == found.snapshot);
                    if answer.as_ref().is_ok_and(is_wanted) {
                        until.get_or_insert(begun_at + begun_at.elapsed() * 2 + OTHERS_TIME);
                    }
                    answers[at] = Some(answer);
                }
                // A task that panicked has no answer.
                Some(Err(_)) => {}
                None => break,
            },
            () = late => break,
        }
    }
    let unanswered = || Err("it still reads the directory, and is not waited for".to_owned());
    let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered));
    target.holders.iter().cloned().zip(answers).collect()
}

/// The version of the first server with a version, or with the wanted version. `None` if no server
/// has it.
pub(super) fn choose(answers: &[Answer], wanted: Option<[u8; 32]>) -> Option<Choice> {
    let mut versions = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let taken = *versions.find(|version| wanted.is_none_or(|id| id == version.snapshot))?;
    let has_it = |(_, answer): &&Answer| answer.as_ref() == Ok(&taken);
    let holders = answers.iter().filter(has_it).map(|(holder, _)| holder.clone()).collect();
    let DirectoryVersion { snapshot: id, stream_bytes: length_bytes } = taken;
    Some(Choice { snapshot: Snapshot { id, length_bytes }, holders })
}

/// The servers with another version than the chosen one, each with a description of it.
pub(super) fn others(answers: &[Answer], chosen: Option<&Choice>) -> BTreeMap<String, String> {
    let is_other = |holder: &String| chosen.is_none_or(|chosen| !chosen.holders.contains(holder));
    let others = answers.iter().filter(|(holder, _)| is_other(holder));
    others
        .filter_map(|(holder, answer)| Some((holder.clone(), shown(&answer.as_ref().ok()?.snapshot))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(holder: &str, version: Option<(u8, u64)>) -> Answer {
        let version = version.map(|(id, stream_bytes)| DirectoryVersion { snapshot: [id; 32], stream_bytes });
        (holder.to_owned(), version.ok_or_else(|| "it went away".to_owned()))
    }

    #[test]
    fn first_server_with_a_version_decides() {
        let answers = [
            answer("a", None),
            answer("b", Some((1, 10))),
            answer("c", Some((2, 10))),
            answer("d", Some((1, 10))),
            // Two servers state different lengths for one id, so one of them lies.
            answer("e", Some((1, 11))),
        ];
        let choice = choose(&answers, None).expect("there is a version");
        assert_eq!(choice.holders, ["b", "d"]);
        assert_eq!(choice.snapshot, Snapshot { id: [1; 32], length_bytes: 10 });
        let left: Vec<String> = others(&answers, Some(&choice)).into_keys().collect();
        assert_eq!(left, ["c", "e"]);
        assert_eq!(choose(&answers, Some([2; 32])).expect("c has it").holders, ["c"]);
        assert_eq!(choose(&answers, Some([3; 32])), None);
        assert_eq!(others(&answers, None).len(), 4);
        assert_eq!(choose(&answers[..1], None), None);
    }
}
