//! Parser of recorded coflows in the format of the coflow benchmark
//! (github.com/coflow/coflow-benchmark).
//!
//! The first line contains the number of ports and the number of coflows. Each further line
//! describes a coflow: its number, its arrival in milliseconds, the number of mappers and the port
//! of each mapper, the number of reducers and `PORT:MEGABYTES` of each reducer. A reducer receives
//! the same amount from each mapper. A megabyte is 2^20 bytes, as in the benchmark's simulator.

use crate::network::{CoflowId, Flow, Network};
use anabranch_units::{ByteCount, Duration, Instant};
use std::fmt;
use std::str::FromStr;

/// Maximum number of ports of a trace.
pub const PORTS_MAX: u32 = 1 << 16;
/// Maximum number of flows of a trace.
pub const FLOWS_MAX: usize = 1 << 22;
const MEGABYTE: f64 = 1_048_576.0;

/// A trace on a [`Network::big_switch`] with `ports` ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Number of ports of the switch.
    pub ports: u32,
    /// Flows of all coflows. The coflow ids are the numbers in the trace.
    pub flows: Vec<Flow>,
}

/// Line and reason of an error in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Reason on one line.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}
impl std::error::Error for TraceError {}

/// Iterator over the words of a line.
struct Words<'a> {
    left: std::str::SplitAsciiWhitespace<'a>,
}

impl Words<'_> {
    fn word(&mut self, what: &str) -> Result<&str, String> {
        self.left.next().ok_or_else(|| format!("ends before {what}"))
    }
    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("{what} is `{word}`: must be a whole number"))
    }
    fn port(&mut self, what: &str, ports: u32) -> Result<u32, String> {
        let port = self.number(what)?;
        if port < ports { Ok(port) } else { Err(format!("{what} is {port}: must be below {ports}")) }
    }
    fn end(mut self) -> Result<(), String> {
        self.left.next().map_or(Ok(()), |word| Err(format!("`{word}` is one word too many")))
    }
}

/// Parses the first `coflows_max` coflows of a trace.
///
/// Errors: the first invalid line.
pub fn parse(text: &str, coflows_max: usize) -> Result<Trace, TraceError> {
    let mut lines = text.lines().enumerate();
    let at = |line: usize| move |reason: String| TraceError { line: line + 1, reason };
    let (_, head) = lines.next().ok_or_else(|| at(0)("the trace is empty".into()))?;
    let (ports, coflows) = parse_head(head).map_err(at(0))?;
    let mut flows = Vec::new();
    for number in 0..coflows.min(coflows_max) {
        let missing = || at(number + 1)(format!("ends after {number} of {coflows} coflows"));
        let (line, text) = lines.next().ok_or_else(missing)?;
        parse_coflow(text, ports, &mut flows).map_err(at(line))?;
    }
    Ok(Trace { ports, flows })
}

fn parse_head(line: &str) -> Result<(u32, usize), String> {
    let mut words = Words { left: line.split_ascii_whitespace() };
    let (ports, coflows) = (words.number("the number of ports")?, words.number("the number of coflows")?);
    if !(1..=PORTS_MAX).contains(&ports) {
        return Err(format!("{ports} ports: must be 1 to {PORTS_MAX}"));
    }
    words.end()?;
    Ok((ports, coflows))
}

fn parse_coflow(line: &str, ports: u32, flows: &mut Vec<Flow>) -> Result<(), String> {
    let mut words = Words { left: line.split_ascii_whitespace() };
    let coflow = CoflowId(words.number("the coflow's number")?);
    let arrives_ms: u32 = words.number("the arrival in milliseconds")?;
    let arrives = Instant::ZERO + Duration::from_ms(arrives_ms.into());
    let count: usize = words.number("the number of mappers")?;
    let mappers =
        (0..count).map(|_| words.port("a mapper's port", ports)).collect::<Result<Vec<u32>, _>>()?;
    let reducers: usize = words.number("the number of reducers")?;
    if mappers.is_empty() || reducers == 0 {
        return Err(format!("{count} mappers and {reducers} reducers: must be at least 1 of each"));
    }
    for _ in 0..reducers {
        let word = words.word("a reducer")?;
        let wrong = || format!("a reducer is `{word}`: must be PORT:MEGABYTES");
        let (port, megabytes) = word.split_once(':').ok_or_else(wrong)?;
        let (port, megabytes): (u32, f64) =
            (port.parse().map_err(|_| wrong())?, megabytes.parse().map_err(|_| wrong())?);
        if port >= ports {
            return Err(format!("a reducer's port is {port}: must be below {ports}"));
        }
        if !(0.0..=1e9).contains(&megabytes) {
            return Err(format!("a reducer gets {megabytes} megabytes: must be 0 to 10^9"));
        }
        if flows.len() + mappers.len() > FLOWS_MAX {
            return Err(format!("more than {FLOWS_MAX} flows"));
        }
        let volume = ByteCount::new((megabytes * MEGABYTE / mappers.len() as f64).round() as u64);
        flows.extend(mappers.iter().map(|mapper| Flow {
            coflow,
            route: Box::new(Network::through_switch(ports, *mapper, port)),
            volume,
            arrives,
            grows: Box::default(),
        }));
    }
    words.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LinkId;

    #[test]
    fn reducer_volume_is_split_evenly_among_mappers() {
        let trace =
            parse("3 2\n7 20 2 0 2 1 1:3.0\n8 40 1 1 2 0:1.5 2:0\n", usize::MAX).expect("well written");
        assert_eq!((trace.ports, trace.flows.len()), (3, 4));
        let flow = &trace.flows[1];
        assert_eq!(*flow.route, [LinkId(2), LinkId(3 + 1)]);
        assert_eq!((flow.coflow, flow.volume.as_u64()), (CoflowId(7), 3 << 19));
        assert_eq!(flow.arrives, Instant::ZERO + Duration::from_ms(20));
        assert_eq!(trace.flows[2].volume.as_u64(), 3 << 19);
        assert_eq!(parse("3 2\n7 20 2 0 2 1 1:3.0\nnot read", 1).expect("well written").flows.len(), 2);
    }

    #[test]
    fn invalid_lines_are_reported_with_their_number() {
        for (text, said) in [
            ("", "line 1: the trace is empty"),
            ("0 1", "line 1: 0 ports: must be 1 to 65536"),
            ("3 1", "line 2: ends after 0 of 1 coflows"),
            ("3 1\n1 0 1 3 1 0:1", "line 2: a mapper's port is 3: must be below 3"),
            ("3 1\n1 0 1 2 1 3:1", "line 2: a reducer's port is 3: must be below 3"),
            ("3 1\n1 0 1 2 1 0:-1", "line 2: a reducer gets -1 megabytes: must be 0 to 10^9"),
            ("3 1\n1 0 1 2 1 0", "line 2: a reducer is `0`: must be PORT:MEGABYTES"),
            ("3 1\n1 0 2 1", "line 2: ends before a mapper's port"),
            ("3 1\n1 0 0 0", "line 2: 0 mappers and 0 reducers: must be at least 1 of each"),
            ("3 1\n1 0 1 2 1 0:1 9", "line 2: `9` is one word too many"),
            ("3 1\n1 x 1 2 1 0:1", "line 2: the arrival in milliseconds is `x`: must be a whole number"),
        ] {
            assert_eq!(parse(text, usize::MAX).expect_err("wrong").to_string(), said);
        }
    }
}
