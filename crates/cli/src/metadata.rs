//! Options about the metadata of a directory's entries.

use anabranch_sets::metadata::{MetadataRules, OwnerMapping};

/// Metadata that is taken beside modes and times.
#[derive(clap::Args)]
pub struct MetadataArgs {
    /// Take the owner and the group of each entry of a directory: by name if the destination has
    /// the name, otherwise by number. Relays of destinations need the rights of root.
    #[arg(long)]
    owners: bool,
    /// With `--owners`, take numbers and no names.
    #[arg(long, requires = "owners")]
    numeric_ids: bool,
    /// Take the extended attributes (namespace `user.`) and the POSIX access lists of each entry of
    /// a directory, at most 4 KiB an entry.
    #[arg(long)]
    xattrs: bool,
}

impl MetadataArgs {
    /// The rules of the options.
    pub fn rules(&self) -> MetadataRules {
        let mapping = if self.numeric_ids { OwnerMapping::Numbers } else { OwnerMapping::Names };
        MetadataRules { owners: self.owners.then_some(mapping), xattrs: self.xattrs }
    }
}
