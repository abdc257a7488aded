//! HiGHS on the path form of a window's program (`python/tests/oracle_live.py`).
//!
//! Leaves out: the whole hour, whose model has millions of columns. Read [`solve`] first.

use super::super::output_of;
use super::plans::{Instance, Row};
use anabranch_live_proto::Tier;
use anabranch_live_proto::plan::{ObjectId, Program};
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns whether this Python has `highspy`. If not, prints the reason.
pub(super) fn is_there(python: &Path) -> bool {
    let mut command = Command::new(python);
    let status = command.args(["-c", "import highspy"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    let reason = match status {
        Ok(status) if status.success() => return true,
        Ok(_) => "it has no highspy".to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: HiGHS by {}: {reason}", python.display());
    false
}

/// A program as `oracle_live.py` reads it; rates are in Mbit/s.
#[derive(Serialize)]
struct Input {
    /// Number of sources, which are the first nodes.
    sources: usize,
    cost_weight: f64,
    /// Source, destination, capacity and cost of each link between tiers.
    links: Vec<(u32, u32, f64, f64)>,
    /// Edge, group, capacity and cost of each link to a group.
    group_links: Vec<(u32, u32, f64, f64)>,
    /// Bitrate of each object, and groups and values of its requests.
    objects: Vec<(f64, Vec<(u32, f64)>)>,
}

impl From<&Program> for Input {
    fn from(program: &Program) -> Self {
        let links = program.network().links().iter().map(|link| {
            let capacity = program.planned(link.capacity).as_mbps_f64();
            (link.from.0, link.to.0, capacity, link.cost)
        });
        let group_links = program.group_links().iter().map(|link| {
            let capacity = program.planned(link.capacity).as_mbps_f64();
            (link.edge.0, link.group.0, capacity, link.cost)
        });
        let objects = program.offers().iter().zip(0..).map(|(offer, id)| {
            let requests = program.requests_for(ObjectId(id)).iter();
            let requests = requests.map(|request| (request.group.0, program.value(request)));
            (offer.object.bitrate.as_mbps_f64(), requests.collect())
        });
        Self {
            sources: program.network().tier(Tier::Source).count(),
            cost_weight: program.settings().cost_weight,
            links: links.collect(),
            group_links: group_links.collect(),
            objects: objects.collect(),
        }
    }
}

/// The answer of `oracle_live.py`.
#[derive(Deserialize)]
struct Answer {
    objective: Option<f64>,
    bound: Option<f64>,
    cpu_s: f64,
    rss_bytes: u64,
    ended: String,
}

/// HiGHS's row for the program of `ours`, or `None` with a printed reason.
///
/// Errors: Python fails.
pub(super) fn solve(
    python: &Path,
    seconds: f64,
    instance: &Instance,
    ours: &Row,
) -> anyhow::Result<Option<Row>> {
    if instance.is_hour() {
        eprintln!("skipped: HiGHS on {}: its model is too large", ours.instance);
        return Ok(None);
    }
    ensure!(seconds > 0.0, "--peer-seconds {seconds}: must be above 0");
    let program = instance.program(ours.seed)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let mut command = Command::new(python);
    command.arg(root.join("python/tests/oracle_live.py")).args(["--seconds", &seconds.to_string()]);
    let output = String::from_utf8(output_of(&mut command, &serde_json::to_vec(&Input::from(&program))?)?)?;
    // HiGHS prints its name first, so the answer is in the last line.
    let last = output.lines().last().with_context(|| format!("{}: no output", python.display()))?;
    let answer: Answer = serde_json::from_str(last)?;
    let gap = answer.objective.zip(answer.bound).filter(|(_, bound)| *bound > 0.0);
    Ok(Some(Row {
        objective: answer.objective,
        bound: answer.bound,
        gap: gap.map(|(objective, bound)| (bound - objective) / bound),
        gap_of_cost: None,
        cpu_s: answer.cpu_s,
        rss_bytes: answer.rss_bytes,
        peer: Some("highs".to_owned()),
        ended: Some(answer.ended),
        ..ours.clone()
    }))
}
