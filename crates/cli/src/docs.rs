//! `anabranch docs`: manual pages, and the reference pages of the documentation site.
//!
//! All pages are made from the code: commands from clap, HTTP interfaces from their OpenAPI
//! descriptions, settings from the types that parse them. So no page can be out of date. Leaves
//! out: the written documents, which are in `docs/` of the repository. Read [`pages`] first.

mod commands;
mod http;
mod markdown;
mod schema;
mod settings;

#[cfg(test)]
pub(crate) use commands::visible;

use anyhow::Context as _;
use markdown::Page;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Commands of `docs`.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Write a manual page for each command, as `anabranch-replicate-send.1`.
    Man(Folder),
    /// Write the reference in Markdown: commands, HTTP interfaces, keys of scenarios and
    /// topologies. SUMMARY.md lists the pages.
    Reference(Folder),
}

/// Folder of the files.
#[derive(clap::Args)]
pub struct Folder {
    /// Folder for the files; made if it is missing.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the files for `command`.
///
/// Errors: an error of the operating system, with the path.
pub fn run(noun: &Noun, command: clap::Command) -> anyhow::Result<ExitCode> {
    let (Noun::Man(Folder { folder }) | Noun::Reference(Folder { folder })) = noun;
    let cannot_write = || format!("cannot write below {}", folder.display());
    ensure_usage!(!folder.is_file(), "{}: a file: name a folder", folder.display());
    std::fs::create_dir_all(folder).with_context(cannot_write)?;
    match noun {
        Noun::Man(_) => clap_mangen::generate_to(command, folder).with_context(cannot_write)?,
        Noun::Reference(_) => write(folder, &pages(command)).with_context(cannot_write)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All pages of the reference, in order.
fn pages(command: clap::Command) -> Vec<Page> {
    let mut pages = commands::pages(command);
    pages.extend(http::pages());
    pages.extend([settings::scenario(), settings::topology()]);
    pages
}

fn write(folder: &Path, pages: &[Page]) -> std::io::Result<()> {
    for page in pages {
        let path = folder.join(&page.path);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(path, &page.text)?;
    }
    std::fs::write(folder.join("SUMMARY.md"), summary(pages))
}

/// Lists the pages in the form of mdBook's SUMMARY.md. A page in a folder is indented below the
/// last page that is in no folder.
fn summary(pages: &[Page]) -> String {
    let mut list = String::new();
    for Page { path, title, .. } in pages {
        let indent = if path.contains('/') { "  " } else { "" };
        writeln!(list, "{indent}- [{title}]({path})").expect("a string takes any text");
    }
    list
}

#[cfg(test)]
mod tests;
