//! Exit codes: a mistake has the same code with every command (docs/operations.md).
//!
//! Each leaf of the command tree has rows in [`ROWS`]. The test fails for a command without a row,
//! and for a command with an option for keys that has no row with `--keys ?`. Daemons do not end
//! because a service is unreachable, so they have no row of [`UserMistake::Unreachable`].

use crate::closed::{CONTRACTS, LIVE, SCENARIO, leaves};
use crate::keys::copy_folder;
use crate::net::{TWO, anabranch, catches_interrupts, run};
use crate::{answer, text};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const INTERRUPTED: i32 = 130;

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserMistake {
    /// A file or folder that does not exist. In a row, `?` stands for its name. A second run uses a
    /// file of another format.
    File,
    /// A folder that does not exist, where a file in its place is no mistake; the second run of
    /// [`UserMistake::File`] is omitted.
    Folder,
    /// A value out of range, or an unknown name.
    Value,
    /// A folder without keys, and a folder with keys of two sets. In a row, `?` stands for the
    /// folder.
    Keys,
    /// A path for new files that already exists.
    Exists,
    /// An address without a service: `127.0.0.1:1`.
    Unreachable,
    /// A listening address that another program uses. In a row, `@` stands for the address.
    Taken,
}
use UserMistake::{Exists, File, Folder, Keys, Taken, Unreachable, Value};

impl UserMistake {
    fn code(self) -> i32 {
        match self {
            File | Folder | Value | Keys | Exists => USAGE,
            Unreachable | Taken => FAILED,
        }
    }
}

const ROWS: &[(UserMistake, &str, &str)] = &[
    (File, "replicate controller", "--topology ?.toml --keys keys/replicate"),
    (Keys, "replicate controller", "--topology net.toml --listen 127.0.0.1:0 --store r.redb --keys ?"),
    (Taken, "replicate controller", "--topology net.toml --listen @ --store r.redb --keys keys/replicate"),
    (File, "replicate relay", "--topology ?.toml --site s --dir served --keys keys/replicate"),
    (Folder, "replicate relay", "--topology net.toml --site s --dir ? --keys keys/replicate"),
    (Value, "replicate relay", "--topology net.toml --site nobody --dir served --keys keys/replicate"),
    (Value, "replicate relay", "--topology net.toml --site s --dir served --link s --keys keys/replicate"),
    (Value, "replicate relay", "--topology net.toml --site s --dir . --keys keys/replicate"),
    (Keys, "replicate relay", "--topology net.toml --site s --dir served --keys ?"),
    (Taken, "replicate relay", "--topology net.toml --site s --dir served --listen @ --keys keys/replicate"),
    (Value, "replicate send", "file --from s --to d --stripes many --keys keys/replicate"),
    (Keys, "replicate send", "file --from s --to d --keys ?"),
    (Unreachable, "replicate send", "file --from s --to d --controller 127.0.0.1:1 --keys keys/replicate"),
    (File, "replicate send", "data/ --from s --to d --filter-from ? --keys keys/replicate"),
    (Value, "replicate send", "file --from s --to d --exclude a --keys keys/replicate"),
    (Value, "replicate send", "file --from s --to d --publish snapshot --keys keys/replicate"),
    (Value, "replicate send", "data/ --from s --to d --keep 1 --keys keys/replicate"),
    (Value, "replicate check", "file --from s --to d --keys keys/replicate"),
    (Value, "replicate check", "data/ --from s --to d --include [ --keys keys/replicate"),
    (Keys, "replicate check", "data/ --from s --to d --keys ?"),
    (Unreachable, "replicate check", "data/ --from s --to d --controller 127.0.0.1:1 --keys keys/replicate"),
    (Value, "replicate sync", "file --from s --to d --keys keys/replicate"),
    (Value, "replicate sync", "data/ --from s --to d --delete --max-delete 200% --keys keys/replicate"),
    (Value, "replicate sync", "data/ --from s --to d --max-delete 5 --keys keys/replicate"),
    (Keys, "replicate sync", "data/ --from s --to d --keys ?"),
    (Unreachable, "replicate sync", "data/ --from s --to d --controller 127.0.0.1:1 --keys keys/replicate"),
    (File, "replicate plan", "--topology ?.toml --from s --to d"),
    (Value, "replicate plan", "--topology net.toml --from nobody --to d"),
    (Value, "replicate plan", "--topology net.toml --from s --to s"),
    (Value, "replicate plan", "--topology net.toml --from s --to d --scheme codded"),
    (Keys, "replicate status", "--keys ?"),
    (Unreachable, "replicate status", "--controller 127.0.0.1:1 --keys keys/replicate"),
    (Value, "replicate status", "--controller http://127.0.0.1:1 --keys keys/replicate"),
    (Keys, "replicate wait", "1 --keys ?"),
    (Unreachable, "replicate wait", "1 --controller 127.0.0.1:1 --keys keys/replicate"),
    (Folder, "replicate leftovers", "--dir ?"),
    (Value, "replicate leftovers", "--dir net.toml"),
    (Folder, "replicate manifest", "?"),
    (File, "replicate manifest", ". --filter-from ?"),
    (Value, "replicate manifest", ". --max-size 1X"),
    (Value, "replicate manifest", ". --files-from net.toml --exclude a"),
    (File, "replicate keys init", "--topology ?.toml --out more"),
    (Exists, "replicate keys init", "--topology net.toml --out keys/replicate"),
    (Keys, "replicate keys add", "--sites lima --keys ?"),
    (Value, "replicate keys add", "--keys keys/replicate"),
    (Keys, "replicate keys renew", "--keys ?"),
    (Value, "replicate keys renew", "nobody --keys keys/replicate"),
    (Value, "replicate keys revoke", "nobody --keys keys/replicate"),
    (Folder, "replicate keys revoke", "d --keys ?"),
    (Exists, "gather keys", "--servers s1 --out keys/gather"),
    (Keys, "gather keys renew", "--keys ?"),
    (Folder, "gather keys revoke", "s1 --keys ?"),
    (Folder, "gather serve", "? --listen 127.0.0.1:0 --keys keys/gather"),
    (Value, "gather serve", "served --clients-max 0 --name s1 --listen 127.0.0.1:0 --keys keys/gather"),
    (Keys, "gather serve", "served --name s1 --listen 127.0.0.1:0 --keys ?"),
    (Taken, "gather serve", "served --name s1 --listen @ --keys keys/gather"),
    (Value, "gather ls", "nonsense --keys keys/gather"),
    (Value, "gather ls", "127.0.0.1:1/x --snapshot --keys keys/gather"),
    (Keys, "gather ls", "127.0.0.1:1 --keys ?"),
    (Unreachable, "gather ls", "127.0.0.1:1 --keys keys/gather"),
    (File, "gather get", "--manifest ? -o out --keys keys/gather"),
    (File, "gather get", "--objects-from ? -o out/ --keys keys/gather"),
    (Value, "gather get", "127.0.0.1:1/../x -o out --keys keys/gather"),
    (Value, "gather get", "127.0.0.1:1/../x/ -o out --keys keys/gather"),
    (Value, "gather get", "127.0.0.1:1/x -o out --publish snapshot --keys keys/gather"),
    (Unreachable, "gather get", "127.0.0.1:1/x/ -o out --keys keys/gather"),
    (Keys, "gather get", "127.0.0.1:1/x -o out --keys ?"),
    (Unreachable, "gather get", "127.0.0.1:1/x -o out --keys keys/gather"),
    (Value, "gather sync", "127.0.0.1:1/x -o out --keys keys/gather"),
    (Value, "gather sync", "127.0.0.1:1/x/ -o out --delete --max-delete 101% --keys keys/gather"),
    (Keys, "gather sync", "127.0.0.1:1/x/ -o out --keys ?"),
    (Unreachable, "gather sync", "127.0.0.1:1/x/ -o out --keys keys/gather"),
    (Folder, "gather stripe", "? --into striped --servers s1@127.0.0.1:1,s2@127.0.0.1:2"),
    (Value, "gather stripe", "net.toml --into striped --servers s1@127.0.0.1:1 --parts 0"),
    (Exists, "shuffle keys", "--hosts h1 --out keys/shuffle"),
    (Keys, "shuffle keys renew", "--keys ?"),
    (Folder, "shuffle keys revoke", "h1 --keys ?"),
    (File, "shuffle coordinator", "--hosts ? --listen 127.0.0.1:0 --store c.redb --keys keys/shuffle"),
    (Keys, "shuffle coordinator", "--listen 127.0.0.1:0 --store c.redb --keys ?"),
    (Taken, "shuffle coordinator", "--listen @ --store c.redb --keys keys/shuffle"),
    (File, "shuffle agent", "--name h1 --rules ? --state state --keys keys/shuffle"),
    (Value, "shuffle agent", "--name h1 --link 0bit/s --state state --keys keys/shuffle"),
    (Keys, "shuffle agent", "--name h1 --state state --keys ?"),
    (Keys, "shuffle status", "--keys ?"),
    (Unreachable, "shuffle status", "--coordinator 127.0.0.1:1 --keys keys/shuffle"),
    (File, "shuffle replay", "?"),
    (Exists, "shuffle replay", "trace.txt --out served"),
    (Value, "shuffle replay", "trace.txt --allocator nobody"),
    (Value, "shuffle trace", "--coflows 0"),
    (Exists, "spray keys", "--hosts h1 --out keys/spray"),
    (Keys, "spray keys renew", "--keys ?"),
    (Folder, "spray keys revoke", "h1 --keys ?"),
    (File, "spray up", "--name h1 --peers ? --socket socket --keys keys/spray"),
    (Value, "spray up", "--name h1 --peer h1=127.0.0.1 --socket socket --keys keys/spray"),
    (Value, "spray up", "--name h1 --peer h2=127.0.0.1 --ways 0 --socket socket --keys keys/spray"),
    (Keys, "spray up", "--name h1 --peer h2=127.0.0.1 --socket socket --keys ?"),
    (Unreachable, "spray status", "--name h1 --socket nobody"),
    (Value, "spray model", "--window 0"),
    (Exists, "broker keys", "--networks near --out keys/broker"),
    (Keys, "broker keys renew", "--keys ?"),
    (Folder, "broker keys revoke", "near --keys ?"),
    (File, "broker serve", "--contracts ? --listen 127.0.0.1:0 --players 127.0.0.1:0 --keys keys/broker"),
    (File, "broker serve", "--places ? --listen 127.0.0.1:0 --players 127.0.0.1:0 --keys keys/broker"),
    (Value, "broker serve", "--design nobody --listen 127.0.0.1:0 --players 127.0.0.1:0 --keys keys/broker"),
    (Value, "broker serve", "--cost-weight=-1 --listen 127.0.0.1:0 --players 127.0.0.1:0 --keys keys/broker"),
    (Keys, "broker serve", "--listen 127.0.0.1:0 --players 127.0.0.1:0 --store b.redb --keys ?"),
    (Taken, "broker serve", "--listen @ --players 127.0.0.1:0 --store b.redb --keys keys/broker"),
    (Taken, "broker serve", "--players @ --listen 127.0.0.1:0 --store b.redb --keys keys/broker"),
    (File, "broker cdn", "--name near --clusters ? --keys keys/broker"),
    (File, "broker cdn", "--name near --scores ? --keys keys/broker"),
    (Keys, "broker cdn", "--name near --keys ?"),
    (Keys, "broker status", "--keys ?"),
    (Unreachable, "broker status", "--broker 127.0.0.1:1 --keys keys/broker"),
    (Value, "broker play", "--steering nonsense --way a=127.0.0.1:1"),
    (
        Unreachable,
        "broker play",
        "--steering http://127.0.0.1:1/steering/hls --way a=127.0.0.1:1 --duration 1s --arrivals 0s",
    ),
    (Taken, "broker origin", "--listen @"),
    (Folder, "broker evaluate", "--world ?"),
    (Value, "broker evaluate", "--sessions 300 --design nobody"),
    (Value, "broker several", "--sessions 300 --swing 3"),
    (Value, "broker lies", "--sessions 300 --price 0"),
    (Value, "broker market", "--sessions 0"),
    (Exists, "broker world", "--sessions 300 --out served"),
    (File, "live controller", "--network ? --listen 127.0.0.1:0 --store l.redb --keys keys/live"),
    (Value, "live controller", "--every 0s --listen 127.0.0.1:0 --store l.redb --keys keys/live"),
    (Keys, "live controller", "--listen 127.0.0.1:0 --store l.redb --keys ?"),
    (Taken, "live controller", "--listen @ --store l.redb --keys keys/live"),
    (File, "live source", "--token-file ? --listen 127.0.0.1:0"),
    (Value, "live source", "--token-file tokens --listen 127.0.0.1:0 --renditions 0"),
    (Value, "live source", "--token-file tokens --listen 127.0.0.1:0 --pull news=ftp://127.0.0.1/a"),
    (
        Keys,
        "live source",
        "--token-file tokens --listen 127.0.0.1:0 --name london --controller 127.0.0.1:1 --keys ?",
    ),
    (Taken, "live source", "--token-file tokens --listen @"),
    (Value, "live publish", "ftp://127.0.0.1:1 --token 0123456789abcdef --channel news"),
    (File, "live node", "--secret-file ? --listen 127.0.0.1:0 --parent http://127.0.0.1:1"),
    (
        File,
        "live node",
        "--tls 127.0.0.1:0 --certificate ? --certificate-key ? --listen 127.0.0.1:0 --parent http://127.0.0.1:1",
    ),
    (Value, "live node", "--listen 127.0.0.1:0 --parent nonsense"),
    (Keys, "live node", "--listen 127.0.0.1:0 --name london --controller 127.0.0.1:1 --keys ?"),
    (Taken, "live node", "--listen @ --parent http://127.0.0.1:1"),
    (File, "live sign", "--secret-file ? http://127.0.0.1:1/news/index.m3u8"),
    (File, "live plan", "? --demand demand.csv"),
    (File, "live plan", "live.toml --demand ?"),
    (Value, "live play", "nonsense"),
    (Unreachable, "live play", "http://127.0.0.1:1/news/index.m3u8 --duration 1s"),
    (Keys, "live drain", "london --keys ?"),
    (Unreachable, "live drain", "london --controller 127.0.0.1:1 --keys keys/live"),
    (File, "live network", "--set ? --keys keys/live"),
    (Keys, "live network", "--keys ?"),
    (Unreachable, "live network", "--controller 127.0.0.1:1 --keys keys/live"),
    (Keys, "live status", "--keys ?"),
    (Unreachable, "live status", "--controller 127.0.0.1:1 --keys keys/live"),
    (File, "live keys", "--network ? --out more-live"),
    (Exists, "live keys", "--nodes london --out keys/live"),
    (Keys, "live keys renew", "--keys ?"),
    (Folder, "live keys revoke", "london --keys ?"),
    (File, "live dns", "--directory ? --zone live.example --listen 127.0.0.1:0"),
    (Value, "live dns", "--directory net.toml --zone .. --listen 127.0.0.1:0"),
    (Keys, "live dns", "--controller 127.0.0.1:1 --zone live.example --listen 127.0.0.1:0 --keys ?"),
    (File, "live evaluate", "--requests ?"),
    (Value, "live evaluate", "--videos 20 --edges 4 --seed 1 --seed 1"),
    (File, "circuit plan", "?"),
    (File, "circuit plan", "--job ?"),
    (Value, "circuit plan", "demand.csv --night 5s"),
    (Folder, "circuit retcp", "--cgroup ?"),
    (Value, "circuit retcp", "--base dctcp --mark ece"),
    (File, "simulate", "?"),
    (Value, "simulate", "scenario.toml --set network.rate=0"),
    (Exists, "simulate", "scenario.toml --out served"),
    (File, "emulate", "?.toml -- true"),
    (Value, "emulate", "net.toml --site nobody -- true"),
    (Folder, "emulate", "net.toml --preload ? -- true"),
    (Exists, "emulate", "net.toml --record served -- true"),
    (File, "topologies", "?.toml"),
    (Value, "topologies", "nobody"),
    (Value, "doctor", "nothing"),
    (File, "demo", "--topology ?.toml"),
    (Value, "demo", "--topology net.toml --from s"),
    (Exists, "demo", "--topology net.toml --from s --to d --out served"),
    (File, "experiment codedbulk", "--topology ?.toml --predict"),
    (Value, "experiment codedbulk", "--predict --concurrent 1 --load 9"),
    (Exists, "experiment codedbulk", "--predict --concurrent 1 --record served"),
    (Value, "experiment live", "--late 99"),
    (Exists, "docs man", "net.toml"),
    (Exists, "docs reference", "net.toml"),
    (Value, "recipe", "nobody"),
    (Value, "completions", "nobody"),
];

/// A folder with keys and inputs, and an address in use.
struct Place {
    folder: tempfile::TempDir,
    taken: std::net::TcpListener,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let place = Self { folder, taken };
        std::fs::create_dir(place.path("served")).expect("a new folder");
        let nonsense: &[u8] = b"nonsense [[[\n\xff";
        for (name, bytes) in [
            ("net.toml", TWO.as_bytes()),
            ("live.toml", LIVE.as_bytes()),
            ("contracts.toml", CONTRACTS.as_bytes()),
            ("scenario.toml", SCENARIO.as_bytes()),
            ("clusters.toml", b"[[cluster]]\nnumber = 1\ncost = 1.0\ncapacity = \"10 Gbit/s\"\n"),
            ("scores.csv", b"location,isp,cluster,score\nberlin,*,1,20\n"),
            ("tokens", b"* 0123456789abcdef\n"),
            ("demand.csv", b"source,destination,bytes\n0,1,1000\n"),
            ("trace.txt", b"2 1\n1 0 1 0 1 1:1\n"),
            ("nonsense", nonsense),
            ("nonsense.toml", nonsense),
        ] {
            std::fs::write(place.path(name), bytes).expect("the folder is ours");
        }
        for set in ["keys", "others"] {
            place.make_keys(set);
        }
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).args(words).stdout(Stdio::null());
        command
    }

    /// Makes the keys of all systems below `set`. Below `mixed`, makes keys with the authorities of
    /// `others` and the holders of `keys`.
    fn make_keys(&self, set: &str) {
        for words in [
            "replicate keys init --topology net.toml --out SET/replicate",
            "gather keys --servers s1 --out SET/gather",
            "shuffle keys --hosts h1 --operators operator --out SET/shuffle",
            "spray keys --hosts h1,h2 --out SET/spray",
            "broker keys --networks near --operators operator --out SET/broker",
            "live keys --network live.toml --operators operator --out SET/live",
        ] {
            let words = words.replace("SET", set);
            let (code, said) = run(self.command(&words.split(' ').collect::<Vec<_>>()));
            assert_eq!(code, Some(0), "{words}: {said}");
        }
        if set == "others" {
            for system in ["replicate", "gather", "shuffle", "spray", "broker", "live"] {
                let mixed = self.path("mixed").join(system);
                copy_folder(&self.path("keys").join(system), &mixed);
                for file in ["ca.pem", "ca.key"] {
                    let from = self.path("others").join(system).join(file);
                    std::fs::copy(from, mixed.join(file)).expect("it was made");
                }
            }
        }
    }
}

/// Texts that replace the `?` of a row, one for each run.
fn variants(mistake: UserMistake, verb: &str) -> Vec<String> {
    let system = verb.split(' ').next().unwrap_or_default();
    match mistake {
        File => vec!["missing".into(), "nonsense".into()],
        // `keys` commands accept a mixed set: they make new keys with its authority.
        Keys if verb.contains("keys") => vec!["missing".into()],
        Keys => vec!["missing".into(), format!("mixed/{system}")],
        _ => vec!["missing".into()],
    }
}

/// #52: a missing file ended `simulate` with 2 and `shuffle replay` with 1. Missing keys, an
/// unknown scheme and an existing folder ended most commands with 1.
#[test]
fn same_mistake_has_one_exit_code_in_all_commands() {
    let place = Place::new();
    let verbs: BTreeSet<String> = leaves(&[]).into_iter().collect();
    let named: BTreeSet<&str> = ROWS.iter().map(|(_, verb, _)| *verb).collect();
    let without_row: Vec<_> = verbs.iter().filter(|verb| !named.contains(verb.as_str())).collect();
    assert!(without_row.is_empty(), "rows in ROWS for {without_row:?}");
    let has_keys = |verb: &&String| {
        let help = answer(&[&verb.split(' ').collect::<Vec<_>>()[..], &["-h"]].concat());
        text(&help.stdout).contains("--keys <DIR>")
    };
    let with_keys: BTreeSet<&str> =
        ROWS.iter().filter(|row| row.2.contains("--keys ?")).map(|row| row.1).collect();
    let without_keys: Vec<_> =
        verbs.iter().filter(has_keys).filter(|v| !with_keys.contains(v.as_str())).collect();
    assert!(without_keys.is_empty(), "rows of Keys for {without_keys:?}");
    let at = place.taken.local_addr().expect("it is bound").to_string();
    let mut unlike = Vec::new();
    for (mistake, verb, arguments) in ROWS {
        for variant in variants(*mistake, verb) {
            let line = format!("{verb} {arguments}");
            let line = line.replace('?', &variant).replace(" @", &format!(" {at}"));
            let (code, said) = run(place.command(&line.split(' ').collect::<Vec<_>>()));
            if code != Some(mistake.code()) {
                unlike.push(format!("{mistake:?} {code:?}: {line}: {}", said.trim_end()));
            }
            if !said.starts_with("error: ") {
                let last = said.lines().last().unwrap_or_default();
                assert!(
                    last.starts_with("anabranch: ") || last.starts_with("nobody has played"),
                    "{line}: {said}"
                );
            }
        }
    }
    assert!(unlike.is_empty(), "{} unlike codes:\n{}", unlike.len(), unlike.join("\n"));
}

/// The same command with the default action for SIGINT. A shell starts background programs, and so
/// their children, with SIGINT ignored: `gather ls` then went on for a minute.
fn hears_interrupts(command: &Command) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args()).stdout(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.env(name, value),
            None => env.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        env.current_dir(folder);
    }
    env
}

/// Sends SIGINT to a command; to a daemon, once it has printed its address. Returns the exit code
/// as a shell reports it, and the text after the first line.
fn interrupted(command: Command, is_daemon: bool) -> (i32, String) {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::ExitStatusExt as _;
    let mut child = hears_interrupts(&command).stderr(Stdio::piped()).spawn().expect("the command runs");
    let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
    if is_daemon {
        said.read_line(&mut String::new()).expect("text");
        // The program handles signals shortly after it prints the line.
        catches_interrupts(&child);
    } else {
        std::thread::sleep(Duration::from_secs(1));
    }
    let ended = child.try_wait().expect("it is ours");
    let pid = rustix::process::Pid::from_child(&child);
    if ended.is_none() {
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    }
    let mut rest = Vec::new();
    said.read_to_end(&mut rest).expect("the end of its output");
    let status = child.wait().expect("it is ours");
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    let before = if ended.is_some() { "ended before its interrupt: " } else { "" };
    (code, format!("{before}{}", text(&rest)))
}

/// SIGINT interrupts a command that would end by itself, and is the regular end of a daemon.
#[test]
fn interrupted_commands_end_with_130_and_daemons_with_0() {
    let place = Place::new();
    let long = SCENARIO.replace("1 ms", "1000 s");
    std::fs::write(place.path("long.toml"), long).expect("the folder is ours");
    let silent = place.taken.local_addr().expect("it is bound").to_string();
    for (verb, arguments, code) in [
        ("simulate", "long.toml", INTERRUPTED),
        ("gather get", "@/x -o out --keys keys/gather", INTERRUPTED),
        ("gather get", "@/x/ -o out --keys keys/gather", INTERRUPTED),
        ("gather sync", "@/x/ -o out --delete --keys keys/gather", INTERRUPTED),
        ("gather ls", "@ --keys keys/gather", INTERRUPTED),
        ("replicate send", "file --from s --to d --controller @ --keys keys/replicate", INTERRUPTED),
        ("replicate wait", "1 --controller @ --keys keys/replicate", INTERRUPTED),
        ("broker evaluate", "--sessions 33400", INTERRUPTED),
        ("replicate plan", "--topology b4 --survey", INTERRUPTED),
        (
            "replicate controller",
            "--topology net.toml --listen 127.0.0.1:0 --store r.redb --keys keys/replicate",
            0,
        ),
        ("gather serve", "served --name s1 --listen 127.0.0.1:0 --keys keys/gather", 0),
        ("shuffle coordinator", "--listen 127.0.0.1:0 --store c.redb --keys keys/shuffle", 0),
        ("broker serve", "--listen 127.0.0.1:0 --players 127.0.0.1:0 --store b.redb --keys keys/broker", 0),
        ("broker origin", "--listen 127.0.0.1:0", 0),
        ("live source", "--token-file tokens --listen 127.0.0.1:0", 0),
        ("live node", "--listen 127.0.0.1:0 --parent http://127.0.0.1:1", 0),
    ] {
        let line = format!("{verb} {}", arguments.replace('@', &silent));
        let words: Vec<&str> = line.split(' ').collect();
        let (found, said) = interrupted(place.command(&words), code == 0);
        assert_eq!(found, code, "{line}: {said}");
    }
}
