//! `cargo xtask site`: the documentation site, built by mdBook from docs/ and from the code.
//!
//! mdBook needs all pages below one folder. So the pages that `docs/SUMMARY.md` lists, and the
//! files to which they link, are copied below `target/site-pages` with the same relative paths. The
//! command writes the reference pages there (`anabranch docs reference`). Pictures that have a dark
//! twin, `NAME-dark.svg`, follow the reader's theme. At the end each link of the site is checked.
//!
//! Leaves out: links to other sites. Read [`run`] first.

use crate::tidy::documents::{SUMMARY, chapters, links, resolve};
use crate::tidy::known_files;
use anyhow::{Context as _, bail, ensure};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Line of the table of contents that marks the place of the generated pages.
const REFERENCE_MARK: &str = "<!-- reference -->";
const MDBOOK_VERSION: &str = "0.5.4";

/// Arguments of `cargo xtask site`.
#[derive(clap::Args)]
pub struct Args {
    /// The command that writes the reference.
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
}

/// Builds the site at `target/site`.
///
/// Errors: mdBook cannot be installed or fails; dead links, one a line.
pub fn run(args: Args) -> anyhow::Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().context("xtask stands in the repository")?;
    let (book, site) = (root.join("target/site-pages"), root.join("target/site"));
    let pages = book.join("src");
    if book.exists() {
        std::fs::remove_dir_all(&book).context("target/site-pages")?;
    }
    let files: BTreeSet<String> = known_files(root)?.into_iter().collect();
    let summary = std::fs::read_to_string(root.join(SUMMARY)).context(SUMMARY)?;
    for chapter in chapters(&summary) {
        copy_page(root, &pages, &chapter, &files)?;
    }
    for file in ["book.toml", "site.css"] {
        std::fs::copy(root.join("docs").join(file), book.join(file)).context(file)?;
    }
    done(Command::new(args.binary).args(["docs", "reference"]).arg(pages.join("reference")))?;
    let reference = std::fs::read_to_string(pages.join("reference/SUMMARY.md")).context("the reference")?;
    std::fs::remove_file(pages.join("reference/SUMMARY.md")).context("the reference")?;
    std::fs::write(pages.join("SUMMARY.md"), complete(&summary, &reference)).context("SUMMARY.md")?;
    let mdbook = mdbook(root)?;
    done(Command::new(mdbook).arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    let dead = dead_links(&site)?;
    dead.iter().for_each(|line| println!("{line}"));
    ensure!(dead.is_empty(), "{} dead links", dead.len());
    eprintln!("{} shows the site; any web server can serve its folder", site.join("index.html").display());
    Ok(())
}

/// Runs a command.
fn done(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Path of mdBook, which is installed below `target/tools` if it is not there.
fn mdbook(root: &Path) -> anyhow::Result<PathBuf> {
    let tools = root.join("target/tools");
    let path = tools.join("bin/mdbook");
    let is_there = Command::new(&path).arg("--version").output().is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).trim() == format!("mdbook v{MDBOOK_VERSION}")
    });
    if !is_there {
        // mdBook is built without its web server, which takes half of the build.
        let words = ["install", "mdbook", "--version", MDBOOK_VERSION, "--locked", "--no-default-features"];
        let more = ["--features", "search", "--root"];
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        done(Command::new(cargo).args(words).args(more).arg(tools).current_dir(root))?;
    }
    Ok(path)
}

/// The table of contents for mdBook: paths from the root, and the generated pages.
fn complete(summary: &str, reference: &str) -> String {
    let mut out = String::new();
    for line in summary.lines() {
        let target = line.rsplit_once("](").and_then(|(text, rest)| Some((text, rest.strip_suffix(')')?)));
        match target.and_then(|(text, target)| Some((text, resolve(SUMMARY, target)?))) {
            Some((text, path)) => writeln!(out, "{text}]({})", indexed(&path)),
            None if line == REFERENCE_MARK => write!(out, "{}", reference.replace("](", "](reference/")),
            None => writeln!(out, "{line}"),
        }
        .expect("a string takes any text");
    }
    out
}

/// Copies a page and the files to which it links.
fn copy_page(root: &Path, pages: &Path, path: &str, files: &BTreeSet<String>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
    let text = themed(path, &text, files);
    for (_, target) in links(&text) {
        let file = target.split('#').next().unwrap_or_default();
        let is_here = !target.contains("://") && !file.is_empty() && !file.ends_with(".md");
        let Some(linked) = resolve(path, file).filter(|_| is_here) else { continue };
        if files.contains(&linked) {
            copy(root, pages, &linked)?;
            continue;
        }
        // The link leads to a folder: its files are copied, and a page lists them.
        let below = format!("{linked}/");
        let mut list = format!("<!DOCTYPE html><title>{linked}</title>\n");
        for file in files.iter().filter(|file| file.starts_with(&below)) {
            copy(root, pages, file)?;
            let name = &file[below.len()..];
            writeln!(list, "<a href=\"{name}\">{name}</a><br>").expect("a string takes any text");
        }
        write_file(&pages.join(&linked).join("index.html"), &list)?;
    }
    write_file(&pages.join(indexed(path)), indexed_links(&text))
}

/// Path of a page in the site: mdBook makes each README.md the index of its folder, but does not
/// change the links to it.
fn indexed(path: &str) -> String {
    path.replace("README.md", "index.md")
}

/// The page with links to the paths that other pages have in the site.
fn indexed_links(text: &str) -> String {
    let link = Regex::new(r"(\]\([^)\s]*)README\.md").expect("a good pattern");
    link.replace_all(text, "${1}index.md").into_owned()
}

fn copy(root: &Path, pages: &Path, file: &str) -> anyhow::Result<()> {
    let bytes = std::fs::read(root.join(file)).with_context(|| file.to_owned())?;
    write_file(&pages.join(file), bytes)
}

fn write_file(path: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let write = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(path, bytes)
    };
    write().with_context(|| path.display().to_string())
}

/// The page with a pair in place of each picture that has a dark twin. The site's style shows one
/// picture of a pair.
fn themed(path: &str, text: &str, files: &BTreeSet<String>) -> String {
    let element = Regex::new(r#"<img alt="([^"]*)" src="([^"]*)">"#).expect("a good pattern");
    let markdown = Regex::new(r"!\[([^\]]*)\]\(([^)]*)\)").expect("a good pattern");
    let pair = |found: &regex::Captures<'_>| {
        let (alt, src) = (&found[1], &found[2]);
        let dark = src.replace(".svg", "-dark.svg");
        let is_pair = dark != src && resolve(path, &dark).is_some_and(|dark| files.contains(&dark));
        let image = |class: &str, src: &str| format!(r#"<img class="{class}" alt="{alt}" src="{src}">"#);
        if is_pair { image("on-light", src) + &image("on-dark", &dark) } else { found[0].to_owned() }
    };
    let is_choice = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("<source ") && !line.starts_with("<picture>") && !line.starts_with("</picture>")
    };
    let lines: Vec<_> = text.lines().filter(is_choice).collect();
    let text = lines.join("\n") + "\n";
    markdown.replace_all(&element.replace_all(&text, pair), pair).into_owned()
}

/// Links of the site's pages to files or headings that it does not have.
fn dead_links(site: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![site.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "html") {
                let name = path.strip_prefix(site)?.to_string_lossy().into_owned();
                pages.insert(name, std::fs::read_to_string(&path)?);
            }
        }
    }
    if !pages.contains_key("index.html") {
        bail!("mdBook wrote no index.html below {}", site.display());
    }
    let is_file = |path: &str| site.join(path).is_file() || site.join(path).join("index.html").is_file();
    Ok(dead_among(&pages, &is_file))
}

/// Dead links of `pages`, by path.
fn dead_among(pages: &BTreeMap<String, String>, is_file: &dyn Fn(&str) -> bool) -> Vec<String> {
    let target = Regex::new(r#"(?:href|src)="([^"]*)""#).expect("a good pattern");
    let id = Regex::new(r#"\b(?:id|name)="([^"]*)""#).expect("a good pattern");
    let ids: BTreeMap<&str, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, text)| {
            let found = id.captures_iter(text).filter_map(|found| found.get(1));
            (path.as_str(), found.map(|id| id.as_str()).collect())
        })
        .collect();
    let mut dead = Vec::new();
    // Links of the page for missing pages begin at the root of a server. Links of the sidebar are
    // loaded into other pages.
    for (path, text) in pages.iter().filter(|(path, _)| !["404.html", "toc.html"].contains(&path.as_str())) {
        for found in target.captures_iter(text) {
            let link = &found[1];
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = file.split('?').next().unwrap_or_default();
            let at = if file.is_empty() { Some(path.clone()) } else { resolve(path, file) };
            let is_there = at.as_deref().is_some_and(|at| {
                let has_heading = || ids.get(at).is_none_or(|ids| ids.contains(heading));
                is_file(at) && (heading.is_empty() || has_heading())
            });
            if !is_there {
                dead.push(format!("{path}: `{link}` leads nowhere"));
            }
        }
    }
    dead.sort();
    dead.dedup();
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_pages_replace_their_mark() {
        let summary = "# Summary\n\n[A](../README.md)\n- [B](b.md)\n<!-- reference -->\n";
        assert_eq!(chapters(summary), ["README.md", "docs/b.md"]);
        let whole = complete(summary, "- [C](c.md)\n  - [d](c/d.md)\n");
        let pages = "- [C](reference/c.md)\n  - [d](reference/c/d.md)\n";
        assert_eq!(whole, format!("# Summary\n\n[A](index.md)\n- [B](docs/b.md)\n{pages}"));
    }

    #[test]
    fn links_to_readmes_become_links_to_indices() {
        let links = "README.md [a](../README.md) [b](b/README.md#c) [d](README.txt)";
        assert_eq!(indexed_links(links), "README.md [a](../index.md) [b](b/index.md#c) [d](README.txt)");
    }

    #[test]
    fn pictures_with_a_dark_twin_become_a_pair() {
        let files = ["docs/a.svg", "docs/a-dark.svg", "docs/b.svg"].map(str::to_owned).into();
        let pair = "<img class=\"on-light\" alt=\"A\" src=\"a.svg\"><img class=\"on-dark\" alt=\"A\" src=\"a-dark.svg\">\n";
        let choice =
            "<picture>\n  <source srcset=\"a-dark.svg\">\n<img alt=\"A\" src=\"a.svg\">\n</picture>\n";
        assert_eq!(themed("docs/p.md", choice, &files), pair);
        assert_eq!(themed("docs/p.md", "![A](a.svg)\n", &files), pair);
        assert_eq!(themed("docs/p.md", "![B](b.svg)\n", &files), "![B](b.svg)\n");
    }

    #[test]
    fn links_to_missing_files_and_headings_are_dead() {
        let page = |text: &str| {
            [("a.html", "<h2 id=\"x\">"), ("d/b.html", text)]
                .map(|(p, t)| (p.to_owned(), t.to_owned()))
                .into()
        };
        let is_file = |path: &str| ["a.html", "d/b.html", "d/c.csv"].contains(&path);
        for good in ["../a.html#x", "c.csv", "https://example.org/", "#"] {
            let pages = page(&format!("<a href=\"{good}\">"));
            assert_eq!(dead_among(&pages, &is_file), Vec::<String>::new(), "{good}");
        }
        for bad in ["../a.html#y", "d.csv", "#z", "../../a.html"] {
            assert_eq!(dead_among(&page(&format!("<img src=\"{bad}\">")), &is_file).len(), 1, "{bad}");
        }
    }
}
