//! Starts an emulation in tests, or prints why this machine cannot. Included by the tests of each
//! crate that emulates.

use anabranch_emu::{EmuError, Emulation, EmulationOptions};
use anabranch_graph::Topology;
use anabranch_testing::skip::{is_lacking, skip};

/// Emulates the network, at least for programs. Returns `None`, with the reason printed, if this
/// machine cannot emulate.
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
