//! Why a file cannot be used: which, where in it, and what is wrong, in one line.
//!
//! Leaves out: what files should have (`contracts`, `network`). Read [`Mistake`].

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake(pub(crate) String);

impl Mistake {
    /// What TOML or its tables have wrong, with the line.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> String {
        Self::at(text, error.span().map_or(0, |span| span.start), error.message())
    }
    /// Message about a TOML value, with its line.
    pub(crate) fn of_value<T>(text: &str, value: &toml::Spanned<T>, what: impl std::fmt::Display) -> String {
        Self::at(text, value.span().start, what)
    }
    fn at(text: &str, start: usize, what: impl std::fmt::Display) -> String {
        let line = text[..start].matches('\n').count() + 1;
        format!("line {line}: {what}")
    }
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Mistake {}
