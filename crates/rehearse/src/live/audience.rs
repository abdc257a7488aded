//! Viewers in the emulator. A cell has one viewer of each channel, at an edge drawn from the seed.
//!
//! Leaves out: the behaviour of a viewer ([`anabranch_live::players`]). Read [`Audience`] first.

use super::programs::{DNS_PORT, channel_name, named_url, playlist_url};
use super::samples::{ViewerSums, at};
use super::testbed::{EDGES, REFLECTORS, SOURCES, Testbed, edges_of, place};
use super::{Cell, FIRST_PATIENCE};
use anabranch_emu::Emulation;
use anabranch_live::players::{PlayerReport, PlayerSpec, Players, PlayersConfig, Progress};
use anabranch_units::{Duration as Span, Seed, SiteId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time by which a sample is taken before its due time. So the sample does not count the viewers
/// that begin at its due time.
const SAMPLE_LEAD: Duration = Duration::from_millis(100);

/// Effect of Ctrl-C.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum OnInterrupt {
    /// Ends this process, as without a handler.
    EndProcess,
    /// Ends the viewers; the process has its own handler.
    EndViewers,
}

/// Players in one site, and their numbers.
struct LocationPlayers {
    numbers: Vec<u64>,
    progress: Arc<Progress>,
    reports: JoinHandle<anyhow::Result<Vec<PlayerReport>>>,
}

/// Running viewers, by site.
pub(super) struct Audience {
    places: Vec<LocationPlayers>,
    /// Disconnected once the viewers of all sites have ended.
    ended: Receiver<()>,
}

/// The viewers of a cell, by site. Each viewer has the number of its channel.
pub(super) fn of_cell(
    cell: &Cell,
    testbed: &Testbed,
    emulation: &Emulation,
) -> BTreeMap<SiteId, Vec<(u64, PlayerSpec)>> {
    let mut random = Seed::new(cell.seed).stream("live.viewers", 0);
    let mut places: BTreeMap<SiteId, Vec<(u64, PlayerSpec)>> = BTreeMap::new();
    for channel in 0..cell.channels {
        let number = random.below(EDGES as u64) as usize;
        let name = channel_name(cell.channels, channel);
        let edges = edges_of(number, cell.edges as usize);
        let url = |edge| playlist_url(emulation, testbed.sites[SOURCES + REFLECTORS + edge], &name);
        let spec = PlayerSpec {
            kind: cell.kind,
            urls: if cell.paths.dns { vec![named_url(&name)] } else { edges.map(url).collect() },
            starts_after: Span::from_std(cell.begin(channel)),
            subnet: None,
            buffer: None,
        };
        places.entry(testbed.sites[place(number)]).or_default().push((channel, spec));
    }
    places
}

/// The DNS server that each site of viewers asks: the one beside its edge. Empty without DNS.
pub(super) fn dns_servers(
    cell: &Cell,
    testbed: &Testbed,
    emulation: &Emulation,
) -> BTreeMap<SiteId, SocketAddr> {
    let edges = if cell.paths.dns { 0..EDGES } else { 0..0 };
    let server = |number| {
        let edge = testbed.sites[SOURCES + REFLECTORS + number];
        let address = (emulation.site_address(edge), DNS_PORT).into();
        (testbed.sites[place(number)], address)
    };
    edges.map(server).collect()
}

impl Audience {
    /// Starts the viewers of all sites; the viewers end after `whole`. Viewers in a site of `dns`
    /// ask its server for their edge.
    ///
    /// Errors: an error of the operating system; URLs that players refuse.
    pub(super) fn start(
        emulation: &Emulation,
        viewers: BTreeMap<SiteId, Vec<(u64, PlayerSpec)>>,
        dns: &BTreeMap<SiteId, SocketAddr>,
        whole: Duration,
        on_interrupt: OnInterrupt,
    ) -> anyhow::Result<Self> {
        let (running, ended) = channel();
        let mut places = Vec::new();
        for (site, viewers) in viewers {
            let (numbers, players) = viewers.into_iter().unzip();
            let config = PlayersConfig {
                players,
                dns: dns.get(&site).copied(),
                trust: None,
                duration: Some(Span::from_std(whole)),
                first_patience: FIRST_PATIENCE,
            };
            let players = Players::new(config)?;
            let (progress, running) = (players.progress(), running.clone());
            let enter = emulation.handle().enter(site);
            let reports = std::thread::spawn(move || -> anyhow::Result<Vec<PlayerReport>> {
                // The sender is dropped when this thread ends.
                let _running: Sender<()> = running;
                enter()?;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                Ok(runtime.block_on(async {
                    match on_interrupt {
                        OnInterrupt::EndProcess => players.run(std::future::pending()).await,
                        OnInterrupt::EndViewers => {
                            players.run(async { drop(tokio::signal::ctrl_c().await) }).await
                        }
                    }
                }))
            });
            places.push(LocationPlayers { numbers, progress, reports });
        }
        Ok(Self { places, ended })
    }

    /// Waits for this time. Returns false as soon as all viewers have ended.
    pub(super) fn wait(&self, time: Duration) -> bool {
        matches!(self.ended.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    /// Progress of the viewers in each site.
    pub(super) fn progress(&self) -> Vec<Arc<Progress>> {
        self.places.iter().map(|place| Arc::clone(&place.progress)).collect()
    }

    /// Starts a thread that takes sums at each `every` after `from` until `until`, always
    /// [`SAMPLE_LEAD`] earlier. Times count from the thread's start. The thread takes no sums if
    /// `every` is zero.
    pub(super) fn sample(
        &self,
        (from, until): (Duration, Duration),
        every: Duration,
    ) -> JoinHandle<Vec<ViewerSums>> {
        let all = self.progress();
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

    /// Waits for the end, and returns the reports of all viewers that began, in the order of their
    /// numbers.
    ///
    /// Errors: an error of the operating system.
    pub(super) fn reports(self) -> anyhow::Result<Vec<PlayerReport>> {
        let mut reports = Vec::new();
        for place in self.places {
            let ended = place.reports.join();
            let ended = ended.map_err(|_| anyhow::anyhow!("a thread of players has panicked"))??;
            reports.extend(ended.into_iter().map(|report| (place.numbers[report.player], report)));
        }
        reports.sort_by_key(|(number, _)| *number);
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }
}
