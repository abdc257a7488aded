//! `anabranch doctor`: what this machine can do, and the fix for what it cannot.

use anabranch_codes::{Kernel, kernel_in_use};
use anabranch_emu::{Finding, doctor};
use anabranch_pace as pace;
use std::process::ExitCode;

/// How to say it.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// The ways to make sites, of which one suffices, as the emulator's findings call them.
const WAYS: [&str; 2] = ["namespaces as we are", "user namespaces"];

/// Runs it: exit code 0 if an emulation can run here, else 1.
///
/// Errors: none but that of writing the answer.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let findings = doctor();
    let rates = pace::doctor();
    let can_emulate = can_emulate(&findings);
    let kernels = Kernel::available();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if args.json {
        let kernels: Vec<_> = kernels.iter().map(|k| k.name()).collect();
        let findings: Result<Vec<_>, _> =
            findings.iter().map(serde_json::to_value).chain(rates.iter().map(serde_json::to_value)).collect();
        let value = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "can_emulate": can_emulate,
            "cores": cores,
            "coding_kernel": kernel_in_use().name(),
            "coding_kernels": kernels,
            "rates": ways_to_limit(&rates),
            "findings": findings?,
        });
        println!("{}", serde_json::to_string(&value)?);
    } else {
        print!("{}", text(&findings, &rates, can_emulate, cores, &kernels));
    }
    Ok(if can_emulate { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether one way to make sites works; each tries everything that it needs, TUN included.
fn can_emulate(findings: &[Finding]) -> bool {
    findings.iter().any(|f| WAYS.contains(&f.name) && f.ok)
}

/// The ways to hold flows to rates that work here, by the names of the findings.
fn ways_to_limit(rates: &[pace::Finding]) -> Vec<&'static str> {
    rates.iter().filter(|f| f.ok).filter_map(|f| f.name.strip_prefix("rates by ")).collect()
}

fn text(
    findings: &[Finding],
    rates: &[pace::Finding],
    can_emulate: bool,
    cores: usize,
    kernels: &[Kernel],
) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let others: Vec<_> = kernels.iter().filter(|k| **k != kernel_in_use()).map(|k| k.name()).collect();
    let _ =
        writeln!(out, "coding      {} on {cores} cores (also here: {})", kernel_in_use(), others.join(", "));
    let verdict = if can_emulate { "yes" } else { "no: see the fixes below" };
    let _ = writeln!(out, "emulation   {verdict}");
    let ways = ways_to_limit(rates);
    let ways =
        if ways.is_empty() { "no: see the fixes below".into() } else { format!("by {}", ways.join(", ")) };
    let _ = writeln!(out, "flow rates  {ways}\n");
    for finding in findings {
        // With a way to make sites, what is not as wished is worth knowing, no more.
        let mark = match (finding.ok, can_emulate) {
            (true, _) => "ok",
            (false, true) => "--",
            (false, false) => "!!",
        };
        write_finding(&mut out, mark, finding.name, &finding.detail, finding.fix.as_deref());
    }
    let none = ways_to_limit(rates).is_empty();
    for finding in rates {
        // One way is enough.
        let mark = match (finding.ok, none) {
            (true, _) => "ok",
            (false, false) => "--",
            (false, true) => "!!",
        };
        write_finding(&mut out, mark, finding.name, &finding.detail, finding.fix.as_deref());
    }
    out
}

fn write_finding(out: &mut String, mark: &str, name: &str, detail: &str, fix: Option<&str>) {
    use std::fmt::Write as _;
    let fix = fix.unwrap_or_default();
    // Some details end with the fix, for where they stand alone.
    let detail = detail.strip_suffix(fix).unwrap_or(detail).trim_end_matches(": ");
    let _ = writeln!(out, "{mark}  {name}: {detail}");
    if !fix.is_empty() {
        let _ = writeln!(out, "    fix: {fix}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &'static str, ok: bool) -> Finding {
        Finding { name, ok, detail: "seen".into(), fix: (!ok).then(|| "do this".into()) }
    }

    #[test]
    fn one_way_to_make_sites_suffices_and_none_does_not() {
        let [root, user] = WAYS;
        assert!(can_emulate(&[finding(root, false), finding(user, true)]));
        assert!(!can_emulate(&[
            finding(root, false),
            finding(user, false),
            finding("clock resolution", true)
        ]));
    }

    #[test]
    fn what_fails_comes_with_its_fix() {
        for detail in ["seen", "seen: do this"] {
            let finding = Finding { detail: detail.into(), ..finding("TUN", false) };
            let text = text(&[finding], &[], false, 2, &Kernel::available());
            assert!(text.contains("!!  TUN: seen\n    fix: do this"), "{text}");
        }
    }

    #[test]
    fn one_way_to_limit_flows_suffices_and_none_does_not() {
        let rate = |name, ok: bool| pace::Finding {
            name,
            ok,
            detail: "seen".into(),
            fix: (!ok).then(|| "do this".into()),
        };
        let said = |rates: &[pace::Finding]| text(&[], rates, true, 2, &Kernel::available());
        let one =
            said(&[rate("flow listing", true), rate("rates by socket", true), rate("rates by HTB", false)]);
        assert!(one.contains("flow rates  by socket\n") && one.contains("--  rates by HTB: seen"), "{one}");
        let none = said(&[rate("flow listing", true), rate("rates by socket", false)]);
        assert!(none.contains("flow rates  no") && none.contains("!!  rates by socket: seen"), "{none}");
    }

    #[test]
    fn the_ways_are_names_of_findings() {
        let names: Vec<_> = doctor().into_iter().map(|f| f.name).collect();
        assert!(WAYS.iter().all(|way| names.contains(way)), "{names:?}");
    }
}
