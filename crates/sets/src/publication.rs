//! How the entries of a directory get their names at a destination.
//!
//! Leaves out: the exchange of directories (the `disk` room). Read [`Publication`] first.

use serde::{Deserialize, Serialize};

/// Reason for the refusal of a backup of a directory that is published as a whole.
pub const BACKUP_OF_SNAPSHOT: &str =
    "--backup with --publish snapshot: --keep keeps the old snapshots: leave one out";

/// Way in which readers of a destination get to see a new snapshot.
///
/// ```
/// use anabranch_sets::publication::Publication;
/// assert_eq!("snapshot keep=3".parse(), Ok(Publication::Snapshot { keep: 3 }));
/// assert_eq!(Publication::default().to_string(), "each");
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Publication {
    /// Each file gets its name once it is verified.
    #[default]
    Each,
    /// The whole directory is exchanged once all contents are verified.
    Snapshot {
        /// Number of earlier snapshots to keep; with 0, none is added and none is removed.
        keep: u32,
    },
}

/// A text that is no [`Publication`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationError {
    text: String,
}

impl std::fmt::Display for PublicationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = anabranch_units::text::printable(&self.text);
        write!(f, "publication `{text}`: must be `each`, `snapshot` or `snapshot keep=COUNT`")
    }
}
impl std::error::Error for PublicationError {}

impl Publication {
    /// Returns true for [`Publication::Each`].
    pub fn is_each(&self) -> bool {
        *self == Self::Each
    }
}

impl std::str::FromStr for Publication {
    type Err = PublicationError;
    fn from_str(text: &str) -> Result<Self, PublicationError> {
        let wrong = || PublicationError { text: text.chars().take(40).collect() };
        match text {
            "each" => Ok(Self::Each),
            "snapshot" => Ok(Self::Snapshot { keep: 0 }),
            _ => {
                let keep = text.strip_prefix("snapshot keep=").ok_or_else(wrong)?;
                let keep = keep.parse().ok().filter(|keep| *keep > 0);
                keep.map(|keep| Self::Snapshot { keep }).ok_or_else(wrong)
            }
        }
    }
}

impl TryFrom<String> for Publication {
    type Error = PublicationError;
    fn try_from(text: String) -> Result<Self, PublicationError> {
        text.parse()
    }
}

impl From<Publication> for String {
    fn from(publication: Publication) -> Self {
        publication.to_string()
    }
}

impl std::fmt::Display for Publication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Each => f.write_str("each"),
            Self::Snapshot { keep: 0 } => f.write_str("snapshot"),
            Self::Snapshot { keep } => write!(f, "snapshot keep={keep}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publications_survive_their_text() {
        for publication in
            [Publication::Each, Publication::Snapshot { keep: 0 }, Publication::Snapshot { keep: u32::MAX }]
        {
            assert_eq!(publication.to_string().parse(), Ok(publication));
        }
        for bad in ["", "Each", "snapshot keep=", "snapshot keep=0", "snapshot keep=-1", "snapshots"] {
            assert!(bad.parse::<Publication>().is_err(), "{bad}");
        }
    }
}
