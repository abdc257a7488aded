//! Requests that follow a playlist.

use super::*;

const PLAYLIST: &str = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\nlow/index.m3u8\n";

/// Answers a request of the relay. Returns the requests that follow.
fn answer(relay: &mut Relay, leg: LegId, playlist: &'static str) -> Vec<FetchRequest> {
    let now = Instant::from_us(1);
    relay.handle_hop(now, leg, Some(Hop(0)));
    let _ = relay.handle_head(now, leg, Head::new(200));
    let _ = relay.handle_bytes(now, leg, Bytes::from_static(playlist.as_bytes()));
    relay.handle_end(now, leg);
    let actions: Vec<Action> = std::iter::from_fn(|| relay.poll_action()).collect();
    let fetch = |action| if let Action::Fetch(request) = action { Some(request) } else { None };
    actions.into_iter().filter_map(fetch).collect()
}

/// Completes a playlist at a relay with one viewer. Returns the requests that follow.
fn after_playlist(config: RelayConfig, target: &str) -> (Relay, Vec<FetchRequest>) {
    let mut relay = Relay::new(config).expect("a good configuration");
    let now = Instant::from_us(1);
    let key = Key::read(target, QueryRule::Remove).expect("a good target");
    let request = JoinRequest { key, range: None, if_range: None, passed: "edge".to_owned() };
    relay.handle_join(now, request).expect("there is room");
    let Some(Action::Fetch(FetchRequest { leg, .. })) = relay.poll_action() else { panic!("no request") };
    // The other request of a doubled node stays unanswered.
    while relay.poll_action().is_some() {}
    let ahead = answer(&mut relay, leg, PLAYLIST);
    (relay, ahead)
}

#[test]
fn relay_requests_ahead_what_players_request_after_a_playlist() {
    let (mut relay, ahead) = after_playlist(RelayConfig::default(), "/ch/index.m3u8");
    let shown: Vec<_> =
        ahead.iter().map(|request| (request.key.to_string(), request.passed.as_str())).collect();
    assert_eq!(shown, [("/ch/low/index.m3u8".to_owned(), "edge")]);
    let key = ahead[0].key.clone();
    let request = JoinRequest { key, range: None, if_range: None, passed: String::new() };
    relay.handle_join(Instant::from_us(2), request).expect("there is room");
    assert!(relay.poll_action().is_none(), "the viewer joins the request");
    assert_eq!((relay.counts().read_ahead, relay.counts().joins_under_way), (1, 1));
}

#[test]
fn reloads_are_not_followed_by_other_requests() {
    let (_, ahead) = after_playlist(RelayConfig::default(), "/ch/index.m3u8?_HLS_msn=7");
    assert_eq!(ahead, []);
    let config = RelayConfig { reads_ahead: false, ..RelayConfig::default() };
    assert_eq!(after_playlist(config, "/ch/index.m3u8").1, []);
}

#[test]
fn object_that_no_viewer_requests_is_cancelled() {
    let (mut relay, ahead) = after_playlist(RelayConfig::default(), "/ch/index.m3u8");
    relay.handle_timeout(Instant::from_us(1) + RelayConfig::default().linger);
    assert_eq!(relay.poll_action(), Some(Action::Cancel(ahead[0].leg)));
}

#[test]
fn playlist_that_names_itself_is_requested_three_times() {
    let (mut relay, mut ahead) = after_playlist(RelayConfig::default(), "/low/index.m3u8");
    let mut requests = 1;
    while let Some(request) = ahead.pop() {
        requests += 1;
        assert_eq!(request.key.path(), "/low/".repeat(requests).replace("//", "/") + "index.m3u8");
        ahead = answer(&mut relay, request.leg, PLAYLIST);
    }
    assert_eq!(requests, 3);
}

#[test]
fn doubled_node_reads_ahead_from_two_parents() {
    let config = RelayConfig { is_doubled: true, ..RelayConfig::default() };
    assert_eq!(after_playlist(config, "/ch/index.m3u8").1.len(), 2);
}
