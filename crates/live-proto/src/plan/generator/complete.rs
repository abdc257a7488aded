//! Arrivals from recorded requests. Locations and bitrates missing in the file are drawn.

use super::demand::{Arrival, Trace, Workload, WorkloadKind};
use super::draws::WeightedItems;
use crate::network::{ChannelId, Object};
use crate::plan::problem::{GroupId, REQUESTS_MAX};
use crate::plan::recorded::RecordedWindow;
use anabranch_units::{BitRate, RandomStream, Seed};
use std::fmt;

/// More than [`REQUESTS_MAX`] arrivals result from viewers without locations or bitrates.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TooManyArrivals;

impl fmt::Display for TooManyArrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {REQUESTS_MAX} arrivals in one window: give a shorter --window")
    }
}

impl std::error::Error for TooManyArrivals {}

impl Workload {
    /// Converts recorded requests to arrivals. The number of a location is the number of its group.
    /// For a request without a location, groups are drawn by `shares`. For a request without a
    /// bitrate, bitrates of `kind` are drawn at its published mean. A video's ladder has the
    /// bitrates of its requests in the window, and the drawn bitrates.
    ///
    /// Errors: more than [`REQUESTS_MAX`] arrivals. Panics: if there are more places than `shares`.
    pub fn complete(
        recorded: &RecordedWindow,
        kind: WorkloadKind,
        shares: &[f64],
        seed: Seed,
    ) -> Result<Trace, TooManyArrivals> {
        assert!(recorded.places().len() <= shares.len(), "each place is a group");
        let channels = recorded.videos().len() as u32;
        let workload = Self { kind, channels, requests: recorded.requests() as u32 };
        let mut popularity = vec![0.0; recorded.videos().len()];
        let mut ladders: Vec<Vec<BitRate>> = vec![Vec::new(); recorded.videos().len()];
        for row in recorded.rows() {
            popularity[row.video as usize] += row.viewers as f64;
            ladders[row.video as usize].extend(row.bitrate);
        }
        let drawn = if recorded.has_bitrates() {
            Vec::new()
        } else {
            workload.ladders(&mut seed.stream("ladders", 0))
        };
        let choice = workload.rung_choice(&popularity, &drawn);
        let groups = WeightedItems::new(shares.iter().copied());
        let mut stream = seed.stream("recorded", 0);
        let mut arrivals = Vec::new();
        for row in recorded.rows() {
            let channel = ChannelId(row.video);
            let by_bitrate: Vec<(BitRate, u64)> = match row.bitrate {
                Some(bitrate) => vec![(bitrate, row.viewers)],
                None => {
                    let ladder = &drawn[row.video as usize];
                    let counts = divided(&choice(ladder), row.viewers, &mut stream);
                    counts.into_iter().map(|(rung, viewers)| (ladder[rung], viewers)).collect()
                }
            };
            for (bitrate, viewers) in by_bitrate {
                let by_group = match row.place {
                    Some(place) => vec![(place as usize, viewers)],
                    None => divided(&groups, viewers, &mut stream),
                };
                let object = Object { channel, bitrate };
                arrivals.extend(by_group.into_iter().map(|(group, viewers)| Arrival {
                    object,
                    group: GroupId(group as u32),
                    viewers,
                }));
            }
            if arrivals.len() > REQUESTS_MAX {
                return Err(TooManyArrivals);
            }
        }
        for (ladder, drawn) in ladders.iter_mut().zip(drawn) {
            ladder.extend(drawn);
        }
        for ladder in &mut ladders {
            ladder.sort_unstable();
            ladder.dedup();
        }
        Ok(Trace { arrivals, ladders })
    }
}

/// Divides viewers among items, and omits items without viewers. A single viewer takes one draw.
fn divided(items: &WeightedItems, viewers: u64, stream: &mut RandomStream) -> Vec<(usize, u64)> {
    if viewers == 1 {
        return vec![(items.draw(stream), 1)];
    }
    let counts = items.spread(viewers, stream).into_iter().enumerate();
    counts.filter(|(_, viewers)| *viewers > 0).collect()
}
