//! `anabranch circuit retcp`: registers reTCP in this machine's kernel while the command runs.
//!
//! Leaves out: the congestion control itself ([`anabranch_linux::bpf::retcp`]). Read [`run`] first.

use crate::exit::OrUsage as _;
use anabranch_linux::bpf::retcp::{Base, ControlSpec, Mark, attach};
use anabranch_units::Dilation;
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The control.
#[derive(clap::Args)]
pub struct Args {
    /// Name by which programs and `emulate --congestion-control` choose the control.
    #[arg(long, default_value = "retcp")]
    name: String,
    /// Congestion control between marks: reno, cubic or dctcp.
    #[arg(long, value_name = "NAME", default_value = "reno", value_parser = base)]
    base: Base,
    /// Mark of a circuit on acknowledgements: ece (connections without ECN), dscp=1 to dscp=63, or
    /// none.
    #[arg(long, value_name = "MARK", default_value = "ece", value_parser = mark)]
    mark: Marking,
    /// Real time for each second of the network: cubic's clock is that much slower.
    #[arg(long, value_name = "FACTOR", default_value_t = Dilation::NONE)]
    dilation: Dilation,
    /// Have marks read only for programs in this cgroup (version 2) and below. Without: for all.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Print the counters as one JSON object.
    #[arg(long)]
    json: bool,
}

/// A mark, or none.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Marking(Option<Mark>);

fn base(name: &str) -> Result<Base, String> {
    match name {
        "reno" => Ok(Base::Reno),
        "cubic" => Ok(Base::Cubic),
        "dctcp" => Ok(Base::Dctcp),
        _ => Err(format!("unknown base, {}", anabranch_units::text::known(name, ["reno", "cubic", "dctcp"]))),
    }
}

fn mark(text: &str) -> Result<Marking, String> {
    match (text, text.strip_prefix("dscp=").map(str::parse)) {
        ("none", _) => Ok(Marking(None)),
        ("ece", _) => Ok(Marking(Some(Mark::Ece))),
        (_, Some(Ok(value))) => Ok(Marking(Some(Mark::Dscp(value)))),
        _ => Err("must be ece, dscp=1 to dscp=63, or none".to_owned()),
    }
}

/// Registers the congestion control, and removes it when the command ends.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args { name, base, mark, dilation, .. } = args;
    let settings = ControlSpec { name, base: *base, mark: mark.0, dilation: *dilation };
    if let Some(cgroup) = &args.cgroup {
        std::fs::metadata(cgroup).with_context(|| format!("--cgroup {}", cgroup.display())).or_usage()?;
    }
    let retcp = attach(&settings, args.cgroup.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let registered = async {
            errln!("congestion control `{name}` is registered; Ctrl-C removes it");
            std::future::pending::<()>().await;
        };
        // The signals are polled first, so that they are handled before the line is printed.
        tokio::select! {
            biased;
            () = crate::process::asked_to_end() => {}
            () = registered => {}
        }
    });
    let counts = retcp.counts().context("cannot read the counters")?;
    let line = if args.json {
        serde_json::json!({
            "name": name,
            "acks": counts.acks,
            "marked_acks": counts.marked_acks,
            "jumps_up": counts.jumps_up,
            "jumps_down": counts.jumps_down,
        })
        .to_string()
    } else {
        format!(
            "{name}: {} of {} acknowledgements were marked; windows doubled {} times and halved {} times",
            counts.marked_acks, counts.acks, counts.jumps_up, counts.jumps_down
        )
    };
    outln!("{line}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_marks_are_parsed_and_invalid_ones_refused() {
        assert_eq!(mark("ece"), Ok(Marking(Some(Mark::Ece))));
        assert_eq!(mark("dscp=46"), Ok(Marking(Some(Mark::Dscp(46)))));
        assert_eq!(mark("none"), Ok(Marking(None)));
        for text in ["", "dscp", "dscp=", "dscp=x", "dscp=256", "ECE"] {
            assert!(mark(text).is_err(), "{text}");
        }
    }
}
