//! `cargo xtask tidy`: the house rules that neither the compiler nor clippy checks.
//!
//! The allowed dependencies between rooms come from the table in ARCHITECTURE.md, which is
//! therefore always up to date. The other rules look at the text of the files that git tracks. A
//! finding is one line: `path:line: rule: problem and remedy`. A line that has to break a rule says
//! `tidy-allow: rule` and why.
//!
//! Leaves out: formatting and lints (`cargo fmt`, `cargo clippy`). Read [`Rule`] and
//! [`walls::Table`] first.

mod circles;
mod code;
mod deny;
mod dependencies;
pub(crate) mod documents;
mod limits;
mod prose;
mod quantities;
mod rooms;
pub(crate) mod sample;
mod systems;
mod walls;

use anyhow::{Context, bail};
use cargo_metadata::{Metadata, MetadataCommand};
use code::code_only;
use dependencies::{Crates, check_named};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use walls::{ARCHITECTURE, Table, check_rooms, check_walls, rooms};

/// Location of the repository.
#[derive(clap::Args)]
pub struct Repository {
    /// The repository's root; found from here if left out.
    #[arg(long)]
    root: Option<PathBuf>,
}

/// Arguments of `cargo xtask tidy`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Repository,
    /// Rewrite the lists of exceptions of the limits and of plain English: their lines may shrink,
    /// disappear or follow moved items.
    #[arg(long)]
    accept: bool,
}

/// Rule that is checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// A dependency between rooms that ARCHITECTURE.md's table does not allow.
    Edge,
    /// A dependency that the table allows and no manifest uses.
    Grant,
    /// A dependency of a manifest that no line of the room names.
    Unnamed,
    /// A third-party crate in a pure, network or proto room that ARCHITECTURE.md does not list.
    Crate,
    /// An external crate whose licence, source or name deny.toml does not allow.
    Deny,
    /// A dependency that no table may allow: of a proto on a proto or a driver, of a service on
    /// another system.
    Wall,
    /// A room without a row in the table, or a row without a room.
    Table,
    /// Files of a room that use each other in a ring.
    Circle,
    /// A picture of the rooms that differs from the manifests.
    Picture,
    /// A module that does not open with `//!`.
    ModuleDoc,
    /// A doc example that is not compiled.
    IgnoredExample,
    /// A room below the drivers that lifts the ban on clocks, files, sockets or unordered tables.
    LiftedBan,
    /// A quantity in JSON or in a table whose name does not end in the house's unit.
    Quantity,
    /// Unfinished code.
    Unfinished,
    /// A test that is skipped without a reason, or that passes on any panic.
    LooseTest,
    /// A path that exists only on somebody's machine.
    MachinePath,
    /// A README that is longer than a page.
    OnePage,
    /// A link of a document to a missing file or heading.
    Link,
    /// A document that the documentation site does not list.
    Summary,
    /// A room below the services that names a system, or a system that touches too many files.
    Systems,
    /// A file with more lines than its limit.
    LongFile,
    /// A function with more lines than its limit.
    LongFunction,
    /// A struct with more fields than its limit.
    WideStruct,
    /// A file with more tuned constants than its limit.
    TunedConstants,
    /// An exception of a limit or of plain English that is larger than needed.
    Exception,
    /// A comment or a line of a document whose wording readers stumble over.
    Wording,
    /// A comment without content.
    Filler,
    /// A comment line with more columns than its limit.
    WideComment,
    /// A test whose name has more words than its limit.
    TestName,
    /// A commit whose subject is longer than its limit.
    Subject,
}

impl Rule {
    fn name(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Grant => "grant",
            Self::Unnamed => "unnamed",
            Self::Crate => "crate",
            Self::Deny => "deny",
            Self::Wall => "wall",
            Self::Table => "table",
            Self::Circle => "circle",
            Self::Picture => "picture",
            Self::ModuleDoc => "module-doc",
            Self::IgnoredExample => "ignored-example",
            Self::LiftedBan => "lifted-ban",
            Self::Quantity => "quantity",
            Self::Unfinished => "unfinished",
            Self::LooseTest => "loose-test",
            Self::MachinePath => "machine-path",
            Self::OnePage => "one-page",
            Self::Link => "link",
            Self::Summary => "summary",
            Self::Systems => "systems",
            Self::LongFile => "long-file",
            Self::LongFunction => "long-function",
            Self::WideStruct => "wide-struct",
            Self::TunedConstants => "tuned-constants",
            Self::Exception => "exception",
            Self::Wording => "wording",
            Self::Filler => "filler",
            Self::WideComment => "wide-comment",
            Self::TestName => "test-name",
            Self::Subject => "subject",
        }
    }
}

/// A violation of one rule.
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
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule.name(), self.message)
    }
}

/// Draws the picture of the rooms and writes it.
///
/// Errors: the repository cannot be read or written.
pub fn draw(place: Repository) -> anyhow::Result<()> {
    let (metadata, root) = metadata(place)?;
    let architecture = std::fs::read_to_string(root.join(ARCHITECTURE))
        .with_context(|| format!("cannot read {ARCHITECTURE} in {}", root.display()))?;
    let (table, _) = Table::parse(&architecture);
    let path = root.join(rooms::PICTURE);
    std::fs::write(&path, rooms::draw(&table, &rooms(&metadata, &root)?))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns cargo's description of the workspace, and the workspace's root.
fn metadata(place: Repository) -> anyhow::Result<(Metadata, PathBuf)> {
    let mut command = MetadataCommand::new();
    if let Some(root) = &place.root {
        command.manifest_path(root.join("Cargo.toml"));
    }
    let metadata = command.exec().context("cargo metadata failed")?;
    let root = place.root.unwrap_or_else(|| metadata.workspace_root.clone().into());
    Ok((metadata, root))
}

/// Checks the repository and prints the findings.
///
/// Errors: findings; a repository that cannot be read.
pub fn run(args: Args) -> anyhow::Result<()> {
    let (metadata, root) = metadata(args.place)?;

    let architecture = std::fs::read_to_string(root.join(ARCHITECTURE))
        .with_context(|| format!("cannot read {ARCHITECTURE} in {}", root.display()))?;
    let (table, mut findings) = Table::parse(&architecture);
    findings.extend(check_walls(&table));
    let rooms = rooms(&metadata, &root)?;
    findings.extend(check_rooms(&table, &rooms));
    findings.extend(Crates::parse(&architecture).check(&table, &rooms));

    if std::fs::read_to_string(root.join(rooms::PICTURE)).ok() != Some(rooms::draw(&table, &rooms)) {
        findings.push(Finding::new(rooms::PICTURE, 1, Rule::Picture, "stale: run `cargo xtask rooms`"));
    }

    let allowed = std::fs::read_to_string(root.join(deny::DENY))
        .with_context(|| format!("cannot read {} in {}", deny::DENY, root.display()))?;
    findings.extend(deny::check(&allowed, &metadata));

    let files = known_files(&root)?;
    let count = files.len();
    let (mut documents, mut sources, mut others) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for path in &files {
        // Deleted but not yet committed, or no text: nothing to check.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        findings.extend(check_file(&table, path, &text));
        if path.ends_with(".md") {
            documents.insert(path.clone(), text);
        } else if path.ends_with(".rs") {
            sources.insert(path.clone(), text);
        } else if prose::has_prose(path) {
            others.insert(path.clone(), text);
        }
    }
    findings.extend(check_named(&rooms, &sources));
    findings.extend(circles::check(&sources));
    let contributing = documents.get(systems::CONTRIBUTING).map_or("", String::as_str);
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    findings.extend(systems::check(&table, contributing, &sources, &read));
    let all = || documents.iter().chain(&sources).chain(&others);
    if args.accept {
        rewrite(&root.join(limits::EXCEPTIONS), |list| limits::accept(&sources, list))?;
        rewrite(&root.join(prose::EXCEPTIONS), |list| prose::accept(all(), list))?;
    }
    findings.extend(limits::check(&sources, &read(limits::EXCEPTIONS).unwrap_or_default()));
    findings.extend(prose::check(all(), &read(prose::EXCEPTIONS).unwrap_or_default()));
    findings.extend(prose::check_subjects(subjects(&root).lines()));
    findings.extend(documents::check(&documents, &files.into_iter().collect()));

    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.len();
    eprintln!("tidy: {count} files, {errors} errors");
    if errors > 0 {
        bail!("{errors} house rules broken; {ARCHITECTURE} and CONTRIBUTING.md say why they stand");
    }
    Ok(())
}

/// Rewrites a list of exceptions, starting from the existing list.
fn rewrite(path: &Path, accept: impl FnOnce(Option<&str>) -> String) -> anyhow::Result<()> {
    let list = std::fs::read_to_string(path).ok();
    std::fs::write(path, accept(list.as_deref())).with_context(|| format!("cannot write {}", path.display()))
}

/// Hash and subject of each commit whose subject is checked. Empty without git, or if the history
/// does not reach back to [`prose::FIRST_PARENT`].
fn subjects(root: &Path) -> String {
    let range = format!("{}..HEAD", prose::FIRST_PARENT);
    let output = std::process::Command::new("git")
        .args(["log", "--no-merges", "--format=%h%x09%s", &range])
        .current_dir(root)
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => String::new(),
    }
}

/// The files that git tracks or would track.
pub(crate) fn known_files(root: &Path) -> anyhow::Result<Vec<String>> {
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

/// The rules that look at one file.
fn check_file(table: &Table, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = check_machine_paths(path, text);
    if path.ends_with(".rs") {
        let code = code_only(text);
        findings.extend(check_module_doc(path, text));
        findings.extend(check_examples(path, text));
        findings.extend(check_code(path, &code));
        findings.extend(quantities::check(path, text, &code));
        if !may_lift_bans(table, path) {
            findings.extend(check_bans(path, &code));
        }
    } else if path.ends_with(".csv") {
        findings.extend(quantities::check_columns(path, text));
    }
    let lines: Vec<&str> = text.lines().collect();
    findings.retain(|f| {
        let allowed = format!("tidy-allow: {}", f.rule.name());
        !lines.get(f.line - 1).is_some_and(|line| line.contains(&allowed))
    });
    findings
}

/// Returns whether the code at `path` may read clocks and files. Integration tests, examples and
/// benches may in every room, because no room depends on them.
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

/// Folders that exist only on certain machines. They are concatenated, so that this file does not
/// contain them.
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
            // A machine's path must begin here. In `src/…` and `https://host/…` the folder
            // continues a longer path.
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

#[cfg(test)]
mod tests;
