//! Filters beside rclone's, on random trees and random rules.
//!
//! `ANABRANCH_RCLONE` sets the number of cases (default 200), and `ANABRANCH_RCLONE_SEED` their
//! seed. rclone runs as a server: its `operations/list` returns the list that `rclone lsf -R`
//! prints. The first cases also run that command.

use super::tests::{folder, write};
use super::*;
use anabranch_sets::filter::{Options, Text};
use anabranch_units::{RandomStream, Seed};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Number of cases with the same tree.
const CASES_OF_A_TREE: u64 = 50;
/// Number of the first cases, which also run `rclone lsf`.
const COMMANDS: u64 = 10;
/// Parts of the names in trees. Rules are drawn from the same parts, so that they match often.
const NAMES: [&str; 14] =
    ["a", "b", "ab", "abc", "a.txt", "b.jpg", "B.TXT", "x y", "\u{e9}", "[a]", "a*b", "-", "{c}", ".h"];

struct Rclone {
    child: Child,
    address: String,
}

impl Drop for Rclone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rclone {
    /// Starts a server on a free port; `None` where rclone is not installed.
    fn start() -> Option<Self> {
        let mut command = Command::new("rclone");
        command.args(["--config", "/dev/null", "rcd", "--rc-no-auth", "--rc-addr", "127.0.0.1:0"]);
        let mut child = match command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => panic!("rclone: {error}"),
        };
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("text");
            let (_, rest) = line.split_once("http://")?;
            Some(rest.trim_end_matches('/').to_owned())
        });
        // Further lines would fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { child, address: address.expect("it names its address") })
    }

    /// Paths that rclone lists, folders with a slash; `None` if it refuses the rules.
    fn listed(&self, root: &Path, rules: &Path, ignores_case: bool) -> Option<BTreeSet<String>> {
        let body = serde_json::json!({
            "fs": root, "remote": "",
            "opt": { "recurse": true, "noModTime": true, "noMimeType": true },
            "_filter": { "FilterFrom": [rules], "IgnoreCase": ignores_case },
        });
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(
            stream,
            "POST /operations/list HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it takes the request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let Some(list) = body["list"].as_array() else {
            assert!(body["error"].is_string() || body["list"].is_null(), "{body}");
            // An empty list is null.
            return body["error"].is_null().then(BTreeSet::new);
        };
        let path = |entry: &serde_json::Value| {
            let slash = if entry["IsDir"] == true { "/" } else { "" };
            format!("{}{slash}", entry["Path"].as_str().expect("a path"))
        };
        Some(list.iter().map(path).collect())
    }
}

/// Paths that `rclone lsf -R` prints; `None` if it refuses the rules.
fn printed(root: &Path, rules: &Path, ignores_case: bool) -> Option<BTreeSet<String>> {
    let mut command = Command::new("rclone");
    command.args(["--config", "/dev/null", "lsf", "-R", "--filter-from"]).arg(rules).arg(root);
    if ignores_case {
        command.arg("--ignore-case");
    }
    let output = command.output().expect("rclone is installed");
    let text = String::from_utf8(output.stdout).expect("names of the test are text");
    output.status.success().then(|| text.lines().map(str::to_owned).collect())
}

/// Paths that the scan visits, folders with a slash; `None` if the rules are refused.
fn visited(root: &Path, rules: &str, ignores_case: bool) -> Option<BTreeSet<String>> {
    let filter_from = vec![Text { name: "rules".to_owned(), text: rules.to_owned() }];
    let filter = Filter::new(&Options { filter_from, ignores_case, ..Options::default() }).ok()?;
    #[derive(Default)]
    struct Paths(BTreeSet<String>);
    impl Visitor for Paths {
        fn enter(&mut self, path: &[u8]) -> io::Result<()> {
            self.0.insert(format!("{}/", str::from_utf8(path).expect("text")));
            Ok(())
        }
        fn leave(&mut self, _: &[u8], _: &Stat, _: BorrowedFd<'_>) -> io::Result<()> {
            Ok(())
        }
        fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
            self.0.insert(str::from_utf8(found.path).expect("text").to_owned());
            Ok(())
        }
        fn link(&mut self, found: &Found<'_>, _: &[u8]) -> io::Result<()> {
            panic!("{}: a link", found.path.escape_ascii())
        }
        fn skipped(&mut self, _: &[u8], _: Skipped) -> io::Result<()> {
            Ok(())
        }
        fn problem(&mut self, path: &[u8], problem: Problem) -> io::Result<()> {
            panic!("{}: {problem}", path.escape_ascii())
        }
    }
    let mut paths = Paths::default();
    Tree::open(root).expect("it is there").scan(&filter, &mut paths).expect("it can be read");
    Some(paths.0)
}

fn pick<'a>(draws: &mut RandomStream, from: &[&'a str]) -> &'a str {
    from[draws.below(from.len() as u64) as usize]
}

fn make_tree(draws: &mut RandomStream, root: &Path) {
    for _ in 0..40 {
        let depth = 1 + draws.below(3);
        let path: Vec<&str> = (0..depth).map(|_| pick(draws, &NAMES)).collect();
        let path = root.join(path.join("/"));
        // A name may be a file already, or a folder.
        let _ = std::fs::create_dir_all(path.parent().expect("below the root"));
        if draws.below(8) == 0 {
            let _ = std::fs::create_dir(&path);
        } else if !path.exists() {
            let _ = std::fs::write(&path, "");
        }
    }
}

/// A name as a pattern that matches it.
fn escaped(name: &str) -> String {
    name.chars().map(|c| if "[]{}*?\\".contains(c) { format!("\\{c}") } else { c.to_string() }).collect()
}

fn pattern(draws: &mut RandomStream) -> String {
    let mut text = String::new();
    if draws.below(3) == 0 {
        text.push('/');
    }
    for part in 0..1 + draws.below(3) {
        if part > 0 {
            text.push_str(pick(draws, &["/", "/", "/", "//"]));
        }
        for _ in 0..1 + draws.below(2) {
            let name = pick(draws, &NAMES);
            match draws.below(12) {
                0 => text.push('*'),
                1 => text.push_str("**"),
                2 => text.push('?'),
                3 => text.push_str(pick(draws, &["[ab]", "[^a]", "[a-c]*", "[[:alpha:]]", "[-.]*"])),
                4 => {
                    let other = pick(draws, &NAMES);
                    text.push_str(&format!("{{{},{}}}", escaped(name), escaped(other)));
                }
                5 => text.push_str(pick(draws, &["{a,b*}", "{*.txt,*.jpg}", "{,a}", "{a/b,c}", "{**,a}"])),
                6 => text.push_str(pick(draws, &["{{a+}}", "{{[ab].*}}", "{{.{1,2}}}", "{{(a|b)}}"])),
                7 => text.push_str(pick(draws, &["*.txt", "a*", "*b", ".*"])),
                _ => text.push_str(&escaped(name)),
            }
        }
    }
    match draws.below(12) {
        0 | 1 => text.push('/'),
        2 => text.push_str("/**"),
        3 => text.push_str("/*"),
        // Both programs refuse an invalid pattern.
        4 if draws.below(6) == 0 => text.push_str(pick(draws, &["[", "{a", "}", "]", "***", "{{a"])),
        _ => {}
    }
    text
}

fn rules(draws: &mut RandomStream) -> String {
    let mut text = String::new();
    for _ in 0..1 + draws.below(5) {
        match draws.below(30) {
            0 => text.push_str("!\n"),
            1 => text.push_str("# comment\n\n"),
            2 => text.push_str("; comment\n"),
            3..=5 => text.push_str(pick(draws, &["- *\n", "- **\n", "- /**\n", "- */\n"])),
            _ => text.push_str(&format!("{} {}\n", pick(draws, &["+", "-"]), pattern(draws))),
        }
    }
    text
}

#[test]
fn filters_agree_with_rclone() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let cases = number("ANABRANCH_RCLONE").unwrap_or(200);
    let seed = number("ANABRANCH_RCLONE_SEED").unwrap_or(54);
    let Some(rclone) = Rclone::start() else { return anabranch_testing::skip::skip("no rclone") };
    let all = folder();
    let file = all.path().join("rules");
    let (mut tree, mut refused, mut partial) = (folder(), 0, 0);
    for case in 0..cases {
        let mut draws = Seed::new(seed).stream("rclone", case);
        if case % CASES_OF_A_TREE == 0 {
            tree = folder();
            make_tree(&mut draws, tree.path());
        }
        let rules = rules(&mut draws);
        let ignores_case = draws.below(4) == 0;
        write(all.path(), "rules", &rules);
        let ours = visited(tree.path(), &rules, ignores_case);
        let theirs = rclone.listed(tree.path(), &file, ignores_case);
        assert_eq!(ours, theirs, "case {case}, case ignored: {ignores_case}, rules:\n{rules}");
        if case < COMMANDS {
            assert_eq!(ours, printed(tree.path(), &file, ignores_case), "case {case}, rules:\n{rules}");
        }
        match ours {
            None => refused += 1,
            Some(paths) => partial += u64::from(!paths.is_empty()),
        }
    }
    println!("{cases} cases: {refused} refused, {partial} with entries");
    assert!(partial > cases / 4 && refused < cases / 4, "{refused} refused, {partial} with entries");
}
