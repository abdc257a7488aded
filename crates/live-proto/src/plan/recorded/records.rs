//! Iterator over the records of a file.

use super::{
    NAME_BYTES_MAX, RECORD_BYTES_MAX, RECORD_TIME_S_MAX, RecordError, RecordFault, RecordFormat,
    RecordedRequest, ViewerLocation,
};
use crate::plan::problem::{BITRATE_MAX, VIEWERS_MAX};
use anabranch_units::{BitRate, Instant};
use csv::{ErrorKind, ReaderBuilder, StringRecord};
use std::collections::VecDeque;
use std::io::{self, Read};

/// Bytes that the CSV reader requests at a time.
const BUFFER_BYTES: usize = 8_192;
/// Duration of a round of [`RecordFormat::Twitch2019`], in seconds.
const ROUND_S: u64 = 600;
/// Column names of [`RecordFormat::Requests`].
const TIME: &str = "time";
const VIDEO: &str = "video";
const PLACE: &str = "place";
const ADDRESS: &str = "address";
const BITRATE: &str = "bitrate";
const BITRATE_KBPS: &str = "bitrate_kbps";
const VIEWERS: &str = "viewers";

/// An input that fails if one record is too long. It tracks where lines begin, because the CSV
/// reader reports a record's position before the blank lines that precede the record.
struct BoundedInput<R> {
    input: R,
    /// Bytes that may still be read for the current record.
    left: usize,
    is_exceeded: bool,
    /// Number of bytes read.
    offset: u64,
    /// Number of the line with the next byte.
    line: u64,
    is_line_start: bool,
    /// Offset and number of each line that was read ahead and is not blank.
    lines: VecDeque<(u64, u64)>,
}

impl<R> BoundedInput<R> {
    const fn new(input: R) -> Self {
        let lines = VecDeque::new();
        Self { input, left: 0, is_exceeded: false, offset: 0, line: 1, is_line_start: true, lines }
    }

    fn note(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => (self.line, self.is_line_start) = (self.line + 1, true),
                b'\r' => {}
                _ if self.is_line_start => {
                    self.lines.push_back((self.offset, self.line));
                    self.is_line_start = false;
                }
                _ => {}
            }
            self.offset += 1;
        }
    }

    /// Number of the first line at or after `offset` that is not blank.
    fn line_from(&mut self, offset: u64) -> u64 {
        while self.lines.front().is_some_and(|(start, _)| *start < offset) {
            self.lines.pop_front();
        }
        self.lines.front().map_or(self.line, |(_, line)| *line)
    }
}

impl<R: Read> Read for BoundedInput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.left);
        if most == 0 && !buffer.is_empty() {
            self.is_exceeded = true;
            return Err(io::Error::other("a long record"));
        }
        let count = self.input.read(&mut buffer[..most])?;
        self.left -= count;
        self.note(&buffer[..count]);
        Ok(count)
    }
}

/// Column indexes of [`RecordFormat::Requests`].
#[derive(Copy, Clone, Debug, Default)]
struct Columns {
    time: usize,
    video: usize,
    place: Option<usize>,
    address: Option<usize>,
    bitrate: Option<usize>,
    bitrate_kbps: Option<usize>,
    viewers: Option<usize>,
}

impl Columns {
    fn of(heading: &StringRecord) -> Result<Self, RecordFault> {
        let find = |name: &'static str| {
            let mut found = heading.iter().enumerate().filter(|(_, column)| *column == name);
            let first = found.next().map(|(at, _)| at);
            if found.next().is_some() { Err(RecordFault::Conflict(name, name)) } else { Ok(first) }
        };
        let one_of = |one: &'static str, other: &'static str| match (find(one)?, find(other)?) {
            (Some(_), Some(_)) => Err(RecordFault::Conflict(one, other)),
            found => Ok(found),
        };
        let (place, address) = one_of(PLACE, ADDRESS)?;
        let (bitrate, bitrate_kbps) = one_of(BITRATE, BITRATE_KBPS)?;
        Ok(Self {
            time: find(TIME)?.ok_or(RecordFault::NoColumn(TIME))?,
            video: find(VIDEO)?.ok_or(RecordFault::NoColumn(VIDEO))?,
            place,
            address,
            bitrate,
            bitrate_kbps,
            viewers: find(VIEWERS)?,
        })
    }
}

/// The records of a file, in file order. Ends after the first error.
pub struct Records<R> {
    reader: csv::Reader<BoundedInput<R>>,
    format: RecordFormat,
    columns: Option<Columns>,
    record: StringRecord,
    is_over: bool,
}

impl<R: Read> Records<R> {
    /// Creates an iterator over the records of `input`.
    pub fn new(input: R, format: RecordFormat) -> Self {
        let mut builder = ReaderBuilder::new();
        builder.buffer_capacity(BUFFER_BYTES).has_headers(false);
        if format == RecordFormat::Twitch2015 {
            builder.delimiter(b'\t').quoting(false);
        }
        let (columns, record, is_over) = (None, StringRecord::new(), false);
        Self { reader: builder.from_reader(BoundedInput::new(input)), format, columns, record, is_over }
    }

    /// Reads the next record. Returns its line number, or `None` at the end.
    fn advance(&mut self) -> Result<Option<u64>, RecordError> {
        self.reader.get_mut().left = RECORD_BYTES_MAX;
        let start = self.reader.position().byte();
        let read = self.reader.read_record(&mut self.record);
        let line = self.reader.get_mut().line_from(start);
        match read {
            Ok(true) => Ok(Some(line)),
            Ok(false) => Ok(None),
            Err(error) => {
                let fault = match error.kind() {
                    _ if self.reader.get_ref().is_exceeded => RecordFault::TooLong,
                    ErrorKind::UnequalLengths { expected_len, len, .. } => {
                        RecordFault::Count(*expected_len, *len)
                    }
                    ErrorKind::Utf8 { .. } => RecordFault::Unreadable("text that is not UTF-8".to_owned()),
                    ErrorKind::Io(error) => RecordFault::Unreadable(error.to_string()),
                    _ => RecordFault::Unreadable(error.to_string()),
                };
                Err(RecordError { line, fault })
            }
        }
    }

    fn request(&mut self) -> Result<Option<RecordedRequest>, RecordError> {
        if self.format == RecordFormat::Requests && self.columns.is_none() {
            let line = self.advance()?.unwrap_or(1);
            let columns = Columns::of(&self.record).map_err(|fault| RecordError { line, fault })?;
            self.columns = Some(columns);
        }
        loop {
            let Some(line) = self.advance()? else { return Ok(None) };
            let request = match self.columns {
                Some(columns) => of_log(&self.record, columns).map(Some),
                None if self.format == RecordFormat::Twitch2019 => of_session(&self.record).map(Some),
                None => of_snapshot(&self.record),
            };
            let request = request.map_err(|fault| RecordError { line, fault })?;
            if let Some(request) = request {
                return Ok(Some(RecordedRequest { line, ..request }));
            }
        }
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = Result<RecordedRequest, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.request().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

fn name(column: &'static str, text: &str) -> Result<String, RecordFault> {
    if (1..=NAME_BYTES_MAX).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(RecordFault::value(column, text, "a name of 1 to 256 bytes"))
}

fn time(text: &str) -> Result<Instant, RecordFault> {
    let seconds = text.trim().parse().ok().filter(|seconds| (0.0..=RECORD_TIME_S_MAX).contains(seconds));
    let seconds: f64 =
        seconds.ok_or_else(|| RecordFault::value(TIME, text, "seconds from 0 to 1e12, as 1417392000.25"))?;
    Ok(Instant::from_us((seconds * 1e6).round() as u64))
}

/// Accepts only rates that a program can have.
fn rate(rate: BitRate) -> Option<BitRate> {
    (BitRate::bps(1)..=BITRATE_MAX).contains(&rate).then_some(rate)
}

fn of_log(record: &StringRecord, columns: Columns) -> Result<RecordedRequest, RecordFault> {
    let place = match (columns.place, columns.address) {
        (Some(at), _) => Some(ViewerLocation::Name(name(PLACE, &record[at])?)),
        (_, Some(at)) => {
            let address = record[at].trim().parse();
            let address =
                address.map_err(|_| RecordFault::value(ADDRESS, &record[at], "an address, as 192.0.2.1"))?;
            Some(ViewerLocation::Address(address))
        }
        _ => None,
    };
    let bitrate = match (columns.bitrate, columns.bitrate_kbps) {
        (Some(at), _) => {
            let parsed = record[at].trim().parse().ok().and_then(rate);
            let expected = "a rate from 1 bit/s to 1 Tbit/s with its unit, as 2.5 Mbit/s";
            Some(parsed.ok_or_else(|| RecordFault::value(BITRATE, &record[at], expected))?)
        }
        (_, Some(at)) => {
            let kbps: Option<u64> = record[at].trim().parse().ok();
            let parsed = kbps.and_then(|kbps| kbps.checked_mul(1_000)).map(BitRate::bps).and_then(rate);
            let expected = "a whole number from 1 to 1000000000";
            Some(parsed.ok_or_else(|| RecordFault::value(BITRATE_KBPS, &record[at], expected))?)
        }
        _ => None,
    };
    let viewers = columns.viewers.map_or(Ok(1), |at| {
        let viewers = record[at].trim().parse().ok().filter(|viewers| (1..=VIEWERS_MAX).contains(viewers));
        viewers.ok_or_else(|| RecordFault::value(VIEWERS, &record[at], "a whole number from 1 to 1000000000"))
    })?;
    let video = name(VIDEO, &record[columns.video])?;
    Ok(RecordedRequest { line: 0, time: time(&record[columns.time])?, place, video, bitrate, viewers })
}

/// Checks the number of values in a record without a heading.
fn count(record: &StringRecord, expected: u64) -> Result<(), RecordFault> {
    let found = record.len() as u64;
    if found == expected { Ok(()) } else { Err(RecordFault::Count(expected, found)) }
}

/// Reads a session: user, stream, streamer, first round, last round.
fn of_session(record: &StringRecord) -> Result<RecordedRequest, RecordFault> {
    count(record, 5)?;
    let round = |column: &'static str, at: usize| {
        let round: Option<u32> = record[at].trim().parse().ok();
        round.ok_or_else(|| RecordFault::value(column, &record[at], "the number of a round"))
    };
    let (start, stop) = (round("start", 3)?, round("stop", 4)?);
    if stop < start {
        return Err(RecordFault::value("stop", &record[4], "no earlier than start"));
    }
    let time = Instant::from_us(u64::from(start) * ROUND_S * 1_000_000);
    let video = name("streamer", &record[2])?;
    Ok(RecordedRequest { line: 0, time, place: None, video, bitrate: None, viewers: 1 })
}

/// Number of columns of [`RecordFormat::Twitch2015`], and indexes of the three columns used.
const SNAPSHOT_COLUMNS: u64 = 15;
const SNAPSHOT_STREAM: usize = 0;
const SNAPSHOT_VIEWERS: usize = 1;
const SNAPSHOT_BITRATE: usize = 13;

/// Reads a line of a snapshot. `None` for a stream without viewers.
fn of_snapshot(record: &StringRecord) -> Result<Option<RecordedRequest>, RecordFault> {
    count(record, SNAPSHOT_COLUMNS)?;
    let text = &record[SNAPSHOT_VIEWERS];
    let viewers = text.trim().parse().ok().filter(|viewers| (0..=VIEWERS_MAX).contains(viewers));
    let viewers = viewers
        .ok_or_else(|| RecordFault::value("current views", text, "a whole number from 0 to 1000000000"))?;
    let text = &record[SNAPSHOT_BITRATE];
    let kbps = text.trim().parse().ok().filter(|kbps: &f64| (0.0..=1e9).contains(kbps));
    let kbps = kbps.ok_or_else(|| RecordFault::value("playback bitrate", text, "kbit/s from 0 to 1e9"))?;
    let bitrate = rate(BitRate::bps((kbps * 1e3).round() as u64));
    let video = name("stream ID", &record[SNAPSHOT_STREAM])?;
    let request = RecordedRequest { line: 0, time: Instant::ZERO, place: None, video, bitrate, viewers };
    Ok((viewers > 0).then_some(request))
}
