//! Error of a scenario that cannot be planned.
//!
//! Read [`PlanError`].

/// An invalid setting, such as `network.rate`, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The setting.
    pub field: String,
    /// The reason.
    pub message: String,
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}
impl std::error::Error for PlanError {}
