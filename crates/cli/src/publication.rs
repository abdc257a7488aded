//! Options about the publication of a directory at its destination.

use anabranch_sets::publication::Publication;

/// How the entries of a directory get their names.
#[derive(clap::Args)]
pub struct PublishArgs {
    /// When readers see a directory's new entries. `each`: each file once it is verified.
    /// `snapshot`: all at once, by an exchange of directories on the same file system.
    #[arg(long, value_name = "WAY", default_value = "each", value_parser = ["each", "snapshot"])]
    publish: String,
    /// With `--publish snapshot`, keep this many earlier snapshots in `.NAME.snapshots` beside the
    /// directory. Without it, the one before is removed.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
}

impl PublishArgs {
    /// The publication.
    ///
    /// Errors: earlier snapshots without a publication of snapshots.
    pub fn publication(&self) -> anyhow::Result<Publication> {
        let is_snapshot = self.publish == "snapshot";
        ensure_usage!(is_snapshot || self.keep.is_none(), "--keep: for --publish snapshot: add it");
        Ok(if is_snapshot {
            Publication::Snapshot { keep: self.keep.unwrap_or(0) }
        } else {
            Publication::Each
        })
    }
}
