//! Passes the commit of the source to the program, for run directories.

#![allow(clippy::disallowed_methods, reason = "a build script asks git and the environment")]

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-env-changed=ANABRANCH_COMMIT");
    // A change of any source file may make a clean tree dirty; the log of HEAD grows with every
    // commit.
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    for room in std::fs::read_dir("..").into_iter().flatten().flatten() {
        println!("cargo:rerun-if-changed={}", room.path().join("src").display());
    }
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let given = std::env::var("ANABRANCH_COMMIT").ok().filter(|c| !c.is_empty());
    let found = || {
        let commit = git(&["rev-parse", "HEAD"])?;
        let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        Some(if changed { commit + "+" } else { commit })
    };
    if let Some(commit) = given.or_else(found) {
        println!("cargo:rustc-env=ANABRANCH_COMMIT={commit}");
    }
}
