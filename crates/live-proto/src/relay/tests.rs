//! Tests of the relay: invariants under random schedules, then single rules.

use super::pace::{SILENCE_MIN, SILENCE_UNKNOWN};
use super::*;
use anabranch_units::{ByteCount, Duration, Instant};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

mod doubled;
mod read_ahead;
mod rings;

/// A viewer and all bytes that it has read.
#[derive(Debug)]
struct Reader {
    object: usize,
    id: ViewerId,
    range: Option<ByteRange>,
    /// Position in the object of the first byte in `read`.
    from: usize,
    read: Vec<u8>,
    has_head: bool,
    end: Option<ReadStep>,
}

/// An upstream request as its parent sees it.
#[derive(Debug)]
struct Upstream {
    object: usize,
    sent: usize,
    has_head: bool,
    is_paused: bool,
    is_frozen: bool,
}

/// A relay with correct parents. The schedule chooses their faults.
struct World {
    relay: Relay,
    now: Instant,
    objects: Vec<Vec<u8>>,
    /// Whether parents announce the length and an entity tag.
    announces: bool,
    cache_control: &'static str,
    legs: BTreeMap<LegId, Upstream>,
    readers: Vec<Reader>,
    /// Number of requests sent to parents, for each object.
    requests: Vec<usize>,
    hops: u32,
    /// Whether the driver leaves a request unanswered while no untried parent is left.
    waits_for_hops: bool,
    suspects: Vec<Hop>,
}

impl World {
    fn new(config: RelayConfig, lengths: &[usize]) -> Self {
        let object = |(number, length): (usize, &usize)| {
            (0..*length).map(|at| (at.wrapping_mul(7) ^ (at >> 8) ^ (number * 31)) as u8).collect()
        };
        Self {
            relay: Relay::new(config).expect("a good configuration"),
            now: Instant::from_us(1),
            objects: lengths.iter().enumerate().map(object).collect(),
            announces: true,
            cache_control: "max-age=60",
            legs: BTreeMap::new(),
            readers: Vec::new(),
            requests: vec![0; lengths.len()],
            hops: u32::MAX,
            waits_for_hops: false,
            suspects: Vec::new(),
        }
    }

    fn key(object: usize) -> Key {
        Key::read(&format!("/ch/{object}.mp4"), QueryRule::Remove).expect("a good target")
    }

    fn join(&mut self, object: usize) -> usize {
        self.join_range(object, None)
    }

    fn join_range(&mut self, object: usize, range: Option<ByteRange>) -> usize {
        let request = JoinRequest { key: Self::key(object), range, if_range: None, passed: "own".to_owned() };
        let id = self.relay.handle_join(self.now, request).expect("there is room");
        let reader = Reader { object, id, range, from: 0, read: Vec::new(), has_head: false, end: None };
        self.readers.push(reader);
        self.drain();
        self.readers.len() - 1
    }

    fn drain(&mut self) {
        while let Some(action) = self.relay.poll_action() {
            match action {
                Action::Fetch(request) => {
                    let path = request.key.path().trim_start_matches("/ch/");
                    let object = path.trim_end_matches(".mp4").parse().expect("keys of this world");
                    let tried = self.relay.tried(request.leg).len() as u32;
                    let hop = (tried < self.hops).then_some(Hop(tried));
                    self.requests[object] += usize::from(hop.is_some());
                    if hop.is_some() {
                        let sent = request.resume.map_or(0, |resume| resume.from as usize);
                        let leg =
                            Upstream { object, sent, has_head: false, is_paused: false, is_frozen: false };
                        self.legs.insert(request.leg, leg);
                    }
                    // Without an answer the relay keeps waiting for a parent.
                    if hop.is_some() || !self.waits_for_hops {
                        self.relay.handle_hop(self.now, request.leg, hop);
                    }
                }
                Action::Cancel(leg) => {
                    self.legs.remove(&leg);
                }
                Action::Continue(leg) => {
                    self.legs.get_mut(&leg).expect("only legs under way go on").is_paused = false;
                }
                Action::Suspect(hop, _) => self.suspects.push(hop),
                Action::Differs(..) => {}
            }
        }
        while self.relay.poll_ready().is_some() {}
        self.check();
    }

    /// Checks the invariants of the tables.
    fn check(&self) {
        let relay = &self.relay;
        let held: u64 = relay.objects.values().map(|object| object.body.held()).sum();
        assert_eq!(held, relay.held_bytes);
        assert!(held <= relay.config.memory_max.as_u64(), "{held} bytes held");
        assert!(relay.objects.len() <= relay.config.objects_max);
        for (id, object) in &relay.objects {
            assert!(object.is_listed || !object.viewers.is_empty(), "{object:?} is of no use");
            assert_eq!(object.is_listed, relay.listed.get(&object.key) == Some(id));
            assert!(object.is_fetching() || object.fetch.legs.is_empty());
            assert!(!object.is_fetching() || !object.fetch.legs.is_empty());
            let is_unused = object.viewers.is_empty() && !object.is_fetching();
            assert_eq!(relay.unused.contains(&(object.used, *id)), is_unused, "{object:?}");
        }
    }

    fn head(&self, object: usize, from: usize) -> Head {
        let mut head = Head::new(if from > 0 { 206 } else { 200 });
        head.read_header("cache-control", self.cache_control);
        if self.announces {
            let length = self.objects[object].len();
            head.read_header("etag", &format!("\"{object}\""));
            head.read_header("content-length", &(length - from).to_string());
            if from > 0 {
                head.read_header("content-range", &format!("bytes {from}-{}/{length}", length - 1));
            }
        }
        head
    }

    /// The parent of a leg sends the head, or up to `count` bytes, or the end.
    fn send(&mut self, leg_id: LegId, count: usize) {
        let Some(leg) = self.legs.get(&leg_id).filter(|leg| !leg.is_frozen && !leg.is_paused) else { return };
        let object = leg.object;
        let flow = if !leg.has_head {
            let head = self.head(object, leg.sent);
            self.legs.get_mut(&leg_id).expect("it was just found").has_head = true;
            self.relay.handle_head(self.now, leg_id, head)
        } else if leg.sent == self.objects[object].len() {
            self.relay.handle_end(self.now, leg_id);
            Flow::Stop
        } else {
            let leg = self.legs.get_mut(&leg_id).expect("it was just found");
            let end = (leg.sent + count.max(1)).min(self.objects[object].len());
            let bytes = Bytes::copy_from_slice(&self.objects[object][leg.sent..end]);
            leg.sent = end;
            self.relay.handle_bytes(self.now, leg_id, bytes)
        };
        match flow {
            Flow::Continue => {}
            Flow::Pause => self.legs.get_mut(&leg_id).expect("it was just found").is_paused = true,
            Flow::Stop => {
                self.legs.remove(&leg_id);
            }
        }
        self.drain();
    }

    fn break_off(&mut self, leg: LegId) {
        self.legs.remove(&leg);
        self.relay.handle_broken(self.now, leg);
        self.drain();
    }

    /// Reads all available bytes for one viewer.
    fn read(&mut self, reader: usize) {
        let reader = &mut self.readers[reader];
        while reader.end.is_none() {
            match self.relay.handle_read(self.now, reader.id) {
                ReadStep::Pending => break,
                ReadStep::Head(answer) => {
                    assert!(!reader.has_head, "one head");
                    reader.has_head = true;
                    reader.from = answer.range.map_or(0, |(first, _)| first as usize);
                    assert_eq!(answer.head.status, 200);
                }
                ReadStep::Bytes(bytes) => {
                    assert!(!bytes.is_empty());
                    reader.read.extend_from_slice(&bytes);
                    let object = &self.objects[reader.object];
                    assert!(object[reader.from..].starts_with(&reader.read), "bytes twice, or a gap");
                }
                end => reader.end = Some(end),
            }
        }
        self.drain();
    }

    fn leave(&mut self, reader: usize) {
        let reader = self.readers.remove(reader);
        self.relay.handle_leave(self.now, reader.id);
        self.drain();
    }

    fn advance(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some(at) = self.relay.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.relay.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn leg(&self, nth: usize) -> LegId {
        *self.legs.keys().nth(nth).expect("that many requests are under way")
    }

    /// Completes all requests in progress, and lets all viewers read to their end.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            for leg in self.legs.keys().copied().collect::<Vec<_>>() {
                self.send(leg, 1_000);
            }
            for reader in 0..self.readers.len() {
                self.read(reader);
            }
            // A leg paused for disconnected viewers ends when they leave.
            let is_over = |leg: &Upstream| leg.is_frozen || leg.is_paused;
            if self.legs.values().all(is_over) && self.readers.iter().all(|r| r.end.is_some()) {
                return;
            }
            self.advance(Duration::from_ms(10));
        }
        let open: Vec<_> = self.readers.iter().filter(|r| r.end.is_none()).map(|r| r.object).collect();
        panic!("viewers of {open:?} did not end: {:?}", self.legs);
    }
}

/// One step of a schedule. A number selects, modulo the count, one of the present items.
#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    Leave(usize),
    Read(usize),
    Send(usize, usize),
    Break(usize),
    Freeze(usize),
    Wait(u64),
}

fn run(world: &mut World, step: &Step) {
    let leg = |world: &World, n: usize| world.legs.keys().nth(n % world.legs.len().max(1)).copied();
    match *step {
        Step::Join(object) => {
            world.join(object % world.objects.len());
        }
        Step::Leave(n) if !world.readers.is_empty() => world.leave(n % world.readers.len()),
        Step::Read(n) if !world.readers.is_empty() => world.read(n % world.readers.len()),
        Step::Leave(_) | Step::Read(_) => {}
        Step::Send(n, count) => {
            if let Some(leg) = leg(world, n) {
                world.send(leg, count);
            }
        }
        Step::Break(n) => {
            if let Some(leg) = leg(world, n) {
                world.break_off(leg);
            }
        }
        Step::Freeze(n) => {
            if let Some(leg) = leg(world, n) {
                world.legs.get_mut(&leg).expect("it was just found").is_frozen = true;
            }
        }
        Step::Wait(ms) => world.advance(Duration::from_ms(ms)),
    }
}

fn calm() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<usize>().prop_map(Step::Join),
        1 => any::<usize>().prop_map(Step::Leave),
        4 => any::<usize>().prop_map(Step::Read),
        6 => (any::<usize>(), 1usize..400).prop_map(|(n, count)| Step::Send(n, count)),
        1 => (0u64..20).prop_map(Step::Wait),
    ]
}

fn stormy() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => calm(),
        1 => any::<usize>().prop_map(Step::Break),
        1 => any::<usize>().prop_map(Step::Freeze),
        1 => (0u64..2_000).prop_map(Step::Wait),
    ]
}

fn patient() -> RelayConfig {
    RelayConfig { requests_max: 1_000, ..RelayConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_object_is_requested_upstream_once(
        lengths in proptest::collection::vec(0usize..2_000, 1..4),
        announces in any::<bool>(),
        steps in proptest::collection::vec(calm(), 0..120),
    ) {
        let mut world = World::new(patient(), &lengths);
        world.announces = announces;
        for object in 0..lengths.len() {
            world.join(object);
        }
        for step in steps {
            // A step takes at most 20 ms, and a leg is suspect after 300 ms, so no fetch looks
            // frozen.
            for leg in world.legs.keys().copied().collect::<Vec<_>>() {
                world.send(leg, 1);
            }
            if !matches!(step, Step::Leave(n) if n % world.readers.len() < lengths.len()) {
                run(&mut world, &step);
            }
        }
        world.finish();
        prop_assert_eq!(&world.requests, &vec![1; lengths.len()]);
        for reader in &world.readers {
            prop_assert_eq!(reader.end.as_ref(), Some(&ReadStep::End));
            prop_assert_eq!(&reader.read, &world.objects[reader.object]);
        }
    }

    #[test]
    fn faults_of_parents_neither_repeat_nor_lose_bytes(
        lengths in proptest::collection::vec(0usize..2_000, 1..4),
        (announces, is_doubled) in any::<(bool, bool)>(),
        steps in proptest::collection::vec(stormy(), 0..120),
    ) {
        let mut world = World::new(RelayConfig { is_doubled, ..patient() }, &lengths);
        world.announces = announces;
        for step in &steps {
            run(&mut world, step);
        }
        world.finish();
        for reader in &world.readers {
            prop_assert_eq!(reader.end.as_ref(), Some(&ReadStep::End));
            prop_assert_eq!(&reader.read, &world.objects[reader.object]);
        }
    }

    #[test]
    fn memory_stays_within_its_limit(
        lengths in proptest::collection::vec(0usize..4_000, 1..6),
        announces in any::<bool>(),
        steps in proptest::collection::vec((stormy(), proptest::option::of(0u64..4_000)), 0..160),
    ) {
        let (object_bytes_max, memory_max) = (ByteCount::new(1_000), ByteCount::new(2_500));
        let config = RelayConfig { object_bytes_max, memory_max, ..patient() };
        let mut world = World::new(config, &lengths);
        world.announces = announces;
        for (step, first) in &steps {
            match (step, first) {
                (Step::Join(object), Some(first)) => {
                    world.join_range(object % lengths.len(), Some(ByteRange::From(*first, None)));
                }
                _ => run(&mut world, step),
            }
        }
        world.finish();
        for reader in &world.readers {
            match &reader.end {
                Some(ReadStep::End) => {
                    prop_assert_eq!(&reader.read, &world.objects[reader.object][reader.from..]);
                }
                Some(ReadStep::Failed(Failure::OutOfRange(_))) => prop_assert!(reader.range.is_some()),
                Some(ReadStep::Broken(Failure::TooSlow | Failure::NoMemory) | ReadStep::Failed(Failure::NoMemory)) => {}
                end => prop_assert!(false, "{:?}", end),
            }
        }
    }

    #[test]
    fn objects_without_viewers_are_neither_fetched_nor_held(
        lengths in proptest::collection::vec(0usize..2_000, 1..4),
        steps in proptest::collection::vec(stormy(), 0..120),
    ) {
        let mut world = World::new(patient(), &lengths);
        for step in &steps {
            run(&mut world, step);
        }
        while !world.readers.is_empty() {
            world.leave(0);
        }
        world.advance(world.relay.config.linger);
        prop_assert!(world.legs.is_empty());
        world.advance(Duration::from_secs(61));
        prop_assert_eq!((world.relay.held_bytes, world.relay.objects.len()), (0, 0));
        prop_assert_eq!(world.relay.poll_timeout(), None);
    }

    #[test]
    fn hostile_parents_cause_no_panic(
        steps in proptest::collection::vec((calm(), any::<u8>(), 0u64..40, any::<bool>()), 0..120),
    ) {
        let (object_bytes_max, memory_max) = (ByteCount::new(20), ByteCount::new(50));
        let mut world = World::new(RelayConfig { object_bytes_max, memory_max, ..RelayConfig::default() }, &[30, 9]);
        for (step, kind, number, announces) in steps {
            world.announces = announces;
            let Some(leg) = world.legs.keys().nth(number as usize % world.legs.len().max(1)).copied() else {
                run(&mut world, &Step::Join(number as usize));
                continue;
            };
            let mut head = Head::new([200, 206, 404, 500, 304][usize::from(kind) % 5]);
            head.length = announces.then_some(number);
            head.range = Some(ContentRange { first: number, last: number + 5, total: head.length });
            let flow = match kind % 4 {
                0 => world.relay.handle_head(world.now, leg, head),
                1 => world.relay.handle_bytes(world.now, leg, Bytes::from(vec![kind; number as usize])),
                2 => {
                    world.relay.handle_end(world.now, leg);
                    Flow::Stop
                }
                _ => Flow::Continue,
            };
            if flow == Flow::Stop {
                world.legs.remove(&leg);
                world.relay.handle_broken(world.now, leg);
            }
            world.drain();
            if !matches!(step, Step::Send(..) | Step::Read(_)) {
                run(&mut world, &step);
            }
            for reader in &world.readers {
                let _ = world.relay.handle_read(world.now, reader.id);
            }
            world.drain();
        }
    }
}

#[test]
fn late_viewer_reads_held_bytes_then_new_bytes() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.join(0);
    world.send(world.leg(0), 0);
    world.send(world.leg(0), 600);
    let late = world.join(0);
    world.read(late);
    assert_eq!(world.readers[late].read.len(), 600);
    world.finish();
    assert_eq!((world.readers[late].read.len(), world.requests[0]), (1_000, 1));
}

#[test]
fn broken_leg_resumes_at_another_parent_by_range() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.join(0);
    world.send(world.leg(0), 0);
    world.send(world.leg(0), 600);
    world.break_off(world.leg(0));
    assert_eq!(world.legs[&world.leg(0)].sent, 600, "only the rest is asked for");
    world.finish();
    assert_eq!((world.readers[0].read.len(), world.requests[0]), (1_000, 2));
}

#[test]
fn answer_breaks_off_if_parents_send_different_content() {
    for etag in ["\"0\"", "\"other\""] {
        let mut world = World::new(RelayConfig::default(), &[1_000]);
        world.announces = false;
        world.join(0);
        let leg = world.leg(0);
        let mut head = world.head(0, 0);
        head.read_header("etag", "\"0\"");
        let _ = world.relay.handle_head(world.now, leg, head);
        let _ = world.relay.handle_bytes(world.now, leg, Bytes::from_static(b"abc"));
        let id = world.readers[0].id;
        assert!(matches!(world.relay.handle_read(world.now, id), ReadStep::Head(_)));
        world.hops = 2;
        world.break_off(leg);
        let leg = world.leg(0);
        let mut head = world.head(0, 0);
        head.read_header("etag", etag);
        let is_other = world.relay.handle_head(world.now, leg, head) == Flow::Stop;
        assert_eq!(is_other, etag == "\"other\"");
        let flow = world.relay.handle_bytes(world.now, leg, Bytes::from_static(b"abX"));
        assert_eq!(flow, Flow::Stop);
        world.drain();
        assert_eq!(world.relay.handle_read(world.now, id), ReadStep::Bytes(Bytes::from_static(b"abc")));
        assert_eq!(world.relay.handle_read(world.now, id), ReadStep::Broken(Failure::Differs));
    }
}

#[test]
fn silence_starts_a_second_leg_and_suspects_the_parent() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.join(0);
    world.advance(Duration::from_ms(599));
    assert_eq!(world.requests[0], 1);
    world.advance(SILENCE_UNKNOWN - Duration::from_ms(599));
    assert_eq!((world.requests[0], world.legs.len()), (2, 2), "the silent leg goes on beside it");
    assert!(world.suspects.is_empty(), "both may wait for the origin");
    let second = world.leg(1);
    world.send(second, 0);
    assert_eq!(world.suspects, [Hop(0)]);
    world.finish();
    assert_eq!(world.readers[0].read.len(), 1_000);
}

#[test]
fn silent_leg_continues_while_second_leg_awaits_a_parent() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    (world.hops, world.waits_for_hops) = (1, true);
    world.join(0);
    world.advance(Duration::from_secs(3));
    assert_eq!((world.requests[0], world.legs.len()), (1, 1), "the silent leg goes on");
    world.finish();
    assert_eq!(world.readers[0].read.len(), 1_000);
}

#[test]
fn legs_at_a_failed_parent_move_immediately() {
    let mut world = World::new(RelayConfig::default(), &[1_000, 1_000]);
    world.join(0);
    world.join(1);
    let first = world.leg(0);
    world.send(first, 400);
    world.relay.handle_parent_failed(world.now, Hop(1));
    world.drain();
    assert_eq!(world.requests, [1, 1], "no leg is at this parent");
    world.relay.handle_parent_failed(world.now, Hop(0));
    world.drain();
    assert_eq!(world.requests, [2, 2]);
    assert!(!world.legs.contains_key(&first), "the driver was told to end the leg");
    world.finish();
    assert!(world.readers.iter().all(|reader| reader.read.len() == 1_000));
}

#[test]
fn observed_waits_of_a_stream_set_its_silence_timeout() {
    let mut world = World::new(RelayConfig::default(), &[100, 100]);
    world.join(0);
    world.advance(Duration::from_ms(20));
    world.finish();
    world.join(1);
    world.advance(SILENCE_MIN - Duration::from_ms(1));
    assert_eq!(world.requests[1], 1);
    world.advance(Duration::from_ms(1));
    assert_eq!(world.requests[1], 2);
}

#[test]
fn fetch_without_viewers_ends_after_the_linger_time() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.join(0);
    world.leave(0);
    world.advance(Duration::from_ms(499));
    let again = world.join(0);
    world.advance(Duration::from_ms(2));
    assert_eq!((world.requests[0], world.legs.len()), (1, 1), "a viewer came in time");
    world.leave(again);
    world.advance(Duration::from_ms(500));
    assert!(world.legs.is_empty());
    assert_eq!(world.relay.counts().cancelled, 1);
}

#[test]
fn cached_failure_answers_all_viewers_until_it_expires() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.hops = 2;
    world.join(0);
    world.join(0);
    let _ = world.relay.handle_head(world.now, world.leg(0), Head::new(404));
    world.legs.clear();
    world.drain();
    assert_eq!(world.requests[0], 2, "another parent may have it");
    let _ = world.relay.handle_head(world.now, world.leg(0), Head::new(503));
    world.legs.clear();
    world.drain();
    let late = world.join(0);
    for reader in 0..=late {
        world.read(reader);
        assert_eq!(world.readers[reader].end, Some(ReadStep::Failed(Failure::Status(404))));
    }
    assert_eq!(world.requests[0], 2);
    world.advance(Duration::from_ms(200));
    world.join(0);
    assert_eq!(world.requests[0], 3);
}

#[test]
fn cache_control_decides_which_viewers_share_an_answer() {
    // For each rule: whether a viewer shares the answer during the transfer, and a second after it.
    for (rule, in_the_middle, later) in [
        ("max-age=2", true, true),
        ("no-cache", true, false),
        ("private", false, false),
        ("no-store", false, false),
    ] {
        let mut world = World::new(RelayConfig::default(), &[1_000]);
        world.cache_control = rule;
        world.join(0);
        world.join(0);
        world.send(world.leg(0), 0);
        assert_eq!(world.requests[0], 1, "{rule}: those that wait share it");
        world.join(0);
        assert_eq!(world.requests[0] == 1, in_the_middle, "{rule}");
        world.finish();
        let before = world.requests[0];
        world.advance(Duration::from_ms(1_000));
        world.join(0);
        assert_eq!(world.requests[0] == before, later, "{rule}");
    }
}

#[test]
fn age_grows_from_the_parents_age() {
    let mut world = World::new(RelayConfig::default(), &[10]);
    world.join(0);
    let mut head = world.head(0, 0);
    head.read_header("age", "3");
    world.advance(Duration::from_ms(100));
    let _ = world.relay.handle_head(world.now, world.leg(0), head);
    world.advance(Duration::from_ms(2_500));
    let ReadStep::Head(answer) = world.relay.handle_read(world.now, world.readers[0].id) else {
        panic!("the head is there")
    };
    assert_eq!(answer.age, Duration::from_ms(5_500));
}

#[test]
fn least_recently_used_object_is_dropped() {
    let config = RelayConfig {
        object_bytes_max: ByteCount::new(1_000),
        memory_max: ByteCount::new(2_000),
        ..RelayConfig::default()
    };
    let mut world = World::new(config, &[1_000; 3]);
    for object in [0, 1, 0, 2] {
        let reader = world.join(object);
        world.finish();
        world.leave(reader);
    }
    let reader = world.join(0);
    world.leave(reader);
    assert_eq!(world.requests, [1, 1, 1]);
    world.join(1);
    assert_eq!(world.requests, [1, 2, 1]);
}

#[test]
fn long_object_is_fetched_at_its_fastest_viewers_pace() {
    let config = RelayConfig {
        object_bytes_max: ByteCount::new(1_000),
        memory_max: ByteCount::new(2_000),
        ..RelayConfig::default()
    };
    let mut world = World::new(config, &[10_000]);
    let (fast, slow) = (world.join(0), world.join(0));
    for _ in 0..100 {
        world.send(world.leg(0), 100);
    }
    assert!(world.legs[&world.leg(0)].is_paused, "1,000 of 10,000 bytes are there, unread");
    world.advance(Duration::from_secs(60));
    assert_eq!(world.requests[0], 1, "a leg that waits for viewers is not silent");
    while world.readers[fast].end.is_none() {
        world.read(fast);
        for leg in world.legs.keys().copied().collect::<Vec<_>>() {
            world.send(leg, 100);
        }
    }
    assert_eq!(world.readers[fast].end, Some(ReadStep::End));
    world.read(slow);
    assert_eq!(world.readers[slow].end, Some(ReadStep::Broken(Failure::TooSlow)));
}

/// #50: a leg paused for ever if a viewer's range began beyond the received bytes: the distance to
/// that viewer was negative.
#[test]
fn range_past_the_window_is_delivered() {
    let config = RelayConfig {
        object_bytes_max: ByteCount::new(1_000),
        memory_max: ByteCount::new(2_000),
        ..RelayConfig::default()
    };
    for reads_head_at_once in [true, false] {
        let mut world = World::new(config.clone(), &[10_000]);
        let viewer = world.join_range(0, ByteRange::read("bytes=5000-"));
        world.send(world.leg(0), 0);
        if reads_head_at_once {
            world.read(viewer);
        }
        for _ in 0..10 {
            world.send(world.leg(0), 100);
        }
        assert_eq!(world.legs[&world.leg(0)].is_paused, !reads_head_at_once);
        world.finish();
        assert_eq!(world.readers[viewer].end, Some(ReadStep::End));
        assert_eq!(world.readers[viewer].read, world.objects[0][5_000..]);
    }
}

#[test]
fn ranges_of_an_object_share_one_upstream_request() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.join(0);
    let part = world.join_range(0, ByteRange::read("bytes=0-99"));
    let beyond = world.join_range(0, ByteRange::read("bytes=1000-"));
    world.finish();
    assert_eq!(world.readers[part].read.len(), 100);
    assert_eq!(world.readers[beyond].end, Some(ReadStep::Failed(Failure::OutOfRange(1_000))));
    assert_eq!(world.requests[0], 1);
}

#[test]
fn range_with_another_validator_is_ignored() {
    for (etag, length) in [("\"0\"", 100), ("\"1\"", 1_000), ("W/\"0\"", 1_000)] {
        let mut world = World::new(RelayConfig::default(), &[1_000]);
        let range = ByteRange::read("bytes=0-99");
        let passed = "own".to_owned();
        let request = JoinRequest { key: World::key(0), range, if_range: Some(etag.to_owned()), passed };
        let viewer = world.relay.handle_join(world.now, request).expect("there is room");
        world.drain();
        world.send(world.leg(0), 0);
        let ReadStep::Head(answer) = world.relay.handle_read(world.now, viewer) else {
            panic!("the head is there")
        };
        assert_eq!((answer.length, answer.range.is_some()), (Some(length), length == 100), "{etag}");
    }
}

#[test]
fn full_tables_refuse_viewers() {
    let config = RelayConfig { viewers_max: 2, objects_max: 1, ..RelayConfig::default() };
    let mut world = World::new(config, &[10, 10]);
    let request = |object| JoinRequest {
        key: World::key(object),
        range: None,
        if_range: None,
        passed: "own".to_owned(),
    };
    world.join(0);
    assert_eq!(world.relay.handle_join(world.now, request(1)), Err(JoinError::TooManyObjects(1)));
    world.join(0);
    assert_eq!(world.relay.handle_join(world.now, request(0)), Err(JoinError::TooManyViewers(2)));
}

#[test]
fn settings_out_of_range_are_refused() {
    let error = |config| Relay::new(config).expect_err("a bad setting").to_string();
    let zero = RelayConfig { objects_max: 0, ..RelayConfig::default() };
    assert_eq!(error(zero), "objects_max 0: must be at least 1");
    let small = RelayConfig { memory_max: ByteCount::new(1), ..RelayConfig::default() };
    assert!(error(small).starts_with("memory_max"));
}
