//! A finding of a room's `doctor` about the machine.
//!
//! Leaves out: how a `doctor` comes to it. Read [`Finding`].

/// One fact about the machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it; `None` if nothing needs to be done.
    pub fix: Option<String>,
}

impl Finding {
    /// A fact, whose fix counts only where it is not as it should be.
    pub fn new(name: &'static str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        Self { name, ok, detail: detail.into(), fix: (!ok).then(|| fix.to_owned()) }
    }
}
