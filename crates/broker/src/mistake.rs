//! Why a file cannot be used: which, where in it, and what is wrong, in one line.
//!
//! Leaves out: what files should have (`contracts`, `network`, `places`). Read [`Mistake`].

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake(pub(crate) String);

impl Mistake {
    /// What TOML or its tables have wrong, with the line.
    pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> String {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", error.message())
    }
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Mistake {}
