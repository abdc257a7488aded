//! Options that select files of a directory, as in rclone.

use crate::exit::OrUsage as _;
use anabranch_sets::FileTime;
use anabranch_sets::filter::quantities::{age_ns, size_bytes};
use anabranch_sets::filter::{Filter, Listed, Options, Rules, Text};
use anyhow::Context as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum bytes of a file of rules.
const RULES_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of a list of files.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// rclone's filter options: the first rule that matches decides.
#[derive(clap::Args)]
#[command(next_help_heading = "Filters (as rclone's)")]
pub struct FilterArgs {
    /// Include files that match this pattern, and exclude all that match no rule.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Read patterns of `--include` from this file.
    #[arg(long, value_name = "FILE")]
    include_from: Vec<PathBuf>,
    /// Exclude files that match this pattern.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Read patterns of `--exclude` from this file.
    #[arg(long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,
    /// Add a rule: `+ PATTERN`, `- PATTERN`, or `!` to drop earlier rules.
    #[arg(long, value_name = "RULE", allow_hyphen_values = true)]
    filter: Vec<String>,
    /// Read rules of `--filter` from this file.
    #[arg(long, value_name = "FILE")]
    filter_from: Vec<PathBuf>,
    /// Only the files listed in this file, one in each line. No other filter may be given.
    #[arg(long, value_name = "FILE")]
    files_from: Vec<PathBuf>,
    /// As `--files-from`, with no comments, and blanks as part of names.
    #[arg(long, value_name = "FILE")]
    files_from_raw: Vec<PathBuf>,
    /// As `--files-from`, with a zero byte behind each name.
    #[arg(long, value_name = "FILE")]
    files_from0: Vec<PathBuf>,
    /// Exclude directories that hold a file of this name.
    #[arg(long, value_name = "NAME")]
    exclude_if_present: Vec<String>,
    /// Only files of this size or larger: KiB, or a number with B, K, M, G, T or P.
    #[arg(long, value_name = "SIZE")]
    min_size: Option<String>,
    /// Only files of this size or smaller.
    #[arg(long, value_name = "SIZE")]
    max_size: Option<String>,
    /// Only files older than this: seconds, or a number with ms, s, m, h, d, w, M or y.
    #[arg(long, value_name = "AGE")]
    min_age: Option<String>,
    /// Only files younger than this.
    #[arg(long, value_name = "AGE")]
    max_age: Option<String>,
    /// Ignore case in patterns.
    #[arg(long)]
    ignore_case: bool,
}

fn bytes_of(path: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let read = || {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().with_context(|| path.display().to_string()).or_usage()?;
    ensure_usage!(bytes.len() as u64 <= bytes_max, "{}: more than {bytes_max} bytes", path.display());
    Ok(bytes)
}

fn text_of(path: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let text = anabranch_units::text::decode(bytes_of(path, bytes_max)?);
    text.with_context(|| path.display().to_string()).or_usage()
}

fn texts(paths: &[PathBuf]) -> anyhow::Result<Vec<Text>> {
    let text =
        |path: &PathBuf| Ok(Text { name: path.display().to_string(), text: text_of(path, RULES_BYTES_MAX)? });
    paths.iter().map(text).collect()
}

/// Returns the time `age` before `now`, at the earliest the beginning of 1970.
fn before(now: SystemTime, age: &str, option: &str) -> anyhow::Result<FileTime> {
    let nanos = age_ns(age).with_context(|| option.to_owned()).or_usage()?;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let then = since.saturating_sub(std::time::Duration::from_nanos(nanos));
    let seconds = i64::try_from(then.as_secs()).context("the clock of this machine")?;
    FileTime::new(seconds, then.subsec_nanos().into()).context("the clock of this machine")
}

impl FilterArgs {
    /// Builds the filter of these options.
    ///
    /// Errors: a one-line message for the user.
    pub fn filter(&self) -> anyhow::Result<Filter> {
        self.filter_of(&self.options()?)
    }

    /// The filter of these options, whose files were read.
    fn filter_of(&self, options: &Options) -> anyhow::Result<Filter> {
        let now = SystemTime::now();
        let time =
            |age: &Option<String>, option| age.as_deref().map(|age| before(now, age, option)).transpose();
        let options = Options {
            modified_min: time(&self.max_age, "--max-age")?,
            modified_max: time(&self.min_age, "--min-age")?,
            ..options.clone()
        };
        Filter::new(&options).or_usage()
    }

    /// The rules of these options, for the sites of a transfer.
    ///
    /// Errors: a one-line message for the user.
    pub fn rules(&self) -> anyhow::Result<Rules> {
        let age = |age: &Option<String>, option: &str| {
            let nanos = age.as_deref().map(age_ns).transpose();
            nanos.with_context(|| option.to_owned()).or_usage()
        };
        // Each file is read once: a pipe has its text once.
        let options = self.options()?;
        // Wrong patterns are named with their places.
        self.filter_of(&options)?;
        let rules = Rules::of(&options).or_usage()?;
        let (age_ns_min, age_ns_max) = (age(&self.min_age, "--min-age")?, age(&self.max_age, "--max-age")?);
        Ok(Rules { age_ns_min, age_ns_max, ..rules })
    }

    /// The options, without ages.
    fn options(&self) -> anyhow::Result<Options> {
        let size = |text: &Option<String>, option: &str| {
            let bytes = text.as_deref().map(size_bytes).transpose();
            bytes.with_context(|| option.to_owned()).or_usage()
        };
        let mut files_from = Vec::new();
        for path in &self.files_from {
            files_from.push(Listed::Lines(text_of(path, LIST_BYTES_MAX)?));
        }
        for path in &self.files_from_raw {
            files_from.push(Listed::RawLines(text_of(path, LIST_BYTES_MAX)?));
        }
        for path in &self.files_from0 {
            files_from.push(Listed::Zeros(bytes_of(path, LIST_BYTES_MAX)?));
        }
        Ok(Options {
            include: self.include.clone(),
            include_from: texts(&self.include_from)?,
            exclude: self.exclude.clone(),
            exclude_from: texts(&self.exclude_from)?,
            filter: self.filter.clone(),
            filter_from: texts(&self.filter_from)?,
            files_from,
            exclude_if_present: self.exclude_if_present.clone(),
            size_bytes_min: size(&self.min_size, "--min-size")?,
            size_bytes_max: size(&self.max_size, "--max-size")?,
            modified_min: None,
            modified_max: None,
            ignores_case: self.ignore_case,
        })
    }
}
