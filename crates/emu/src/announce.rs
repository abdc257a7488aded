//! Announcements of flows to the control of emulated circuits.
//!
//! Read [`EmulationHandle::announce`].

use crate::forward::Request;
use crate::{EmuError, EmulationHandle};
use anabranch_units::{ByteCount, FlowKey};

impl EmulationHandle {
    /// Announces to the circuits' control that `flow` has `bytes` to send for `coflow`, in all.
    /// Forwarded bytes are subtracted, and the connection's end cancels the rest.
    ///
    /// Errors: circuits that follow no announcements, no such connection between two racks, an
    /// emulation that has ended.
    /// Cost: one wake-up of the forwarder; blocks until it answers.
    pub fn announce(&self, flow: FlowKey, coflow: &str, bytes: ByteCount) -> Result<(), EmuError> {
        let coflow = coflow.to_owned();
        self.ask(|reply| Request::Announce { flow, coflow, bytes, reply })?.map_err(EmuError::Announce)
    }
}
