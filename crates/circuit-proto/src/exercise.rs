//! Exercise of the parser of demand tables, for a fuzz target.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_demand`] first.

use crate::{Kind, Timing, bound, table};

/// Most racks of a table that is also planned for.
const PLANNED_RACKS_MAX: usize = 12;

/// Bytes as a table of demand. Returns whether the table is taken.
///
/// Panics: if a scheduler's plan for a small network cannot run on the switch, or exceeds the
/// bound.
pub fn exercise_demand(bytes: &[u8]) -> bool {
    let Ok(table) = table::read(bytes) else { return false };
    assert_eq!(table.racks.len(), table.demand.racks(), "each rack has a name");
    if table.racks.len() <= PLANNED_RACKS_MAX {
        let (demand, timing) = (&table.demand, Timing::ETALON);
        let (week, ports) = (bound::served_max(demand, &timing), bound::ports_max(demand, &timing));
        for kind in Kind::ALL {
            let plan = kind.scheduler().plan(demand, &timing);
            assert_eq!(plan.schedule.check(table.racks.len(), &timing), Ok(()), "{}", kind.name());
            let bound = if kind.is_one_week() { week } else { ports };
            assert!(plan.served <= bound, "{} serves {}, bound {bound}", kind.name(), plan.served);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn corpus_is_taken_or_refused_by_name() {
        assert!(replay("circuit_demand", super::exercise_demand) >= 10);
    }
}
