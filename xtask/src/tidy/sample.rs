//! `cargo xtask sample`: a random sample of comments and of names of tests, for a reviewer.
//!
//! A comment is a block of consecutive comment lines. It is printed with its place and the lines
//! after it, so that the reviewer judges it in context. The same seed gives the same sample of the
//! same files.
//!
//! Leaves out: comments behind code, docstrings, prose of documents. Read [`Block`] and [`draw`]
//! first.

use super::{Repository, known_files, metadata, prose};
use anabranch_units::Seed;
use std::fmt::Write as _;

/// Maximum lines of code printed after a comment.
const CODE_LINES_MAX: usize = 6;

/// Arguments of `cargo xtask sample`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Repository,
    /// Seed of the sample.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of comments to print.
    #[arg(long, default_value_t = 200)]
    comments: usize,
    /// Number of names of tests to print.
    #[arg(long, default_value_t = 50)]
    tests: usize,
}

/// Consecutive comment lines of a file: indices of the first line and of the line after the last.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Block {
    first: usize,
    end: usize,
}

/// Prints the sample.
///
/// Errors: the repository cannot be read; the output is closed.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let (_, root) = metadata(args.place)?;
    let mut paths: Vec<_> = known_files(&root)?.into_iter().filter(|path| is_sampled(path)).collect();
    paths.sort_unstable();
    let read = |path: String| Some((std::fs::read_to_string(root.join(&path)).ok()?, path));
    let files: Vec<_> = paths.into_iter().filter_map(read).collect();
    let text = sample(&files, Seed::new(args.seed), args.comments, args.tests);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes())?)
}

/// Returns whether the sample includes comments of the file at `path`.
fn is_sampled(path: &str) -> bool {
    [".rs", ".py", ".sh", ".c"].iter().any(|end| path.ends_with(end))
}

/// The blocks of comment lines in a file.
fn blocks(path: &str, lines: &[&str]) -> Vec<Block> {
    let marks = prose::marks(path).unwrap_or_default();
    let mut found: Vec<Block> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if prose::comment(line.trim_start(), marks).is_none() {
            continue;
        }
        match found.last_mut() {
            Some(block) if block.end == index => block.end += 1,
            _ => found.push(Block { first: index, end: index + 1 }),
        }
    }
    found
}

/// Draws `count` of the items without repetition, and returns them in their order. Returns all if
/// there are fewer.
fn draw<T>(items: Vec<T>, count: usize, seed: Seed, stream: &str) -> Vec<T> {
    let mut indices: Vec<usize> = (0..items.len()).collect();
    seed.stream(stream, 0).shuffle(&mut indices);
    let mut is_drawn = vec![false; items.len()];
    for index in indices.into_iter().take(count) {
        is_drawn[index] = true;
    }
    items.into_iter().zip(is_drawn).filter_map(|(item, is_drawn)| is_drawn.then_some(item)).collect()
}

/// Text of the sample of `files`, each a text and its path.
fn sample(files: &[(String, String)], seed: Seed, comments: usize, tests: usize) -> String {
    let (mut blocks_found, mut tests_found) = (Vec::new(), Vec::new());
    for (text, path) in files {
        let lines: Vec<&str> = text.lines().collect();
        tests_found.extend(prose::tests(path, &lines).into_iter().map(|test| (path, test)));
        for block in blocks(path, &lines) {
            let end = lines.len().min(block.end + CODE_LINES_MAX);
            blocks_found.push((path, block.first + 1, lines[block.first..end].join("\n")));
        }
    }
    let mut text = format!("# {} comments, {} tests\n", blocks_found.len(), tests_found.len());
    for (path, line, shown) in draw(blocks_found, comments, seed, "comments") {
        let _ = write!(text, "\n{path}:{line}\n{shown}\n");
    }
    text.push('\n');
    for (path, (line, name)) in draw(tests_found, tests, seed, "tests") {
        let _ = writeln!(text, "{path}:{line}: {name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_blocks_are_runs_of_comment_lines() {
        let text = "//! Doc.\n//! More.\n\n/// One.\nfn one() {} // Behind code.\n    // Two.\n";
        let lines: Vec<&str> = text.lines().collect();
        let found: Vec<_> = blocks("a.rs", &lines).iter().map(|block| (block.first, block.end)).collect();
        assert_eq!(found, [(0, 2), (3, 4), (5, 6)]);
        assert_eq!(blocks("a.sh", &["#!/bin/sh", "# One.", "true"]), [Block { first: 1, end: 2 }]);
    }

    #[test]
    fn same_seed_gives_same_sample_of_comments() {
        let lines = (0..40).map(|n| format!("// Comment {n}.\n#[test]\nfn claim_{n}() {{}}\n"));
        let files = [(lines.collect::<String>(), "a.rs".to_owned())];
        let of = |seed| sample(&files, Seed::new(seed), 4, 3);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        // Each of the 4 comments and 3 names has a line that starts with the path.
        assert_eq!(of(1).matches("\na.rs:").count(), 7);
    }
}
