//! Options for a drawn network and workload of §4.7.1.
//!
//! Leaves out: the draws (`live_proto::plan::generator`). Read [`WorldArgs`] first.

use super::recorded::RecordedArgs;
use anabranch_live_proto::plan::generator::{Topology, TopologyShape, Trace, Workload, WorkloadKind};
use anabranch_live_proto::plan::recorded::RecordedWindow;
use anabranch_live_proto::plan::{OBJECTS_MAX, Priority, REQUESTS_MAX};
use anabranch_units::{BitRate, Duration, Seed};
use anyhow::Context as _;
use std::collections::BTreeSet;

/// A trace of §4.7.1.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum WorkloadName {
    AverageDay,
    LargeEvent,
    HeavyTail,
}

impl WorkloadName {
    /// The name as users write it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AverageDay => "average-day",
            Self::LargeEvent => "large-event",
            Self::HeavyTail => "heavy-tail",
        }
    }
    const fn kind(self) -> WorkloadKind {
        match self {
            Self::AverageDay => WorkloadKind::AverageDay,
            Self::LargeEvent => WorkloadKind::LargeEvent,
            Self::HeavyTail => WorkloadKind::HeavyTail,
        }
    }
}

/// A topology of Figure 4.14.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Bottleneck {
    /// Links of 4 and 30 Gbit/s between the tiers.
    Source,
    /// Links of 400 and 30 Gbit/s between the tiers.
    Reflector,
    /// Links of 4,000 and 3,000 Gbit/s between the tiers.
    Edge,
}

impl Bottleneck {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Reflector => "reflector",
            Self::Edge => "edge",
        }
    }
    /// Factors of the capacities of the three tiers.
    const fn factors(self) -> [u64; 3] {
        match self {
            Self::Source => [1, 1, 1],
            Self::Reflector => [100, 1, 1],
            Self::Edge => [1_000, 100, 1],
        }
    }
}

/// Parents of reflectors, edges and groups: (x, y, z) of Figure 4.13.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ParentCounts(pub(super) [u32; 3]);

impl std::str::FromStr for ParentCounts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "must be three whole numbers above 0, as 4,3,3".to_owned();
        let degrees: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        let degrees: [u32; 3] = degrees.map_err(|_| wanted())?.try_into().map_err(|_| wanted())?;
        if degrees.contains(&0) { Err(wanted()) } else { Ok(Self(degrees)) }
    }
}

impl std::fmt::Display for ParentCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "{x},{y},{z}")
    }
}

/// The network and the arrivals of one window.
#[derive(Clone, clap::Args)]
pub(super) struct WorldArgs {
    /// Trace whose statistics the requests have.
    #[arg(long, value_enum, default_value_t = WorkloadName::HeavyTail)]
    pub(super) workload: WorkloadName,
    /// Number of videos; requests grow with it. Without: 10,000 for heavy-tail, 4,144 for the
    /// others.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    videos: Option<u32>,
    /// Seconds of arrivals that one plan serves; 3,600 is the whole hour.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(super) window: u32,
    /// Number of edges. Links keep their capacities, so more edges have more capacity together.
    #[arg(long, value_name = "COUNT", default_value_t = TopologyShape::default().edges)]
    pub(super) edges: u32,
    /// Sources of a reflector, reflectors of an edge, edges of a group. The capacity of a tier does
    /// not depend on them.
    #[arg(long, value_name = "X,Y,Z", default_value = "4,3,3")]
    pub(super) connectivity: ParentCounts,
    /// Tier that limits: capacities of (4, 30), (400, 30) or (4,000, 3,000) Gbit/s between the
    /// tiers at 100 edges.
    #[arg(long, value_enum, default_value_t = Bottleneck::Source)]
    pub(super) bottleneck: Bottleneck,
    #[command(flatten)]
    recorded: RecordedArgs,
}

impl WorldArgs {
    /// Number of videos of a drawn workload.
    fn videos(&self) -> u32 {
        self.videos.unwrap_or_else(|| self.workload.kind().published_channels())
    }

    fn length(&self) -> Duration {
        Duration::from_secs(u64::from(self.window))
    }

    /// Recorded requests of the planning window; `None` if requests are drawn at random.
    ///
    /// Errors: one line with the file and its line.
    pub(super) fn recorded(&self) -> anyhow::Result<Option<RecordedWindow>> {
        self.recorded.read(self.length())
    }

    /// Name of the workload in rows, and number of its videos.
    pub(super) fn described(&self, recorded: Option<&RecordedWindow>) -> (&'static str, u32) {
        match recorded {
            Some(recorded) => ("recorded", recorded.videos().len() as u32),
            None => (self.workload.name(), self.videos()),
        }
    }

    /// Draws the network, and the arrivals of one window, or only the values that a recorded window
    /// lacks. If a file states places, these are the cities of the network, and edges are in the
    /// cities with the most viewers.
    ///
    /// Errors: a shape that cannot be drawn, or more arrivals than one round may have.
    pub(super) fn draw(
        &self,
        seed: u64,
        recorded: Option<&RecordedWindow>,
    ) -> anyhow::Result<(Topology, Trace)> {
        let default = TopologyShape::default();
        let factors = self.bottleneck.factors();
        let tier = |tier: usize| {
            let (links, parents) = (default.parents[tier], self.connectivity.0[tier]);
            let bps = default.capacities[tier].as_bps() * factors[tier];
            BitRate::bps(bps * u64::from(links) / u64::from(parents))
        };
        let places = recorded.map_or(0, |recorded| recorded.places().len() as u32);
        let (cities, groups) = if places > 0 { (places, places) } else { (default.cities, default.groups) };
        let shape = TopologyShape {
            edges: self.edges,
            cities,
            groups,
            parents: self.connectivity.0,
            capacities: [tier(0), tier(1), tier(2)],
            ..default
        };
        let topology = shape.draw(Seed::new(seed)).context("cannot draw the network")?;
        let trace = match recorded {
            Some(recorded) => {
                Workload::complete(recorded, self.workload.kind(), &topology.shares, Seed::new(seed))?
            }
            None => self.drawn(&topology, seed)?,
        };
        let objects = objects_max(&trace);
        ensure_usage!(
            objects <= OBJECTS_MAX,
            "{} videos in {} s: up to {objects} objects, videos at one bitrate: at most {OBJECTS_MAX} are possible",
            trace.ladders.len(),
            self.window,
        );
        Ok((topology, trace))
    }

    fn drawn(&self, topology: &Topology, seed: u64) -> anyhow::Result<Trace> {
        let workload = Workload::window(self.workload.kind(), self.videos(), self.length());
        ensure_usage!(
            workload.requests as usize <= REQUESTS_MAX,
            "--videos {} in {} s: {} requests: at most {REQUESTS_MAX} are possible in one window",
            self.videos(),
            self.window,
            workload.requests,
        );
        Ok(workload.draw(&topology.shares, Seed::new(seed)))
    }
}

/// Maximum number of objects requested at the same time. Each viewer requests one object, and lower
/// bitrates are rungs of the video's ladder.
fn objects_max(trace: &Trace) -> usize {
    let channels: BTreeSet<_> = trace.arrivals.iter().map(|arrival| arrival.object.channel).collect();
    let rungs = channels.iter().map(|channel| trace.ladders[channel.0 as usize].len()).sum();
    trace.arrivals.len().min(rungs)
}

/// Parses a share from 0 to 0.999999, the largest value below 1 in whole parts per million.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=0.999_999).contains(&value) { Ok(value) } else { Err("must be from 0 to 0.999999".to_owned()) }
}

/// Parses a weight of cost from 0 to 1,000.
pub(super) fn weight(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=1_000.0).contains(&value) { Ok(value) } else { Err("must be from 0 to 1000".to_owned()) }
}

/// A share in parts per million.
pub(super) fn ppm(share: f64) -> u32 {
    (share * 1e6).round() as u32
}

/// An operator's preference, as users write it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PriorityName {
    Quality,
    Balanced,
    Quantity,
}

impl From<PriorityName> for Priority {
    fn from(name: PriorityName) -> Self {
        match name {
            PriorityName::Quality => Self::Quality,
            PriorityName::Balanced => Self::Balanced,
            PriorityName::Quantity => Self::Quantity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_live_proto::plan::recorded::{RecordFormat, Records};
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        world: WorldArgs,
    }

    fn world(words: &[&str]) -> WorldArgs {
        let words = ["evaluate"].iter().chain(words);
        Line::try_parse_from(words).map_err(|error| error.to_string()).expect("good options").world
    }

    #[test]
    fn connectivity_keeps_the_capacity_of_tiers() {
        let capacity = |connectivity: &str| {
            let (topology, _) = world(&["--connectivity", connectivity]).draw(1, None).expect("a good shape");
            topology.network.links().iter().map(|link| link.capacity.as_mbps_f64()).sum::<f64>()
        };
        assert!((capacity("4,3,3") - 34_000.0).abs() < 1.0);
        assert!((capacity("2,6,1") - 34_000.0).abs() < 1.0);
    }

    #[test]
    fn places_in_a_file_become_the_cities() {
        let records = Records::new(&b"time,video,place\n0,a,x\n1,a,y\n2,b,y\n"[..], RecordFormat::Requests);
        let minute = Duration::from_secs(60);
        let recorded = RecordedWindow::read(records, None, minute, |address| address.to_string());
        let recorded = recorded.expect("a log");
        let world = world(&["--edges", "3"]);
        let (topology, trace) = world.draw(1, Some(&recorded)).expect("a small world");
        assert_eq!(topology.groups.iter().map(|group| group.city).collect::<Vec<_>>(), [0, 1]);
        let groups: Vec<u32> = trace.arrivals.iter().map(|arrival| arrival.group.0).collect();
        assert_eq!(groups, [1, 0, 0], "`y` has more viewers");
        assert_eq!(world.described(Some(&recorded)), ("recorded", 2));
    }

    #[test]
    fn invalid_world_options_are_refused_by_name() {
        let refused = |words: &[&str]| {
            world(words).draw(1, None).map_err(|error| format!("{error:#}")).expect_err("it cannot be drawn")
        };
        assert!(refused(&["--edges", "0"]).contains("edges 0: must be from 1 to"));
        assert!(refused(&["--videos", "300000"]).contains("objects"), "it panicked");
        assert!(refused(&["--connectivity", "9,3,3"]).contains("sources of a reflector 9"));
        assert!(refused(&["--videos", "1000000", "--window", "3600"]).contains("24000000 requests"));
        for text in ["4,3", "4,3,0", "a,b,c"] {
            assert!(text.parse::<ParentCounts>().is_err(), "{text}");
        }
    }
}
