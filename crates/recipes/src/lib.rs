//! Recipes for the coordination of two control planes: which mechanism fits, why it fits, and which
//! systems use it.
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions in Independent Network
//! Systems* (Carnegie Mellon, 2018), chapters 1 and 5. Sections, figures and tables without another
//! source are in this thesis.
//!
//! Terms: a *control plane* decides how devices of a data plane are configured. Two control planes
//! are *split* by layers, administrations, granularity or time scales. *Sharing* is the information
//! that the control planes may exchange; *resources* are the devices for which both decide.
//!
//! Entry points: [`Scenario::advise`] leads from a scenario to a [`Mechanism`], by the rule
//! [`mechanism`]; [`TABLE`] has the systems of Table 1.1. Leaves out: see [`OUTSIDE`].

mod features;
mod rule;
mod scenario;
mod systems;

pub use features::{Decision, FeatureWord, Flow, Harm, Relation, Resources, Separation, Sharing};
pub use rule::{Mechanism, OPEN, OUTSIDE, mechanism};
pub use scenario::{
    Administrations, Answer, Feature, FeatureOrigin, Number, Question, Scenario, UnclearFeature,
};
pub use systems::{Advice, System, TABLE};
