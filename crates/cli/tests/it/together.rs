//! Concurrent transfers, with real daemons on an emulated network.

use crate::net::Net;
use anabranch_units::BitRate;
use serde_json::{Value, json};

/// `s1` reaches `d1` by two paths; one of the two is the only path from `s2` to `d2`.
const SHARED: &str = r#"
name = "shared"
[defaults]
capacity = "10 Mbit/s"
delay = "2 ms"
[[site]]
name = "s1"
[[site]]
name = "s2"
[[site]]
name = "m"
[[site]]
name = "n"
[[site]]
name = "x"
[[site]]
name = "d1"
[[site]]
name = "d2"
[[cable]]
between = ["s1", "m"]
[[cable]]
between = ["s2", "m"]
[[cable]]
between = ["m", "n"]
[[cable]]
between = ["n", "d1"]
[[cable]]
between = ["n", "d2"]
[[cable]]
between = ["s1", "x"]
[[cable]]
between = ["x", "d1"]
"#;

const MIB: usize = 1 << 20;

/// The transfers planned jointly with this one, and its rate in Mbit/s.
fn share(planned: &Value) -> (Value, u64) {
    let rate = BitRate::bps(planned["rate_bps"].as_u64().expect("a number"));
    (planned["with"].clone(), rate.as_mbps_f64().round() as u64)
}

#[test]
fn running_transfer_makes_room_for_a_new_one() {
    let Some(mut net) = Net::new(SHARED) else { return };
    let (long, short) = (net.put("s1", "file", 1, 40 * MIB), net.put("s2", "file", 2, 4 * MIB));
    net.start_all();
    let first = net.send(&["file", "--from", "s1", "--to", "d1"]);
    assert_eq!(share(&first.event("planned")), (json!([]), 20), "nobody else is there");
    first.verified(MIB as u64);
    let second = net.send(&["file", "--from", "s2", "--to", "d2"]);
    // Without replanning, the first would take half of the shared path, leaving 5 Mbit/s.
    assert_eq!(share(&second.event("planned")), (json!([1]), 10));
    second.finish().expect_done();
    let first = first.finish();
    first.expect_done();
    assert!(net.has("d1", "file", &long) && net.has("d2", "file", &short), "both files, whole and named");
    let again = first.events.iter().filter(|e| e["event"] == "planned").nth(1).expect("planned anew");
    assert_eq!(share(again), (json!([2]), 10));
}
