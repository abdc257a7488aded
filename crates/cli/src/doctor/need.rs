//! Abilities of a machine that systems need.
//!
//! Read [`Need`].

use anabranch_units::Finding;

/// A need of a system, which any of several methods satisfies.
#[derive(Debug)]
pub struct Need {
    /// Name of the need.
    pub name: &'static str,
    /// Name of the JSON field that lists the working methods.
    pub field: &'static str,
    /// Common prefix of the names of the findings about these methods.
    pub prefix: &'static str,
    /// Findings about all methods.
    pub findings: Vec<Finding>,
}

impl Need {
    /// Names of the working methods.
    pub fn ways(&self) -> Vec<&'static str> {
        self.findings.iter().filter(|f| f.ok).filter_map(|f| f.name.strip_prefix(self.prefix)).collect()
    }
}
