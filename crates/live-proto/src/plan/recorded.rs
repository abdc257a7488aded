//! Recorded requests: an operator's own log, and the public traces of Twitch.
//!
//! Sources: Rappaz, McAuley and Aberer, RecSys 2021 (sessions of 2019); the data set of
//! `clivecast.github.io` (a snapshot of 2015). Neither trace states a viewer's location. Memory is
//! bounded by one window, not by the length of a file. Leaves out: locations and bitrates missing
//! in a file ([`super::generator::Workload::complete`] draws them). Read [`RecordFormat`] first,
//! then [`RecordedWindow`].

mod records;

pub use records::Records;

use super::problem::REQUESTS_MAX;
use anabranch_units::text::brief;
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Longest record of a file, in bytes.
pub const RECORD_BYTES_MAX: usize = 65_536;
/// Longest name of a video or a location, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Latest time of a record, in seconds from the file's time zero: about 30,000 years.
pub const RECORD_TIME_S_MAX: f64 = 1e12;
/// Number of characters of a bad value that an error shows.
const SHOWN_CHARS_MAX: usize = 100;

/// The columns of a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// CSV with a heading. `time` (seconds) and `video` are required. `place` or `address`,
    /// `bitrate` (with its unit) or `bitrate_kbps`, and `viewers` are optional. Further columns are
    /// ignored.
    Requests,
    /// CSV without a heading: user, stream, streamer, first and last round of 10 minutes.
    Twitch2019,
    /// Tab-separated values without a heading: the 15 columns of one snapshot. The bitrate is taken
    /// as kbit/s, because the data set does not state its unit; 0 means unknown.
    Twitch2015,
}

/// Location of a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewerLocation {
    /// Name of a city, or of a group of viewers.
    Name(String),
    /// Address of the viewer.
    Address(IpAddr),
}

/// One record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// Line of the file, from 1.
    pub line: u64,
    /// Time since the file's time zero.
    pub time: Instant,
    /// Location of the viewers; `None` if the file has no such column.
    pub place: Option<ViewerLocation>,
    /// Name of the video.
    pub video: String,
    /// Bitrate that the viewers ask for; `None` if the file does not state it.
    pub bitrate: Option<BitRate>,
    /// Number of viewers, at least 1.
    pub viewers: u64,
}

/// Reason why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// Line of the file, from 1.
    pub line: u64,
    /// Fault of the line.
    pub fault: RecordFault,
}

/// A fault of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordFault {
    /// The file cannot be read. Holds the reader's reason.
    Unreadable(String),
    /// A record is longer than [`RECORD_BYTES_MAX`].
    TooLong,
    /// The heading lacks a required column.
    NoColumn(&'static str),
    /// The heading has two columns that exclude each other, or the same column twice.
    Conflict(&'static str, &'static str),
    /// A record has the wrong number of values: expected, found.
    Count(u64, u64),
    /// A value is invalid: column, value, requirement.
    Value(&'static str, String, &'static str),
    /// The window has more than [`REQUESTS_MAX`] records.
    TooMany,
    /// No record lies in the window.
    Empty,
}

impl RecordFault {
    fn value(column: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Value(column, brief(value, SHOWN_CHARS_MAX), expected)
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fault == RecordFault::Empty {
            return write!(f, "no request in this window: give another --from, or a longer --window");
        }
        write!(f, "line {}: ", self.line)?;
        match &self.fault {
            RecordFault::Unreadable(reason) => write!(f, "{reason}"),
            RecordFault::TooLong => {
                write!(f, "a record of more than {RECORD_BYTES_MAX} bytes: look for a quote without its end")
            }
            RecordFault::NoColumn(column) => {
                write!(f, "no column `{column}`: the first line names the columns")
            }
            RecordFault::Conflict(one, other) if one == other => {
                write!(f, "column `{one}` is there twice: remove one")
            }
            RecordFault::Conflict(one, other) => {
                write!(f, "columns `{one}` and `{other}`: remove one of them")
            }
            RecordFault::Count(expected, found) => {
                write!(f, "{found} values: must be {expected}, as columns")
            }
            RecordFault::Value(column, value, expected) => {
                write!(f, "{column} `{value}`: must be {expected}")
            }
            RecordFault::TooMany => {
                write!(f, "more than {REQUESTS_MAX} requests in one window: give a shorter --window")
            }
            RecordFault::Empty => unreachable!("written above"),
        }
    }
}

impl std::error::Error for RecordError {}

/// A request of a window, with names replaced by indexes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Index of the location; `None` if the file does not state it.
    pub(super) place: Option<u32>,
    /// Index of the video's name.
    pub(super) video: u32,
    pub(super) bitrate: Option<BitRate>,
    pub(super) viewers: u64,
}

/// The requests of one window, in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedWindow {
    from: Instant,
    rows: Vec<Row>,
    videos: Vec<String>,
    /// Names of the locations, in order of decreasing viewers.
    places: Vec<String>,
}

impl RecordedWindow {
    /// Takes the requests of the planning window of `length` that begins at `from`, or at the
    /// earliest request. `locate` names the location of an address. Records may be in any order.
    ///
    /// Errors: the first bad record; no requests, or more than [`REQUESTS_MAX`], in the window.
    /// Cost: memory of one window.
    pub fn read(
        records: impl IntoIterator<Item = Result<RecordedRequest, RecordError>>,
        from: Option<Instant>,
        length: Duration,
        locate: impl Fn(IpAddr) -> String,
    ) -> Result<Self, RecordError> {
        let mut begin = from;
        let mut kept: BTreeMap<Instant, Vec<RecordedRequest>> = BTreeMap::new();
        let mut count = 0;
        let mut line = 0;
        for record in records {
            let record = record?;
            line = record.line;
            let is_earlier = begin.is_none_or(|begin| record.time < begin);
            if is_earlier && from.is_none() {
                begin = Some(record.time);
                let later = kept.split_off(&(record.time + length));
                count -= later.values().map(Vec::len).sum::<usize>();
            } else if is_earlier || begin.is_some_and(|begin| record.time >= begin + length) {
                continue;
            }
            if count == REQUESTS_MAX {
                return Err(RecordError { line, fault: RecordFault::TooMany });
            }
            count += 1;
            kept.entry(record.time).or_default().push(record);
        }
        let empty = RecordError { line, fault: RecordFault::Empty };
        let begin = begin.filter(|_| count > 0).ok_or(empty)?;
        Ok(Self::of(begin, kept.into_values().flatten(), locate))
    }

    fn of(
        from: Instant,
        requests: impl Iterator<Item = RecordedRequest>,
        locate: impl Fn(IpAddr) -> String,
    ) -> Self {
        let (mut videos, mut places) = (Names::default(), Names::default());
        let mut rows: Vec<Row> = requests
            .map(|request| {
                let place = request.place.map(|place| match place {
                    ViewerLocation::Name(name) => name,
                    ViewerLocation::Address(address) => locate(address),
                });
                Row {
                    place: place.map(|place| places.number(place, request.viewers)),
                    video: videos.number(request.video, request.viewers),
                    bitrate: request.bitrate,
                    viewers: request.viewers,
                }
            })
            .collect();
        let (videos, video_order) = videos.by_viewers();
        let (places, place_order) = places.by_viewers();
        for row in &mut rows {
            row.video = video_order[row.video as usize];
            row.place = row.place.map(|place| place_order[place as usize]);
        }
        Self { from, rows, videos, places }
    }

    /// Start of the planning window.
    pub const fn from(&self) -> Instant {
        self.from
    }

    /// Number of requests.
    pub fn requests(&self) -> usize {
        self.rows.len()
    }

    /// Names of the videos, in order of decreasing viewers.
    pub fn videos(&self) -> &[String] {
        &self.videos
    }

    /// Names of the locations, in order of decreasing viewers. Empty if the file states none.
    pub fn places(&self) -> &[String] {
        &self.places
    }

    /// Whether all requests state a bitrate.
    pub fn has_bitrates(&self) -> bool {
        self.rows.iter().all(|row| row.bitrate.is_some())
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// Names with their numbers and viewers.
#[derive(Default)]
struct Names {
    numbers: BTreeMap<String, u32>,
    viewers: Vec<u64>,
}

impl Names {
    fn number(&mut self, name: String, viewers: u64) -> u32 {
        let new = self.viewers.len() as u32;
        let number = *self.numbers.entry(name).or_insert(new);
        if number == new {
            self.viewers.push(0);
        }
        let sum = &mut self.viewers[number as usize];
        *sum = sum.saturating_add(viewers);
        number
    }

    /// The names in order of decreasing viewers, then by name, and the new number of each old
    /// number.
    fn by_viewers(self) -> (Vec<String>, Vec<u32>) {
        let mut order: Vec<(String, u32)> = self.numbers.into_iter().collect();
        order.sort_by_key(|(_, number)| std::cmp::Reverse(self.viewers[*number as usize]));
        let mut numbers = vec![0; order.len()];
        for ((_, old), new) in order.iter().zip(0..) {
            numbers[*old as usize] = new;
        }
        (order.into_iter().map(|(name, _)| name).collect(), numbers)
    }
}

#[cfg(test)]
mod tests;
