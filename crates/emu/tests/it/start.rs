//! Start of an emulation in tests, or the reason why this machine has none. Part of the tests of
//! each crate that emulates.

use anabranch_emu::{EmuError, Emulation, EmulationOptions};
use anabranch_graph::Topology;
use anabranch_testing::skip::{is_lacking, skip};

/// The network emulated, for programs at least; none, with the reason printed, where this machine
/// cannot.
pub fn start_or_skip(topology: &Topology, options: EmulationOptions) -> Option<Emulation> {
    match Emulation::start(topology, options) {
        Ok(emulation) => Some(emulation),
        Err(EmuError::Build(failure)) if is_lacking(&failure.error, failure.step.lacks()) => {
            skip(&failure.to_string());
            None
        }
        Err(EmuError::NoIsolation { root, user })
            if [&root, &user].iter().all(|way| is_lacking(&way.error, way.step.lacks())) =>
        {
            skip(&EmuError::NoIsolation { root, user }.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
