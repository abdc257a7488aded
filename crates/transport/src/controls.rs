//! The list of congestion controls: one line each, in the form NAME: state, word in scenarios,
//! field type.
//!
//! A congestion control is a file below `congestion` with an `Algorithm`, and a line here.
//! [`Control`] and the dispatch of `congestion` are generated from the list. Large states are
//! boxed, so that connections with other congestion controls stay small.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Passes the list of congestion controls to the macro `$make`.
macro_rules! controls {
    ($make:ident) => {
        $make! {
            /// RFC 5681 and 6582.
            NewReno: newreno::NewReno, "newreno", newreno::NewReno;
            /// RFC 9438.
            Cubic: cubic::Cubic, "cubic", cubic::Cubic;
            /// RFC 8257. Needs `ecn`.
            Dctcp: dctcp::Dctcp, "dctcp", dctcp::Dctcp;
            /// draft-ietf-ccwg-bbr-06. Needs `rack`, and no `ecn`.
            Bbr: bbr::ModelControl, "bbr", Box<bbr::ModelControl>;
            /// BBR's first version, draft-cardwell-iccrg-bbr-congestion-control-00. Needs `rack`,
            /// and no `ecn`.
            Bbr1: bbr::ModelControl, "bbr1", Box<bbr::ModelControl>;
            /// Network-signalled congestion control of the Ultra Ethernet Specification. Needs
            /// `rack`, `ecn` and `cwnd_max`.
            Nscc: nscc::Nscc, "nscc", Box<nscc::Nscc>;
            /// reTCP over NewReno (Mukerjee, 2018, §2.4.4). Needs a network that marks circuits.
            ReTcp: retcp::ReTcp<newreno::NewReno>, "retcp", retcp::ReTcp<newreno::NewReno>;
            /// reTCP over Cubic. Needs a network that marks circuits.
            ReTcpCubic: retcp::ReTcp<cubic::Cubic>, "retcp-cubic", Box<retcp::ReTcp<cubic::Cubic>>;
            /// reTCP over DCTCP. Needs `ecn`, and a network that marks circuits.
            ReTcpDctcp: retcp::ReTcp<dctcp::Dctcp>, "retcp-dctcp", Box<retcp::ReTcp<dctcp::Dctcp>>;
            /// TDTCP over Cubic (Chen et al., 2022). Needs a network that marks circuits.
            Tdtcp: tdtcp::Tdtcp<cubic::Cubic>, "tdtcp", Box<tdtcp::Tdtcp<cubic::Cubic>>;
        }
    };
}
pub(crate) use controls;

/// Defines [`Control`] from the list of congestion controls.
macro_rules! control_names {
    ($($(#[$doc:meta])* $name:ident: $state:ty, $word:literal, $holds:ty;)*) => {
        /// A congestion control.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum Control {
            $($(#[$doc])* #[serde(rename = $word)] $name,)*
        }

        impl Control {
            /// All congestion controls.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Name in scenarios.
            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}
controls!(control_names);
