//! The marker of a publication, and names of kept snapshots.

use super::path_beside;
use crate::folder::{Place, at, remove};
use anabranch_sets::FileTime;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

/// Ending of the working name of the marker.
pub(super) const PUBLISHING: &str = "publishing";
/// Maximum bytes of a marker.
const MARKER_BYTES_MAX: u64 = 256;
/// Shape of a kept snapshot's name: time in UTC, and the beginning of the id. `0` is a digit, and
/// `x` a hexadecimal one.
const SNAPSHOT_SHAPE: &[u8] = b"00000000T000000.000Z-xxxxxxxxxxxxxxxx";

pub(super) fn is_snapshot_name(name: &[u8]) -> bool {
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'x' => byte.is_ascii_hexdigit(),
        _ => byte == shape,
    };
    name.len() == SNAPSHOT_SHAPE.len() && name.iter().zip(SNAPSHOT_SHAPE).all(fits)
}

/// A time in UTC, as `20261130T232411.123Z`.
pub(super) fn utc(at: SystemTime) -> String {
    let at = time::OffsetDateTime::from(at);
    let (date, (hour, minute, second, millis)) = (at.date(), at.time().as_hms_milli());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{millis:03}Z")
}

/// Name of a kept snapshot: the current time, and the beginning of the snapshot's id.
pub(super) fn snapshot_name(id: &[u8; 32]) -> String {
    let id = blake3::Hash::from(*id).to_hex();
    format!("{}-{}", utc(SystemTime::now()), &id[..16])
}

/// The next tree's root, and the fate of the old tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    /// Device and inode of the next tree's root.
    pub(super) next: (u64, u64),
    /// Time of the file system at which the publication began.
    pub(super) begun_at: FileTime,
    /// Number of earlier snapshots to keep; with 0, the old tree is removed.
    pub(super) keep: u32,
    /// Name of the old tree among the kept snapshots.
    pub(super) name: String,
}

impl Marker {
    pub(super) fn encode(&self) -> String {
        let Self { next: (device, inode), begun_at, keep, name } = self;
        format!("{device} {inode} {} {} {keep} {name}\n", begun_at.seconds(), begun_at.nanos())
    }

    /// Reads a marker; `None` for any other text.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let next = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let begun_at = FileTime::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?).ok()?;
        let keep = words.next()?.parse().ok()?;
        let name = words.next().filter(|name| is_snapshot_name(name.as_bytes()))?.to_owned();
        words.next().is_none().then_some(Self { next, begun_at, keep, name })
    }

    /// Writes the marker to disk.
    ///
    /// Errors: the system's.
    pub(super) fn save(&self, place: &Place) -> io::Result<()> {
        let name = place.working_name(PUBLISHING);
        let write = || -> io::Result<()> {
            remove(place.folder(), name.as_str())?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let mut file: File = rustix::fs::openat(place.folder(), name.as_str(), flags, mode)?.into();
            file.write_all(self.encode().as_bytes())?;
            file.sync_all()?;
            Ok(rustix::fs::fsync(place.folder())?)
        };
        at(&path_beside(place, &name), write())
    }

    /// Reads the marker of a location; `None` if there is none.
    ///
    /// Errors: the system's; a damaged marker, or another user's.
    pub(super) fn load(place: &Place) -> io::Result<Option<Self>> {
        let name = place.working_name(PUBLISHING);
        let path = path_beside(place, &name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = match rustix::fs::openat(place.folder(), name.as_str(), flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return at(&path, Err(errno)),
        };
        let found = at(&path, file.metadata())?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            return at(&path, Err(io::Error::other("another user's marker of a publication: remove it")));
        }
        let mut bytes = Vec::new();
        at(&path, file.take(MARKER_BYTES_MAX).read_to_end(&mut bytes))?;
        // A process was killed while it wrote the marker, before any exchange.
        if bytes.is_empty() {
            return Ok(None);
        }
        let damaged = || io::Error::other("a damaged marker of a publication: remove it");
        at(&path, std::str::from_utf8(&bytes).ok().and_then(Self::decode).ok_or_else(damaged)).map(Some)
    }
}
