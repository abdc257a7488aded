//! One-line error messages about unusable files: file, position and error.
//!
//! Leaves out: the formats of the files (`contracts`, `network`). Read [`FileError`].

/// An error in a file, as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError(pub(crate) String);

impl FileError {
    /// Formats a TOML parser's error with its line.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> String {
        Self::at(text, error.span().map_or(0, |span| span.start), error.message())
    }
    /// Formats an error about a TOML value with its line.
    pub(crate) fn of_value<T>(text: &str, value: &toml::Spanned<T>, what: impl std::fmt::Display) -> String {
        Self::at(text, value.span().start, what)
    }
    fn at(text: &str, start: usize, what: impl std::fmt::Display) -> String {
        let line = text[..start].matches('\n').count() + 1;
        format!("line {line}: {what}")
    }
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for FileError {}
