//! Networks, links and flows.

use anabranch_units::{BitRate, ByteCount, Instant};
use std::fmt;

/// Index of a link of a network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Index of a flow of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// Id of a coflow of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoflowId(pub u32);

/// A network of directed links, each with a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    rates: Vec<BitRate>,
}

/// Reason why a network is invalid.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkError {
    /// A link has rate 0.
    NoRate(LinkId),
    /// There are more links than ids.
    TooManyLinks(usize),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRate(link) => write!(f, "link {} has 0 b/s: must have at least 1 b/s", link.0),
            Self::TooManyLinks(links) => write!(f, "{links} links: at most {}", u32::MAX),
        }
    }
}
impl std::error::Error for NetworkError {}

impl Network {
    /// Creates a network whose links have these rates. The id of a link is its index.
    ///
    /// Errors: see [`NetworkError`].
    pub fn new(rates: Vec<BitRate>) -> Result<Self, NetworkError> {
        if u32::try_from(rates.len()).is_err() {
            return Err(NetworkError::TooManyLinks(rates.len()));
        }
        match rates.iter().position(|rate| rate.as_bps() == 0) {
            Some(link) => Err(NetworkError::NoRate(LinkId(link as u32))),
            None => Ok(Self { rates }),
        }
    }

    /// Creates a non-blocking switch with `ports` ports. The first `ports` links go into the
    /// switch, the following `ports` links out of it.
    ///
    /// Errors: see [`NetworkError`].
    pub fn big_switch(ports: u32, rate: BitRate) -> Result<Self, NetworkError> {
        Self::new(vec![rate; 2 * ports as usize])
    }
    /// Returns the route from one port of a [`Network::big_switch`] to another port.
    pub const fn through_switch(ports: u32, from: u32, to: u32) -> [LinkId; 2] {
        [LinkId(from), LinkId(ports + to)]
    }

    /// Adds a link, and returns its id.
    ///
    /// Errors: see [`NetworkError`].
    pub fn push(&mut self, rate: BitRate) -> Result<LinkId, NetworkError> {
        let id = u32::try_from(self.rates.len()).ok().filter(|id| *id < u32::MAX);
        let id = LinkId(id.ok_or(NetworkError::TooManyLinks(self.rates.len()))?);
        if rate.as_bps() == 0 {
            return Err(NetworkError::NoRate(id));
        }
        self.rates.push(rate);
        Ok(id)
    }
    /// Sets the rate of a link.
    ///
    /// Errors: [`NetworkError::NoRate`].
    /// Panics: if the link does not exist.
    pub fn set_rate(&mut self, link: LinkId, rate: BitRate) -> Result<(), NetworkError> {
        if rate.as_bps() == 0 {
            return Err(NetworkError::NoRate(link));
        }
        self.rates[link.0 as usize] = rate;
        Ok(())
    }

    /// Returns the number of links.
    pub const fn links(&self) -> usize {
        self.rates.len()
    }
    /// Returns the rate of a link.
    ///
    /// Panics: if the link does not exist.
    pub fn rate(&self, link: LinkId) -> BitRate {
        self.rates[link.0 as usize]
    }
}

/// A flow: a volume to be moved along a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Coflow of the flow.
    pub coflow: CoflowId,
    /// Links of the route, each link once.
    pub route: Box<[LinkId]>,
    /// Initial volume.
    pub volume: ByteCount,
    /// Time of arrival.
    pub arrives: Instant,
    /// Times at which the volume grows, and the added bytes. The flow completes after the last
    /// added volume.
    pub grows: Box<[(Instant, ByteCount)]>,
}
