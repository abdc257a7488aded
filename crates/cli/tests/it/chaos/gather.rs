//! `gather`: three servers, sometimes one with another version, and clients that write to colliding
//! names.

use super::*;

const SERVERS: [&str; 3] = ["s1", "s2", "s3"];

struct Fleet {
    folder: tempfile::TempDir,
    ports: BTreeMap<&'static str, u16>,
    daemons: Daemons,
}

impl Fleet {
    fn new(_: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ports = SERVERS.into_iter().map(|who| (who, free_port())).collect();
        let mut fleet = Self { folder, ports, daemons: Daemons::default() };
        let mut keys = anabranch();
        keys.args(["gather", "keys", "--servers", "s1,s2,s3", "--out"]).arg(fleet.path("keys"));
        assert!(keys.output().expect("the command runs").status.success());
        std::fs::create_dir(fleet.path("out")).expect("the folder is ours");
        for who in SERVERS {
            std::fs::create_dir(fleet.path(who)).expect("the folder is ours");
            let (command, log) = (fleet.daemon(who), fleet.path(&format!("{who}.log")));
            fleet.daemons.start(who, command, &log);
        }
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn daemon(&self, who: &'static str) -> Command {
        let mut command = anabranch();
        let listen = format!("127.0.0.1:{}", self.ports[who]);
        command.args(["gather", "serve"]).arg(self.path(who)).args(["--name", who, "--listen", &listen]);
        command.arg("--keys").arg(self.path("keys"));
        command
    }
}

/// Runs a schedule. Returns the number of files reported as delivered.
fn schedule(fleet: &mut Fleet, number: u64) -> u64 {
    let mut draw = Draw(number ^ 0x6761_7468_6572);
    let (at, told) = (format!("k{number}"), format!("gather schedule {number}"));
    let out = fleet.path("out").join(&at);
    let outside = content(number, 99, 4_000);
    std::fs::write(fleet.path("outside"), &outside).expect("ours");
    std::fs::create_dir_all(out.join("sub")).expect("ours");
    let mut expected = PermittedContents::default();
    expected.own(&mut draw, number, &out, &fleet.path("outside"));
    // For some objects, one server has another version.
    let mut objects = Vec::new();
    for j in 0..4 {
        let length = draw.pick(&LENGTHS);
        let usual = content(number, j, length);
        let other =
            draw.one_in(3).then(|| content(number, 20 + j, if draw.one_in(2) { length } else { 5_000 }));
        for who in SERVERS {
            let folder = fleet.path(who).join(&at);
            std::fs::create_dir_all(&folder).expect("ours");
            let bytes = other.as_ref().filter(|_| who == "s3").unwrap_or(&usual);
            std::fs::write(folder.join(format!("o{j}")), bytes).expect("ours");
        }
        objects.push((usual, other));
    }
    let mut attempts = Vec::new();
    // Names that each attempt writes, and the path inside if a name is a folder by then.
    let mut asked: Vec<Vec<(&str, Option<String>)>> = Vec::new();
    for j in 0..1 + draw.below(3) {
        let several = draw.one_in(2);
        let mut words: Vec<String> = ["gather", "get", "--json", "--keys"].map(str::to_owned).into();
        words.push(fleet.path("keys").display().to_string());
        words.extend(["--link".to_owned(), draw.pick(&["50 Mbit/s", "200 Mbit/s"]).to_owned()]);
        let mut names = Vec::new();
        if several {
            // Two objects of one manifest, under different names.
            let mut manifest = String::new();
            for _ in 0..2 {
                let (object, name) = (draw.below(4), draw.pick(&NAMES));
                let (bytes, _) = &objects[object as usize];
                let holders: Vec<String> =
                    ["s1", "s2"].iter().map(|who| format!("\"127.0.0.1:{}\"", fleet.ports[who])).collect();
                manifest += &format!(
                    "[[object]]\nname = \"{name}\"\nbytes = {}\nblake3 = \"{}\"\n",
                    bytes.len(),
                    blake3::hash(bytes).to_hex()
                );
                manifest += &format!(
                    "[[object.part]]\nname = \"{at}/o{object}\"\nbytes = {}\nholders = [{}]\n",
                    bytes.len(),
                    holders.join(", ")
                );
                expected.may(name, bytes);
                names.push((name, None));
            }
            let path = fleet.path(&format!("{at}-{j}.toml"));
            std::fs::write(&path, manifest).expect("ours");
            words.extend(["--manifest".to_owned(), path.display().to_string()]);
            words.extend(["-o".to_owned(), format!("{}/", out.display())]);
        } else {
            let (object, name) = (draw.below(4), draw.pick(&NAMES));
            let servers: Vec<String> =
                SERVERS.iter().map(|who| format!("127.0.0.1:{}", fleet.ports[who])).collect();
            words.push(format!("{}/{at}/o{object}", servers.join(",")));
            words.extend(["-o".to_owned(), format!("{}/{name}", out.display())]);
            let (usual, other) = &objects[object as usize];
            let mut may = |name: &str| {
                expected.may(name, usual);
                other.iter().for_each(|other| expected.may(name, other));
            };
            // If the name is ever a folder, the object is written into it under its own name.
            may(name);
            let inside = format!("{name}/{at}/o{object}");
            may(&inside);
            if name == "sub/../n" {
                may("n");
            }
            names.push((name, Some(inside)));
        }
        if draw.one_in(3) {
            words.push("--replace".to_owned());
        }
        let kills = draw.below(3);
        attempts.push(Attempt::draw(&mut draw, words, fleet.path(&format!("{at}-{j}.out")), kills, 60));
        asked.push(names);
    }
    let kills = kills(&mut draw, 3, &SERVERS, 400);
    let mut daemons = std::mem::take(&mut fleet.daemons);
    let bring_back = |daemons: &mut Daemons, who: &'static str| {
        daemons.start(who, fleet.daemon(who), &fleet.path(&format!("{who}.log")));
    };
    play(&told, &mut daemons, &mut attempts, &kills, bring_back);
    fleet.daemons = daemons;
    let mut brought = 0;
    for (attempt, names) in attempts.iter().zip(&asked) {
        // The user may spell a path in any way.
        let taken = names.iter().filter(|(name, _)| plain(name).is_some());
        if attempt.code == Some(0) {
            taken.for_each(|(name, inside)| {
                brought += 1;
                // If the name is a folder, even one that another attempt made, the object is in it.
                let is_folder = name.ends_with('/') || out.join(name).is_dir();
                expected.must(inside.as_deref().filter(|_| is_folder).unwrap_or(name));
            });
        }
    }
    expected.check(&out, &told);
    assert!(
        std::fs::read(fleet.path("outside")).is_ok_and(|now| now == outside),
        "{told}: a file outside changed"
    );
    std::fs::remove_dir_all(&out).expect("ours");
    SERVERS.iter().for_each(|who| std::fs::remove_dir_all(fleet.path(who).join(&at)).expect("ours"));
    brought
}

#[test]
fn gather_leaves_only_correct_files_under_any_name() {
    run_all(SAMPLE, 2, Fleet::new, schedule);
}

#[test]
#[ignore = "a thousand schedules take minutes: `make claims`"]
fn gather_leaves_only_correct_files_in_thousand_schedules() {
    run_all(ALL, FLEETS, Fleet::new, schedule);
}
