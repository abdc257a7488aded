//! Names of the resources of a rendition.
//!
//! Names depend only on numbers and bytes, so two sources of one stream yield equal names. Read
//! [`Name`].

use std::fmt;

/// A resource of a rendition.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The playlist: `index.m3u8`.
    Playlist,
    /// An initialisation section, by a hash of its bytes: `init-HASH.mp4`.
    Init(u64),
    /// A segment, by its number: `SEGMENT.m4s`.
    Segment(u64),
    /// A part, by the numbers of the segment and the part: `SEGMENT.PART.m4s`.
    Part(u64, u64),
}

impl Name {
    /// Name of the initialisation section with these bytes.
    ///
    /// The hash is 64-bit FNV-1a. It distinguishes the sections of one publisher, but does not
    /// protect against a publisher that seeks equal hashes for its own stream.
    pub fn of_init(bytes: &[u8]) -> Self {
        Self::Init(anabranch_units::fnv1a(bytes.iter().copied()))
    }

    /// Parses a name. `None` for a text that [`fmt::Display`] does not produce.
    ///
    /// ```
    /// use anabranch_live_proto::origin::Name;
    /// assert_eq!(Name::read("17.4.m4s"), Some(Name::Part(17, 4)));
    /// assert_eq!(Name::read("017.m4s"), None);
    /// ```
    pub fn read(text: &str) -> Option<Self> {
        let name = if text == "index.m3u8" {
            Self::Playlist
        } else if let Some(hash) = text.strip_prefix("init-").and_then(|text| text.strip_suffix(".mp4")) {
            Self::Init(u64::from_str_radix(hash, 16).ok()?)
        } else {
            let numbers = text.strip_suffix(".m4s")?;
            match numbers.split_once('.') {
                Some((segment, part)) => Self::Part(segment.parse().ok()?, part.parse().ok()?),
                None => Self::Segment(numbers.parse().ok()?),
            }
        };
        // Each name has a single text, so that caches hold no duplicates.
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Playlist => write!(f, "index.m3u8"),
            Self::Init(hash) => write!(f, "init-{hash:016x}.mp4"),
            Self::Segment(segment) => write!(f, "{segment}.m4s"),
            Self::Part(segment, part) => write!(f, "{segment}.{part}.m4s"),
        }
    }
}
