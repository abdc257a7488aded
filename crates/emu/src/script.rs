//! Changes to a running network in text form: `2s link 3-4 down`.
//!
//! Leaves out: applying a change at its time, which the emulating program does. Read [`Change`]
//! first.

use crate::{EmuError, Emulation, LinkState};
use anabranch_graph::{Topology, TopologyError};
use anabranch_units::{BitRate, Duration, LOSS_BURST_MAX, LinkId, ParseQuantityError};
use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// A share of lost packets, and the length of loss bursts: `1%`, `1000ppm`, `1% burst 8`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Parts per million, at most a million.
    pub ppm: u32,
    /// Mean number of packets in a burst of losses, 1 to [`LOSS_BURST_MAX`]; unchanged if the text
    /// does not state it.
    pub burst: Option<u32>,
}

/// Reason why a text is not a change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChangeError {
    /// The words do not have the form of a change.
    Shape,
    /// The time or rate is invalid.
    Quantity(ParseQuantityError),
    /// The share of packets is invalid, or above 100 %.
    Loss(String),
    /// The length of bursts is invalid or out of range.
    Burst(String),
    /// The rate is zero, so the link would carry no packets.
    NoRate(BitRate),
    /// No link has this name.
    Link(TopologyError),
}

impl Display for ChangeError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shape => {
                f.write_str("write it as `TIME link A-B up|down|rate R|delay T|loss P|loss P burst N`")
            }
            Self::Quantity(error) => error.fmt(f),
            Self::Loss(text) => write!(f, "`{text}`: write it as `0.1%` or `1000ppm`, at most 100%"),
            Self::Burst(text) => {
                write!(f, "burst `{text}`: write it as `burst 8`, whole packets from 1 to {LOSS_BURST_MAX}")
            }
            Self::NoRate(rate) => {
                write!(f, "rate {rate}: must be at least 1 bit/s (a link that is `down` carries nothing)")
            }
            Self::Link(error) => {
                write!(f, "{error} (A-B means both directions, A>B one, `all` every link)")
            }
        }
    }
}
impl std::error::Error for ChangeError {}

impl From<ParseQuantityError> for ChangeError {
    fn from(error: ParseQuantityError) -> Self {
        Self::Quantity(error)
    }
}

impl FromStr for Loss {
    type Err = ChangeError;
    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let (share, burst) =
            text.split_once("burst").map_or((text, None), |(share, burst)| (share, Some(burst)));
        let burst = burst.map(|burst| {
            let burst = burst.trim();
            let packets = burst.parse().ok().filter(|packets| (1..=LOSS_BURST_MAX).contains(packets));
            packets.ok_or_else(|| ChangeError::Burst(burst.to_owned()))
        });
        let burst = burst.transpose()?;
        let wrong = || ChangeError::Loss(text.to_owned());
        let (number, factor) = match (share.trim().strip_suffix('%'), share.trim().strip_suffix("ppm")) {
            (Some(number), _) => (number, 1e4),
            (None, Some(number)) => (number, 1.0),
            (None, None) => return Err(wrong()),
        };
        let ppm = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
        if (0.0..=1e6).contains(&ppm) { Ok(Self { ppm: ppm.round() as u32, burst }) } else { Err(wrong()) }
    }
}

/// Change of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum LinkSetting {
    Up(bool),
    Rate(BitRate),
    Delay(Duration),
    Loss(Loss),
}

/// A change of one or more links at a time after the start of the command.
#[derive(Clone, Debug)]
pub struct Change {
    /// Time of the change, counted from the start of the command.
    pub at: Duration,
    links: Vec<LinkId>,
    to: LinkSetting,
    text: String,
}

impl Display for Change {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Change {
    /// Parses `TIME link LINK CHANGE`.
    ///
    /// Errors: the wrong word, and the expected form.
    pub fn parse(text: &str, topology: &Topology) -> Result<Self, ChangeError> {
        let (at, rest) = text.split_once(" link ").ok_or(ChangeError::Shape)?;
        let (name, to) = if let Some(name) = rest.strip_suffix(" up") {
            (name, LinkSetting::Up(true))
        } else if let Some(name) = rest.strip_suffix(" down") {
            (name, LinkSetting::Up(false))
        } else if let Some((name, rate)) = rest.rsplit_once(" rate ") {
            let rate: BitRate = rate.parse()?;
            if rate.as_bps() == 0 {
                return Err(ChangeError::NoRate(rate));
            }
            (name, LinkSetting::Rate(rate))
        } else if let Some((name, delay)) = rest.rsplit_once(" delay ") {
            (name, LinkSetting::Delay(delay.parse()?))
        } else if let Some((name, loss)) = rest.rsplit_once(" loss ") {
            (name, LinkSetting::Loss(loss.parse()?))
        } else {
            return Err(ChangeError::Shape);
        };
        Ok(Self { at: at.parse()?, links: links(name.trim(), topology)?, to, text: text.to_owned() })
    }

    /// Applies the change now.
    ///
    /// Errors: a value out of range for a link; an emulation that has ended.
    pub fn apply(&self, emulation: &Emulation) -> Result<(), EmuError> {
        for link in &self.links {
            let was = emulation.link_state(*link)?;
            let state = match self.to {
                LinkSetting::Up(up) => LinkState { up, ..was },
                LinkSetting::Rate(rate) => LinkState { rate, ..was },
                LinkSetting::Delay(delay) => LinkState { delay, ..was },
                LinkSetting::Loss(Loss { ppm, burst }) => {
                    LinkState { loss_ppm: ppm, loss_burst: burst.unwrap_or(was.loss_burst), ..was }
                }
            };
            emulation.set_link(*link, state)?;
        }
        Ok(())
    }
}

/// The links named by `A-B` (both directions), `A>B` (one direction) or `all`.
fn links(name: &str, topology: &Topology) -> Result<Vec<LinkId>, ChangeError> {
    if name == "all" {
        return Ok(topology.link_ids().collect());
    }
    topology.find_links(name, true).map_err(ChangeError::Link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_graph::file::{Defaults, load};

    fn internet2() -> Topology {
        load("internet2", &Defaults::new(BitRate::mbps(10)), |p| std::fs::read_to_string(p))
            .expect("it is built in")
    }

    #[test]
    fn loss_share_parses_as_percent_or_ppm() {
        let read = |t: &str| t.parse::<Loss>().map(|l| l.ppm);
        assert_eq!(
            (read("0.1%"), read("1 %"), read("1000ppm"), read("100%")),
            (Ok(1000), Ok(10_000), Ok(1000), Ok(1_000_000))
        );
        for wrong in ["0.1", "101%", "-1%", "%", "1000001ppm", "x%", "NaN%"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn loss_burst_is_optional_and_checked() {
        let read = |t: &str| t.parse::<Loss>();
        assert_eq!(read("1% burst 8"), Ok(Loss { ppm: 10_000, burst: Some(8) }));
        assert_eq!(read(" 5ppm burst  1000000 "), Ok(Loss { ppm: 5, burst: Some(1_000_000) }));
        assert_eq!(read("1%"), Ok(Loss { ppm: 10_000, burst: None }));
        for (wrong, burst) in [
            ("1% burst 0", "0"),
            ("1% burst 1000001", "1000001"),
            ("1% burst 2.5", "2.5"),
            ("1% burst", ""),
            ("1% burst 2 burst 3", "2 burst 3"),
        ] {
            assert_eq!(read(wrong), Err(ChangeError::Burst(burst.to_owned())), "{wrong}");
        }
        assert_eq!(read("burst 8"), Err(ChangeError::Loss("burst 8".to_owned())));
    }

    #[test]
    fn change_selects_one_direction_both_or_every_link() {
        let topology = internet2();
        let count =
            |t: &str| Change::parse(t, &topology).map(|c| (c.at, c.links.len(), c.to)).expect("well formed");
        assert_eq!(count("2s link 0-1 down"), (Duration::from_secs(2), 2, LinkSetting::Up(false)));
        assert_eq!(count("2 s link seattle>los-angeles up").1, 1);
        assert_eq!(
            count("2 s link salt-lake-city-kansas-city rate 5Mbit/s"),
            (Duration::from_secs(2), 2, LinkSetting::Rate(BitRate::mbps(5)))
        );
        assert_eq!(count("100ms link all delay 5 ms").1, 26);
        assert_eq!(count("0s link all loss 1%").2, LinkSetting::Loss(Loss { ppm: 10_000, burst: None }));
        let bursts = LinkSetting::Loss(Loss { ppm: 10_000, burst: Some(8) });
        assert_eq!(count("0s link 0-1 loss 1% burst 8").2, bursts);
    }

    #[test]
    fn invalid_change_is_refused_with_the_reason() {
        let topology = internet2();
        for (text, expected) in [
            ("2 link 0-1 down", "write `2 s`"),
            ("2s 0-1 down", "write it as"),
            ("2s link 0-8 down", "no link `0-8`"),
            ("2s link seattle-los-angles down", "did you mean `seattle-los-angeles`?"),
            ("2s link 0-1 sideways", "write it as"),
            ("2s link 0-1 rate 0 bit/s", "at least 1 bit/s"),
            ("2s link 0-1 loss 7", "0.1%"),
        ] {
            let error = Change::parse(text, &topology).expect_err("wrong").to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
