//! Both sides of a session, with requests and answers that are lost, late or repeated, and processes that come and go.

use super::*;
use crate::controller::{CALL_BROKEN, CALL_STANDING};
use anabranch_units::{Duration, Instant, SiteId};
use proptest::prelude::*;
use std::collections::BTreeSet;

const SITE: SiteId = SiteId(0);
const FIRST: Position = Position { queue: 100, after: 0 };
const GRACE: Duration = Duration::from_secs(3);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

#[test]
fn a_process_is_there_while_its_request_stands_and_for_a_grace_after_it() {
    let mut sessions = Sessions::<SiteId, u64>::new(GRACE);
    assert_eq!(sessions.poll_timeout(), None);
    let first = sessions.register(at(0), SITE, 7, "a:1".into(), 100);
    assert_eq!(first, Registered { after: 0, queue: 100, replaced: None, is_back: true });
    sessions.begin_poll(SITE);
    assert_eq!(sessions.poll_commands(at(0), SITE, 7, FIRST, &mut None), Ok(None));
    assert_eq!(sessions.poll_timeout(), None, "it stands");
    assert_eq!(sessions.handle_timeout(at(60_000)), []);
    sessions.end_poll(at(60_000), SITE);
    assert_eq!(sessions.poll_timeout(), Some(at(63_000)));
    sessions.excuse(at(62_000));
    assert_eq!(sessions.handle_timeout(at(64_999)), []);
    assert_eq!(sessions.handle_timeout(at(65_000)), [SITE]);
    // It is told to register, and goes on where it was.
    assert_eq!(sessions.handle_batch(at(65_001), SITE, 7, 1), Err(NotRegistered));
    let again = sessions.register(at(65_002), SITE, 7, "a:1".into(), 101);
    assert_eq!(again, Registered { after: 0, queue: 100, replaced: None, is_back: true });
}

#[test]
fn a_second_process_waits_for_a_sign_of_life_of_the_first() {
    let mut sessions = Sessions::<SiteId, u64>::new(GRACE);
    assert_eq!(sessions.call(SITE, 8), None, "the place is free");
    sessions.register(at(0), SITE, 7, "a:1".into(), 100);
    assert_eq!(sessions.call(SITE, 7), None, "it is its own");
    // A request that stands is answered at once, and the next one is the sign.
    sessions.begin_poll(SITE);
    let mut calls = None;
    assert_eq!(sessions.poll_commands(at(1), SITE, 7, FIRST, &mut calls), Ok(None));
    let call = sessions.call(SITE, 8).expect("one is there");
    assert_eq!(call.within, CALL_STANDING);
    assert_eq!(sessions.poll_commands(at(2), SITE, 7, FIRST, &mut calls), Ok(Some(vec![])));
    sessions.end_poll(at(2), SITE);
    assert_eq!(sessions.called(SITE, 8, call), Called::Silent);
    sessions.begin_poll(SITE);
    assert_eq!(sessions.poll_commands(at(3), SITE, 7, FIRST, &mut None), Ok(None));
    let taken = Taken { session: 7, address: "a:1".into() };
    assert_eq!(sessions.called(SITE, 8, call), Called::Answers(taken));
    sessions.end_poll(at(3), SITE);
    // One whose connection is broken has less time, and its place is free when it is silent.
    assert_eq!(sessions.call(SITE, 8).map(|call| call.within), Some(CALL_BROKEN));
    let second = sessions.register(at(2_000), SITE, 8, "b:1".into(), 200);
    let replaced = Some("a:1".to_owned());
    assert_eq!(second, Registered { after: 0, queue: 200, replaced, is_back: true });
    assert_eq!(sessions.poll_commands(at(2_001), SITE, 7, FIRST, &mut None), Err(NotRegistered));
    assert_eq!(sessions.called(SITE, 8, call), Called::Gone);
}

#[test]
fn a_site_that_lets_too_much_pile_up_registers_anew() {
    let mut sessions = Sessions::<SiteId, u64>::new(GRACE);
    sessions.register(at(0), SITE, 7, "a:1".into(), 100);
    assert!((0..QUEUE_MAX as u64).all(|n| sessions.push(at(0), SITE, n)));
    assert!(!sessions.push(at(0), SITE, 0));
    assert_eq!((sessions.waiting(), sessions.overflows()), (0, 1));
    assert_eq!(sessions.handle_batch(at(1), SITE, 7, 1), Err(NotRegistered));
    assert_eq!(sessions.register(at(2), SITE, 7, "a:1".into(), 101).queue, 101);
}

#[derive(Copy, Clone, Debug)]
enum Act {
    Command,
    /// The site asks for commands: whether the request arrives, and whether its answer does.
    Poll(bool, bool),
    /// The same answer comes again, late.
    Late,
    /// A request for commands arrives again, though the site may have registered since.
    LateAsk,
    /// A batch of reports, sent until it is known to have arrived: how often in vain first.
    Batch(u8),
    Silence,
    RestartController,
    RestartSite,
}

proptest! {
    /// While neither side is started anew, every command is carried out once and in order, and every batch counts once, whatever
    /// is lost. A new process or controller begins anew.
    #[test]
    fn nothing_is_lost_or_carried_out_twice(acts in proptest::collection::vec(prop_oneof![
        6 => Just(Act::Command),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(there, back)| Act::Poll(there, back)),
        2 => Just(Act::Late),
        2 => Just(Act::LateAsk),
        2 => (0..3u8).prop_map(Act::Batch),
        1 => Just(Act::Silence),
        1 => Just(Act::RestartController),
        1 => Just(Act::RestartSite),
    ], 1..200)) {
        let mut sessions = Sessions::<SiteId, u64>::new(GRACE);
        let (mut site, mut session, mut queue) = (SiteSession::default(), 1, 1_000);
        let (mut now, mut batches) = (at(0), 0);
        // Of the present queue: what was given, what was carried out, which batches counted.
        let (mut given, mut done, mut counted): (Vec<u64>, Vec<u64>, BTreeSet<u64>) = Default::default();
        let (mut late, mut asked) = (None, None);
        let drained = [Act::Poll(true, true); 4];
        for act in acts.into_iter().chain(drained) {
            now += Duration::from_ms(10);
            // Whoever speaks registers first, if it has to.
            if site.must_register() && !matches!(act, Act::Silence | Act::RestartController | Act::RestartSite) {
                queue += 1;
                let registered = sessions.register(now, SITE, session, "a:1".into(), queue);
                if registered.queue == queue {
                    (given, done, counted) = Default::default();
                }
                site.handle_registered(registered.queue, registered.after);
            }
            match act {
                Act::Command => {
                    given.push(given.len() as u64);
                    sessions.push(now, SITE, given.len() as u64 - 1);
                }
                Act::Poll(true, is_answered) => {
                    let times = site.times();
                    asked = Some((session, times, site.position()));
                    match sessions.poll_commands(now, SITE, session, site.position(), &mut None) {
                        Ok(answer) if is_answered => {
                            let answer = answer.unwrap_or_default();
                            late = Some((times, answer.clone()));
                            let new = site.handle_commands(times, answer).expect("none is late");
                            done.extend(new);
                        }
                        Ok(_) => {}
                        Err(NotRegistered) => site.handle_unknown(times),
                    }
                }
                Act::Poll(false, _) => {}
                Act::LateAsk => {
                    if let Some((session, times, position)) = asked
                        && sessions.poll_commands(now, SITE, session, position, &mut None).is_err()
                    {
                        site.handle_unknown(times);
                    }
                }
                Act::Late => {
                    if let Some((times, commands)) = late.clone() {
                        done.extend(site.handle_commands(times, commands).into_iter().flatten());
                    }
                }
                Act::Batch(in_vain) => {
                    batches += 1;
                    for _ in 0..=in_vain {
                        match sessions.handle_batch(now, SITE, session, batches) {
                            Ok(is_new) => prop_assert_eq!(is_new, counted.insert(batches)),
                            Err(NotRegistered) => site.handle_unknown(site.times()),
                        }
                    }
                }
                Act::Silence => {
                    now += GRACE;
                    sessions.handle_timeout(now);
                }
                Act::RestartController => sessions = Sessions::<SiteId, u64>::new(GRACE),
                Act::RestartSite => {
                    (session, site, batches) = (session + 1, SiteSession::default(), 0);
                    (late, asked) = (None, None);
                }
            }
            prop_assert!(done.iter().eq(given.iter().take(done.len())), "{done:?} of {given:?}");
        }
        prop_assert_eq!(done, given);
    }
}
