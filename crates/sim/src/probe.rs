//! Summary figures of a run's samples: how evenly the probed flows share each interval, and the
//! longest time of a flow without data.
//!
//! Only intervals after the warm-up count. Read [`ProbeSummary`] first.

use anabranch_units::Duration;

/// Summary of all probed links and flows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProbeSummary {
    /// Minimum use of a probed link in an interval, as a share of its rate.
    pub link_use_share_min: Option<f64>,
    /// Summaries of the probed flows, in order.
    pub flows: Vec<ProbedFlow>,
}

/// Summary of a probed flow.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct ProbedFlow {
    /// Minimum and maximum goodput in an interval, relative to the mean of all probed flows.
    pub shares: Option<(f64, f64)>,
    /// Longest time without data after the flow's start, in whole intervals.
    pub idle_max: Duration,
    idle: Duration,
}

impl ProbeSummary {
    /// Records the use of a link in an interval, as a share of its rate.
    pub(crate) fn link(&mut self, use_share: f64) {
        self.link_use_share_min =
            Some(self.link_use_share_min.map_or(use_share, |least| least.min(use_share)));
    }

    /// Records an interval of the probed flows: the amount that each flow received, in one common
    /// unit, and true if the flow has started. `None` for an ended flow. New flows are added at the
    /// end.
    pub(crate) fn flows(&mut self, interval: Duration, got: &[Option<(f64, bool)>]) {
        self.flows.resize(got.len().max(self.flows.len()), ProbedFlow::default());
        let sum: f64 = got.iter().flatten().map(|(got, _)| got).sum();
        let mean = sum / got.iter().flatten().count().max(1) as f64;
        for (flow, got) in self.flows.iter_mut().zip(got) {
            let Some((got, has_begun)) = *got else { continue };
            flow.idle = if got > 0.0 || !has_begun { Duration::ZERO } else { flow.idle + interval };
            flow.idle_max = flow.idle_max.max(flow.idle);
            if mean > 0.0 {
                let share = got / mean;
                let (least, most) = flow.shares.unwrap_or((share, share));
                flow.shares = Some((least.min(share), most.max(share)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_relative_to_each_intervals_mean() {
        let mut seen = ProbeSummary::default();
        seen.flows(Duration::from_ms(1), &[Some((1.0, true)), Some((3.0, true))]);
        seen.flows(Duration::from_ms(1), &[Some((8.0, true)), Some((8.0, true))]);
        assert_eq!(
            seen.flows.iter().map(|flow| flow.shares).collect::<Vec<_>>(),
            [Some((0.5, 1.0)), Some((1.0, 1.5))]
        );
    }

    #[test]
    fn idle_time_counts_between_a_flows_start_and_end() {
        let mut seen = ProbeSummary::default();
        let mut has_begun = false;
        for got in [Some(0.0), Some(0.0), Some(1.0), Some(0.0), Some(0.0), Some(1.0), Some(0.0), None, None] {
            has_begun |= got > Some(0.0);
            seen.flows(Duration::from_ms(10), &[got.map(|got| (got, has_begun))]);
        }
        assert_eq!(seen.flows[0].idle_max, Duration::from_ms(20));
    }

    #[test]
    fn minimum_link_use_over_intervals_is_kept() {
        let mut seen = ProbeSummary::default();
        assert_eq!(seen.link_use_share_min, None);
        [0.9, 0.4, 1.0].iter().for_each(|share| seen.link(*share));
        assert_eq!(seen.link_use_share_min, Some(0.4));
    }
}
