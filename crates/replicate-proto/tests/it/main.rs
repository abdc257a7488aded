//! Integration tests of the replicate room: the corpora of its fuzz targets, replayed without a fuzzer.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

#[path = "../../../../fuzz/replay.rs"]
mod replay;

use anabranch_replicate_proto::{exercise, msg};
use proptest::prelude::*;
use replay::replay;

#[test]
fn corpus_replays() {
    assert!(replay("replicate_msg", msg::exercise) >= 5);
    assert!(replay("replicate_control", exercise::control) >= 8);
    assert!(replay("replicate_site", exercise::exercise) >= 5);
}

proptest! {
    #[test]
    fn a_site_takes_whatever_its_peers_say(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        exercise::exercise(&bytes);
    }
}
