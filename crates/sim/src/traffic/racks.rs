//! Flows between racks, at a rate for each rack.
//!
//! Source: the thesis on Etalon (Mukerjee, 2018), §2.5.3: given the sizes of a rack's flows, the
//! flows start at times at which they use a given rate together. Read [`RackLoad`]. Leaves out:
//! running the flows ([`super::Transfers`]).

use super::Start;
use crate::sizes::Sizes;
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream};

/// Flows of all racks of a network.
#[derive(Clone, Debug)]
pub struct RackLoad {
    /// Hosts of each rack.
    pub hosts: Vec<Vec<u16>>,
    /// Data rate of each rack's flows.
    pub rate: BitRate,
    /// Sizes of flows.
    pub sizes: Sizes,
    /// Numbers k for flows from rack i to rack i + k, modulo the number of racks.
    pub shifts: Vec<u16>,
    /// End of the period in which flows start.
    pub until: Instant,
}

impl RackLoad {
    /// Expected number of flows of all racks.
    pub fn flows_mean(&self) -> f64 {
        let bytes = self.rate.as_bps() as f64 / 8.0 * self.until.as_secs_f64();
        bytes / self.sizes.mean_bytes() * self.hosts.len() as f64
    }

    /// Draws the flows, rack by rack. Both hosts of a flow are drawn from their racks.
    ///
    /// Panics: if a rack has no host, or there is no shift.
    pub fn starts(&self, random: &mut RandomStream) -> Vec<Start> {
        let racks = self.hosts.len();
        let mut starts = Vec::new();
        for source in 0..racks {
            let mut at: Option<Instant> = None;
            loop {
                let size = self.sizes.draw(random);
                let lasts = self.rate.transmit_time(size);
                let begins_at = at.unwrap_or_else(|| Instant::ZERO + up_to(lasts, random));
                if begins_at >= self.until {
                    break;
                }
                let shift = *pick(&self.shifts, random);
                let destination = (source + usize::from(shift)) % racks;
                let (src, dst) =
                    (*pick(&self.hosts[source], random), *pick(&self.hosts[destination], random));
                starts.push(Start { at: begins_at, src, dst, size: Some::<ByteCount>(size) });
                at = Some(begins_at + lasts);
            }
        }
        starts
    }
}

fn up_to(time: Duration, random: &mut RandomStream) -> Duration {
    Duration::from_ps(random.below(time.as_ps().max(1)))
}

fn pick<'a, T>(of: &'a [T], random: &mut RandomStream) -> &'a T {
    &of[random.below(of.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;

    fn load(shifts: Vec<u16>) -> RackLoad {
        RackLoad {
            hosts: (0..4).map(|rack| vec![rack * 2, rack * 2 + 1]).collect(),
            rate: BitRate::gbps(1),
            sizes: Sizes::uniform(ByteCount::new(90_000), ByteCount::new(900_000)),
            shifts,
            until: Instant::from_us(1_000_000),
        }
    }

    #[test]
    fn flows_of_each_rack_use_the_given_rate() {
        let load = load(vec![1, 3]);
        let starts = load.starts(&mut Seed::new(3).stream("workload", 0));
        for rack in 0..4 {
            let of_rack = starts.iter().filter(|start| start.src / 2 == rack);
            let bytes: u64 = of_rack.map(|start| start.size.expect("a size").as_u64()).sum();
            // The expected size is 125 MB, with at most one flow more or less at either end.
            assert!(bytes.abs_diff(125_000_000) <= 900_000, "rack {rack}: {bytes}");
        }
        assert!((starts.len() as f64 / load.flows_mean() - 1.0).abs() < 0.1, "{} flows", starts.len());
    }

    #[test]
    fn flows_are_sent_to_racks_at_the_given_shifts() {
        let starts = load(vec![1, 3]).starts(&mut Seed::new(3).stream("workload", 0));
        let shift = |start: &Start| (start.dst / 2 + 4 - start.src / 2) % 4;
        let first = starts.iter().filter(|start| shift(start) == 1).count();
        assert!(starts.iter().all(|start| [1, 3].contains(&shift(start))));
        // Each of the two shifts is drawn for half of about 1,000 flows.
        assert!((first as f64 / starts.len() as f64 - 0.5).abs() < 0.08, "{first} of {}", starts.len());
    }
}
