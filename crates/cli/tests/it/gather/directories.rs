//! Directories from several servers: versions, deaths, kills, conflicts, and wrong input.

use super::*;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

impl World {
    /// Fills a folder of the first server with every kind of entry, and copies it to the others.
    fn fill(&self, name: &str, large_bytes: usize) {
        let source = self.path("server-0").join(name);
        std::fs::create_dir_all(source.join("sub/empty")).expect("the folder is ours");
        for number in 0..150 {
            let path = source.join(format!("sub/{number:03}"));
            std::fs::write(path, noise(number, number as usize * 200)).expect("the folder is ours");
        }
        std::fs::write(source.join("large"), noise(1_000, large_bytes)).expect("the folder is ours");
        symlink("sub/007", source.join("link")).expect("the folder is ours");
        symlink("/etc", source.join("sub/outside")).expect("the folder is ours");
        std::fs::hard_link(source.join("sub/100"), source.join("second")).expect("the folder is ours");
        let mode = std::fs::Permissions::from_mode(0o2750);
        std::fs::set_permissions(source.join("sub"), mode).expect("the folder is ours");
        (1..self.servers.len()).for_each(|server| self.copy(name, server));
    }

    /// Copies a folder of the first server to another one.
    fn copy(&self, name: &str, server: usize) {
        let (from, to) =
            (self.path("server-0").join(name), self.path(&format!("server-{server}")).join(name));
        drop(std::fs::remove_dir_all(&to));
        let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
        assert!(copied.success());
    }

    /// The id of a directory's snapshot.
    fn snapshot(&self, path: &str) -> String {
        let path = self.path(path);
        let said = crate::answer(&["replicate", "manifest", path.to_str().expect("plain"), "--json"]);
        let json: Value = serde_json::from_slice(&said.stdout).expect("one object of JSON");
        json["snapshot"].as_str().expect("an id").to_owned()
    }

    /// Runs `gather get` for people. Returns the exit code, and both outputs together.
    fn tell(&self, arguments: &[&str]) -> (Option<i32>, String) {
        self.tell_verb("get", arguments)
    }

    /// Runs `gather get` or `gather sync` for people.
    fn tell_verb(&self, verb: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = anabranch();
        command.args(["gather", verb, "--keys"]).arg(self.path("keys")).args(arguments);
        if !arguments.contains(&"-o") {
            command.arg("-o").arg(self.path("out"));
        }
        let output = command.output().expect("the command runs");
        (output.status.code(), text(&output.stdout).to_owned() + &text(&output.stderr))
    }
}

#[test]
fn directory_survives_the_death_of_one_of_two_servers() {
    let mut world = World::new(2);
    world.fill("data", 16 * MIB);
    let object = world.object(0..2, "data/");
    let getting = world.get(&[&object, SLOW_LINK[0], SLOW_LINK[1]]);
    world.wait_for(4 * MIB);
    world.kill(0);
    let got = getting.end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(got.end["servers"][0]["lost"].is_string(), "{got:?}");
    assert_eq!(world.snapshot("out"), world.snapshot("server-1/data"));
    assert!(working_files(&world.path("")).is_empty());
    // The server that is left has the same snapshot.
    let again = world.get(&[&object]).end();
    assert_eq!((again.code, again.count("fetched_bytes")), (Some(0), 0), "{again:?}");
    let changed = world.path("server-1/data/sub/149");
    std::fs::write(changed, noise(7, 5_000)).expect("the folder is ours");
    std::fs::rename(world.path("server-1/data/large"), world.path("server-1/data/sub/moved")).expect("ours");
    let changes = world.get(&[&object]).end();
    assert_eq!(changes.code, Some(0), "{changes:?}");
    assert!(changes.count("fetched_bytes") < 1 << 17, "{changes:?}");
    std::fs::remove_file(world.path("out/large")).expect("a file that the servers lack stays");
    let time =
        std::fs::metadata(world.path("server-1/data")).and_then(|found| found.modified()).expect("ours");
    std::fs::File::open(world.path("out")).and_then(|out| out.set_modified(time)).expect("ours");
    assert_eq!(world.snapshot("out"), world.snapshot("server-1/data"));
}

#[test]
fn servers_with_other_versions_are_named_and_left_out() {
    let world = World::new(3);
    world.fill("data", 100_000);
    // Another content of the same length.
    std::fs::write(world.path("server-1/data/sub/100"), noise(8, 20_000)).expect("the folder is ours");
    let (first, other) = (world.snapshot("server-0/data"), world.snapshot("server-1/data"));
    let at = |server: usize| world.servers[server].at.to_string();
    let (code, said) = world.tell(&[&world.object(0..3, "data/")]);
    assert_eq!(code, Some(0), "{said}");
    let line = format!(
        "data/: {} has another version, which is not taken: snapshot {other}; that of {} is taken: snapshot {first}",
        at(1),
        at(0)
    );
    assert_eq!(said.matches(" has another version").count(), 1, "{said}");
    assert!(said.contains(&line), "{said}");
    assert_eq!(world.snapshot("out"), first);
    let (turned, folder) = (format!("{},{}/data/", at(1), at(2)), world.path("other"));
    let folder = folder.to_str().expect("plain");
    let got = world.get(&[&turned, "-o", folder]).end();
    assert_eq!((got.code, world.snapshot("other")), (Some(0), other));
    let pinned = world.get(&[&turned, "--snapshot", &first, "-o", folder, "--replace"]).end();
    assert_eq!((pinned.code, world.snapshot("other")), (Some(0), first.clone()));
    for (more, reason) in [
        (&["--strict"][..], "its servers have different versions, and --strict takes none"),
        (&["--snapshot", &"0".repeat(64)][..], "no server has this snapshot"),
    ] {
        let (code, said) = world.tell(&[&[&*turned, "-o", folder], more].concat());
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains(&format!("data/: {reason}; ")), "{said}");
        assert!(said.contains(&format!("{} has another version: snapshot {first}", at(2))), "{said}");
    }
}

#[test]
fn killed_get_of_a_directory_resumes() {
    let world = World::new(2);
    world.fill("data", 16 * MIB);
    let object = world.object(0..2, "data/");
    let getting = world.get(&[&object, SLOW_LINK[0], SLOW_LINK[1]]);
    world.wait_for(4 * MIB);
    let second = world.tell(&[&object]);
    assert_eq!(second.0, Some(1), "{}", second.1);
    assert!(second.1.contains("another process or transfer is writing this file"), "{}", second.1);
    getting.signal(Signal::KILL);
    drop(getting);
    assert!(!world.path("out").exists(), "files get their names at the end");
    let got = world.get(&[&object]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(got.count("fetched_bytes") < 15 * MIB as u64, "{got:?}");
    assert_eq!(world.snapshot("out"), world.snapshot("server-0/data"));
}

#[test]
fn changed_files_are_left_and_named_without_replace() {
    let world = World::new(1);
    world.fill("data", 100_000);
    let object = world.object(0..1, "data/");
    assert_eq!(world.get(&[&object]).end().code, Some(0));
    for name in ["sub/001", "sub/002"] {
        std::fs::write(world.path("server-0/data").join(name), b"new").expect("the folder is ours");
    }
    std::fs::write(world.path("out/sub/001"), b"mine").expect("the folder is ours");
    let (code, said) = world.tell(&[&object]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("out/sub/001: changed here by another program, and left"), "{said}");
    let read = |name: &str| std::fs::read(world.path("out").join(name)).expect("it is there");
    assert_eq!((read("sub/001"), read("sub/002")), (b"mine".to_vec(), b"new".to_vec()));
    let json = world.get(&[&object]).end();
    assert_eq!((json.code, &json.end["failed"]), (Some(3), &1.into()), "{json:?}");
    let (code, said) = world.tell(&[&object, "--replace"]);
    assert_eq!((code, read("sub/001")), (Some(0), b"new".to_vec()), "{said}");
    assert_eq!(world.snapshot("out"), world.snapshot("server-0/data"));
    let (code, said) = world.tell(&[&object]);
    assert_eq!((code, said.as_str()), (Some(0), "data/: nothing changed\n"));
    let whole = world.path("whole");
    let got = world.get(&[&world.object(0..1, ""), "-o", whole.to_str().expect("plain")]).end();
    assert_eq!((got.code, world.snapshot("whole")), (Some(0), world.snapshot("server-0")), "{got:?}");
}

#[test]
fn mistakes_about_directories_are_named() {
    let world = World::new(1);
    world.fill("data", 1_000);
    symlink("data", world.path("server-0/link")).expect("the folder is ours");
    world.put(0..1, "file", b"x");
    let at = world.servers[0].at.to_string();
    let zeros = "0".repeat(64);
    let usage = [
        (&["/data/", "/file"][..], "data/: a directory is pulled alone"),
        (&["/data/", "/data/sub/"][..], "a directory is pulled alone"),
        (&["/data/", "-o", "-"][..], "--output -: standard output takes one object, not a directory"),
        (&["/data/", "-o", "."][..], "--output .: name the directory that becomes the copy"),
        (&["/file", "--snapshot", &zeros][..], "--snapshot: for a directory"),
        (&["/data/", "--snapshot", "1"][..], "`1`: the id of a snapshot has 64 hexadecimal digits"),
        (&["/data/", "--blake3", &zeros][..], "--blake3: for one object"),
        (&["/../"][..], "`..` leads outside"),
    ];
    let failures = [
        (&["/none/"][..], "none: No such file or directory"),
        (&["/file/"][..], "file: not a directory"),
        (&["/link/"][..], "link: its path has a symbolic link, and links are not followed"),
    ];
    let with = |arguments: &[&str]| -> Vec<String> {
        arguments
            .iter()
            .map(|word| if word.starts_with('/') { format!("{at}{word}") } else { (*word).to_owned() })
            .collect()
    };
    let cases = usage.iter().map(|case| (case, 2)).chain(failures.iter().map(|case| (case, 1)));
    for ((arguments, reason), expected) in cases {
        let arguments = with(arguments);
        let (code, said) = world.tell(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, Some(expected), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    std::fs::write(world.path("server-0/data/ca.key"), "-----BEGIN PRIVATE KEY-----").expect("ours");
    let (code, said) = world.tell(&[&world.object(0..1, "data/")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("data/ca.key: ") && !said.contains("server-0"), "{said}");
}

#[test]
fn ls_prints_the_snapshot_of_a_directory() {
    let world = World::new(1);
    world.fill("data", 1_000);
    let place = format!("{}/data/", world.servers[0].at);
    let ls = |more: &[&str]| {
        let mut command = anabranch();
        command.args(["gather", "ls", &place, "--snapshot", "--keys"]).arg(world.path("keys")).args(more);
        command.output().expect("the command runs")
    };
    let said = ls(&[]);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let snapshot = world.snapshot("server-0/data");
    assert!(text(&said.stdout).ends_with(&format!("\nsnapshot {snapshot}\n")), "{said:?}");
    let said = ls(&["--json"]);
    let last = text(&said.stdout).lines().last().expect("a line").to_owned();
    let row: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!((&row["directory"], &row["snapshot"]), (&"data/".into(), &snapshot.into()), "{row}");
    // 150 files, the large one, its second name, and the link to a file.
    assert_eq!(row["files"], 153, "{row}");
}

#[test]
fn sync_deletes_entries_that_the_servers_lack() {
    let world = World::new(2);
    world.fill("data", 100_000);
    let object = world.object(0..2, "data/");
    let sync = |more: &[&str]| world.tell_verb("sync", &[&[&*object], more].concat());
    // Files of an earlier `get` are of the same source.
    assert_eq!(world.tell(&[&object]).0, Some(0));
    for server in 0..2 {
        let data = world.path(&format!("server-{server}/data"));
        std::fs::remove_file(data.join("sub/003")).expect("the folder is ours");
        std::fs::remove_dir(data.join("sub/empty")).expect("the folder is ours");
        std::fs::remove_file(data.join("link")).expect("the folder is ours");
    }
    // Removals changed the times of the second server's directories.
    (1..2).for_each(|server| world.copy("data", server));
    let before = world.snapshot("out");
    let (code, said) = sync(&["--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("only here   sub/003\n") && said.contains("lacks no content"), "{said}");
    assert_eq!((world.snapshot("out"), working_files(&world.path("")).len()), (before, 0));
    let (code, said) = sync(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("\n3 entries here that the servers lack: see --delete\n"), "{said}");
    let (code, said) = sync(&["--delete", "--max-delete", "2"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("3 of 156 entries would be deleted, and --max-delete 2 allows fewer"), "{said}");
    assert!(working_files(&world.path("")).is_empty());
    let (code, said) = sync(&["--delete", "--backup", world.path("out/new/old").to_str().expect("plain")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("neither may contain the other") && !world.path("out/new").exists(), "{said}");
    let backup = world.path("backup");
    let (code, said) = sync(&["--delete", "--backup", backup.to_str().expect("plain")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(", 3 entries deleted, "), "{said}");
    assert_eq!(world.snapshot("out"), world.snapshot("server-0/data"));
    assert_eq!(std::fs::read(backup.join("sub/003")).expect("kept"), noise(3, 600));
    let (code, said) = sync(&["--delete"]);
    assert_eq!((code, said.as_str()), (Some(0), "data/: nothing changed\n"));
}

#[test]
fn filtered_sync_leaves_excluded_entries_alone() {
    let world = World::new(2);
    world.fill("data", 100_000);
    let object = world.object(0..2, "data/");
    let sync = |more: &[&str]| world.tell_verb("sync", &[&[&*object], more].concat());
    let filters = ["--exclude", "/large", "--filter", "- 00[0-4]"];
    let (code, said) = sync(&filters);
    assert_eq!(code, Some(0), "{said}");
    let out = world.path("out");
    assert!(!out.join("large").exists() && !out.join("sub/003").exists() && out.join("sub/005").exists());
    assert_eq!(std::fs::read_link(out.join("link")).expect("a link").to_str(), Some("sub/007"));
    let manifest = |path: &Path| {
        let path = path.to_str().expect("plain");
        let said = crate::answer(&[&["replicate", "manifest", path, "--json"], &filters[..]].concat());
        let json: Value = serde_json::from_slice(&said.stdout).expect("one object of JSON");
        json["snapshot"].as_str().expect("an id").to_owned()
    };
    assert_eq!(manifest(&out), manifest(&world.path("server-0/data")));
    let (code, said) = sync(&filters);
    assert_eq!((code, said.as_str()), (Some(0), "data/: nothing changed\n"));
    // An included entry goes, and excluded ones stay.
    std::fs::write(out.join("sub/000"), "of a program here").expect("the folder is ours");
    for server in 0..2 {
        std::fs::remove_file(world.path(&format!("server-{server}/data/sub/010"))).expect("ours");
    }
    (1..2).for_each(|server| world.copy("data", server));
    let (code, said) = sync(&[&filters[..], &["--delete"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(", 1 entry deleted, "), "{said}");
    assert!(!out.join("sub/010").exists() && out.join("sub/000").exists());
}

#[test]
fn sync_spares_entries_that_it_did_not_write() {
    let world = World::new(1);
    world.fill("data", 1_000);
    let object = world.object(0..1, "data/");
    let sync = |more: &[&str]| world.tell_verb("sync", &[&[&*object, "--delete"], more].concat());
    assert_eq!(sync(&[]).0, Some(0));
    std::fs::write(world.path("out/own"), "of a program here").expect("the folder is ours");
    std::fs::remove_file(world.path("server-0/data/sub/004")).expect("the folder is ours");
    let (code, said) = sync(&[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("out/own: changed here by another program, and left: --replace replaces or deletes")
            && !said.contains("no entry was deleted"),
        "{said}"
    );
    assert!(world.path("out/own").exists() && !world.path("out/sub/004").exists());
    let (code, said) = sync(&["--replace"]);
    assert_eq!((code, world.path("out/own").exists()), (Some(0), false), "{said}");
    // A socket at the server: a file of its name here would go.
    let socket = std::os::unix::net::UnixListener::bind(world.path("server-0/data/socket"));
    let _socket = socket.expect("the folder is ours");
    std::fs::write(world.path("server-0/data/new"), "new").expect("the folder is ours");
    let (code, said) = sync(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 of its entries are sockets, pipes or devices, which are not sent"), "{said}");
    assert!(said.contains(": nothing was fetched") && !world.path("out/new").exists(), "{said}");
    for (arguments, reason) in [
        (&["127.0.0.1:1/x"][..], "sync takes a directory: write `127.0.0.1:1/x/`"),
        (&[&*object, "--max-delete", "3"][..], "--delete"),
        (&[&*object, "--backup", ".."][..], "--backup ..: name a directory, in UTF-8"),
        (&[&*object, "--delete", "--max-delete", "101%"][..], "must be a number of entries, or a percentage"),
    ] {
        let (code, said) = world.tell_verb("sync", arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn reader_sees_one_snapshot_throughout() {
    let world = World::new(1);
    let object = world.object(0..1, "data/");
    let put = |version: u32| {
        let data = world.path("server-0/data");
        std::fs::create_dir_all(&data).expect("the folder is ours");
        for number in 0..40 {
            std::fs::write(data.join(format!("{number}")), format!("version {version}")).expect("ours");
        }
    };
    let get = || world.tell(&[&object, "--publish", "snapshot", "--keep", "9"]);
    put(0);
    let (code, said) = get();
    assert_eq!(code, Some(0), "{said}");
    let (out, is_over) = (world.path("out"), std::sync::atomic::AtomicBool::new(false));
    let is_over = &is_over;
    let (ends, rounds) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut rounds = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let root = std::fs::File::open(&out).expect("it is always there");
                let read = |number: u32| {
                    let path = format!("/proc/self/fd/{}/{number}", root.as_raw_fd());
                    std::fs::read_to_string(path).expect("a whole file")
                };
                let first = read(0);
                assert!((1..40).all(|number| read(number) == first), "files of two snapshots");
                rounds += 1;
            }
            rounds
        });
        let versions = (1..5).map(|version| {
            put(version);
            get()
        });
        let ends: Vec<_> = versions.collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        (ends, reader.join().expect("each snapshot is whole"))
    });
    assert!(ends.iter().all(|(code, _)| *code == Some(0)) && rounds > 0, "{ends:?}, {rounds} rounds");
    assert_eq!(world.snapshot("out"), world.snapshot("server-0/data"));
    assert_eq!(std::fs::read_dir(world.path(".out.snapshots")).expect("they are kept").count(), 4);
    for (verb, arguments, reason) in [
        ("get", &[&*object, "--keep", "1"][..], "--keep: for --publish snapshot"),
        ("get", &["127.0.0.1:1/x", "--publish", "snapshot"][..], "--publish snapshot: for a directory"),
        (
            "sync",
            &[&*object, "--publish", "snapshot", "--backup", "old"][..],
            "--backup with --publish snapshot",
        ),
    ] {
        let (code, said) = world.tell_verb(verb, arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
}
