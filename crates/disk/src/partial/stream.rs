//! Partial files that hold the stream of a directory. Only the bytes that the destination lacks
//! arrive, and the files get their names from [`crate::tree::unpack`].

use super::{FinishError, PartialFile, Working, open_journal};
use crate::folder::{Place, at};
use crate::tree::unpack::UnpackError;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

impl PartialFile {
    /// Opens the stream of a directory. `arriving_bytes` of it will arrive. The destination has the
    /// other bytes in its files.
    ///
    /// Errors: as [`PartialFile::open`].
    pub fn open_stream(place: Place, length: u64, arriving_bytes: u64) -> io::Result<Self> {
        let working = Working::of(place.name().as_bytes());
        let journal = open_journal(&place, &working, true)?.expect("made where it was not");
        Self::with(place, working, journal, length, Some(arriving_bytes))
    }

    /// Opens the stream of the directory at `place` if an earlier transfer left part of it. The
    /// disk's free space is checked by [`PartialFile::resize_stream`].
    ///
    /// Errors: as [`PartialFile::open`].
    pub fn open_existing_stream(place: Place) -> io::Result<Option<Self>> {
        Self::existing(place, Some(0))
    }

    /// Makes the stream of a directory `length` bytes long. `arriving_bytes` of them will arrive.
    ///
    /// Errors: as [`PartialFile::open`].
    pub fn resize_stream(&mut self, length: u64, arriving_bytes: u64) -> io::Result<()> {
        self.set_length(length)?;
        at(self.place.path(), self.look_for_room(Some(arriving_bytes)))
    }

    /// Drops all received bytes, which belong to another file.
    ///
    /// Errors: the system's, with the name of the file.
    pub fn forget(&mut self) -> io::Result<()> {
        let path = self.place.path().to_owned();
        at(&path, self.drop_all())
    }

    /// The stream's file. Only the ranges of [`PartialFile::have`] have arrived.
    pub fn data(&self) -> &File {
        &self.data
    }

    /// Passes the stream's file to `unpack`, which writes a directory from it. Then removes the
    /// working files. If the bytes are corrupt, all of them are dropped.
    ///
    /// Errors: [`FinishError`]. The working files stay after an error.
    pub fn finish_directory<T>(
        &mut self,
        length: u64,
        unpack: impl FnOnce(&File) -> Result<T, UnpackError>,
    ) -> Result<T, FinishError> {
        self.set_length(length).map_err(FinishError::Io)?;
        let path = self.place.path().to_owned();
        at(&path, self.data.set_len(length)).map_err(FinishError::Io)?;
        let done = match unpack(&self.data) {
            Ok(done) => done,
            Err(UnpackError::Io(error)) => return Err(FinishError::Io(error)),
            // No piece can be trusted. Contents with the correct hash have their names already.
            Err(UnpackError::Corrupt) => {
                self.forget().map_err(FinishError::Io)?;
                return Err(FinishError::Mismatch { have: Vec::new() });
            }
        };
        self.finished = true;
        at(&path, self.remove()).map_err(FinishError::Io)?;
        Ok(done)
    }
}
