//! Requests that match the statistics of the three traces of §4.7.1.

use super::draws::{WeightedItems, root};
use crate::network::{ChannelId, Object};
use crate::plan::problem::{GroupId, ObjectId, Offer, Request};
use anabranch_units::{BitRate, Duration, RandomStream, Seed};
use std::collections::BTreeMap;

/// The three traces of §4.7.1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// A service with low demand: 7 % of the videos receive half of the requests.
    AverageDay,
    /// Average Day plus four games with a million viewers each.
    LargeEvent,
    /// Many channels with few viewers: the least popular 99 % of the videos receive 60 % of the
    /// requests.
    HeavyTail,
}

impl WorkloadKind {
    /// Number of channels of the published trace, without the games of a large event.
    pub const fn published_channels(self) -> u32 {
        match self {
            Self::HeavyTail => HEAVY_TAIL_CHANNELS,
            Self::AverageDay | Self::LargeEvent => AVERAGE_DAY_CHANNELS,
        }
    }
}

/// Kind and size of a workload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Trace that the workload resembles.
    pub kind: WorkloadKind,
    /// Number of channels, not counting the games of a large event.
    pub channels: u32,
    /// Number of requests, not counting requests for the games.
    pub requests: u32,
}

/// Viewers of one group that ask for one object at one time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Requested object.
    pub object: Object,
    /// Group of the viewers.
    pub group: GroupId,
    /// Number of viewers.
    pub viewers: u64,
}

/// Arrivals of one window and the bitrates of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Arrivals in order of time.
    pub arrivals: Vec<Arrival>,
    /// Bitrates of each channel, the lowest first.
    pub ladders: Vec<Vec<BitRate>>,
}

/// Number of games in a large event, and viewers of each game (§4.7.1).
const GAMES: u32 = 4;
const VIEWERS_PER_GAME: u64 = 1_000_000;
/// Bitrates of Heavy-Tail in kbit/s (§4.7.1), and shares of requests before the tilt that reaches
/// the published mean.
const HEAVY_TAIL_KBPS: [u64; 4] = [400, 1_000, 4_500, 30_000];
const HEAVY_TAIL_SHARES: [f64; 4] = [0.25, 0.275, 0.305, 0.17];
/// Published means of the requested bitrates, in kbit/s.
const HEAVY_TAIL_MEAN_KBPS: f64 = 6_850.0;
const AVERAGE_DAY_MEAN_KBPS: f64 = 2_725.0;
/// Bitrates of Average Day in kbit/s. Each channel has five of these bitrates.
const AVERAGE_DAY_KBPS: [u64; 12] =
    [150, 300, 500, 800, 1_200, 1_600, 2_200, 3_000, 4_000, 5_000, 6_000, 8_000];
/// Shares of requests by rung of a ladder: most viewers ask for the lowest or the highest bitrate.
const RUNG_SHARES: [f64; 5] = [0.30, 0.12, 0.12, 0.16, 0.30];
/// Indexes of a game's bitrates in `AVERAGE_DAY_KBPS`.
const GAME_RUNGS: [usize; 5] = [3, 5, 7, 9, 11];
/// Number of ladders from which the tilt is computed. Ladders are alike, so a sample suffices.
const LADDERS_SAMPLED: usize = 2_000;
/// Length of the published traces.
const HOUR: Duration = Duration::from_secs(3_600);
/// Numbers of channels and requests in the published traces.
const HEAVY_TAIL_CHANNELS: u32 = 10_000;
const AVERAGE_DAY_CHANNELS: u32 = 4_144;
const AVERAGE_DAY_REQUESTS: u32 = 55_000;

impl Workload {
    /// The workload of a window with `channels` channels: its share of the requests of
    /// [`Workload::hour`], rounded down to whole requests, and at least one.
    ///
    /// Source: §4.7.1, where windows last one minute.
    pub fn window(kind: WorkloadKind, channels: u32, length: Duration) -> Self {
        let hour = Self::hour(kind, channels);
        let requests = u128::from(hour.requests) * u128::from(length.as_ps()) / u128::from(HOUR.as_ps());
        Self { requests: u32::try_from(requests).unwrap_or(u32::MAX).max(1), ..hour }
    }
    /// The workload of an hour with `channels` channels, at the published ratio of requests to
    /// channels.
    pub fn hour(kind: WorkloadKind, channels: u32) -> Self {
        let requests = match kind {
            WorkloadKind::HeavyTail => 24 * u64::from(channels),
            _ => u64::from(channels) * u64::from(AVERAGE_DAY_REQUESTS) / u64::from(AVERAGE_DAY_CHANNELS),
        };
        Self { kind, channels, requests: u32::try_from(requests).unwrap_or(u32::MAX) }
    }

    /// Draws the arrivals. `shares` is [`super::Topology::shares`].
    pub fn draw(&self, shares: &[f64], seed: Seed) -> Trace {
        let mut stream = seed.stream("arrivals", 0);
        let exponent = self.exponent();
        let popularity: Vec<f64> =
            (0..self.channels).map(|rank| f64::from(rank + 1).powf(-exponent)).collect();
        let mut ladders = self.ladders(&mut seed.stream("ladders", 0));
        let choice = self.rung_choice(&popularity, &ladders);
        let (channels, groups) = (WeightedItems::new(popularity), WeightedItems::new(shares.iter().copied()));
        let mut arrivals = Vec::new();
        for _ in 0..self.requests {
            let channel = channels.draw(&mut stream);
            let rung = choice(&ladders[channel]).draw(&mut stream);
            let object = Object { channel: ChannelId(channel as u32), bitrate: ladders[channel][rung] };
            arrivals.push(Arrival { object, group: GroupId(groups.draw(&mut stream) as u32), viewers: 1 });
        }
        if self.kind == WorkloadKind::LargeEvent {
            self.add_games(&groups, &mut arrivals, &mut ladders, &mut seed.stream("games", 0));
            stream.shuffle(&mut arrivals);
        }
        Trace { arrivals, ladders }
    }

    /// Exponent of the Zipf law of popularity at which the published top share of the videos
    /// receives the published share of the requests.
    fn exponent(&self) -> f64 {
        let (channels, top, share) = match self.kind {
            WorkloadKind::HeavyTail => (HEAVY_TAIL_CHANNELS, 0.01, 0.4),
            _ => (AVERAGE_DAY_CHANNELS, 0.07, 0.5),
        };
        let top_count = (top * f64::from(channels)).round() as u32;
        let sum =
            |count: u32, exponent: f64| (1..=count).map(|rank| f64::from(rank).powf(-exponent)).sum::<f64>();
        root(0.0, 3.0, |exponent| sum(top_count, exponent) / sum(channels, exponent) - share)
    }

    pub(super) fn ladders(&self, stream: &mut RandomStream) -> Vec<Vec<BitRate>> {
        let kbps = |kbps: u64| BitRate::bps(1_000 * kbps);
        let ladder = |_| {
            if self.kind == WorkloadKind::HeavyTail {
                return HEAVY_TAIL_KBPS.map(kbps).to_vec();
            }
            let mut rungs = AVERAGE_DAY_KBPS.map(kbps);
            stream.shuffle(&mut rungs);
            let mut rungs = rungs[..RUNG_SHARES.len()].to_vec();
            rungs.sort_unstable();
            rungs
        };
        (0..self.channels).map(ladder).collect()
    }

    /// Returns the distribution of requests over the rungs of a ladder, tilted to the published
    /// mean.
    pub(super) fn rung_choice(
        &self,
        popularity: &[f64],
        ladders: &[Vec<BitRate>],
    ) -> impl Fn(&[BitRate]) -> WeightedItems + use<> {
        let (base, mean_kbps): (&[f64], f64) = match self.kind {
            WorkloadKind::HeavyTail => (&HEAVY_TAIL_SHARES, HEAVY_TAIL_MEAN_KBPS),
            _ => (&RUNG_SHARES, AVERAGE_DAY_MEAN_KBPS),
        };
        let sample = ladders.iter().zip(popularity).take(LADDERS_SAMPLED);
        let tilt = tilt_to(mean_kbps, base, sample.map(|(ladder, &popularity)| (&ladder[..], popularity)));
        move |ladder: &[BitRate]| WeightedItems::new(tilted(base, ladder, tilt))
    }

    fn add_games(
        &self,
        groups: &WeightedItems,
        arrivals: &mut Vec<Arrival>,
        ladders: &mut Vec<Vec<BitRate>>,
        stream: &mut RandomStream,
    ) {
        for game in 0..GAMES {
            let channel = ChannelId(self.channels + game);
            let ladder = GAME_RUNGS.map(|rung| BitRate::bps(1_000 * AVERAGE_DAY_KBPS[rung]));
            let tilt = tilt_to(AVERAGE_DAY_MEAN_KBPS, &RUNG_SHARES, [(&ladder[..], 1.0)].into_iter());
            let by_rung =
                WeightedItems::new(tilted(&RUNG_SHARES, &ladder, tilt)).spread(VIEWERS_PER_GAME, stream);
            for (bitrate, viewers) in ladder.into_iter().zip(by_rung) {
                let counts = groups.spread(viewers, stream);
                let asking = counts.into_iter().zip(0..).filter(|&(viewers, _)| viewers > 0);
                arrivals.extend(asking.map(|(viewers, group)| Arrival {
                    object: Object { channel, bitrate },
                    group: GroupId(group),
                    viewers,
                }));
            }
            ladders.push(ladder.to_vec());
        }
    }
}

/// Shares of the rungs, each multiplied by a power of its bitrate.
fn tilted(base: &[f64], ladder: &[BitRate], tilt: f64) -> Vec<f64> {
    base.iter().zip(ladder).map(|(share, rate)| share * rate.as_mbps_f64().powf(tilt)).collect()
}

/// The tilt at which the mean requested bitrate over these (ladder, popularity) pairs is
/// `mean_kbps`.
fn tilt_to<'a>(
    mean_kbps: f64,
    base: &[f64],
    ladders: impl Iterator<Item = (&'a [BitRate], f64)> + Clone,
) -> f64 {
    let mean = |tilt: f64| {
        let (mut rate, mut weight) = (0.0, 0.0);
        for (ladder, popularity) in ladders.clone() {
            let shares = tilted(base, ladder, tilt);
            let total: f64 = shares.iter().sum();
            let sum: f64 = shares.iter().zip(ladder).map(|(share, rate)| share * rate.as_mbps_f64()).sum();
            rate += popularity * sum / total;
            weight += popularity;
        }
        1_000.0 * rate / weight
    };
    root(-3.0, 3.0, |tilt| mean(tilt) - mean_kbps)
}

/// Offers and requests for these arrivals: one request per group and object, with all its viewers.
pub fn demand(arrivals: &[Arrival]) -> (Vec<Offer>, Vec<Request>) {
    let mut viewers: BTreeMap<(Object, GroupId), u64> = BTreeMap::new();
    for arrival in arrivals {
        *viewers.entry((arrival.object, arrival.group)).or_default() += arrival.viewers;
    }
    let mut offers: Vec<Offer> = Vec::new();
    let mut requests = Vec::new();
    for ((object, group), viewers) in viewers {
        if offers.last().is_none_or(|offer| offer.object != object) {
            offers.push(Offer { object, importance: 1.0 });
        }
        requests.push(Request { object: ObjectId(offers.len() as u32 - 1), group, viewers });
    }
    (offers, requests)
}
