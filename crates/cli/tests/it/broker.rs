//! `anabranch broker` as users run it, without a running broker. Tests with a running broker are in
//! the `broker` crate.

use crate::{answer, text};

#[test]
fn play_without_a_broker_exits_with_failure() {
    let nobody = ["--steering", "http://127.0.0.1:1/steering/hls", "--way", "a=127.0.0.1:1"];
    let brief = ["--arrivals", "0 s", "--duration", "300 ms", "--segment", "100 ms", "--buffer", "100 ms"];
    let output = answer(&[&["broker", "play"][..], &nobody, &brief].concat());
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("nobody has played: is the broker there"), "{said}");
    assert!(text(&output.stdout).starts_with("0 of 1 players have begun"));
}
