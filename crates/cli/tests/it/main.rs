//! The command as its users run it: real processes on emulated networks. One module for each verb or concern.

mod failures;
mod net;
