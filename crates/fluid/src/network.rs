//! Links and the flows on them.

use anabranch_units::{BitRate, ByteCount, Instant};
use std::fmt;

/// A link of a network, by index.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A flow of a run, by index.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// A coflow of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoflowId(pub u32);

/// Directed links, each with its rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    rates: Vec<BitRate>,
}

/// Why a network is invalid.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkError {
    /// A link with rate 0.
    NoRate(LinkId),
    /// More links than there are names.
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
    /// Links with these rates, named by index.
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

    /// A non-blocking switch with `ports` ports: the links into the switch come first, then those
    /// out of it.
    ///
    /// Errors: see [`NetworkError`].
    pub fn big_switch(ports: u32, rate: BitRate) -> Result<Self, NetworkError> {
        Self::new(vec![rate; 2 * ports as usize])
    }
    /// The route between two ports of a [`Network::big_switch`].
    pub const fn through_switch(ports: u32, from: u32, to: u32) -> [LinkId; 2] {
        [LinkId(from), LinkId(ports + to)]
    }

    /// Adds a link.
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
    /// Sets a link's rate.
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

    /// Number of links.
    pub const fn links(&self) -> usize {
        self.rates.len()
    }
    /// A link's rate.
    ///
    /// Panics: if the link does not exist.
    pub fn rate(&self, link: LinkId) -> BitRate {
        self.rates[link.0 as usize]
    }
}

/// A volume on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The coflow.
    pub coflow: CoflowId,
    /// The links of the route, each once.
    pub route: Box<[LinkId]>,
    /// Initial volume.
    pub volume: ByteCount,
    /// Arrival.
    pub arrives: Instant,
    /// Times of later growth, and the added volumes; the flow is complete with the last.
    pub grows: Box<[(Instant, ByteCount)]>,
}
