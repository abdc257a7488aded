//! Schedulers on the command line; clap's list comes from `shuffle_proto`.

use anabranch_shuffle_proto::Scheduler;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Returns a parser for schedulers' names, which also lists them in help and completions.
pub fn parser() -> impl TypedValueParser<Value = Scheduler> {
    let value = |scheduler: Scheduler| PossibleValue::new(scheduler.name()).help(scheduler.about());
    PossibleValuesParser::new(Scheduler::ALL.map(value)).try_map(|name| name.parse::<Scheduler>())
}
