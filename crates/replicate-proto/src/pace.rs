//! Rate at which a source with a limit supplies its file: one rule for daemons and for the
//! simulator.
//!
//! Bytes that leave the site are counted, so a piece of a coded group counts once for each time
//! that its symbols are sent. [`crate::program::source_rate`] computes this rate from a file's
//! rate.

use crate::control::SiteProgram;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};

/// Maximum backlog that a delayed source may catch up, as the time that this backlog takes at the
/// source's rate.
const CATCH_UP: Duration = Duration::from_ms(50);

/// The pace of a rate-limited source over all of its groups, or of one of its streams.
#[derive(Clone, Debug)]
pub struct Pace {
    limit: BitRate,
    due: Instant,
}

impl Pace {
    /// The pace of a program's source, from [`Instant::ZERO`] on; `None` without a limit.
    pub fn of(program: &SiteProgram) -> Option<Self> {
        program.bandwidth_limit.map(Self::new)
    }

    /// A pace of `limit` from [`Instant::ZERO`] on.
    pub(crate) const fn new(limit: BitRate) -> Self {
        Self { limit, due: Instant::ZERO }
    }

    /// Earliest time for the next piece.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Records that a piece is supplied now. `cost` is its cost in bytes ([`cost`]).
    pub fn spend(&mut self, now: Instant, cost: ByteCount) {
        let earliest = Instant::ZERO + now.saturating_since(Instant::ZERO + CATCH_UP);
        self.due = self.due.max(earliest) + self.limit.transmit_time(cost);
    }
}

/// Bytes that the source sends for a piece of `length` bytes of a group, all copies together.
///
/// A piece of a routed group is sent over one of the group's trees, and counts as the mean over all
/// trees.
pub fn cost(program: &SiteProgram, group: u16, length: u64) -> ByteCount {
    let outgoing = program.outgoing.iter().filter(|o| o.group == group);
    let terms = outgoing.map(|o| o.terms.len() as u64).sum::<u64>();
    ByteCount::new(length * terms / u64::from(program.groups[usize::from(group)].streams))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Attempt, HopSettings, Priority, Run, TransferId};
    use crate::plan::{Plan, Planner, Request, Scheme};
    use crate::program::{AttemptFacts, programs, source_rate};
    use anabranch_graph::builtin::builtin;
    use anabranch_pieces::ByteRange;

    const LENGTH: u64 = 1 << 20;

    fn source(scheme: Scheme, limit: impl Fn(&Plan) -> BitRate) -> SiteProgram {
        source_and_copies(scheme, limit).0
    }

    /// The source's program of a transfer over the butterfly with the rate limit `limit`, and the
    /// number of copies of the file that leave the source.
    fn source_and_copies(scheme: Scheme, limit: impl Fn(&Plan) -> BitRate) -> (SiteProgram, f64) {
        let topology = builtin("butterfly", BitRate::mbps(10)).expect("it is built in");
        let site = |name| topology.find_site(name).expect("it is a site of the butterfly");
        let request = Request::new(&topology, site("s"), [site("t1"), site("t2")]);
        let plan = Planner::new(request).and_then(|p| p.plan(scheme)).expect("they can be reached").plan;
        let attempted = AttemptFacts {
            run: Run { transfer: TransferId(1), attempt: Attempt(1) },
            length: LENGTH,
            snapshot: None,
            source_path: "file",
            path: &|_| "file".to_owned(),
            missing: &|_| vec![ByteRange { start: 0, end: LENGTH }],
            symbol_bytes: 16 << 10,
            buffer_packets: 4,
            bandwidth_limit: Some(limit(&plan)),
            submitter: Default::default(),
            hop: &|_| HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk },
            address: &|_, _| String::new(),
        };
        let sent = plan.bytes_per_link(ByteCount::new(LENGTH));
        let sent = sent.iter().filter(|(link, _)| topology.link(**link).from == plan.source);
        let copies = sent.map(|(_, bytes)| bytes.as_u64()).sum::<u64>() as f64 / LENGTH as f64;
        let program = programs(&topology, &plan, &attempted).remove(&plan.source);
        (program.expect("the source has a program"), copies)
    }

    #[test]
    fn limited_file_takes_the_time_of_its_share() {
        for scheme in [Scheme::Coded, Scheme::Packed, Scheme::SteinerOneTree, Scheme::SinglePath] {
            let rate = BitRate::mbps(8);
            let program = source(scheme, |plan| source_rate(plan, rate));
            let mut pace = Pace::of(&program).expect("it is held");
            for _ in 0..100 {
                pace.spend(pace.due(), cost(&program, 0, LENGTH / 100));
            }
            let (took, wants) =
                (pace.due().saturating_since(Instant::ZERO), rate.transmit_time(ByteCount::new(LENGTH)));
            let ratio = took.as_secs_f64() / wants.as_secs_f64();
            assert!((0.999..1.001).contains(&ratio), "{scheme}: {took} for {wants}");
        }
    }

    /// A limit on the file's rate would let a source with two branches send at twice the limit.
    #[test]
    fn limit_covers_all_copies_of_a_routed_piece() {
        for scheme in [Scheme::Coded, Scheme::Packed, Scheme::Steiner, Scheme::SteinerOneTree] {
            let (program, sent) = source_and_copies(scheme, |_| BitRate::mbps(8));
            let costs = (0..program.groups.len() as u16).map(|group| cost(&program, group, LENGTH).as_u64());
            let cost = costs.sum::<u64>() as f64 / LENGTH as f64;
            assert!((cost - sent).abs() < 1e-3, "{scheme}: {cost} copies count, {sent} leave");
        }
    }

    #[test]
    fn delayed_source_catches_up_for_fifty_milliseconds_only() {
        let program = source(Scheme::SinglePath, |_| BitRate::mbps(8));
        let mut pace = Pace::of(&program).expect("it is held");
        let late = Instant::ZERO + Duration::from_secs(10);
        let mut at_once = 0_u64;
        while pace.due() <= late {
            pace.spend(late, ByteCount::new(1_000));
            at_once += 1_000;
        }
        assert!((50_000..=51_000).contains(&at_once), "{at_once} bytes at 1 MB/s");
    }
}
