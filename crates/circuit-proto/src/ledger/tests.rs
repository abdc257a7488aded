//! Properties of the ledger, and its limits, tested at the limit and just beyond.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const RACKS: usize = 4;

/// An event of a flow, except its close.
#[derive(Clone, Debug)]
enum Step {
    Announced(u8, u64),
    Forwarded(u8, u64, u32),
}

/// Source rack and destination rack of a flow, derived from its number.
fn racks(flow: u8) -> (usize, usize) {
    let source = usize::from(flow) % RACKS;
    (source, (source + 1 + usize::from(flow) % 3) % RACKS)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let announced = (0u8..6, 0u64..300).prop_map(|(flow, bytes)| Step::Announced(flow, bytes));
    let forwarded =
        (0u8..6, 0u64..400, 0u32..60).prop_map(|(flow, at, bytes)| Step::Forwarded(flow, at, bytes));
    prop::collection::vec(prop_oneof![announced, forwarded], 0..120)
}

/// The ledger after these steps. All six flows are first announced with zero bytes.
fn ledger(steps: &[Step]) -> Ledger<u8> {
    let mut ledger = Ledger::new(RACKS).unwrap();
    for flow in 0..6 {
        let (source, destination) = racks(flow);
        ledger.handle_announced(flow, source, destination, ByteCount::ZERO).unwrap();
    }
    for step in steps {
        match *step {
            Step::Announced(flow, bytes) => {
                let (source, destination) = racks(flow);
                ledger.handle_announced(flow, source, destination, ByteCount::new(bytes)).unwrap();
            }
            Step::Forwarded(flow, position, bytes) => {
                assert!(ledger.handle_forwarded(flow, position, bytes));
            }
        }
    }
    ledger
}

/// The plain twin: the announced bytes of each flow, minus its forwarded positions.
fn outstanding(steps: &[Step]) -> u64 {
    let of = |flow: u8| {
        let (mut announced, mut forwarded) = (0, BTreeSet::new());
        for step in steps {
            match step {
                Step::Announced(number, bytes) if *number == flow => announced += bytes,
                Step::Forwarded(number, position, bytes) if *number == flow => {
                    forwarded.extend(*position..position + u64::from(*bytes));
                }
                _ => {}
            }
        }
        announced.saturating_sub(forwarded.len() as u64)
    };
    (0..6).map(of).sum()
}

proptest! {
    #[test]
    fn demand_equals_announced_minus_forwarded_bytes(steps in steps()) {
        prop_assert_eq!(ledger(&steps).demand().total().as_u64(), outstanding(&steps));
    }

    #[test]
    fn demand_is_independent_of_event_order((steps, shuffled) in steps().prop_flat_map(|steps| {
        (Just(steps.clone()), Just(steps).prop_shuffle())
    })) {
        prop_assert_eq!(ledger(&steps).demand(), ledger(&shuffled).demand());
    }

    #[test]
    fn closed_flows_leave_no_demand_in_the_ledger(steps in steps(), closed in prop::collection::btree_set(0u8..6, 0..6)) {
        let mut ledger = ledger(&steps);
        closed.iter().for_each(|flow| ledger.handle_closed(*flow));
        let of = |step: &Step| match step {
            Step::Announced(flow, _) | Step::Forwarded(flow, ..) => *flow,
        };
        let open: Vec<Step> = steps.into_iter().filter(|step| !closed.contains(&of(step))).collect();
        prop_assert_eq!(ledger.demand().total().as_u64(), outstanding(&open));
        (0..6).for_each(|flow| ledger.handle_closed(flow));
        prop_assert_eq!((ledger.demand().total(), ledger.flows()), (ByteCount::ZERO, 0));
    }
}

#[test]
fn packets_of_unopened_flows_leave_no_entry() {
    let mut ledger = Ledger::new(2).unwrap();
    assert!(!ledger.handle_forwarded("unannounced", 0, 1_000));
    assert_eq!(ledger.flows(), 0);
    ledger.handle_announced("a", 0, 1, ByteCount::new(5_000)).unwrap();
    ledger.handle_closed("a");
    assert!(!ledger.handle_forwarded("a", 4_000, 1_000), "a late retransmission");
    assert_eq!((ledger.flows(), ledger.demand().total(), ledger.refused()), (0, ByteCount::ZERO, 0));
}

#[test]
fn retransmitted_bytes_count_once() {
    let mut ledger = Ledger::new(2).unwrap();
    ledger.handle_announced("a", 0, 1, ByteCount::new(10_000)).unwrap();
    for _ in 0..3 {
        ledger.handle_forwarded("a", 0, 1_000);
        ledger.handle_forwarded("a", 500, 1_500);
    }
    assert_eq!(ledger.demand().between(0, 1), ByteCount::new(8_000));
}

#[test]
fn ranges_beyond_the_limit_are_not_counted() {
    let mut ledger = Ledger::new(2).unwrap();
    ledger.handle_announced(0, 0, 1, ByteCount::new(1_000)).unwrap();
    for range in 0..RANGES_MAX as u64 {
        assert!(ledger.handle_forwarded(0, range * 2, 1));
    }
    assert_eq!(ledger.demand().total(), ByteCount::new(1_000 - RANGES_MAX as u64));
    assert!(!ledger.handle_forwarded(0, 500, 1), "one range too many");
    assert!(ledger.handle_forwarded(0, 1, 1), "it joins two ranges");
    assert!(ledger.handle_forwarded(0, 500, 1));
    assert!(!ledger.handle_forwarded(0, u64::MAX, 1), "it ends beyond the last position");
    assert_eq!(ledger.demand().total(), ByteCount::new(998 - RANGES_MAX as u64));
    assert_eq!(ledger.refused(), 2);
}

#[test]
fn flows_beyond_the_limit_are_refused() {
    let mut ledger = Ledger::new(2).unwrap();
    let one = ByteCount::new(1);
    for flow in 0..FLOWS_MAX {
        ledger.handle_announced(flow, 0, 1, one).unwrap();
    }
    assert_eq!(ledger.handle_announced(FLOWS_MAX, 0, 1, one), Err(LedgerError::Full));
    assert_eq!(ledger.handle_announced(3, 0, 1, one), Ok(()));
    ledger.handle_closed(7);
    assert_eq!(ledger.handle_announced(FLOWS_MAX, 0, 1, one), Ok(()));
}

#[test]
fn invalid_announcements_are_refused() {
    let mut ledger = Ledger::new(2).unwrap();
    let one = ByteCount::new(1);
    let missing = DemandError::NoSuchRack { rack: 2, racks: 2 };
    assert_eq!(ledger.handle_announced(0, 0, 2, one), Err(LedgerError::Rack(missing)));
    assert_eq!(ledger.handle_announced(0, 1, 1, one), Err(LedgerError::Rack(DemandError::ToItself(1))));
    ledger.handle_announced(0, 0, 1, one).unwrap();
    assert_eq!(ledger.handle_announced(0, 1, 0, one), Err(LedgerError::OtherRacks));
    assert_eq!((ledger.demand().total(), ledger.refused()), (one, 3));
}
