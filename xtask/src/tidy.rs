//! `cargo xtask tidy`: the house rules that neither the compiler nor clippy knows.
//!
//! The walls between rooms come from the table in ARCHITECTURE.md, which is thereby always true. The other rules look
//! at the text of the files that git knows. A finding is one line: `path:line: rule: what, and what to do`. A line that
//! has to break a rule says `tidy-allow: rule` and why.
//!
//! Leaves out: formatting and lints (`cargo fmt`, `cargo clippy`). Read [`Rule`] and [`Table`] first.

mod documents;

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arguments of `cargo xtask tidy`.
#[derive(clap::Args)]
pub struct Args {
    /// The repository's root; found from here if left out.
    #[arg(long)]
    root: Option<PathBuf>,
}

/// What is checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// A dependency between rooms that ARCHITECTURE.md's table does not allow.
    Edge,
    /// A system that uses a system or a driver, in the table or in fact.
    Wall,
    /// A room without a row in the table, or a row without a room.
    Table,
    /// A module that does not open with `//!`.
    ModuleDoc,
    /// A doc example that is not compiled.
    IgnoredExample,
    /// A room below the drivers that lifts the ban on clocks, files, sockets or unordered tables.
    LiftedBan,
    /// Unfinished code.
    Unfinished,
    /// A test that is skipped without a reason, or that passes on any panic.
    LooseTest,
    /// A path of somebody's machine.
    MachinePath,
    /// A README that is longer than a page.
    OnePage,
    /// A link of a document that leads nowhere.
    Link,
    /// A file too long to read in one go. Only a warning.
    LongFile,
}

impl Rule {
    fn name(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Wall => "wall",
            Self::Table => "table",
            Self::ModuleDoc => "module-doc",
            Self::IgnoredExample => "ignored-example",
            Self::LiftedBan => "lifted-ban",
            Self::Unfinished => "unfinished",
            Self::LooseTest => "loose-test",
            Self::MachinePath => "machine-path",
            Self::OnePage => "one-page",
            Self::Link => "link",
            Self::LongFile => "long-file",
        }
    }
    fn is_warning(self) -> bool {
        self == Self::LongFile
    }
}

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    rule: Rule,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: Rule, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let warning = if self.rule.is_warning() { "warning: " } else { "" };
        write!(f, "{}:{}: {warning}{}: {}", self.path, self.line, self.rule.name(), self.message)
    }
}

/// Where the table is.
const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// What packages of rooms begin with.
const PREFIX: &str = "anabranch-";
/// The longest file that raises no warning.
const FILE_LINES_MAX: usize = 1_000;

/// Checks the repository and prints what is wrong.
///
/// Errors: findings that are not only warnings; a repository that cannot be read.
pub fn run(args: Args) -> anyhow::Result<()> {
    let metadata = match &args.root {
        Some(root) => cargo_metadata::MetadataCommand::new().manifest_path(root.join("Cargo.toml")).exec(),
        None => cargo_metadata::MetadataCommand::new().exec(),
    };
    let metadata = metadata.context("cargo metadata failed")?;
    let root = args.root.unwrap_or_else(|| metadata.workspace_root.clone().into());

    let architecture = std::fs::read_to_string(root.join(ARCHITECTURE))
        .with_context(|| format!("cannot read {ARCHITECTURE} in {}", root.display()))?;
    let (table, mut findings) = Table::parse(&architecture);
    findings.extend(check_walls(&table));
    let rooms = rooms(&metadata, &root)?;
    findings.extend(check_rooms(&table, &rooms));

    let files = known_files(&root)?;
    let count = files.len();
    let mut documents = BTreeMap::new();
    for path in &files {
        // Deleted but not yet committed, or no text: nothing to check.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        findings.extend(check_file(&table, path, &text));
        if path.ends_with(".md") {
            documents.insert(path.clone(), text);
        }
    }
    findings.extend(documents::check(&documents, &files.into_iter().collect()));

    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|f| !f.rule.is_warning()).count();
    eprintln!("tidy: {count} files, {errors} errors, {} warnings", findings.len() - errors);
    if errors > 0 {
        bail!("{errors} house rules broken; {ARCHITECTURE} and CONTRIBUTING.md say why they stand");
    }
    Ok(())
}

/// The files that git tracks or would track.
fn known_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a tracked file's name is not UTF-8")?;
    Ok(names.split('\0').filter(|n| !n.is_empty()).map(str::to_owned).collect())
}

/// The kinds of room that the table knows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Pure,
    Network,
    System,
    Driver,
    Service,
    Top,
    Tool,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pure" => Self::Pure,
            "network" => Self::Network,
            "system" => Self::System,
            "driver" => Self::Driver,
            "service" => Self::Service,
            "top" => Self::Top,
            "tool" => Self::Tool,
            _ => return None,
        })
    }
    /// Whether rooms of this kind may read clocks, files and sockets.
    fn meets_the_machine(self) -> bool {
        matches!(self, Self::Driver | Self::Service | Self::Top | Self::Tool)
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    line: usize,
    kind: Kind,
    may_use: Vec<String>,
}

/// The table of rooms in ARCHITECTURE.md: the one whose header has the columns `room`, `kind` and `may use`.
#[derive(Debug, Default)]
struct Table {
    rows: BTreeMap<String, Row>,
}

impl Table {
    fn parse(text: &str) -> (Self, Vec<Finding>) {
        let (mut table, mut findings) = (Self::default(), Vec::new());
        let mut bad = |line: usize, message: String| {
            findings.push(Finding::new(ARCHITECTURE, line, Rule::Table, message));
        };
        let mut columns: Option<[usize; 3]> = None;
        for (i, line) in text.lines().enumerate() {
            let Some(inner) = line.trim().strip_prefix('|').and_then(|l| l.strip_suffix('|')) else {
                columns = None;
                continue;
            };
            let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
            let Some([room, kind, may_use]) = columns else {
                let find = |name: &str| cells.iter().position(|c| *c == name);
                if let (Some(room), Some(kind), Some(may_use)) = (find("room"), find("kind"), find("may use"))
                {
                    columns = Some([room, kind, may_use]);
                }
                continue;
            };
            if cells.iter().all(|c| !c.is_empty() && c.chars().all(|c| matches!(c, '-' | ':'))) {
                continue;
            }
            let cell = |at: usize| cells.get(at).copied().unwrap_or("");
            let names = backticked(cell(room));
            let [name] = names.as_slice() else {
                bad(i + 1, format!("`{}` is not one room's name in backticks", cell(room)));
                continue;
            };
            let Some(kind) = Kind::parse(cell(kind)) else {
                bad(
                    i + 1,
                    format!(
                        "kind `{}`: must be pure, network, system, driver, service, top or tool",
                        cell(kind)
                    ),
                );
                continue;
            };
            let row = Row { line: i + 1, kind, may_use: backticked(cell(may_use)) };
            if table.rows.insert(name.clone(), row).is_some() {
                bad(i + 1, format!("room `{name}` has two rows: keep one"));
            }
        }
        if table.rows.is_empty() {
            bad(1, "no table with the columns `room`, `kind` and `may use`".to_owned());
        }
        let unknown = table.rows.values().flat_map(|row| row.may_use.iter().map(|used| (row.line, used)));
        let unknown: Vec<_> = unknown.filter(|(_, used)| !table.rows.contains_key(*used)).collect();
        findings.extend(unknown.into_iter().map(|(line, used)| {
            Finding::new(ARCHITECTURE, line, Rule::Table, format!("`{used}` has no row of its own"))
        }));
        (table, findings)
    }
}

/// The names that stand in backticks.
fn backticked(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A room as cargo sees it.
#[derive(Clone, Debug)]
struct Room {
    name: String,
    /// Its manifest, relative to the root.
    manifest: String,
    /// The rooms it uses, and the line of the manifest that says so; dev-dependencies are left out.
    uses: Vec<(String, usize)>,
}

fn rooms(metadata: &cargo_metadata::Metadata, root: &Path) -> anyhow::Result<Vec<Room>> {
    let room = |package: &str| package.strip_prefix(PREFIX).unwrap_or(package).to_owned();
    let members = metadata.workspace_packages();
    let names: Vec<&str> = members.iter().map(|p| p.name.as_str()).collect();
    let of = |package: &&cargo_metadata::Package| {
        let path = package.manifest_path.as_std_path();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let dependencies = package.dependencies.iter().filter(|d| {
            d.kind != cargo_metadata::DependencyKind::Development && names.contains(&d.name.as_str())
        });
        let uses = dependencies.map(|d| (room(&d.name), line_of(&text, &d.name)));
        let relative = path.strip_prefix(root).unwrap_or(path);
        Ok(Room { name: room(&package.name), manifest: relative.display().to_string(), uses: uses.collect() })
    };
    members.iter().map(of).collect()
}

/// The line of a manifest that names a dependency, outside its dev-dependencies; 1 if there is none.
fn line_of(manifest: &str, package: &str) -> usize {
    let mut in_dev = false;
    for (i, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            in_dev = line.contains("dev-dependencies");
        }
        let rest = line.trim_start().strip_prefix(package);
        if !in_dev && rest.is_some_and(|r| r.starts_with(['.', ' ', '='])) {
            return i + 1;
        }
    }
    1
}

/// The table's own walls: a system beside systems, and below drivers.
fn check_walls(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, row) in &table.rows {
        for used in &row.may_use {
            let Some(other) = table.rows.get(used) else { continue };
            if let Some(message) = wall(name, row.kind, used, other.kind) {
                findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Wall, message));
            }
        }
    }
    findings
}

fn wall(name: &str, kind: Kind, used: &str, other: Kind) -> Option<String> {
    match (kind, other) {
        (Kind::System, Kind::Driver) => {
            Some(format!("system `{name}` uses driver `{used}`: return a machine and let the driver take it"))
        }
        (Kind::System, Kind::System) => {
            Some(format!("system `{name}` uses system `{used}`: move what they share into a room below"))
        }
        (Kind::Driver, Kind::System) => {
            Some(format!("driver `{name}` uses system `{used}`: take any machine, and join them in the cli"))
        }
        (
            Kind::Pure,
            Kind::Network | Kind::System | Kind::Driver | Kind::Service | Kind::Top | Kind::Tool,
        )
        | (Kind::Network, Kind::System | Kind::Driver | Kind::Service | Kind::Top | Kind::Tool)
        | (Kind::System | Kind::Driver, Kind::Service | Kind::Top | Kind::Tool)
        | (Kind::Service, Kind::Top | Kind::Tool) => {
            Some(format!("`{name}` uses `{used}`, which stands above it: arrows go down only"))
        }
        _ => None,
    }
}

/// The rooms and their dependencies against the table.
fn check_rooms(table: &Table, rooms: &[Room]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for room in rooms {
        let Some(row) = table.rows.get(&room.name) else {
            let message = format!("room `{}` has no row in {ARCHITECTURE}'s table: add one", room.name);
            findings.push(Finding::new(&room.manifest, 1, Rule::Table, message));
            continue;
        };
        for (used, line) in &room.uses {
            if !row.may_use.contains(used) {
                let message = format!(
                    "`{}` may not use `{used}`: {ARCHITECTURE}:{} allows it {}",
                    room.name,
                    row.line,
                    if row.may_use.is_empty() { "no room".to_owned() } else { row.may_use.join(", ") }
                );
                findings.push(Finding::new(&room.manifest, *line, Rule::Edge, message));
            }
            let other = table.rows.get(used).map(|r| r.kind);
            if let Some(message) = other.and_then(|other| wall(&room.name, row.kind, used, other)) {
                findings.push(Finding::new(&room.manifest, *line, Rule::Wall, message));
            }
        }
    }
    for (name, row) in &table.rows {
        if !rooms.iter().any(|r| r.name == *name) {
            let message = format!("room `{name}` is not in the workspace: move its row to the planned rooms");
            findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Table, message));
        }
    }
    findings
}

/// The rules that look at one file.
fn check_file(table: &Table, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = check_machine_paths(path, text);
    if path.ends_with(".rs") {
        let code = code_only(text);
        findings.extend(check_module_doc(path, text));
        findings.extend(check_examples(path, text));
        findings.extend(check_code(path, &code));
        if !may_lift_bans(table, path) {
            findings.extend(check_bans(path, &code));
        }
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            let message = format!("{lines} lines, more than {FILE_LINES_MAX}: cut it where a reader would");
            findings.push(Finding::new(path, lines, Rule::LongFile, message));
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    findings.retain(|f| {
        let allowed = format!("tidy-allow: {}", f.rule.name());
        !lines.get(f.line - 1).is_some_and(|line| line.contains(&allowed))
    });
    findings
}

/// Integration tests, examples and benches are nobody's dependency: they may meet the machine in every room.
fn may_lift_bans(table: &Table, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let (room, inside) = match parts.as_slice() {
        ["crates", room, inside, ..] => (*room, *inside),
        [room, inside, ..] => (*room, *inside),
        _ => return false,
    };
    let is_outside = matches!(inside, "tests" | "examples" | "benches" | "build.rs");
    is_outside || table.rows.get(room).is_some_and(|row| row.kind.meets_the_machine())
}

fn check_module_doc(path: &str, text: &str) -> Vec<Finding> {
    let first = text.lines().position(|l| !l.trim().is_empty());
    let documented = first.is_some_and(|i| text.lines().nth(i).is_some_and(|l| l.trim().starts_with("//!")));
    let message = "opens without `//!`: say what the module is, what it leaves out, what to read first";
    if documented {
        Vec::new()
    } else {
        vec![Finding::new(path, first.map_or(1, |i| i + 1), Rule::ModuleDoc, message)]
    }
}

fn check_examples(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let doc = line.trim_start();
        let Some(doc) = doc.strip_prefix("///").or_else(|| doc.strip_prefix("//!")) else { continue };
        let Some(info) = doc.trim_start().strip_prefix("```") else { continue };
        if info.split([',', ' ']).any(|word| word.trim().starts_with("ignore")) {
            let message =
                "doc example is never compiled: drop `ignore`, or use `no_run` where root or TUN is needed";
            findings.push(Finding::new(path, i + 1, Rule::IgnoredExample, message));
        }
    }
    findings
}

fn check_code(path: &str, code: &str) -> Vec<Finding> {
    let rules = [
        ("todo!", Rule::Unfinished, "unfinished: write it, or return an error that says it is not there"),
        (
            "unimplemented!",
            Rule::Unfinished,
            "unfinished: write it, or return an error that says it is not there",
        ),
        ("#[ignore]", Rule::LooseTest, "skipped without a reason: write #[ignore = \"why\"], or let it run"),
        ("#[should_panic", Rule::LooseTest, "passes on any panic: return an error and assert on it"),
    ];
    let mut findings = Vec::new();
    for (i, line) in code.lines().enumerate() {
        for (pattern, rule, message) in rules {
            let found = line.match_indices(pattern).any(|(at, _)| {
                !pattern.starts_with(char::is_alphabetic) || {
                    let before = line[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
                }
            });
            if found {
                findings.push(Finding::new(path, i + 1, rule, message));
            }
        }
    }
    findings
}

fn check_bans(path: &str, code: &str) -> Vec<Finding> {
    let lifted = |line: &str| line.contains("clippy::disallowed_");
    let message =
        "only rooms that the table calls driver, service, top or tool may lift this: let a driver do it";
    let lines = code.lines().enumerate().filter(|(_, line)| lifted(line));
    lines.map(|(i, _)| Finding::new(path, i + 1, Rule::LiftedBan, message)).collect()
}

/// Folders that are some machine's, put together so that this file does not hold them.
const MACHINE_FOLDERS: [&str; 7] = [
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "home/"),
    concat!("/", "Users/"),
    concat!("/", "tmp/"),
    concat!("/", "var/tmp/"),
    concat!("/", "workspace/"),
];

fn check_machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            // `src/…` and `https://host/…` go on from something; a machine's path begins.
            let begins = |at: usize| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "_-.~/}>)*".contains(c))
            };
            if line.match_indices(folder).any(|(at, _)| begins(at)) {
                let message = format!("`{folder}…` is one machine's: use a path from the repository's root");
                findings.push(Finding::new(path, i + 1, Rule::MachinePath, message));
                break;
            }
        }
    }
    findings
}

/// The text with comments and the insides of literals turned into spaces, line by line as before.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    while i < chars.len() {
        let c = chars[i];
        let next = chars.get(i + 1).copied();
        let end = match (c, next) {
            ('/', Some('/')) => chars[i..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| i + n),
            ('/', Some('*')) => block_comment_end(&chars, i),
            ('"', _) => string_end(&chars, i + 1),
            ('r', Some('"' | '#')) if !continues_a_word(&chars, i) => match raw_string_end(&chars, i + 1) {
                Some(end) => end,
                None => i,
            },
            ('\'', _) => char_end(&chars, i).unwrap_or(i),
            _ => i,
        };
        if end > i {
            chars[i..end].iter().for_each(|c| blank(&mut out, *c));
            i = end;
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

/// Whether the character at `i` is inside or at the end of a longer word; `b` and `c` before a raw string are not.
fn continues_a_word(chars: &[char], i: usize) -> bool {
    let word = |c: &char| c.is_alphanumeric() || *c == '_';
    match i.checked_sub(1).map(|before| chars[before]) {
        Some('b' | 'c') => i >= 2 && word(&chars[i - 2]),
        Some(c) => word(&c),
        None => false,
    }
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0usize, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

/// One past the closing quote of a string whose inside begins at `i`.
fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// One past the end of a raw string whose `#`s or quote begin at `i`; `None` if none begins there.
fn raw_string_end(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
    if chars.get(i + hashes) != Some(&'"') {
        return None;
    }
    let mut at = i + hashes + 1;
    while at < chars.len() {
        let closes = chars[at] == '"'
            && chars.len() > at + hashes
            && chars[at + 1..=at + hashes].iter().all(|c| *c == '#');
        if closes {
            return Some(at + hashes + 1);
        }
        at += 1;
    }
    Some(chars.len())
}

/// One past a character literal at `i`; `None` for a lifetime.
fn char_end(chars: &[char], i: usize) -> Option<usize> {
    match (chars.get(i + 1)?, chars.get(i + 2)) {
        ('\\', Some(_)) => {
            let close = chars[i + 3..].iter().take(10).position(|c| *c == '\'')?;
            Some(i + 3 + close + 1)
        }
        (_, Some('\'')) => Some(i + 3),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
