//! Players' reports about networks, and the broker's conclusions: step 1 of the decision protocol,
//! *estimate*, on the broker's side.
//!
//! A report tells whether a player's buffer ran empty or a segment was missing. The result for a
//! network between two rounds is one number: the share of good reports, taken as the share of the
//! demand that the network delivered (`Broker::handle_delivered`). Anybody can send reports, so a
//! minimum number is needed, one viewer counts little, and an operator must opt in.
//!
//! Source: CTA-5004 and CTA-5004-A (CMCD), keys `bs`, `rc`, `cdn`, `url`. Leaves out: their text
//! form (`media::cmcd`). Read [`Report`] and [`Reports`].

use crate::steering::Catalogue;
use anabranch_media::cmcd;
use anabranch_media::steering::{host_key, pathway_key};
use anabranch_units::PeerId;
use std::collections::BTreeMap;

/// Minimum number of reports of a network that count.
pub const REPORTS_LEAST: u32 = 20;

/// Share of reports that are bad because of players' access lines, whatever the networks do.
const ALWAYS_BAD: f64 = 0.02;

/// A player's report about a network.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The reported network.
    pub network: PeerId,
    /// True if the buffer did not run empty and all requests were answered.
    pub is_good: bool,
}

impl Report {
    /// Converts the report of a player that uses the network `plays_by`. The reported network is
    /// the one whose pathway or host the report names, or else `plays_by`. Returns `None` for a
    /// report about no network.
    pub fn of_cmcd(report: &cmcd::Report, catalogue: &Catalogue, plays_by: Option<PeerId>) -> Option<Self> {
        let named = || pathway_key(catalogue, report.cdn.as_deref()?);
        let by_host = || host_key(catalogue, report.host.as_deref()?);
        let network = named().or_else(by_host).or(plays_by)?;
        Some(Self { network, is_good: report.is_good })
    }
}

/// Reports since the last round.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// Total and good reports of each network.
    of: BTreeMap<PeerId, (u32, u32)>,
}

impl Reports {
    /// Records a report.
    pub fn note(&mut self, report: Report) {
        let (all, good) = self.of.entry(report.network).or_default();
        *all = all.saturating_add(1);
        *good = good.saturating_add(u32::from(report.is_good));
    }

    /// Returns the delivered share of each network since the last call. Reports about a network
    /// with fewer than [`REPORTS_LEAST`] are kept for the next call.
    pub fn take(&mut self) -> Vec<(PeerId, f64)> {
        let mut taken = Vec::new();
        self.of.retain(|network, (all, good)| {
            let counts = *all >= REPORTS_LEAST;
            if counts {
                let share = f64::from(*good) / f64::from(*all);
                taken.push((*network, (share / (1.0 - ALWAYS_BAD)).min(1.0)));
            }
            !counts
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_media::steering::Pathway;

    #[test]
    fn report_counts_for_the_network_that_it_names() {
        let pathway = |id: &str, host: &str| Pathway {
            id: id.to_owned(),
            hosts: [(1, host.to_owned())].into_iter().filter(|(_, host)| !host.is_empty()).collect(),
        };
        let catalogue =
            Catalogue::from([(PeerId(0), pathway("a", "a1.example")), (PeerId(1), pathway("b", ""))]);
        let of = |text: &str, plays_by| {
            let report = cmcd::Report::read(text).expect("it is a report");
            Report::of_cmcd(&report, &catalogue, plays_by).map(|report| (report.network.0, report.is_good))
        };
        let b = Some(PeerId(1));
        assert_eq!(of("bl=21300,bs,sid=\"6e2f\"", b), Some((1, false)), "the pathway in use");
        assert_eq!(of("br=3200,mtp=25400", b), Some((1, true)));
        assert_eq!(of("rc=503,url=\"https://a1.example:443/x.mp4\"", b), Some((0, false)), "by host");
        assert_eq!(of("rc=206,cdn=\"a.1\"", b), Some((0, true)), "by clone");
        assert_eq!(of("cdn=\"other\",url=\"https://other.example/x\"", b), Some((1, true)));
        assert_eq!(of("bs", None), None);
    }

    #[test]
    fn reports_below_the_minimum_stay_for_later() {
        let mut reports = Reports::default();
        let note = |reports: &mut Reports, network, count, is_good| {
            (0..count).for_each(|_| reports.note(Report { network: PeerId(network), is_good }));
        };
        note(&mut reports, 0, 49, true);
        note(&mut reports, 0, 51, false);
        note(&mut reports, 1, 19, false);
        note(&mut reports, 2, 99, true);
        note(&mut reports, 2, 1, false);
        assert_eq!(reports.take(), [(PeerId(0), 0.5), (PeerId(2), 1.0)]);
        note(&mut reports, 1, 1, false);
        assert_eq!(reports.take(), [(PeerId(1), 0.0)]);
        assert_eq!(reports.take(), []);
    }
}
