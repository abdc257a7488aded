//! Tests of rings of relays, and of slow parents that resemble a ring.

use super::*;

/// Runs two relays that are each other's parent. Returns the time at which the last viewer has
/// failed, and the viewers' last read steps.
fn ring_of_two(relays: &mut [Relay; 2]) -> (Instant, [ReadStep; 2]) {
    let names = ["first", "second"];
    let key = World::key(0);
    let start = Instant::from_us(1);
    let mut now = start;
    let join = |relay: &mut Relay, now, passed: String| {
        relay.handle_join(now, JoinRequest { key: World::key(0), range: None, if_range: None, passed })
    };
    let viewers = [0, 1].map(|at| join(&mut relays[at], now, names[at].to_owned()).expect("there is room"));
    // Requests between the relays. The key is the relay that asks and its leg; the value is the
    // viewer at the other relay.
    let mut between: BTreeMap<(usize, LegId), ViewerId> = BTreeMap::new();
    loop {
        let mut is_busy = true;
        while std::mem::take(&mut is_busy) {
            for at in [0, 1] {
                while let Some(action) = relays[at].poll_action() {
                    is_busy = true;
                    match action {
                        Action::Fetch(request) => {
                            let hop = relays[at].tried(request.leg).is_empty().then_some(Hop(0));
                            relays[at].handle_hop(now, request.leg, hop);
                            if hop.is_none() {
                                continue;
                            }
                            assert_eq!(request.key, key);
                            match cdn_loop::forwarded([&*request.passed], names[1 - at]) {
                                Ok(passed) => {
                                    let viewer =
                                        join(&mut relays[1 - at], now, passed).expect("there is room");
                                    between.insert((at, request.leg), viewer);
                                }
                                Err(_) => {
                                    assert_eq!(
                                        relays[at].handle_head(now, request.leg, Head::new(508)),
                                        Flow::Stop
                                    );
                                }
                            }
                        }
                        Action::Cancel(leg) => {
                            if let Some(viewer) = between.remove(&(at, leg)) {
                                relays[1 - at].handle_leave(now, viewer);
                            }
                        }
                        Action::Continue(_) | Action::Suspect(..) | Action::Differs(..) => {}
                    }
                }
            }
            for ((at, leg), viewer) in between.clone() {
                if let ReadStep::Failed(_) = relays[1 - at].handle_read(now, viewer) {
                    is_busy = true;
                    between.remove(&(at, leg));
                    relays[1 - at].handle_leave(now, viewer);
                    assert_eq!(relays[at].handle_head(now, leg, Head::new(502)), Flow::Stop);
                }
            }
        }
        let reads = [0, 1].map(|at| relays[at].handle_read(now, viewers[at]));
        if reads.iter().all(|read| *read != ReadStep::Pending) {
            return (now, reads);
        }
        now = relays.iter().filter_map(Relay::poll_timeout).min().expect("a leg waits");
        assert!(now - start < Duration::from_secs(60), "the ring waits forever");
        relays.iter_mut().for_each(|relay| relay.handle_timeout(now));
    }
}

/// Each relay's request had joined the other relay's request, and both waited for 18 s.
#[test]
fn two_relay_ring_with_viewers_fails_at_first_silence() {
    let mut relays = [(); 2].map(|()| Relay::new(RelayConfig::default()).expect("a good configuration"));
    let (at, reads) = ring_of_two(&mut relays);
    assert_eq!(at, Instant::from_us(1) + SILENCE_UNKNOWN);
    assert!(reads.contains(&ReadStep::Failed(Failure::Status(508))), "{reads:?}");
    assert!(
        reads.iter().all(|read| matches!(read, ReadStep::Failed(Failure::Status(502 | 508)))),
        "{reads:?}"
    );
}

/// A slow parent is asked once more if other relays wait, and its first answer is used.
#[test]
fn slow_parent_is_asked_again_for_joined_relays_once() {
    let mut world = World::new(RelayConfig::default(), &[1_000]);
    world.hops = 1;
    let first = world.join(0);
    for passed in ["edge-1, own", "edge-1, own", "own"] {
        let request =
            JoinRequest { key: World::key(0), range: None, if_range: None, passed: passed.to_owned() };
        world.relay.handle_join(world.now, request).expect("there is room");
    }
    for _ in 0..10 {
        world.now += SILENCE_UNKNOWN;
        world.relay.handle_timeout(world.now);
        world.drain();
    }
    assert_eq!(world.requests[0], 2);
    let leg = *world.legs.keys().next().expect("the first leg is under way");
    let _ = world.relay.handle_head(world.now, leg, world.head(0, 0));
    assert!(matches!(world.relay.handle_read(world.now, world.readers[first].id), ReadStep::Head(_)));
}
