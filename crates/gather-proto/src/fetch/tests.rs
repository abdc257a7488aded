//! Tests of the choice of the describing holder, of second tries, and of objects' failures. The
//! objects' files are already complete in most tests, so that no bytes have to be pulled.

use super::early_request::EARLY_BYTES;
use super::{Fetch, FetchConfig, FetchEvent, FetchFailure, ObjectId, ObjectPart, RequestedObject, Version};
use crate::client::{Failure, ServerId};
use crate::config::ClientConfig;
use crate::msg::{Control, ObjectDescription, Packet, PullAcceptance, PullId, Request};
use anabranch_endpoint::Bytes;
use anabranch_pieces::Attributes;
use anabranch_units::{Duration, Instant};
use proptest::prelude::*;

const A: ServerId = ServerId(0);
const B: ServerId = ServerId(1);
const C: ServerId = ServerId(2);
const OBJECT: ObjectId = ObjectId(0);
/// Length of an object that is too long to compare its versions before it is complete.
const LONG: u64 = EARLY_BYTES + 1;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

/// An undescribed object at servers A, B and C.
fn unknown() -> RequestedObject {
    let part = ObjectPart { name: "x".into(), bytes: None, hash: None, holders: vec![A, B, C] };
    RequestedObject { bytes: None, hash: None, attributes: None, may_be_there: false, parts: vec![part] }
}

fn of(wanted: RequestedObject) -> Fetch<Bytes> {
    let config =
        FetchConfig { client: ClientConfig::default(), streams: false, is_strict: false, objects_max: 512 };
    Fetch::new(Instant::ZERO, config, 3, vec![wanted]).expect("a good configuration")
}

fn connect(fetch: &mut Fetch<Bytes>, ms: u64, servers: &[ServerId]) {
    for server in servers {
        fetch.handle_connected(at(ms), *server, None, 1_024);
    }
}

/// Queued requests for descriptions: the server, and whether the hash is requested.
fn asked(fetch: &mut Fetch<Bytes>) -> Vec<(ServerId, bool)> {
    let all = std::iter::from_fn(|| fetch.poll_control());
    all.filter_map(|(server, message)| match message {
        Control::Describe { with_hash, .. } => Some((server, with_hash)),
        _ => None,
    })
    .collect()
}

fn events(fetch: &mut Fetch<Bytes>) -> Vec<FetchEvent<Bytes>> {
    std::iter::from_fn(|| fetch.poll_event()).collect()
}

fn describe(fetch: &mut Fetch<Bytes>, ms: u64, server: ServerId, bytes: u64, hash: Option<u8>) {
    let hash = hash.map(|byte| [byte; 32]);
    let found = Ok(ObjectDescription { bytes, mode: 0o640, modified_ns: 7, hash });
    fetch.handle_control(at(ms), server, Control::Described { object: "x".into(), found });
}

fn refuse(fetch: &mut Fetch<Bytes>, ms: u64, server: ServerId) {
    let found = Err("no such object".into());
    fetch.handle_control(at(ms), server, Control::Described { object: "x".into(), found });
}

/// Advances time to `until_ms`; every deadline is handled when due.
fn pass(fetch: &mut Fetch<Bytes>, until_ms: u64) {
    while let Some(next) = fetch.poll_timeout().filter(|next| *next <= at(until_ms)) {
        fetch.handle_timeout(next);
        // Drops all feedback, as if it were sent.
        while fetch.poll_transmit(next).is_some() {}
    }
}

#[test]
fn first_listed_server_is_awaited_for_half_a_second() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[B]);
    pass(&mut fetch, 499);
    assert_eq!(asked(&mut fetch), []);
    let mut late = fetch;
    pass(&mut late, 500);
    assert_eq!(asked(&mut late), [(B, false), (B, true)]);
    // A server that connects later is asked for the length only, and only while the length is
    // unknown.
    connect(&mut late, 501, &[A]);
    assert_eq!(asked(&mut late), [(A, false)]);

    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[B]);
    connect(&mut fetch, 499, &[A]);
    assert_eq!(asked(&mut fetch), [(A, false), (A, true)]);

    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[B]);
    fetch.handle_lost(at(1), A, "away");
    assert_eq!(asked(&mut fetch), [(B, false), (B, true)], "it will not come");
}

#[test]
fn next_holder_is_asked_after_refusal_loss_or_silence() {
    let refuses: fn(&mut Fetch<Bytes>) = |fetch| refuse(fetch, 1, A);
    let is_lost: fn(&mut Fetch<Bytes>) = |fetch| fetch.handle_lost(at(1), A, "away");
    let is_silent: fn(&mut Fetch<Bytes>) = |fetch| pass(fetch, 5_400);
    for fails in [refuses, is_lost, is_silent] {
        let mut fetch = of(unknown());
        connect(&mut fetch, 0, &[A, B]);
        assert_eq!(asked(&mut fetch), [(A, false), (A, true), (B, false)]);
        fails(&mut fetch);
        assert_eq!(asked(&mut fetch), [(B, false), (B, true)]);
    }
}

/// The control connection may need many retransmissions: #52.
#[test]
fn last_holder_is_awaited_four_times_as_long() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A]);
    fetch.handle_lost(at(1), B, "away");
    fetch.handle_lost(at(1), C, "away");
    asked(&mut fetch);
    pass(&mut fetch, 19_900);
    assert_eq!(events(&mut fetch), []);
    pass(&mut fetch, 21_000);
    let events = events(&mut fetch);
    let Some(FetchEvent::Failed { failure: FetchFailure::NotBrought(failures), .. }) = events.last() else {
        panic!("{events:?}");
    };
    assert!(failures[0].reason.starts_with("it did not describe the object for 20 s"), "{failures:?}");
}

#[test]
fn object_fails_if_no_server_can_describe_it() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A, B]);
    refuse(&mut fetch, 1, A);
    fetch.handle_lost(at(2), B, "away");
    assert!(!fetch.is_done(), "one may still come");
    fetch.handle_lost(at(3), C, "no such host");
    let reasons = [(A, "no such object"), (B, "away"), (C, "no such host")];
    let failures = reasons.map(|(server, reason)| Failure { server, reason: reason.to_owned() });
    let failure = FetchFailure::NotBrought(failures.into());
    assert_eq!(events(&mut fetch), [FetchEvent::Failed { object: OBJECT, failure }]);
    assert!(fetch.is_done() && fetch.poll_timeout().is_none());
}

/// Issue #18: a holder that was skipped because it was not connected yet was never asked. An object
/// that only that holder had failed.
#[test]
fn skipped_first_holder_is_asked_on_connection() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[B]);
    pass(&mut fetch, 500);
    assert_eq!(asked(&mut fetch), [(B, false), (B, true)]);
    refuse(&mut fetch, 501, B);
    fetch.handle_lost(at(502), C, "away");
    assert!(!fetch.is_done(), "the first may still come");
    connect(&mut fetch, 600, &[A]);
    assert_eq!(asked(&mut fetch), [(A, false), (A, true)]);
    fetch.handle_lost(at(601), A, "away");
    assert!(fetch.is_done(), "none is asked twice");
}

/// A holder connected after another holder had refused. The late holder was asked only five seconds
/// later, when the other holder's answer was overdue.
#[test]
fn late_holder_is_asked_immediately_after_refusals() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A, B]);
    refuse(&mut fetch, 1, A);
    refuse(&mut fetch, 2, B);
    asked(&mut fetch);
    connect(&mut fetch, 3, &[C]);
    assert_eq!(asked(&mut fetch), [(C, false), (C, true)]);
}

#[test]
fn hash_of_an_object_of_known_length_is_requested() {
    let mut fetch = of(RequestedObject { bytes: Some(5), ..unknown() });
    fetch.handle_opened(at(0), OBJECT, &[]);
    connect(&mut fetch, 1, &[A]);
    assert_eq!(asked(&mut fetch), [(A, false), (A, true)]);
    describe(&mut fetch, 2, A, 5, Some(1));
    assert!(matches!(events(&mut fetch).last(), Some(FetchEvent::Finish { .. })));
}

#[test]
fn hashing_server_is_awaited_within_a_limit() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A, B]);
    describe(&mut fetch, 1, A, 5, None);
    fetch.handle_opened(at(1), OBJECT, &[]);
    asked(&mut fetch);
    events(&mut fetch);
    let mut second = 1;
    let gave_up = loop {
        let hashing = Control::Hashing { object: "x".into(), hashed_bytes: 0 };
        fetch.handle_control(at(second * 1_000), A, hashing);
        second += 1;
        pass(&mut fetch, second * 1_000);
        if asked(&mut fetch).contains(&(B, true)) {
            break second;
        }
    };
    assert!((600..=606).contains(&gave_up), "after {gave_up} s");
    let told = events(&mut fetch);
    assert_eq!(told, [FetchEvent::StillHashing { object: OBJECT, server: A }], "once");
}

#[test]
fn object_finishes_once_however_often_it_is_described() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A]);
    describe(&mut fetch, 1, A, 5, None);
    let opened = FetchEvent::Open { object: OBJECT, bytes: 5 };
    assert_eq!(events(&mut fetch), [opened]);
    fetch.handle_opened(at(2), OBJECT, &[]);
    for ms in 3..6 {
        describe(&mut fetch, ms, A, 5, Some(1));
    }
    let attributes = Some(Attributes { mode: 0o640, modified_ns: 7 });
    let finish = FetchEvent::Finish { object: OBJECT, hash: [1; 32], attributes };
    assert_eq!(events(&mut fetch), [finish]);
    fetch.handle_finished(at(7), OBJECT);
    fetch.handle_finished(at(8), OBJECT);
    assert_eq!(events(&mut fetch), [FetchEvent::Verified { object: OBJECT }]);
    let it = &fetch.objects()[0];
    assert!(fetch.is_done() && it.is_verified() && it.ended_at() == Some(at(7)));
    assert_eq!((it.kept_bytes(), it.fetched_bytes(), fetch.done_bytes()), (5, 0, 5));
}

/// An object failed while its file was being opened. It then became active again and failed a
/// second time.
#[test]
fn failed_object_stays_failed_when_its_file_opens() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A]);
    describe(&mut fetch, 1, A, 5, None);
    for server in [B, C, A] {
        fetch.handle_lost(at(2), server, "away");
    }
    let failures = |events: &[FetchEvent<Bytes>]| {
        events.iter().filter(|event| matches!(event, FetchEvent::Failed { .. })).count()
    };
    assert_eq!(failures(&events(&mut fetch)), 1);
    fetch.handle_opened(at(3), OBJECT, std::slice::from_ref(&(0..5)));
    pass(&mut fetch, 60_000);
    assert_eq!(failures(&events(&mut fetch)), 0);
    assert!(fetch.is_done());
}

#[test]
fn server_with_another_length_is_reported_once() {
    let mut fetch = of(RequestedObject { bytes: Some(5), ..unknown() });
    assert_eq!(events(&mut fetch), [FetchEvent::Open { object: OBJECT, bytes: 5 }]);
    fetch.handle_opened(at(0), OBJECT, &[]);
    connect(&mut fetch, 0, &[A, B]);
    // No server is asked for a description before bytes are missing.
    fetch.handle_timeout(at(500));
    asked(&mut fetch);
    describe(&mut fetch, 501, A, 6, None);
    describe(&mut fetch, 502, A, 6, Some(2));
    let version = Version::Length(6);
    assert_eq!(events(&mut fetch), [FetchEvent::OtherVersion { object: OBJECT, server: A, version }]);
}

/// A complete object of known hash at A, B and C, while the driver checks it.
fn checked() -> Fetch<Bytes> {
    let attributes = Some(Attributes { mode: 0o600, modified_ns: 0 });
    let mut fetch = of(RequestedObject { bytes: Some(5), hash: Some([1; 32]), attributes, ..unknown() });
    connect(&mut fetch, 0, &[A, B, C]);
    fetch.handle_opened(at(1), OBJECT, &[]);
    assert!(asked(&mut fetch).is_empty());
    assert!(matches!(events(&mut fetch)[..], [FetchEvent::Open { .. }, FetchEvent::Finish { .. }]));
    fetch
}

#[test]
fn wrong_data_is_pulled_again_from_right_servers() {
    let mut fetch = checked();
    fetch.handle_mismatch(at(2), OBJECT);
    assert_eq!(asked(&mut fetch), [(A, true), (B, true), (C, true)]);
    assert_eq!(events(&mut fetch), [FetchEvent::Comparing { object: OBJECT }]);
    // An answer to an earlier request is ignored.
    describe(&mut fetch, 3, A, 5, None);
    describe(&mut fetch, 4, A, 5, Some(9));
    describe(&mut fetch, 5, B, 5, Some(1));
    let version = Version::Hash { name: "x".into(), bytes: 5, hash: [9; 32] };
    assert_eq!(version.to_string(), format!("x of 5 bytes, BLAKE3 {}", "09".repeat(32)));
    let other = FetchEvent::OtherVersion { object: OBJECT, server: A, version: version.clone() };
    assert_eq!(events(&mut fetch), [other]);
    fetch.handle_lost(at(6), C, "away");
    assert_eq!(events(&mut fetch), [FetchEvent::Open { object: OBJECT, bytes: 5 }]);
    fetch.handle_opened(at(7), OBJECT, std::slice::from_ref(&(2..5)));
    let pulls: Vec<_> = std::iter::from_fn(|| fetch.poll_control()).collect();
    assert!(matches!(&pulls[..], [(B, Control::Pull(pull))] if (pull.start, pull.length) == (2, Some(3))));
    // A second wrong hash fails the object: there is no third try.
    fetch.handle_lost(at(8), B, "away");
    let failure = |events: Vec<FetchEvent<Bytes>>| match events.last() {
        Some(FetchEvent::Failed { failure, .. }) => failure.clone(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(failure(events(&mut fetch)), FetchFailure::NotBrought(_)));

    let mut fetch = checked();
    fetch.handle_mismatch(at(2), OBJECT);
    for (server, hash) in [(A, 9), (B, 1), (C, 1)] {
        describe(&mut fetch, 3, server, 5, Some(hash));
    }
    fetch.handle_opened(at(4), OBJECT, &[]);
    fetch.handle_mismatch(at(5), OBJECT);
    asked(&mut fetch);
    for server in [B, C] {
        describe(&mut fetch, 6, server, 5, Some(1));
    }
    let wrong = FetchFailure::Wrong([(A, version)].into());
    assert_eq!(failure(events(&mut fetch)), wrong);
}

/// Found by fault test seed 1,799: a holder with another version connected only after the
/// comparison, and spoiled the second try of every run.
#[test]
fn comparison_that_finds_another_bad_server_adds_a_try() {
    let mut fetch = of(RequestedObject { bytes: Some(LONG), hash: Some([1; 32]), ..unknown() });
    connect(&mut fetch, 0, &[A]);
    fetch.handle_opened(at(1), OBJECT, &[]);
    describe(&mut fetch, 1, A, LONG, None);
    fetch.handle_mismatch(at(2), OBJECT);
    asked(&mut fetch);
    describe(&mut fetch, 3, A, LONG, Some(1));
    connect(&mut fetch, 4, &[B]);
    asked(&mut fetch);
    fetch.handle_opened(at(5), OBJECT, &[]);
    fetch.handle_mismatch(at(6), OBJECT);
    assert_eq!(asked(&mut fetch), [(A, true), (B, true)]);
    describe(&mut fetch, 7, A, LONG, Some(1));
    events(&mut fetch);
    describe(&mut fetch, 8, B, LONG, Some(9));
    assert_eq!(events(&mut fetch).last(), Some(&FetchEvent::Open { object: OBJECT, bytes: LONG }));
    // At the third mismatch no further server can be excluded, so the object fails.
    fetch.handle_opened(at(9), OBJECT, &[]);
    fetch.handle_mismatch(at(10), OBJECT);
    describe(&mut fetch, 11, A, LONG, Some(1));
    assert!(fetch.is_done());
}

#[test]
fn comparison_waits_for_silent_server_within_hashing_time() {
    let mut fetch = checked();
    fetch.handle_mismatch(at(2), OBJECT);
    describe(&mut fetch, 3, A, 5, Some(1));
    events(&mut fetch);
    pass(&mut fetch, 5_000);
    assert_eq!(events(&mut fetch), []);
    pass(&mut fetch, 5_400);
    assert_eq!(events(&mut fetch), [FetchEvent::Open { object: OBJECT, bytes: 5 }]);
}

#[test]
fn stream_has_no_second_try() {
    let config =
        FetchConfig { client: ClientConfig::default(), streams: true, is_strict: false, objects_max: 1 };
    let wanted = RequestedObject { bytes: Some(5), hash: Some([1; 32]), ..unknown() };
    let mut fetch = Fetch::<Bytes>::new(Instant::ZERO, config, 3, vec![wanted]).expect("good");
    connect(&mut fetch, 0, &[A]);
    fetch.handle_opened(at(1), OBJECT, &[]);
    assert!(matches!(events(&mut fetch)[..], [_, FetchEvent::Finish { attributes: None, .. }]));
    fetch.handle_mismatch(at(2), OBJECT);
    describe(&mut fetch, 3, A, 5, Some(1));
    let failure = FetchFailure::Wrong([].into());
    assert_eq!(events(&mut fetch).last(), Some(&FetchEvent::Failed { object: OBJECT, failure }));
}

#[test]
fn missing_attributes_do_not_fail_an_object() {
    for says in [true, false] {
        let mut fetch = of(RequestedObject { bytes: Some(5), hash: Some([1; 32]), ..unknown() });
        connect(&mut fetch, 0, &[A]);
        fetch.handle_opened(at(1), OBJECT, &[]);
        assert_eq!(asked(&mut fetch), [(A, false)]);
        let expected = if says {
            describe(&mut fetch, 2, A, 5, None);
            Some(Attributes { mode: 0o640, modified_ns: 7 })
        } else {
            pass(&mut fetch, 6_000);
            None
        };
        let all = events(&mut fetch);
        let last = all.last();
        assert!(
            matches!(last, Some(FetchEvent::Finish { attributes, .. }) if *attributes == expected),
            "{all:?}"
        );
    }
}

#[test]
fn silent_server_receives_address_datagrams_until_a_packet_arrives() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A]);
    let shown = |fetch: &mut Fetch<Bytes>| std::iter::from_fn(|| fetch.poll_show()).collect::<Vec<_>>();
    assert_eq!(shown(&mut fetch), [A]);
    // The first datagram is lost if it arrives before the greeting, so the second follows soon.
    let mut last = 0;
    for ms in [5, 55, 105, 155] {
        pass(&mut fetch, ms - 1);
        assert_eq!(shown(&mut fetch), [], "from {last} ms to {ms} ms");
        pass(&mut fetch, ms);
        assert_eq!(shown(&mut fetch), [A], "at {ms} ms");
        last = ms;
    }
    let packet = Packet {
        pull: PullId(0),
        sequence: 0,
        timing: None,
        queued: false,
        nonce: 0,
        generation: 0,
        id: 0,
        payload: Bytes::new(),
    };
    fetch.handle_packet(at(156), A, packet);
    pass(&mut fetch, 1_000);
    assert_eq!(shown(&mut fetch), []);
}

/// Queued requests for pulls, each with its server.
fn pulls(fetch: &mut Fetch<Bytes>) -> Vec<(ServerId, Request)> {
    let all = std::iter::from_fn(|| fetch.poll_control());
    all.filter_map(|(server, message)| match message {
        Control::Pull(request) => Some((server, request)),
        _ => None,
    })
    .collect()
}

/// Lets a server accept a pull of a whole object of `bytes` bytes in one block.
fn accept(fetch: &mut Fetch<Bytes>, ms: u64, server: ServerId, pull: u16, bytes: u64) {
    let blocks_max = ClientConfig::default().blocks_of(1_024);
    let (pull, block_bytes) = (PullId(pull), bytes as u32);
    let accepted = PullAcceptance { pull, object_bytes: bytes, bytes, block_bytes, blocks_max };
    fetch.handle_control(at(ms), server, Control::Accepted(accepted));
}

/// Delivers the only block of a pull, with 5 bytes.
fn arrive(fetch: &mut Fetch<Bytes>, ms: u64, server: ServerId, pull: u16) {
    let (pull, payload) = (PullId(pull), Bytes::from_static(b"early"));
    let packet =
        Packet { pull, sequence: 0, timing: None, queued: false, nonce: 0, generation: 0, id: 0, payload };
    fetch.handle_packet(at(ms), server, packet);
}

/// Byte ranges passed to the driver for writing.
fn written(events: &[FetchEvent<Bytes>]) -> Vec<std::ops::Range<u64>> {
    let of = |event: &FetchEvent<Bytes>| match event {
        FetchEvent::Write { range, .. } => Some(range.clone()),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// Missing range of an object without any present byte.
const ALL: std::ops::Range<u64> = 0..5;

#[test]
fn describing_server_also_sends_the_first_bytes() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A, B]);
    let asked = pulls(&mut fetch);
    let [(A, request)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((request.start, request.length, request.is_cut), (0, Some(EARLY_BYTES), true));
    assert_eq!(request.servers, 1, "nobody else sends meanwhile");
    // If another server describes the object, that server is asked for the first bytes, because its
    // version may differ.
    refuse(&mut fetch, 1, A);
    let asked = pulls(&mut fetch);
    assert!(matches!(&asked[..], [(B, request)] if request.is_cut), "{asked:?}");
    // An object whose length is given by a manifest is pulled without an early request.
    let mut fetch = of(RequestedObject { bytes: Some(5), hash: Some([1; 32]), ..unknown() });
    fetch.handle_opened(at(0), OBJECT, std::slice::from_ref(&ALL));
    connect(&mut fetch, 0, &[A, B]);
    let asked = pulls(&mut fetch);
    assert!(
        matches!(&asked[..], [(_, request)] if !request.is_cut && request.length == Some(5) && request.servers == 3),
        "{asked:?}"
    );
}

#[test]
fn first_bytes_are_requested_only_for_one_new_object() {
    for (wanted, asked) in [
        (vec![unknown()], 1),
        (vec![unknown(); 2], 0),
        (vec![RequestedObject { may_be_there: true, ..unknown() }], 0),
        (vec![RequestedObject { may_be_there: true, ..unknown() }; 2], 0),
    ] {
        let config = FetchConfig {
            client: ClientConfig::default(),
            streams: false,
            is_strict: false,
            objects_max: 16,
        };
        let fetch = Fetch::new(Instant::ZERO, config, 3, wanted.clone());
        let mut fetch: Fetch<Bytes> = fetch.expect("a good configuration");
        connect(&mut fetch, 0, &[A]);
        assert_eq!(pulls(&mut fetch).len(), asked, "{wanted:?}");
    }
}

#[test]
fn bytes_received_before_the_file_opens_are_written_later() {
    // The content may arrive before the description, while the file is being opened, or later.
    for when in 0..3 {
        let mut fetch = of(unknown());
        connect(&mut fetch, 0, &[A]);
        pulls(&mut fetch);
        accept(&mut fetch, 1, A, 0, 5);
        let come = |fetch: &mut Fetch<Bytes>, now| {
            if when == now {
                arrive(fetch, 2, A, 0);
            }
            written(&events(fetch))
        };
        assert_eq!(come(&mut fetch, 0), []);
        describe(&mut fetch, 2, A, 5, Some(1));
        assert_eq!(come(&mut fetch, 1), []);
        assert_eq!(fetch.early_bytes(), if when < 2 { 5 } else { 0 });
        fetch.handle_opened(at(3), OBJECT, std::slice::from_ref(&ALL));
        let mut all = events(&mut fetch);
        if when == 2 {
            assert_eq!(written(&all), [], "it is on its way");
            arrive(&mut fetch, 4, A, 0);
            all = events(&mut fetch);
        }
        assert_eq!(written(&all), [ALL]);
        assert!(matches!(all.last(), Some(FetchEvent::Finish { .. })), "{all:?}");
        assert_eq!((fetch.done_bytes(), fetch.objects()[0].fetched_bytes(), fetch.early_bytes()), (5, 5, 0));
        assert_eq!(pulls(&mut fetch), [], "nothing is asked for twice");
    }
}

#[test]
fn early_bytes_are_dropped_for_partial_or_longer_files() {
    for (bytes, missing) in [(5, 2..5), (5, 0..3), (6, 0..6)] {
        for has_come in [false, true] {
            let mut fetch = of(unknown());
            connect(&mut fetch, 0, &[A]);
            pulls(&mut fetch);
            accept(&mut fetch, 1, A, 0, 5);
            if has_come {
                arrive(&mut fetch, 1, A, 0);
            }
            describe(&mut fetch, 2, A, bytes, Some(1));
            fetch.handle_opened(at(3), OBJECT, std::slice::from_ref(&missing));
            arrive(&mut fetch, 4, A, 0);
            assert_eq!(written(&events(&mut fetch)), [], "{missing:?}");
            let asked = pulls(&mut fetch);
            let ranges: Vec<_> =
                asked.iter().map(|(_, pull)| (pull.start, pull.length, pull.is_cut)).collect();
            assert_eq!(ranges, [(missing.start, Some(missing.end - missing.start), false)]);
            assert_eq!(fetch.done_bytes(), bytes - (missing.end - missing.start));
        }
    }
}

#[test]
fn first_bytes_are_requested_again_after_server_loss() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A, B]);
    accept(&mut fetch, 1, A, 0, 5);
    describe(&mut fetch, 2, A, 5, Some(1));
    fetch.handle_opened(at(3), OBJECT, std::slice::from_ref(&ALL));
    pulls(&mut fetch);
    fetch.handle_lost(at(4), A, "away");
    let asked = pulls(&mut fetch);
    let [(B, request)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((request.start, request.length), (0, Some(5)));
    accept(&mut fetch, 5, B, request.pull.0, 5);
    arrive(&mut fetch, 6, B, request.pull.0);
    assert_eq!(written(&events(&mut fetch)), [ALL]);
}

/// A server may refuse the early request for the first bytes, for example at its limit of pulls.
/// That refusal does not exclude the server from the object.
#[test]
fn refused_early_request_does_not_exclude_the_server() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A]);
    let refused = Control::Refused { pull: PullId(0), reason: "64 pulls at once are allowed".into() };
    fetch.handle_control(at(1), A, refused);
    describe(&mut fetch, 2, A, 5, Some(1));
    fetch.handle_opened(at(3), OBJECT, std::slice::from_ref(&ALL));
    assert!(matches!(&events(&mut fetch)[..], [FetchEvent::Open { .. }]));
    let asked = pulls(&mut fetch);
    assert!(matches!(asked.last(), Some((A, request)) if request.length == Some(5)), "{asked:?}");
}

#[derive(Copy, Clone, Debug)]
enum Step {
    Connect(u32),
    Lose(u32),
    Describe(u32, u64, Option<u8>),
    Refuse(u32),
    Hashing(u32),
    Accept(u16, u32, u64),
    Packet(u16, u32),
    Open(bool),
    Unwritable,
    Finished,
    Mismatch,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let server = 0u32..3;
    prop_oneof![
        server.clone().prop_map(Step::Connect),
        server.clone().prop_map(Step::Lose),
        (server.clone(), 4u64..6, proptest::option::of(1u8..3)).prop_map(|(s, b, h)| Step::Describe(s, b, h)),
        server.clone().prop_map(Step::Refuse),
        server.clone().prop_map(Step::Hashing),
        (0u16..4, server.clone(), 4u64..6).prop_map(|(p, s, b)| Step::Accept(p, s, b)),
        (0u16..4, server).prop_map(|(p, s)| Step::Packet(p, s)),
        any::<bool>().prop_map(Step::Open),
        Just(Step::Unwritable),
        Just(Step::Finished),
        Just(Step::Mismatch),
        (1u64..8_000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Property, for any input in any order, unrequested messages included: an object ends once,
    /// and is finished with one hash. The object always ends once all servers are lost and the
    /// driver has answered.
    #[test]
    fn object_always_ends_exactly_once(steps in proptest::collection::vec(step(), 0..60), known: bool, hash: bool) {
        let wanted = RequestedObject {
            bytes: known.then_some(5),
            hash: hash.then_some([1; 32]),
            ..unknown()
        };
        let mut fetch = of(wanted);
        let (mut ms, mut ends, mut verified, mut hashes) = (0, 0, false, Vec::new());
        let mut see = |fetch: &mut Fetch<Bytes>| {
            for event in events(fetch) {
                match event {
                    FetchEvent::Failed { .. } => ends += 1,
                    FetchEvent::Verified { .. } => { ends += 1; verified = true; }
                    FetchEvent::Finish { hash, .. } => hashes.push(hash),
                    _ => {}
                }
            }
            asked(fetch);
            assert!(fetch.early_bytes() <= EARLY_BYTES);
            ends
        };
        for step in steps {
            match step {
                Step::Connect(server) => connect(&mut fetch, ms, &[ServerId(server)]),
                Step::Lose(server) => fetch.handle_lost(at(ms), ServerId(server), "away"),
                Step::Describe(server, bytes, hash) => describe(&mut fetch, ms, ServerId(server), bytes, hash),
                Step::Refuse(server) => refuse(&mut fetch, ms, ServerId(server)),
                Step::Hashing(server) => {
                    let hashing = Control::Hashing { object: "x".into(), hashed_bytes: 1 };
                    fetch.handle_control(at(ms), ServerId(server), hashing);
                }
                Step::Accept(pull, server, bytes) => accept(&mut fetch, ms, ServerId(server), pull, bytes),
                Step::Packet(pull, server) => arrive(&mut fetch, ms, ServerId(server), pull),
                Step::Open(is_whole) => {
                    let bytes = fetch.objects()[0].bytes().unwrap_or(0);
                    let missing = 0..if is_whole { 0 } else { bytes };
                    fetch.handle_opened(at(ms), OBJECT, std::slice::from_ref(&missing));
                }
                Step::Unwritable => fetch.handle_unwritable(at(ms), OBJECT, "full".into()),
                Step::Finished => fetch.handle_finished(at(ms), OBJECT),
                Step::Mismatch => fetch.handle_mismatch(at(ms), OBJECT),
                Step::Wait(more) => { ms += more; pass(&mut fetch, ms); }
            }
            prop_assert!(see(&mut fetch) <= 1);
        }
        for server in 0..3 {
            fetch.handle_lost(at(ms), ServerId(server), "away");
        }
        for _ in 0..4 {
            let bytes = fetch.objects()[0].bytes().unwrap_or(0);
            fetch.handle_opened(at(ms), OBJECT, std::slice::from_ref(&(0..bytes)));
            fetch.handle_finished(at(ms), OBJECT);
            ms += 1_000_000;
            pass(&mut fetch, ms);
        }
        prop_assert_eq!(see(&mut fetch), 1);
        prop_assert!(fetch.is_done());
        hashes.dedup();
        prop_assert!(hashes.len() <= 1 && (!verified || !hashes.is_empty()), "{:?}", hashes);
    }
}

/// Found by fault test seed 1,064: the second holder had another version, and the late hash of the
/// first holder was ignored.
#[test]
fn late_hash_counts_if_next_holder_has_another_version() {
    let mut fetch = of(unknown());
    connect(&mut fetch, 0, &[A, B]);
    describe(&mut fetch, 1, A, 5, None);
    fetch.handle_opened(at(1), OBJECT, &[]);
    pass(&mut fetch, 5_400);
    assert_eq!(asked(&mut fetch).last(), Some(&(B, true)), "A is late");
    describe(&mut fetch, 5_401, A, 5, Some(1));
    describe(&mut fetch, 5_402, B, 6, Some(2));
    let all = events(&mut fetch);
    let is_finish =
        |event: &FetchEvent<Bytes>| matches!(event, FetchEvent::Finish { hash, .. } if *hash == [1; 32]);
    assert!(all.iter().any(is_finish), "{all:?}");
}
