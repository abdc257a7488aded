//! Topologies from text: our TOML format, GraphML and GML as other programs write them, and
//! SNDlib's XML.
//!
//! The input is text and the result is a [`Topology`]. Drivers read files; they pass [`load`] a
//! function for that. Every error message is one line with the problem, value, limit, place
//! (`file:line`) and remedy. Input is bounded: [`TEXT_BYTES_MAX`], [`crate::SITES_MAX`],
//! [`crate::LINKS_MAX`].
//!
//! Leaves out: the fields of each format, which [`toml`], [`graphml`], [`gml`] and [`sndlib`]
//! describe. Read [`load`] and [`parse`] first.

mod drawing;
pub mod gml;
pub mod graphml;
pub mod sndlib;
pub mod toml;

use crate::builtin::{BUILTINS, BuiltinError, PATH_STRETCH, builtin};
use crate::{Topology, TopologyError};
use anabranch_units::text::{known, printable};
use anabranch_units::{BitRate, Duration};

/// Maximum length of a text in bytes.
pub const TEXT_BYTES_MAX: usize = 8 << 20;
/// Maximum stretch. A larger value in a file is a mistake.
const STRETCH_MAX: f64 = 100.0;

/// The formats of topology files.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// This project's format, described in [`toml`].
    Toml,
    /// GraphML of the Internet Topology Zoo and other programs, described in [`graphml`]. SNDlib's
    /// XML ([`sndlib`]) is also read as this format.
    GraphMl,
    /// The Graph Modelling Language, described in [`gml`].
    Gml,
}

impl Format {
    /// Determines the format of a file from its extension (`.toml`, `.graphml`, `.xml`, `.gml`).
    pub fn of_path(path: &str) -> Option<Self> {
        let extension = path.rsplit_once('.')?.1.to_ascii_lowercase();
        match extension.as_str() {
            "toml" => Some(Self::Toml),
            "graphml" | "xml" => Some(Self::GraphMl),
            "gml" => Some(Self::Gml),
            _ => None,
        }
    }
}

/// Properties of links for which the file states none.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Defaults {
    /// Capacity of links without a stated capacity. In built-in topologies it applies to every
    /// link.
    pub capacity: BitRate,
    /// Delay of links without a stated delay whose ends have no known positions.
    pub delay: Duration,
    /// Fibre length of a link divided by its great circle, for delays computed from positions: 1 to
    /// 100.
    pub stretch: f64,
}

impl Defaults {
    /// Creates defaults with the given capacity, a delay of 5 ms, and [`PATH_STRETCH`].
    pub fn new(capacity: BitRate) -> Self {
        Self { capacity, delay: Duration::from_ms(5), stretch: PATH_STRETCH }
    }
}

/// Reason why a text is not a topology: the mistake and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct FileError {
    /// Name of the text, as the caller gave it.
    pub origin: String,
    /// Number of the line, counted from 1; `None` if unknown.
    pub line: Option<usize>,
    /// The mistake.
    pub problem: Box<Problem>,
}

/// A mistake in a topology's text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// The text is too long.
    TooLong {
        /// Length of the text in bytes.
        bytes: usize,
    },
    /// The text does not follow the syntax of its format.
    Syntax {
        /// Message of the format's parser.
        message: String,
    },
    /// An unknown field.
    UnknownField {
        /// The table that contains the field.
        table: &'static str,
        /// Name of the field.
        field: String,
        /// The known fields.
        known: &'static [toml::Key],
    },
    /// A required field is missing.
    MissingField {
        /// The table that should contain the field.
        table: &'static str,
        /// Example of the field.
        example: &'static str,
    },
    /// Two fields that exclude each other.
    Conflict {
        /// The table that contains both fields.
        table: &'static str,
        /// The first field.
        field: &'static str,
        /// The second field.
        other: &'static str,
    },
    /// The value of a field has the wrong type or is out of range.
    BadValue {
        /// The table that contains the field.
        table: &'static str,
        /// The field.
        field: String,
        /// Value as written, shortened for a message.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// A link names a node that the file does not have.
    UnknownNode {
        /// The id in the link.
        id: String,
    },
    /// A feature of the format that no topology can represent.
    Unsupported {
        /// The unsupported feature.
        what: String,
        /// Advice for the user.
        remedy: &'static str,
    },
    /// Too many items of a kind.
    TooMany {
        /// The kind of item.
        what: &'static str,
        /// Maximum number.
        limit: usize,
    },
    /// The file has no site.
    NoSites,
    /// The sites or links cannot be part of a topology.
    Topology(TopologyError),
}

/// Lists the fields of a table, for a message. Table names are as written in files.
fn names(table: &str, known: &[toml::Key]) -> String {
    let name = |key: &toml::Key| match (table, key.name) {
        ("the file", "name") => "name".to_owned(),
        ("the file", "defaults") => "[defaults]".to_owned(),
        ("the file", name) => format!("[[{name}]]"),
        (_, name) => name.to_owned(),
    };
    known.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "{bytes} bytes: a topology's file may have {TEXT_BYTES_MAX}")
            }
            Self::Syntax { message } => f.write_str(message),
            Self::UnknownField { table, field, known } => {
                write!(f, "{table} has no field `{field}`: use {}", names(table, known))
            }
            Self::MissingField { table, example } => write!(f, "{table} is incomplete: add {example}"),
            Self::Conflict { table, field, other } => {
                write!(f, "{table} gives both `{field}` and `{other}`: keep one of them")
            }
            Self::BadValue { table, field, value, allowed } => {
                write!(f, "{table}: {field} {value}: must be {allowed}")
            }
            Self::UnknownNode { id } => {
                write!(f, "edge names node `{id}`, which the file does not have: add the node")
            }
            Self::Unsupported { what, remedy } => write!(f, "{what}: {remedy}"),
            Self::TooMany { what, limit } => write!(f, "more than {limit} {what}: a topology needs fewer"),
            Self::NoSites => write!(f, "no sites: a topology has at least one"),
            Self::Topology(error) => error.fmt(f),
        }
    }
}
impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} ({}:{line})", self.problem, self.origin),
            None => write!(f, "{} ({})", self.problem, self.origin),
        }
    }
}
impl std::error::Error for FileError {}

/// Source of a topology, derived from the name that a user gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A built-in topology, by its name.
    Builtin(&'static str),
    /// A file, by its path, and its format by the extension.
    File(Format),
}

/// Reason why a topology was not loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// No built-in topology has the name, and its extension is not one of a topology file.
    Unknown {
        /// The name.
        spec: String,
    },
    /// The file could not be read.
    Unreadable {
        /// Path of the file.
        path: String,
        /// Cause of the failure.
        error: std::io::Error,
    },
    /// The file does not contain a topology.
    File(FileError),
    /// The built-in topology cannot be made with these properties.
    Builtin(BuiltinError),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown { spec } => {
                let known = known(spec, BUILTINS.iter().map(|b| b.name));
                write!(
                    f,
                    "no topology `{}`: {known}; or name a .toml, .graphml, .gml or .xml file",
                    printable(spec)
                )
            }
            Self::Unreadable { path, error } => write!(f, "cannot read topology {path}: {error}"),
            Self::File(error) => error.fmt(f),
            Self::Builtin(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for LoadError {}

/// Determines the source that `spec` names: a built-in topology, or a file by its extension. A
/// built-in name takes precedence over a file of the same name; `./b4` means the file.
///
/// Errors: [`LoadError::Unknown`].
pub fn resolve(spec: &str) -> Result<Source, LoadError> {
    if let Some(b) = BUILTINS.iter().find(|b| b.name == spec) {
        return Ok(Source::Builtin(b.name));
    }
    Format::of_path(spec).map(Source::File).ok_or_else(|| LoadError::Unknown { spec: spec.to_owned() })
}

/// Does the same as [`load_with_warnings`], without the warnings.
///
/// Errors: an unknown name; an error of `read`; a text that is not a topology; a default capacity
/// of zero for a built-in topology.
///
/// ```
/// use anabranch_graph::file::{Defaults, load};
/// use anabranch_units::BitRate;
///
/// let defaults = Defaults::new(BitRate::mbps(100));
/// let b4 = load("b4", &defaults, |_| unreachable!("it is built in")).expect("it is built in");
/// assert_eq!(b4.sites().len(), 13);
/// let error = load("b5", &defaults, |_| unreachable!("it is no file")).expect_err("there is none");
/// assert!(error.to_string().starts_with("no topology `b5`: there are butterfly, internet2, b4;"));
/// ```
pub fn load(
    spec: &str,
    defaults: &Defaults,
    read: impl FnOnce(&str) -> std::io::Result<String>,
) -> Result<Topology, LoadError> {
    Ok(load_with_warnings(spec, defaults, read)?.topology)
}

/// Loads the topology that `spec` names, with warnings about parts of the file that were not read.
/// `read` returns the text of a path.
///
/// Errors: as [`load`].
pub fn load_with_warnings(
    spec: &str,
    defaults: &Defaults,
    read: impl FnOnce(&str) -> std::io::Result<String>,
) -> Result<LoadedTopology, LoadError> {
    match resolve(spec)? {
        Source::Builtin(name) => {
            let topology = builtin(name, defaults.capacity).map_err(LoadError::Builtin)?;
            Ok(LoadedTopology { topology, warnings: Vec::new() })
        }
        Source::File(format) => {
            let text = read(spec).map_err(|error| LoadError::Unreadable { path: spec.to_owned(), error })?;
            parse_with_warnings(&text, format, spec, defaults).map_err(LoadError::File)
        }
    }
}

/// A topology, and warnings about its file.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedTopology {
    /// The topology.
    pub topology: Topology,
    /// One line for each kind of part that was left out, with its position.
    pub warnings: Vec<String>,
}

/// A warning, and the offset in bytes of its cause in the text.
#[derive(Debug)]
pub(crate) struct Warning {
    offset: usize,
    text: String,
}

/// Parses a topology. `origin` is the text's name in messages.
///
/// Errors: the first mistake, with its line.
pub fn parse(text: &str, format: Format, origin: &str, defaults: &Defaults) -> Result<Topology, FileError> {
    Ok(parse_with_warnings(text, format, origin, defaults)?.topology)
}

/// Does the same as [`parse`], and also returns warnings.
///
/// Errors: as [`parse`].
pub fn parse_with_warnings(
    text: &str,
    format: Format,
    origin: &str,
    defaults: &Defaults,
) -> Result<LoadedTopology, FileError> {
    let line = |at: usize| 1 + text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
    let mut warnings = Vec::new();
    let read = if text.len() > TEXT_BYTES_MAX {
        Err(LocatedProblem { offset: None, problem: Box::new(Problem::TooLong { bytes: text.len() }) })
    } else if !(1.0..=STRETCH_MAX).contains(&defaults.stretch) {
        let value = defaults.stretch.to_string();
        let allowed = "a number from 1 to 100".to_owned();
        Err(LocatedProblem {
            offset: None,
            problem: Box::new(Problem::BadValue {
                table: "defaults",
                field: "stretch".into(),
                value,
                allowed,
            }),
        })
    } else {
        match format {
            Format::Toml => toml::read(text, defaults),
            Format::GraphMl => graphml::read(text, defaults, &mut warnings),
            Format::Gml => gml::read(text, defaults, &mut warnings),
        }
    };
    let topology = match read {
        Ok(topology) if topology.sites().is_empty() => {
            Err(LocatedProblem { offset: None, problem: Box::new(Problem::NoSites) })
        }
        other => other,
    };
    let topology = topology.map_err(|LocatedProblem { offset, problem }| FileError {
        origin: origin.to_owned(),
        line: offset.map(line),
        problem,
    })?;
    let said = |warning: Warning| format!("{} ({origin}:{})", warning.text, line(warning.offset));
    Ok(LoadedTopology { topology, warnings: warnings.into_iter().map(said).collect() })
}

/// A problem and its byte offset in the text.
#[derive(Debug)]
pub(crate) struct LocatedProblem {
    offset: Option<usize>,
    problem: Box<Problem>,
}

impl Problem {
    fn at(self, offset: usize) -> LocatedProblem {
        LocatedProblem { offset: Some(offset), problem: Box::new(self) }
    }
}

/// A value as quoted in a message: on one line and shortened.
fn quoted(value: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut short: String =
        value.chars().take(CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if value.chars().nth(CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}

/// Exercise for the fuzz target and its corpus's test: parses `bytes`. If they are a topology,
/// checks that writing and reading it again gives an equal topology. Returns true if they are a
/// topology.
///
/// Panics: if the second topology differs.
#[doc(hidden)]
pub fn exercise(format: Format, bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let defaults = Defaults::new(BitRate::mbps(100));
    let Ok(topology) = parse(text, format, "fuzzed", &defaults) else { return false };
    let written = toml::write(&topology);
    // Escaping can make the text too long to be read again.
    if written.len() <= TEXT_BYTES_MAX {
        assert_eq!(parse(&written, Format::Toml, "written", &defaults), Ok(topology));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_resolves_to_a_builtin_or_a_file() {
        assert_eq!(resolve("internet2").expect("built in"), Source::Builtin("internet2"));
        assert_eq!(resolve("my.net/a.TOML").expect("a file"), Source::File(Format::Toml));
        assert_eq!(resolve("Abilene.graphml").expect("a file"), Source::File(Format::GraphMl));
        assert!(matches!(resolve("abilene"), Err(LoadError::Unknown { .. })));
    }

    #[test]
    fn text_above_the_length_limit_is_refused() {
        let defaults = Defaults::new(BitRate::mbps(1));
        let mut text = String::from("[[site]]\nname = \"a\"\n#");
        text.push_str(&"x".repeat(TEXT_BYTES_MAX - text.len()));
        assert!(parse(&text, Format::Toml, "long.toml", &defaults).is_ok());
        text.push('x');
        let error = parse(&text, Format::Toml, "long.toml", &defaults).expect_err("one too many").to_string();
        assert_eq!(error, "8388609 bytes: a topology's file may have 8388608 (long.toml)");
    }

    #[test]
    fn unreadable_file_is_named_in_the_error() {
        let gone = |_: &str| Err(std::io::Error::from(std::io::ErrorKind::NotFound));
        let error = load("gone.toml", &Defaults::new(BitRate::mbps(1)), gone).expect_err("it is not there");
        assert!(error.to_string().starts_with("cannot read topology gone.toml: "), "{error}");
    }
}
