//! Rules by which an agent announces flows, and by which it names the flow's coflow.
//!
//! A TOML file of `[[rule]]` tables; the first rule that matches a flow applies. Leaves out:
//! listing flows, and reading files. Read [`Rules`].

use crate::control::FlowKey;
use crate::coordinator::NAME_MAX;
use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Maximum bytes of a file.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of rules.
pub const RULES_MAX: usize = 1_024;
/// Placeholders in a coflow's name.
const PLACES: [&str; 3] = ["{remote_host}", "{remote_port}", "{local_host}"];
/// Bytes reserved for the values of the placeholders: two IPv6 addresses and a port.
const FILLED_BYTES_MAX: usize = 83;

/// The rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    remote: Option<toml::Spanned<Net>>,
    remote_port: Option<Ports>,
    local_port: Option<Ports>,
    coflow: toml::Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Rule>,
}

/// A port, or a range of ports that includes both ends: `7400`, `"7400-7415"`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "PortsText")]
struct Ports {
    first: u16,
    last: u16,
}

/// Ports in the form of the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum PortsText {
    One(i64),
    Range(String),
}

impl TryFrom<PortsText> for Ports {
    type Error = String;
    fn try_from(text: PortsText) -> Result<Self, String> {
        let (first, last) = match &text {
            PortsText::One(port) => (port.to_string(), port.to_string()),
            PortsText::Range(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                (first.trim().to_owned(), last.trim().to_owned())
            }
        };
        let bad = || {
            let text = if first == last { first.clone() } else { format!("{first}-{last}") };
            format!("`{text}`: write a port from 1 to 65535, or a range as in \"7400-7415\"")
        };
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad);
        let ports = Self { first: port(&first)?, last: port(&last)? };
        if ports.first <= ports.last { Ok(ports) } else { Err(bad()) }
    }
}

impl Ports {
    const fn has(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// A range of addresses with a common prefix.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Net {
    address: IpAddr,
    length: u8,
}

impl FromStr for Net {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}`: write an address, or a network as in 10.0.0.0/8");
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(most), str::parse).map_err(|_| bad())?;
        if length > most {
            return Err(format!("`{text}`: at most {most} bits"));
        }
        let network = network(address, length);
        if network != address {
            return Err(format!(
                "`{text}`: an address in a network: write {network}/{length}, or {address} alone"
            ));
        }
        Ok(Self { address, length })
    }
}

impl<'de> Deserialize<'de> for Net {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Net {
    fn has(self, ip: IpAddr) -> bool {
        self.address.is_ipv4() == ip.is_ipv4() && network(ip, self.length) == self.address
    }
}

/// Masks an address to its first `length` bits. `length` is at most the number of the address's
/// bits.
fn network(address: IpAddr, length: u8) -> IpAddr {
    let left = |all: u32| all - u32::from(length);
    match address {
        IpAddr::V4(ip) => {
            Ipv4Addr::from_bits(ip.to_bits() & u32::MAX.checked_shl(left(32)).unwrap_or(0)).into()
        }
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() & u128::MAX.checked_shl(left(128)).unwrap_or(0)).into()
        }
    }
}

/// Error in a rules file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RulesError {
    /// The file is larger than [`FILE_BYTES_MAX`].
    TooLarge {
        /// Size of the file.
        bytes: usize,
    },
    /// The file has more than [`RULES_MAX`] rules.
    TooMany {
        /// Number of rules.
        rules: usize,
    },
    /// Any other error.
    Wrong {
        /// Line, from 1.
        line: usize,
        /// Reason, in one line.
        reason: String,
    },
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes } => write!(f, "{bytes} bytes of rules: at most {FILE_BYTES_MAX}"),
            Self::TooMany { rules } => write!(f, "{rules} rules: at most {RULES_MAX}"),
            Self::Wrong { line, reason } => write!(f, "line {line}: {reason}"),
        }
    }
}

impl std::error::Error for RulesError {}

impl FromStr for Rules {
    type Err = RulesError;
    fn from_str(text: &str) -> Result<Self, RulesError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(RulesError::TooLarge { bytes: text.len() });
        }
        let line = |at: usize| 1 + text.get(..at).map_or(0, |before| before.matches('\n').count());
        let file: File = toml::from_str(text).map_err(|error| RulesError::Wrong {
            line: error.span().map_or(1, |span| line(span.start)),
            reason: error.message().lines().collect::<Vec<_>>().join(" "),
        })?;
        if file.rule.len() > RULES_MAX {
            return Err(RulesError::TooMany { rules: file.rule.len() });
        }
        for rule in &file.rule {
            let text = rule.coflow.get_ref();
            let wrong = |reason: String| RulesError::Wrong {
                line: line(rule.coflow.span().start),
                reason: format!("coflow {text:?}: {reason}"),
            };
            let plain = PLACES.iter().fold(text.clone(), |text, place| text.replace(place, ""));
            if plain.contains(['{', '}']) {
                let places = "{remote_host}, {remote_port} and {local_host}";
                return Err(wrong(format!("only {places} are filled in")));
            }
            let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic());
            let (most, besides) = if plain == *text {
                (NAME_MAX, "")
            } else {
                (NAME_MAX - FILLED_BYTES_MAX, ", besides the parts that are filled in")
            };
            if text.is_empty() || !is_name(&plain) || plain.len() > most {
                let reason = format!("must be 1 to {most} printable characters without blanks{besides}");
                return Err(wrong(reason));
            }
        }
        Ok(Self(file.rule))
    }
}

impl Rules {
    /// Returns true if there is no rule.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a rule may match connections with this listening port at either end. A rule
    /// by address alone may match any port.
    pub fn covers_port(&self, port: u16) -> bool {
        self.0.iter().any(|rule| {
            let mut ports = [rule.local_port, rule.remote_port].into_iter().flatten().peekable();
            ports.peek().is_none() || ports.any(|ports| ports.has(port))
        })
    }

    /// Returns the name of a flow's coflow by the first matching rule. `None` if no rule matches,
    /// or if the name is too long.
    pub fn coflow(&self, flow: FlowKey) -> Option<String> {
        let FlowKey { local, remote } = flow;
        let fits = |rule: &&Rule| {
            rule.remote.as_ref().is_none_or(|net| net.get_ref().has(remote.ip()))
                && rule.remote_port.is_none_or(|ports| ports.has(remote.port()))
                && rule.local_port.is_none_or(|ports| ports.has(local.port()))
        };
        let rule = self.0.iter().find(fits)?;
        let values = [remote.ip().to_string(), remote.port().to_string(), local.ip().to_string()];
        let fill = |text: String, (place, value): (&&str, &String)| text.replace(place, value);
        let name = PLACES.iter().zip(&values).fold(rule.coflow.get_ref().clone(), fill);
        // A repeated placeholder may make the name too long.
        (name.len() <= NAME_MAX).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(local: &str, remote: &str) -> FlowKey {
        FlowKey { local: local.parse().expect("an address"), remote: remote.parse().expect("an address") }
    }

    #[test]
    fn first_matching_rule_names_the_coflow() {
        let rules: Rules =
            "[[rule]]\nremote = '10.1.0.0/16'\nremote_port = 7000\ncoflow = 'shuffle-{remote_host}'\n\
            [[rule]]\nremote = 'fd00::/8'\ncoflow = '{local_host}>{remote_host}:{remote_port}'\n\
            [[rule]]\nlocal_port = 50\ncoflow = 'fifty'\n"
                .parse()
                .expect("good rules");
        let name = |local, remote| rules.coflow(flow(local, remote));
        assert_eq!(name("10.0.0.1:5", "10.1.2.3:7000").as_deref(), Some("shuffle-10.1.2.3"));
        assert_eq!(name("10.0.0.1:5", "10.1.2.3:7001"), None);
        assert_eq!(name("10.0.0.1:50", "10.1.2.3:7001").as_deref(), Some("fifty"));
        assert_eq!(name("10.0.0.1:5", "10.2.2.3:7000"), None);
        assert_eq!(name("[fd01::1]:5", "[fd02::2]:9").as_deref(), Some("fd01::1>fd02::2:9"));
        let all: Rules = "[[rule]]\nremote='0.0.0.0/0'\ncoflow='all'".parse().expect("good rules");
        assert_eq!(all.coflow(flow("1.2.3.4:1", "5.6.7.8:1")).as_deref(), Some("all"));
        assert_eq!(all.coflow(flow("[::2]:1", "[::3]:1")), None);
    }

    /// #52: the documented rules for Spark named two ports, and the driver used the first port.
    #[test]
    fn port_range_includes_both_ends() {
        let text = "[[rule]]\nlocal_port = '7400-7415'\ncoflow = 'etl'\n\
            [[rule]]\nremote_port = ' 80 - 80 '\nlocal_port = \"90\"\ncoflow = 'one'";
        let rules: Rules = text.parse().expect("good rules");
        let name = |local: &str, remote| rules.coflow(flow(local, remote));
        for (port, is_in) in [(7399, false), (7400, true), (7407, true), (7415, true), (7416, false)] {
            assert_eq!(name(&format!("10.0.0.1:{port}"), "10.0.0.2:9").is_some(), is_in, "{port}");
        }
        assert_eq!(name("10.0.0.1:90", "10.0.0.2:80").as_deref(), Some("one"));
        assert_eq!(name("10.0.0.1:90", "10.0.0.2:81"), None);
    }

    #[test]
    fn rule_covers_its_port_at_either_end() {
        let rules: Rules =
            "[[rule]]\nlocal_port = '7400-7415'\ncoflow = 'a'\n[[rule]]\nremote_port = 80\ncoflow = 'b'"
                .parse()
                .expect("good rules");
        let covered = [80, 81, 7399, 7400, 7415, 7416].map(|port| rules.covers_port(port));
        assert_eq!(covered, [true, false, false, true, true, false]);
        let by_address: Rules = "[[rule]]\nremote = '10.0.0.0/8'\ncoflow = 'a'".parse().expect("good rules");
        assert!(by_address.covers_port(22) && !Rules::default().covers_port(22));
    }

    #[test]
    fn errors_are_one_line_with_a_line_number() {
        for (text, line, says) in [
            ("[[rule]]\ncoflow = 'a'\nport = 1", 3, "unknown field"),
            ("\n[[rule]]\nremote = '10.0.0.0/33'\ncoflow = 'a'", 3, "at most 32 bits"),
            ("[[rule]]\nremote = '10.1.2.3/8'\ncoflow = 'a'", 2, "write 10.0.0.0/8, or 10.1.2.3 alone"),
            ("[[rule]]\nremote = '1.2.3.4/0'\ncoflow = 'a'", 2, "write 0.0.0.0/0"),
            ("[[rule]]\nremote = 'fd00::1/8'\ncoflow = 'a'", 2, "write fd00::/8"),
            ("[[rule]]\nremote = 'localhost'\ncoflow = 'a'", 2, "write an address"),
            ("[[rule]]\nremote_port = 70000\ncoflow = 'a'", 2, "`70000`: write a port"),
            ("[[rule]]\nremote_port = 0\ncoflow = 'a'", 2, "`0`: write a port"),
            ("[[rule]]\nlocal_port = '7415-7400'\ncoflow = 'a'", 2, "`7415-7400`: write a port"),
            ("[[rule]]\nlocal_port = '7400-'\ncoflow = 'a'", 2, "as in \"7400-7415\""),
            ("[[rule]]\n\ncoflow = 'a b'", 3, "printable"),
            ("[[rule]]\ncoflow = '{host}'", 2, "only {remote_host}"),
            ("[[rule]]\nremote_port = 1", 1, "missing field `coflow`"),
            ("rule = 1", 1, "invalid type"),
            ("[[rule]", 1, ""),
        ] {
            let error = text.parse::<Rules>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("line {line}: ")) && error.contains(says), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        for (place, most) in [("", 128), ("{remote_port}", 45)] {
            let rule =
                |length| format!("[[rule]]\ncoflow = '{place}{}'", "a".repeat(length)).parse::<Rules>();
            assert!(rule(most).is_ok());
            let error = rule(most + 1).expect_err("too long").to_string();
            assert!(error.contains(&format!("1 to {most} printable")), "{error}");
        }
        let rule = "[[rule]]\ncoflow = 'a'\n";
        assert!(rule.repeat(RULES_MAX).parse::<Rules>().is_ok());
        let error = rule.repeat(RULES_MAX + 1).parse::<Rules>();
        assert_eq!(error, Err(RulesError::TooMany { rules: RULES_MAX + 1 }));
        assert!(matches!("#".repeat(FILE_BYTES_MAX + 1).parse::<Rules>(), Err(RulesError::TooLarge { .. })));
    }

    proptest! {
        #[test]
        fn parser_never_panics_and_names_are_valid(text in "(\\[\\[rule\\]\\]\n|coflow = '[a-z{}_]{0,12}'\n|remote = '[0-9./]{1,9}'\n|.){0,6}") {
            let rules: Rules = text.parse().unwrap_or_default();
            if let Some(name) = rules.coflow(flow("10.0.0.1:5", "10.1.2.3:7000")) {
                prop_assert!(crate::coordinator::check_name(&name).is_ok());
            }
        }
    }
}
