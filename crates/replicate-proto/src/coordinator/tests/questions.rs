//! Questions of dry runs, which leave no trace.

use super::*;

fn ask(w: &mut World, request: TransferRequest) -> TransferId {
    let id = w.coordinator.ask_source(w.now, request).expect("a good request");
    w.drain();
    id
}

fn answer(w: &mut World) -> (TransferId, Answer) {
    for _ in 0..4_000 {
        if let Some(answer) = w.coordinator.poll_answer() {
            return answer;
        }
        w.tick();
    }
    panic!("no answer");
}

/// #17: a dry run planned a file that did not exist.
#[test]
fn source_answers_with_the_length_or_a_reason() {
    let mut w = World::new(internet2());
    let first = ask(&mut w, request(0, &[3, 5]));
    assert_eq!(answer(&mut w), (first, Ok(LENGTH)));
    let second = ask(&mut w, request(0, &[3, 5]));
    assert_ne!(first, second);
    let run = Run::of_question(second);
    assert!(run.is_question() && !Run { transfer: TransferId(1), attempt: Attempt(1) }.is_question());
    let failed =
        |site| (site, Report::Failed { run, kind: FailureKind::Unreadable, reason: "no\nsuch file".into() });
    for (site, report) in [failed(SiteId(3)), failed(SiteId(0))] {
        w.coordinator.handle_report(w.now, site, report);
    }
    assert_eq!(answer(&mut w), (second, Err("s0: no\u{fffd}such file".into())), "of the source alone");
    assert_eq!(w.coordinator.poll_answer(), None);
    assert_eq!(w.coordinator.transfer_ids().count(), 0);
    assert_eq!(w.coordinator.next_transfer(), TransferId(1));
    assert_eq!((w.coordinator.poll_changed(), w.coordinator.poll_timeout()), (None, None));
    assert!(w.events.is_empty(), "{:?}", w.events);
    assert!(w.sites.iter().all(|s| s.program.is_none()));
}

#[test]
fn absent_or_silent_source_gives_a_timely_answer() {
    let mut w = World::new(internet2());
    w.coordinator.handle_site_down(w.now, SiteId(0));
    let begun = w.now;
    let id = w.coordinator.ask_source(w.now, request(0, &[3])).expect("a good request");
    let at = w.coordinator.poll_timeout().expect("it ends");
    assert_eq!(at, begun + CoordinatorConfig::default().gather);
    w.coordinator.handle_timeout(at);
    let (answered, why) = w.coordinator.poll_answer().expect("the time is over");
    assert_eq!(answered, id);
    assert!(why.is_err_and(|why| why.contains("s0 is away")));
    // A source that returns in the meantime is asked. The question ends if the source does not
    // answer.
    w.coordinator.ask_source(at, request(0, &[3])).expect("a good request");
    w.coordinator.handle_site_up(at, SiteId(0), 9, []);
    let asked = |command: &Command| matches!(command, Command::Inquire { is_source: true, .. });
    let commands: Vec<_> = std::iter::from_fn(|| w.coordinator.poll_command()).collect();
    assert!(matches!(&commands[..], [(SiteId(0), command)] if asked(command)), "{commands:?}");
    let late = at + CoordinatorConfig::default().inquire_timeout;
    w.coordinator.handle_timeout(late);
    let (_, why) = w.coordinator.poll_answer().expect("the time is over");
    assert!(why.is_err_and(|why| why.contains("s0 did not answer within 30 s")));
}

#[test]
fn questions_are_limited_and_checked_like_transfers() {
    let mut w = World::new(internet2());
    w.coordinator.handle_site_down(w.now, SiteId(0));
    assert!(matches!(
        w.coordinator.ask_source(w.now, request(0, &[0])),
        Err(SubmitError::SourceIsDestination { .. })
    ));
    for _ in 0..QUESTIONS_MAX {
        w.coordinator.ask_source(w.now, request(0, &[3])).expect("there is room");
    }
    let refused = w.coordinator.ask_source(w.now, request(0, &[3])).expect_err("there is none left");
    assert!(refused.is_passing(), "{refused}");
}

fn of_site(source: u16) -> TransferRequest {
    TransferRequest { submitter: Submitter::Site(SiteId(source)), ..request(source, &[8]) }
}

/// #17: the questions of one site prevented dry runs of operators.
#[test]
fn site_is_limited_to_its_share_of_questions() {
    let mut w = World::new(internet2());
    for site in 0..5 {
        let ask = |w: &mut World| w.coordinator.ask_source(w.now, of_site(site));
        for _ in 0..SITE_QUESTIONS_MAX {
            ask(&mut w).expect("there is room");
        }
        let refused = ask(&mut w).expect_err("it has its share");
        let said = format!("10 questions of site `s{site}` about files are open");
        assert!(refused.is_passing() && refused.to_string().starts_with(&said), "{refused}");
    }
    let refused = w.coordinator.ask_source(w.now, of_site(5)).expect_err("sites have theirs");
    assert_eq!(refused, SubmitError::TooManyQuestionsOfSites { limit: SITES_QUESTIONS_MAX });
    assert!(refused.is_passing());
    for _ in SITES_QUESTIONS_MAX..QUESTIONS_MAX {
        w.coordinator.ask_source(w.now, request(0, &[3])).expect("there is room");
    }
    let last = w.coordinator.ask_source(w.now, request(0, &[3])).expect_err("there is none left");
    assert_eq!(last, SubmitError::TooManyQuestions { limit: QUESTIONS_MAX });
}

/// #17: a source that registered repeatedly kept its questions open without end.
#[test]
fn repeated_registration_of_a_source_does_not_extend_questions() {
    let mut w = World::new(internet2());
    let CoordinatorConfig { gather, inquire_timeout, .. } = CoordinatorConfig::default();
    w.coordinator.handle_site_down(w.now, SiteId(0));
    let (asked_at, mut now) = (w.now, w.now);
    let id = w.coordinator.ask_source(now, request(0, &[3])).expect("a good request");
    let (gone, why) = loop {
        w.coordinator.handle_site_up(now, SiteId(0), 9, []);
        w.coordinator.handle_timeout(now);
        match w.coordinator.poll_answer() {
            None => now += Duration::from_ms(500),
            Some(answer) => break answer,
        }
        assert!(now <= asked_at + gather + inquire_timeout, "it is open at {now:?}");
    };
    assert_eq!(gone, id);
    assert!(now >= asked_at + inquire_timeout && why.is_err_and(|why| why.contains("did not answer")));
}

#[test]
fn withdrawn_question_is_forgotten() {
    let mut w = World::new(internet2());
    for _ in 0..2 * QUESTIONS_MAX {
        let id = w.coordinator.ask_source(w.now, request(0, &[3])).expect("there is room");
        w.coordinator.withdraw_question(id);
    }
    w.drain();
    w.run_for(Duration::from_secs(60));
    assert_eq!(w.coordinator.poll_answer(), None);
}

/// #17: a restarted controller reused the numbers of earlier questions, and accepted late answers
/// to the earlier questions.
#[test]
fn late_answer_to_an_earlier_controllers_question_is_ignored() {
    let asked = |number| {
        let w = World::new(internet2());
        let mut coordinator = w.coordinator.with_questions_from(number);
        let id = coordinator.ask_source(w.now, request(0, &[3])).expect("a good request");
        (coordinator, id, w.now)
    };
    let ((_, earlier, _), (mut coordinator, id, now)) = (asked(1_795_000_000), asked(1_795_000_001));
    assert_ne!(earlier, id);
    let report = |id, bytes| {
        let (run, length) = (Run::of_question(id), Some(bytes));
        Report::Inventory(Inventory { length, ..Inventory::new(run) })
    };
    coordinator.handle_report(now, SiteId(0), report(earlier, 1));
    assert_eq!(coordinator.poll_answer(), None);
    coordinator.handle_report(now, SiteId(0), report(id, 2));
    assert_eq!(coordinator.poll_answer(), Some((id, Ok(2))));
}
