//! The optimiser, which decides which links carry which object.
//!
//! Source: the thesis, section 4.5 and Figure 4.8, with four corrections. Links out of sources need
//! no link into the source. A channel may exist at some sources only. A share of each link stays
//! unplanned, for local control. A setting decides whether the viewers of a group are counted. Read
//! [`Program`] first, then [`Plan`]. [`check`] verifies a plan independently of the optimiser.

mod answer;
pub mod check;
mod exercise;
pub mod generator;
pub mod optimiser;
mod problem;
pub mod recorded;
pub mod rivals;
#[cfg(test)]
mod samples;

pub use answer::{Plan, Tree};
pub use exercise::exercise_records;
pub use problem::{
    BITRATE_MAX, GROUP_LINKS_MAX, GROUPS_MAX, HOLDER_SETS_MAX, OBJECTS_MAX, PRICE_MAX, REFLECTORS_MAX,
    REQUESTS_MAX, SLACK_PPM_MAX, SOURCES_MAX, VIEWERS_MAX,
};
pub use problem::{
    Group, GroupId, GroupLink, GroupLinkId, ObjectId, Offer, Priority, Program, ProgramError, Request,
    Settings, plannable,
};
