//! Markdown of the reference pages.
//!
//! Texts are taken from help texts and doc comments. Their code spans are kept, and all other
//! characters are escaped, so that a `<SITE>` or a `*` is shown as written.

use std::fmt::Write as _;

/// A page of the reference.
pub struct Page {
    /// Path below the reference's folder.
    pub path: String,
    /// Title, also in the table of contents.
    pub title: String,
    /// Contents in Markdown.
    pub text: String,
}

impl Page {
    /// Creates a page with its title as heading, and a first paragraph.
    pub fn new(path: impl Into<String>, title: impl Into<String>, lead: &str) -> Self {
        let (path, title) = (path.into(), title.into());
        let text = format!("# {}\n\n{lead}\n", escaped(&title));
        Self { path, title, text }
    }

    /// Adds a line.
    pub fn line(&mut self, line: impl std::fmt::Display) {
        writeln!(self.text, "{line}").expect("a string takes any text");
    }

    /// Adds a table. Cells are Markdown.
    pub fn table<const N: usize>(&mut self, head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
        self.line(format_args!("\n| {} |\n|{}", head.join(" | "), " --- |".repeat(N)));
        for row in rows {
            self.line(format_args!("| {} |", row.map(|cell| cell_text(&cell)).join(" | ")));
        }
        self.line("");
    }
}

/// Formats Markdown for a cell: one line, in which bars separate no cells.
fn cell_text(markdown: &str) -> String {
    markdown.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Formats a code span.
pub fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

/// Escapes a text except for its code spans. Links of rustdoc lose their target.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (i, piece) in without_links(text).split('`').enumerate() {
        if i % 2 == 1 {
            write!(out, "`{piece}`").expect("a string takes any text");
            continue;
        }
        for c in piece.chars() {
            match c {
                '<' => out.push_str("&lt;"),
                '*' | '_' | '[' | ']' | '#' | '~' => out.extend(['\\', c]),
                c => out.push(c),
            }
        }
    }
    out
}

/// Replaces rustdoc's [`text`] and [`text`](target) by the text.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        write!(out, "{before}`{name}`").expect("a string takes any text");
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    out + rest
}

/// Anchor that the site generates for a heading: lower case, hyphens for blanks, no punctuation.
pub fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
