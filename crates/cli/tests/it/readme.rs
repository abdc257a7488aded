//! The commands in the README and in `docs/`, run as printed.
//!
//! A block of shell commands after a line `<!-- run -->` is run. All marked blocks of a document
//! run in order, in one shell and one new folder, with the command under test first in `PATH`.
//! Daemons are started with `&` as readers would start them. Before the next block, the test waits
//! for each address on which the block listens (`--listen 127.0.0.1:PORT`). Blocks that take
//! minutes, or need what a test lacks (`make demo`, a build), have another mark with the reason, or
//! no mark.
//!
//! Leaves out: output shown in documents. Read [`blocks`] first.

use super::{skip, text};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Mark of a block to run.
const MARK: &str = "<!-- run -->";
/// Time limit of all blocks of a document, in seconds, on a busy machine.
const LIMIT_S: u32 = 300;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli of a checkout").to_owned()
}

/// Marked blocks of a document, in order.
fn blocks(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if line.trim() != MARK {
            continue;
        }
        let fence = lines.next().unwrap_or_default().trim();
        assert!(matches!(fence, "```sh" | "```shell"), "`{MARK}` stands before ```sh, not before `{fence}`");
        let block: Vec<&str> = lines.by_ref().take_while(|l| l.trim() != "```").collect();
        found.push(block.join("\n"));
    }
    found
}

/// Local ports on which a block listens.
fn ports(block: &str) -> Vec<u16> {
    let after = block.split("--listen ").skip(1);
    let address = after.filter_map(|rest| rest.split_whitespace().next());
    address.filter_map(|a| a.strip_prefix("127.0.0.1:")?.parse().ok()).collect()
}

/// Joins all blocks to one script, which ends at the first failing command.
fn script(blocks: &[String]) -> String {
    let mut script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    for block in blocks {
        writeln!(script, "{block}").expect("a string takes all");
        for port in ports(block) {
            let _ = writeln!(
                script,
                "for try in $(seq 600); do (: <>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; sleep 0.1; done"
            );
        }
    }
    script
}

/// Returns a shell with a separate loopback, where all ports are free. If that is not permitted and
/// the `ports` are free, the shell uses this machine's loopback. Otherwise prints the reason and
/// returns `None`.
fn shell(ports: &[u16]) -> Option<Vec<&'static str>> {
    const OWN: [&str; 7] = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "bash"];
    let mut try_own = Command::new(OWN[0]);
    try_own.args(&OWN[1..]).args(["-c", "ip link set lo up"]).stderr(Stdio::null());
    if try_own.status().is_ok_and(|s| s.success()) {
        return Some(OWN.to_vec());
    }
    let taken = ports.iter().find(|p| std::net::TcpListener::bind(("127.0.0.1", **p)).is_err());
    if let Some(taken) = taken {
        skip(&format!("no namespaces here, and port {taken} is in use"));
        return None;
    }
    Some(vec!["bash"])
}

/// Runs the marked blocks of a document, then `check`.
///
/// Panics: if a command fails.
fn run(document: &str, check: &str) {
    let text_of = std::fs::read_to_string(root().join(document)).expect("the document is there");
    let mut blocks = blocks(&text_of);
    blocks.push(check.to_owned());
    let all: Vec<u16> = blocks.iter().flat_map(|b| ports(b)).collect();
    let Some(shell) = shell(&all) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let up = if shell.len() > 1 { "ip link set lo up\n" } else { "" };
    let script = format!("{up}{}", script(&blocks));
    let binary = Path::new(env!("CARGO_BIN_EXE_anabranch")).parent().expect("a file in a folder");
    let path = std::env::join_paths(
        [binary.to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    // `timeout` also ends the remaining processes of its group.
    let output = Command::new("timeout")
        .args(["--kill-after=5", &LIMIT_S.to_string()])
        .args(&shell)
        .args(["-c", &script])
        .env("PATH", path.expect("folders without colons"))
        .env_remove("ANABRANCH_LOG")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("coreutils are there");
    let logs: String = std::fs::read_dir(folder.path())
        .expect("ours")
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "log"))
        .map(|e| {
            format!("--- {:?}\n{}", e.file_name(), std::fs::read_to_string(e.path()).unwrap_or_default())
        })
        .collect();
    assert!(
        output.status.success(),
        "{document}: its commands ended with {}\n{}{}{logs}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// #17: the README's blocks conflicted with each other, and none delivered a file as printed.
#[test]
fn readme_commands_deliver_a_file_to_each_site() {
    // The last block ends the daemons; the delivered files remain.
    run("README.md", "cmp paris/big.tar tokyo/big.tar\ncmp paris/big.tar lima/big.tar\ntest -s lima/big.tar");
}

/// The marked quick starts in `docs/` run unchanged.
#[test]
fn marked_blocks_of_each_document_run_unchanged() {
    let mut documents: Vec<String> = std::fs::read_dir(root().join("docs"))
        .expect("docs are there")
        .flatten()
        .map(|e| format!("docs/{}", e.file_name().to_string_lossy()))
        .filter(|name| name.ends_with(".md"))
        .collect();
    documents.sort();
    for document in documents {
        let text = std::fs::read_to_string(root().join(&document)).expect("a text");
        if text.lines().any(|l| l.trim() == MARK) {
            run(&document, "true");
        }
    }
}

#[test]
fn only_marked_blocks_run_and_their_ports_are_found() {
    let document = "```sh\nrm -rf x\n```\n<!-- run -->\n```sh\na --listen 127.0.0.1:7 &\n```\n<!-- slow -->\n```sh\nb\n```\n";
    assert_eq!(blocks(document), ["a --listen 127.0.0.1:7 &"]);
    assert_eq!(ports("a --listen 127.0.0.1:7 &\nb --listen 0.0.0.0:8\nc --listen 127.0.0.1:9"), [7, 9]);
    assert!(blocks("```sh\nx\n```").is_empty());
}
