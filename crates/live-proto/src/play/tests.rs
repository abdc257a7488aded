//! Tests of a player with modelled edges in virtual time.

mod world;

use super::{Action, PlayFailure, Player, PlayerConfig, PlayerKind, ResourceKind};
use anabranch_media::hls::DateTime;
use anabranch_units::{Duration, Instant};
use proptest::prelude::*;
use world::{Fault, OPENED_UNIX_MS, World, at};

fn healthy(kind: PlayerKind, has_parts: bool) -> World {
    let mut world = World::new(kind, 1, has_parts);
    world.run_until(60_000);
    world
}

#[test]
fn low_latency_player_plays_at_the_hold_back() {
    let world = healthy(PlayerKind::Buffering, true);
    let measured = world.player.measurements(at(60_000));
    assert_eq!((measured.stalls, measured.counts.failed, measured.counts.refused), (0, 0, 0));
    let (playback, latency) = (measured.join.playback.expect("it plays"), measured.latency.quantile_us(0.5));
    assert!(playback <= Duration::from_ms(400), "{playback}");
    // Latency is three parts of 200 ms, up to one part that is incomplete, and the time to start.
    let most_us = 800_000.0 + playback.as_us() as f64;
    assert!((600_000.0..=most_us * 1.04).contains(&latency), "{latency} us");
    let age = measured.ages.quantile_us(0.99).expect("ages");
    assert!((10_000.0..=11_000.0).contains(&age), "{age} us for a delay of 10 ms");
    assert!(measured.counts.objects > 290, "{} parts in 60 s", measured.counts.objects);
}

/// Parts missing in a cached playlist once counted as made after the player had joined.
#[test]
fn measured_ages_exclude_parts_older_than_the_player() {
    let mut world = World::new(PlayerKind::Buffering, 1, true);
    world.cache_lacks_parts = 5;
    world.run_until(10_000);
    let oldest = world.player.measurements(at(10_000)).ages.quantile_us(1.0).expect("ages");
    assert!(oldest < 250_000.0, "{oldest} us");
}

#[test]
fn segment_player_starts_three_targets_behind_live_edge() {
    let world = healthy(PlayerKind::Buffering, false);
    let measured = world.player.measurements(at(60_000));
    assert_eq!((measured.stalls, measured.counts.failed), (0, 0));
    let latency = measured.latency.quantile_us(0.5);
    assert!((5_900_000.0..=8_400_000.0).contains(&latency), "{latency} us");
    assert!((30..=33).contains(&measured.counts.objects), "{} segments in 60 s", measured.counts.objects);
}

#[test]
fn fixed_player_waits_a_segment_duration_between_segments() {
    let world = healthy(PlayerKind::Fixed, true);
    assert!(world.segments_asked.len() > 20, "{:?}", world.segments_asked);
    for (asked_ms, ended_ms) in world.segments_asked.iter().skip(1).zip(&world.segments_ended) {
        // The request for the playlist that lists the segment takes 20 ms.
        assert_eq!(asked_ms - ended_ms, 2_020);
    }
}

#[test]
fn buffered_player_survives_edge_failure_without_stall() {
    for fault in [Fault::Silent, Fault::Broken, Fault::Refuses(503)] {
        let mut world = World::new(PlayerKind::Buffering, 2, false);
        world.faults.push((0, fault, 20_000..u64::MAX));
        world.run_until(60_000);
        let measured = world.player.measurements(at(60_000));
        assert_eq!((measured.stalls, measured.counts.edge_changes), (0, 1), "{fault:?}");
        assert!(measured.recovery_max > Duration::ZERO, "{fault:?}");
    }
}

#[test]
fn refused_player_takes_the_next_lower_bitrate() {
    let mut world = World::new(PlayerKind::Buffering, 2, true);
    world.variants_kbps = vec![600, 1_400, 200];
    world.refused_kbps = vec![1_400];
    world.run_until(20_000);
    let measured = world.player.measurements(at(20_000));
    assert_eq!(measured.bitrate.map(|rate| rate.as_bps()), Some(600_000));
    assert_eq!((measured.counts.downgrades, measured.stalls), (1, 0));
    assert_eq!(measured.counts.refused, 2, "both edges have refused the highest bitrate");
    assert!(measured.counts.objects > 80, "{} parts", measured.counts.objects);
}

#[test]
fn player_without_video_gives_up_and_reports_failure() {
    let mut world = World::new(PlayerKind::Buffering, 2, true);
    for edge in 0..2 {
        world.faults.push((edge, Fault::Refuses(404), 0..u64::MAX));
    }
    world.run_until(60_000);
    assert!(world.player.is_over() && !world.player.has_joined());
    let measured = world.player.measurements(at(60_000));
    assert_eq!(measured.counts.refused, 10, "five rounds over two edges");
    let (url, failure) = measured.last_failure.expect("a failure");
    assert!(url.ends_with("/news/index.m3u8") && failure == PlayFailure::Status(404), "{url}: {failure}");
    assert!(world.ended_ms < 6_000, "{} ms", world.ended_ms);
}

#[test]
fn unresolved_host_is_queried_once_per_second() {
    let mut config = PlayerConfig::new(
        PlayerKind::Buffering,
        vec!["http://a/x.m3u8".to_owned()],
        DateTime::from_unix_ms(0).expect("a date"),
    );
    config.resolves = true;
    let mut player = Player::new(at(0), config).expect("a URL");
    let mut asked = 0;
    let mut now = at(0);
    while now < at(10_000) {
        while let Some(action) = player.poll(now) {
            assert_eq!(action, Action::Resolve);
            asked += 1;
            player.handle_resolved(now, 0);
        }
        now = player.poll_timeout();
        player.handle_timeout(now);
    }
    assert!(player.is_over() && asked == 5, "{asked}");
    assert_eq!(
        player.measurements(now).last_failure.map(|(_, failure)| failure),
        Some(PlayFailure::Unresolved)
    );
}

#[test]
fn stale_blocking_playlists_cause_no_request_loop() {
    let mut world = World::new(PlayerKind::Buffering, 1, true);
    world.frozen_at_ms = Some(10_000);
    world.run_until(40_000);
    // The server answers blocking reloads at once, without news.
    assert!(world.playlists_asked < 50 + 30 * 11, "{} playlists", world.playlists_asked);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn player_survives_faults_and_plays_again(
        kind in prop_oneof![Just(PlayerKind::Fixed), Just(PlayerKind::Buffering)],
        has_parts: bool,
        edges in 1usize..4,
        faults in proptest::collection::vec((0usize..4, 0u8..4, 0u64..30_000, 1u64..20_000), 0..8),
    ) {
        let mut world = World::new(kind, edges, has_parts);
        for (edge, sort, from, length) in faults {
            let fault = [Fault::Silent, Fault::Broken, Fault::Refuses(503), Fault::Refuses(404)][sort as usize];
            world.faults.push((edge % edges, fault, from..from + length));
        }
        world.run_until(70_000);
        let before = world.player.measurements(at(70_000));
        // Twenty seconds without faults are enough to recover. A player without video may have
        // given up.
        world.run_until(90_000);
        let after = world.player.measurements(at(90_000));
        prop_assert!(world.player.is_over() || after.counts.objects > before.counts.objects);
        prop_assert!(!(world.player.is_over() && world.player.has_joined()));
        prop_assert!(world.actions < 90 * 60, "{} actions", world.actions);
        if let Some(playback) = after.join.playback {
            let open = after.open;
            prop_assert!(playback + after.stalled <= open);
            prop_assert!(after.join.first_byte.is_some_and(|first| first <= playback));
        }
    }

    #[test]
    fn random_answers_cause_no_panic(
        answers in proptest::collection::vec((any::<u16>(), proptest::collection::vec(any::<u8>(), 0..200), any::<bool>(), 0usize..5), 1..40),
    ) {
        let opened = DateTime::from_unix_ms(OPENED_UNIX_MS).expect("a date");
        let config = PlayerConfig::new(PlayerKind::Buffering, vec!["http://a/x.m3u8".to_owned()], opened);
        let mut player = Player::new(Instant::ZERO, config).expect("a URL");
        let lines = ["#EXTM3U\n#EXT-X-TARGETDURATION:1\n", "#EXTINF:1,\na.mp4\n", "#EXT-X-PART-INF:PART-TARGET=0.0\n#EXT-X-PART:DURATION=0,URI=\"p\"\n", "#EXT-X-STREAM-INF:BANDWIDTH=1\nb\n", "#EXT-X-MEDIA-SEQUENCE:9223372036854775807\n"];
        let mut now = Instant::ZERO;
        for (status, bytes, is_playlist, line) in answers {
            while let Some(action) = player.poll(now) {
                let Action::Get(get) = action else { continue };
                player.handle_head(now, get.id, if is_playlist { 200 } else { status });
                if is_playlist && get.kind == ResourceKind::Playlist {
                    player.handle_bytes(now, get.id, lines[0].as_bytes());
                    player.handle_bytes(now, get.id, lines[line].as_bytes());
                } else {
                    player.handle_bytes(now, get.id, &bytes);
                }
                player.handle_end(now, get.id);
                now += Duration::from_ms(1);
            }
            now = player.poll_timeout().min(now + Duration::from_secs(5));
            player.handle_timeout(now);
        }
    }
}
