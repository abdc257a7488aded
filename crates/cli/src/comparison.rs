//! Differences of a copy from its source, as lines for people.

use crate::formats::size;
use anabranch_sets::comparison::{Comparison, DifferenceKind};
use anabranch_units::ByteCount;

/// Location of a copy.
#[derive(Copy, Clone, Debug)]
pub enum Location {
    /// This machine.
    Here,
    /// Another site.
    There,
}

/// Formats the counts of the differences, then the first entries that differ. `of` names the copy,
/// and `directory` is its path.
pub fn lines(of: &str, directory: &str, found: &Comparison, location: Location) -> Vec<String> {
    if found.differences() == 0 {
        return vec![format!("{of}: equal")];
    }
    let contents = match found.content_bytes {
        0 => "no content".to_owned(),
        bytes => format!("{} of contents", size(ByteCount::new(bytes))),
    };
    let at = match location {
        Location::Here => "here",
        Location::There => "there",
    };
    let surplus = format!("only {at}");
    let mut lines = vec![format!("{of}: {}; lacks {contents}", found.in_words(at))];
    for entry in &found.named {
        let word = match entry.kind {
            DifferenceKind::Missing => "missing",
            DifferenceKind::Changed => "changed",
            DifferenceKind::Renamed => "renamed",
            DifferenceKind::Metadata => "attributes",
            DifferenceKind::Surplus => &surplus,
            _ => "differs",
        };
        let from = entry.from.as_ref().map_or(String::new(), |from| format!(" ({at}: {from})"));
        let path = match &entry.path[..] {
            "." => format!("{}/", directory.trim_end_matches('/')),
            path => path.to_owned(),
        };
        lines.push(format!("  {word:<11} {path}{from}"));
    }
    let more = found.differences().saturating_sub(found.named.len() as u64);
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines
}
