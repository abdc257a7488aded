//! Exercise of the readers of recorded requests, for a fuzz target.

use super::generator::{Workload, WorkloadKind};
use super::recorded::{RecordFormat, RecordedWindow, Records};
use anabranch_units::{Duration, Seed};

/// Reads a file of recorded requests. A first byte `T` means Twitch's sessions, and `S` its
/// snapshots. Any other byte is part of an operator's log. Returns whether the file is valid.
///
/// Panics: if the completed arrivals and the file differ in viewers.
pub fn exercise_records(bytes: &[u8]) -> bool {
    let (format, text) = match bytes.split_first() {
        Some((b'T', text)) => (RecordFormat::Twitch2019, text),
        Some((b'S', text)) => (RecordFormat::Twitch2015, text),
        _ => (RecordFormat::Requests, bytes),
    };
    let viewers: u64 = Records::new(text, format).flatten().map(|request| request.viewers).sum();
    let everything = Duration::from_ps(u64::MAX);
    let read =
        RecordedWindow::read(Records::new(text, format), None, everything, |address| address.to_string());
    let Ok(window) = read else { return false };
    let shares = vec![1.0; window.places().len().max(3)];
    let kind = WorkloadKind::HeavyTail;
    let trace = Workload::complete(&window, kind, &shares, Seed::new(1));
    let Ok(trace) = trace else { return false };
    let completed: u64 = trace.arrivals.iter().map(|arrival| arrival.viewers).sum();
    if window.requests() == Records::new(text, format).count() {
        assert_eq!(completed, viewers, "each viewer arrives once");
    }
    for arrival in &trace.arrivals {
        let ladder = &trace.ladders[arrival.object.channel.0 as usize];
        assert!(ladder.contains(&arrival.object.bitrate), "viewers ask for bitrates of the video");
        assert!(arrival.group.index() < shares.len(), "groups are of the network");
    }
    true
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn fuzz_corpus_results_match_the_file_names() {
        assert!(replay("live_records", super::exercise_records) >= 10);
    }
}
