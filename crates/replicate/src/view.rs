//! The controller's network, from its description made a topology again, with which a client plans and draws.
//!
//! Leaves out: which sites are up. Read [`TopologyView::topology`].

use crate::wire::TopologyView;
use anabranch_graph::{DELAY_MAX, LinkProperties, Place, Topology, TopologyError};
use anabranch_units::{BitRate, Duration};

/// Why what a controller says is no network.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ViewError {
    /// It contradicts itself.
    Topology(TopologyError),
    /// A link that takes longer than any may.
    TooLong {
        /// Where it begins.
        from: String,
        /// Where it ends.
        to: String,
        /// Its delay.
        delay_us: u64,
    },
}

impl std::fmt::Display for ViewError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::TooLong { from, to, delay_us } => {
                write!(f, "link {from} to {to}: delay {delay_us} us: must be at most {DELAY_MAX}")
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
    /// The network as the planner takes it.
    ///
    /// Errors: one that contradicts itself, a link that takes longer than any may.
    pub fn topology(&self) -> Result<Topology, ViewError> {
        let mut topology = Topology::new(&self.name);
        for site in &self.sites {
            let place = site
                .latitude_deg
                .zip(site.longitude_deg)
                .map(|(latitude_deg, longitude_deg)| Place { latitude_deg, longitude_deg });
            topology.add_site(&site.name, place)?;
        }
        for link in &self.links {
            let (from, to) = (topology.find_site(&link.from)?, topology.find_site(&link.to)?);
            if link.delay_us > DELAY_MAX.as_us() {
                let (from, to) = (link.from.clone(), link.to.clone());
                return Err(ViewError::TooLong { from, to, delay_us: link.delay_us });
            }
            let mut properties =
                LinkProperties::new(BitRate::bps(link.capacity_bps), Duration::from_us(link.delay_us));
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
    fn a_controllers_link_may_take_an_hour_and_no_longer() {
        let site = |id, name: &str| SiteView {
            id,
            name: name.to_owned(),
            up: true,
            latitude_deg: None,
            longitude_deg: None,
        };
        let link = |delay_us| LinkView {
            id: 0,
            from: "a".to_owned(),
            to: "b".to_owned(),
            capacity_bps: 1_000_000,
            delay_us,
            cost: 1.0,
        };
        let read = |delay_us| {
            let sites = vec![site(0, "a"), site(1, "b")];
            TopologyView { name: "two".to_owned(), sites, links: vec![link(delay_us)] }.topology()
        };
        assert!(read(3_600_000_000).is_ok());
        for delay_us in [3_600_000_001, u64::MAX] {
            let said = read(delay_us).expect_err("too long").to_string();
            assert!(said.contains("link a to b: delay") && said.contains("must be at most 3600 s"), "{said}");
        }
    }
}
