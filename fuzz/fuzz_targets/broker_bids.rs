//! Random bytes as a network's bids in an open round: never a panic, and no cluster gets more than
//! its bid.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    anabranch_broker_proto::exercise::exercise_bids(bytes);
});
