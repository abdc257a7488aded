//! A finding of a crate's `doctor` about the machine.
//!
//! Leaves out: the checks of a `doctor`. Read [`Finding`].

/// One fact about the machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// The thing that was looked at.
    pub name: &'static str,
    /// True if the machine passes.
    pub ok: bool,
    /// The finding in words.
    pub detail: String,
    /// The fix; `None` if nothing needs to be done.
    pub fix: Option<String>,
}

impl Finding {
    /// Creates a finding. `fix` is used only if `ok` is false.
    pub fn new(name: &'static str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        Self { name, ok, detail: detail.into(), fix: (!ok).then(|| fix.to_owned()) }
    }
}
