//! `bench pace`: time to change a flow's rate by each mechanism, compared with forking `tc`.
//!
//! Measures wall time, the best of several turns, because cores are shared. The flows are idle and
//! use the loopback device of a separate network namespace; a change costs the same for busy flows.
//! Needs root. Read [`Row`] first.

use anabranch_linux::namespace::{Kind, Namespace};
use anabranch_linux::rtnetlink::{LOOPBACK, LinkChange, Rtnetlink};
use anabranch_pace::{BpfPacer, FlowKey, FlowReader, HtbPacer, Limit, PaceError, SocketPacer};
use anabranch_units::BitRate;
use anyhow::{Context as _, ensure};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Arguments of `bench pace`.
#[derive(clap::Args)]
pub struct Args {
    /// Flows that are there, two descriptors each.
    #[arg(long, default_value_t = 400)]
    flows: usize,
    /// Turns of each kind; the shortest counts.
    #[arg(long, default_value_t = 20)]
    turns: u32,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Row {
    what: &'static str,
    /// Number of flows that one call lists or changes.
    flows: usize,
    us_for_each: f64,
}

/// Runs the benchmark.
///
/// Errors: a mechanism that does not work on this machine; no network namespace.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let rows = std::thread::scope(|scope| scope.spawn(|| measure(args)).join());
    let rows = rows.map_err(|_| anyhow::anyhow!("the measuring thread panicked"))??;
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["change", "flows at once", "us for each"]);
    for row in &rows {
        table.add_row([row.what.to_owned(), row.flows.to_string(), format!("{:.1}", row.us_for_each)]);
    }
    println!("{table}");
    Ok(())
}

/// Moves the calling thread to a new network namespace, and measures there.
fn measure(args: &Args) -> anyhow::Result<Vec<Row>> {
    Namespace::unshare(Kind::Network).context("no network namespace: run as root")?;
    let up = LinkChange { set_up: true, ..LinkChange::default() };
    Rtnetlink::open()?.change_link(LOOPBACK, &up).context("cannot bring lo up")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut streams, mut flows) = (Vec::new(), Vec::new());
    for _ in 0..args.flows {
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        flows.push(FlowKey::new(near.local_addr()?, near.peer_addr()?));
        streams.push((near, far));
    }
    let mut rows = Vec::new();
    let mut reader = FlowReader::new()?;
    let (what, all) = ("list flows", flows.len());
    rows.push(Row { what, flows: all, us_for_each: best(args, all, |_| reader.list(usize::MAX).map(drop))? });

    let mut pacer = SocketPacer::new()?;
    rows.push(Row { what: "socket, first", flows: all, us_for_each: first(&flows, |c| pacer.set(c))? });
    for n in [1, all] {
        let us_for_each = best(args, n, |rate| check(pacer.set(&changes(&flows[..n], rate))))?;
        rows.push(Row { what: "socket", flows: n, us_for_each });
    }
    drop(pacer);
    let mut pacer = BpfPacer::new(None)?;
    rows.push(Row { what: "BPF, first", flows: all, us_for_each: first(&flows, |c| pacer.set(c))? });
    for n in [1, all] {
        let us_for_each = best(args, n, |rate| check(pacer.set(&changes(&flows[..n], rate))))?;
        rows.push(Row { what: "BPF", flows: n, us_for_each });
    }
    drop(pacer);
    let mut pacer = HtbPacer::new("lo")?;
    rows.push(Row { what: "HTB, first", flows: all, us_for_each: first(&flows, |c| pacer.set(c))? });
    for n in [1, all] {
        let us_for_each = best(args, n, |rate| check(pacer.set(&changes(&flows[..n], rate))))?;
        rows.push(Row { what: "HTB", flows: n, us_for_each });
    }
    let qdisc = Command::new("tc").args(["-oneline", "qdisc", "show", "dev", "lo"]).output()?;
    let qdisc = String::from_utf8_lossy(&qdisc.stdout).into_owned();
    let handle = qdisc.split_whitespace().nth(2).context("tc shows our qdisc")?.to_owned();
    let class = format!("{handle}1");
    let us_for_each = best(args, 1, |rate| {
        let rate = format!("{}bit", rate.as_bps());
        let change =
            ["class", "change", "dev", "lo", "parent", &handle, "classid", &class, "htb", "rate", &rate];
        let status = Command::new("tc").args(change).stderr(Stdio::null()).status()?;
        ensure!(status.success(), "tc cannot change class {class}");
        Ok::<_, anyhow::Error>(())
    })?;
    rows.push(Row { what: "HTB by forking tc", flows: 1, us_for_each });
    Ok(rows)
}

fn changes(flows: &[FlowKey], rate: BitRate) -> Vec<(FlowKey, Limit)> {
    flows.iter().map(|flow| (*flow, Limit::Rate(rate))).collect()
}

fn check(results: Vec<Result<(), PaceError>>) -> Result<(), PaceError> {
    results.into_iter().collect()
}

/// Microseconds per flow for a first change, which also looks up the flow.
fn first(
    flows: &[FlowKey],
    set: impl FnOnce(&[(FlowKey, Limit)]) -> Vec<Result<(), PaceError>>,
) -> anyhow::Result<f64> {
    let changes = changes(flows, BitRate::mbps(10));
    let start = Instant::now();
    check(set(&changes))?;
    Ok(1e6 * start.elapsed().as_secs_f64() / flows.len() as f64)
}

/// Microseconds per flow for each of `count` flows in the best of the turns. Every flow has a
/// different rate.
fn best<E: Into<anyhow::Error>>(
    args: &Args,
    count: usize,
    mut change: impl FnMut(BitRate) -> Result<(), E>,
) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for turn in 0..args.turns {
        let start = Instant::now();
        change(BitRate::mbps(20 + u64::from(turn))).map_err(Into::into)?;
        best = best.min(1e6 * start.elapsed().as_secs_f64() / count as f64);
    }
    Ok(best)
}
