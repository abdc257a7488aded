//! The unit files for systemd.

use crate::{answer, has_program, skip, text};
use std::path::Path;
use std::process::Command;

/// Maximum exposure that `systemd-analyze security` may report, times ten.
const EXPOSURE_MAX: &str = "30";

/// #52: a document had one unit without any hardening, which scored 9.2 of 10.
#[test]
fn unit_files_are_valid_hardened_and_use_existing_verbs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let has_analyze = has_program("systemd-analyze");
    let checked = tempfile::tempdir().expect("a temporary folder");
    let mut count = 0;
    for unit in std::fs::read_dir(folder).expect("it is shipped") {
        let unit = unit.expect("it can be listed").path();
        let content = std::fs::read_to_string(&unit).expect("text");
        let program = "/usr/local/bin/anabranch ";
        let command = content.lines().find_map(|line| line.strip_prefix("ExecStart=")?.strip_prefix(program));
        let command = command.unwrap_or_else(|| panic!("{}: no command", unit.display()));
        let words = command.split(' ').filter(|word| !word.starts_with('$')).chain(["--help"]);
        let help = answer(&words.collect::<Vec<_>>());
        assert!(help.status.success(), "{command}: {}", text(&help.stderr));
        count += 1;
        if !has_analyze {
            continue;
        }
        // The program need not be installed on this machine.
        let copy = checked.path().join(unit.file_name().expect("a file"));
        let content = content.replace(program, concat!(env!("CARGO_BIN_EXE_anabranch"), " "));
        std::fs::write(&copy, content).expect("the folder is ours");
        for arguments in [&["verify"][..], &["security", "--offline=true", "--threshold", EXPOSURE_MAX]] {
            let output =
                Command::new("systemd-analyze").args(arguments).arg(&copy).output().expect("it runs");
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "{}: {arguments:?}: {said}", unit.display());
        }
    }
    assert_eq!(count, 10, "units");
    if !has_analyze {
        skip("no systemd-analyze, which checks unit files");
    }
}

/// #52: daemons and operators' commands read the controller's address and the keys' folder from the
/// environment.
#[test]
fn options_are_read_from_the_environment() {
    let run = |variable: &str, value: &str, verb: &[&str]| {
        let mut command = crate::anabranch();
        let output = command.args(verb).env(variable, value).output().expect("it runs");
        text(&output.stderr)
    };
    for verb in [
        &["replicate", "status"][..],
        &["gather", "ls", "127.0.0.1:1"],
        &["shuffle", "agent", "--name", "h", "--link", "1 Gbit/s"],
        &["spray", "up", "--name", "h", "--peer", "p=10.0.0.1"],
        &["broker", "status"],
        &["live", "status"],
    ] {
        let said = run("ANABRANCH_KEYS", "/nowhere/keys", verb);
        assert!(said.contains("/nowhere/keys/") && !said.contains("panicked"), "{verb:?}: {said}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    let shown = keys.to_str().expect("plain names");
    for (variable, make, verb) in [
        (
            "ANABRANCH_CONTROLLER",
            &["replicate", "keys", "init", "--topology", "b4"][..],
            &["replicate", "status"][..],
        ),
        ("ANABRANCH_COORDINATOR", &["shuffle", "keys", "--operators", "operator"], &["shuffle", "status"]),
        ("ANABRANCH_BROKER", &["broker", "keys", "--operators", "operator"], &["broker", "status"]),
    ] {
        let _ = std::fs::remove_dir_all(&keys);
        let made = answer(&[make, &["--out", shown]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
        let said = run(variable, "no-port", &[verb, &["--keys", shown]].concat());
        assert!(said.contains("no-port"), "{variable}: {said}");
    }
}
