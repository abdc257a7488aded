//! Output of `gather` for people: lists, logs, progress, and reasons of failures.

use super::*;

/// Waits for a text in the output of a server.
fn wait_for(world: &World, server: usize, words: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let log = world.servers[server].log.lock().expect("nobody panics with it").clone();
        if log.contains(words) {
            return log;
        }
        assert!(Instant::now() < end, "{words}: {log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// #17: no command listed a server's objects.
#[test]
fn ls_lists_a_servers_objects() {
    use std::os::unix::ffi::OsStrExt as _;
    let world = World::new(1);
    std::fs::create_dir(world.path("server-0/folder")).expect("the folder is ours");
    world.put(0..1, "folder/b", b"12345");
    world.put(0..1, "a\u{1b}[31m", b"1");
    let at = world.servers[0].at.to_string();
    let ls = |place: &str, more: &[&str]| {
        let mut command = anabranch();
        command.args(["gather", "ls", place, "--keys"]).arg(world.path("keys")).args(more);
        command.output().expect("the command runs")
    };
    let all = ls(&at, &[]);
    let listed = text(&all.stdout);
    assert!(all.status.success() && listed.lines().count() == 2, "{all:?}");
    assert!(
        listed.contains("a\u{fffd}[31m") && listed.lines().any(|line| line.ends_with("  folder/b")),
        "{listed}"
    );
    // #52: a name that is not valid text was omitted without a warning.
    std::fs::write(world.path("server-0").join(std::ffi::OsStr::from_bytes(b"\xff")), b"1").expect("ours");
    let all = ls(&at, &[]);
    assert!(
        text(&all.stderr).contains("1 more name cannot be shown") && text(&all.stdout) == listed,
        "{all:?}"
    );
    let one = ls(&format!("server@{at}/folder/"), &["--json"]);
    let row: Value = serde_json::from_slice(&one.stdout).expect("one line of JSON");
    assert_eq!((&row["object"], &row["length_bytes"]), (&"folder/b".into(), &5.into()));
    let wrong = ls("nowhere", &[]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let nobody = ls("127.0.0.1:1", &[]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    let line = text(&nobody.stderr);
    assert!(line.contains("127.0.0.1:1") && line.trim_end().lines().count() == 1, "{line}");
}

/// #17: a server logged only one line, whatever happened.
#[test]
fn server_logs_clients_pulls_and_refusals() {
    let world = World::new(1);
    world.put(0..1, "object", &noise(30, MIB));
    assert_eq!(world.get(&[&world.object(0..1, "object")]).end().code, Some(0));
    let log = wait_for(&world, 0, "client went");
    for words in ["client came", "pull begun", "object=object", "pull ended", "client=\"client\""] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut hand = ManualClient::connect(&world.path("keys"), world.servers[0].at).await;
        hand.say(request(0, "no\u{1b}ne")).await;
        assert!(matches!(hand.hear().await, Control::Refused { .. }));
        // The client repeats refused requests, and the log must not fill the disk.
        for number in 1..=30 {
            hand.say(request(number, "no\u{1b}ne")).await;
            assert!(matches!(hand.hear().await, Control::Refused { .. }));
        }
        hand.say(request(31, "other")).await;
        assert!(matches!(hand.hear().await, Control::Refused { .. }));
    });
    let log = wait_for(&world, 0, "pull refused: other: no such object");
    assert!(log.contains("; 30 more refusals"), "{log}");
    assert_eq!(log.matches("pull refused: no\u{fffd}ne: no such object").count(), 1, "{log}");
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains("pull refused")), "{log}");
}

/// #17: when the only server ended, users got TLS's message, and no hint that the same command
/// resumes.
#[test]
fn death_of_the_only_server_prints_how_to_resume() {
    let mut world = World::new(0).with(None, &["--rate-max", "6 Mbit/s"]);
    let bytes = noise(31, 16 * MIB);
    world.put(0..1, "object", &bytes);
    let mut command = anabranch();
    command.args(["gather", "get", "--keys"]).arg(world.path("keys")).arg("-o").arg(world.path("out"));
    command.arg(world.object(0..1, "object")).stderr(Stdio::piped()).stdout(Stdio::piped());
    let child = command.spawn().expect("the command runs");
    world.wait_for(2 * MIB);
    world.kill(0);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    let at = world.servers[0].at.to_string();
    assert!(said.contains(&format!("{at}: it went away")), "{said}");
    assert!(said.contains("the same command goes on from there"), "{said}");
    for foreign in ["close_notify", "rustls", "os error"] {
        assert!(!said.contains(foreign), "{said}");
    }
}

/// #17: without a terminal nothing was printed while objects arrived.
#[test]
fn progress_without_a_terminal_is_printed_as_occasional_lines() {
    let world = World::new(0).with(None, &["--rate-max", "2 Mbit/s"]);
    let bytes = noise(32, 2 * MIB);
    world.put(0..1, "object", &bytes);
    let mut command = anabranch();
    command.args(["gather", "get", "--keys"]).arg(world.path("keys")).arg("-o").arg(world.path("out"));
    let output = command.arg(world.object(0..1, "object")).output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (said, result) = (text(&output.stderr), text(&output.stdout));
    let line = said.lines().next().unwrap_or_default();
    assert!(line.contains(" of 2.10 MB, ") && line.ends_with("Mbit/s"), "{said}");
    assert!(
        result.contains("1 of 1 object verified, 2.10 MB fetched") && result.contains("Mbit/s"),
        "{result}"
    );
}

/// #17: a file readable only by its owner was readable by all after a `get`.
#[test]
fn file_arrives_with_its_permissions_and_age() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new(1);
    let long_ago = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for mode in [0o600, 0o755] {
        world.put(0..1, "object", b"bytes");
        let path = world.path("server-0/object");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
        std::fs::File::open(&path).and_then(|file| file.set_modified(long_ago)).expect("ours");
        let got = world.get(&[&world.object(0..1, "object")]).end();
        assert_eq!(got.code, Some(0), "{got:?}");
        let found = std::fs::metadata(world.path("out")).expect("it is there");
        assert_eq!(
            (found.permissions().mode() & 0o7777, found.modified().expect("a time")),
            (mode, long_ago)
        );
        std::fs::remove_file(world.path("out")).expect("it is there");
        std::fs::remove_file(path).expect("it is there");
    }
    // The same holds for a striped file and its manifest. The parts, too, must not be readable by
    // all users.
    let whole = world.path("whole");
    std::fs::write(&whole, noise(33, 10_000)).expect("the folder is ours");
    std::fs::set_permissions(&whole, std::fs::Permissions::from_mode(0o600)).expect("ours");
    std::fs::File::open(&whole).and_then(|file| file.set_modified(long_ago)).expect("ours");
    let mut command = anabranch();
    command
        .current_dir(world.folder.path())
        .args(["gather", "stripe", "whole", "--into", "cut", "--parts", "3"]);
    let output =
        command.args(["--servers", &format!("server@{}", world.servers[0].at)]).output().expect("it ends");
    let said = text(&output.stdout);
    assert!(said.contains("cut/0/: whole.0, whole.1, whole.2 (10.00 kB)"), "{said}");
    for part in ["whole.0", "whole.1", "whole.2"] {
        let path = world.path("cut/0").join(part);
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        if part != "whole.1" {
            std::fs::rename(path, world.path("server-0").join(part)).expect("ours");
        }
    }
    let manifest = world.path("cut/whole.toml");
    let arguments = ["--manifest", manifest.to_str().expect("plain")];
    // The error names a missing part and its server.
    let got = world.get(&arguments).end();
    assert_eq!(got.code, Some(1), "{got:?}");
    let at = world.servers[0].at.to_string();
    assert!(got.reason().contains(&at) && got.reason().contains("whole.1: no such object"), "{got:?}");
    std::fs::rename(world.path("cut/0/whole.1"), world.path("server-0/whole.1")).expect("ours");
    let got = world.get(&arguments).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    let found = std::fs::metadata(world.path("out")).expect("it is there");
    assert_eq!((found.permissions().mode() & 0o7777, found.modified().expect("a time")), (0o600, long_ago));
}

/// #17: wrong usage ended with exit code 1, like a failure.
#[test]
fn wrong_usage_gives_one_line_and_exit_code_2() {
    let world = World::new(1);
    let object = world.object(0..1, "object");
    let keys_in = world.folder.path().to_str().expect("plain");
    for (arguments, said) in [
        (&["get", "-o", "x"][..], "nothing to pull"),
        (&["get", "-o", "-", &object, &object], "one object, not 2"),
        (&["get", "-o", "x", &object, "--memory", "1 MiB"], "--memory 1 MiB: must be at least 16 MiB"),
        (&["get", "-o", "x", &object, "--datagram", "100 B"], "--datagram 100 B: must be"),
        (&["get", "-o", "x", &object, "--link", "1 bit/s"], "link: 1 b/s: must be"),
        (&["get", "-o", "x", "--manifest", "none.toml"], "none.toml"),
        (&["get", "-o", "x", &object, "--exclude", "a"], "filter options are for a directory"),
        (
            &["sync", "-o", "x", "a:1/d/", "--delete", "--max-size", "1K"],
            "--delete with --max-size: an entry",
        ),
        (&["serve", "none"], "none: make this folder"),
        (&["serve", keys_in, "--clients-max", "0"], "--clients-max 0: must be at least 1"),
        (&["serve", keys_in], "others could read or replace it"),
        (&["stripe", "none", "--into", "x", "--servers", "a:1"], "none"),
        (&["stripe", "none", "--into", "x", "--servers", "a:1,a:1"], "a:1 is named twice"),
    ] {
        let mut command = anabranch();
        command.current_dir(world.folder.path()).arg("gather").args(arguments);
        if arguments[0] != "stripe" {
            command.arg("--keys").arg(world.path("keys"));
        }
        let output = command.output().expect("the command runs");
        let line = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(line.contains(said) && line.trim_end().lines().count() == 1, "{arguments:?}: {line}");
    }
}

/// #17: of two concurrent `get`s into one file, one ended with "No such file or directory", and
/// once the file was a mix of both.
#[test]
fn second_get_into_a_file_fails_in_one_line() {
    // The second command has to begin while the first one is busy.
    let world = World::new(0).with(None, &["--rate-max", "4 Mbit/s"]);
    let bytes = noise(34, 6 * MIB);
    world.put(0..1, "object", &bytes);
    let object = world.object(0..1, "object");
    let first = world.get(&[&object]);
    world.wait_for(MIB);
    let second = world.get(&[&object]).end();
    assert_eq!(second.code, Some(1), "{second:?}");
    let (reason, out) = (second.reason(), world.path("out"));
    assert!(reason.contains(out.to_str().expect("plain")) && reason.contains("another"), "{reason}");
    assert_eq!(first.end().code, Some(0));
    assert!(world.has(&bytes));
}

/// #52: of two versions with equal length, one was fetched without a warning.
#[test]
fn servers_with_different_versions_of_equal_length_are_named() {
    let world = World::new(2);
    world.put(0..1, "object", b"abcde");
    world.put(1..2, "object", b"fghij");
    let get = |more: &[&str]| {
        let mut command = anabranch();
        command.args(["gather", "get", "--keys"]).arg(world.path("keys")).arg("-o").arg(world.path("out"));
        command.arg(world.object(0..2, "object")).args(more).output().expect("it ends")
    };
    let strict = get(&["--strict"]);
    assert_eq!(strict.status.code(), Some(4), "{strict:?}");
    assert!(
        text(&strict.stderr).contains("--strict takes none") && !world.path("out").exists(),
        "{strict:?}"
    );
    let taken = get(&[]);
    assert_eq!(taken.status.code(), Some(0), "{taken:?}");
    let said = text(&taken.stderr);
    let is_named = |server: &Server| said.contains(&server.at.to_string());
    assert!(said.contains("has another version") && world.servers.iter().all(is_named), "{said}");
    world.put(0..2, "object", b"abcde");
    let agreed = get(&["--strict", "--replace"]);
    assert_eq!(agreed.status.code(), Some(0), "{agreed:?}");
}
