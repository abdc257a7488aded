//! The reader of a stream: takes bytes, and returns initialisation sections and samples.
//!
//! Source: ISO/IEC 14496-12, section 4.2 (boxes). Leaves out: boxes that describe no samples, which
//! are skipped and not stored. Read [`StreamReader`].

use super::boxes::{self, Contents, SampleEntry};
use super::{INIT_BYTES_MAX, InitSection, MOOF_BYTES_MAX, Sample, StreamError, Track};
use std::collections::VecDeque;

/// Item that is read from a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An initialisation section, which describes the tracks of the samples that follow.
    Init(InitSection),
    /// A sample.
    Sample(Sample),
}

/// Position of the next byte in the structure of the stream.
#[derive(Debug)]
enum State {
    /// Received bytes of a box's header.
    Header(Vec<u8>),
    /// Box that is stored until it is complete.
    Stored {
        kind: [u8; 4],
        /// Received bytes of the box, its header included.
        bytes: Vec<u8>,
        header_bytes: usize,
        size: usize,
    },
    /// Box that is skipped.
    Skipped { left: u64 },
    /// Data of samples.
    Data { left: u64 },
    /// An error has been returned.
    Failed(StreamError),
}

/// Reader of a stream of fragmented MP4.
///
/// Memory: one box of at most [`INIT_BYTES_MAX`] or [`MOOF_BYTES_MAX`], the entries of one
/// fragment, one incomplete sample, and the items that have not been polled. One call adds at most
/// one item for each byte, and [`super::EMPTY_SAMPLES_MAX`] more for each `moof`.
#[derive(Debug)]
pub struct StreamReader {
    state: State,
    /// The box `ftyp` of the next initialisation section.
    file_type: Vec<u8>,
    tracks: Vec<Track>,
    /// Number of bytes since the beginning of the last `moof`.
    position: u64,
    /// Samples of the last `moof` whose data have not arrived.
    entries: VecDeque<SampleEntry>,
    /// Received data of the first entry.
    data: Vec<u8>,
    items: VecDeque<Item>,
}

impl Default for StreamReader {
    fn default() -> Self {
        Self {
            state: State::Header(Vec::new()),
            file_type: Vec::new(),
            tracks: Vec::new(),
            position: 0,
            entries: VecDeque::new(),
            data: Vec::new(),
            items: VecDeque::new(),
        }
    }
}

impl StreamReader {
    /// Takes the next bytes of the stream.
    ///
    /// Errors: [`StreamError`] for a stream that cannot be cut. The same error is repeated for all
    /// later bytes, until [`Self::restart`]. Items that were read before can still be polled.
    pub fn handle_bytes(&mut self, mut bytes: &[u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            if let Err(error) = self.step(&mut bytes) {
                self.state = State::Failed(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the next item.
    pub fn poll_item(&mut self) -> Option<Item> {
        self.items.pop_front()
    }

    /// Begins to read a new file or connection. Drops an incomplete box, its samples and unpolled
    /// items. The tracks are kept, because segment files have no initialisation section.
    pub fn restart(&mut self) {
        self.state = State::Header(Vec::new());
        self.entries.clear();
        self.data.clear();
        self.file_type.clear();
        self.items.clear();
    }

    /// Takes some of `bytes`, at least one.
    fn step(&mut self, bytes: &mut &[u8]) -> Result<(), StreamError> {
        let mut take = |most: u64| {
            let count = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
            let (front, rest) = bytes.split_at(count);
            *bytes = rest;
            front
        };
        match &mut self.state {
            State::Failed(error) => return Err(error.clone()),
            State::Header(header) => {
                let is_long = header.len() >= 8 && header[..4] == [0, 0, 0, 1];
                let whole = if is_long { 16 } else { 8 };
                header.extend_from_slice(take(whole - header.len() as u64));
                let is_long = header.len() >= 8 && header[..4] == [0, 0, 0, 1];
                if header.len() == 16 || (header.len() == 8 && !is_long) {
                    let header = std::mem::take(header);
                    self.begin_box(header)?;
                }
            }
            State::Stored { kind, bytes: stored, header_bytes, size } => {
                stored.extend_from_slice(take((*size - stored.len()) as u64));
                if stored.len() == *size {
                    let (kind, header_bytes, stored) = (*kind, *header_bytes, std::mem::take(stored));
                    self.state = State::Header(Vec::new());
                    self.end_box(kind, header_bytes, stored)?;
                }
            }
            State::Skipped { left } => {
                let count = take(*left).len() as u64;
                *left -= count;
                self.position = self.position.saturating_add(count);
                if *left == 0 {
                    self.state = State::Header(Vec::new());
                }
            }
            State::Data { left } => {
                let front = take(*left);
                *left -= front.len() as u64;
                let is_whole = *left == 0;
                self.take_data(front);
                if is_whole {
                    self.state = State::Header(Vec::new());
                    if !self.entries.is_empty() {
                        return Err(StreamError::DataOutside);
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins the box with this complete header.
    fn begin_box(&mut self, header: Vec<u8>) -> Result<(), StreamError> {
        let word =
            |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).expect("a header has at least 8 bytes");
        let kind = word(4);
        let size = match u32::from_be_bytes(word(0)) {
            1 => u64::from(u32::from_be_bytes(word(8))) << 32 | u64::from(u32::from_be_bytes(word(12))),
            short => u64::from(short),
        };
        let left = size.checked_sub(header.len() as u64).ok_or(StreamError::BadSize { kind })?;
        let limit = match &kind {
            b"ftyp" | b"moov" => Some(INIT_BYTES_MAX),
            b"moof" => Some(MOOF_BYTES_MAX),
            _ => None,
        };
        if let Some(max) = limit {
            if size > max as u64 {
                return Err(StreamError::BoxTooLarge { kind, got: size, max });
            }
            let header_bytes = header.len();
            // An empty box is complete at once.
            if left == 0 {
                return self.end_box(kind, header_bytes, header);
            }
            self.state = State::Stored { kind, bytes: header, header_bytes, size: size as usize };
            return Ok(());
        }
        self.position = self.position.saturating_add(header.len() as u64);
        if &kind == b"mdat" && !self.entries.is_empty() {
            let end = self.position.saturating_add(left);
            let first = self.entries.front().map_or(0, |entry| entry.offset);
            let last = self.entries.back().map_or(0, |entry| entry.offset + u64::from(entry.size_bytes));
            if first < self.position || last > end {
                return Err(StreamError::DataOutside);
            }
            self.state = State::Data { left };
            self.take_data(&[]);
        } else if &kind == b"mdat" || left > 0 {
            self.state = State::Skipped { left };
        }
        // No byte would end an empty box, so the next header begins at once.
        if left == 0 {
            self.state = State::Header(Vec::new());
        }
        Ok(())
    }

    /// Reads a stored box that is complete.
    fn end_box(&mut self, kind: [u8; 4], header_bytes: usize, bytes: Vec<u8>) -> Result<(), StreamError> {
        let contents = Contents::new(kind, &bytes[header_bytes..]);
        match &kind {
            b"moov" => {
                self.tracks = boxes::tracks(contents)?;
                self.entries.clear();
                let mut whole = std::mem::take(&mut self.file_type);
                whole.extend_from_slice(&bytes);
                self.items.push_back(Item::Init(InitSection { bytes: whole, tracks: self.tracks.clone() }));
            }
            b"moof" => {
                if self.tracks.is_empty() {
                    return Err(StreamError::Missing { kind: *b"moov" });
                }
                let size = bytes.len() as u64;
                self.entries = boxes::samples(contents, size, &self.tracks)?.into();
                self.data.clear();
                self.position = size;
            }
            _ => self.file_type = bytes,
        }
        Ok(())
    }

    /// Takes data of samples, which begin at [`Self::position`]. Samples of zero bytes end without
    /// data.
    fn take_data(&mut self, mut front: &[u8]) {
        while let Some(entry) = self.entries.front() {
            let begun = self.data.len() as u64;
            let gap = (entry.offset + begun).saturating_sub(self.position).min(front.len() as u64);
            front = &front[gap as usize..];
            self.position += gap;
            if self.position < entry.offset + begun {
                return;
            }
            let missing = (u64::from(entry.size_bytes) - begun).min(front.len() as u64);
            let (own, rest) = front.split_at(missing as usize);
            self.data.extend_from_slice(own);
            self.position += missing;
            front = rest;
            if (self.data.len() as u64) < u64::from(entry.size_bytes) {
                return;
            }
            self.items.push_back(Item::Sample(Sample {
                track: entry.track,
                decode_ticks: entry.decode_ticks,
                duration_ticks: entry.duration_ticks,
                composition_ticks: entry.composition_ticks,
                flags: entry.flags,
                data: std::mem::take(&mut self.data),
            }));
            self.entries.pop_front();
        }
        self.position = self.position.saturating_add(front.len() as u64);
    }
}
