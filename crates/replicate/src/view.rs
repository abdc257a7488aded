//! Conversion of the controller's description of its network to a topology, for planning and
//! drawing in clients.
//!
//! Leaves out: the state of sites. Read [`TopologyView::topology`].

use crate::wire::TopologyView;
use anabranch_graph::{DELAY_MAX, GeoPoint, LinkProperties, Topology, TopologyError};
use anabranch_units::{BitRate, Duration};

/// Error of a description that is no network.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ViewError {
    /// The description contradicts itself.
    Topology(TopologyError),
    /// A link with a delay out of range.
    Delay {
        /// Site at the start of the link.
        from: String,
        /// Site at the end of the link.
        to: String,
        /// Delay in seconds.
        delay_s: f64,
    },
}

impl std::fmt::Display for ViewError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::Delay { from, to, delay_s } => {
                write!(f, "link {from} to {to}: delay {delay_s} s: must be 0 s to {DELAY_MAX}")
            }
        }
    }
}
impl std::error::Error for ViewError {}

impl From<TopologyError> for ViewError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

impl TopologyView {
    /// Converts the description to a topology with the capacities that plans use.
    ///
    /// Errors: a description that contradicts itself, a link with a delay out of range.
    pub fn topology(&self) -> Result<Topology, ViewError> {
        let mut topology = Topology::new(&self.name);
        for site in &self.sites {
            let place = site
                .latitude_deg
                .zip(site.longitude_deg)
                .map(|(latitude_deg, longitude_deg)| GeoPoint { latitude_deg, longitude_deg });
            topology.add_site(&site.name, place)?;
        }
        for link in &self.links {
            let (from, to) = (topology.find_site(&link.from)?, topology.find_site(&link.to)?);
            if !(0.0..=DELAY_MAX.as_secs_f64()).contains(&link.delay_s) {
                let (from, to) = (link.from.clone(), link.to.clone());
                return Err(ViewError::Delay { from, to, delay_s: link.delay_s });
            }
            let delay = Duration::from_ps((link.delay_s * 1e12).round() as u64);
            let mut properties = LinkProperties::new(BitRate::bps(link.in_plans_bps()), delay);
            properties.cost = link.cost;
            topology.add_link(from, to, properties)?;
        }
        Ok(topology)
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::{LinkView, SiteView, TopologyView};

    /// #17: a delay of more than 213 days overflowed.
    #[test]
    fn controller_link_delay_is_at_most_an_hour() {
        let site = |id, name: &str| SiteView {
            id,
            name: name.to_owned(),
            up: true,
            latitude_deg: None,
            longitude_deg: None,
        };
        let link = |delay_s| LinkView {
            id: 0,
            from: "a".to_owned(),
            to: "b".to_owned(),
            capacity_bps: 1_000_000,
            carried_bps: None,
            is_limit: false,
            planned_bps: None,
            delay_s,
            cost: 1.0,
        };
        let read = |delay_s| {
            let sites = vec![site(0, "a"), site(1, "b")];
            TopologyView { name: "two".to_owned(), sites, links: vec![link(delay_s)] }.topology()
        };
        for delay_s in [0.0, 1e-12, 0.033_023_417_003, 3_600.0] {
            let topology = read(delay_s).expect("a delay that a link may have");
            assert_eq!(topology.links()[0].properties.delay.as_secs_f64(), delay_s, "to the picosecond");
        }
        for delay_s in [3_600.000_001, 1e300, -1e-12, f64::INFINITY, f64::NAN] {
            let said = read(delay_s).expect_err("no link's").to_string();
            assert!(said.contains("link a to b: delay") && said.contains("must be 0 s to 3600 s"), "{said}");
        }
    }
}
