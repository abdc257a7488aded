//! From a scenario to the two deciding features (§1.2.1, §1.3 and §1.4), and from the features to a
//! mechanism.

use crate::features::words;
use crate::{FeatureWord, Mechanism, Resources, Separation, Sharing, mechanism};
use std::fmt;

words! {
    /// Number of layers, granularities or time scales of the two control planes.
    Number {
        /// One, common to both control planes.
        One = "one",
        /// Two, one for each control plane.
        Two = "two",
    }
    /// Owners of the control planes.
    Administrations {
        /// One team.
        One = "one",
        /// Parts of one company: a soft boundary.
        Parts = "parts",
        /// Two companies: a hard boundary.
        Two = "two",
    }
    /// Question about a scenario.
    Question {
        /// Whether the control planes are in one layer or two ([`Scenario::layers`]).
        Layers = "layers",
        /// Number and kind of the owners ([`Scenario::administrations`]).
        Administrations = "administrations",
        /// Whether the control planes decide in one granularity or two ([`Scenario::granularity`]).
        Granularity = "granularity",
        /// Whether the control planes decide on one time scale or two ([`Scenario::timescales`]).
        Timescales = "timescales",
    }
}

/// Answers about two control planes; `None` for a question without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scenario {
    /// Number of layers of the stack.
    pub layers: Option<Number>,
    /// Owners of the control planes.
    pub administrations: Option<Administrations>,
    /// Number of granularities: two if one control plane makes coarse decisions and the other
    /// detailed ones.
    pub granularity: Option<Number>,
    /// Number of time scales: two if one control plane decides slowly and the other fast.
    pub timescales: Option<Number>,
    /// Sharing of information, if the scenario states it.
    pub sharing: Option<Sharing>,
    /// Sharing of resources, if the scenario states it.
    pub resources: Option<Resources>,
}

/// Origin of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureOrigin {
    /// The scenario states it.
    Stated,
    /// The feature follows from the scenario, for this reason.
    Derived(&'static str),
}

/// A feature with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature<T> {
    /// Value of the feature.
    pub value: T,
    /// Origin of the feature.
    pub because: FeatureOrigin,
    /// Feature that follows from the scenario, if a different feature is stated.
    pub derived: Option<T>,
}

/// Advice for a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Sharing of information between the control planes.
    pub sharing: Feature<Sharing>,
    /// Sharing of resources. `None` if it is unknown and makes no difference.
    pub resources: Option<Feature<Resources>>,
    /// Advised mechanism. `None` if the thesis has none.
    pub mechanism: Option<Mechanism>,
}

/// Error: a feature does not follow from the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnclearFeature {
    /// Sharing depends on questions without an answer.
    Sharing(Vec<Question>),
    /// Resources depend on questions without an answer.
    Resources(Vec<Question>),
    /// Several boundaries lead to different resources, or no boundary leads to any.
    ResourcesOpen,
    /// No boundary separates the control planes.
    NotSplit,
}

impl fmt::Display for UnclearFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = |questions: &[Question]| {
            let options: Vec<String> =
                questions.iter().map(|question| format!("--{}", question.name())).collect();
            options.join(", ")
        };
        match self {
            Self::Sharing(questions) => {
                write!(f, "sharing is unknown: answer {}, or state --sharing", options(questions))
            }
            Self::Resources(questions) => {
                write!(f, "resources are unknown: answer {}, or state --resources", options(questions))
            }
            Self::ResourcesOpen => write!(
                f,
                "resources do not follow from this scenario: state --resources (which devices do both control planes decide for?)"
            ),
            Self::NotSplit => write!(
                f,
                "one layer, administration, granularity and time scale: one control plane can decide, and there is nothing to coordinate"
            ),
        }
    }
}

impl std::error::Error for UnclearFeature {}

/// A feature with its reason, or the error that the feature is unclear.
type FeatureResult<T> = Result<(T, &'static str), UnclearFeature>;

impl Scenario {
    /// The scenario with this boundary only.
    pub const fn of(separation: Separation) -> Self {
        let mut scenario = Self {
            layers: Some(Number::One),
            administrations: Some(Administrations::One),
            granularity: Some(Number::One),
            timescales: Some(Number::One),
            sharing: None,
            resources: None,
        };
        match separation {
            Separation::Layering => scenario.layers = Some(Number::Two),
            Separation::Granularity => scenario.granularity = Some(Number::Two),
            Separation::Timescale => scenario.timescales = Some(Number::Two),
            Separation::SoftAdministration => scenario.administrations = Some(Administrations::Parts),
            Separation::HardAdministration => scenario.administrations = Some(Administrations::Two),
        }
        scenario
    }

    /// Returns the mechanism for this scenario, with both features. A stated feature takes
    /// precedence over a derived feature.
    ///
    /// Errors: a feature that the rule needs, and that is neither stated nor derivable.
    pub fn advise(&self) -> Result<Answer, UnclearFeature> {
        let sharing = feature(self.sharing, self.derived_sharing())?;
        let resources = feature(self.resources, self.derived_resources());
        match resources {
            Ok(found) => Ok(Answer {
                sharing,
                resources: Some(found),
                mechanism: mechanism(found.value, sharing.value),
            }),
            Err(error) if sharing.value == Sharing::Incomplete => Err(error),
            // For no sharing and for complete sharing, the mechanism is the same whatever the
            // resources.
            Err(_) => Ok(Answer {
                sharing,
                resources: None,
                mechanism: mechanism(Resources::Disjoint, sharing.value),
            }),
        }
    }

    /// True if the control planes differ in granularity or time scale. `None` if that is unknown.
    fn has_global_control(&self) -> Option<bool> {
        match (self.granularity, self.timescales) {
            (Some(Number::Two), _) | (_, Some(Number::Two)) => Some(true),
            (Some(Number::One), Some(Number::One)) => Some(false),
            _ => None,
        }
    }

    /// Returns the questions among `of` that have no answer.
    fn unanswered(&self, of: &[Question]) -> Vec<Question> {
        let is_open = |question: &&Question| match question {
            Question::Layers => self.layers.is_none(),
            Question::Administrations => self.administrations.is_none(),
            Question::Granularity => self.granularity.is_none(),
            Question::Timescales => self.timescales.is_none(),
        };
        of.iter().filter(is_open).copied().collect()
    }

    fn derived_sharing(&self) -> FeatureResult<Sharing> {
        if self.administrations == Some(Administrations::Two) {
            return Ok((Sharing::Incomplete, "two companies keep some information private (§1.3)"));
        }
        if self.has_global_control() == Some(true) {
            let reason = "what is slow or coarse does not arrive in time or in detail (§1.3, §1.4)";
            return Ok((Sharing::Incomplete, reason));
        }
        let open = self.unanswered(Question::ALL);
        if !open.is_empty() {
            return Err(UnclearFeature::Sharing(open));
        }
        match (self.layers, self.administrations) {
            (Some(Number::Two), _) => {
                Ok((Sharing::Complete, "layers of one owner have no boundary to information (§1.3)"))
            }
            (_, Some(Administrations::Parts)) => {
                Ok((Sharing::Complete, "no business concern stops parts of one company (our reading)"))
            }
            _ => Err(UnclearFeature::NotSplit),
        }
    }

    fn derived_resources(&self) -> FeatureResult<Resources> {
        let global = self.has_global_control();
        match (self.administrations, global) {
            (Some(Administrations::Two), Some(false)) => {
                Ok((Resources::Disjoint, "each company controls its own devices (§1.3)"))
            }
            (Some(Administrations::One | Administrations::Parts), Some(true)) => {
                Ok((Resources::Full, "global and local control decide for the same devices (§1.3)"))
            }
            (Some(_), Some(_)) => Err(UnclearFeature::ResourcesOpen),
            _ => {
                let all = [Question::Administrations, Question::Granularity, Question::Timescales];
                let needed = if global.is_some() { &all[..1] } else { &all[..] };
                Err(UnclearFeature::Resources(self.unanswered(needed)))
            }
        }
    }
}

/// Combines a stated and a derived feature; the stated feature takes precedence.
fn feature<T: Copy + PartialEq>(
    stated: Option<T>,
    derived: FeatureResult<T>,
) -> Result<Feature<T>, UnclearFeature> {
    match stated {
        Some(value) => {
            let derived = derived.ok().map(|(other, _)| other).filter(|other| *other != value);
            Ok(Feature { value, because: FeatureOrigin::Stated, derived })
        }
        None => derived.map(|(value, reason)| Feature {
            value,
            because: FeatureOrigin::Derived(reason),
            derived: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mechanism_of(scenario: Scenario) -> Result<Option<Mechanism>, UnclearFeature> {
        scenario.advise().map(|answer| answer.mechanism)
    }

    /// §1.4: a recipe each for layering, administrative separation and internet-scale systems.
    #[test]
    fn each_separation_leads_to_its_recipe() {
        let recipes = [
            (Separation::Layering, Mechanism::Transparency),
            (Separation::HardAdministration, Mechanism::PriorityRanking),
            (Separation::Granularity, Mechanism::HierarchicalPartitioning),
            (Separation::Timescale, Mechanism::HierarchicalPartitioning),
        ];
        for (separation, mechanism) in recipes {
            assert_eq!(mechanism_of(Scenario::of(separation)), Ok(Some(mechanism)), "{separation:?}");
        }
    }

    #[test]
    fn unanswered_questions_are_named() {
        let unknown = Scenario::default();
        assert_eq!(mechanism_of(unknown), Err(UnclearFeature::Sharing(Question::ALL.to_vec())));
        let companies = Scenario { administrations: Some(Administrations::Two), ..unknown };
        let missing = vec![Question::Granularity, Question::Timescales];
        assert_eq!(mechanism_of(companies), Err(UnclearFeature::Resources(missing)));
        let regions = Scenario { timescales: Some(Number::Two), ..unknown };
        assert_eq!(mechanism_of(regions), Err(UnclearFeature::Resources(vec![Question::Administrations])));
    }

    #[test]
    fn additional_answers_never_change_the_advice() {
        let answers = |choices: usize| (0..=choices).map(|at| at.checked_sub(1));
        for layers in answers(2) {
            for administrations in answers(3) {
                for granularity in answers(2) {
                    for timescales in answers(2) {
                        let scenario = Scenario {
                            layers: layers.map(|at| Number::ALL[at]),
                            administrations: administrations.map(|at| Administrations::ALL[at]),
                            granularity: granularity.map(|at| Number::ALL[at]),
                            timescales: timescales.map(|at| Number::ALL[at]),
                            ..Scenario::default()
                        };
                        let Ok(advice) = mechanism_of(scenario) else { continue };
                        for more in Number::ALL {
                            let fuller = Scenario {
                                layers: scenario.layers.or(Some(*more)),
                                administrations: scenario.administrations.or(Some(Administrations::One)),
                                granularity: scenario.granularity.or(Some(*more)),
                                timescales: scenario.timescales.or(Some(*more)),
                                ..scenario
                            };
                            assert_eq!(mechanism_of(fuller), Ok(advice), "{scenario:?}, {fuller:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn stated_features_outweigh_derived_ones() {
        let scenario = Scenario { sharing: Some(Sharing::None), ..Scenario::of(Separation::Layering) };
        let answer = scenario.advise().unwrap();
        assert_eq!(answer.mechanism, Some(Mechanism::Reaction));
        assert_eq!(answer.sharing.derived, Some(Sharing::Complete));
    }

    #[test]
    fn boundaries_with_different_resources_leave_the_advice_open() {
        let both = Scenario { timescales: Some(Number::Two), ..Scenario::of(Separation::HardAdministration) };
        assert_eq!(mechanism_of(both), Err(UnclearFeature::ResourcesOpen));
        let stated = Scenario { resources: Some(Resources::Partial), ..both };
        assert_eq!(mechanism_of(stated), Ok(None));
    }

    #[test]
    fn one_control_plane_needs_no_mechanism() {
        let mut one = Scenario::of(Separation::Layering);
        one.layers = Some(Number::One);
        assert_eq!(mechanism_of(one), Err(UnclearFeature::NotSplit));
    }
}
