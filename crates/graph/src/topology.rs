//! The network model: sites and directed links (CodedBulk section 2.1).
//!
//! Networks are built with [`Topology::add_site`], [`Topology::add_switch`], [`Topology::add_link`]
//! and [`Topology::add_cable`], which refuse invalid networks. A link is called `A-B`, after its
//! ends ([`Topology::find_link`]). Leaves out: sources of topologies (built-in topologies, data
//! centres and files are in other modules).

use anabranch_units::text::{known, printable};
use anabranch_units::{BitRate, ByteCount, Duration, LinkId, SiteId, loss_ppm_max};
use std::collections::BTreeMap;

/// A network of sites joined by directed links.
///
/// Invariants: site names are unique, and valid as the name of a file or folder
/// ([`check_site_name`]); a link connects two different, existing sites and has a capacity of at
/// least 1 bit/s. Ids are indices into [`Topology::sites`] and [`Topology::links`].
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    name: String,
    sites: Vec<Site>,
    links: Vec<Link>,
    by_name: BTreeMap<String, SiteId>,
    /// Sum of the capacities of all links when they were added.
    capacity_sum: BitRate,
}

/// A site: a data centre, or a host or a switch within one.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Unique name. A site can also be found by its number.
    pub name: String,
    /// Position on Earth, if known; pictures use it.
    pub place: Option<GeoPoint>,
    /// True for a switch, which forwards packets and has no host.
    pub is_switch: bool,
    /// Permitted addresses of the site's host; `None` permits all.
    pub hosts: Option<crate::Hosts>,
}

/// A point on Earth.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct GeoPoint {
    /// Degrees north of the equator, -90 to 90.
    pub latitude_deg: f64,
    /// Degrees east of Greenwich, -180 to 180.
    pub longitude_deg: f64,
}

/// A directed link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Site at which the link begins.
    pub from: SiteId,
    /// Site at which the link ends.
    pub to: SiteId,
    /// Properties of the link.
    pub properties: LinkProperties,
}

/// The properties of a directed link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProperties {
    /// Available bandwidth: 1 bit/s to [`CAPACITY_MAX`].
    pub capacity: BitRate,
    /// One-way propagation delay, at most [`DELAY_MAX`].
    pub delay: Duration,
    /// Price per byte, in any unit that is the same for all links.
    pub cost: f64,
    /// Packets lost at random, in parts per million. Only the emulator uses it, not the planner.
    pub loss_ppm: u32,
    /// Mean number of packets lost in a burst; 1 for independent losses. The value limits
    /// `loss_ppm` ([`loss_ppm_max`]).
    pub loss_burst: u32,
    /// Size of the buffer before the link; `None` leaves the size to the builder of the network.
    pub queue: Option<ByteCount>,
}

impl LinkProperties {
    /// Properties of a loss-free link of cost 1 with the given capacity and delay.
    pub fn new(capacity: BitRate, delay: Duration) -> Self {
        Self { capacity, delay, cost: 1.0, loss_ppm: 0, loss_burst: 1, queue: None }
    }
}

/// Reason why a site or link is refused.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TopologyError {
    /// Two sites have the same name.
    DuplicateSite(String),
    /// The name of a site is not allowed.
    SiteName {
        /// Name of the site.
        name: String,
        /// Reason why the name is not allowed.
        reason: &'static str,
    },
    /// No site has this name.
    UnknownSite {
        /// The requested name.
        name: String,
        /// Existing names, shortened for a message.
        known: String,
    },
    /// No link has this name.
    UnknownLink {
        /// The requested name.
        name: String,
        /// Existing names, shortened for a message.
        known: String,
    },
    /// A link begins and ends at the same site.
    SelfLink(String),
    /// A link has no capacity.
    ZeroCapacity {
        /// Name of the site at which the link begins.
        from: String,
        /// Name of the site at which the link ends.
        to: String,
    },
    /// The capacity of a link, or the sum over all links, is too large.
    TooFast {
        /// Name of the site at which the link begins.
        from: String,
        /// Name of the site at which the link ends.
        to: String,
        /// Capacity of the link.
        capacity: BitRate,
        /// True if the sum is too large, false if the link's own capacity is.
        together: bool,
    },
    /// A number of the link is not valid.
    BadNumber {
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The loss is too high for bursts of this length.
    LossTooHigh {
        /// Name of the site at which the link begins.
        from: String,
        /// Name of the site at which the link ends.
        to: String,
        /// Loss of the link in parts per million.
        loss_ppm: u32,
        /// Mean number of packets per burst.
        loss_burst: u32,
        /// Maximum loss with such bursts, in parts per million.
        loss_ppm_max: u32,
    },
    /// More sites or links than the maximum.
    TooMany {
        /// Kind of the items that are too many.
        what: &'static str,
        /// Maximum number.
        limit: usize,
    },
}

impl std::fmt::Display for TopologyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DuplicateSite(name) => {
                write!(f, "site `{name}` appears twice: give each site its own name")
            }
            Self::SiteName { name, reason } => write!(f, "site `{}`: a name {reason}", printable(name)),
            Self::UnknownSite { name, known } => {
                write!(f, "no site `{}` in this topology: {known}", printable(name))
            }
            Self::UnknownLink { name, known } => {
                let name = printable(name);
                write!(f, "no link `{name}`: write it as FROM-TO, two sites with a link: {known}")
            }
            Self::SelfLink(name) => {
                write!(f, "link from `{name}` to itself: a link joins two different sites")
            }
            Self::ZeroCapacity { from, to } => {
                write!(
                    f,
                    "link {from} to {to}: capacity 0 bit/s: must be at least 1 bit/s (leave the link out instead)"
                )
            }
            Self::TooFast { from, to, capacity, together: false } => {
                write!(f, "link {from} to {to}: capacity {capacity}: must be at most {CAPACITY_MAX}")
            }
            Self::TooFast { from, to, capacity, together: true } => write!(
                f,
                "link {from} to {to}: capacity {capacity}: all links together must carry at most {CAPACITY_SUM_MAX}"
            ),
            Self::BadNumber { field, value, allowed } => write!(f, "{field} {value}: must be {allowed}"),
            Self::LossTooHigh { from, to, loss_ppm, loss_burst, loss_ppm_max } => write!(
                f,
                "link {from} to {to}: loss_ppm {loss_ppm}: must be at most {loss_ppm_max} with loss_burst {loss_burst}, as between two bursts a packet arrives"
            ),
            Self::TooMany { what, limit } => write!(f, "more than {limit} {what}"),
        }
    }
}
impl std::error::Error for TopologyError {}

/// Maximum length of a site's name in bytes.
pub const SITE_NAME_BYTES_MAX: usize = 128;

/// Checks the name of a site. Names are used for folders, certificates and environment variables.
///
/// Errors: [`TopologyError::SiteName`] for a name that is empty, too long, `.` or `..`, or that
/// contains a `/` or an unprintable character.
pub fn check_site_name(name: &str) -> Result<(), TopologyError> {
    let reason = match name {
        "" => "must not be empty",
        "." | ".." => "must not be a folder's way up",
        _ if name.len() > SITE_NAME_BYTES_MAX => "must have at most 128 bytes",
        _ if name.contains('/') => "must not contain `/`",
        _ if printable(name) != name => "must not contain characters that are not shown",
        _ => return Ok(()),
    };
    let short = name.chars().take(SITE_NAME_BYTES_MAX).collect();
    Err(TopologyError::SiteName { name: short, reason })
}

/// Maximum number of sites of a topology.
pub const SITES_MAX: usize = 4096;
/// Maximum number of directed links of a topology.
pub const LINKS_MAX: usize = 65_536;
/// Maximum capacity of a link: a petabit per second.
pub const CAPACITY_MAX: BitRate = BitRate::gbps(1_000_000);
/// Maximum sum of the capacities of all links.
pub const CAPACITY_SUM_MAX: BitRate = BitRate::gbps(10_000_000_000);
/// Maximum delay of a link, so that the delays of any path add up to less than 2^64 ps.
pub const DELAY_MAX: Duration = Duration::from_secs(3_600);
const _: () = assert!(DELAY_MAX.as_ps() < u64::MAX / SITES_MAX as u64);

impl Topology {
    /// Creates a topology without sites and links.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sites: Vec::new(),
            links: Vec::new(),
            by_name: BTreeMap::new(),
            capacity_sum: BitRate::bps(0),
        }
    }

    /// Name of the topology, for people.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// All sites by id.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }
    /// All links by id.
    pub fn links(&self) -> &[Link] {
        &self.links
    }
    /// Ids of all sites, ascending.
    pub fn site_ids(&self) -> impl ExactSizeIterator<Item = SiteId> + use<> {
        (0..self.sites.len() as u16).map(SiteId)
    }
    /// Ids of all links, ascending.
    pub fn link_ids(&self) -> impl ExactSizeIterator<Item = LinkId> + use<> {
        (0..self.links.len() as u32).map(LinkId)
    }
    /// The site `id`.
    ///
    /// Panics: if the id is not in this topology.
    pub fn site(&self, id: SiteId) -> &Site {
        &self.sites[id.index()]
    }
    /// The link `id`.
    ///
    /// Panics: if the id is not in this topology.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.index()]
    }
    /// The properties of link `id`, for changes.
    ///
    /// Panics: if the id is not in this topology.
    pub fn link_properties_mut(&mut self, id: LinkId) -> &mut LinkProperties {
        &mut self.links[id.index()].properties
    }
    /// Links that leave `site`, ascending by id.
    pub fn links_out(&self, site: SiteId) -> impl Iterator<Item = LinkId> + '_ {
        self.link_ids().filter(move |l| self.link(*l).from == site)
    }
    /// Links that enter `site`, ascending by id.
    pub fn links_in(&self, site: SiteId) -> impl Iterator<Item = LinkId> + '_ {
        self.link_ids().filter(move |l| self.link(*l).to == site)
    }

    /// The site with the name or number `name`.
    ///
    /// Errors: [`TopologyError::UnknownSite`].
    pub fn find_site(&self, name: &str) -> Result<SiteId, TopologyError> {
        self.site_called(name).ok_or_else(|| {
            let known = known(name, self.sites.iter().map(|site| &site.name));
            TopologyError::UnknownSite { name: name.to_owned(), known }
        })
    }

    fn site_called(&self, name: &str) -> Option<SiteId> {
        let numbered = || name.parse::<u16>().ok().filter(|i| usize::from(*i) < self.sites.len()).map(SiteId);
        self.by_name.get(name).copied().or_else(numbered)
    }

    /// The links named by `A-B` or `A>B`: the links from A to B and, for `A-B` with `both`, also
    /// the links from B to A. A and B are names or numbers.
    ///
    /// Errors: [`TopologyError::UnknownLink`].
    pub fn find_links(&self, name: &str, both: bool) -> Result<Vec<LinkId>, TopologyError> {
        // Names may contain hyphens, so every position of a separator is tried.
        let found = name.match_indices(['-', '>']).find_map(|(at, mark)| {
            let (from, to) = (self.site_called(&name[..at])?, self.site_called(&name[at + 1..])?);
            let is_between = |link: &LinkId| {
                let link = self.link(*link);
                let is_back = both && mark == "-" && (link.from, link.to) == (to, from);
                (link.from, link.to) == (from, to) || is_back
            };
            let links: Vec<_> = self.link_ids().filter(is_between).collect();
            (!links.is_empty()).then_some(links)
        });
        found.ok_or_else(|| {
            let known = known(name, self.link_ids().map(|link| self.link_name(link)));
            TopologyError::UnknownLink { name: name.to_owned(), known }
        })
    }

    /// The first link named by `A-B` or `A>B`, from A to B.
    ///
    /// Errors: [`TopologyError::UnknownLink`].
    pub fn find_link(&self, name: &str) -> Result<LinkId, TopologyError> {
        Ok(self.find_links(name, false)?[0])
    }

    /// Name of a link, `A-B`. Parallel links have equal names.
    ///
    /// Panics: if the id is not in this topology.
    pub fn link_name(&self, id: LinkId) -> String {
        let link = self.link(id);
        format!("{}-{}", self.site(link.from).name, self.site(link.to).name)
    }

    /// Adds a site with a host and returns its id, the next free one.
    ///
    /// Errors: a repeated or invalid name; too many sites.
    pub fn add_site(
        &mut self,
        name: impl Into<String>,
        place: Option<GeoPoint>,
    ) -> Result<SiteId, TopologyError> {
        self.push_site(Site { name: name.into(), place, is_switch: false, hosts: None })
    }

    /// Adds a site that only forwards packets, and returns its id, the next free one.
    ///
    /// Errors: as [`Topology::add_site`].
    pub fn add_switch(&mut self, name: impl Into<String>) -> Result<SiteId, TopologyError> {
        self.push_site(Site { name: name.into(), place: None, is_switch: true, hosts: None })
    }

    /// Adds a site of either kind.
    pub(crate) fn push_site(&mut self, site: Site) -> Result<SiteId, TopologyError> {
        check_site_name(&site.name)?;
        if self.by_name.contains_key(&site.name) {
            return Err(TopologyError::DuplicateSite(site.name));
        }
        if self.sites.len() == SITES_MAX {
            return Err(TopologyError::TooMany { what: "sites", limit: SITES_MAX });
        }
        let id = SiteId(self.sites.len() as u16);
        self.by_name.insert(site.name.clone(), id);
        self.sites.push(site);
        Ok(id)
    }

    /// Adds a directed link and returns its id, the next free one. Parallel links are allowed.
    ///
    /// Errors: a link to itself; a capacity of zero or too large ([`CAPACITY_MAX`],
    /// [`CAPACITY_SUM_MAX`]); a delay that is too long; a loss above one; a cost that is negative
    /// or not a number.
    /// Panics: if a site is not in this topology.
    pub fn add_link(
        &mut self,
        from: SiteId,
        to: SiteId,
        properties: LinkProperties,
    ) -> Result<LinkId, TopologyError> {
        let name = |s: SiteId| self.site(s).name.clone();
        let (from_name, to_name) = (name(from), name(to));
        if from == to {
            return Err(TopologyError::SelfLink(from_name));
        }
        if properties.capacity.as_bps() == 0 {
            return Err(TopologyError::ZeroCapacity { from: from_name, to: to_name });
        }
        let sum = self.capacity_sum.as_bps().saturating_add(properties.capacity.as_bps());
        let together = properties.capacity <= CAPACITY_MAX;
        if !together || sum > CAPACITY_SUM_MAX.as_bps() {
            let capacity = properties.capacity;
            return Err(TopologyError::TooFast { from: from_name, to: to_name, capacity, together });
        }
        if properties.delay > DELAY_MAX {
            return Err(TopologyError::BadNumber {
                field: "delay",
                value: properties.delay.to_string(),
                allowed: "at most 3600 s",
            });
        }
        if properties.loss_ppm > 1_000_000 {
            return Err(TopologyError::BadNumber {
                field: "loss_ppm",
                value: properties.loss_ppm.to_string(),
                allowed: "at most 1000000",
            });
        }
        let LinkProperties { loss_ppm, loss_burst, .. } = properties;
        let Some(loss_ppm_max) = loss_ppm_max(loss_burst) else {
            return Err(TopologyError::BadNumber {
                field: "loss_burst",
                value: loss_burst.to_string(),
                allowed: "from 1 to 1000000",
            });
        };
        if loss_ppm > loss_ppm_max {
            let (from, to) = (from_name, to_name);
            return Err(TopologyError::LossTooHigh { from, to, loss_ppm, loss_burst, loss_ppm_max });
        }
        if !(properties.cost >= 0.0 && properties.cost.is_finite()) {
            return Err(TopologyError::BadNumber {
                field: "cost",
                value: properties.cost.to_string(),
                allowed: "a finite number, at least 0",
            });
        }
        if self.links.len() == LINKS_MAX {
            return Err(TopologyError::TooMany { what: "links", limit: LINKS_MAX });
        }
        self.capacity_sum = BitRate::bps(sum);
        self.links.push(Link { from, to, properties });
        Ok(LinkId(self.links.len() as u32 - 1))
    }

    /// Adds a full-duplex cable: two links with the same properties, `a` to `b` first.
    ///
    /// Errors: as [`Topology::add_link`].
    pub fn add_cable(
        &mut self,
        a: SiteId,
        b: SiteId,
        properties: LinkProperties,
    ) -> Result<(LinkId, LinkId), TopologyError> {
        let there = self.add_link(a, b, properties.clone())?;
        Ok((there, self.add_link(b, a, properties)?))
    }

    /// The opposite link of each link, which together form a cable. Between two sites, the first
    /// link in one direction belongs to the first in the other, and so on.
    pub fn opposites(&self) -> Vec<Option<LinkId>> {
        let between = |from, to| self.links_out(from).filter(move |l| self.link(*l).to == to);
        let opposite = |l: LinkId| {
            let Link { from, to, .. } = *self.link(l);
            let rank = between(from, to).position(|other| other == l).expect("a link joins its own ends");
            between(to, from).nth(rank)
        };
        self.link_ids().map(opposite).collect()
    }

    /// Adds an opposite link to each one-way link, with the same properties, for acknowledgements
    /// and control messages. The new links have the highest ids.
    ///
    /// Errors: more links than a topology may have.
    pub fn with_ways_back(&self) -> Result<Self, TopologyError> {
        let mut wired = self.clone();
        for link in &self.links {
            let is_back = |l: &Link| l.from == link.to && l.to == link.from;
            if !wired.links.iter().any(is_back) {
                wired.add_link(link.to, link.from, link.properties.clone())?;
            }
        }
        Ok(wired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::LOSS_BURST_MAX;

    fn pair() -> (Topology, SiteId, SiteId) {
        let mut t = Topology::new("pair");
        let a = t.add_site("a", None).expect("first name");
        let b = t.add_site("b", None).expect("second name");
        (t, a, b)
    }

    #[test]
    fn cable_is_two_links_in_opposite_directions() {
        let (mut t, a, b) = pair();
        let (there, back) =
            t.add_cable(a, b, LinkProperties::new(BitRate::mbps(1), Duration::ZERO)).expect("a good cable");
        assert_eq!((t.link(there).from, t.link(there).to), (a, b));
        assert_eq!((t.link(back).from, t.link(back).to), (b, a));
        assert_eq!(t.links_in(a).collect::<Vec<_>>(), [back]);
    }

    #[test]
    fn invalid_sites_and_links_are_refused() {
        let (mut t, a, b) = pair();
        let good = LinkProperties::new(BitRate::mbps(1), Duration::ZERO);
        assert_eq!(t.add_link(a, a, good.clone()), Err(TopologyError::SelfLink("a".into())));
        let none = LinkProperties { capacity: BitRate::bps(0), ..good.clone() };
        assert!(matches!(t.add_link(a, b, none), Err(TopologyError::ZeroCapacity { .. })));
        let fastest = LinkProperties { capacity: CAPACITY_MAX, ..good.clone() };
        assert!(t.add_link(a, b, fastest).is_ok());
        let faster = LinkProperties { capacity: BitRate::bps(CAPACITY_MAX.as_bps() + 1), ..good.clone() };
        assert!(matches!(t.add_link(a, b, faster), Err(TopologyError::TooFast { together: false, .. })));
        let farthest = LinkProperties { delay: DELAY_MAX, ..good.clone() };
        assert!(t.add_link(a, b, farthest).is_ok());
        let farther = LinkProperties { delay: DELAY_MAX + Duration::from_ps(1), ..good.clone() };
        assert!(matches!(t.add_link(a, b, farther), Err(TopologyError::BadNumber { field: "delay", .. })));
        let lossy = LinkProperties { loss_ppm: 1_000_001, ..good.clone() };
        assert!(matches!(t.add_link(a, b, lossy), Err(TopologyError::BadNumber { .. })));
        for loss_burst in [0, LOSS_BURST_MAX + 1] {
            let burst = LinkProperties { loss_burst, ..good.clone() };
            assert!(matches!(
                t.add_link(a, b, burst),
                Err(TopologyError::BadNumber { field: "loss_burst", .. })
            ));
        }
        let bursts = LinkProperties { loss_ppm: 800_000, loss_burst: 4, ..good.clone() };
        assert!(t.add_link(a, b, bursts.clone()).is_ok());
        let endless = LinkProperties { loss_ppm: 800_001, ..bursts };
        assert!(matches!(
            t.add_link(a, b, endless),
            Err(TopologyError::LossTooHigh { loss_ppm_max: 800_000, .. })
        ));
        let priceless = LinkProperties { cost: f64::NAN, ..good };
        assert!(matches!(t.add_link(a, b, priceless), Err(TopologyError::BadNumber { .. })));
        assert_eq!(t.add_site("a", None), Err(TopologyError::DuplicateSite("a".into())));
        assert_eq!(t.add_switch("a"), Err(TopologyError::DuplicateSite("a".into())));
    }

    /// #17: sums over all links overflowed.
    #[test]
    fn sum_of_capacities_is_at_most_ten_exabits() {
        let (mut t, a, b) = pair();
        let fastest = LinkProperties::new(CAPACITY_MAX, Duration::ZERO);
        for _ in 0..10_000 {
            t.add_link(a, b, fastest.clone()).expect("they fit");
        }
        let one_more = t.add_link(a, b, LinkProperties::new(BitRate::bps(1), Duration::ZERO));
        assert!(matches!(one_more, Err(TopologyError::TooFast { together: true, .. })));
    }

    /// #17: a site called `../../x` placed the folder of a demonstration outside its parent.
    #[test]
    fn site_names_are_valid_folder_names() {
        for good in ["a", "New York (1)", "s\u{e3}o paulo", "...", "a..b", &"x".repeat(SITE_NAME_BYTES_MAX)] {
            assert_eq!(check_site_name(good), Ok(()), "{good}");
        }
        let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
        for bad in ["", ".", "..", "../../x", "/", "a/b", "a\nb", "a\0", "a\u{202e}b", &long] {
            let (mut t, ..) = pair();
            let said = t.add_switch(bad).expect_err(bad);
            assert!(matches!(said, TopologyError::SiteName { .. }) && said.to_string().lines().count() == 1);
        }
    }

    #[test]
    fn links_are_found_by_ends_and_unknown_ones_listed() {
        let (mut t, a, b) = pair();
        let c = t.add_site("a-b", None).expect("a new name");
        let good = LinkProperties::new(BitRate::mbps(1), Duration::ZERO);
        let (there, back) = t.add_cable(a, b, good.clone()).expect("a good cable");
        let second = t.add_link(a, b, good.clone()).expect("a good link");
        let one_way = t.add_link(c, b, good).expect("a good link");
        assert_eq!(t.find_links("a-b", true), Ok(vec![there, back, second]));
        assert_eq!(t.find_links("a>b", true), Ok(vec![there, second]));
        assert_eq!((t.find_link("a-b"), t.find_link("1-0")), (Ok(there), Ok(back)));
        assert_eq!((t.find_link("a-b-b"), t.link_name(one_way).as_str()), (Ok(one_way), "a-b-b"));
        assert_eq!(t.find_links("b-a-b", true), Ok(vec![one_way]), "by the name of the way back");
        let said = t.find_link("b-a-b").expect_err("it goes the other way").to_string();
        assert!(said.contains("no link `b-a-b`") && said.contains("a-b, b-a, a-b, a-b-b"), "{said}");
    }

    #[test]
    fn hosts_and_switches_share_one_numbering() {
        let (mut t, ..) = pair();
        assert_eq!(t.add_switch("hub"), Ok(SiteId(2)));
        assert_eq!(t.add_site("c", None), Ok(SiteId(3)));
        assert_eq!(t.find_site("hub"), Ok(SiteId(2)));
        assert_eq!(t.sites().iter().map(|s| s.is_switch).collect::<Vec<_>>(), [false, false, true, false]);
    }

    #[test]
    fn sites_are_found_by_name_and_by_number() {
        let (mut t, a, b) = pair();
        assert_eq!(t.find_site("b"), Ok(b));
        assert_eq!(t.find_site("1"), Ok(b));
        let other = t.add_site("0", None).expect("a new name");
        assert_eq!((t.find_site("a"), t.find_site("0")), (Ok(a), Ok(other)), "a name goes before a number");
        let error = t.find_site("c").expect_err("no such site");
        assert!(error.to_string().contains("a, b"), "{error}");
    }
}
