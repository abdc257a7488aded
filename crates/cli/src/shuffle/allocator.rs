//! Schedulers on the command line: clap's list of them is made of `shuffle_proto`'s.

use anabranch_shuffle_proto::Scheduler;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Reads a scheduler's name, and has help and completions list them all.
pub fn parser() -> impl TypedValueParser<Value = Scheduler> {
    let value = |scheduler: Scheduler| PossibleValue::new(scheduler.name()).help(scheduler.about());
    PossibleValuesParser::new(Scheduler::ALL.map(value)).try_map(|name| name.parse::<Scheduler>())
}
