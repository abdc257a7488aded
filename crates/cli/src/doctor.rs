//! `anabranch doctor`: what this machine can do, and the fix for what it cannot.

use anabranch_codes::{Kernel, kernel_in_use};
use anabranch_emu::{Finding, doctor};
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
    let can_emulate = can_emulate(&findings);
    let kernels = Kernel::available();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if args.json {
        let kernels: Vec<_> = kernels.iter().map(|k| k.name()).collect();
        let value = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "can_emulate": can_emulate,
            "cores": cores,
            "coding_kernel": kernel_in_use().name(),
            "coding_kernels": kernels,
            "findings": findings,
        });
        println!("{}", serde_json::to_string(&value)?);
    } else {
        print!("{}", text(&findings, can_emulate, cores, &kernels));
    }
    Ok(if can_emulate { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether one way to make sites works; each tries everything that it needs, TUN included.
fn can_emulate(findings: &[Finding]) -> bool {
    findings.iter().any(|f| WAYS.contains(&f.name) && f.ok)
}

fn text(findings: &[Finding], can_emulate: bool, cores: usize, kernels: &[Kernel]) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let others: Vec<_> = kernels.iter().filter(|k| **k != kernel_in_use()).map(|k| k.name()).collect();
    let _ =
        writeln!(out, "coding      {} on {cores} cores (also here: {})", kernel_in_use(), others.join(", "));
    let verdict = if can_emulate { "yes" } else { "no: see the fixes below" };
    let _ = writeln!(out, "emulation   {verdict}\n");
    for finding in findings {
        // With a way to make sites, what is not as wished is worth knowing, no more.
        let mark = match (finding.ok, can_emulate) {
            (true, _) => "ok",
            (false, true) => "--",
            (false, false) => "!!",
        };
        let fix = finding.fix.as_deref().unwrap_or_default();
        // Some details end with the fix, for where they stand alone.
        let detail = finding.detail.strip_suffix(fix).unwrap_or(&finding.detail).trim_end_matches(": ");
        let _ = writeln!(out, "{mark}  {}: {detail}", finding.name);
        if !fix.is_empty() {
            let _ = writeln!(out, "    fix: {fix}");
        }
    }
    out
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
            let text = text(&[finding], false, 2, &Kernel::available());
            assert!(text.contains("!!  TUN: seen\n    fix: do this"), "{text}");
        }
    }

    #[test]
    fn the_ways_are_names_of_findings() {
        let names: Vec<_> = doctor().into_iter().map(|f| f.name).collect();
        assert!(WAYS.iter().all(|way| names.contains(way)), "{names:?}");
    }
}
