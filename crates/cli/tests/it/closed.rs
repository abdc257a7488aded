//! Commands whose output has no reader any more: no command panics.
//!
//! Each leaf of the command tree has a row in [`VERBS`]; the test fails for a command without a
//! row.

use crate::net::TWO;
use crate::silent::{World, free_address};
use crate::{anabranch, answer, text};
use std::process::{Command, Stdio};

/// Arguments of each command with which the command ends on its own. `@` stands for the address of
/// the command's daemon.
const VERBS: &[(&str, &str)] = &[
    ("replicate controller", "--topology network.toml --listen 192.0.2.1:1 --keys keys"),
    ("replicate relay", "--topology network.toml --site nobody --dir . --controller @ --keys keys"),
    ("replicate send", "file --from s --to d --dry-run --controller @ --keys keys"),
    ("replicate check", "data/ --from s --to nobody --controller @ --keys keys"),
    ("replicate sync", "data/ --from s --to d --detach --controller @ --keys keys"),
    ("replicate plan", "--topology internet2 --from chicago --to atlanta,houston"),
    ("replicate status", "--sites --controller @ --keys keys"),
    ("replicate wait", "9 --controller @ --keys keys"),
    ("replicate leftovers", "--dir ."),
    ("replicate manifest", "."),
    ("replicate keys init", "--topology network.toml --out more"),
    ("replicate keys add", "--keys more --sites lima"),
    ("replicate keys renew", "--keys more"),
    ("replicate keys revoke", "--keys more d"),
    ("gather keys", "--out more-gather --servers s1"),
    ("gather keys renew", "--keys missing"),
    ("gather keys revoke", "--keys missing s1"),
    ("gather serve", "missing --listen 127.0.0.1:0 --keys keys/gather"),
    ("gather ls", "@ --keys keys/gather"),
    ("gather get", "@/file -o - --keys keys/gather"),
    ("gather sync", "@/file/ -o out --dry-run --keys keys/gather"),
    ("gather stripe", "file --into striped --servers s1@127.0.0.1:1,s2@127.0.0.1:2"),
    ("shuffle keys", "--out more-shuffle --hosts h2"),
    ("shuffle keys renew", "--keys missing"),
    ("shuffle keys revoke", "--keys missing h1"),
    ("shuffle coordinator", "--listen 192.0.2.1:1 --keys keys/shuffle"),
    ("shuffle agent", "--name nobody --coordinator @ --keys keys/shuffle"),
    ("shuffle status", "--coordinator @ --keys keys/shuffle"),
    ("shuffle replay", "trace.txt"),
    ("shuffle trace", "--coflows 20000"),
    ("spray keys", "--out more-spray --hosts h1"),
    ("spray keys renew", "--keys missing"),
    ("spray keys revoke", "--keys missing h1"),
    ("spray up", "--name nobody --peer h2=127.0.0.1 --keys missing"),
    ("spray status", "--name nobody"),
    ("spray model", ""),
    ("broker keys", "--out more-broker --networks cheap"),
    ("broker keys renew", "--keys missing"),
    ("broker keys revoke", "--keys missing near"),
    ("broker serve", "--listen 192.0.2.1:1 --store other.redb --keys keys/broker"),
    ("broker cdn", "--name nobody --broker @ --clusters missing --scores missing --keys keys/broker"),
    ("broker status", "--broker @ --keys keys/broker"),
    (
        "broker play",
        "--steering http://127.0.0.1:1/steering/hls --way a=127.0.0.1:1 --duration 1s --arrivals 0s",
    ),
    ("broker origin", "--listen 192.0.2.1:1"),
    ("broker evaluate", "--sessions 300 --design brokered"),
    ("broker several", "--sessions 300 --rounds 10 --reserve nothing --design marketplace"),
    ("broker lies", "--sessions 300 --price 1"),
    ("broker market", "--sessions 300"),
    ("broker world", "--out world --sessions 300"),
    ("live controller", "--listen 192.0.2.1:1 --keys keys/live"),
    ("live source", "--listen 192.0.2.1:1 --token-file tokens"),
    ("live publish", "ftp://127.0.0.1:1 --token 0123456789abcdef --channel news --renditions 240p=400kbit/s"),
    ("live node", "--listen 192.0.2.1:1 --parent http://127.0.0.1:1"),
    ("live sign", "--secret-file missing http://127.0.0.1:1/news/index.m3u8"),
    ("live plan", "--demand missing missing"),
    ("live play", "http://127.0.0.1:1/news/index.m3u8 --duration 1s"),
    ("live drain", "nobody --controller @ --keys keys/live"),
    ("live network", "--controller @ --keys keys/live"),
    ("live status", "--controller @ --keys keys/live"),
    ("live keys", "--out more-live --nodes oslo"),
    ("live keys renew", "--keys missing"),
    ("live keys revoke", "--keys missing oslo"),
    ("live dns", "--directory missing --zone live.example --listen 127.0.0.1:0"),
    ("live evaluate", "--videos 20 --edges 4 --design balanced"),
    ("circuit plan", "demand.csv"),
    ("circuit retcp", "--cgroup missing"),
    ("simulate", "scenario.toml --json"),
    ("emulate", "missing.toml"),
    ("topologies", ""),
    ("doctor", ""),
    ("demo", "--topology missing.toml"),
    ("experiment codedbulk", "--predict --concurrent 1"),
    ("experiment live", "--late 99"),
    ("recipe", "--systems"),
    ("completions", "bash"),
    ("docs man", "man"),
    ("docs reference", "reference"),
];

/// Commands that the help of `words` lists, except `help`; empty for a leaf.
fn listed(words: &[&str]) -> Vec<String> {
    let help = text(&answer(&[words, &["-h"]].concat()).stdout);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands.take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?;
        name.split_whitespace().next().map(str::to_owned)
    });
    names.filter(|name| name != "help").collect()
}

pub fn leaves(words: &[&str]) -> Vec<String> {
    let below = listed(words);
    if below.is_empty() {
        return vec![words.join(" ")];
    }
    below.iter().flat_map(|name| leaves(&[words, &[name.as_str()]].concat())).collect()
}

/// Daemons whose clients print much. Each is listed by the first word of the clients' commands.
fn daemons(world: &mut World) -> Vec<(&'static str, String)> {
    std::fs::write(world.path("network.toml"), TWO).expect("the folder is ours");
    std::fs::write(world.path("live.toml"), LIVE).expect("the folder is ours");
    std::fs::write(world.path("contracts.toml"), CONTRACTS).expect("the folder is ours");
    std::fs::create_dir(world.path("served")).expect("a new folder");
    std::fs::write(world.path("served/file"), [7; 100_000]).expect("the folder is ours");
    world.done(&["replicate", "keys", "init", "--topology", "network.toml", "--out", "keys"]);
    world.done(&["gather", "keys", "--out", "keys/gather"]);
    world.done(&["shuffle", "keys", "--hosts", "h1", "--operators", "operator", "--out", "keys/shuffle"]);
    world.done(&["broker", "keys", "--networks", "near", "--operators", "operator", "--out", "keys/broker"]);
    world.done(&["live", "keys", "--network", "live.toml", "--operators", "operator", "--out", "keys/live"]);
    let commands = [
        ("replicate", "replicate controller --topology network.toml --keys keys --store r.redb"),
        ("gather", "gather serve served --keys keys/gather"),
        ("shuffle", "shuffle coordinator --keys keys/shuffle --store s.redb"),
        ("broker", "broker serve --contracts contracts.toml --keys keys/broker --players 127.0.0.1:0"),
        ("live", "live controller --network live.toml --keys keys/live --store l.redb"),
    ];
    let started = commands.map(|(system, line)| {
        let at = free_address();
        let mut command = world.command(&line.split(' ').collect::<Vec<_>>());
        command.args(["--listen", &at.to_string()]);
        world.start(command, at);
        (system, at.to_string())
    });
    started.into()
}

pub const LIVE: &str = r#"
[[node]]
name = "london"
tier = "source"
media = "http://127.0.0.1:1"
control = "127.0.0.1:1"
"#;

pub const CONTRACTS: &str = r#"
[[network]]
name = "near"
"#;

fn run(command: &mut Command, what: &str) -> (i32, String) {
    let output = command.output().expect("the command runs");
    let said = text(&output.stderr);
    let code = output.status.code().unwrap_or_else(|| panic!("{what} was killed: {said}"));
    (code, said)
}

/// The writing end of a pipe without a reader.
fn closed_pipe() -> Stdio {
    let (_, writer) = std::io::pipe().expect("descriptors are left");
    writer.into()
}

/// #52: `broker status --json | head -c 600` printed a backtrace.
#[test]
fn no_verb_panics_on_a_closed_pipe() {
    let mut world = World::new();
    let daemons = daemons(&mut world);
    std::fs::write(world.path("file"), [7; 100_000]).expect("the folder is ours");
    std::fs::write(world.path("demand.csv"), "source,destination,bytes\n0,1,1000\n").expect("it is ours");
    std::fs::write(world.path("trace.txt"), "2 1\n1 0 1 0 1 1:1\n").expect("the folder is ours");
    std::fs::write(world.path("tokens"), "* 0123456789abcdef\n").expect("the folder is ours");
    std::fs::write(world.path("scenario.toml"), SCENARIO).expect("the folder is ours");
    let mut without_row = leaves(&[]);
    without_row.retain(|verb| !VERBS.iter().any(|(name, _)| name == verb));
    assert!(without_row.is_empty(), "rows in VERBS for {without_row:?}");
    for (verb, arguments) in VERBS {
        let system = verb.split(' ').next().unwrap_or_default();
        let at = daemons.iter().find(|(name, _)| *name == system).map_or("127.0.0.1:1", |(_, at)| at);
        let line = format!("{verb} {}", arguments.replace('@', at));
        let words: Vec<&str> = line.split_whitespace().collect();
        for closed in ["stdout", "stdout and stderr"] {
            let mut command = anabranch();
            command.current_dir(world.path("")).args(&words).stdout(closed_pipe()).stderr(Stdio::piped());
            if closed != "stdout" {
                command.stderr(closed_pipe());
            }
            let (code, said) = run(&mut command, &line);
            assert!(!said.starts_with("error: "), "arguments that the verb does not take: {line}: {said}");
            assert!(code != 101 && !said.contains("panicked"), "{line}, {closed} closed: {code}: {said}");
        }
    }
}

/// A scenario with one short run.
pub const SCENARIO: &str = r#"
duration = "1 ms"
[network]
topology = "star"
hosts = 2
[[workload]]
kind = "long"
pairs = [["h0", "h1"]]
"#;
