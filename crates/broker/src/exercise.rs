//! What fuzzing does with what comes from outside: files of an operator, and what a store says.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_contracts`] first.

use crate::contracts::Contracts;
use crate::etcd::is_answer;
use crate::kept::read_decision;
use crate::places::Places;
use crate::wire::DecisionView;
use anabranch_broker_proto::broker::Standing;
use anabranch_broker_proto::delivery::{Delivery, Viewer};
use anabranch_units::BitRate;
use std::collections::BTreeSet;

/// A file of contracts. Whether it is one.
pub fn exercise_contracts(bytes: &[u8]) -> bool {
    let Ok(contracts) = String::from_utf8_lossy(bytes).parse::<Contracts>() else { return false };
    for network in contracts.numbers() {
        assert_eq!(contracts.number(contracts.name(network)), Some(network));
    }
    assert_eq!(contracts.catalogue().len(), contracts.numbers().count());
    true
}

/// A table of places. Whether it is one.
pub fn exercise_places(bytes: &[u8]) -> bool {
    let Ok(places) = Places::read(bytes) else { return false };
    for address in ["192.0.2.1", "2001:db8::1", "::ffff:10.1.2.3"] {
        let _ = places.of(address.parse().expect("an address"));
    }
    true
}

/// A decision as a store has it; with `E` before it an answer of etcd. Whether it is one.
pub fn exercise_stored(bytes: &[u8]) -> bool {
    if let Some(answer) = bytes.strip_prefix(b"E") {
        return is_answer(answer);
    }
    let Ok(view) = serde_json::from_slice::<DecisionView>(bytes) else { return false };
    let contracts = "[[network]]\nname = \"a\"\n[[network]]\nname = \"b\"\n";
    let decision = read_decision(&view, &contracts.parse().expect("it is right"));
    assert!(decision.standings.values().all(Standing::is_possible));
    let delivery = Delivery::new(&decision);
    for (location, isp) in view.places.iter().take(100) {
        let viewer =
            Viewer { location: location.clone(), isp: isp.clone(), bitrate: BitRate::bps(1), number: 1 };
        let order = delivery.order(&viewer, &BTreeSet::new(), 3);
        assert!(order.iter().all(|to| to.network.index() < 2));
    }
    true
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn the_corpora_are_as_they_say() {
        assert!(replay("broker_contracts", super::exercise_contracts) >= 4);
        assert!(replay("broker_places", super::exercise_places) >= 3);
        assert!(replay("broker_stored", super::exercise_stored) >= 6);
    }
}
