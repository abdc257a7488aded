//! Errors of limits, each with the missing right or kernel feature and how to get it.

use std::io;

use anabranch_units::BitRate;

use crate::{FlowKey, Mechanism};

/// Reason why a flow does not have the requested limit.
#[derive(Debug)]
#[non_exhaustive]
pub enum PaceError {
    /// The network namespace of the pacer has no such connection.
    NoSuchFlow {
        /// Addresses and ports of the flow.
        flow: FlowKey,
    },
    /// The connection exists, but no visible process holds it.
    NoOwner {
        /// Addresses and ports of the flow.
        flow: FlowKey,
        /// True if some processes may not be inspected. Otherwise the program has exited or closed
        /// the connection, and the kernel sends the remaining data.
        is_any_hidden: bool,
    },
    /// The mechanism cannot set this rate.
    Rate {
        /// The requested rate.
        rate: BitRate,
        /// Minimum rate.
        min: BitRate,
        /// Maximum rate.
        max: BitRate,
    },
    /// The maximum number of flows already have a limit.
    Full {
        /// The maximum.
        flows_max: usize,
    },
    /// The kernel refused.
    Refused {
        /// Flow whose limit was refused.
        flow: FlowKey,
        /// Mechanism that was tried.
        mechanism: Mechanism,
        /// The system's error.
        error: io::Error,
    },
}

/// Reason why a mechanism does not work here.
#[derive(Debug)]
pub struct StartError {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// The step that failed.
    pub step: &'static str,
    /// The system's error.
    pub error: io::Error,
}

impl StartError {
    /// The fix, in one sentence.
    pub fn fix(&self) -> &'static str {
        self.mechanism.needs()
    }
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no rates by {}: cannot {}: {}", self.mechanism, self.step, self.error)?;
        // These errors explain themselves; a list of requirements adds no information.
        match self.error.kind() {
            io::ErrorKind::NotFound if self.error.get_ref().is_some() => Ok(()),
            _ => write!(f, ": {}", self.fix()),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl std::fmt::Display for PaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSuchFlow { flow } => {
                write!(f, "flow {flow}: no such connection in this network namespace")
            }
            Self::NoOwner { flow, is_any_hidden: true } => {
                write!(
                    f,
                    "flow {flow}: no process that may be looked at holds it: run as root, in the host's pid namespace"
                )
            }
            Self::NoOwner { flow, is_any_hidden: false } => {
                write!(
                    f,
                    "flow {flow}: no process of this pid namespace holds it: its program has closed it or ended, and the rest goes at its last rate"
                )
            }
            Self::Rate { rate, min, max } => write!(f, "rate {rate}: must be {min} to {max}"),
            Self::Full { flows_max } => write!(f, "{flows_max} flows have limits, no more can: lift one"),
            Self::Refused { flow, mechanism, error } => {
                write!(f, "flow {flow}: cannot set its rate by {mechanism}: {error}")?;
                // The list of requirements helps only a caller without the rights.
                match error.kind() {
                    io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
                        write!(f, ": {}", mechanism.needs())
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for PaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}
