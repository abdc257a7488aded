//! `replicate`: a controller, a source, a relay and two destinations.

use super::*;
use crate::net::run;
use std::process::Stdio;

const NETWORK: &str = r#"
name = "five"
[defaults]
capacity = "1 Gbit/s"
delay = "1 ms"
[[site]]
name = "s"
[[site]]
name = "r"
[[site]]
name = "d"
[[site]]
name = "e"
[[cable]]
between = ["s", "r"]
[[cable]]
between = ["s", "d"]
[[cable]]
between = ["r", "d"]
[[cable]]
between = ["r", "e"]
[[cable]]
between = ["d", "e"]
"#;

const SITES: [&str; 4] = ["s", "r", "d", "e"];
const SCHEMES: [&str; 5] = ["auto", "coded", "single_path", "steiner_one_tree", "steiner_store_and_forward"];

pub(super) struct Fleet {
    folder: tempfile::TempDir,
    pub(super) ports: BTreeMap<&'static str, u16>,
    daemons: Daemons,
}

impl Fleet {
    pub(super) fn new(_: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("network.toml"), NETWORK).expect("the folder is ours");
        let ports = ["controller"].into_iter().chain(SITES).map(|who| (who, free_port())).collect();
        let mut fleet = Self { folder, ports, daemons: Daemons::default() };
        let made = fleet.command(&["keys", "init", "--topology", "network.toml", "--out", "keys"]);
        let (code, said) = run(made);
        assert_eq!(code, Some(0), "{said}");
        for who in ["controller"].into_iter().chain(SITES) {
            std::fs::create_dir(fleet.path(who)).expect("the folder is ours");
            let (command, log) = (fleet.daemon(who), fleet.path(&format!("{who}.log")));
            fleet.daemons.start(who, command, &log);
        }
        fleet
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).arg("replicate").args(words).stdout(Stdio::null());
        command
    }

    pub(super) fn daemon(&self, who: &'static str) -> Command {
        let address = |who| format!("127.0.0.1:{}", self.ports[who]);
        let (listen, controller) = (address(who), address("controller"));
        let given = ["--topology", "network.toml", "--keys", "keys", "--listen", &listen];
        if who == "controller" {
            return self.command(&[&["controller", "--store", "controller/store"], &given[..]].concat());
        }
        self.command(
            &[&["relay", "--site", who, "--dir", who, "--controller", &controller], &given[..]].concat(),
        )
    }

    /// A client command for the controller.
    fn ask(&self, words: &[&str]) -> Command {
        let controller = format!("127.0.0.1:{}", self.ports["controller"]);
        self.command(&[words, &["--controller", &controller, "--keys", "keys"]].concat())
    }

    /// Runs all attempts to their ends, and the kills in between.
    pub(super) fn play(&mut self, told: &str, attempts: &mut [Attempt], kills: &[Kill]) {
        let mut daemons = std::mem::take(&mut self.daemons);
        let bring_back = |daemons: &mut Daemons, who: &'static str| {
            daemons.start(who, self.daemon(who), &self.path(&format!("{who}.log")));
        };
        play(told, &mut daemons, attempts, kills, bring_back);
        self.daemons = daemons;
    }

    /// Waits until no transfer is active.
    pub(super) fn settle(&self, told: &str) {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let out = self.ask(&["status", "--json"]).stdout(Stdio::piped()).output().expect("it runs");
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let views: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
            let open: Vec<&Value> = views.iter().filter(|view| view["outcome"].is_null()).collect();
            if out.status.success() && open.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{told}: transfers go on: {open:?} {out:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Number of files reported as delivered.
fn schedule(fleet: &mut Fleet, number: u64) -> u64 {
    let mut draw = Draw(number ^ 0x7265_706c_6963_6174);
    let (at, told) = (format!("k{number}"), format!("replicate schedule {number}"));
    let outside = content(number, 99, 4_000);
    std::fs::write(fleet.path("outside"), &outside).expect("ours");
    let mut expected: BTreeMap<&str, PermittedContents> = BTreeMap::new();
    for site in SITES {
        std::fs::create_dir_all(fleet.path(site).join(&at).join("sub")).expect("ours");
        std::os::unix::fs::symlink("sub", fleet.path(site).join(&at).join("link")).expect("ours");
        expected.insert(site, PermittedContents::default());
    }
    // Earlier entries of the owners: files, and links that lead out.
    for site in ["d", "e"] {
        let folder = fleet.path(site).join(&at);
        let expected = expected.get_mut(site).expect("a site");
        expected.own(&mut draw, number, &folder, &fleet.path("outside"));
    }
    let mut attempts = Vec::new();
    let mut asked = Vec::new();
    for j in 0..2 + draw.below(3) {
        let bytes = content(number, j, draw.pick(&LENGTHS));
        let source = format!("{at}/from-{j}");
        std::fs::write(fleet.path("s").join(&source), &bytes).expect("ours");
        expected.get_mut("s").expect("a site").may(&format!("from-{j}"), &bytes);
        let name = draw.pick(&NAMES);
        let to = draw.pick(&["d", "e", "d,e"]);
        for site in to.split(',') {
            expected.get_mut(site).expect("a site").may(name, &bytes);
        }
        let target = format!("{at}/{name}");
        let mut words =
            vec!["replicate", "send", "--json", &source, "--from", "s", "--to", to, "--as", &target];
        words.extend(["--scheme", draw.pick(&SCHEMES), "--bwlimit", draw.pick(&["40 Mbit/s", "200 Mbit/s"])]);
        if draw.one_in(3) {
            words.push("--replace");
        }
        let controller = format!("127.0.0.1:{}", fleet.ports["controller"]);
        let keys = fleet.path("keys").display().to_string();
        words.extend(["--keys", &keys, "--controller", &controller]);
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let kills = draw.below(4).saturating_sub(2);
        attempts.push(Attempt::draw(&mut draw, words, fleet.path(&format!("{at}-{j}.out")), kills, 100));
        asked.push((name, to, bytes));
    }
    let all = ["controller", "s", "r", "d", "e"];
    let kills = kills(&mut draw, 4, &all, 600);
    fleet.play(&told, &mut attempts, &kills);
    fleet.settle(&told);
    let mut brought = 0;
    for (attempt, (name, _, _)) in attempts.iter().zip(&asked) {
        let said = attempt.said();
        let Some(summary) = said.iter().rev().find(|line| line["event"] == "summary") else { continue };
        for destination in summary["destinations"].as_array().into_iter().flatten() {
            if destination["verdict"]["verdict"] == "done" {
                brought += 1;
                let site = destination["site"].as_str().expect("a name");
                expected.get_mut(site).unwrap_or_else(|| panic!("{told}: {site}")).must(name);
            }
        }
    }
    for site in SITES {
        expected[site].check(&fleet.path(site).join(&at), &format!("{told}: {site}"));
    }
    assert!(
        std::fs::read(fleet.path("outside")).is_ok_and(|now| now == outside),
        "{told}: a file outside changed"
    );
    SITES.iter().for_each(|site| std::fs::remove_dir_all(fleet.path(site).join(&at)).expect("ours"));
    brought
}

#[test]
fn killed_programs_leave_no_wrong_file_under_any_name() {
    run_all(SAMPLE, 2, Fleet::new, schedule);
}

#[test]
#[ignore = "a thousand schedules take minutes: `make claims`"]
fn replicate_leaves_nothing_wrong_a_thousand_times() {
    run_all(ALL, FLEETS, Fleet::new, schedule);
}
