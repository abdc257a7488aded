//! Tests of the order of objects, of the choice of servers for contents, and of missing contents.

use super::{CONTENTS_FIRST, CONTENTS_MAX, CONTENTS_MIN, SHORT_BYTES_MAX};
use crate::client::ServerId;
use crate::config::ClientConfig;
use crate::fetch::{Fetch, FetchConfig, FetchEvent, ObjectId, ObjectPart, RequestedObject, Version};
use crate::msg::{Control, ObjectDescription};
use anabranch_endpoint::Bytes;
use anabranch_units::{Duration, Instant};
use proptest::prelude::*;

const A: ServerId = ServerId(0);
const B: ServerId = ServerId(1);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

/// A fetch of undescribed objects at A and B, with at most `objects_max` objects under way.
fn many(objects: usize, objects_max: usize) -> Fetch<Bytes> {
    let wanted = |number: usize| {
        let part = ObjectPart { name: format!("o{number}"), bytes: None, hash: None, holders: vec![A, B] };
        RequestedObject { bytes: None, hash: None, attributes: None, may_be_there: false, parts: vec![part] }
    };
    of((0..objects).map(wanted).collect(), objects_max)
}

fn of(wanted: Vec<RequestedObject>, objects_max: usize) -> Fetch<Bytes> {
    let config =
        FetchConfig { client: ClientConfig::default(), streams: false, is_strict: false, objects_max };
    Fetch::new(Instant::ZERO, config, 2, wanted).expect("a good configuration")
}

fn connect(fetch: &mut Fetch<Bytes>, ms: u64, servers: &[ServerId]) {
    servers.iter().for_each(|server| fetch.handle_connected(at(ms), *server, None, 1_024));
}

/// Queued requests, each with its server and in words.
fn asked(fetch: &mut Fetch<Bytes>) -> Vec<(ServerId, String)> {
    let all = std::iter::from_fn(|| fetch.poll_control());
    all.map(|(server, message)| match message {
        Control::Inspect { object, with_hash, with_content } => {
            let hash = if with_hash { " hash" } else { "" };
            (server, format!("{object}{hash}{}", if with_content { " content" } else { "" }))
        }
        Control::Describe { object, with_hash } => (server, format!("describe {object} {with_hash}")),
        Control::Pull(request) => (server, format!("pull {}", request.object)),
        other => (server, format!("{other:?}")),
    })
    .collect()
}

fn events(fetch: &mut Fetch<Bytes>) -> Vec<FetchEvent<Bytes>> {
    std::iter::from_fn(|| fetch.poll_event()).collect()
}

fn found(bytes: u64, hash: u8) -> ObjectDescription {
    ObjectDescription { bytes, mode: 0o640, modified_ns: 7, hash: Some([hash; 32]) }
}

fn say_short(fetch: &mut Fetch<Bytes>, ms: u64, server: ServerId, object: usize, hash: u8) {
    let (object, found, content) = (format!("o{object}"), found(5, hash), Bytes::from_static(b"bytes"));
    fetch.handle_control(at(ms), server, Control::Short { object, found, content });
}

fn describe(fetch: &mut Fetch<Bytes>, ms: u64, server: ServerId, object: usize, found: ObjectDescription) {
    let object = format!("o{object}");
    fetch.handle_control(at(ms), server, Control::Described { object, found: Ok(found) });
}

fn open(fetch: &mut Fetch<Bytes>, ms: u64, object: u32, bytes: u64) {
    let all = 0..bytes;
    fetch.handle_opened(at(ms), ObjectId(object), std::slice::from_ref(&all));
}

/// Numbers of objects that were written and finished. Every byte of their contents is checked.
fn whole(fetch: &mut Fetch<Bytes>) -> Vec<u32> {
    let all = events(fetch);
    let written = |object: ObjectId| {
        let is_it = |event: &FetchEvent<Bytes>| {
            matches!(event, FetchEvent::Write { object: of, range, blocks }
                if *of == object && *range == (0..5) && blocks.concat() == b"bytes")
        };
        all.iter().any(is_it)
    };
    let finished = all.iter().filter_map(|event| match event {
        FetchEvent::Finish { object, .. } => Some(*object),
        _ => None,
    });
    finished.filter(|object| written(*object)).map(|object| object.0).collect()
}

/// Issue #19: a fetch of 10,000 objects opened all files at once, and a third of the objects failed
/// for lack of file descriptors.
#[test]
fn objects_in_progress_stay_within_the_limit() {
    let part = |name: &str| ObjectPart { name: name.into(), bytes: Some(5), hash: None, holders: vec![A] };
    let known = |name: &str| RequestedObject {
        bytes: Some(5),
        hash: Some([1; 32]),
        attributes: None,
        may_be_there: false,
        parts: vec![part(name)],
    };
    let mut fetch = of(["a", "b", "c", "d"].map(known).into(), 2);
    let opened = |fetch: &mut Fetch<Bytes>| {
        let all = events(fetch).into_iter();
        all.filter_map(|event| match event {
            FetchEvent::Open { object, .. } => Some(object.0),
            _ => None,
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(opened(&mut fetch), [0, 1]);
    fetch.handle_unwritable(at(1), ObjectId(0), "full".into());
    assert_eq!(opened(&mut fetch), [2]);
    connect(&mut fetch, 2, &[A]);
    fetch.handle_opened(at(3), ObjectId(1), &[]);
    describe(&mut fetch, 4, A, 1, found(5, 1));
    fetch.handle_control(
        at(4),
        A,
        Control::Described { object: "b".into(), found: Ok(ObjectDescription { hash: None, ..found(5, 1) }) },
    );
    fetch.handle_finished(at(5), ObjectId(1));
    assert_eq!(opened(&mut fetch), [3]);
    assert!(
        Fetch::<Bytes>::new(
            Instant::ZERO,
            FetchConfig { client: ClientConfig::default(), streams: false, is_strict: false, objects_max: 0 },
            1,
            vec![]
        )
        .is_err()
    );
}

#[test]
fn waiting_objects_fail_with_the_last_server() {
    let mut fetch = many(1_000, 2);
    connect(&mut fetch, 0, &[A, B]);
    fetch.handle_lost(at(1), A, "away");
    fetch.handle_lost(at(2), B, "away");
    assert!(fetch.is_done() && fetch.objects().iter().all(|object| object.failure().is_some()));
}

#[test]
fn short_object_arrives_with_its_description() {
    let mut fetch = many(2, 1);
    connect(&mut fetch, 0, &[A]);
    assert_eq!(asked(&mut fetch), [(A, "o0 hash content".into())]);
    say_short(&mut fetch, 1, A, 0, 1);
    assert_eq!(events(&mut fetch), [FetchEvent::Open { object: ObjectId(0), bytes: 5 }]);
    open(&mut fetch, 2, 0, 5);
    assert_eq!(whole(&mut fetch), [0]);
    assert_eq!((fetch.done_bytes(), fetch.objects()[0].fetched_bytes()), (5, 5));
    fetch.handle_finished(at(3), ObjectId(0));
    assert_eq!(asked(&mut fetch), [(A, "o1 hash content".into())], "its turn has come");
}

#[test]
fn least_loaded_server_sends_content_and_first_server_describes() {
    let mut fetch = many(4, 4);
    connect(&mut fetch, 0, &[B]);
    assert_eq!(asked(&mut fetch), [], "the first may come");
    connect(&mut fetch, 1, &[A]);
    let words = |text: &[(ServerId, &str)]| -> Vec<(ServerId, String)> {
        text.iter().map(|(server, words)| (*server, (*words).to_owned())).collect()
    };
    let expected = [(A, "o0 hash content"), (B, "o1 content"), (A, "o1 hash"), (A, "o2 hash content")];
    assert_eq!(asked(&mut fetch)[..4], words(&expected));
    // Both orders of the two servers' answers work.
    say_short(&mut fetch, 2, B, 1, 1);
    assert_eq!(events(&mut fetch), [], "that one is not to be trusted");
    describe(&mut fetch, 3, A, 1, found(5, 1));
    open(&mut fetch, 4, 1, 5);
    assert_eq!(whole(&mut fetch), [1]);
    describe(&mut fetch, 5, A, 3, found(5, 1));
    open(&mut fetch, 6, 3, 5);
    assert!(whole(&mut fetch).is_empty());
    say_short(&mut fetch, 7, B, 3, 1);
    assert_eq!(whole(&mut fetch), [3]);
}

#[test]
fn content_of_another_version_is_pulled_instead() {
    for (of_a, says) in [(found(5, 1), 2), (found(6, 1), 1)] {
        let mut fetch = many(2, 2);
        connect(&mut fetch, 0, &[B]);
        connect(&mut fetch, 1, &[A]);
        assert!(asked(&mut fetch).contains(&(B, "o1 content".into())));
        say_short(&mut fetch, 2, B, 1, says);
        describe(&mut fetch, 3, A, 1, of_a);
        open(&mut fetch, 4, 1, of_a.bytes);
        assert_eq!(asked(&mut fetch), [(A, "pull o1".into())]);
        let others = fetch.objects()[1].others();
        let version = &others[&B];
        let is_said = match version {
            Version::Hash { hash, .. } => *hash == [says; 32],
            Version::Length(bytes) => *bytes == 5,
            Version::Refused(_) => false,
        };
        assert!(is_said, "{version:?}");
    }
}

#[test]
fn missing_content_is_pulled() {
    let long = SHORT_BYTES_MAX as u64 + 1;
    let is_longer: fn(&mut Fetch<Bytes>) =
        |fetch| describe(fetch, 3, B, 1, ObjectDescription { hash: None, ..found(5, 0) });
    let is_lost: fn(&mut Fetch<Bytes>) = |fetch| fetch.handle_lost(at(3), B, "away");
    let is_silent: fn(&mut Fetch<Bytes>) = |fetch| {
        while let Some(next) = fetch.poll_timeout().filter(|next| *next <= at(5_400)) {
            fetch.handle_timeout(next);
        }
    };
    for fails in [is_longer, is_lost, is_silent] {
        let mut fetch = many(2, 2);
        connect(&mut fetch, 0, &[B]);
        connect(&mut fetch, 1, &[A]);
        describe(&mut fetch, 2, A, 1, found(5, 1));
        open(&mut fetch, 2, 1, 5);
        asked(&mut fetch);
        fails(&mut fetch);
        assert!(asked(&mut fetch).iter().any(|(_, words)| words == "pull o1"));
    }
    // The object turns out not to be short.
    let mut fetch = many(2, 2);
    connect(&mut fetch, 1, &[A]);
    asked(&mut fetch);
    describe(&mut fetch, 2, A, 0, ObjectDescription { hash: None, ..found(long, 0) });
    open(&mut fetch, 3, 0, long);
    assert_eq!(asked(&mut fetch), [(A, "pull o0".into())]);
}

#[test]
fn contents_owed_are_bounded_per_server() {
    let mut fetch = many(1_000, 512);
    connect(&mut fetch, 0, &[A]);
    connect(&mut fetch, 0, &[B]);
    let contents = |all: &[(ServerId, String)], of: ServerId| {
        all.iter().filter(|(server, words)| *server == of && words.ends_with("content")).count()
    };
    let first = asked(&mut fetch);
    assert_eq!((contents(&first, A), contents(&first, B)), (CONTENTS_FIRST, CONTENTS_FIRST));
    fetch.handle_timeout(at(199));
    assert_eq!(asked(&mut fetch), []);
    fetch.handle_timeout(at(200));
    let later = asked(&mut fetch);
    assert!(!later.is_empty() && contents(&later, A) + contents(&later, B) == 0, "{}", later.len());
    assert!(later.len() <= 2 * ClientConfig::default().pulls_max, "not all at once: {}", later.len());
    let pulled = later.len();
    assert!(fetch.active.len() <= pulled + 2 * CONTENTS_FIRST);
}

#[test]
fn content_limit_grows_when_fast_and_shrinks_when_late() {
    let mut fetch = many(10_000, 512);
    connect(&mut fetch, 0, &[A]);
    let owed =
        |fetch: &Fetch<Bytes>| fetch.links[0].contents.iter().map(|(_, object)| *object).collect::<Vec<_>>();
    let bring = |fetch: &mut Fetch<Bytes>, ms: u64| {
        for object in owed(fetch) {
            say_short(fetch, ms, A, object, 1);
            open(fetch, ms, object as u32, 5);
            fetch.handle_finished(at(ms), ObjectId(object as u32));
        }
    };
    assert_eq!(owed(&fetch).len(), CONTENTS_FIRST);
    (1..20).for_each(|round| bring(&mut fetch, 199 * round));
    assert_eq!(owed(&fetch).len(), CONTENTS_MAX);
    let begun = 199 * 19;
    (1..20).for_each(|round| bring(&mut fetch, begun + 200 * round));
    assert_eq!(fetch.links[0].contents_max, CONTENTS_MIN);
}

#[test]
fn possibly_present_object_is_not_requested_whole() {
    let part = |name: &str| ObjectPart { name: name.into(), bytes: None, hash: None, holders: vec![A] };
    let there = |name: &str| RequestedObject {
        bytes: None,
        hash: None,
        attributes: None,
        may_be_there: true,
        parts: vec![part(name)],
    };
    let mut fetch = of(["o0", "o1"].map(there).into(), 1);
    connect(&mut fetch, 0, &[A]);
    assert_eq!(asked(&mut fetch), [(A, "describe o0 false".into()), (A, "describe o0 true".into())]);
}

proptest! {
    /// Property, for any input in any order: each object ends once. All objects end once the
    /// servers are lost and the driver has answered. At most the maximum number of objects are
    /// under way.
    #[test]
    fn each_object_ends_exactly_once(steps in proptest::collection::vec((0u8..10, 0u32..2, 0usize..5, 0u8..3), 0..120)) {
        let (objects, objects_max) = (5, 3);
        let mut fetch = many(objects, objects_max);
        let (mut ms, mut ends) = (0, vec![0; objects]);
        let mut open_now = std::collections::BTreeSet::new();
        let mut see = |fetch: &mut Fetch<Bytes>| {
            asked(fetch);
            for event in events(fetch) {
                match event {
                    FetchEvent::Open { object, .. } => { open_now.insert(object); }
                    FetchEvent::Failed { object, .. } | FetchEvent::Verified { object } => {
                        open_now.remove(&object);
                        ends[object.0 as usize] += 1;
                    }
                    _ => {}
                }
            }
            (open_now.len() <= objects_max, ends.clone())
        };
        for (kind, server, object, more) in steps {
            let (server, id) = (ServerId(server), ObjectId(object as u32));
            match kind {
                0 => connect(&mut fetch, ms, &[server]),
                1 => fetch.handle_lost(at(ms), server, "away"),
                2 | 3 => say_short(&mut fetch, ms, server, object, more),
                4 => describe(&mut fetch, ms, server, object, ObjectDescription { hash: (more > 0).then_some([more; 32]), ..found(5, 0) }),
                5 => {
                    let bytes = fetch.objects()[object].bytes().unwrap_or(0);
                    open(&mut fetch, ms, id.0, bytes);
                }
                6 => fetch.handle_finished(at(ms), id),
                7 => fetch.handle_mismatch(at(ms), id),
                8 => {
                    let refused = Control::Described { object: format!("o{object}"), found: Err("no".into()) };
                    fetch.handle_control(at(ms), server, refused);
                }
                _ => {
                    ms += 1 + 1_000 * u64::from(more);
                    fetch.handle_timeout(at(ms));
                }
            }
            let (is_bounded, ends) = see(&mut fetch);
            prop_assert!(is_bounded && ends.iter().all(|ends| *ends <= 1));
        }
        for server in [A, B] {
            fetch.handle_lost(at(ms), server, "away");
        }
        for _ in 0..4 * objects {
            for object in 0..objects as u32 {
                let bytes = fetch.objects()[object as usize].bytes().unwrap_or(0);
                open(&mut fetch, ms, object, bytes);
                fetch.handle_finished(at(ms), ObjectId(object));
            }
            ms += 1_000_000;
            fetch.handle_timeout(at(ms));
        }
        let (_, ends) = see(&mut fetch);
        prop_assert!(fetch.is_done() && ends == vec![1; objects], "{:?}", ends);
    }
}
