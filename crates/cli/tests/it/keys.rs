//! Keys as their users make, mix and renew them.

use crate::net::run;
use crate::{anabranch, answer, text};
use std::path::Path;

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
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("net.toml"), NETWORK).expect("the folder is ours");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Exit code and what was said on stderr.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = anabranch();
        command.current_dir(self.path()).args(words).stdout(std::process::Stdio::null());
        run(command)
    }

    fn expect(&self, words: &[&str]) {
        let (code, said) = self.run(words);
        assert_eq!(code, Some(0), "{words:?}: {said}");
    }

    /// One line on stderr that says all of `parts`.
    fn expect_refusal(&self, words: &[&str], parts: &[&str]) {
        let (code, said) = self.run(words);
        assert_eq!(code, Some(1), "{words:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        for part in parts {
            assert!(said.contains(part), "{words:?}: `{said}` should say `{part}`");
        }
    }
}

/// #17: the three systems' key commands collided when they ran in one folder, or gave each other's parties rights.
#[test]
fn keys_of_all_systems_are_made_in_one_folder_and_stay_apart() {
    let room = Room::new();
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

/// #17: a client of `gather` commanded `replicate` where both used one folder.
#[test]
fn keys_of_one_system_are_refused_by_another() {
    let room = Room::new();
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
    // Whoever brings them along as if they were replicate's.
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
fn help_says_where_each_systems_keys_are() {
    for (words, folder) in [
        (&["replicate", "relay", "--help"][..], "keys/replicate"),
        (&["replicate", "keys", "init", "--help"], "keys/replicate"),
        (&["gather", "get", "--help"], "keys/gather"),
        (&["gather", "keys", "--help"], "keys/gather"),
        (&["shuffle", "agent", "--help"], "keys/shuffle"),
        (&["shuffle", "keys", "--help"], "keys/shuffle"),
    ] {
        let help = text(&answer(words).stdout);
        assert!(help.contains(&format!("[default: {folder}]")), "{words:?}: {help}");
    }
}
