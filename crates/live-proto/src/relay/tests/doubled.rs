//! Tests of two legs to two sources. The first copy of each byte is used, and timelines are not
//! mixed.

use super::*;

/// A doubled relay with one viewer of one object, and two parents with a body each.
struct Pair {
    relay: Relay,
    now: Instant,
    legs: Vec<Option<LegId>>,
    sent: [usize; 2],
    bodies: [Vec<u8>; 2],
    viewer: ViewerId,
    read: Vec<u8>,
    end: Option<ReadStep>,
    differing: Vec<Hop>,
}

impl Pair {
    /// Parents announce neither length nor entity tag, as a source does for an incomplete part.
    fn new(target: &str, bodies: [Vec<u8>; 2]) -> Self {
        let config = RelayConfig { is_doubled: true, ..RelayConfig::default() };
        let mut relay = Relay::new(config).expect("a good configuration");
        let key = Key::read(target, QueryRule::Remove).expect("a good target");
        let now = Instant::from_us(1);
        let request = JoinRequest { key, range: None, if_range: None, passed: "own".to_owned() };
        let viewer = relay.handle_join(now, request).expect("there is room");
        let mut pair = Self {
            relay,
            now,
            legs: Vec::new(),
            sent: [0; 2],
            bodies,
            viewer,
            read: Vec::new(),
            end: None,
            differing: Vec::new(),
        };
        pair.drain();
        assert_eq!(pair.legs.len(), 2);
        for parent in 0..2 {
            let mut head = Head::new(200);
            head.read_header("cache-control", "max-age=60");
            let _ = pair.relay.handle_head(now, pair.legs[parent].expect("it is asked"), head);
            pair.drain();
        }
        pair
    }

    fn drain(&mut self) {
        while let Some(action) = self.relay.poll_action() {
            match action {
                Action::Fetch(request) => {
                    let hop = Some(Hop(self.legs.len() as u32)).filter(|hop| hop.0 < 2);
                    if hop.is_some() {
                        self.legs.push(Some(request.leg));
                    }
                    self.relay.handle_hop(self.now, request.leg, hop);
                }
                Action::Cancel(leg) => self.end_leg(leg),
                Action::Differs(hop, _) => self.differing.push(hop),
                Action::Continue(_) | Action::Suspect(..) => {}
            }
        }
        while self.relay.poll_ready().is_some() {}
        while self.end.is_none() {
            match self.relay.handle_read(self.now, self.viewer) {
                ReadStep::Pending => break,
                ReadStep::Head(_) => {}
                ReadStep::Bytes(bytes) => self.read.extend_from_slice(&bytes),
                end => self.end = Some(end),
            }
        }
    }

    fn end_leg(&mut self, leg: LegId) {
        for held in &mut self.legs {
            held.take_if(|held| *held == leg);
        }
    }

    /// Sends up to `count` bytes from a parent, or the end of its body.
    fn send(&mut self, parent: usize, count: usize) {
        let Some(leg) = self.legs[parent] else { return };
        let from = self.sent[parent];
        let to = (from + count).min(self.bodies[parent].len());
        self.sent[parent] = to;
        let flow = if from == to {
            self.relay.handle_end(self.now, leg);
            Flow::Stop
        } else {
            let bytes = Bytes::copy_from_slice(&self.bodies[parent][from..to]);
            self.relay.handle_bytes(self.now, leg, bytes)
        };
        if flow == Flow::Stop {
            self.end_leg(leg);
        }
        self.drain();
    }

    fn kill(&mut self, parent: usize) {
        if let Some(leg) = self.legs[parent].take() {
            self.relay.handle_broken(self.now, leg);
            self.drain();
        }
    }
}

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 7) ^ (at >> 8)) as u8).collect()
}

proptest! {
    /// No time passes in this test: a failed parent delays no byte of the other parent.
    #[test]
    fn first_copy_of_each_byte_is_delivered_immediately(
        length in 1usize..2_000,
        sends in proptest::collection::vec((0usize..2, 1usize..300), 1..40),
        killed_at in 0usize..40,
        killed in 0usize..2,
    ) {
        let mut pair = Pair::new("/ch/main/1.0.m4s", [body(length), body(length)]);
        for (step, (parent, count)) in sends.into_iter().enumerate() {
            if step == killed_at {
                pair.kill(killed);
            }
            pair.send(parent, count);
            prop_assert_eq!(pair.read.len(), pair.sent[0].max(pair.sent[1]));
        }
        pair.kill(killed);
        while pair.end.is_none() {
            pair.send(1 - killed, 500);
        }
        prop_assert_eq!(&pair.end, &Some(ReadStep::End));
        prop_assert_eq!(&pair.read, &pair.bodies[0]);
        prop_assert_eq!(pair.relay.counts().upstream_requests, 2);
        prop_assert_eq!(&pair.differing, &vec![]);
    }

    #[test]
    fn timelines_of_two_sources_are_never_mixed(
        length in 1usize..1_000,
        differs_from in 0usize..1_000,
        sends in proptest::collection::vec((0usize..2, 1usize..300), 0..40),
    ) {
        let mut other = body(length);
        let differs_from = differs_from % length;
        for byte in &mut other[differs_from..] {
            *byte ^= 0x55;
        }
        let mut pair = Pair::new("/ch/main/1.0.m4s", [body(length), other]);
        for (parent, count) in sends {
            pair.send(parent, count);
            let both_differ = pair.sent.iter().all(|sent| *sent > differs_from);
            prop_assert_eq!(pair.differing.len(), usize::from(both_differ), "{:?}", pair.sent);
        }
        for _ in 0..10 {
            pair.send(0, length);
            pair.send(1, length);
        }
        prop_assert_eq!(&pair.end, &Some(ReadStep::End));
        prop_assert!(pair.bodies.contains(&pair.read), "the viewer has the bytes of one parent");
    }
}

#[test]
fn playlists_of_two_sources_may_differ() {
    let mut pair = Pair::new("/ch/main/index.m3u8?_HLS_msn=3&_HLS_part=1", [body(300), body(200)]);
    pair.bodies[1][0] ^= 1;
    pair.send(0, 100);
    pair.send(1, 100);
    assert_eq!(pair.differing, []);
    pair.send(0, 200);
    pair.send(0, 1);
    assert_eq!((pair.end, pair.read), (Some(ReadStep::End), body(300)));
}

#[test]
fn doubled_object_needs_one_good_leg() {
    let mut world = World::new(RelayConfig { is_doubled: true, ..RelayConfig::default() }, &[1_000]);
    world.join(0);
    assert_eq!(world.requests[0], 2);
    let (first, second) = (world.leg(0), world.leg(1));
    world.send(first, 0);
    world.send(first, 400);
    world.legs.get_mut(&first).expect("it is under way").is_frozen = true;
    world.send(second, 0);
    world.send(second, 500);
    world.read(0);
    assert_eq!(world.readers[0].read.len(), 500, "no time passed since the first leg froze");
    world.finish();
    assert_eq!((world.readers[0].read.len(), world.requests[0]), (1_000, 2));
}
