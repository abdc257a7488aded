//! Which files peers may send, write and overwrite: `replicate` and `gather` on loopback, with
//! unusual files in their folders.
//!
//! Read [`LocalDaemons`] first, the controller and sites of most tests.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files and clocks")]

use crate::anabranch;
use crate::net::{Lines, LocalDaemons, PATIENCE, TWO, noise, run, working_files};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::Client;
use anabranch_replicate::wire::{DestinationRequest, SubmitRequest};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Sends from `s` to `d`. Returns the exit code and the last line on stderr.
fn send(local: &LocalDaemons, arguments: &[&str]) -> (Option<i32>, String) {
    let first = ["send", "--quiet", "--controller", local.address(), "--from", "s", "--to", "d"];
    let (code, said) = run(local.command(&[&first, arguments].concat()));
    assert!(said.lines().count() <= 1, "{said}");
    (code, said)
}

fn expect_sent(local: &LocalDaemons, arguments: &[&str]) {
    let (code, said) = send(local, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {said}");
}

/// Asserts that a site refuses the transfer, with a reason that mentions all of these texts.
fn expect_refused(local: &LocalDaemons, arguments: &[&str], mentions: &[&str]) {
    expect_code(1, local, arguments, mentions);
}

/// Asserts that the command refuses its arguments, in a line that mentions all of these texts.
fn expect_wrong(local: &LocalDaemons, arguments: &[&str], mentions: &[&str]) {
    expect_code(2, local, arguments, mentions);
}

fn expect_code(expected: i32, local: &LocalDaemons, arguments: &[&str], mentions: &[&str]) {
    let (code, said) = send(local, arguments);
    assert_eq!(code, Some(expected), "{arguments:?}: {said}");
    mentions.iter().for_each(|m| assert!(said.contains(m), "{arguments:?}: {said} without {m}"));
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// #17: symbolic links below --dir led out of the folder: at the source, in a file's path, and at
/// the name of its working file.
#[test]
fn symbolic_links_out_of_the_folder_are_refused() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    std::fs::write(local.path("secret"), "secret").expect("the folder is ours");
    std::fs::create_dir(local.path("outside")).expect("the folder is ours");
    std::fs::write(local.path("s/file"), "hello").expect("the folder is ours");
    symlink("../secret", local.path("s/leak")).expect("the folder is ours");
    symlink("../outside", local.path("d/evil")).expect("the folder is ours");
    symlink("../secret", local.path("d/there")).expect("the folder is ours");
    expect_refused(&local, &["leak"], &["s/leak", "link"]);
    expect_refused(&local, &["file", "--as", "evil/x"], &["d/evil", "link"]);
    expect_refused(&local, &["file", "--as", "there", "--replace"], &["d/there", "link"]);
    let hash = &blake3::hash(b"file").to_hex()[..32];
    let trap = local.path("d").join(format!(".anabranch-{hash}.partial"));
    symlink("../secret", &trap).expect("the folder is ours");
    expect_refused(&local, &["file"], &["working file", "symbolic link", "remove it"]);
    assert_eq!(read(&local.path("secret")), b"secret");
    assert_eq!(std::fs::read_dir(local.path("outside")).expect("listed").count(), 0);
    std::fs::remove_file(trap).expect("ours");
    expect_sent(&local, &["file"]);
    assert_eq!(read(&local.path("d/file")), b"hello");
}

/// #17: `x` and `x.partial`, sent at the same time, were reported as verified with each other's
/// bytes.
#[test]
fn files_named_like_old_working_files_arrive_intact() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    let names = ["x", "x.partial", "x.partial.journal"];
    let bytes: Vec<Vec<u8>> = (0..3).map(|seed| noise(seed, 3 << 20)).collect();
    for (name, bytes) in names.iter().zip(&bytes) {
        std::fs::write(local.path("s").join(name), bytes).expect("the folder is ours");
    }
    std::thread::scope(|scope| {
        let local = &local;
        for name in names {
            scope.spawn(move || expect_sent(local, &[name]));
        }
    });
    for (name, bytes) in names.iter().zip(&bytes) {
        assert!(read(&local.path("d").join(name)) == *bytes, "{name}");
    }
    assert!(working_files(&local.path("d")).is_empty());
}

/// #17: an empty file failed to transfer, and a file of mode 0600 arrived with mode 0644 and the
/// present time.
#[test]
fn empty_files_arrive_with_mode_and_time() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    for (name, bytes, mode) in
        [("empty", &b""[..], 0o600), ("tool", b"#!/bin/sh\n", 0o755), ("secret", b"x", 0o600)]
    {
        let path = local.path("s").join(name);
        std::fs::write(&path, bytes).expect("the folder is ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123_456_789);
        std::fs::File::open(&path).and_then(|f| f.set_modified(then)).expect("ours");
        for _ in 0..2 {
            expect_sent(&local, &[name]);
        }
        let found = std::fs::metadata(local.path("d").join(name)).expect("it arrived");
        assert_eq!(found.mode() & 0o7777, mode, "{name}");
        assert_eq!((found.mtime(), found.mtime_nsec()), (1_234_567_890, 123_456_789), "{name}");
        assert_eq!(read(&local.path("d").join(name)), bytes);
    }
}

/// #17: a named pipe as source blocked the daemon until it was killed.
#[test]
fn non_file_is_refused_and_the_next_file_sent() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    let pipe = Command::new("mkfifo").arg(local.path("s/pipe")).status();
    assert!(pipe.expect("mkfifo is there").success());
    std::fs::create_dir(local.path("s/folder")).expect("the folder is ours");
    std::fs::write(local.path("s/file"), "hello").expect("the folder is ours");
    expect_refused(&local, &["pipe"], &["s/pipe", "not a plain file"]);
    expect_refused(&local, &["folder"], &["folder", "write `folder/`"]);
    expect_wrong(&local, &["."], &["no file"]);
    std::fs::create_dir(local.path("d/file")).expect("the folder is ours");
    expect_refused(&local, &["file"], &["d/file", "a folder has this name"]);
    expect_sent(&local, &["file", "--as", "file/file"]);
}

/// #17: a name of 250 bytes could not be sent, and `--as sub/` left `sub.partial`.
#[test]
fn file_names_of_the_maximum_length_are_accepted() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    let long = "x".repeat(255);
    std::fs::write(local.path("s").join(&long), "hello").expect("the folder is ours");
    expect_sent(&local, &[&long]);
    assert_eq!(read(&local.path("d").join(&long)), b"hello");
    use std::os::unix::ffi::OsStrExt as _;
    let mut odd = local.command(&["send", "--from", "s", "--to", "d"]);
    let (code, said) = run({
        odd.arg(std::ffi::OsStr::from_bytes(b"a\xff"));
        odd
    });
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("not UTF-8") && said.contains("rename"), "{said}");
    expect_wrong(&local, &[&long, "--as", &"y".repeat(256)], &["256 bytes", "at most 255"]);
    expect_wrong(&local, &[&long, "--as", "sub/"], &["--as", "`sub/`", "add the file's"]);
    expect_wrong(&local, &[&long, "--as", "a\u{1b}[2J"], &["control character"]);
    let whole = local.path("s").join(&long);
    let whole = whole.to_str().expect("plain");
    expect_refused(&local, &[whole], &["outside the folder", "--as"]);
    expect_sent(&local, &[whole, "--as", "here"]);
}

/// #17: existing files were replaced without asking.
#[test]
fn existing_file_is_replaced_only_with_replace_option() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    std::fs::write(local.path("s/file"), "hello").expect("the folder is ours");
    for before in ["another", "other"] {
        std::fs::write(local.path("d/file"), before).expect("the folder is ours");
        expect_refused(&local, &["file"], &["another file has this name", "--replace"]);
        assert_eq!(read(&local.path("d/file")), before.as_bytes());
    }
    expect_sent(&local, &["file", "--replace"]);
    assert_eq!(read(&local.path("d/file")), b"hello");
    expect_sent(&local, &["file"]);
    assert!(working_files(&local.path("d")).is_empty());
}

/// #17: with one site's certificate, files could be written anywhere at every other site.
#[test]
fn site_writes_files_only_below_its_permitted_folder() {
    let local = LocalDaemons::start_with(TWO, &["s", "d"], &["--accept-from", "s=in"]);
    std::fs::write(local.path("s/file"), "hello").expect("the folder is ours");
    let files =
        CredentialFiles::in_set(&local.path("keys/replicate"), anabranch_replicate::SYSTEM, Role::Site, "s");
    let identity = Identity::load(&files).expect("`keys init` made them");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let client = Client::new(local.address(), &identity, PATIENCE).expect("good credentials");
        for (path, is_let) in [("in/file", true), (".bashrc", false), ("keys/ca.pem", false)] {
            let to = vec![DestinationRequest { site: "d".into(), path: path.into() }];
            let id = client.submit(&SubmitRequest::new("s", "file", to)).await.expect("it may ask");
            let mut watch = client.watch(id);
            while watch.next().await.expect("the controller lives").is_some() {}
            let view = client.status(id).await.expect("it is remembered");
            let said = format!("{:?}", view.destinations[0].verdict);
            assert_eq!(view.exit_code, Some(u8::from(!is_let)), "{path}: {said}");
            assert!(is_let || said.contains("the site that sends it may not put it here"), "{said}");
            assert_eq!(local.path("d").join(path).exists(), is_let, "{path}");
        }
    });
}

/// #17: a relay served the folder with its own keys, so other sites could read and replace the
/// keys.
#[test]
fn relay_refuses_to_serve_a_folder_with_keys() {
    let local = LocalDaemons::start(TWO, &[]);
    let relay = |dir: &str| {
        local.command(&[
            "relay",
            "--topology",
            "network.toml",
            "--site",
            "s",
            "--keys",
            "keys/replicate",
            "--dir",
            dir,
        ])
    };
    symlink("keys", local.path("way")).expect("the folder is ours");
    for dir in [".", "keys", "way"] {
        let (code, said) = run(relay(dir));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("keys") && said.contains("outside"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let (code, said) = run(local.command(&["relay", "--topology", "network.toml", "--site", "s"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--dir"), "{said}");
    let mut serve = anabranch();
    serve.current_dir(local.path(".")).args(["gather", "serve", ".", "--keys", "keys"]);
    let (code, said) = run(serve);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("keys") && said.contains("outside"), "{said}");
}

/// A server of `gather` for the folder `served`, which is killed on drop.
struct FolderServer {
    folder: tempfile::TempDir,
    child: Child,
    at: String,
    /// The server's output until it listened.
    said: String,
}

impl FolderServer {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("served")).expect("the folder is ours");
        let mut keys = anabranch();
        keys.current_dir(folder.path()).args(["--quiet", "gather", "keys", "--out", "keys"]);
        assert!(keys.args(["--servers", "server"]).status().expect("the command runs").success());
        let (child, said) = Self::serve(folder.path());
        let at = said.trim_end().rsplit(' ').next().expect("an address").to_owned();
        Self { folder, child, at, said }
    }

    /// Starts a server. Returns it with its output until it listens.
    fn serve(folder: &Path) -> (Child, String) {
        let mut command = anabranch();
        command.current_dir(folder).args(["gather", "serve", "served", "--keys", "keys"]);
        command.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        let lines = Lines::of(child.stderr.take().expect("it is piped"));
        let said = lines.until(" on 127.0.0.1:").unwrap_or_else(|said| {
            let _ = child.kill().and_then(|()| child.wait());
            panic!("it says not where it listens: {said}")
        });
        (child, said)
    }

    fn restart(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("ours");
        (self.child, self.said) = Self::serve(self.folder.path());
        self.at = self.said.trim_end().rsplit(' ').next().expect("an address").to_owned();
    }

    fn get(&self, object: &str, arguments: &[&str]) -> Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).args(["--quiet", "gather", "get", "--keys", "keys"]);
        command.arg(format!("{}/{object}", self.at)).args(arguments);
        command
    }
}

impl Drop for FolderServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// #17: of two concurrent pulls into one file the first succeeded, and the file was a mix of both.
#[test]
fn only_one_of_two_pulls_into_a_file_succeeds() {
    let serving = FolderServer::start();
    let path = |name: &str| serving.folder.path().join(name);
    let objects = [noise(1, 20 << 20), noise(2, 20 << 20)];
    for (name, bytes) in ["a", "b"].iter().zip(&objects) {
        std::fs::write(path("served").join(name), bytes).expect("the folder is ours");
    }
    let pulls = ["a", "b"].map(|name| {
        let mut pull = serving.get(name, &["-o", "out"]);
        pull.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the command runs")
    });
    let ends = pulls.map(|pull| pull.wait_with_output().expect("ours to reap"));
    let done: Vec<usize> = (0..2).filter(|i| ends[*i].status.success()).collect();
    assert_eq!(done.len(), 1, "{ends:?}");
    assert!(read(&path("out")) == objects[done[0]], "whole, and its own");
    let said = String::from_utf8_lossy(&ends[1 - done[0]].stderr).into_owned();
    assert!(said.contains("is writing this file") || said.contains("another file has this name"), "{said}");
}

#[test]
fn gather_replaces_a_file_only_with_replace_option() {
    let serving = FolderServer::start();
    let path = |name: &str| serving.folder.path().join(name);
    std::fs::write(path("served/a"), "hello").expect("the folder is ours");
    std::fs::write(path("secret"), "secret").expect("the folder is ours");
    for before in ["other", "another"] {
        std::fs::write(path("out"), before).expect("the folder is ours");
        let (code, said) = run(serving.get("a", &["-o", "out"]));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("another file has this name") && said.contains("--replace"), "{said}");
        assert_eq!(read(&path("out")), before.as_bytes());
    }
    for arguments in [&["-o", "out", "--replace"][..], &["-o", "out"]] {
        let (code, said) = run(serving.get("a", arguments));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(read(&path("out")), b"hello");
    }
    symlink("secret", path("link")).expect("the folder is ours");
    for bad in ["link", "/dev/null"] {
        let (code, said) = run(serving.get("a", &["-o", bad, "--replace"]));
        assert_eq!(code, Some(1), "{said}");
    }
    assert_eq!(read(&path("secret")), b"secret");
    // A partial file in a served folder is not served as an object.
    std::fs::write(path("served/.anabranch-0.partial"), "x").expect("the folder is ours");
    let (code, said) = run(serving.get(".anabranch-0.partial", &["-o", "stolen"]));
    assert!(code != Some(0) && !path("stolen").exists(), "{said}");
}

/// #17: leftovers of a failed transfer remained, and no command listed or removed them.
#[test]
fn leftovers_are_listed_and_removed_by_command_and_age() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(".anabranch-0.partial"), "x").expect("the folder is ours");
    let leftovers = |more: &[&str]| {
        let mut command = anabranch();
        command.args(["replicate", "leftovers", "--json", "--dir"]).arg(folder.path()).args(more);
        let said = command.output().expect("the command runs");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        serde_json::from_slice::<serde_json::Value>(&said.stdout).expect("JSON")
    };
    assert_eq!(leftovers(&["--older-than", "1 h", "--remove"]), serde_json::json!([]));
    let found = leftovers(&[]);
    assert!(found[0]["path"].as_str().is_some_and(|path| path.ends_with(".anabranch-0.partial")), "{found}");
    assert_eq!((found[0]["is_removed"].as_bool(), found.as_array().map(Vec::len)), (Some(false), Some(1)));
    assert_eq!(leftovers(&["--remove"])[0]["is_removed"], true);
    assert_eq!(leftovers(&[]), serde_json::json!([]));
    // A relay removes old leftovers on its own.
    let local = LocalDaemons::start_with(TWO, &["s"], &["--keep-partial", "0 s"]);
    let left = local.path("s/.anabranch-0.partial");
    std::fs::write(&left, "x").expect("the folder is ours");
    let mut again = local.relay("d", "s");
    let mut again = again.args(["--keep-partial", "0 s"]).stderr(Stdio::null()).spawn().expect("it starts");
    let end = std::time::Instant::now() + PATIENCE;
    while left.exists() {
        assert!(std::time::Instant::now() < end, "it is removed in time");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    again.kill().and_then(|()| again.wait()).expect("ours");
}

/// Command lines of the daemons with a store, without their common arguments.
const KEEPERS: [&str; 2] = ["replicate controller --topology network.toml", "shuffle coordinator"];

/// Builds the command of a daemon in `KEEPERS`, with the file mode mask `umask`.
fn keeper(local: &LocalDaemons, words: &str, umask: &str, store: &str) -> Command {
    let mut command = Command::new("sh");
    let text = format!("umask {umask}; exec \"$0\" {words} --listen 127.0.0.1:0 --store {store}");
    command.current_dir(local.path(".")).args(["-c", &text, env!("CARGO_BIN_EXE_anabranch")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).mode() & 0o7777
}

/// Runs a daemon until it listens. Returns the output up to that line.
fn until_it_listens(mut daemon: Command) -> String {
    let mut child = daemon.spawn().expect("it starts");
    let said = Lines::of(child.stderr.take().expect("it is piped")).until("listens on");
    child.kill().and_then(|()| child.wait()).expect("ours");
    said.unwrap_or_else(|said| panic!("it does not listen: {said}"))
}

/// #17: the stores of controller and coordinator had the modes of the user's mask, so by default
/// all users could read them.
#[test]
fn stores_are_private_despite_mask_links_and_modes() {
    let local = LocalDaemons::start(TWO, &[]);
    let keys = anabranch()
        .current_dir(local.path("."))
        .args(["--quiet", "shuffle", "keys", "--hosts", "h"])
        .status();
    assert!(keys.expect("the command runs").success());
    for (number, words) in KEEPERS.iter().enumerate() {
        let start = |umask: &str, store: &str| keeper(&local, words, umask, store);
        let store = format!("{number}.redb");
        let path = local.path(&store);
        assert!(!until_it_listens(start("0", &store)).contains("mode"));
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("ours");
        let said = until_it_listens(start("077", &store));
        assert!(said.contains(&format!("{store}: others might read or write it (mode 0666)")), "{said}");
        assert_eq!(mode(&path), 0o600);
        // Another user with write access to the folder places a link there: to a missing file, to
        // another file, or to the store itself.
        let victim = local.path(&format!("victim-{number}"));
        std::fs::write(&victim, "").expect("ours");
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o644)).expect("ours");
        for target in ["away", &format!("victim-{number}"), &store] {
            let link = format!("link-{number}.redb");
            symlink(target, local.path(&link)).expect("ours");
            let (code, said) = run(start("022", &link));
            assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
            assert!(said.contains("is a symbolic link, and links are not followed"), "{said}");
            std::fs::remove_file(local.path(&link)).expect("ours");
        }
        assert!(!local.path("away").exists());
        assert_eq!((mode(&victim), read(&victim)), (0o644, vec![]));
    }
}

/// #17: a relay searched --dir only for its own keys, and served an authority's key or a
/// controller's store.
#[test]
fn public_keys_and_stores_are_reported_and_never_served() {
    let local = LocalDaemons::start(TWO, &[]);
    let mut serving = FolderServer::start();
    for (dir, from, name) in
        [("s", "controller.redb", "deep/er/x.redb"), ("s", "keys/replicate/ca.key", "old/ca.key")]
    {
        for path in [local.path(dir).join(name), serving.folder.path().join("served").join(name)] {
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("ours");
            std::fs::copy(local.path(from), path).expect("ours");
        }
    }
    let before = read(&local.path("s/old/ca.key"));
    let mut local = local;
    for site in ["s", "d"] {
        let relay = local.relay(site, site);
        local.keep(site, relay);
    }
    local.wait_for(&["s", "d"]);
    let log = local.relay_log_until("s", "takes data on").concat();
    serving.restart();
    let gather = serving.said.clone();
    std::fs::write(local.path("d/file"), "mine").expect("ours");
    for (name, what) in [("deep/er/x.redb", "a store"), ("old/ca.key", "an authority's key")] {
        for log in [&log, &gather] {
            assert!(log.contains(&format!("{name}, {what}, lies in the folder that is served")), "{log}");
        }
        expect_refused(&local, &[name, "--as", "stolen"], &[name, what, "keep it outside"]);
        let (code, said) = run(serving.get(name, &["-o", "stolen"]));
        assert!(code != Some(0) && said.contains("which nobody is given"), "{said}");
        let words = ["send", "--quiet", "--controller", local.address(), "--from", "d", "--to", "s", "file"];
        let (code, said) = run(local.command(&[&words[..], &["--as", name, "--replace"]].concat()));
        assert!(code == Some(1) && said.contains(what), "{said}");
    }
    assert!(!local.path("d/stolen").exists() && !serving.folder.path().join("stolen").exists());
    assert_eq!(read(&local.path("s/old/ca.key")), before);
}

/// #17: a permitted sender could write a file that looked like a key or a store, and the relay then
/// refused to start.
#[test]
fn senders_files_cannot_prevent_a_relays_start() {
    let mut local = LocalDaemons::start_with(TWO, &["s", "d"], &["--accept-from", "s=in"]);
    let own = |end: &str| read(&local.path(&format!("keys/replicate/sites/s.{end}")));
    let laid = [
        ("x.redb", b"redb\x1a\x0a\xa9\x0d\x0a and nothing else".to_vec()),
        ("ca.key", b"-----BEGIN PRIVATE KEY-----\n".to_vec()),
        ("e.key", own("key")),
        ("e.pem", own("pem")),
    ];
    let files =
        CredentialFiles::in_set(&local.path("keys/replicate"), anabranch_replicate::SYSTEM, Role::Site, "s");
    let identity = Identity::load(&files).expect("`keys init` made them");
    let send = |local: &LocalDaemons, from: &str, to: &str| {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        runtime.block_on(async {
            let client = Client::new(local.address(), &identity, PATIENCE).expect("good credentials");
            let to = vec![DestinationRequest { site: "d".into(), path: to.into() }];
            let id = client.submit(&SubmitRequest::new("s", from, to)).await.expect("it may ask");
            let mut watch = client.watch(id);
            while watch.next().await.expect("the controller lives").is_some() {}
            let view = client.status(id).await.expect("it is remembered");
            assert_eq!(view.exit_code, Some(0), "{:?}", view.destinations[0].verdict);
        });
    };
    for (name, bytes) in &laid {
        std::fs::write(local.path("s/plain"), bytes).expect("the folder is ours");
        send(&local, "plain", &format!("in/{name}"));
        assert_eq!(read(&local.path("d/in").join(name)), *bytes);
    }
    local.kill("d");
    let mut again = local.relay("d", "d");
    again.args(["--accept-from", "s=in"]);
    local.keep("d", again);
    let log = local.relay_log_until("d", "takes data on").concat();
    for name in ["x.redb", "ca.key", "e.key"] {
        assert!(log.contains(&format!("{name}, ")), "{log}");
    }
    local.wait_for(&["s", "d"]);
    std::fs::write(local.path("s/after"), "hello").expect("the folder is ours");
    send(&local, "after", "in/after");
    assert_eq!(read(&local.path("d/in/after")), b"hello");
}

/// #17: if all users could read an existing copy of a private file, the transfer ended as "done"
/// and the copy remained readable.
#[test]
fn permissions_of_existing_copy_are_narrowed_to_the_sources() {
    let local = LocalDaemons::start(TWO, &["s", "d"]);
    let serving = FolderServer::start();
    let modes = |path: &Path, mode: u32| {
        std::fs::write(path, "hello").expect("the folder is ours");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    let out = serving.folder.path().join("out");
    for (there, source, then) in [(0o644, 0o600, 0o600), (0o600, 0o644, 0o600), (0o775, 0o640, 0o740)] {
        modes(&local.path("s/file"), source);
        modes(&local.path("d/file"), there);
        expect_sent(&local, &["file"]);
        assert_eq!(mode(&local.path("d/file")), then, "{there:o} {source:o}");
        modes(&serving.folder.path().join("served/file"), source);
        modes(&out, there);
        let (code, said) = run(serving.get("file", &["-o", "out"]));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(mode(&out), then, "{there:o} {source:o}");
    }
    assert_eq!(read(&local.path("d/file")), b"hello");
}
