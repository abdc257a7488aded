//! Plain English: wording and width of comments, wording of documents, names of tests, subjects of
//! commits.
//!
//! The wording patterns mark a few habits that readers stumble over, and know no grammar: a line
//! that passes can still be bad. The list ([`EXCEPTIONS`]) has one line for each file with
//! findings: kind, number of findings, path. A file with more findings than its line permits is a
//! finding, and so is a line that permits more than the file has. `cargo xtask tidy --accept`
//! lowers numbers and removes lines; it adds no line to an existing list.
//!
//! Leaves out: comments behind code, docstrings, fenced code in documents; long sentences of
//! documents, which the lab's tests count. Read [`Kind`] and [`faults`] first.

use super::{Finding, Rule};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// The list of exceptions.
pub(super) const EXCEPTIONS: &str = "xtask/prose.txt";

/// Parent of the first commit whose subject is checked.
pub(super) const FIRST_PARENT: &str = "60bdf18ce431c6976c294c94103447db488dc312";

/// Maximum columns of a comment line.
const COLUMNS_MAX: usize = 100;

/// Maximum words of a test's name.
const NAME_WORDS_MAX: usize = 9;

/// Maximum characters of a commit's subject.
const SUBJECT_MAX: usize = 72;

/// Kind of finding in a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Lines of comments and documents that match a pattern.
    Wording,
    /// Comments without content.
    Filler,
    /// Comment lines above [`COLUMNS_MAX`].
    Width,
    /// Tests whose names have more than [`NAME_WORDS_MAX`] words.
    Name,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Wording, Self::Filler, Self::Width, Self::Name];

    const fn word(self) -> &'static str {
        match self {
            Self::Wording => "wording",
            Self::Filler => "filler",
            Self::Width => "width",
            Self::Name => "name",
        }
    }
    const fn rule(self) -> Rule {
        match self {
            Self::Wording => Rule::Wording,
            Self::Filler => Rule::Filler,
            Self::Width => Rule::WideComment,
            Self::Name => Rule::TestName,
        }
    }
}

/// Patterns of wording, each with its remedy.
const PATTERNS: [(&str, &str); 8] = [
    (r"(?:^|[.;:] )(?:Who|Whoever|What|Whatever|Those|Such) [a-z]+", "`who`, `what` as the subject: name it"),
    (r"\bof (?:which|whom|what)\b", "`of which`, `of whom`: make it two sentences"),
    (r"\b(?:[Ss]uch an?|those (?:of|that|which)|that of)\b", "`such a`, `those of`, `that of`: name it"),
    (r"\b(?:is|are|was|were) to be\b", "`is to be`: say must, will or can"),
    (r"\bof (?:its|their|one's) own\b", "`of its own`: its"),
    (r"\b(?:anew|seldom|ever more|thrice|hitherto|thereby|whereby|therein|whither)\b", "archaic word"),
    (r"\b[Oo]thers (?:have|has|keep|are|were|do|take|leave|answer|may|can)\b", "`others` without a noun"),
    (r"\b(?:comes? to|goes? by|went by)\b", "`comes to`, `goes by`: take a plainer verb"),
];

/// A quantity without a name. The next word distinguishes it from a comparison: `as much as`, `so
/// that`.
const QUANTITY: &str = r"\b[Ss]o (?:many|much|often|few)\b( (?:as|that|the|more)\b)?";

/// The patterns, compiled.
struct CompiledPatterns {
    /// Matches wherever one of `patterns` does, so that most lines need one search only.
    any: Regex,
    patterns: Vec<(Regex, &'static str)>,
    quantity: Regex,
}

static COMPILED: LazyLock<CompiledPatterns> = LazyLock::new(|| {
    let all: Vec<_> = PATTERNS.iter().map(|(pattern, _)| *pattern).chain([QUANTITY]).collect();
    CompiledPatterns {
        any: compiled(&all.join("|")),
        patterns: PATTERNS.iter().map(|(pattern, remedy)| (compiled(pattern), *remedy)).collect(),
        quantity: compiled(QUANTITY),
    }
});

/// A comment without any content.
static FILLER: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^(?i-u:(?:which|why|what|who|whose|how|where|when)(?: (?:many|much|long|often))?|(?:see|as) (?:above|below)|the same|itself|ditto|likewise)[.?]?$",
    )
});

/// Compiles a pattern with ASCII word boundaries: Unicode ones exclude the fast engines from lines
/// with other characters.
fn compiled(pattern: &str) -> Regex {
    Regex::new(&format!("(?-u){pattern}"))
        .unwrap_or_else(|error| unreachable!("`{pattern}` is a constant: {error}"))
}

/// Returns whether files of this name have comments or text that is checked.
pub(super) fn has_prose(path: &str) -> bool {
    path.ends_with(".md") || marks(path).is_some()
}

/// Marks that begin a comment line, the longest first. `None` for files without comments that are
/// checked.
pub(super) fn marks(path: &str) -> Option<&'static [&'static str]> {
    match path.rsplit_once('.')?.1 {
        "rs" => Some(&["///", "//!", "//"]),
        "js" | "mjs" | "c" => Some(&["//"]),
        "py" | "sh" | "toml" => Some(&["#:", "#"]),
        _ => None,
    }
}

/// Remedy for a line of prose, if a pattern matches.
fn wording(prose: &str) -> Option<&'static str> {
    if !COMPILED.any.is_match(prose) {
        return None;
    }
    if COMPILED.quantity.captures_iter(prose).any(|found| found.get(1).is_none()) {
        return Some("`so many`, `so much`: give the quantity a name");
    }
    COMPILED.patterns.iter().find(|(pattern, _)| pattern.is_match(prose)).map(|(_, remedy)| *remedy)
}

/// Line number, kind and message of each finding in one file.
fn faults(path: &str, text: &str) -> Vec<(usize, Kind, String)> {
    let mut found = Vec::new();
    let marks = marks(path);
    let is_document = path.ends_with(".md");
    let mut is_code = false;
    // Text of the previous comment line; `None` after code.
    let mut before: Option<&str> = None;
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in (1..).zip(&lines) {
        let line = line.trim_start();
        if is_document && line.starts_with("```") {
            is_code = !is_code;
        }
        let comment = marks.and_then(|marks| comment(line, marks));
        let prose = if is_document { (!is_code).then_some(line.trim_end()) } else { comment };
        let Some(prose) = prose else {
            before = None;
            continue;
        };
        if let Some(remedy) = wording(prose) {
            found.push((number, Kind::Wording, format!("{remedy}: {}", shown(prose))));
        }
        if comment.is_some() {
            let columns = lines[number - 1].chars().count();
            // A line that is a single long word, such as an address, may be wider.
            if columns > COLUMNS_MAX && prose.contains(' ') {
                let message = format!("{columns} columns: must be at most {COLUMNS_MAX}");
                found.push((number, Kind::Width, message));
            }
            let next = lines.get(number).map(|line| line.trim_start());
            let is_last =
                marks.is_none_or(|marks| next.is_none_or(|next| self::comment(next, marks).is_none()));
            if before.is_none() && is_last && FILLER.is_match(prose) {
                found.push((
                    number,
                    Kind::Filler,
                    format!("`{prose}` says nothing: say it, or write no comment"),
                ));
            }
        }
        before = Some(prose);
    }
    for (number, name) in tests(path, &lines) {
        let words = name.split('_').filter(|word| !word.is_empty()).count();
        if words > NAME_WORDS_MAX {
            let message = format!("`{name}` has {words} words: must be at most {NAME_WORDS_MAX}");
            found.push((number, Kind::Name, message));
        }
    }
    found
}

/// The text of a comment line, without its mark.
pub(super) fn comment<'a>(line: &'a str, marks: &[&str]) -> Option<&'a str> {
    let text = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
    (!text.starts_with('!')).then(|| text.trim())
}

/// The beginning of a line, for a message.
fn shown(prose: &str) -> String {
    prose.chars().take(90).collect()
}

/// Names of the tests in a file of Rust or Python, with their lines.
pub(super) fn tests<'a>(path: &str, lines: &[&'a str]) -> Vec<(usize, &'a str)> {
    let is_rust = path.ends_with(".rs");
    let is_python =
        path.rsplit('/').next().is_some_and(|name| name.starts_with("test_") && name.ends_with(".py"));
    let name_end = |rest: &'a str| rest.split(['(', '<']).next().map(str::trim);
    let mut found = Vec::new();
    let mut is_test = false;
    for (number, line) in (1..).zip(lines) {
        let line = line.trim_start();
        if is_python {
            let name = line.strip_prefix("def test_").or_else(|| line.strip_prefix("async def test_"));
            found.extend(name.and_then(name_end).map(|name| (number, name)));
        } else if is_rust {
            if line.starts_with("#[") && (line.contains("test]") || line.contains("test(")) {
                is_test = !line.starts_with("#[cfg");
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                found.extend(name_end(rest).map(|name| (number, name)));
                is_test = false;
            } else if !line.starts_with("#[") && !line.starts_with("//") {
                is_test = false;
            }
        }
    }
    found
}

/// Number of findings of a kind in a file.
type FindingCounts = BTreeMap<(Kind, String), usize>;

/// Number of permitted findings of a kind in a file, and its line in the list.
type Exceptions = BTreeMap<(Kind, String), (usize, usize)>;

/// Reads the list: each exception's number, with its line. Lines of another form are findings.
fn parse(list: &str) -> (Exceptions, Vec<Finding>) {
    let (mut found, mut findings) = (Exceptions::new(), Vec::new());
    for (number, text) in (1..).zip(list.lines()) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let exception = match text.split(' ').collect::<Vec<_>>()[..] {
            [kind, count, path] => {
                let kind = Kind::ALL.into_iter().find(|k| k.word() == kind);
                kind.zip(count.parse().ok()).map(|(kind, count)| ((kind, path.to_owned()), (count, number)))
            }
            _ => None,
        };
        match exception {
            Some((item, exception)) => drop(found.insert(item, exception)),
            None => {
                let message = "no exception: write KIND NUMBER PATH";
                findings.push(Finding::new(EXCEPTIONS, number, Rule::Exception, message));
            }
        }
    }
    (found, findings)
}

/// Compares the files (`texts`, by path) with the list of exceptions.
pub(super) fn check<'a>(texts: impl Iterator<Item = (&'a String, &'a String)>, list: &str) -> Vec<Finding> {
    let (exceptions, mut findings) = parse(list);
    let mut counts = FindingCounts::new();
    for (path, text) in texts {
        let faults = faults(path, text);
        for kind in faults.iter().map(|(_, kind, _)| *kind).collect::<BTreeSet<_>>() {
            let of_kind: Vec<_> = faults.iter().filter(|fault| fault.1 == kind).collect();
            let item = (kind, path.clone());
            if of_kind.len() > exceptions.get(&item).map_or(0, |(count, _)| *count) {
                let new =
                    of_kind.iter().map(|(line, _, message)| Finding::new(path, *line, kind.rule(), message));
                findings.extend(new);
            }
            counts.insert(item, of_kind.len());
        }
    }
    for (item @ (kind, path), (count, line)) in &exceptions {
        let now = counts.get(item).copied().unwrap_or(0);
        if now < *count {
            let message = format!(
                "{} of `{path}`: {count}, and there are {now}: `cargo xtask tidy --accept`",
                kind.word()
            );
            findings.push(Finding::new(EXCEPTIONS, *line, Rule::Exception, message));
        }
    }
    findings
}

/// Rewrites the list: lowers its numbers, and removes lines without findings. Without a list, all
/// findings become exceptions.
pub(super) fn accept<'a>(
    texts: impl Iterator<Item = (&'a String, &'a String)>,
    list: Option<&str>,
) -> String {
    let mut counts = FindingCounts::new();
    for (path, text) in texts {
        for (_, kind, _) in faults(path, text) {
            *counts.entry((kind, path.clone())).or_default() += 1;
        }
    }
    if let Some(list) = list {
        let (exceptions, _) = parse(list);
        counts.retain(|item, count| match exceptions.get(item) {
            Some((allowed, _)) => {
                *count = (*count).min(*allowed);
                true
            }
            None => false,
        });
    }
    let mut new = String::from(
        "# Exceptions of plain English in `cargo xtask tidy` (CONTRIBUTING.md), which may only shrink.\n",
    );
    for ((kind, path), count) in counts {
        new += &format!("{} {count} {path}\n", kind.word());
    }
    new
}

/// Checks the subjects of commits: each is a hash, a tab and the subject.
pub(super) fn check_subjects<'a>(commits: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    let long = commits.filter_map(|commit| {
        let (hash, subject) = commit.split_once('\t')?;
        let length = subject.chars().count();
        let message = format!("{length} characters: must be at most {SUBJECT_MAX}: {subject}");
        (length > SUBJECT_MAX).then(|| Finding::new(&format!("commit {hash}"), 1, Rule::Subject, message))
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings of one file, as `line: kind`.
    fn of(path: &str, text: &str) -> Vec<String> {
        faults(path, text).iter().map(|(line, kind, _)| format!("{line}: {}", kind.word())).collect()
    }

    /// Comments before and after a rewrite in plain English.
    const PAIRS: [(&str, &str); 17] = [
        ("Those of which something is to be said.", "Flows with an update not yet sent to the coordinator."),
        ("What they are of, and of which how many.", "Number of this user's connections in each coflow."),
        (
            "What has arrived of it once its connection has moved so much.",
            "Bytes of this flow delivered when the connection has delivered `acked_bytes`.",
        ),
        (
            "So much came of all in so many seconds, in bits.",
            "Records one measurement. Returns true if the set of active servers changed.",
        ),
        (
            "Of servers that hold a piece those that may be asked for some of it.",
            "The servers among `holders` that are in the active set.",
        ),
        (
            "What it uses until the next change.",
            "TLS configuration in force until the certificate files change.",
        ),
        (
            "What fills has no rate, and is not held to one.",
            "Filler groups have no planned rate, so no ceiling applies.",
        ),
        (
            "When a coflow is due: so many times what it needs alone after it came.",
            "Deadline of each coflow: its arrival plus `STARVATION_FACTOR` times its isolated completion time.",
        ),
        (
            "What takes so many times as long to come as it took to leave has met its bottleneck.",
            "A train that arrives this many times slower than it was sent has passed a bottleneck.",
        ),
        (
            "So many packets show a rate, and more show it better.",
            "Fewest packets, and shortest time, from which a rate is estimated.",
        ),
        ("What it has come to.", "Statistics of one player."),
        (
            "What is known of the way to a host.",
            "Path estimates for a peer: blocking probability and round-trip times.",
        ),
        ("When what came of whom is to be said.", "When the next report to each peer is due."),
        (
            "Who has been told that no more comes may still answer.",
            "A half-closed connection can still send.",
        ),
        (
            "Others answer no losses where so much more than the path's own share is lost beside them.",
            "Competing flows count as loss-insensitive above this excess loss rate.",
        ),
        (
            "Where the broker is away the agent tries again, ever more seldom.",
            "If the broker is unreachable, the agent retries with exponential back-off.",
        ),
        (
            "Takes so many bytes out of what has arrived at `side`.",
            "Removes `bytes` from the receive buffer of `side`.",
        ),
    ];

    #[test]
    fn unclear_comments_are_found_and_plain_comments_pass() {
        for (before, after) in PAIRS {
            assert!(wording(before).is_some(), "{before}");
            assert_eq!(wording(after), None, "{after}");
        }
    }

    #[test]
    fn each_pattern_finds_its_wording() {
        for (bad, good) in [
            ("Counts so many.", "Counts as many as came, so much that it overflows."),
            ("It ends. Such games are over.", "It ends, and such games are over."),
            ("The list, of which three are sent.", "The list; three of its items are sent."),
            ("It is such a list.", "It is a list."),
            ("The rate is that of the link.", "The rate is the link's."),
            ("It is to be sent.", "It must be sent."),
            ("A thread of its own.", "A separate thread."),
            ("The list is written anew.", "The list is written again."),
            ("Others may ask.", "Other peers may ask."),
            ("It goes by the name.", "The name decides."),
        ] {
            assert!(wording(bad).is_some(), "{bad}");
            assert_eq!(wording(good), None, "{good}");
        }
    }

    #[test]
    fn comments_are_read_and_code_is_not() {
        assert_eq!(
            of("a.rs", "//! So many.\n/// So many.\nlet x = 1; // so many\n// So many.\n"),
            ["1: wording", "2: wording", "4: wording"]
        );
        assert_eq!(
            of("a.py", "#: So many.\nx = \"so many\"\n    # So many.\n"),
            ["1: wording", "3: wording"]
        );
        assert_eq!(of("a.toml", "a = 1\n# Written anew.\n"), ["2: wording"]);
        assert_eq!(of("a.sh", "#!/bin/such a\n"), Vec::<String>::new());
        assert_eq!(
            of("a.md", "So many.\n```text\nso many\n```\n- such a list\n"),
            ["1: wording", "5: wording"]
        );
        assert_eq!(of("a.csv", "# so many\n"), Vec::<String>::new());
        assert_eq!(of("a.rs", "#![so_many]\n#[doc = \"so many\"]\n"), Vec::<String>::new());
    }

    #[test]
    fn comments_without_content_are_found() {
        for filler in ["Which.", "Why.", "See above.", "how many", "The same.", "Itself."] {
            assert_eq!(
                of("a.rs", &format!("struct A {{\n    /// {filler}\n    a: u8,\n}}\n")),
                ["2: filler"]
            );
        }
        for good in ["Which of them.", "The same as `b`.", "When it began."] {
            assert_eq!(of("a.rs", &format!("/// {good}\na: u8,\n")), Vec::<String>::new(), "{good}");
        }
        assert_eq!(
            of("a.rs", "/// Bytes that\n/// itself.\n"),
            Vec::<String>::new(),
            "the end of a sentence"
        );
        assert_eq!(of("a.md", "Why.\n"), Vec::<String>::new(), "a document's words");
    }

    #[test]
    fn comment_lines_have_at_most_100_columns() {
        let line = |columns: usize| format!("    // a{}\n", " b".repeat((columns - 8) / 2));
        assert_eq!(of("a.rs", &line(100)), Vec::<String>::new());
        assert_eq!(of("a.rs", &line(102)), ["1: width"]);
        assert_eq!(
            of("a.rs", &format!("// µ{}\n", " µ".repeat(48))),
            Vec::<String>::new(),
            "characters, not bytes"
        );
        let address = format!("// https://example.org/{}\n", "a".repeat(100));
        assert_eq!(of("a.rs", &address), Vec::<String>::new());
        assert_eq!(of("a.md", &line(120)), Vec::<String>::new(), "documents");
        assert_eq!(of("a.rs", &line(120).replace("//", "  ")), Vec::<String>::new(), "code");
    }

    #[test]
    fn names_of_tests_have_at_most_nine_words() {
        let nine = "a_b_c_d_e_f_g_h_i";
        let test = |head: &str, name: &str| format!("#[test]\n{head}fn {name}() {{}}\nfn {name}_j() {{}}\n");
        assert_eq!(of("a.rs", &test("", nine)), Vec::<String>::new());
        assert_eq!(of("a.rs", &test("", &format!("{nine}_j"))), ["2: name"]);
        assert_eq!(of("a.rs", &test("/// Why it is so.\n#[cfg(unix)]\n", &format!("{nine}_j"))), ["4: name"]);
        let asynchronous = format!("#[tokio::test(start_paused = true)]\nasync fn {nine}_j() {{}}\n");
        assert_eq!(of("a.rs", &asynchronous), ["2: name"]);
        assert_eq!(of("a.rs", &format!("#[cfg(test)]\nfn {nine}_j() {{}}\n")), Vec::<String>::new());
        assert_eq!(of("test_a.py", &format!("def test_{nine}():\n")), Vec::<String>::new());
        assert_eq!(of("test_a.py", &format!("def test_{nine}_j(x):\n")), ["1: name"]);
        assert_eq!(of("run.py", &format!("def test_{nine}_j():\n")), Vec::<String>::new());
    }

    fn texts(lines: usize) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("a.rs".to_owned(), "// So many.\n".repeat(lines)),
            ("b.md".to_owned(), "b\n".to_owned()),
        ])
    }

    #[test]
    fn the_list_of_exceptions_only_shrinks() {
        let list = accept(texts(2).iter(), None);
        assert!(list.ends_with("\nwording 2 a.rs\n"), "{list}");
        let found = |lines, list: &str| -> Vec<String> {
            let found = check(texts(lines).iter(), list);
            found.iter().map(|f| format!("{}:{}: {:?}", f.path, f.line, f.rule)).collect()
        };
        assert_eq!(found(2, &list), Vec::<String>::new());
        assert_eq!(found(3, &list).len(), 3, "each line may be the new one");
        assert_eq!(found(1, &list), ["xtask/prose.txt:2: Exception"]);
        assert_eq!(accept(texts(3).iter(), Some(&list)), list);
        let lower = accept(texts(1).iter(), Some(&list));
        assert!(lower.ends_with("\nwording 1 a.rs\n"), "{lower}");
        assert_eq!(found(1, &lower), Vec::<String>::new());
        let empty = accept(texts(0).iter(), Some(&list));
        assert_eq!(accept(texts(1).iter(), Some(&empty)), empty, "no line is added");
        assert_eq!(found(0, "wording two a.rs\n"), ["xtask/prose.txt:1: Exception"]);
    }

    #[test]
    fn subjects_of_commits_have_at_most_72_characters() {
        let commits = [format!("1a\t{}", "µ".repeat(72)), format!("2b\t{}", "x".repeat(73))];
        let found = check_subjects(commits.iter().map(String::as_str));
        assert_eq!(found.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["commit 2b"]);
    }
}
