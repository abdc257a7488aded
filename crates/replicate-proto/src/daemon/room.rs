//! Memory of an attempt at a site, and whether the site has room for it beside its other attempts.

use crate::control::{FailureKind, SiteProgram, Submitter};

/// Number of parts (of [`MEMORY_PARTS`]) of a daemon's memory that the attempts of all sites may
/// use together.
pub const SITES_MEMORY_PARTS: u64 = 3;
/// Number of parts for the attempts of one site; see [`SITES_MEMORY_PARTS`].
pub const SITE_MEMORY_PARTS: u64 = 1;
/// Number of parts of the memory; see [`SITES_MEMORY_PARTS`].
pub const MEMORY_PARTS: u64 = 4;
/// Number of parts of its submitter's share that an attempt with reduced buffers may use. The
/// remaining part stays free for other attempts. See [`SITES_MEMORY_PARTS`].
const REDUCED_MEMORY_PARTS: u64 = 3;
/// Memory of a connection in addition to symbols: its TLS records in both directions (rustls
/// buffers at most 64 KiB), and its task.
const CONNECTION_BYTES: u64 = 96 << 10;
/// Maximum number of packets of a flow that each end remembers for audits. It is more than the
/// buffers between two sites hold.
pub const DIGESTS_MAX: usize = 4096;
/// Memory of one remembered packet in bytes: its generation and its digest.
const DIGEST_BYTES: usize = 16;

/// Maximum memory of an attempt in bytes: symbols, connections, and digests for audits.
pub fn memory_bytes(program: &SiteProgram) -> u64 {
    let stripes = program.incoming.iter().map(|i| i.stripes);
    let stripes = stripes.chain(program.outgoing.iter().map(|o| o.hop.stripes));
    let sides = (program.incoming.len() + program.outgoing.len()) as u64;
    let digests = sides * (DIGESTS_MAX * DIGEST_BYTES) as u64;
    program.memory_bytes() + stripes.map(u64::from).sum::<u64>() * CONNECTION_BYTES + digests
}

/// Maximum memory of one attempt of `submitter`, and the name of that limit.
fn memory_share(memory_max: u64, submitter: Submitter) -> (u64, String) {
    match submitter {
        Submitter::Operator => (memory_max, "--memory".to_owned()),
        Submitter::Site(_) => (
            memory_max / MEMORY_PARTS * SITES_MEMORY_PARTS,
            format!("{SITES_MEMORY_PARTS}/{MEMORY_PARTS} of --memory, the share of sites"),
        ),
    }
}

/// Reduces the buffers of a program that exceeds its submitter's share of the memory, as at a source
/// with a hundred destinations. All other programs stay unchanged.
///
/// The buffers become the largest with which the program uses [`REDUCED_MEMORY_PARTS`] of the share,
/// and at least one packet, which is enough for progress ([`crate::relay`]). Each site has its own
/// buffers, so that the other sites of the attempt are not affected. Returns the number of packets
/// before the reduction.
pub(crate) fn reduce_buffers(memory_max: u64, program: &mut SiteProgram) -> Option<u16> {
    let asked_packets = program.buffer_packets;
    let (share, _) = memory_share(memory_max, program.submitter);
    if asked_packets <= 1 || memory_bytes(program) <= share {
        return None;
    }
    let target = share / MEMORY_PARTS * REDUCED_MEMORY_PARTS;
    // Bisection: memory grows with the buffers, and `high` packets exceed the target.
    let (mut low, mut high) = (1, asked_packets);
    while high - low > 1 {
        program.buffer_packets = low.midpoint(high);
        if memory_bytes(program) <= target {
            low = program.buffer_packets;
        } else {
            high = program.buffer_packets;
        }
    }
    program.buffer_packets = low;
    Some(asked_packets)
}

/// Checks whether there is memory for an attempt, given the `others` with their submitters.
///
/// Attempts of operators may use all free memory. Attempts of all sites together may use at most
/// [`SITES_MEMORY_PARTS`]. The attempts of one site may use at most its part, or one attempt may
/// use more if the site has no other. No site can therefore keep out other sites or operators.
///
/// Errors: one line. `Refused` if the attempt can never fit, `Busy` if it must wait for other
/// attempts. Neither message contains the free memory, so that a line stays the same as long as its
/// cause.
pub(crate) fn find_room(
    memory_max: u64,
    others: impl Iterator<Item = (Submitter, u64)>,
    (submitter, wants): (Submitter, u64),
) -> Result<(), (FailureKind, String)> {
    let (mut all, mut of_sites, mut own) = (0, 0, 0);
    for (other, bytes) in others {
        all += bytes;
        of_sites += if other == Submitter::Operator { 0 } else { bytes };
        own += if other == submitter { bytes } else { 0 };
    }
    let share = |parts: u64| memory_max / MEMORY_PARTS * parts;
    let (most, whose) = memory_share(memory_max, submitter);
    if wants > most {
        let reason = format!(
            "{wants} bytes of memory with the smallest buffers: more than {most}, {whose}: choose fewer stripes or \
             smaller symbols, or allow more"
        );
        return Err((FailureKind::Refused, reason));
    }
    let busy = |what: String| Err((FailureKind::Busy, format!("{what}: it begins when others have ended")));
    if matches!(submitter, Submitter::Site(_)) {
        if own > 0 && own + wants > share(SITE_MEMORY_PARTS) {
            return busy(format!("{wants} bytes of memory beside those of the same site's transfers"));
        }
        if of_sites + wants > most {
            return busy(format!("{wants} bytes of memory beside those of sites' transfers"));
        }
    }
    if all + wants > memory_max {
        return busy(format!("{wants} bytes of memory beside those of other transfers"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Attempt, GroupProgram, HopSettings, OutgoingSpec, Priority, Run, TransferId};
    use crate::plan::{FlowId, Input, Mode, Term};
    use anabranch_units::{LinkId, SiteId};

    /// #17: an attempt failed permanently if there was no memory at that moment, and one source
    /// could use all of it.
    #[test]
    fn submitters_share_a_sites_memory() {
        let (operator, site) = (Submitter::Operator, |n| Submitter::Site(SiteId(n)));
        let kind = |others: &[(Submitter, u64)], wanted: (Submitter, u64)| {
            find_room(100, others.iter().copied(), wanted).map_err(|(kind, _)| kind)
        };
        let (busy, refused) = (Err(FailureKind::Busy), Err(FailureKind::Refused));
        // Operators may use everything and wait for other attempts. An attempt that can never fit
        // is refused.
        assert_eq!(kind(&[], (operator, 100)), Ok(()));
        assert_eq!(kind(&[], (operator, 101)), refused);
        assert_eq!(kind(&[(site(1), 1)], (operator, 100)), busy);
        // One site may use a quarter, or have one attempt.
        assert_eq!(kind(&[(site(1), 10)], (site(1), 15)), Ok(()));
        assert_eq!(kind(&[(site(1), 10)], (site(1), 16)), busy);
        assert_eq!(kind(&[(site(2), 10)], (site(1), 65)), Ok(()));
        // Sites together may use three quarters.
        assert_eq!(kind(&[(site(2), 10)], (site(1), 66)), busy);
        assert_eq!(kind(&[], (site(1), 75)), Ok(()));
        assert_eq!(kind(&[], (site(1), 76)), refused);
        assert_eq!(kind(&[(operator, 90)], (site(1), 11)), busy);
    }

    /// A source's program for a star: one flow to each of `destinations`.
    fn fan_out(
        destinations: u16,
        symbol_bytes: u32,
        buffer_packets: u16,
        submitter: Submitter,
    ) -> SiteProgram {
        let hop = HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk };
        let outgoing = |n: u16| OutgoingSpec {
            flow: FlowId(n.into()),
            group: 0,
            to: SiteId(n + 1),
            to_name: format!("d{n}"),
            link: LinkId(n.into()),
            address: "127.0.0.1:7172".into(),
            terms: vec![Term { input: Input::Stream(0), coefficient: 1, delayed: false }],
            hop: hop.clone(),
            padding_bytes: 0,
        };
        SiteProgram {
            run: Run { transfer: TransferId(1), attempt: Attempt(1) },
            site: SiteId(0),
            length: 1 << 20,
            snapshot: None,
            symbol_bytes,
            buffer_packets,
            groups: vec![GroupProgram {
                streams: 1,
                ceilings: vec![],
                mode: Mode::Routed,
                work: vec![],
                flush: 0,
                fills: None,
                filled: false,
            }],
            source_path: Some("file".into()),
            incoming: vec![],
            outgoing: (0..destinations).map(outgoing).collect(),
            sinks: vec![],
            store_and_forward: false,
            bandwidth_limit: None,
            submitter,
        }
    }

    /// #52: with the default settings a source refused 112 destinations and more.
    #[test]
    fn source_with_120_destinations_fits_into_the_default_memory() {
        let memory_max = 256 << 20;
        let mut program = fan_out(120, 65_536, 16, Submitter::Operator);
        assert!(memory_bytes(&program) > memory_max, "{} bytes", memory_bytes(&program));
        assert_eq!(reduce_buffers(memory_max, &mut program), Some(16));
        assert!((8..16).contains(&program.buffer_packets), "{} packets", program.buffer_packets);
        let wants = (program.submitter, memory_bytes(&program));
        assert_eq!(find_room(memory_max, std::iter::empty(), wants), Ok(()));
        // A second transfer to some destinations runs at the same time.
        let second = memory_bytes(&fan_out(20, 65_536, 16, Submitter::Operator));
        assert_eq!(find_room(memory_max, std::iter::once(wants), (Submitter::Operator, second)), Ok(()));
        let mut few = fan_out(20, 65_536, 16, Submitter::Operator);
        assert_eq!((reduce_buffers(memory_max, &mut few), few.buffer_packets), (None, 16));
    }

    proptest::proptest! {
        /// Programs that fit stay as they are. A reduced program is as large as its target allows,
        /// and no program is refused that fits with buffers of one packet.
        #[test]
        fn buffers_are_reduced_no_further_than_needed(
            destinations in 1..250u16, symbol_bytes in 1..200_000u32, packets in 0..600u16,
            memory_max in 0..(1u64 << 30), is_site in proptest::bool::ANY,
        ) {
            let submitter = if is_site { Submitter::Site(SiteId(0)) } else { Submitter::Operator };
            let asked = fan_out(destinations, symbol_bytes, packets, submitter);
            let of = |buffer_packets| memory_bytes(&SiteProgram { buffer_packets, ..asked.clone() });
            let (share, _) = memory_share(memory_max, submitter);
            let mut program = asked.clone();
            let before = reduce_buffers(memory_max, &mut program);
            if of(packets) <= share || packets <= 1 {
                proptest::prop_assert_eq!((before, &program), (None, &asked));
                return Ok(());
            }
            proptest::prop_assert_eq!(before, Some(packets));
            let (target, reduced) = (share / 4 * 3, program.buffer_packets);
            proptest::prop_assert!((1..packets).contains(&reduced));
            proptest::prop_assert!(of(reduced) <= target || reduced == 1);
            proptest::prop_assert!(of(reduced + 1) > target);
            let fits = find_room(memory_max, std::iter::empty(), (submitter, of(reduced))).is_ok();
            proptest::prop_assert_eq!(fits, of(1) <= share);
        }

        /// An operator's attempt of a quarter of the memory always fits, however much the sites
        /// use. A site without attempts can install one of that size while the sites' part has as
        /// much left.
        #[test]
        fn sites_leave_a_quarter_of_memory_to_operators(
            wanted in proptest::collection::vec((0..5u16, 1..40u64), 0..60),
        ) {
            let mut given: Vec<(Submitter, u64)> = Vec::new();
            for (site, bytes) in wanted {
                let wanted = (Submitter::Site(SiteId(site)), bytes);
                if find_room(100, given.iter().copied(), wanted).is_ok() {
                    given.push(wanted);
                }
            }
            let taken: u64 = given.iter().map(|(_, bytes)| bytes).sum();
            proptest::prop_assert!(taken <= 75);
            proptest::prop_assert!(find_room(100, given.iter().copied(), (Submitter::Operator, 25)).is_ok());
            for site in 0..5 {
                let own: Vec<u64> =
                    given.iter().filter(|(s, _)| *s == Submitter::Site(SiteId(site))).map(|(_, b)| *b).collect();
                proptest::prop_assert!(own.len() <= 1 || own.iter().sum::<u64>() <= 40 + 25);
            }
        }
    }
}
