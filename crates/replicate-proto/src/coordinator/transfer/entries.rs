//! Answers about the entries of a directory: equal names, and entries left at a destination.

use super::{Context, Transfer, one_line};
use crate::control::{EntryCounts, FoldedNames, LeftEntry, Unsettled, bound_left};
use crate::coordinator::{Run, SiteId, Verdict, ranges};
use anabranch_sets::UNSETTLED_MAX;
use anabranch_sets::folding::Folding;

impl Transfer {
    /// Takes over which entries of a directory its source cannot send.
    pub(super) fn handle_unsettled(&mut self, Unsettled { mut ranges, left_out }: Unsettled) {
        if self.request.is_directory() {
            ranges.truncate(UNSETTLED_MAX);
            // Every destination needs the head.
            ranges.retain(|range| self.head.bytes.is_some_and(|head| range.start >= head));
            let left_out = left_out.map(|line| one_line(&line));
            self.head.unsettled = Unsettled { ranges: ranges::normal(&ranges, u64::MAX), left_out };
        }
    }

    /// Takes over which names of a directory are equal, and where.
    pub(super) fn handle_names(
        &mut self,
        site: SiteId,
        FoldedNames { folding, mut collisions }: FoldedNames,
    ) {
        if !self.request.is_directory() {
            return;
        }
        if site == self.request.source {
            // The site may be hostile.
            collisions.truncate(Folding::LOSSY.len());
            for found in &mut collisions {
                found.first = (one_line(&found.first.0), one_line(&found.first.1));
            }
            self.head.collisions = collisions;
        } else {
            self.head.foldings.insert(site, folding);
        }
    }

    /// Refuses destinations whose file systems take names of the directory for equal. A comparison
    /// writes no name.
    pub(super) fn refuse_equal_names(&mut self, cx: &mut Context<'_>) {
        if self.request.rules.compare {
            return;
        }
        let head = &self.head;
        let refused = self.destinations.iter().filter(|d| d.open()).filter_map(|d| {
            let folding = head.foldings.get(&d.site)?;
            let collisions = head.collisions.iter().find(|found| found.folding == *folding)?;
            let reason = format!("{}: {}: nothing was sent: {collisions}", cx.name(d.site), d.path);
            Some((d.site, Verdict::Failed { reason }))
        });
        let refused: Vec<(SiteId, Verdict)> = refused.collect();
        for (site, verdict) in refused {
            self.decide(cx, site, verdict);
        }
    }

    /// Takes the end of a directory's writing at a destination.
    pub(super) fn handle_written(
        &mut self,
        cx: &mut Context<'_>,
        (site, run): (SiteId, Run),
        (entries, mut left): (EntryCounts, Vec<LeftEntry>),
        conflicts: Option<String>,
    ) {
        let verdict = match conflicts {
            None => Verdict::Done,
            Some(line) => Verdict::Conflict { reason: format!("{}: {}", cx.name(site), one_line(&line)) },
        };
        // The site may be hostile.
        bound_left(&mut left);
        if self.handle_completed(cx, site, run, Some(entries), verdict) && !left.is_empty() {
            self.head.left.insert(site, left);
        }
    }
}
