//! Memory of an attempt at a site, and whether there is room for it together with the others.

use crate::control::{FailureKind, SiteProgram, Submitter};

/// Number of parts (of [`MEMORY_PARTS`]) of a daemon's memory that the attempts of all sites may
/// use together.
pub const SITES_MEMORY_PARTS: u64 = 3;
/// Number of parts for the attempts of one site; see [`SITES_MEMORY_PARTS`].
pub const SITE_MEMORY_PARTS: u64 = 1;
/// Number of parts of the memory; see [`SITES_MEMORY_PARTS`].
pub const MEMORY_PARTS: u64 = 4;
/// Memory of a connection in addition to symbols: its TLS records in both directions (rustls
/// buffers at most 64 KiB), and its task.
const CONNECTION_BYTES: u64 = 96 << 10;
/// Maximum number of packets of a flow that are remembered at each end for audits. It is more than
/// the buffers between two sites hold.
pub const DIGESTS_MAX: usize = 4096;
/// Size of each: its generation and its digest.
const DIGEST_BYTES: usize = 16;

/// Maximum memory of an attempt in bytes: symbols, connections, and digests for audits.
pub fn memory_bytes(program: &SiteProgram) -> u64 {
    let stripes = program.incoming.iter().map(|i| i.stripes);
    let stripes = stripes.chain(program.outgoing.iter().map(|o| o.hop.stripes));
    let sides = (program.incoming.len() + program.outgoing.len()) as u64;
    let digests = sides * (DIGESTS_MAX * DIGEST_BYTES) as u64;
    program.memory_bytes() + stripes.map(u64::from).sum::<u64>() * CONNECTION_BYTES + digests
}

/// Whether there is memory for an attempt, given the `others` with their submitters.
///
/// Attempts of operators may use all free memory. Attempts of sites may use at most their parts
/// together ([`SITES_MEMORY_PARTS`]), and the attempts of one site at most its part, or one attempt
/// if it has no other. No site can therefore keep out the others.
///
/// Errors: `Refused` if it can never fit, `Busy` if it must wait for others; one line. Neither
/// message contains the free memory, so that a line stays the same as long as its cause.
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
    let (most, whose) = match submitter {
        Submitter::Operator => (memory_max, "--memory".to_owned()),
        Submitter::Site(_) => (
            share(SITES_MEMORY_PARTS),
            format!("{SITES_MEMORY_PARTS}/{MEMORY_PARTS} of --memory, the share of sites"),
        ),
    };
    if wants > most {
        let reason = format!(
            "{wants} bytes of memory: more than {most}, {whose}: choose fewer stripes, smaller symbols or buffers, or allow \
             more"
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
    use anabranch_units::SiteId;

    /// #17: an attempt failed permanently if there was no memory at that moment, and one source
    /// could use all of it.
    #[test]
    fn memory_is_shared_by_who_submitted_and_waited_for() {
        let (operator, site) = (Submitter::Operator, |n| Submitter::Site(SiteId(n)));
        let kind = |others: &[(Submitter, u64)], wanted: (Submitter, u64)| {
            find_room(100, others.iter().copied(), wanted).map_err(|(kind, _)| kind)
        };
        let (busy, refused) = (Err(FailureKind::Busy), Err(FailureKind::Refused));
        // Operators may use everything and wait for others; an attempt that can never fit is
        // refused.
        assert_eq!(kind(&[], (operator, 100)), Ok(()));
        assert_eq!(kind(&[], (operator, 101)), refused);
        assert_eq!(kind(&[(site(1), 1)], (operator, 100)), busy);
        // One site has a quarter, or one attempt.
        assert_eq!(kind(&[(site(1), 10)], (site(1), 15)), Ok(()));
        assert_eq!(kind(&[(site(1), 10)], (site(1), 16)), busy);
        assert_eq!(kind(&[(site(2), 10)], (site(1), 65)), Ok(()));
        // Sites together have three quarters.
        assert_eq!(kind(&[(site(2), 10)], (site(1), 66)), busy);
        assert_eq!(kind(&[], (site(1), 75)), Ok(()));
        assert_eq!(kind(&[], (site(1), 76)), refused);
        assert_eq!(kind(&[(operator, 90)], (site(1), 11)), busy);
    }

    proptest::proptest! {
        /// An operator's attempt of a quarter always fits, however much the sites use. A site
        /// without attempts gets one of a quarter as long as that much of the sites' part is left.
        #[test]
        fn what_sites_take_leaves_operators_their_quarter(
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
