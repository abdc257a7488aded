//! Why a scenario cannot be planned.
//!
//! Read [`PlanError`].

/// A setting that cannot be, as `network.rate`, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The setting.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}
impl std::error::Error for PlanError {}
