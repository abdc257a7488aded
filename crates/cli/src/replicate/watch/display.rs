//! Progress on stderr: bars that fit the terminal; elsewhere an occasional line for all
//! destinations.

use super::{Output, limit_in_words};
use crate::formats::fitted;
use anabranch_pieces::name::directory;
use anabranch_replicate::wire::TransferView;
use anabranch_replicate_proto::coordinator::{EventKind, Verdict};
use anabranch_units::BitRate;
use anabranch_units::text::printable;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Interval between two lines where bars are not possible.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of destinations named in the line, slowest first.
const NAMED_MAX: usize = 4;
/// Maximum number of destinations with a bar, in order.
const BARS_MAX: usize = 16;
/// Assumed width of a terminal of unknown width.
const COLUMNS: u16 = 80;

pub(super) struct TransferDisplay {
    how: DisplayMode,
    length: u64,
    /// Bytes at each destination, and rate in bits per second.
    destinations: BTreeMap<String, (u64, u64)>,
    is_directory: bool,
    /// The limit of the source's rate, in words.
    limit: Option<String>,
}

enum DisplayMode {
    Silent,
    Lines { last: Instant },
    Bars { all: MultiProgress, of: BTreeMap<String, ProgressBar>, columns: u16 },
}

impl TransferDisplay {
    pub(super) fn new(output: Output) -> Self {
        let how = if output.quiet || output.json {
            DisplayMode::Silent
        } else if !std::io::stderr().is_terminal() {
            DisplayMode::Lines { last: Instant::now() }
        } else {
            let size = rustix::termios::tcgetwinsize(std::io::stderr());
            let columns = size.ok().map(|s| s.ws_col).filter(|c| *c > 0).unwrap_or(COLUMNS);
            DisplayMode::Bars { all: MultiProgress::new(), of: BTreeMap::new(), columns }
        };
        Self { how, length: 0, destinations: BTreeMap::new(), is_directory: false, limit: None }
    }

    pub(super) fn say(&self, line: &str) {
        let line = printable(line);
        match &self.how {
            DisplayMode::Silent => {}
            DisplayMode::Lines { .. } => errln!("{line}"),
            DisplayMode::Bars { all, .. } => {
                let _ = all.println(&*line);
            }
        }
    }

    pub(super) fn status(&mut self, view: &TransferView) {
        self.is_directory = directory(&view.source_path).is_some();
        self.limit = limit_in_words(view);
        let rows = view.destinations.iter().map(|d| (d.site.clone(), (d.verified_bytes, d.rate_bps)));
        self.progress(view.length_bytes.unwrap_or(0), rows.collect());
    }

    pub(super) fn event(&mut self, kind: &EventKind<String>) {
        match kind {
            EventKind::Progress { length_bytes, destinations } => {
                let rows = destinations.iter().map(|d| (d.site.clone(), (d.verified_bytes, d.rate_bps)));
                self.progress(*length_bytes, rows.collect());
            }
            // The first scan of a directory can take long.
            EventKind::Inquiring if self.is_directory => self.say("each site looks at its directory"),
            EventKind::Planned { .. } => {
                let held = self.limit.as_ref().map_or(String::new(), |held| format!("; {held}"));
                self.say(&format!("{}{held}", kind.in_words(&String::clone)));
            }
            EventKind::Stopped { .. }
            | EventKind::Suspected { .. }
            | EventKind::Postponed { .. }
            | EventKind::WrongCapacity { .. }
            | EventKind::Waiting { .. }
            | EventKind::Verdict { verdict: Verdict::Done, .. } => self.say(&kind.in_words(&String::clone)),
            _ => {}
        }
    }

    fn progress(&mut self, length: u64, rows: Vec<(String, (u64, u64))>) {
        self.length = length;
        self.destinations.extend(rows);
        if length == 0 {
            return;
        }
        match &mut self.how {
            DisplayMode::Silent => {}
            DisplayMode::Lines { last } => {
                if last.elapsed() >= LINE_EVERY
                    && let Some(line) = line(length, &self.destinations)
                {
                    errln!("{}", printable(&line));
                    *last = Instant::now();
                }
            }
            DisplayMode::Bars { all, of, columns } => {
                let widest = self.destinations.keys().map(|s| s.chars().count()).max().unwrap_or(0);
                for (site, &(verified, rate_bps)) in self.destinations.iter().take(BARS_MAX) {
                    let bar = of.entry(site.clone()).or_insert_with(|| {
                        let layout = Layout::of(*columns, widest);
                        let style = ProgressStyle::with_template(&layout.template())
                            .expect("the template has known keys")
                            .progress_chars("=> ");
                        let name = fitted(&printable(site), layout.name);
                        all.add(ProgressBar::new(length).with_style(style).with_prefix(name))
                    });
                    bar.set_length(length);
                    bar.set_position(verified);
                    let left =
                        (rate_bps > 0).then(|| (length - verified.min(length)) / (rate_bps / 8).max(1));
                    let left = left.filter(|s| *s > 0).map_or(String::new(), |s| format!(", {s} s left"));
                    bar.set_message(format!("{}{left}", BitRate::bps(rate_bps)));
                }
            }
        }
    }

    pub(super) fn end(&self) {
        if let DisplayMode::Bars { all, .. } = &self.how {
            let _ = all.clear();
        }
    }
}

/// Formats the progress of incomplete destinations; `None` if all are complete.
fn line(length: u64, destinations: &BTreeMap<String, (u64, u64)>) -> Option<String> {
    let mut open: Vec<_> = destinations.iter().filter(|(_, (verified, _))| *verified < length).collect();
    if open.is_empty() {
        return None;
    }
    open.sort_by_key(|(_, (verified, _))| *verified);
    let named: Vec<_> = open
        .iter()
        .take(NAMED_MAX)
        .map(|(site, (verified, rate_bps))| {
            let share = (u128::from(*verified) * 100 / u128::from(length)) as u64;
            format!("{site} {share} % at {}", BitRate::bps(*rate_bps))
        })
        .collect();
    let more = match open.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} that are further"),
    };
    let done = match destinations.len() - open.len() {
        0 => String::new(),
        done => format!("; {done} of {} have all", destinations.len()),
    };
    Some(format!("{}{more}{done}", named.join(", ")))
}

/// Columns of a bar's line, by content.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    name: usize,
    /// Columns of the bar; 0 if there is no room.
    bar: usize,
}

impl Layout {
    /// Text after the bar: a share, and a rate with the remaining time, which is cut at the
    /// terminal's edge.
    const SHARE: usize = " 100 % ".len();
    const RATE: usize = "999.999 Mbit/s, 9999 s left".len();
    const BAR_MIN: usize = 8;
    const BAR_MAX: usize = 40;
    const NAME_MAX: usize = 20;

    fn of(columns: u16, widest: usize) -> Self {
        let columns = usize::from(columns);
        let name = widest.min((columns / 4).min(Self::NAME_MAX));
        let left = columns.saturating_sub(name + " []".len() + Self::SHARE + Self::RATE);
        let bar = if left < Self::BAR_MIN { 0 } else { left.min(Self::BAR_MAX) };
        Self { name, bar }
    }

    fn template(&self) -> String {
        let Self { name, bar } = self;
        match bar {
            0 => format!("{{prefix:>{name}}} {{percent:>3}} % {{wide_msg}}"),
            _ => format!("{{prefix:>{name}}} [{{bar:{bar}}}] {{percent:>3}} % {{wide_msg}}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #17: on 80 columns each bar took two lines, and the next bar began at its end.
    #[test]
    fn progress_bar_and_its_text_fit_the_terminal() {
        for columns in 1..300u16 {
            for widest in [0, 1, 5, 20, 63] {
                let layout = Layout::of(columns, widest);
                let bar = if layout.bar == 0 { 0 } else { layout.bar + " []".len() };
                let before_rate = layout.name + bar + Layout::SHARE;
                if columns >= 40 {
                    assert!(
                        before_rate + Layout::RATE <= columns.into() || layout.bar == 0,
                        "{columns}: {layout:?}"
                    );
                    assert!(before_rate < columns.into(), "{columns}: {layout:?}");
                }
                ProgressStyle::with_template(&layout.template()).expect("known keys");
            }
        }
        assert_eq!(Layout::of(80, 5), Layout { name: 5, bar: 38 });
        assert_eq!(Layout::of(80, 63), Layout { name: 20, bar: 23 });
        assert_eq!(Layout::of(40, 63), Layout { name: 10, bar: 0 });
    }

    /// #17: without a terminal there was a line a second for one destination, even after it had the
    /// whole file.
    #[test]
    fn progress_line_names_unfinished_sites_only() {
        let of = |rows: &[(&str, u64, u64)]| -> BTreeMap<String, (u64, u64)> {
            rows.iter().map(|(site, bytes, bps)| ((*site).to_owned(), (*bytes, *bps))).collect()
        };
        let said = line(1000, &of(&[("lima", 999, 0), ("oslo", 1000, 0), ("tokyo", 250, 20_000_000)]));
        assert_eq!(said.as_deref(), Some("tokyo 25 % at 20 Mbit/s, lima 99 % at 0 bit/s; 1 of 3 have all"));
        assert_eq!(line(1000, &of(&[("lima", 1000, 0), ("oslo", 1000, 0)])), None);
        let many: Vec<(String, u64, u64)> = (0..9).map(|n| (format!("s{n}"), n, 0)).collect();
        let many: Vec<_> = many.iter().map(|(s, n, r)| (s.as_str(), *n, *r)).collect();
        let said = line(1000, &of(&many)).expect("all lack something");
        assert!(
            said.starts_with("s0 0 % at 0 bit/s, ") && said.ends_with(" and 5 that are further"),
            "{said}"
        );
    }
}
