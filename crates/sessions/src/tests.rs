//! Tests of both sides of a session, with requests and answers that are lost, late or repeated, and
//! processes that start and stop.

use super::*;
use crate::controller::{PROBE_DISCONNECTED, PROBE_WAITING};
use anabranch_units::{Duration, Instant, PeerId};
use proptest::prelude::*;
use std::collections::BTreeSet;

const PEER: PeerId = PeerId(0);
const FIRST: Position = Position { numbering: 100, after: 0 };
const SILENCE_MAX: Duration = Duration::from_secs(3);
const MAILBOX_MAX: usize = 8;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

/// Sessions for messages that must not be lost.
fn resuming() -> Sessions<PeerId, u64> {
    Sessions::new(SessionsConfig {
        silence_max: SILENCE_MAX,
        polls_keep_alive: true,
        rejoin: Rejoin::Resumes,
        mailbox_max: MAILBOX_MAX,
        overflow: OverflowRule::EndsSession,
        answer_max: 2,
    })
}

/// Sessions for messages that newer messages replace.
fn starting_anew() -> Sessions<PeerId, u64> {
    Sessions::new(SessionsConfig {
        polls_keep_alive: false,
        rejoin: Rejoin::StartsAnew,
        overflow: OverflowRule::DropsOldest,
        answer_max: MAILBOX_MAX,
        ..resuming().config()
    })
}

fn poll(sessions: &mut Sessions<PeerId, u64>, now: Instant, session: u64, after: u64) -> Vec<u64> {
    let position = Position { after, ..FIRST };
    let answer = sessions.poll_messages(now, &PEER, session, position, &mut None);
    answer.expect("it has joined").unwrap_or_default().into_iter().map(|(_, message)| message).collect()
}

#[test]
fn peer_with_a_waiting_poll_stays_alive() {
    let mut sessions = resuming();
    assert_eq!(sessions.poll_timeout(), None);
    let first = JoinReply { after: 0, numbering: 100, has_replaced: false, is_news: true };
    assert_eq!(sessions.handle_join(at(0), &PEER, 7, 100), first);
    sessions.begin_poll(&PEER);
    assert_eq!(sessions.poll_messages(at(0), &PEER, 7, FIRST, &mut None), Ok(None));
    assert_eq!((sessions.poll_timeout(), sessions.handle_timeout(at(60_000))), (None, vec![]));
    sessions.end_poll(at(60_000), &PEER);
    assert_eq!(sessions.poll_timeout(), Some(at(63_000)));
    sessions.excuse(at(62_000));
    assert_eq!(sessions.handle_timeout(at(64_999)), []);
    assert_eq!(sessions.handle_timeout(at(65_000)), [(PEER, Some(7))]);
    assert_eq!(sessions.peers().count(), 0);
    // The process is refused, joins again and continues its numbering.
    assert_eq!(sessions.handle_batch(at(65_001), &PEER, 7, 1), Err(NotJoined));
    assert_eq!(sessions.handle_join(at(65_002), &PEER, 7, 101), first);
}

#[test]
fn waiting_poll_without_keep_alive_does_not_delay_silence() {
    let mut sessions = starting_anew();
    sessions.handle_join(at(0), &PEER, 7, 100);
    sessions.begin_poll(&PEER);
    assert_eq!(sessions.poll_timeout(), Some(at(3_000)));
    assert_eq!(sessions.handle_timeout(at(3_000)), [(PEER, Some(7))]);
    sessions.end_poll(at(3_001), &PEER);
    assert_eq!(sessions.poll_timeout(), None);
}

#[test]
fn second_process_waits_while_the_first_is_probed() {
    let mut sessions = resuming();
    assert_eq!(sessions.probe(&PEER, 8), None, "the place is free");
    sessions.handle_join(at(0), &PEER, 7, 100);
    assert_eq!(sessions.probe(&PEER, 7), None, "it is its own");
    // A waiting poll is answered at once, and the next poll is the sign of life.
    sessions.begin_poll(&PEER);
    let mut probes = None;
    assert_eq!(sessions.poll_messages(at(1), &PEER, 7, FIRST, &mut probes), Ok(None));
    let probe = sessions.probe(&PEER, 8).expect("one is there");
    assert_eq!(probe.within, PROBE_WAITING);
    assert_eq!(sessions.poll_messages(at(2), &PEER, 7, FIRST, &mut probes), Ok(Some(vec![])));
    sessions.end_poll(at(2), &PEER);
    assert_eq!(sessions.probe_result(&PEER, 8, probe), ProbeResult::Silent);
    sessions.begin_poll(&PEER);
    assert_eq!(sessions.poll_messages(at(3), &PEER, 7, FIRST, &mut None), Ok(None));
    assert_eq!(sessions.probe_result(&PEER, 8, probe), ProbeResult::Alive(7));
    sessions.end_poll(at(3), &PEER);
    // A process whose connection is broken has less time. If it stays silent, it is replaced.
    assert_eq!(sessions.probe(&PEER, 8).map(|probe| probe.within), Some(PROBE_DISCONNECTED));
    let second = JoinReply { after: 0, numbering: 200, has_replaced: true, is_news: true };
    assert_eq!(sessions.handle_join(at(2_000), &PEER, 8, 200), second);
    assert_eq!(sessions.poll_messages(at(2_001), &PEER, 7, FIRST, &mut None), Err(NotJoined));
    assert_eq!(sessions.probe_result(&PEER, 8, probe), ProbeResult::Gone);
}

#[test]
fn full_mailbox_ends_session_or_drops_oldest_message() {
    let mut sessions = resuming();
    sessions.handle_join(at(0), &PEER, 7, 100);
    assert!((0..MAILBOX_MAX as u64).all(|n| sessions.push(at(0), &PEER, n)));
    assert!(!sessions.push(at(0), &PEER, 0));
    assert_eq!((sessions.waiting(), sessions.overflows()), (0, 1));
    assert_eq!(sessions.handle_batch(at(1), &PEER, 7, 1), Err(NotJoined));
    assert_eq!(sessions.handle_join(at(2), &PEER, 7, 101).numbering, 101);

    let mut sessions = starting_anew();
    sessions.handle_join(at(0), &PEER, 7, 100);
    assert!((0..=MAILBOX_MAX as u64).all(|n| sessions.push(at(0), &PEER, n)));
    assert_eq!(poll(&mut sessions, at(1), 7, 0), (1..=MAILBOX_MAX as u64).collect::<Vec<_>>());
    assert_eq!((sessions.overflows(), sessions.messages()), (1, MAILBOX_MAX as u64 + 1));
}

#[test]
fn join_without_resume_empties_the_mailbox() {
    let mut sessions = starting_anew();
    sessions.handle_join(at(0), &PEER, 7, 100);
    sessions.push(at(0), &PEER, 1);
    sessions.handle_join(at(1), &PEER, 7, 100);
    assert!(poll(&mut sessions, at(1), 7, 0).is_empty());
    sessions.push(at(1), &PEER, 2);
    assert_eq!(poll(&mut sessions, at(1), 7, 0), [2]);
    assert!(poll(&mut sessions, at(1), 7, 1).is_empty());
    assert_eq!(sessions.handle_leave(&PEER, 6), Err(NotJoined));
    assert_eq!(sessions.handle_leave(&PEER, 7), Ok(()));
    assert_eq!(sessions.handle_request(at(2), &PEER, 7), Err(NotJoined));
}

#[test]
fn expected_peer_is_absent_after_the_silence_limit() {
    let mut sessions = starting_anew();
    sessions.expect(at(0), &PEER);
    sessions.expect(at(1_000), &PEER);
    assert_eq!(sessions.peers().collect::<Vec<_>>(), [(&PEER, false)]);
    assert_eq!(sessions.handle_timeout(at(2_999)), []);
    assert_eq!(sessions.handle_timeout(at(3_000)), [(PEER, None)]);
    sessions.note_up_elsewhere(at(4_000), &PEER);
    assert_eq!(sessions.peers().collect::<Vec<_>>(), [(&PEER, true)]);
    assert_eq!(sessions.handle_request(at(4_001), &PEER, 7), Err(NotJoined));
}

#[test]
fn peer_tries_the_next_controller_unless_told_to_rejoin() {
    let backoff = Backoff::new(Duration::from_ms(100), Duration::from_secs(1));
    let mut controllers = Controllers::new(3, backoff);
    let mut fail = |failure| {
        let retry = controllers.handle_failure(failure);
        (controllers.current(), retry.pause.as_us() / 1_000, retry.is_first_away)
    };
    assert_eq!(fail(Failure::Away), (1, 100, true));
    assert_eq!(fail(Failure::NotLeading), (2, 200, false));
    assert_eq!(fail(Failure::Away), (0, 400, false));
    assert_eq!(fail(Failure::NotJoined), (0, 800, false));
    assert_eq!(fail(Failure::Away), (1, 1_000, false));
    assert!(controllers.handle_joined(), "one was away");
    assert!(!controllers.handle_joined());
    assert_eq!(controllers.handle_failure(Failure::Away).pause, Duration::from_ms(100));
}

#[derive(Copy, Clone, Debug)]
enum Act {
    Message,
    /// A poll of the peer. Holds whether the request arrives, and whether the answer arrives.
    Poll(bool, bool),
    /// The last answer arrives again, late.
    LateAnswer,
    /// A poll arrives again, possibly after the peer has joined again.
    LatePoll,
    /// A batch that is repeated until its answer arrives. Holds the number of answers lost before.
    Batch(u8),
    Silence,
    RestartController,
    RestartPeer,
}

proptest! {
    /// While neither side restarts, every message is delivered once and in order, and every batch
    /// counts once, even if requests or answers are lost. A new process or controller begins with
    /// an empty mailbox.
    #[test]
    fn no_message_is_lost_or_delivered_twice(acts in proptest::collection::vec(prop_oneof![
        6 => Just(Act::Message),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(there, back)| Act::Poll(there, back)),
        2 => Just(Act::LateAnswer),
        2 => Just(Act::LatePoll),
        2 => (0..3u8).prop_map(Act::Batch),
        1 => Just(Act::Silence),
        1 => Just(Act::RestartController),
        1 => Just(Act::RestartPeer),
    ], 1..200)) {
        let unbounded = SessionsConfig { mailbox_max: usize::MAX, ..resuming().config() };
        let mut sessions = Sessions::new(unbounded);
        let (mut peer, mut session, mut numbering) = (PeerSession::default(), 1, 1_000);
        let (mut now, mut batches) = (at(0), 0);
        // Of the present numbering: number of messages pushed, messages delivered, batches counted.
        let (mut given, mut done, mut counted): (u64, Vec<u64>, BTreeSet<u64>) = Default::default();
        let (mut late, mut asked) = (None, None);
        let drained = [Act::Poll(true, true); 101];
        for act in acts.into_iter().chain(drained) {
            now += Duration::from_ms(10);
            let speaks = !matches!(act, Act::Silence | Act::RestartController | Act::RestartPeer);
            if peer.must_join() && speaks {
                numbering += 1;
                let joined = sessions.handle_join(now, &PEER, session, numbering);
                if joined.numbering == numbering {
                    (given, done, counted) = Default::default();
                }
                peer.handle_joined(joined.numbering, joined.after);
            }
            match act {
                Act::Message => {
                    sessions.push(now, &PEER, given);
                    given += 1;
                }
                Act::Poll(true, is_answered) => {
                    let joins = peer.joins();
                    asked = Some((session, joins, peer.position()));
                    match sessions.poll_messages(now, &PEER, session, peer.position(), &mut None) {
                        Ok(answer) if is_answered => {
                            let answer = answer.unwrap_or_default();
                            late = Some((joins, answer.clone()));
                            done.extend(peer.handle_messages(joins, answer).expect("none is late"));
                        }
                        Ok(_) => {}
                        Err(NotJoined) => peer.handle_not_joined(joins),
                    }
                }
                Act::Poll(false, _) => {}
                Act::LatePoll => {
                    if let Some((session, joins, position)) = asked
                        && sessions.poll_messages(now, &PEER, session, position, &mut None).is_err()
                    {
                        peer.handle_not_joined(joins);
                    }
                }
                Act::LateAnswer => {
                    if let Some((joins, messages)) = late.clone() {
                        done.extend(peer.handle_messages(joins, messages).into_iter().flatten());
                    }
                }
                Act::Batch(copies) => {
                    batches += 1;
                    for _ in 0..=copies {
                        match sessions.handle_batch(now, &PEER, session, batches) {
                            Ok(is_new) => prop_assert_eq!(is_new, counted.insert(batches)),
                            Err(NotJoined) => peer.handle_not_joined(peer.joins()),
                        }
                    }
                }
                Act::Silence => {
                    now += SILENCE_MAX;
                    sessions.handle_timeout(now);
                }
                Act::RestartController => sessions = Sessions::new(unbounded),
                Act::RestartPeer => {
                    (session, peer, batches) = (session + 1, PeerSession::default(), 0);
                    (late, asked) = (None, None);
                }
            }
            prop_assert!(done.iter().copied().eq(0..done.len() as u64), "{done:?} of {given}");
        }
        prop_assert_eq!(done.len() as u64, given);
    }

    /// A second process is refused if and only if the first process gives a sign of life within the
    /// time of the probe.
    #[test]
    fn second_process_is_refused_while_the_first_responds(signs in proptest::collection::vec(0..4_000u64, 0..4)) {
        let mut sessions = resuming();
        sessions.handle_join(at(0), &PEER, 1, 100);
        let probe = sessions.probe(&PEER, 2).expect("the first is up");
        let ends = Instant::ZERO + probe.within;
        for sign in signs.iter().map(|ms| at(*ms)).filter(|sign| *sign <= ends) {
            prop_assert!(sessions.handle_batch(sign, &PEER, 1, 1).is_ok());
        }
        let is_alive = signs.iter().any(|ms| at(*ms) <= ends);
        let result = sessions.probe_result(&PEER, 2, probe);
        prop_assert_eq!(result, if is_alive { ProbeResult::Alive(1) } else { ProbeResult::Silent });
    }

    /// With either kind of mailbox, a session ends exactly at its deadline, at any times of its
    /// signs of life.
    #[test]
    fn silence_ends_a_session_at_its_deadline(
        gaps in proptest::collection::vec(0..2_999u64, 1..20),
        resumes in any::<bool>(),
    ) {
        let mut sessions = if resumes { resuming() } else { starting_anew() };
        let mut now = at(0);
        sessions.handle_join(now, &PEER, 1, 100);
        for gap in gaps {
            now += Duration::from_ms(gap);
            prop_assert_eq!(sessions.handle_timeout(now), vec![]);
            prop_assert!(sessions.handle_request(now, &PEER, 1).is_ok());
            prop_assert_eq!(sessions.poll_timeout(), Some(now + SILENCE_MAX));
        }
        let ends = now + SILENCE_MAX;
        prop_assert_eq!(sessions.handle_timeout(ends - Duration::from_ps(1)), vec![]);
        prop_assert_eq!(sessions.handle_timeout(ends), vec![(PEER, Some(1))]);
        prop_assert!(!sessions.is_joined(&PEER, 1));
    }

    /// Each pause is twice as long as the previous pause, at most the limit, until the next
    /// success.
    #[test]
    fn backoff_pauses_double_up_to_their_limit(min in 1..1_000u64, more in 0..100_000u64, failures in 1..40usize) {
        let (min, max) = (Duration::from_us(min), Duration::from_us(min + more));
        let mut backoff = Backoff::new(min, max);
        let pauses: Vec<Duration> = (0..failures).map(|_| backoff.next_pause()).collect();
        prop_assert_eq!(pauses[0], min);
        for pair in pauses.windows(2) {
            prop_assert_eq!(pair[1], (pair[0] * 2).min(max));
        }
        backoff.reset();
        prop_assert_eq!(backoff.next_pause(), min);
    }

    /// A peer finds the only controller that answers within one pass over all controllers.
    #[test]
    fn peer_finds_the_only_controller_that_answers(count in 1..9usize, answers in 0..9usize, first in 0..9usize) {
        let answers = answers % count;
        let mut controllers = Controllers::new(count, Backoff::new(Duration::from_ms(1), Duration::from_ms(8)));
        for _ in 0..first {
            controllers.handle_failure(Failure::NotLeading);
        }
        let tries = (0..count).take_while(|_| {
            let is_found = controllers.current() == answers;
            if !is_found {
                controllers.handle_failure(Failure::Away);
            }
            !is_found
        });
        prop_assert!(tries.count() < count);
        prop_assert_eq!(controllers.current(), answers);
    }
}
