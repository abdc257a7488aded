//! Properties of a congestion control that other parts of a connection depend on.
//!
//! Leaves out: the values for each congestion control, which are in its file. Read [`Properties`]
//! first.

use crate::config::{Config, ConfigError};
use crate::controls::Control;

/// A setting that a congestion control needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RequiredSetting {
    /// [`Config::ecn`] must be on (true) or off (false).
    Ecn(bool),
    /// [`Config::rack`] must be on.
    Rack,
    /// [`Config::cwnd_max`] must be set.
    CwndMax,
}

impl RequiredSetting {
    /// Whether `config` has the setting.
    const fn is_in(self, config: &Config) -> bool {
        match self {
            Self::Ecn(is_on) => config.ecn == is_on,
            Self::Rack => config.rack,
            Self::CwndMax => config.cwnd_max.is_some(),
        }
    }
    /// The setting as error messages recommend it.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Ecn(true) => "ecn = true",
            Self::Ecn(false) => "ecn = false",
            Self::Rack => "rack = true",
            Self::CwndMax => "cwnd_max to one and a half times the path's product",
        }
    }
}

/// Properties of a congestion control.
#[derive(Copy, Clone, Debug)]
pub struct Properties {
    /// Linux's name for the congestion control; `None` if Linux does not have it.
    pub linux_name: Option<&'static str>,
    /// Settings that the congestion control needs, each with the reason for error messages.
    pub needs: &'static [(RequiredSetting, &'static str)],
    /// Whether the congestion control's receiver acknowledges each change of the ECN mark at once
    /// (RFC 8257 section 3.2).
    pub has_exact_echo: bool,
    /// Whether HyStart++ ends the first slow start unless [`Config::hystart`] says otherwise.
    pub has_hystart: bool,
    /// Whether the window follows the network's marks of circuits.
    pub needs_circuit_marks: bool,
}

impl Properties {
    /// Properties of a congestion control that needs no setting and that Linux does not have.
    pub const DEFAULT: Self = Self {
        linux_name: None,
        needs: &[],
        has_exact_echo: false,
        has_hystart: false,
        needs_circuit_marks: false,
    };
}

impl Control {
    /// Linux's name for the congestion control; `None` if Linux does not have it. The mainline
    /// kernel's `bbr` is the first version.
    pub const fn linux_name(self) -> Option<&'static str> {
        self.properties().linux_name
    }
    /// Whether the congestion control's window follows the network's marks of circuits.
    pub const fn needs_circuit_marks(self) -> bool {
        self.properties().needs_circuit_marks
    }
    /// Whether the congestion control's receiver acknowledges each change of the ECN mark at once.
    pub(crate) const fn has_exact_echo(self) -> bool {
        self.properties().has_exact_echo
    }
    #[cfg(test)]
    pub(crate) fn needs(self, setting: RequiredSetting) -> bool {
        self.properties().needs.iter().any(|(needed, _)| *needed == setting)
    }
    /// Checks that `config` has the settings that the congestion control needs.
    ///
    /// Errors: all needed settings that `config` lacks.
    pub(crate) fn check(self, config: &Config) -> Result<(), ConfigError> {
        let missing = self.properties().needs.iter().filter(|(setting, _)| !setting.is_in(config));
        let missing: Vec<_> = missing.map(|&(setting, reason)| (reason, setting.remedy())).collect();
        if missing.is_empty() { Ok(()) } else { Err(ConfigError::ControlNeeds { control: self, missing }) }
    }
}
