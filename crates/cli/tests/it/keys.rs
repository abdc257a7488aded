//! Keys as users make, confuse and renew them.

use crate::net::{LocalDaemons, run};
use crate::{anabranch, answer, text};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Time limit that no step of these tests reaches.
const PATIENCE: Duration = Duration::from_secs(120);

const NETWORK: &str = r#"
[[site]]
name = "s"
[[site]]
name = "d"
[[link]]
from = "s"
to = "d"
capacity = "10 Mbit/s"
delay = "1 ms"
"#;

/// A folder with a topology, and commands that run in it.
struct KeysFolder(tempfile::TempDir);

impl KeysFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("net.toml"), NETWORK).expect("the folder is ours");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns exit code and stderr.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = anabranch();
        command.current_dir(self.path()).args(words).stdout(std::process::Stdio::null());
        run(command)
    }

    fn expect(&self, words: &[&str]) {
        let (code, said) = self.run(words);
        assert_eq!(code, Some(0), "{words:?}: {said}");
    }

    /// Expects one line on stderr that contains all of `parts`.
    fn expect_refusal(&self, words: &[&str], parts: &[&str]) {
        let (code, said) = self.run(words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        for part in parts {
            assert!(said.contains(part), "{words:?}: `{said}` should say `{part}`");
        }
    }
}

/// #17: the key commands of the three systems overwrote each other's files in one folder, or gave
/// rights to parties of another system.
#[test]
fn keys_of_all_systems_share_a_folder_without_conflict() {
    let room = KeysFolder::new();
    room.expect(&["replicate", "keys", "init", "--topology", "net.toml"]);
    room.expect(&["gather", "keys", "--servers", "s1,s2,s3"]);
    room.expect(&["shuffle", "keys", "--hosts", "h1,h2", "--operators", "operator"]);
    for (system, stem) in [
        ("replicate", "operators/operator"),
        ("replicate", "sites/s"),
        ("gather", "operators/client"),
        ("gather", "sites/s2"),
        ("shuffle", "operators/operator"),
    ] {
        let path = room.path().join("keys").join(system).join(format!("{stem}.key"));
        assert!(path.is_file(), "{}", path.display());
    }
    assert!(!room.path().join("keys/gather/controller.pem").exists(), "`gather` has no controller");
}

/// Adding a client also made a server key, and the next client was refused because of that key.
#[test]
fn clients_join_a_set_without_servers() {
    let room = KeysFolder::new();
    room.expect(&["gather", "keys", "--servers", "s1", "--clients", "alice"]);
    room.expect(&["gather", "keys", "--clients", "bob"]);
    room.expect(&["gather", "keys", "--clients", "carol"]);
    let made = |path: &str| room.path().join("keys/gather").join(path).exists();
    assert!(made("operators/bob.key") && made("operators/carol.key") && !made("sites/server.key"));
}

/// #17: a client of `gather` could send commands to `replicate` if both used one folder.
#[test]
fn keys_of_one_system_are_refused_by_another() {
    let room = KeysFolder::new();
    room.expect(&["replicate", "keys", "init", "--topology", "net.toml", "--out", "keys"]);
    let only = "keys of gather need a folder of their own, as keys/gather";
    room.expect_refusal(&["gather", "keys", "--out", "keys"], &["keys holds keys of replicate", only]);
    room.expect_refusal(
        &["shuffle", "keys", "--hosts", "s", "--out", "keys"],
        &["keys holds keys of replicate", "keys of shuffle need a folder of their own"],
    );
    room.expect(&["gather", "keys", "--out", "others", "--clients", "operator", "--servers", "s"]);
    room.expect_refusal(
        &["replicate", "keys", "add", "--keys", "others", "--sites", "x"],
        &["others holds keys of gather", "keys of replicate need a folder of their own"],
    );
    // The keys are used as if they were keys of replicate.
    let send = ["replicate", "send", "x", "--from", "s", "--to", "d", "--controller", "127.0.0.1:1"];
    room.expect_refusal(
        &[&send[..], &["--keys", "others"]].concat(),
        &["is the certificate of gather client `operator`, and one of replicate operator `operator` is needed"],
    );
    let relay = ["replicate", "relay", "--topology", "net.toml", "--site", "s", "--dir", "served"];
    std::fs::create_dir(room.path().join("served")).expect("the folder is ours");
    room.expect_refusal(
        &[&relay[..], &["--listen", "127.0.0.1:0", "--keys", "others"]].concat(),
        &["is the certificate of gather server `s`, and one of replicate site `s` is needed"],
    );
}

#[test]
fn help_shows_each_systems_default_key_folder() {
    for (words, folder) in [
        (&["replicate", "relay", "--help"][..], "keys/replicate"),
        (&["replicate", "keys", "init", "--help"], "keys/replicate"),
        (&["gather", "get", "--help"], "keys/gather"),
        (&["gather", "keys", "--help"], "keys/gather"),
        (&["shuffle", "agent", "--help"], "keys/shuffle"),
        (&["shuffle", "keys", "--help"], "keys/shuffle"),
    ] {
        // White space is normalized, so that the terminal's width does not matter.
        let help = text(&answer(words).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&format!("[default: {folder}]")), "{words:?}: {help}");
    }
}

/// A daemon, killed on drop.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    fn hang_up(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::HUP).expect("ours to signal");
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().expect("ours").is_none()
    }
}

/// Retries until `holds` returns true; `what` names the condition in the error.
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("ours");
    for entry in std::fs::read_dir(from).expect("ours") {
        let path = entry.expect("ours").path();
        let to = to.join(path.file_name().expect("it has one"));
        if path.is_dir() {
            copy_folder(&path, &to);
        } else {
            std::fs::copy(&path, to).expect("ours");
        }
    }
}

/// #17: closing a daemon's terminal ended it without a message, and no daemon noticed new keys or
/// revocations.
#[test]
fn server_survives_its_terminal_and_notices_revocations() {
    let room = KeysFolder::new();
    room.expect(&["gather", "keys", "--clients", "client,other"]);
    std::fs::create_dir(room.path().join("data")).expect("ours");
    std::fs::write(room.path().join("data/object"), [7; 5_000]).expect("ours");
    let mut command = anabranch();
    command.current_dir(room.path()).args(["gather", "serve", "data", "--listen", "127.0.0.1:0"]);
    let mut server = Daemon(command.stderr(Stdio::piped()).spawn().expect("it starts"));
    let mut lines = BufReader::new(server.0.stderr.take().expect("piped")).lines();
    let address = loop {
        let line = lines.next().expect("it says where it listens").expect("text");
        if let Some((_, at)) = line.split_once(" on 127.0.0.1:") {
            break format!("127.0.0.1:{}", at.split_whitespace().next().expect("a port"));
        }
    };
    // The daemon's output has no reader from here on, as after a closed terminal.
    drop(lines);
    let object = format!("{address}/object");
    let get = |keys: &str, client: &str, out: &str| {
        room.run(&["gather", "get", &object, "--keys", keys, "--as", client, "-o", out])
    };
    // The daemon watches its keys from its first wait on.
    assert_eq!(get("keys/gather", "client", "a").0, Some(0));
    server.hang_up();
    assert_eq!(get("keys/gather", "client", "b").0, Some(0));
    assert!(server.is_alive());

    // The keys as a thief would have them: without the list of revoked certificates.
    copy_folder(&room.path().join("keys/gather"), &room.path().join("stolen"));
    room.expect(&["gather", "keys", "revoke", "client"]);
    server.hang_up();
    soon("the lost key is refused", || {
        let (code, said) = get("stolen", "client", "c");
        assert!(code == Some(0) || code == Some(1), "{said}");
        let _ = std::fs::remove_file(room.path().join("c"));
        code == Some(1) && said.contains("evoked")
    });
    assert_eq!(get("stolen", "other", "d").0, Some(0), "nobody else is refused");
    let (code, said) = get("keys/gather", "client", "e");
    assert!(
        code == Some(2)
            && said.contains("client.pem: the certificate was revoked, as keys/gather/revoked says"),
        "{said}"
    );
    room.expect(&["gather", "keys", "renew", "client"]);
    let (code, said) = get("keys/gather", "client", "e");
    assert_eq!(code, Some(0), "{said}");

    // The server's own certificate is renewed while the server runs.
    room.expect(&["gather", "keys", "renew", "server:server"]);
    server.hang_up();
    assert_eq!(get("keys/gather", "client", "f").0, Some(0));
    assert!(server.is_alive());
}

#[test]
fn controller_notices_a_revocation_by_itself() {
    let local = LocalDaemons::start(NETWORK, &[]);
    copy_folder(&local.path("keys/replicate"), &local.path("stolen"));
    let status =
        |keys: &str| run(local.command(&["status", "--controller", local.address(), "--keys", keys]));
    assert_eq!(status("stolen").0, Some(0));
    assert_eq!(run(local.command(&["keys", "revoke", "operator"])).0, Some(0));
    soon("the lost key is refused", || {
        let (code, said) = status("stolen");
        // The reason is the same each time, even if the connection broke before the request was
        // sent.
        let is_refused = said.contains("refused our certificate: it was revoked");
        assert_eq!(code, Some(i32::from(is_refused)), "{said}");
        is_refused
    });
    assert_eq!(run(local.command(&["keys", "renew", "operator"])).0, Some(0));
    let (code, said) = status("keys/replicate");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn ambiguous_and_unknown_holders_of_keys_are_refused() {
    let room = KeysFolder::new();
    room.expect(&["replicate", "keys", "init", "--topology", "net.toml", "--operators", "s,ann"]);
    room.expect_refusal(
        &["replicate", "keys", "revoke", "s"],
        &["`s` is the name of replicate operator `s`, replicate site `s`: write operator:s or site:s"],
    );
    room.expect(&["replicate", "keys", "revoke", "operator:s", "ann", "site:gone"]);
    let list = std::fs::read_to_string(room.path().join("keys/replicate/revoked")).expect("it was written");
    let holders: Vec<_> = list.lines().map(|l| l.split(' ').next().expect("a word")).collect();
    let expected =
        ["operator:s", "operator:ann", "site:gone"].map(|who| format!("anabranch:replicate:{who}"));
    assert_eq!(holders, expected);
    room.expect_refusal(
        &["replicate", "keys", "renew", "nobody"],
        &["no certificate of `nobody` in the set"],
    );
    room.expect_refusal(
        &["shuffle", "keys", "renew", "--keys", "keys/replicate"],
        &["holds keys of replicate"],
    );
    room.expect_refusal(&["gather", "keys", "renew"], &["keys/gather/ca.pem"]);
    // Without a name, all keys are renewed.
    let before = std::fs::read(room.path().join("keys/replicate/sites/d.pem")).expect("it is there");
    room.expect(&["replicate", "keys", "renew"]);
    let after = std::fs::read(room.path().join("keys/replicate/sites/d.pem")).expect("it is there");
    assert_ne!(before, after);
    // An unreadable list of revoked certificates is an error.
    std::fs::write(room.path().join("keys/replicate/revoked"), "site s\n").expect("ours");
    room.expect_refusal(&["replicate", "keys", "revoke", "ann"], &["keys/replicate/revoked: line 1"]);
    let send = [
        "replicate",
        "send",
        "x",
        "--from",
        "s",
        "--to",
        "d",
        "--controller",
        "127.0.0.1:1",
        "--operator",
        "s",
    ];
    room.expect_refusal(&send, &["keys/replicate/revoked: line 1: begins with no holder"]);
}
