//! The table of a simulation or emulation: one line for each point and workload, with means over
//! the trials.

use anabranch_sim::scenario::SweepPoint;
use anabranch_sim::{CoflowRow, WorkloadRow};
use anabranch_units::stats::mean;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// A column: its heading, and its value in a trial.
type Column = (&'static str, fn(&WorkloadRow) -> Option<f64>);
/// A column over the completion times of a workload's coflows, in microseconds.
type CoflowColumn = (&'static str, fn(&[f64]) -> Option<f64>);

/// Columns of workloads with coflows. They are the main results, so they are the first columns.
const COFLOW_COLUMNS: [CoflowColumn; 3] = [
    ("coflows", |times| (!times.is_empty()).then_some(times.len() as f64)),
    ("cct mean us", |times| (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)),
    ("cct max us", |times| times.iter().copied().reduce(f64::max)),
];

const COLUMNS: [Column; 26] = [
    ("goodput Mbit/s", |w| w.goodput_mbps),
    ("flows", |w| (w.rounds.is_none()).then_some(w.flows as f64)),
    ("finished", |w| w.finished.map(|n| n as f64)),
    ("slowest Mbit/s", |w| w.flow_mbps_min),
    ("fastest Mbit/s", |w| w.flow_mbps_max),
    ("fairness", |w| w.fairness_share),
    ("rounds", |w| w.rounds.map(|n| n as f64)),
    ("round p50 us", |w| w.round_us_p50),
    ("round max us", |w| w.round_us_max),
    ("fct mean us", |w| w.fct_us_mean),
    ("fct p99 us", |w| w.fct_us_p99),
    ("small p99 us", |w| w.small_fct_us_p99),
    ("sent", |w| w.sent_packets.map(|n| n as f64)),
    ("received", |w| w.received_packets.map(|n| n as f64)),
    ("delay mean us", |w| w.delay_us_mean),
    ("retransmitted", |w| w.retransmitted_segments.map(|n| n as f64)),
    ("timeouts", |w| w.timeouts.map(|n| n as f64)),
    ("players begun", |w| more(w, "players_begun")),
    ("begun p50 ms", |w| more(w, "begun_ms_p50")),
    ("begun p99 ms", |w| more(w, "begun_ms_p99")),
    ("stalls", |w| more(w, "stalls")),
    ("stalled share", |w| more(w, "stalled_share")),
    ("moves", |w| more(w, "moves")),
    ("failures", |w| more(w, "failures")),
    ("unanswered", |w| more(w, "unanswered")),
    ("cost mean", |w| more(w, "cost_mean")),
];

/// A result that only some systems report, by its name.
fn more(row: &WorkloadRow, name: &str) -> Option<f64> {
    row.more.get(name).copied()
}

/// A complete trial.
pub(crate) struct TrialLine {
    /// Index of the trial's point.
    pub(crate) point: usize,
    /// Results of its workloads.
    pub(crate) rows: Vec<WorkloadRow>,
    /// Results of the workloads' coflows.
    pub(crate) coflows: Vec<CoflowRow>,
    /// Packets dropped in the network.
    pub(crate) drops: u64,
    /// Whether the emulation can be trusted. `None` for a simulation, which is never late.
    pub(crate) trusted: Option<bool>,
}

impl TrialLine {
    /// Completion times of a workload's finished coflows.
    fn times_us(&self, workload: usize) -> Vec<f64> {
        let its = self.coflows.iter().filter(|row| usize::from(row.workload_index) == workload);
        its.filter_map(|row| row.cct_us).collect()
    }
}

/// Builds the table of all complete trials.
pub(crate) fn of(points: &[SweepPoint], done: &[TrialLine]) -> Table {
    let workloads = done.first().map_or(0, |trial| trial.rows.len());
    let used: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(_, value)| done.iter().any(|t| t.rows.iter().any(|w| value(w).is_some())))
        .collect();
    let has_coflows = done.iter().any(|trial| !trial.coflows.is_empty());
    let used_of_coflows = if has_coflows { &COFLOW_COLUMNS[..] } else { &[] };
    let swept: Vec<&str> =
        points.first().map(|p| p.swept.iter().map(|(key, _)| key.as_str()).collect()).unwrap_or_default();
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    let mut head: Vec<String> =
        swept.iter().map(|key| key.rsplit('.').next().unwrap_or(key).to_owned()).collect();
    head.push("workload".into());
    head.extend(used_of_coflows.iter().map(|(name, _)| (*name).to_owned()));
    head.extend(used.iter().map(|(name, _)| (*name).to_owned()));
    head.push("drops".into());
    let has_verdicts = done.iter().any(|trial| trial.trusted.is_some());
    head.extend(has_verdicts.then(|| "trusted".to_owned()));
    table.set_header(head);
    for (index, point) in points.iter().enumerate() {
        let trials: Vec<&TrialLine> = done.iter().filter(|trial| trial.point == index).collect();
        for number in (0..workloads).filter(|_| !trials.is_empty()) {
            let rows: Vec<&WorkloadRow> = trials.iter().filter_map(|t| t.rows.get(number)).collect();
            let mut line: Vec<String> = point.swept.iter().map(|(_, value)| plain(value)).collect();
            line.push(workload_name(trials[0], number));
            line.extend(used_of_coflows.iter().map(|(_, value)| {
                cell(&trials.iter().filter_map(|trial| value(&trial.times_us(number))).collect::<Vec<_>>())
            }));
            line.extend(
                used.iter()
                    .map(|(_, value)| cell(&rows.iter().filter_map(|row| value(row)).collect::<Vec<_>>())),
            );
            line.push(cell(&trials.iter().map(|t| t.drops as f64).collect::<Vec<_>>()));
            line.extend(has_verdicts.then(|| trusted_trials(&trials)));
            table.add_row(line);
        }
    }
    let firsts = swept.len() + 1;
    table.column_iter_mut().skip(firsts).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// Says whether the trials of a line are trusted: `yes`, `no`, or the number of trusted trials.
fn trusted_trials(trials: &[&TrialLine]) -> String {
    let trusted = trials.iter().filter(|trial| trial.trusted == Some(true)).count();
    match trusted {
        0 => "no".to_owned(),
        _ if trusted == trials.len() => "yes".to_owned(),
        _ => format!("{trusted} of {}", trials.len()),
    }
}

/// Kind of a workload, with its index if several workloads are of this kind.
fn workload_name(trial: &TrialLine, number: usize) -> String {
    let kind = &trial.rows[number].workload;
    match trial.rows.iter().filter(|row| row.workload == *kind).count() {
        1 => kind.clone(),
        _ => format!("{kind} [{number}]"),
    }
}

fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats a mean with its confidence interval, in significant digits.
fn cell(values: &[f64]) -> String {
    let Some(mean) = mean(values) else { return String::new() };
    let digits = |v: f64| match v.abs() {
        v if v == v.trunc() && mean.half_width.is_none_or(|half| half == 0.0) => 0,
        v if v >= 1_000.0 => 0,
        v if v >= 10.0 => 1,
        _ => 3,
    };
    let places = digits(mean.mean);
    match mean.half_width.filter(|half| *half > 0.0) {
        Some(half) => format!("{:.places$} ± {half:.places$}", mean.mean),
        None => format!("{:.places$}", mean.mean),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::simulated;
    use anabranch_sim::{Outcome, Plan, Simulation, scenario};
    use std::path::Path;

    /// Line of a simulated trial of the first point.
    fn simulated_line(outcome: Outcome) -> TrialLine {
        TrialLine { point: 0, rows: outcome.workloads, coflows: outcome.coflows, drops: 0, trusted: None }
    }

    /// A scenario of coflows had only flows in its table (#17).
    #[test]
    fn table_lists_completion_times_of_coflows() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let read = |name: &str| std::fs::read_to_string(folder.join(name));
        let text = read("shuffle.toml").expect("it is part of the repository");
        let points = scenario::read(
            "shuffle.toml",
            &text,
            &["workload.allocator=max-min", "sweep={}"].map(str::to_owned),
        );
        let points = points.expect("a good scenario");
        let plan =
            Plan::with_systems(points[0].scenario.clone(), &read, &simulated()).expect("it can be planned");
        let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("it can be planned");
        let outcome = simulation.run();
        let line = simulated_line(outcome);
        let times = line.times_us(0);
        assert_eq!(times.len(), 2);
        let table = of(&points, &[line]).to_string();
        let mean = cell(&[times.iter().sum::<f64>() / 2.0]);
        assert!(
            table.contains("coflows") && table.contains("cct mean us") && table.contains(&mean),
            "{table}"
        );
        assert!(!table.contains("trusted"), "{table}");
    }

    /// Rows of a late emulation had no mark in the table (#53).
    #[test]
    fn untrusted_trials_are_marked() {
        let row = WorkloadRow { workload: "long".to_owned(), ..WorkloadRow::default() };
        let trial = |trusted| TrialLine {
            point: 0,
            rows: vec![row.clone()],
            coflows: Vec::new(),
            drops: 0,
            trusted: Some(trusted),
        };
        let text = "duration = \"1 s\"\nnetwork = { topology = \"star\", hosts = 3 }\n\
                    workload = { kind = \"long\", pairs = [[\"h0\", \"h1\"]] }\n";
        let points = scenario::read("x.toml", text, &[]).expect("a good scenario");
        let last_cell = |trusted: &[bool]| {
            let trials: Vec<TrialLine> = trusted.iter().copied().map(trial).collect();
            let mut table = of(&points, &trials);
            table.set_content_arrangement(ContentArrangement::Disabled);
            let table = table.to_string();
            let lines: Vec<&str> = table.lines().filter(|line| line.contains('┆')).collect();
            assert!(lines[0].contains("trusted"), "{table}");
            let last = lines[1].split('┆').next_back().expect("a line has cells");
            last.trim_matches([' ', '│']).to_owned()
        };
        assert_eq!(last_cell(&[true; 3]), "yes");
        assert_eq!(last_cell(&[false]), "no");
        assert_eq!(last_cell(&[true, false, true]), "2 of 3");
    }

    /// The table lacked players' results, which only `--json` had (#21).
    #[test]
    fn table_lists_results_of_players() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let read = |name: &str| std::fs::read_to_string(folder.join(name));
        let text = read("broker.toml").expect("it is part of the repository");
        // The first network fails while it has players.
        let sets =
            ["duration=\"30 s\"", "warmup=\"5 s\"", "workload.players=20", "workload.arrivals=\"2 s\""];
        let dies = "workload.faults=[{ what = \"network-dies\", network = 0, at = \"15 s\" }]";
        let sets: Vec<String> = sets.into_iter().chain([dies]).map(str::to_owned).collect();
        let points = scenario::read("broker.toml", &text, &sets).expect("a good scenario");
        let plan =
            Plan::with_systems(points[0].scenario.clone(), &read, &simulated()).expect("it can be planned");
        let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("it can be planned");
        let outcome = simulation.run();
        let row = outcome.workloads[0].clone();
        let line = simulated_line(outcome);
        let mut table = of(&points, &[line]);
        // The table has its full width, so that no heading is broken.
        table.set_content_arrangement(ContentArrangement::Disabled);
        let table = table.to_string();
        for (head, name) in [
            ("players begun", "players_begun"),
            ("begun p50 ms", "begun_ms_p50"),
            ("begun p99 ms", "begun_ms_p99"),
            ("stalls", "stalls"),
            ("stalled share", "stalled_share"),
            ("moves", "moves"),
            ("failures", "failures"),
            ("unanswered", "unanswered"),
            ("cost mean", "cost_mean"),
        ] {
            let lines: Vec<&str> = table.lines().filter(|line| line.contains('┆')).collect();
            let at = lines[0].split('┆').position(|cell| cell.trim() == head);
            let at = at.unwrap_or_else(|| panic!("no column {head}: {table}"));
            let shown = lines[1].split('┆').nth(at).map(str::trim);
            assert_eq!(shown, Some(&*cell(&[row.more[name]])), "{head}: {table}");
        }
        assert_eq!(row.more["players_begun"], 20.0);
        assert!(row.more["failures"] > 0.0, "the cheapest network was used, and died");
    }
}
