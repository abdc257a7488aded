//! The built-in topologies: `butterfly`, `internet2` and `b4`.
//!
//! Source of the links: the networks on which CodedBulk (section 4.1) was measured. The paper says
//! of the cities only that they are "chosen to closely emulate" these networks. The cities here are
//! therefore this project's choice, from publications of the networks' owners; each table states
//! its source. A delay is the propagation time in fibre over the distance between the cities: see
//! [`fibre_delay`].
//!
//! Leaves out: real capacities (all links have the requested capacity); topologies from files
//! ([`crate::file`]). Read [`BUILTINS`] and [`builtin`] first.

use crate::{CAPACITY_MAX, GeoPoint, LinkProperties, Topology};
use anabranch_units::text::{known, printable};
use anabranch_units::{BitRate, Duration, SiteId};

/// A built-in topology, for lists and help texts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Name that selects the topology.
    pub name: &'static str,
    /// Description in one line.
    pub description: &'static str,
}

/// All built-in topologies, smallest first.
pub const BUILTINS: &[Builtin] = &[
    Builtin {
        name: "butterfly",
        description: "7 sites, 9 one-way links: the smallest network where coding beats every uncoded plan",
    },
    Builtin {
        name: "internet2",
        description: "9 sites, 13 full-duplex links: the research network of the United States, as of 2007",
    },
    Builtin {
        name: "b4",
        description: "13 sites, 22 full-duplex links: Google's network between its data centres",
    },
];

/// Reason why a built-in topology cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuiltinError {
    /// No built-in topology has this name.
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The requested capacity is invalid for a link.
    Capacity {
        /// The requested topology.
        name: &'static str,
        /// The requested capacity.
        capacity: BitRate,
    },
}

impl std::fmt::Display for BuiltinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown { name } => {
                let known = known(name, BUILTINS.iter().map(|b| b.name));
                write!(f, "no built-in topology `{}`: {known}", printable(name))
            }
            Self::Capacity { name, capacity } => {
                write!(f, "{name}: link capacity {capacity}: must be 1 bit/s to {CAPACITY_MAX}")
            }
        }
    }
}
impl std::error::Error for BuiltinError {}

/// Signal speed in fibre: two thirds of the speed of light in vacuum.
///
/// Units: metres per second.
pub const FIBRE_SPEED_MPS: f64 = 299_792_458.0 * 2.0 / 3.0;

/// Length of a fibre divided by the great circle between its ends.
///
/// Source: the links of [`internet2`](BUILTINS) add up to 14,380 km of great circle. The fibre of
/// these links has 13,500 route miles (21,700 km), as Internet2 told APAN's 24th meeting in 2007.
/// That sum includes fibre that carries none of the thirteen links, so the factor is an upper
/// estimate; under oceans the factor is nearer 1.2.
pub const PATH_STRETCH: f64 = 1.5;

/// Mean radius of the Earth in metres.
const EARTH_RADIUS_M: f64 = 6_371_008.8;

/// Great-circle distance between two places on a spherical Earth (error below 0.6 %).
///
/// Units: metres.
pub fn great_circle_m(a: GeoPoint, b: GeoPoint) -> f64 {
    let (lat_a, lat_b) = (a.latitude_deg.to_radians(), b.latitude_deg.to_radians());
    let d_lon = (b.longitude_deg - a.longitude_deg).to_radians();
    // Haversine formula, which is well conditioned for near points. The clamp is for antipodes.
    let h = ((lat_b - lat_a) / 2.0).sin().powi(2) + lat_a.cos() * lat_b.cos() * (d_lon / 2.0).sin().powi(2);
    2.0 * EARTH_RADIUS_M * h.clamp(0.0, 1.0).sqrt().asin()
}

/// One-way delay of a fibre between two places: great circle times `stretch`, at
/// [`FIBRE_SPEED_MPS`].
///
/// Units: the result is rounded to a whole microsecond, so that it is short in print and
/// independent of the last bit of a machine's sine.
pub fn fibre_delay(a: GeoPoint, b: GeoPoint, stretch: f64) -> Duration {
    fibre_delay_over(great_circle_m(a, b) * stretch)
}

/// One-way delay of `metres` of fibre, rounded to a whole microsecond.
pub(crate) fn fibre_delay_over(metres: f64) -> Duration {
    Duration::from_us((metres / FIBRE_SPEED_MPS * 1e6).round() as u64)
}

/// The built-in topology called `name`, with the given capacity on every link.
///
/// Errors: an unknown name; an invalid capacity.
///
/// ```
/// use anabranch_graph::builtin::builtin;
/// use anabranch_units::BitRate;
/// let internet2 = builtin("internet2", BitRate::mbps(200)).expect("it is built in");
/// assert_eq!((internet2.sites().len(), internet2.links().len()), (9, 26));
/// ```
pub fn builtin(name: &str, capacity: BitRate) -> Result<Topology, BuiltinError> {
    let found = BUILTINS.iter().find(|b| b.name == name);
    let found = found.ok_or_else(|| BuiltinError::Unknown { name: name.to_owned() })?;
    if capacity.as_bps() == 0 || capacity > CAPACITY_MAX {
        return Err(BuiltinError::Capacity { name: found.name, capacity });
    }
    Ok(match found.name {
        "butterfly" => butterfly(capacity),
        "internet2" => cabled("internet2", INTERNET2_SITES, INTERNET2_LINKS, capacity),
        _ => cabled("b4", B4_SITES, B4_LINKS, capacity),
    })
}

/// Name of the city, degrees north, degrees east.
type City = (&'static str, f64, f64);

/// The nine routers of Internet2.
///
/// Source: the routers and links of the Internet2 network that replaced Abilene in 2007. The
/// numbering follows from the links: with it, the network's links are exactly the thirteen links of
/// CodedBulk's topology.
const INTERNET2_SITES: &[City] = &[
    ("seattle", 47.61, -122.33),
    ("los-angeles", 34.05, -118.24),
    ("salt-lake-city", 40.76, -111.89),
    ("houston", 29.76, -95.37),
    ("kansas-city", 39.10, -94.58),
    ("atlanta", 33.75, -84.39),
    ("chicago", 41.88, -87.63),
    ("washington", 38.91, -77.04),
    ("new-york", 40.71, -74.01),
];
const INTERNET2_LINKS: &[(u16, u16)] =
    &[(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4), (3, 5), (4, 6), (5, 6), (5, 7), (6, 7), (6, 8), (7, 8)];

/// Thirteen of Google's data centres.
///
/// Source: Google's list of the data centres that it owns, restricted to those in service by 2016.
/// Which data centre is which site is not published. Without site 12 the links are the 19 links of
/// Jain and others, *B4* (SIGCOMM 2013), figure 1. They form a pair (0, 1), a group of six in the
/// middle (2 to 7) and a group of four (8 to 11). The data centres form two in Asia, six in the
/// United States and four in Europe, and Chile is site 12. Within a continent the assignment is the
/// one with the minimum total great circle, 83,000 km.
const B4_SITES: &[City] = &[
    ("singapore", 1.35, 103.82),
    ("changhua", 24.05, 120.52),
    ("the-dalles", 45.59, -121.18),
    ("council-bluffs", 41.26, -95.86),
    ("mayes-county", 36.31, -95.32),
    ("douglas-county", 33.75, -84.75),
    ("lenoir", 35.91, -81.54),
    ("berkeley-county", 33.06, -80.04),
    ("hamina", 60.57, 27.20),
    ("eemshaven", 53.44, 6.83),
    ("dublin", 53.35, -6.26),
    ("saint-ghislain", 50.45, 3.82),
    ("quilicura", -33.36, -70.73),
];
const B4_LINKS: &[(u16, u16)] = &[
    (0, 1),
    (0, 3),
    (1, 2),
    (2, 3),
    (2, 4),
    (2, 12),
    (3, 4),
    (3, 5),
    (3, 12),
    (4, 6),
    (4, 7),
    (5, 6),
    (5, 7),
    (6, 7),
    (6, 9),
    (7, 10),
    (7, 12),
    (8, 9),
    (8, 10),
    (9, 10),
    (9, 11),
    (10, 11),
];

fn cabled(name: &str, cities: &[City], cables: &[(u16, u16)], capacity: BitRate) -> Topology {
    let mut topology = Topology::new(name);
    let place =
        |i: u16| GeoPoint { latitude_deg: cities[usize::from(i)].1, longitude_deg: cities[usize::from(i)].2 };
    for (i, (city, ..)) in cities.iter().enumerate() {
        topology.add_site(*city, Some(place(i as u16))).expect("the tables name each city once");
    }
    for &(a, b) in cables {
        let properties = LinkProperties::new(capacity, fibre_delay(place(a), place(b), PATH_STRETCH));
        topology.add_cable(SiteId(a), SiteId(b), properties).expect("the tables join different cities");
    }
    topology
}

/// The butterfly: `s` sends to `t1` and `t2`, and both paths need the link from `c` to `d`.
///
/// Source: Ahlswede and others, *Network information flow* (2000), figure 7.
/// Differs: links are one-way, unlike in the other two topologies. With opposite links from `t1`
/// and `t2` to `d`, two trees would carry as much as the code, and the network would show no gain
/// from coding.
fn butterfly(capacity: BitRate) -> Topology {
    let mut topology = Topology::new("butterfly");
    for name in ["s", "a", "b", "c", "d", "t1", "t2"] {
        topology.add_site(name, None).expect("the names differ");
    }
    for (from, to) in [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (1, 5), (2, 6), (4, 5), (4, 6)] {
        let properties = LinkProperties::new(capacity, BUTTERFLY_DELAY);
        topology.add_link(SiteId(from), SiteId(to), properties).expect("the table joins different sites");
    }
    topology
}

/// Delay of each link of the butterfly. The value is arbitrary, because the butterfly has no
/// positions on Earth.
const BUTTERFLY_DELAY: Duration = Duration::from_ms(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_topologies_build_and_unknown_names_are_refused() {
        for b in BUILTINS {
            let topology = builtin(b.name, BitRate::mbps(7)).expect("it is listed");
            assert_eq!(topology.name(), b.name);
            assert!(topology.links().iter().all(|l| l.properties.capacity == BitRate::mbps(7)));
        }
        let error = builtin("b5", BitRate::mbps(1)).expect_err("there is none").to_string();
        assert_eq!(error, "no built-in topology `b5`: there are butterfly, internet2, b4");
        let error = builtin("b4", BitRate::bps(0)).expect_err("links need a capacity").to_string();
        assert_eq!(error, "b4: link capacity 0 bit/s: must be 1 bit/s to 1000000 Gbit/s");
        assert!(builtin("b4", CAPACITY_MAX).is_ok());
        assert!(builtin("b4", BitRate::bps(CAPACITY_MAX.as_bps() + 1)).is_err());
    }

    #[test]
    fn builtin_links_match_the_paper() {
        let pairs = |name| {
            let t = builtin(name, BitRate::mbps(1)).expect("it is listed");
            // One of the two links of each cable, from the site with the smaller number, as in the
            // paper.
            let forth = t.links().iter().filter(|l| l.from < l.to);
            forth.map(|l| format!("{}-{}", l.from, l.to)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(pairs("internet2"), "0-1 0-2 1-2 1-3 2-4 3-4 3-5 4-6 5-6 5-7 6-7 6-8 7-8");
        assert_eq!(
            pairs("b4"),
            "0-1 0-3 1-2 2-3 2-4 2-12 3-4 3-5 3-12 4-6 4-7 5-6 5-7 6-7 6-9 7-10 7-12 8-9 8-10 9-10 9-11 10-11"
        );
        assert_eq!(pairs("butterfly"), "0-1 0-2 1-3 2-3 3-4 1-5 2-6 4-5 4-6");
    }

    #[test]
    fn full_duplex_links_come_in_pairs_of_equal_delay() {
        for name in ["internet2", "b4"] {
            let t = builtin(name, BitRate::mbps(1)).expect("it is listed");
            for pair in t.links().chunks(2) {
                assert_eq!((pair[0].from, pair[0].to), (pair[1].to, pair[1].from));
                assert_eq!(pair[0].properties, pair[1].properties);
            }
        }
    }

    #[test]
    fn builtin_delays_follow_from_the_cities() {
        let t = builtin("internet2", BitRate::mbps(1)).expect("it is listed");
        let delays: Vec<_> = t.links().iter().step_by(2).map(|l| l.properties.delay.as_us()).collect();
        assert_eq!(delays, INTERNET2_DELAYS_US);
        // The measurement behind the stretch: these links have 21,700 km of fibre.
        let great_circles_km = delays.iter().sum::<u64>() as f64 * 1e-9 * FIBRE_SPEED_MPS / PATH_STRETCH;
        assert!((great_circles_km - 14_380.0).abs() < 10.0, "{great_circles_km}");
        assert!((21_700.0 / great_circles_km - PATH_STRETCH).abs() < 0.05);
    }
    const INTERNET2_DELAYS_US: [u64; 13] =
        [11603, 8455, 7001, 16556, 11145, 7813, 8467, 4982, 7112, 6550, 7167, 8586, 2455];

    #[test]
    fn great_circle_distances_match_known_values() {
        let at = |latitude_deg, longitude_deg| GeoPoint { latitude_deg, longitude_deg };
        let quarter = great_circle_m(at(0.0, 0.0), at(0.0, 90.0));
        assert!((quarter - EARTH_RADIUS_M * std::f64::consts::FRAC_PI_2).abs() < 1e-3);
        let half = great_circle_m(at(90.0, 0.0), at(-90.0, 0.0));
        assert!((half - EARTH_RADIUS_M * std::f64::consts::PI).abs() < 1e-3);
        // Across the date line: two degrees, not 358.
        let two = great_circle_m(at(0.0, 179.0), at(0.0, -179.0));
        assert!((two - EARTH_RADIUS_M * 2f64.to_radians()).abs() < 1e-3);
    }
}
