//! Requests to the planner, and errors of requests that cannot be planned.

use anabranch_graph::{Adjacency, Topology, max_flow};
use anabranch_units::{BitRate, LinkId, Seed, SiteId};

/// One transfer to plan.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The network.
    pub topology: &'a Topology,
    /// The site that holds the file.
    pub source: SiteId,
    /// The destinations, each once.
    pub destinations: Vec<SiteId>,
    /// Sites that no flow may pass through.
    pub avoid_sites: Vec<SiteId>,
    /// Links that no flow may use.
    pub avoid_links: Vec<LinkId>,
    /// The remaining capacity of each link, by link id; `None` is the whole capacity. A link
    /// without remaining capacity is not used. Values may exceed the topology's.
    pub capacities: Option<Vec<BitRate>>,
    /// The options of the planner.
    pub options: Options,
}

impl<'a> Request<'a> {
    /// A request that avoids nothing and may use the whole capacity of every link.
    pub fn new(topology: &'a Topology, source: SiteId, destinations: impl Into<Vec<SiteId>>) -> Self {
        Self {
            topology,
            source,
            destinations: destinations.into(),
            avoid_sites: Vec::new(),
            avoid_links: Vec::new(),
            capacities: None,
            options: Options::default(),
        }
    }
}

/// Options of the planner.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Measure of a path's length, for the path and tree schemes.
    pub length: Length,
    /// Layout of the paths of the coded scheme.
    pub layout: Layout,
    /// Maximum number of streams of a coded group, 1 to 64.
    pub coded_streams_max: u16,
    /// Maximum number of equal streams of a routed group, 1 to 64: the denominator of fractions of
    /// a capacity. If equal streams lose rate, streams of unequal rates replace them, at most
    /// [`STREAMS_MAX`].
    pub routed_streams_max: u16,
    /// Seed for the coefficients of a code with cycles.
    pub seed: Seed,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            length: Length::Hops,
            layout: Layout::Shared,
            coded_streams_max: 16,
            routed_streams_max: 24,
            seed: Seed::new(0),
        }
    }
}

/// Measure of a path's length.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Length {
    /// All links have the same length.
    Hops,
    /// A link's length is its propagation delay.
    Delay,
    /// A link's length is its cost, rounded to a millionth of the largest cost.
    Cost,
}

/// Layout of the paths of the coded scheme.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Destinations share links and avoid cycles where possible: few flows, little coding.
    Shared,
    /// Each destination's paths are the shortest disjoint ones, whatever the paths of other
    /// destinations, as in the paper: more flows, more coding, and cycles.
    Independent,
    /// Each destination's paths are random: only useful to try codes with cycles in tests and
    /// surveys.
    Scattered,
}

/// Maximum number of destinations of a transfer: the code exists only if the field has more
/// elements.
pub const DESTINATIONS_MAX: usize = 200;
/// Maximum of the options for the number of streams.
pub const STREAMS_MAX: u16 = 64;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// The topology has no such site.
    UnknownSite {
        /// The requested site.
        site: SiteId,
        /// Number of sites.
        sites: usize,
    },
    /// The topology has no such link.
    UnknownLink {
        /// The requested link.
        link: LinkId,
        /// Number of links.
        links: usize,
    },
    /// The request has no destination.
    NoDestinations,
    /// More destinations than a code can serve.
    TooManyDestinations {
        /// Number of destinations.
        count: usize,
    },
    /// A destination is the source.
    SourceIsDestination(String),
    /// A destination occurs twice.
    DuplicateDestination(String),
    /// The source or a destination is among the sites to be avoided.
    AvoidedEnd(String),
    /// The number of remaining capacities differs from the number of links.
    CapacityCount {
        /// Number of links of the topology.
        need: usize,
        /// Number of given capacities.
        got: usize,
    },
    /// An option is out of range.
    BadOption {
        /// Name of the option.
        name: &'static str,
        /// Value of the option.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// The topology has no path from the source to a destination.
    Unreachable {
        /// The source.
        source: String,
        /// The destination.
        destination: String,
    },
    /// Every path uses sites or links to be avoided, or links without capacity.
    NothingLeft {
        /// The source.
        source: String,
        /// The destination.
        destination: String,
    },
    /// Flows that share a link would get less than 1 bit/s each.
    TooNarrow,
    /// Transfers to be planned together are on different networks.
    DifferentTopologies,
    /// No decodable code with cycles was found.
    NoCode {
        /// Number of tried draws of coefficients.
        tries: u32,
    },
    /// The linear program was not solved.
    Solver(String),
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownSite { site, sites } => {
                write!(
                    f,
                    "no site {site} in this topology: sites count from 0 to {}",
                    sites.saturating_sub(1)
                )
            }
            Self::UnknownLink { link, links } => {
                write!(
                    f,
                    "no link {link} in this topology: links count from 0 to {}",
                    links.saturating_sub(1)
                )
            }
            Self::NoDestinations => write!(f, "no destination: name at least one site that wants the file"),
            Self::TooManyDestinations { count } => {
                write!(f, "{count} destinations: at most {DESTINATIONS_MAX} in one transfer, split it")
            }
            Self::SourceIsDestination(site) => {
                write!(f, "site `{site}` is source and destination: leave it out of the destinations")
            }
            Self::DuplicateDestination(site) => write!(f, "destination `{site}` appears twice: name it once"),
            Self::AvoidedEnd(site) => {
                write!(f, "site `{site}` is to be avoided, but the transfer begins or ends there")
            }
            Self::CapacityCount { need, got } => {
                write!(f, "{got} capacities left for {need} links: give one for each link")
            }
            Self::BadOption { name, value, min, max } => write!(f, "{name} {value}: must be {min} to {max}"),
            Self::Unreachable { source, destination } => {
                write!(
                    f,
                    "no path from `{source}` to `{destination}` in this topology: add a link or drop the destination"
                )
            }
            Self::NothingLeft { source, destination } => write!(
                f,
                "no path from `{source}` to `{destination}` is left: every one is avoided or has no capacity left"
            ),
            Self::TooNarrow => {
                write!(
                    f,
                    "flows that share a link would get less than 1 bit/s each: give the link more capacity or avoid it"
                )
            }
            Self::DifferentTopologies => {
                write!(
                    f,
                    "transfers planned together are on different topologies: plan those of each on their own"
                )
            }
            Self::NoCode { tries } => {
                write!(f, "no code found in {tries} draws: plan with another seed or an uncoded scheme")
            }
            Self::Solver(why) => write!(f, "linear program not solved: {why}"),
        }
    }
}
impl std::error::Error for PlanError {}

/// A checked request, with the data that every scheme needs.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub adjacency: Adjacency,
    /// Bits per second by link; 0 for links that no useful flow can use.
    pub capacities: Vec<u64>,
    /// Length of each link, by link, for the path and tree schemes; at least 1.
    pub lengths: Vec<u64>,
    pub source: SiteId,
    /// The destinations, ascending.
    pub destinations: Vec<SiteId>,
    /// Min-cut to each destination, bits per second.
    pub cuts: Vec<u64>,
    pub options: Options,
}

impl Problem {
    pub fn new(request: &Request<'_>) -> Result<Self, PlanError> {
        let topology = request.topology;
        let name = |s: SiteId| topology.site(s).name.clone();
        let ends = request.destinations.iter().chain([&request.source]);
        for site in ends.clone().chain(&request.avoid_sites) {
            if site.index() >= topology.sites().len() {
                return Err(PlanError::UnknownSite { site: *site, sites: topology.sites().len() });
            }
        }
        for link in &request.avoid_links {
            if link.index() >= topology.links().len() {
                return Err(PlanError::UnknownLink { link: *link, links: topology.links().len() });
            }
        }
        if request.destinations.is_empty() {
            return Err(PlanError::NoDestinations);
        }
        if request.destinations.len() > DESTINATIONS_MAX {
            return Err(PlanError::TooManyDestinations { count: request.destinations.len() });
        }
        if request.destinations.contains(&request.source) {
            return Err(PlanError::SourceIsDestination(name(request.source)));
        }
        let mut destinations = request.destinations.clone();
        destinations.sort_unstable();
        if let Some(pair) = destinations.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlanError::DuplicateDestination(name(pair[0])));
        }
        if let Some(end) = ends.clone().find(|s| request.avoid_sites.contains(s)) {
            return Err(PlanError::AvoidedEnd(name(*end)));
        }
        for (option, value) in [
            ("coded_streams_max", request.options.coded_streams_max),
            ("routed_streams_max", request.options.routed_streams_max),
        ] {
            if !(1..=STREAMS_MAX).contains(&value) {
                let (min, max) = (1, STREAMS_MAX.into());
                return Err(PlanError::BadOption { name: option, value: value.into(), min, max });
            }
        }
        let mut capacities: Vec<u64> = match &request.capacities {
            None => topology.links().iter().map(|l| l.properties.capacity.as_bps()).collect(),
            Some(left) if left.len() == topology.links().len() => left.iter().map(|c| c.as_bps()).collect(),
            Some(left) => {
                return Err(PlanError::CapacityCount { need: topology.links().len(), got: left.len() });
            }
        };
        for (link, capacity) in topology.links().iter().zip(&mut capacities) {
            if [link.from, link.to].iter().any(|s| request.avoid_sites.contains(s))
                || link.to == request.source
            {
                *capacity = 0;
            }
        }
        request.avoid_links.iter().for_each(|l| capacities[l.index()] = 0);
        let adjacency = Adjacency::new(topology);
        keep_useful(&adjacency, &mut capacities, request.source, &destinations);
        let mut cuts = Vec::new();
        for destination in &destinations {
            let cut = max_flow(&adjacency, &capacities, request.source, *destination, u64::MAX).value;
            if cut == 0 {
                let anything = vec![1; adjacency.links()];
                let (source, to) = (name(request.source), name(*destination));
                let possible = max_flow(&adjacency, &anything, request.source, *destination, 1).value > 0;
                return Err(if possible {
                    PlanError::NothingLeft { source, destination: to }
                } else {
                    PlanError::Unreachable { source, destination: to }
                });
            }
            cuts.push(cut);
        }
        let cost_max = topology.links().iter().map(|l| l.properties.cost).fold(0.0, f64::max);
        let lengths = topology.links().iter().map(|l| match request.options.length {
            Length::Hops => 1,
            Length::Delay => l.properties.delay.as_ps() / 1_000 + 1,
            Length::Cost if cost_max > 0.0 => (l.properties.cost / cost_max * 1e6) as u64 + 1,
            Length::Cost => 1,
        });
        let lengths = lengths.collect();
        Ok(Self {
            adjacency,
            capacities,
            lengths,
            source: request.source,
            destinations,
            cuts,
            options: request.options,
        })
    }

    /// The smallest min-cut, bits per second.
    pub fn bound(&self) -> u64 {
        self.cuts.iter().copied().min().expect("a problem has destinations")
    }
}

/// Sets the capacity to 0 of links that are on no path from the source to a destination.
fn keep_useful(adjacency: &Adjacency, capacities: &mut [u64], source: SiteId, destinations: &[SiteId]) {
    let mut from_source = vec![false; adjacency.sites()];
    from_source[source.index()] = true;
    let mut open = vec![source];
    while let Some(site) = open.pop() {
        for link in adjacency.links_out(site).iter().filter(|l| capacities[l.index()] > 0) {
            if !std::mem::replace(&mut from_source[adjacency.to(*link).index()], true) {
                open.push(adjacency.to(*link));
            }
        }
    }
    let mut to_destination = vec![false; adjacency.sites()];
    destinations.iter().for_each(|d| to_destination[d.index()] = true);
    let mut open = destinations.to_vec();
    while let Some(site) = open.pop() {
        for link in adjacency.links_in(site).iter().filter(|l| capacities[l.index()] > 0) {
            if !std::mem::replace(&mut to_destination[adjacency.from(*link).index()], true) {
                open.push(adjacency.from(*link));
            }
        }
    }
    for link in adjacency.link_ids() {
        if !from_source[adjacency.from(link).index()] || !to_destination[adjacency.to(link).index()] {
            capacities[link.index()] = 0;
        }
    }
}
