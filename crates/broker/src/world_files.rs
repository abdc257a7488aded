//! A user's world as CSV tables in a folder, for the evaluation of designs.
//!
//! `cities.csv` has the columns `city`, `country`, `x_km`, `y_km`; `networks.csv` has `network`,
//! `price` (empty for the mean of its clusters' costs). `clusters.csv` has `cluster`, `network`,
//! `city`, `cost`, `capacity`, `background`; `clients.csv` has `city`, `isp`, `bitrate`,
//! `sessions`. The optional `scores.csv` has `city`, `isp`, `cluster`, `score`; without it scores
//! are drawn by distance.
//!
//! Names are text. Error messages name file and line. Leaves out: the evaluation
//! (`broker_proto::evaluate`). Read [`read()`] and [`write()`].
#![allow(clippy::disallowed_methods, reason = "a driver: reads and writes files")]

use crate::file_error::FileError;
use anabranch_broker_proto::limits::{
    OutOfRange, check_bitrate, check_capacity, check_coordinate, check_mean, check_price, check_score,
};
use anabranch_broker_proto::{City, Group, Network, Site, World, WorldParts};
use anabranch_units::{BitRate, Seed};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of rows of a table.
const ROWS_MAX: usize = 50_000_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CityRow {
    city: String,
    country: String,
    x_km: f64,
    y_km: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkRow {
    network: String,
    price: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterRow {
    cluster: String,
    network: String,
    city: String,
    cost: f64,
    capacity: BitRate,
    background: Option<BitRate>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientsRow {
    city: String,
    isp: String,
    bitrate: BitRate,
    sessions: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScoreRow {
    city: String,
    isp: String,
    cluster: String,
    score: f64,
}

/// Reads the rows of a table, and calls `take` for each. Errors name the row's line.
fn rows<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    mut take: impl FnMut(T) -> Result<(), String>,
) -> Result<(), FileError> {
    let path = folder.join(name);
    let wrong = |what: String| FileError(format!("{}: {what}", path.display()));
    let mut reader = csv::Reader::from_path(&path).map_err(|error| wrong(error.to_string()))?;
    for (line, row) in (2..).zip(reader.deserialize::<T>()) {
        let taken = row.map_err(|error| error.to_string()).and_then(&mut take);
        taken.map_err(|what| wrong(format!("line {line}: {what}")))?;
        if line > ROWS_MAX {
            return Err(wrong(format!("there may be {ROWS_MAX} rows")));
        }
    }
    Ok(())
}

/// Names and their numbers.
#[derive(Default)]
struct Names(BTreeMap<String, u32>);

impl Names {
    fn new_number(&mut self, what: &str, name: &str) -> Result<u32, String> {
        let number = self.0.len() as u32;
        match self.0.insert(name.to_owned(), number) {
            None => Ok(number),
            Some(_) => Err(format!("{what} `{name}`: is there twice")),
        }
    }
    fn number(&self, what: &str, name: &str, table: &str) -> Result<u32, String> {
        self.0.get(name).copied().ok_or_else(|| format!("{what} `{name}`: is not in {table}"))
    }
}

fn text(error: OutOfRange) -> String {
    error.to_string()
}

/// Reads a world. `seed` draws the scores if the folder has no `scores.csv`.
///
/// Errors: the first error, with its file and line.
pub fn read(folder: &Path, seed: Seed) -> Result<World, FileError> {
    let mut parts = WorldParts {
        cities: Vec::new(),
        sites: Vec::new(),
        networks: Vec::new(),
        places: Vec::new(),
        groups: Vec::new(),
        scores: None,
        seed,
    };
    let (mut cities, mut countries) = (Names::default(), Names::default());
    rows(folder, "cities.csv", |row: CityRow| {
        cities.new_number("city", &row.city)?;
        let count = countries.0.len() as u32;
        let country = *countries.0.entry(row.country).or_insert(count);
        let at_km = (row.x_km, row.y_km);
        check_coordinate("x_km", at_km.0).and_then(|()| check_coordinate("y_km", at_km.1)).map_err(text)?;
        parts.cities.push(City { at_km, country });
        Ok(())
    })?;
    let (mut networks, mut prices) = (Names::default(), Vec::new());
    rows(folder, "networks.csv", |row: NetworkRow| {
        networks.new_number("network", &row.network)?;
        check_price("price", row.price.unwrap_or(0.0)).map_err(text)?;
        prices.push(row.price);
        Ok(())
    })?;
    let mut of_networks: Vec<Vec<(String, Site)>> = vec![Vec::new(); prices.len()];
    rows(folder, "clusters.csv", |row: ClusterRow| {
        let network = networks.number("network", &row.network, "networks.csv")?;
        let city = cities.number("city", &row.city, "cities.csv")?;
        let background = row.background.unwrap_or(BitRate::bps(0));
        check_price("cost", row.cost).map_err(text)?;
        check_capacity("capacity", row.capacity).map_err(text)?;
        check_capacity("background", background).map_err(text)?;
        let site = Site { network, city, cost_per_mbps: row.cost, capacity: row.capacity, background };
        of_networks[network as usize].push((row.cluster, site));
        Ok(())
    })?;
    let mut clusters = Names::default();
    for (own, price) in of_networks.into_iter().zip(prices) {
        let start = parts.sites.len() as u32;
        for (name, site) in own {
            let twice = |why: String| FileError(format!("{}: {why}", folder.join("clusters.csv").display()));
            clusters.new_number("cluster", &name).map_err(twice)?;
            parts.sites.push(site);
        }
        let own = &parts.sites[start as usize..];
        let mean = own.iter().map(|site| site.cost_per_mbps).sum::<f64>() / own.len().max(1) as f64;
        parts.networks.push(Network {
            clusters: start..parts.sites.len() as u32,
            price_per_mbps: price.unwrap_or(mean),
            capacity_median: BitRate::bps(0),
        });
    }
    let (mut places, mut providers) = (BTreeMap::new(), Names::default());
    rows(folder, "clients.csv", |row: ClientsRow| {
        let city = cities.number("city", &row.city, "cities.csv")?;
        check_bitrate(row.bitrate).map_err(text)?;
        if row.sessions == 0 {
            return Err("sessions 0: must be 1 or more: leave the line out".to_owned());
        }
        let count = providers.0.len() as u32;
        let provider = *providers.0.entry(row.isp).or_insert(count);
        let place = *places.entry((city, provider)).or_insert_with(|| {
            parts.places.push((city, provider));
            parts.places.len() as u32 - 1
        });
        parts.groups.push(Group { place, bitrate: row.bitrate, sessions: row.sessions });
        Ok(())
    })?;
    if folder.join("scores.csv").exists() {
        let mut scores = vec![BTreeMap::new(); parts.places.len()];
        rows(folder, "scores.csv", |row: ScoreRow| {
            let city = cities.number("city", &row.city, "cities.csv")?;
            let cluster = clusters.number("cluster", &row.cluster, "clusters.csv")?;
            check_score(row.score).map_err(text)?;
            // Scores of places without clients are ignored.
            let place = providers.0.get(&row.isp).and_then(|provider| places.get(&(city, *provider)));
            if let Some(place) = place {
                scores[*place as usize].insert(cluster, row.score);
            }
            Ok(())
        })?;
        parts.scores = Some(scores);
    }
    if parts.groups.is_empty() || parts.sites.is_empty() {
        let what = "there must be a cluster and a client at least";
        return Err(FileError(format!("{}: {what}", folder.display())));
    }
    let world = World::new(parts);
    if world.serves_nobody() {
        let what = "no cluster has a score for any place with clients";
        return Err(FileError(format!("{}: {what}", folder.join("scores.csv").display())));
    }
    // Cost and score are scaled by their means, so each mean must be large enough.
    for (what, mean) in [("mean cost of a client", world.cost_mean()), ("mean score", world.score_mean())] {
        check_mean(what, mean).map_err(|error| FileError(format!("{}: {error}", folder.display())))?;
    }
    Ok(world)
}

/// Writes a world into an existing folder, with the scores of the clusters that networks consider.
///
/// Errors: files that cannot be written.
pub fn write(world: &World, folder: &Path) -> Result<(), FileError> {
    let city = |number: u32| format!("city {number}");
    let isp = |number: u32| format!("isp {number}");
    table(
        folder,
        "cities.csv",
        (0..).zip(world.cities()).map(|(number, of)| CityRow {
            city: city(number),
            country: format!("country {}", of.country),
            x_km: of.at_km.0,
            y_km: of.at_km.1,
        }),
    )?;
    let network = |number: u32| format!("network-{number}");
    table(
        folder,
        "networks.csv",
        (0..)
            .zip(world.networks())
            .map(|(number, of)| NetworkRow { network: network(number), price: Some(of.price_per_mbps) }),
    )?;
    table(
        folder,
        "clusters.csv",
        (0u32..).zip(world.sites()).map(|(number, site)| ClusterRow {
            cluster: number.to_string(),
            network: network(site.network),
            city: city(site.city),
            cost: site.cost_per_mbps,
            capacity: site.capacity,
            background: Some(site.background),
        }),
    )?;
    let of = |place: u32| world.places()[place as usize];
    table(
        folder,
        "clients.csv",
        world.groups().iter().map(|group| ClientsRow {
            city: city(of(group.place).city),
            isp: isp(of(group.place).provider),
            bitrate: group.bitrate,
            sessions: group.sessions,
        }),
    )?;
    let networks = world.networks().len() as u32;
    let offers = (0..world.places().len() as u32).flat_map(|place| {
        (0..networks).flat_map(move |network| world.offers(place, network)).map(move |offer| (place, offer))
    });
    table(
        folder,
        "scores.csv",
        offers.map(|(place, offer)| ScoreRow {
            city: city(of(place).city),
            isp: isp(of(place).provider),
            cluster: offer.cluster.to_string(),
            score: offer.score,
        }),
    )
}

fn table<T: Serialize>(folder: &Path, name: &str, rows: impl Iterator<Item = T>) -> Result<(), FileError> {
    let path = folder.join(name);
    let wrong = |error: &dyn std::fmt::Display| FileError(format!("{}: {error}", path.display()));
    let mut writer = csv::Writer::from_path(&path).map_err(|error| wrong(&error))?;
    for row in rows {
        writer.serialize(row).map_err(|error| wrong(&error))?;
    }
    writer.flush().map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_broker_proto::limits::WEIGHT_MAX;
    use anabranch_broker_proto::{Optimiser, WorldShape, designs, evaluate, generate};

    #[test]
    fn world_read_back_has_the_same_outcome() {
        let shape = WorldShape {
            networks: vec![12, 4, 3],
            sessions: 300,
            countries: 4,
            cities: 40,
            providers: 3,
            ..WorldShape::default()
        };
        let world = generate(&shape, Seed::new(5));
        let folder = tempfile::tempdir().expect("a folder");
        write(&world, folder.path()).expect("room");
        let again = read(folder.path(), Seed::new(5)).expect("it was written");
        for name in ["brokered", "marketplace", "transactions"] {
            let design = designs::by_name(name).expect("there is one");
            let of = |world: &World| evaluate(world, &design, 1.0, &Optimiser::default());
            let (a, b) = (of(&world), of(&again));
            // Rates are rounded in the text form.
            let is_near = |a: f64, b: f64| (a - b).abs() <= 0.02 * a.abs().max(1e-9);
            assert!(
                is_near(a.cost_p50, b.cost_p50) && is_near(a.score_p50, b.score_p50),
                "{name}: {a:?} {b:?}"
            );
            assert!(is_near(a.distance_km_p50, b.distance_km_p50) && a.unserved == b.unserved, "{name}");
        }
    }

    /// All designs can be evaluated with numbers at their limits: no cluster is dropped, and there
    /// is no panic (#48).
    #[test]
    fn world_with_numbers_at_their_limits_is_evaluated() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = [
            ("cities.csv", "city,country,x_km,y_km\nberlin,de,-1e6,0\nparis,fr,1e6,100\n"),
            ("networks.csv", "network,price\na,1e6\nb,\n"),
            (
                "clusters.csv",
                "cluster,network,city,cost,capacity,background\n1,a,berlin,1e6,1000000 Gbit/s,\n2,b,paris,1e6,1000000 Gbit/s,5 Mbit/s\n",
            ),
            (
                "clients.csv",
                "city,isp,bitrate,sessions\nberlin,x,1000 Gbit/s,1000\nparis,x,1 bit/s,4000000000\n",
            ),
            ("scores.csv", "city,isp,cluster,score\nberlin,x,1,1e9\nberlin,x,2,1e9\nparis,x,2,1e9\n"),
        ];
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("room");
        }
        let world = read(folder.path(), Seed::new(1)).expect("it is at the limits");
        for design in designs::all() {
            for weight in [0.0, WEIGHT_MAX] {
                let outcome = evaluate(&world, &design, weight, &Optimiser::default());
                assert!(outcome.cost_p50 > 0.0 && outcome.unserved == 0, "{}: {outcome:?}", design.name());
            }
        }
    }

    #[test]
    fn errors_name_file_and_line() {
        let good = [
            ("cities.csv", "city,country,x_km,y_km\nberlin,de,0,0\nparis,fr,900,100\n"),
            ("networks.csv", "network,price\na,\nb,2.5\n"),
            (
                "clusters.csv",
                "cluster,network,city,cost,capacity,background\n1,a,berlin,1.0,1 Gbit/s,\n2,b,paris,2.0,1 Gbit/s,5 Mbit/s\n",
            ),
            ("clients.csv", "city,isp,bitrate,sessions\nberlin,x,3 Mbit/s,10\n"),
            ("scores.csv", "city,isp,cluster,score\nberlin,x,1,20\nparis,x,2,9\n"),
        ];
        let said = |name: &str, text: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            for (file, good) in good {
                std::fs::write(folder.path().join(file), if file == name { text } else { good })
                    .expect("room");
            }
            let line = read(folder.path(), Seed::new(1)).err().map(|mistake| mistake.to_string());
            let own = format!("{}/", folder.path().display());
            line.map(|line| line.replace(&own, ""))
        };
        assert_eq!(said("", ""), None);
        let line = |name: &str, text: &str| said(name, text).expect("it is wrong");
        assert_eq!(
            line("clients.csv", "city,isp,bitrate,sessions\nrome,x,3 Mbit/s,10\n"),
            "clients.csv: line 2: city `rome`: is not in cities.csv"
        );
        assert!(
            line("clients.csv", "city,isp,bitrate,sessions\nparis,x,3,10\n")
                .starts_with("clients.csv: line 2: ")
        );
        assert_eq!(
            line("networks.csv", "network,price\na,1\na,1\n"),
            "networks.csv: line 3: network `a`: is there twice"
        );
        assert_eq!(
            line("scores.csv", "city,isp,cluster,score\nberlin,x,1,-3\n"),
            "scores.csv: line 2: score -3: must be 0 to 10^9: choose a larger unit, or leave the cluster out"
        );
        assert_eq!(
            line("scores.csv", "city,isp,cluster,score\nparis,x,2,9\n"),
            "scores.csv: no cluster has a score for any place with clients"
        );
        let cluster = |cost: &str, capacity: &str, background: &str| {
            format!(
                "cluster,network,city,cost,capacity,background\n1,a,berlin,{cost},{capacity},{background}\n2,b,paris,1,1 Gbit/s,\n"
            )
        };
        let most = "1000000 Gbit/s";
        assert_eq!(said("clusters.csv", &cluster("1000000", most, most)), None);
        assert_eq!(
            line("clusters.csv", &cluster("1000000.5", most, most)),
            "clusters.csv: line 2: cost 1000000.5: must be 0 to 10^6 for each Mbit/s: choose a larger unit of money"
        );
        assert_eq!(
            line("clusters.csv", &cluster("1", "1000001 Gbit/s", "")),
            "clusters.csv: line 2: capacity 1000001000000000 bit/s: must be 0 to 10^15 bit/s: split the cluster into several"
        );
        assert!(line("clusters.csv", &cluster("1", most, "1000001 Gbit/s")).contains(": background "));
        assert_eq!(
            line("clients.csv", "city,isp,bitrate,sessions\nberlin,x,1001 Gbit/s,10\n"),
            "clients.csv: line 2: bitrate 1001000000000 bit/s: must be 1 to 10^12 bit/s: name the rate of one client"
        );
        assert!(said("clients.csv", "city,isp,bitrate,sessions\nberlin,x,1000 Gbit/s,10\n").is_none());
        assert_eq!(
            line("cities.csv", "city,country,x_km,y_km\nberlin,de,1e308,0\nparis,fr,0,0\n"),
            format!(
                "cities.csv: line 2: x_km {}: must be -10^6 to 10^6: name places on one plane, in km",
                1e308
            )
        );
        let short = line("cities.csv", "city,country,x_km\nberlin,de,1\n");
        assert!(short.starts_with("cities.csv: line 2: ") && short.contains("y_km"), "{short}");
    }
}
