//! `anabranch doctor`: the abilities of this machine, with a fix for each missing one.

mod need;

use crate::family;
use anabranch_codes::{Kernel, kernel_in_use};
use anabranch_emu::doctor;
use anabranch_emu::scenario::shortest_day;
use anabranch_units::Finding;
use std::process::ExitCode;

pub use need::Need;

/// Form of the answer.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Names of the emulator's findings about methods to create sites. One working method suffices.
const WAYS: [&str; 2] = ["namespaces as we are", "user namespaces"];

/// Runs the checks. The exit code is 0 if an emulation can run here, else 1.
///
/// Errors: the answer cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut findings = doctor();
    let needs = family::needs();
    let can_emulate = can_emulate(&findings);
    if can_emulate {
        findings.push(circuits());
    }
    let kernels = Kernel::available();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if args.json {
        let kernels: Vec<_> = kernels.iter().map(|k| k.name()).collect();
        let all = findings.iter().chain(needs.iter().flat_map(|need| &need.findings));
        let mut value = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "can_emulate": can_emulate,
            "cores": cores,
            "coding_kernel": kernel_in_use().name(),
            "coding_kernels": kernels,
            "findings": all.collect::<Vec<_>>(),
        });
        for need in &needs {
            value[need.field] = need.ways().into();
        }
        outln!("{}", serde_json::to_string(&value)?);
    } else {
        out!("{}", text(&findings, &needs, can_emulate, cores, &kernels));
    }
    Ok(if can_emulate { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shortest day of circuits that this machine emulates in real time, measured for a second.
fn circuits() -> Finding {
    match shortest_day(&crate::emulate::host_command) {
        Ok(day) => {
            let detail = format!("days of {day} and more in real time; time dilation by F divides that by F");
            Finding::new("circuits", true, detail, "")
        }
        Err(error) => Finding::new("circuits", false, error.to_string(), "free a processor, and ask again"),
    }
}

/// Returns true if one method to create sites works. Each check covers all needs, TUN included.
fn can_emulate(findings: &[Finding]) -> bool {
    findings.iter().any(|f| WAYS.contains(&f.name) && f.ok)
}

fn text(findings: &[Finding], needs: &[Need], can_emulate: bool, cores: usize, kernels: &[Kernel]) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let others: Vec<_> = kernels.iter().filter(|k| **k != kernel_in_use()).map(|k| k.name()).collect();
    let _ =
        writeln!(out, "coding      {} on {cores} cores (also here: {})", kernel_in_use(), others.join(", "));
    let verdict = if can_emulate { "yes" } else { "no: see the fixes below" };
    let _ = writeln!(out, "emulation   {verdict}");
    for need in needs {
        let ways = need.ways();
        let ways = if ways.is_empty() {
            "no: see the fixes below".into()
        } else {
            format!("by {}", ways.join(", "))
        };
        let _ = writeln!(out, "{:<10}  {ways}", need.name);
    }
    out.push('\n');
    for finding in findings {
        // If sites can be created, other missing abilities are only noted.
        let mark = match (finding.ok, can_emulate) {
            (true, _) => "ok",
            (false, true) => "--",
            (false, false) => "!!",
        };
        write_finding(&mut out, mark, finding.name, &finding.detail, finding.fix.as_deref());
    }
    for need in needs {
        let has_none = need.ways().is_empty();
        for finding in &need.findings {
            // One working method is enough.
            let mark = match (finding.ok, has_none) {
                (true, _) => "ok",
                (false, false) => "--",
                (false, true) => "!!",
            };
            write_finding(&mut out, mark, finding.name, &finding.detail, finding.fix.as_deref());
        }
    }
    out
}

fn write_finding(out: &mut String, mark: &str, name: &str, detail: &str, fix: Option<&str>) {
    use std::fmt::Write as _;
    let fix = fix.unwrap_or_default();
    // The detail may end with the fix, because it may be shown alone; the fix then follows only
    // once.
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
    fn one_method_to_create_sites_suffices() {
        let [root, user] = WAYS;
        assert!(can_emulate(&[finding(root, false), finding(user, true)]));
        assert!(!can_emulate(&[
            finding(root, false),
            finding(user, false),
            finding("clock resolution", true)
        ]));
    }

    #[test]
    fn failed_checks_are_shown_with_their_fix() {
        for detail in ["seen", "seen: do this"] {
            let finding = Finding { detail: detail.into(), ..finding("TUN", false) };
            let text = text(&[finding], &[], false, 2, &Kernel::available());
            assert!(text.contains("!!  TUN: seen\n    fix: do this"), "{text}");
        }
    }

    #[test]
    fn one_method_to_limit_flows_suffices() {
        let said = |findings: Vec<Finding>| {
            let need = Need { name: "flow rates", field: "rates", prefix: "rates by ", findings };
            text(&[], &[need], true, 2, &Kernel::available())
        };
        let one = said(vec![
            finding("flow listing", true),
            finding("rates by socket", true),
            finding("rates by HTB", false),
        ]);
        assert!(one.contains("flow rates  by socket\n") && one.contains("--  rates by HTB: seen"), "{one}");
        let none = said(vec![finding("flow listing", true), finding("rates by socket", false)]);
        assert!(none.contains("flow rates  no") && none.contains("!!  rates by socket: seen"), "{none}");
    }

    #[test]
    fn names_of_site_methods_are_findings() {
        let names: Vec<_> = doctor().into_iter().map(|f| f.name).collect();
        assert!(WAYS.iter().all(|way| names.contains(way)), "{names:?}");
    }
}
