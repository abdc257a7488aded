//! Options for a file of recorded requests.
//!
//! Leaves out: the columns of such files (`live_proto::plan::recorded`). Read [`RecordedArgs`]
//! first.

use anabranch_live_proto::plan::recorded::{RECORD_TIME_S_MAX, RecordFormat, RecordedWindow, Records};
use anabranch_media::prefixes::PrefixTable;
use anabranch_units::{Duration, Instant};
use anyhow::Context as _;
use std::fs::File;
use std::io::BufReader;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Columns of a file, as users name them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormatName {
    /// CSV with the columns time, video and, if known, place or address, bitrate or bitrate_kbps,
    /// viewers.
    Requests,
    /// Sessions of Twitch, 2019: user, stream, streamer, first and last round of 10 minutes.
    #[value(name = "twitch-2019")]
    Twitch2019,
    /// A snapshot of Twitch, 2015: 15 columns separated by tabs.
    #[value(name = "twitch-2015")]
    Twitch2015,
}

/// A file of recorded requests, and the window of it that is used.
#[derive(Clone, clap::Args)]
pub(super) struct RecordedArgs {
    /// File of requests to serve, in place of drawn requests. Places and bitrates that the file
    /// does not state are drawn as --workload says.
    #[arg(long, value_name = "FILE", conflicts_with = "videos")]
    requests: Option<PathBuf>,
    /// Columns of the file.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = FormatName::Requests, requires = "requests")]
    format: FormatName,
    /// Time in the file at which the window begins. Without: the earliest request.
    #[arg(long, value_name = "SECONDS", requires = "requests", value_parser = seconds)]
    from: Option<f64>,
    /// CSV with the columns prefix, location and isp: viewers of one location and provider are one
    /// place. Without: a place is a /24 or /48.
    #[arg(long, value_name = "FILE", requires = "requests")]
    prefixes: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=RECORD_TIME_S_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("must be from 0 to {RECORD_TIME_S_MAX:e}"))
}

impl RecordedArgs {
    /// Reads the requests of the planning window; `None` if no file is given.
    ///
    /// Errors: one line with the file and its line.
    pub(super) fn read(&self, length: Duration) -> anyhow::Result<Option<RecordedWindow>> {
        let Some(path) = &self.requests else { return Ok(None) };
        let shown = || format!("--requests {}", path.display());
        let format = match self.format {
            FormatName::Requests => RecordFormat::Requests,
            FormatName::Twitch2019 => RecordFormat::Twitch2019,
            FormatName::Twitch2015 => RecordFormat::Twitch2015,
        };
        let records = Records::new(File::open(path).with_context(shown)?, format);
        let from = self.from.map(|seconds| Instant::from_us((seconds * 1e6).round() as u64));
        let prefixes = self.prefixes.as_deref().map(prefix_table).transpose()?;
        let window = RecordedWindow::read(records, from, length, |address| {
            prefixes.as_ref().map_or_else(|| prefix(address), |table| located(table, address))
        });
        window.map(Some).with_context(shown)
    }
}

fn prefix_table(path: &Path) -> anyhow::Result<PrefixTable> {
    let shown = || format!("--prefixes {}", path.display());
    PrefixTable::read(BufReader::new(File::open(path).with_context(shown)?)).with_context(shown)
}

/// Returns city and provider of an address, which form a client group of section 4.7.1. All
/// unlisted addresses are one place.
fn located(table: &PrefixTable, address: IpAddr) -> String {
    table.lookup(address).map_or_else(|| "elsewhere".to_owned(), |(city, isp)| format!("{city}/{isp}"))
}

/// Returns the network that resolvers send for an address (RFC 7871, section 11.1): its first 24
/// bits, or 48 bits in IPv6.
fn prefix(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(address) => {
            let [a, b, c, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}::/48")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_grouped_into_places() {
        let v4: IpAddr = "192.0.2.9".parse().expect("an address");
        let v6: IpAddr = "2001:db8:7:1::9".parse().expect("an address");
        assert_eq!((prefix(v4), prefix(v6)), ("192.0.2.0/24".to_owned(), "2001:db8:7::/48".to_owned()));
        let table = PrefixTable::read("prefix,location,isp\n192.0.2.0/24,paris,x\n".as_bytes());
        let table = table.expect("a table");
        assert_eq!(
            (located(&table, v4), located(&table, v6)),
            ("paris/x".to_owned(), "elsewhere".to_owned())
        );
    }
}
