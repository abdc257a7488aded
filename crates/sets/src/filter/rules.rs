//! A filter in the form that is sent to the sites of a transfer.
//!
//! The rules of all options are in one list, in their order. Ages are durations, which the source
//! compares with its clock. Read [`Rules`] first.

use super::{Filter, FilterError, Listed, Options, lines};
use crate::entry::FileTime;
use serde::{Deserialize, Serialize};

/// Rules of a filter as text and numbers.
///
/// ```
/// use anabranch_sets::FileTime;
/// use anabranch_sets::filter::{Options, Rules};
/// let options = Options { include: vec!["*.csv".to_owned()], ..Options::default() };
/// let rules = Rules::of(&options)?;
/// assert_eq!(rules.rules, ["+ *.csv", "- /**"]);
/// let filter = rules.filter(FileTime::new(0, 0)?)?;
/// assert!(filter.includes_path(b"a.csv") && !filter.includes_path(b"a.tmp"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// `+ PATTERN`, `- PATTERN` and `!`, in the order in which they decide.
    pub rules: Vec<String>,
    /// Paths of the only files; `None` for all files.
    pub files: Option<Vec<String>>,
    /// Names of files that exclude their directory.
    pub markers: Vec<String>,
    /// Fewest bytes of a file.
    pub size_bytes_min: Option<u64>,
    /// Most bytes of a file.
    pub size_bytes_max: Option<u64>,
    /// Lowest age of a file in nanoseconds.
    pub age_ns_min: Option<u64>,
    /// Highest age of a file in nanoseconds.
    pub age_ns_max: Option<u64>,
    /// Whether patterns ignore case.
    pub ignores_case: bool,
}

impl Rules {
    /// The rules of these options, without ages.
    ///
    /// Errors: a listed path is not UTF-8.
    pub fn of(options: &Options) -> Result<Self, FilterError> {
        let mut rules = Vec::new();
        for (sign, patterns, from) in
            [("+ ", &options.include, &options.include_from), ("- ", &options.exclude, &options.exclude_from)]
        {
            rules.extend(patterns.iter().map(|pattern| format!("{sign}{pattern}")));
            let lines = from.iter().flat_map(|text| lines(&text.text));
            rules.extend(lines.map(|(_, pattern)| format!("{sign}{pattern}")));
        }
        rules.extend(options.filter.iter().cloned());
        let from = options.filter_from.iter().flat_map(|text| lines(&text.text));
        rules.extend(from.map(|(_, rule)| rule.to_owned()));
        if !options.include.is_empty() || !options.include_from.is_empty() {
            rules.push("- /**".to_owned());
        }
        Ok(Self {
            rules,
            files: listed_files(&options.files_from)?,
            markers: options.exclude_if_present.clone(),
            size_bytes_min: options.size_bytes_min,
            size_bytes_max: options.size_bytes_max,
            age_ns_min: None,
            age_ns_max: None,
            ignores_case: options.ignores_case,
        })
    }

    /// The filter at a source whose clock shows `now`; at a destination see [`Rules::of_paths`].
    ///
    /// Errors: [`FilterError`].
    pub fn filter(&self, now: FileTime) -> Result<Filter, FilterError> {
        let files = self.files.iter().map(|files| Listed::Zeros(files.join("\0").into_bytes()));
        let time = |age: Option<u64>| age.map(|age| before(now, age));
        Filter::new(&Options {
            filter: self.rules.clone(),
            files_from: files.collect(),
            exclude_if_present: self.markers.clone(),
            size_bytes_min: self.size_bytes_min,
            size_bytes_max: self.size_bytes_max,
            modified_min: time(self.age_ns_max),
            modified_max: time(self.age_ns_min),
            ignores_case: self.ignores_case,
            ..Options::default()
        })
    }

    /// Returns true if everything is included.
    pub fn is_open(&self) -> bool {
        *self == Self { ignores_case: self.ignores_case, ..Self::default() }
    }

    /// The rules about paths alone, by which two sites agree on each path.
    pub fn of_paths(&self) -> Self {
        Self {
            rules: self.rules.clone(),
            files: self.files.clone(),
            ignores_case: self.ignores_case,
            ..Self::default()
        }
    }

    /// The first option that looks at more than paths; `None` if all look at paths alone. By such
    /// an option, an entry can be included at one site and excluded at another.
    pub fn beyond_paths(&self) -> Option<&'static str> {
        let options = [
            ("--exclude-if-present", !self.markers.is_empty()),
            ("--min-size", self.size_bytes_min.is_some()),
            ("--max-size", self.size_bytes_max.is_some()),
            ("--min-age", self.age_ns_min.is_some()),
            ("--max-age", self.age_ns_max.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// Bytes of all texts, and an overhead for each text.
    pub fn bytes(&self) -> usize {
        let texts = self.rules.iter().chain(&self.markers).chain(self.files.iter().flatten());
        texts.map(|text| text.len() + size_of::<String>()).sum()
    }
}

fn listed_files(lists: &[Listed]) -> Result<Option<Vec<String>>, FilterError> {
    if lists.is_empty() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for listed in lists {
        match listed {
            Listed::Lines(text) => files.extend(lines(text).map(|(_, path)| path.to_owned())),
            Listed::RawLines(text) => files.extend(text.lines().map(str::to_owned)),
            Listed::Zeros(bytes) => {
                for path in bytes.split(|byte| *byte == 0) {
                    let path = std::str::from_utf8(path).map_err(|_| FilterError::NotText)?;
                    files.push(path.to_owned());
                }
            }
        }
    }
    Ok(Some(files))
}

/// The time `age_ns` before `now`, at the earliest the beginning of 1970.
fn before(now: FileTime, age_ns: u64) -> FileTime {
    const NANOS: i128 = 1_000_000_000;
    let then = i128::from(now.seconds()) * NANOS + i128::from(now.nanos()) - i128::from(age_ns);
    let then = then.max(0);
    let seconds = i64::try_from(then / NANOS).expect("no later than `now`");
    let nanos = u64::try_from(then % NANOS).expect("below a second");
    FileTime::new(seconds, nanos).expect("below a second")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Text;
    use proptest::prelude::*;

    fn text(lines: Vec<String>) -> Text {
        Text { name: "rules".to_owned(), text: lines.join("\n") }
    }

    proptest! {
        #[test]
        fn filter_that_travelled_decides_like_its_options(
            include in proptest::collection::vec("(a|b|/a/\\*\\*|\\*[.]c|d/)", 0..3),
            exclude_from in proptest::collection::vec("(a|b/|\\*[.]c|# x|)", 0..3),
            filter in proptest::collection::vec("([+-] (a|b|d/\\*\\*|\\*)|!)", 0..4),
            path in "[abd](/[abd]){0,2}([.]c)?",
        ) {
            let options = Options {
                include,
                exclude_from: vec![text(exclude_from)],
                filter,
                size_bytes_max: Some(10),
                ..Options::default()
            };
            let direct = Filter::new(&options).expect("patterns of the test");
            let rules = Rules::of(&options).expect("text");
            let now = FileTime::new(0, 0).expect("a time");
            let travelled = rules.filter(now).expect("patterns of the test");
            let path = path.as_bytes();
            prop_assert_eq!(direct.includes_path(path), travelled.includes_path(path));
            prop_assert_eq!(direct.includes_directory(path), travelled.includes_directory(path));
            for bytes in [10, 11] {
                prop_assert_eq!(direct.includes_file(path, bytes, now), travelled.includes_file(path, bytes, now));
            }
        }
    }

    #[test]
    fn ages_count_from_the_clock_of_the_site() {
        let rules = Rules { age_ns_max: Some(2_000_000_000), ..Rules::default() };
        let time = |seconds| FileTime::new(seconds, 5).expect("a time");
        let filter = rules.filter(time(100)).expect("a filter");
        assert!(filter.includes_file(b"x", 0, time(98)) && !filter.includes_file(b"x", 0, time(97)));
        let early = rules.filter(time(1)).expect("a filter");
        assert!(early.includes_file(b"x", 0, FileTime::new(0, 0).expect("a time")));
    }

    #[test]
    fn options_beyond_paths_are_named_and_dropped() {
        let rules = Rules { rules: vec!["- a".to_owned()], size_bytes_max: Some(1), ..Rules::default() };
        assert_eq!(rules.beyond_paths(), Some("--max-size"));
        assert_eq!(rules.of_paths(), Rules { rules: vec!["- a".to_owned()], ..Rules::default() });
        assert_eq!((rules.of_paths().beyond_paths(), rules.is_open()), (None, false));
        assert!(Rules { ignores_case: true, ..Rules::default() }.is_open());
    }

    #[test]
    fn listed_files_are_the_only_ones() {
        let files_from = vec![Listed::Zeros(b"a/b\0c".to_vec()), Listed::Lines("# no\n d \n".to_owned())];
        let rules = Rules::of(&Options { files_from, ..Options::default() }).expect("text");
        assert_eq!(rules.files.as_deref(), Some(&["a/b", "c", "d"].map(str::to_owned)[..]));
        let filter = rules.filter(FileTime::new(0, 0).expect("a time")).expect("a filter");
        assert!(
            filter.includes_path(b"a/b") && filter.includes_directory(b"a") && !filter.includes_path(b"e")
        );
        let bad = Options { files_from: vec![Listed::Zeros(vec![0xff])], ..Options::default() };
        assert_eq!(Rules::of(&bad), Err(FilterError::NotText));
    }
}
