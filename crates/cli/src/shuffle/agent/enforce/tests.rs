use super::*;

fn limited(port: u16) -> Limited {
    let local = SocketAddr::from(([10, 0, 0, 1], port));
    Limited { local, remote: SocketAddr::from(([10, 0, 0, 2], 7000)), cookie: port.into(), before_bps: None }
}

fn ports(left: &Left) -> Vec<u16> {
    left.0.iter().map(|limited| limited.local.port()).collect()
}

#[test]
fn the_state_file_keeps_what_is_to_be_set_back_and_what_is_stuck_until_it_is_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state.jsonl");
    let (mut state, left) = State::open(&path).expect("ours");
    assert!(left.is_empty() && state.tso_rtt_log().is_none());
    state.note_tso_rtt_log(Some(9)).expect("ours");
    state.add(&[limited(1), limited(2)]).expect("ours");
    state.stuck.push(limited(3));
    state.keep_only(&[limited(2)]).expect("ours");
    // As by a process that was killed while it wrote.
    state.file.write_all(b"{\"local\":\"10.0.0.1:4").expect("ours");
    assert!(State::open(&path).is_err(), "one at a time");
    drop(state);

    let (mut state, left) = State::open(&path).expect("ours");
    assert_eq!((state.tso_rtt_log(), ports(&left)), (Some(9), vec![3, 2]));
    state.note_tso_rtt_log(None).expect("ours");
    drop(state);
    let (mut state, _) = State::open(&path).expect("ours");
    assert_eq!(state.tso_rtt_log(), None);
    state.keep_only([]).expect("ours");
    drop(state);
    let (_, left) = State::open(&path).expect("ours");
    assert!(left.is_empty());
}
