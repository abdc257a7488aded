//! The file of `--errors`: entries that destinations left, and destinations without the data.

use anabranch_replicate::wire::{DestinationView, TransferView};
use anabranch_replicate_proto::coordinator::Verdict;
use anabranch_units::text::printable;
use anyhow::Context as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A file for the errors of one transfer.
pub(super) struct ErrorsFile {
    path: PathBuf,
    file: File,
}

impl ErrorsFile {
    /// Creates the file, or empties it.
    ///
    /// Errors: the system's, with the option and the path.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("--errors {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the errors of an ended transfer.
    ///
    /// Errors: see [`ErrorsFile::create`].
    pub(super) fn write(mut self, view: &TransferView) -> anyhow::Result<()> {
        let lines: String = view.destinations.iter().map(of_destination).collect();
        let written = self.file.write_all(lines.as_bytes());
        written.with_context(|| format!("--errors {}", self.path.display()))
    }
}

/// Formats the errors of one destination.
fn of_destination(d: &DestinationView) -> String {
    let mut lines = String::new();
    let mut add = |cause: &str, what: &str| {
        // Neither a tab nor a line break is printable.
        lines.push_str(&format!("{}\t{cause}\t{}\n", printable(&d.site), printable(what)));
    };
    d.left.iter().for_each(|entry| add(entry.cause.word(), &entry.path));
    let all = d.entries.map_or(0, |entries| entries.conflicts.saturating_add(entries.unsettled));
    let unnamed = all.saturating_sub(d.left.len() as u64);
    if unnamed > 0 {
        add("more", &format!("{unnamed} entries"));
    }
    match &d.verdict {
        // No list names entries that the source left out.
        Some(Verdict::Conflict { reason }) if all == 0 => add("source", reason),
        Some(verdict) if verdict.is_delivered() => {}
        Some(verdict) => add("failed", verdict.reason().unwrap_or_default()),
        None => add("failed", "the transfer ended before"),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicate::status::tests::view;
    use anabranch_replicate_proto::control::{EntryCounts, LeftCause, LeftEntry};

    #[test]
    fn errors_name_entries_and_destinations() {
        let mut view = view(4, "data/");
        view.destinations.truncate(2);
        let entry = |cause, path: &str| LeftEntry { cause, path: path.to_owned() };
        view.destinations[0].left =
            vec![entry(LeftCause::Conflict, "data/a\tb"), entry(LeftCause::Unsettled, "data/c")];
        view.destinations[0].entries =
            Some(EntryCounts { conflicts: 5, unsettled: 1, ..EntryCounts::default() });
        view.destinations[0].verdict = Some(Verdict::Conflict { reason: "data/a".to_owned() });
        view.destinations[1].verdict = Some(Verdict::Failed { reason: "no space".to_owned() });
        let sites = [&view.destinations[0].site, &view.destinations[1].site];
        let lines: String = view.destinations.iter().map(of_destination).collect();
        let expected = format!(
            "{0}\tconflict\t{2}\n{0}\tunsettled\tdata/c\n{0}\tmore\t4 entries\n{1}\tfailed\tno space\n",
            sites[0],
            sites[1],
            printable("data/a\tb")
        );
        assert_eq!(lines, expected);
        assert_eq!(lines.matches('\t').count(), 8);
    }
}
