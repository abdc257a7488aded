//! Pulls over emulated links that are slow, long, lossy, or take only short packets.

use super::*;
use crate::emulate::stage;

/// Pulls an object of 60 kB over one emulated cable; `more` has further options of the emulation.
fn pulls_over(capacity: &str, delay: &str, more: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let cable =
        format!("between = [\"client\", \"server\"]\ncapacity = \"{capacity}\"\ndelay = \"{delay}\"\n");
    let network = format!("[[site]]\nname = \"client\"\n[[site]]\nname = \"server\"\n[[cable]]\n{cable}");
    std::fs::write(path("net.toml"), network).expect("the folder is ours");
    std::fs::create_dir(path("served")).expect("the folder is ours");
    let bytes = noise(70, 60_000);
    std::fs::write(path("served/object"), &bytes).expect("the folder is ours");
    let run = |arguments: &[&str]| {
        let output = anabranch().current_dir(folder.path()).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    };
    run(&["gather", "keys"]);
    let binary = env!("CARGO_BIN_EXE_anabranch");
    let server = format!("server={binary} gather serve served --listen 0.0.0.0:7180");
    let emulation = [&["emulate", "net.toml", "--run", &server][..], more].concat();
    // The client begins once the server listens.
    let listens = "for try in $(seq 600); do (: <>/dev/tcp/$1/7180) 2>/dev/null && break; sleep 0.1; done";
    let get = format!("{listens}; exec {binary} gather get $1:7180/object -o out");
    let client = ["--", "bash", "-c", &get, "bash", "{@server}"];
    run(&[&emulation[..], &client[..]].concat());
    assert!(std::fs::read(path("out")).is_ok_and(|out| out == bytes));
}

/// #52: the only server was given up after 5 s, or refused blocks that fit the MTU.
#[test]
fn objects_arrive_over_slow_lossy_and_short_mtu_links() {
    let Some(_alone) = stage(&[]) else { return };
    for mtu in ["576", "578"] {
        pulls_over("10 Mbit/s", "10 ms", &["--mtu", mtu]);
    }
    pulls_over("56 kbit/s", "200 ms", &[]);
    for seed in ["7", "14"] {
        pulls_over("10 Mbit/s", "10 ms", &["--loss", "30%", "--seed", seed]);
    }
}
