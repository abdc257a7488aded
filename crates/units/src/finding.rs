//! A finding about the machine, made by a crate's `doctor`.
//!
//! Leaves out: the checks of a `doctor`. Read [`Finding`].

/// A fact about the machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Name of the checked item.
    pub name: &'static str,
    /// True if the machine passes.
    pub ok: bool,
    /// The finding in words.
    pub detail: String,
    /// The fix; `None` if no fix is needed.
    pub fix: Option<String>,
}

impl Finding {
    /// Creates a finding. `fix` is used only if `ok` is false.
    pub fn new(name: &'static str, ok: bool, detail: impl Into<String>, fix: &str) -> Self {
        Self { name, ok, detail: detail.into(), fix: (!ok).then(|| fix.to_owned()) }
    }
}
