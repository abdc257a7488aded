//! Designs with which the optimiser is compared, one file each, and the metrics of §4.7.1.
//!
//! Every design serves the arrivals of one window. A viewer that is not served at its bitrate asks
//! for the next lower bitrate of the channel. Read [`Window`] for the input and [`Metrics`] for the
//! result.

mod arrival_states;
mod cdn;
mod everything;
mod greedy;
mod ledger;
mod naive;
mod overlay;
mod planned;

pub use arrival_states::{Metrics, Window};
pub use cdn::cdn;
pub use everything::everything_everywhere;
pub use greedy::greedy;
pub use naive::{Bounds, naive_bounds};
pub use overlay::overlay_multicast;
pub use planned::planned_by;

#[cfg(test)]
mod tests;
