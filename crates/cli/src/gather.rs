//! `anabranch gather`: one client pulls from many servers at once.

pub mod simulated;
