//! Announcements of flows to the control of an emulated hybrid switch.
//!
//! Read [`EmulationHandle::announce`].

use crate::forward::Request;
use crate::{EmuError, EmulationHandle};
use anabranch_units::{ByteCount, FlowKey};

impl EmulationHandle {
    /// Announces to the circuits' control that `flow` has `bytes` to send in total for `coflow`.
    /// Forwarded bytes are subtracted; the end of the connection cancels the remaining bytes.
    ///
    /// Errors: the circuits follow no announcements; no such connection between two racks is open;
    /// the emulation has ended.
    /// Cost: one wake-up of the forwarder; blocks until it answers.
    pub fn announce(&self, flow: FlowKey, coflow: &str, bytes: ByteCount) -> Result<(), EmuError> {
        let coflow = coflow.to_owned();
        self.ask(|reply| Request::Announce { flow, coflow, bytes, reply })?.map_err(EmuError::Announce)
    }
}
