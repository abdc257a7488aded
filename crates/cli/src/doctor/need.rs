//! The needs of systems: abilities of a machine.
//!
//! Read [`Need`].

use anabranch_units::Finding;

/// What a system wants of a machine, of which one way is enough.
#[derive(Debug)]
pub struct Need {
    /// What it is called.
    pub name: &'static str,
    /// And as a field of JSON, which lists the ways that work.
    pub field: &'static str,
    /// What the names of the findings begin with that are such ways.
    pub prefix: &'static str,
    /// What was found.
    pub findings: Vec<Finding>,
}

impl Need {
    /// The ways that work here.
    pub fn ways(&self) -> Vec<&'static str> {
        self.findings.iter().filter(|f| f.ok).filter_map(|f| f.name.strip_prefix(self.prefix)).collect()
    }
}
