//! The viewers of a cell: one of each channel, at the place of an edge drawn from the seed.
//!
//! Leaves out: what a viewer does ([`anabranch_live::players`]). Read [`Audience`] first.

use super::samples::{ViewerSums, at};
use super::testbed::{EDGES, REFLECTORS, SOURCES, Testbed, edges_of, place};
use super::{Cell, FIRST_PATIENCE, MEDIA_PORT, channel_name};
use anabranch_emu::Emulation;
use anabranch_live::players::{PlayerReport, PlayerSpec, Players, PlayersConfig, Progress};
use anabranch_units::{Duration as Span, Seed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time by which a sample comes before the viewers that begin at its second.
const SAMPLE_LEAD: Duration = Duration::from_millis(100);

/// Players of one place, and the channel of each.
struct LocationPlayers {
    channels: Vec<u64>,
    progress: Arc<Progress>,
    reports: JoinHandle<anyhow::Result<Vec<PlayerReport>>>,
}

/// Running viewers, by place.
pub(super) struct Audience {
    places: Vec<LocationPlayers>,
}

impl Audience {
    /// Starts the viewers; they end after `whole`.
    ///
    /// Errors: the system's; URLs that no player takes.
    pub(super) fn start(
        cell: &Cell,
        testbed: &Testbed,
        emulation: &Emulation,
        whole: Duration,
    ) -> anyhow::Result<Self> {
        let mut random = Seed::new(cell.seed).stream("live.viewers", 0);
        let drawn: Vec<usize> = (0..cell.channels).map(|_| random.below(EDGES as u64) as usize).collect();
        let mut places = Vec::new();
        for number in 0..EDGES {
            let channels: Vec<u64> =
                (0..cell.channels).filter(|channel| drawn[*channel as usize] == number).collect();
            if channels.is_empty() {
                continue;
            }
            let spec = |channel: &u64| {
                let edges = edges_of(number, cell.edges as usize);
                let name = channel_name(cell, *channel);
                let url = |edge: usize| {
                    let at = emulation.site_address(testbed.sites[SOURCES + REFLECTORS + edge]);
                    format!("http://{at}:{MEDIA_PORT}/{name}/index.m3u8")
                };
                PlayerSpec {
                    kind: cell.kind,
                    urls: edges.map(url).collect(),
                    starts_after: Span::from_std(cell.begin(*channel)),
                    subnet: None,
                }
            };
            let config = PlayersConfig {
                players: channels.iter().map(spec).collect(),
                dns: None,
                trust: None,
                duration: Some(Span::from_std(whole)),
                first_patience: FIRST_PATIENCE,
            };
            let players = Players::new(config)?;
            let progress = players.progress();
            let enter = emulation.handle().enter(testbed.sites[place(number)]);
            let reports = std::thread::spawn(move || -> anyhow::Result<Vec<PlayerReport>> {
                enter()?;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                Ok(runtime.block_on(players.run(std::future::pending())))
            });
            places.push(LocationPlayers { channels, progress, reports });
        }
        Ok(Self { places })
    }

    /// A thread that takes sums each `every` after `from` until `until`, times since its start, and
    /// [`SAMPLE_LEAD`] earlier. It takes none if `every` is zero.
    pub(super) fn sample(
        &self,
        (from, until): (Duration, Duration),
        every: Duration,
    ) -> JoinHandle<Vec<ViewerSums>> {
        let all: Vec<_> = self.places.iter().map(|place| Arc::clone(&place.progress)).collect();
        std::thread::spawn(move || {
            let began = Instant::now();
            let mut sums = Vec::new();
            let mut due = (from + every).saturating_sub(SAMPLE_LEAD);
            while !every.is_zero() && due <= until {
                std::thread::sleep(due.saturating_sub(began.elapsed()));
                sums.push(at(began.elapsed().saturating_sub(from), &all));
                due += every;
            }
            sums
        })
    }

    /// The reports of all viewers, in the order of their channels.
    ///
    /// Errors: the system's.
    pub(super) fn reports(self) -> anyhow::Result<Vec<PlayerReport>> {
        let mut reports = Vec::new();
        for place in self.places {
            let ended = place.reports.join();
            let ended = ended.map_err(|_| anyhow::anyhow!("a thread of players has panicked"))??;
            reports.extend(ended.into_iter().map(|report| (place.channels[report.player], report)));
        }
        reports.sort_by_key(|(channel, _)| *channel);
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }
}
