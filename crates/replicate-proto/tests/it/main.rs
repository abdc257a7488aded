//! Integration tests: the corpora of the fuzz targets, replayed without a fuzzer.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

use anabranch_replicate_proto::{exercise, msg};
use anabranch_testing::replay;
use proptest::prelude::*;

#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    assert!(replay("replicate_msg", msg::exercise) >= 5);
    assert!(replay("replicate_control", exercise::control) >= 8);
    assert!(replay("replicate_site", exercise::exercise) >= 5);
}

proptest! {
    #[test]
    fn arbitrary_peer_messages_never_panic_a_site(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        exercise::exercise(&bytes);
    }
}
