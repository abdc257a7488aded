//! Documents: the README is one page, the links of documents lead somewhere, and the documentation
//! site has every document.
//!
//! Links are Markdown's `[text](target)`, and `src` and `srcset` of pictures, outside of code. A
//! target within the repository must exist, and so must the heading that it names. Leaves out:
//! pages of other sites. Read [`check`] first.

use super::{Finding, Rule};
use std::collections::{BTreeMap, BTreeSet};

/// Table of contents of the site, in the repository.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// The page that readers see first.
const README: &str = "README.md";
/// Maximum number of lines of the README.
const README_LINES_MAX: usize = 120;

/// Checks all documents among `texts` (by path). `paths` are all files of the repository.
pub(super) fn check(texts: &BTreeMap<String, String>, paths: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let documents = texts.iter().filter(|(path, _)| path.ends_with(".md"));
    for (path, text) in documents {
        let lines = text.lines().count();
        if path == README && lines > README_LINES_MAX {
            let message =
                format!("{lines} lines: at most {README_LINES_MAX}; what does not fit belongs into docs/");
            findings.push(Finding::new(path, README_LINES_MAX + 1, Rule::OnePage, message));
        }
        for (line, target) in links(text) {
            if let Some(message) = broken(path, &target, texts, paths) {
                findings.push(Finding::new(path, line, Rule::Link, message));
            }
        }
    }
    findings.extend(unlisted(texts));
    findings
}

/// Paths of the pages that the table of contents lists, from the repository's root.
pub(crate) fn chapters(summary: &str) -> Vec<String> {
    links(summary).into_iter().filter_map(|(_, target)| resolve(SUMMARY, &target)).collect()
}

/// Documents that the site's table of contents does not list exactly once.
fn unlisted(texts: &BTreeMap<String, String>) -> Vec<Finding> {
    let Some(summary) = texts.get(SUMMARY) else { return Vec::new() };
    let listed = chapters(summary);
    let is_missing = |path: &&String| {
        let count = listed.iter().filter(|chapter| chapter == path).count();
        path.ends_with(".md") && *path != SUMMARY && count != 1
    };
    let finding = |path: &String| {
        Finding::new(path, 1, Rule::Summary, format!("has to stand in {SUMMARY}, once, to be in the site"))
    };
    texts.keys().filter(is_missing).map(finding).collect()
}

/// Reason why a link's target does not exist; `None` for a good link.
fn broken(
    from: &str,
    target: &str,
    texts: &BTreeMap<String, String>,
    paths: &BTreeSet<String>,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { from.to_owned() } else { resolve(from, file)? };
    let folder = format!("{path}/");
    if !path.is_empty() && !paths.contains(&path) && !paths.iter().any(|p| p.starts_with(&folder)) {
        return Some(format!("`{target}`: no file or folder `{path}`"));
    }
    let text = texts.get(&path).filter(|_| !heading.is_empty() && path.ends_with(".md"))?;
    (!anchors(text).contains(heading)).then(|| format!("`{target}`: no heading of {path} gives `#{heading}`"))
}

/// A path relative to the file `from`, as a path from the repository's root; `None` if it leads out
/// of the repository.
pub(crate) fn resolve(from: &str, target: &str) -> Option<String> {
    let mut at: Vec<&str> = from.split('/').collect();
    at.pop();
    for step in target.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(at.pop()?),
            name => at.push(name),
        }
    }
    Some(at.join("/"))
}

/// Lines with all code taken out, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        if fenced || line.starts_with("    ") {
            return None;
        }
        Some((i + 1, line.to_owned()))
    })
}

/// Targets of links and pictures, with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Code spans are every second piece between backticks; a link's text may hold one.
        let spans = line.split('`').enumerate().map(|(i, piece)| if i % 2 == 0 { piece } else { "" });
        let line: String = spans.collect::<Vec<_>>().join("`");
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            for rest in line.split(open).skip(1) {
                if let Some((target, _)) = rest.split_once(close) {
                    let target = target.split_whitespace().next().unwrap_or_default();
                    found.push((number, target.to_owned()));
                }
            }
        }
    }
    found
}

/// The anchors that a document's headings have, as code forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let slug = |title: &str| -> String {
        let kept = title
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .collect::<String>();
        kept.replace(' ', "-")
    };
    headings.map(|(_, line)| slug(line.trim_start_matches('#').trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(documents: &[(&str, &str)]) -> Vec<String> {
        let texts: BTreeMap<String, String> =
            documents.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect();
        let paths = texts.keys().cloned().collect();
        check(&texts, &paths).iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.rule.name())).collect()
    }

    #[test]
    fn the_readme_is_one_page() {
        assert!(of(&[(README, &"a\n".repeat(README_LINES_MAX))]).is_empty());
        let findings = of(&[(README, &"a\n".repeat(README_LINES_MAX + 1))]);
        assert_eq!(findings, ["README.md:121: one-page"]);
        assert!(of(&[("docs/a.md", &"a\n".repeat(900))]).is_empty());
    }

    #[test]
    fn each_document_is_listed_once_in_the_summary() {
        let a = ("docs/a.md", "");
        assert!(of(&[(SUMMARY, "- [A](a.md)\n"), a]).is_empty());
        assert_eq!(of(&[(SUMMARY, "# Summary\n"), a]), ["docs/a.md:1: summary"]);
        assert_eq!(of(&[(SUMMARY, "- [A](a.md)\n- [B](a.md)\n"), a]), ["docs/a.md:1: summary"]);
    }

    #[test]
    fn links_to_missing_files_and_headings_are_found() {
        let there = ("docs/b.md", "# One, two: `three`\n");
        let good = "[b](b.md) [b](../docs/b.md#one-two-three) [r](../docs) [me](#top)\n# Top\n<img src=\"b.md\">\n\
                    [x](https://example.org/none) `[c](none.md)`\n```\n[c](none.md)\n```\n";
        assert_eq!(of(&[("docs/a.md", good), there]), Vec::<String>::new());
        for bad in
            ["[c](none.md)", "[b](b.md#four)", "<source srcset=\"none.svg\">", "[`c`](none)", "[n](#none)"]
        {
            assert_eq!(of(&[("docs/a.md", bad), there]), ["docs/a.md:1: link"], "{bad}");
        }
    }
}
