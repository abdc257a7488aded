//! The planner: turns a request into a plan of each scheme, and chooses between them.
//!
//! Read [`Planner`] and [`Choice`] first.

use super::code::Code;
use super::request::{PlanError, Problem, Request};
use super::routed::{self, QuantisedFlows, Routes};
use super::{Group, Input, Mode, Plan, Scheme};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Relative tolerance of rates: equal flows have whole bits per second, and solvers round.
pub const RATE_TOLERANCE: f64 = 1e-5;

/// A plan with the figures that its planner knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanWithFigures {
    /// The plan.
    pub plan: Plan,
    /// Figures of the plan.
    pub figures: Figures,
}

/// Figures of a plan that its planner knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Rate of the slowest destination before the rates were turned into whole numbers of units.
    #[serde(rename = "ideal_bps", with = "crate::bps")]
    pub ideal: BitRate,
    /// Rate that is lost to whole numbers of units.
    #[serde(rename = "loss_bps", with = "crate::bps")]
    pub loss: BitRate,
    /// A proven upper bound for all plans of this scheme: the min-cut, and for `packed` also the
    /// bound from the prices.
    #[serde(rename = "ceiling_bps", with = "crate::bps")]
    pub ceiling: BitRate,
    /// Number of flows that mix several inputs or several generations.
    pub coding_flows: usize,
    /// Number of sites where a coding flow begins.
    pub coding_sites: usize,
    /// Number of terms that use the previous generation.
    pub delayed_terms: usize,
    /// Maximum lookahead of a sink.
    pub lookahead: u16,
}

impl Figures {
    /// Maximum fraction of the ceiling by which the ideal rate falls short of the ceiling; 0 proves
    /// that the plan is optimal.
    pub fn gap(&self) -> f64 {
        (1.0 - self.ideal.as_bps() as f64 / self.ceiling.as_bps() as f64).max(0.0)
    }
}

/// Makes plans for one request.
///
/// ```
/// use anabranch_graph::{LinkProperties, Topology};
/// use anabranch_replicate_proto::plan::{Planner, Request, Scheme};
/// use anabranch_units::{BitRate, Duration, SiteId};
/// // The butterfly: 0 sends to 5 and 6, and only a sum on link 3-4 serves both.
/// let mut topology = Topology::new("butterfly");
/// for name in 0..7 {
///     topology.add_site(name.to_string(), None)?;
/// }
/// for (a, b) in [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (1, 5), (4, 5), (2, 6), (4, 6)] {
///     topology.add_link(SiteId(a), SiteId(b), LinkProperties::new(BitRate::gbps(1), Duration::ZERO))?;
/// }
/// let planner = Planner::new(Request::new(&topology, SiteId(0), [SiteId(5), SiteId(6)]))?;
/// let choice = planner.auto()?;
/// assert_eq!(choice.chosen.plan.scheme, Scheme::Coded);
/// assert_eq!(choice.chosen.plan.rate, BitRate::gbps(2));
/// assert_eq!(choice.chosen.plan.check(&topology)?.sinks, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Planner<'a> {
    pub(super) request: Request<'a>,
    pub(super) problem: Problem,
}

/// The schemes among which [`Planner::auto`] chooses, in the order in which tables list them.
pub const SCHEMES: [Scheme; 5] =
    [Scheme::Coded, Scheme::Packed, Scheme::Steiner, Scheme::MultiPath, Scheme::SinglePath];

/// The schemes that are planned only on request: interpretations of the paper's baseline.
const NAMED_SCHEMES: [Scheme; 2] = [Scheme::SteinerStoreAndForward, Scheme::SteinerOneTree];

/// A plan of scheme `scheme` for `request`.
///
/// Errors: see [`PlanError`].
pub fn plan(request: &Request<'_>, scheme: Scheme) -> Result<PlanWithFigures, PlanError> {
    Planner::new(request.clone())?.plan(scheme)
}

impl<'a> Planner<'a> {
    /// Checks `request` and computes its min-cuts.
    ///
    /// Errors: sites or links that do not exist, no or repeated destinations, an unreachable
    /// destination, options out of range.
    pub fn new(request: Request<'a>) -> Result<Self, PlanError> {
        Ok(Self { problem: Problem::new(&request)?, request })
    }
    /// The request.
    pub fn request(&self) -> &Request<'a> {
        &self.request
    }
    /// The smallest min-cut from the source to a destination.
    pub fn bound(&self) -> BitRate {
        BitRate::bps(self.problem.bound())
    }
    /// The smallest capacity of the links that could serve the transfer. Rates "in link units" are
    /// multiples of this capacity.
    pub fn link_unit(&self) -> BitRate {
        let least = self.problem.capacities.iter().copied().filter(|c| *c > 0).min();
        BitRate::bps(least.expect("every destination can be reached"))
    }

    /// A plan of one scheme.
    ///
    /// Errors: [`PlanError::NoCode`] and [`PlanError::Solver`]; neither occurred in a survey.
    pub fn plan(&self, scheme: Scheme) -> Result<PlanWithFigures, PlanError> {
        let problem = &self.problem;
        let bound = problem.bound() as f64;
        match scheme {
            Scheme::Coded => {
                let code = Code::new(problem)?;
                let rate = code.unit * u64::from(code.streams);
                let (streams, sinks) = (code.streams, code.sinks);
                let groups =
                    vec![Group { streams, weights: Vec::new(), mode: Mode::Coded, sinks, fills: None }];
                let quantised = QuantisedFlows { unit: code.unit, groups, flows: code.flows };
                let mut planned = self.planned(scheme, quantised, bound, bound, 1);
                planned.plan.rate = BitRate::bps(rate);
                Ok(planned)
            }
            Scheme::Packed => {
                // If the code is plain forwarding, its routes are already a packing in few equal
                // trees.
                let known = Code::new(problem).ok().and_then(|code| code.routes());
                let (routes, ceiling) = routed::packed(problem, known.as_ref())?;
                let ideal = smallest_rate(std::slice::from_ref(&routes));
                let planned = self.quantised(scheme, vec![routes], ceiling, 1)?;
                let Some(known) = known else { return Ok(planned) };
                let mut even = self.quantised(scheme, vec![known], ceiling, 1)?;
                let slower = (even.plan.rate.as_bps() as f64)
                    < planned.plan.rate.as_bps() as f64 * (1.0 - RATE_TOLERANCE);
                let same = even.plan.rate.as_bps() as f64 * (1.0 - RATE_TOLERANCE)
                    <= planned.plan.rate.as_bps() as f64;
                if slower || same && even.plan.flows.len() >= planned.plan.flows.len() {
                    return Ok(planned);
                }
                even.figures.ideal =
                    even.figures.ideal.max(BitRate::bps(ideal.round() as u64)).min(self.bound());
                even.figures.loss =
                    BitRate::bps(even.figures.ideal.as_bps().saturating_sub(even.plan.rate.as_bps()));
                Ok(even)
            }
            Scheme::Steiner => self.quantised(scheme, vec![routed::steiner(problem)], bound, 1),
            Scheme::SteinerStoreAndForward => {
                let routes = routed::steiner(problem);
                let depth = routes.routes.iter().map(|(r, _)| r.depth()).max().unwrap_or(1);
                self.quantised(scheme, vec![routes], bound, depth)
            }
            Scheme::SteinerOneTree => {
                let mut routes = routed::steiner(problem);
                routes.routes.truncate(1);
                self.quantised(scheme, vec![routes], bound, 1)
            }
            Scheme::MultiPath => self.quantised(scheme, routed::multi_path(problem)?, bound, 1),
            Scheme::SinglePath => self.quantised(scheme, routed::single_path(problem)?, bound, 1),
        }
    }

    /// `plan`, made by this planner, with groups that fill the remaining capacity of the links
    /// ([`Group::fills`]).
    ///
    /// The predictions of the plan do not change.
    pub fn fill(&self, plan: &Plan) -> Plan {
        super::fill::fill(&self.problem, plan)
    }

    fn quantised(
        &self,
        scheme: Scheme,
        routes: Vec<Routes>,
        ceiling: f64,
        depth: u64,
    ) -> Result<PlanWithFigures, PlanError> {
        let most = self.problem.options.routed_streams_max;
        let ideal = smallest_rate(&routes);
        let quantised = routed::quantise(&self.problem.capacities, &routes, most)?;
        Ok(self.planned(scheme, quantised, ideal, ceiling, depth))
    }

    /// The plan of these flows, with its figures. Store-and-forward over `depth` consecutive hops
    /// divides the rate; `depth` is 1 if data is passed on as it arrives.
    pub(super) fn planned(
        &self,
        scheme: Scheme,
        made: QuantisedFlows,
        ideal: f64,
        ceiling: f64,
        depth: u64,
    ) -> PlanWithFigures {
        let problem = &self.problem;
        let units = made.groups.iter().map(Group::units).min().expect("a plan has groups");
        let plan = Plan {
            scheme,
            source: problem.source,
            destinations: problem.destinations.clone(),
            unit: BitRate::bps(made.unit),
            groups: made.groups,
            flows: made.flows,
            rate: BitRate::bps(made.unit * units / depth),
            bound: BitRate::bps(problem.bound()),
            store_and_forward: scheme == Scheme::SteinerStoreAndForward,
        };
        let rate = plan.rate.as_bps();
        let bps = |rate: f64| BitRate::bps((rate / depth as f64).round() as u64);
        let coding = || plan.flows.iter().filter(|f| f.is_coded());
        let site = |l: LinkId| problem.adjacency.from(l);
        let figures = Figures {
            ideal: bps(ideal).max(plan.rate),
            loss: BitRate::bps(bps(ideal).as_bps().saturating_sub(rate)),
            ceiling: BitRate::bps(ceiling.round() as u64).max(bps(ideal)).max(plan.rate),
            coding_flows: coding().count(),
            coding_sites: coding().map(|f| site(f.link)).collect::<BTreeSet<_>>().len(),
            delayed_terms: plan.flows.iter().flat_map(|f| &f.terms).filter(|t| t.delayed).count(),
            lookahead: plan.lookahead(),
        };
        PlanWithFigures { plan, figures }
    }

    /// The plan with the highest predicted rate. Of equally fast plans, the uncoded one with the
    /// fewest bytes on links.
    ///
    /// A scheme that fails is left out and named in [`Choice::failures`].
    /// Errors: as [`Planner::plan`], if every scheme fails.
    pub fn auto(&self) -> Result<Choice, PlanError> {
        let mut all = Vec::new();
        let mut failures = Vec::new();
        let mut last = None;
        for scheme in SCHEMES {
            match self.plan(scheme) {
                Ok(planned) => all.push(planned),
                Err(error) => {
                    failures.push(Failure { scheme, why: error.to_string() });
                    last = Some(error);
                }
            }
        }
        match last {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(choose(all, failures)),
        }
    }

    /// Every scheme's rate in link units, the choice, and whether the destinations of every plan
    /// decode.
    ///
    /// Errors: as [`Planner::plan`].
    pub fn compare(&self) -> Result<Comparison, PlanError> {
        let choice = self.auto()?;
        let unit = self.link_unit();
        let in_units = |rate: BitRate| rate.as_bps() as f64 / unit.as_bps() as f64;
        let rate = |scheme: Scheme| {
            choice.offers.iter().find(|o| o.scheme == scheme).map_or(0.0, |o| in_units(o.planned.plan.rate))
        };
        let decodes = choice.offers.iter().all(|o| o.planned.plan.check(self.request.topology).is_ok());
        let certified = choice.offers.iter().find(|o| o.scheme == Scheme::Packed);
        Ok(Comparison {
            link_unit: unit,
            bound: in_units(self.bound()),
            coded: rate(Scheme::Coded),
            packed: rate(Scheme::Packed),
            packed_gap: certified.map_or(1.0, |o| o.planned.figures.gap()),
            steiner: rate(Scheme::Steiner),
            multi_path: rate(Scheme::MultiPath),
            single_path: rate(Scheme::SinglePath),
            auto: choice.chosen.plan.scheme,
            reason: choice.reason,
            coding_gain: choice.coding_gain,
            decodes,
        })
    }
}

/// The choice of [`Planner::auto`], its candidates, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The chosen plan.
    pub chosen: PlanWithFigures,
    /// All examined plans, in the order of [`SCHEMES`].
    pub offers: Vec<Offer>,
    /// Schemes without a plan for this request.
    pub failures: Vec<Failure>,
    /// Reason of the choice, in a sentence.
    pub reason: String,
    /// The gain of coding over the best uncoded plan, in a sentence.
    pub coding_gain: String,
}

/// A scheme without a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The scheme.
    pub scheme: Scheme,
    /// Reason, in one line.
    pub why: String,
}

/// One examined plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// The scheme.
    pub scheme: Scheme,
    /// The plan.
    pub planned: PlanWithFigures,
}

/// Rates of all schemes side by side, in link units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The unit of the rates: the smallest capacity of a link that could serve the transfer.
    #[serde(rename = "link_unit_bps", with = "crate::bps")]
    pub link_unit: BitRate,
    /// The min-cut.
    pub bound: f64,
    /// Rate of the coded plan.
    pub coded: f64,
    /// Rate of the optimal packing of trees.
    pub packed: f64,
    /// Maximum fraction by which the packing falls short of the best one.
    pub packed_gap: f64,
    /// Rate of the greedy packing of trees.
    pub steiner: f64,
    /// Rate of the slowest destination over disjoint paths.
    pub multi_path: f64,
    /// Rate of the slowest destination over single paths.
    pub single_path: f64,
    /// The scheme that `auto` chooses.
    pub auto: Scheme,
    /// Why `auto` chooses this scheme.
    pub reason: String,
    /// The gain of coding.
    pub coding_gain: String,
    /// Whether random symbols sent through every plan arrived unchanged.
    pub decodes: bool,
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Coded => "coded",
            Self::Packed => "packed",
            Self::Steiner => "steiner",
            Self::SteinerStoreAndForward => "steiner_store_and_forward",
            Self::SteinerOneTree => "steiner_one_tree",
            Self::MultiPath => "multi_path",
            Self::SinglePath => "single_path",
        })
    }
}

impl std::str::FromStr for Scheme {
    type Err = UnknownScheme;
    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        let all = SCHEMES.into_iter().chain(NAMED_SCHEMES);
        all.into_iter().find(|s| s.to_string() == text).ok_or_else(|| UnknownScheme(text.to_owned()))
    }
}

/// A text that is not the name of a scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScheme(pub String);

impl std::fmt::Display for UnknownScheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no scheme `{}`: use one of", self.0)?;
        SCHEMES.iter().chain(&NAMED_SCHEMES).try_for_each(|s| write!(f, " {s}"))
    }
}
impl std::error::Error for UnknownScheme {}

fn choose(all: Vec<PlanWithFigures>, failures: Vec<Failure>) -> Choice {
    let rate = |p: &PlanWithFigures| p.plan.rate.as_bps() as f64;
    let bytes = |p: &PlanWithFigures| p.plan.copies_per_byte();
    // The cheapest of the plans whose rate is within the tolerance of the best rate.
    let cheapest = |plans: Vec<&PlanWithFigures>| -> Option<PlanWithFigures> {
        let best = plans.iter().map(|p| rate(p)).fold(0.0, f64::max);
        plans
            .into_iter()
            .filter(|p| rate(p) >= best * (1.0 - RATE_TOLERANCE))
            .min_by(|a, b| bytes(a).total_cmp(&bytes(b)).then(a.plan.flows.len().cmp(&b.plan.flows.len())))
            .cloned()
    };
    let is_coded = |p: &&PlanWithFigures| p.plan.scheme == Scheme::Coded;
    let coded = cheapest(all.iter().filter(is_coded).collect());
    let uncoded = cheapest(all.iter().filter(|p| !is_coded(p)).collect());
    let (chosen, reason, coding_gain) = match (coded, uncoded) {
        (Some(coded), Some(uncoded)) => compare_two(coded, uncoded),
        (Some(only), None) | (None, Some(only)) => {
            let reason = format!("{}: the others have no plan here", only.plan.scheme);
            (only, reason, "nothing to compare coding with".into())
        }
        (None, None) => unreachable!("the caller has at least one plan"),
    };
    let offers = all.into_iter().map(|planned| Offer { scheme: planned.plan.scheme, planned }).collect();
    Choice { chosen, offers, failures, reason, coding_gain }
}

/// The chosen plan, the reason, and the gain of coding.
fn compare_two(coded: PlanWithFigures, uncoded: PlanWithFigures) -> (PlanWithFigures, String, String) {
    let rate = |p: &PlanWithFigures| p.plan.rate.as_bps() as f64;
    let ratio = rate(&coded) / rate(&uncoded);
    let (name, at) = (uncoded.plan.scheme, uncoded.plan.rate);
    let coding_gain = if ratio > 1.0 + RATE_TOLERANCE {
        format!("coding gains {:.0} % over the best uncoded plan, {name} at {at}", (ratio - 1.0) * 100.0)
    } else if ratio < 1.0 - RATE_TOLERANCE {
        format!(
            "coding gains nothing: cut into equal streams it reaches {}, less than {name} at {at}",
            coded.plan.rate
        )
    } else {
        let bound = if rate(&uncoded) >= uncoded.plan.bound.as_bps() as f64 * (1.0 - RATE_TOLERANCE) {
            ", the min-cut"
        } else {
            ""
        };
        format!("coding gains nothing here: {name} reaches the same {at}{bound} without it")
    };
    let (chosen, reason) = if ratio > 1.0 + RATE_TOLERANCE {
        let reason = format!(
            "coded: {} is the highest predicted rate; the best uncoded plan, {name}, reaches {at}",
            coded.plan.rate
        );
        (coded, reason)
    } else {
        let why = if ratio < 1.0 - RATE_TOLERANCE {
            format!("coded reaches {}", coded.plan.rate)
        } else {
            "coded is no faster, and an uncoded plan is cheaper to run and easier to repair".into()
        };
        let reason = format!("{name}: {at} is the highest predicted rate; {why}");
        (uncoded, reason)
    };
    (chosen, reason, coding_gain)
}

/// Rate of the slowest destination before the routes are divided into equal flows.
pub(super) fn smallest_rate(groups: &[Routes]) -> f64 {
    groups.iter().map(|g| g.routes.iter().map(|r| r.1).sum::<f64>()).fold(f64::INFINITY, f64::min)
}

impl Plan {
    /// Maximum lookahead of a sink: the number of generations of zeros that the source appends.
    pub fn lookahead(&self) -> u16 {
        let sinks = self.groups.iter().flat_map(|g| &g.sinks);
        sinks.filter_map(|s| s.decode.as_ref()).map(|d| d.lookahead).max().unwrap_or(0)
    }

    /// Whether the flow belongs to a group that fills another group.
    pub fn fills(&self, flow: &super::Flow) -> bool {
        self.groups.get(usize::from(flow.group)).is_some_and(|g| g.fills.is_some())
    }

    /// Number of link crossings of each byte of the file, over all links, without filling flows.
    /// This number is the cost of the plan.
    pub fn copies_per_byte(&self) -> f64 {
        let bulk = self.flows.iter().zip(self.flow_units()).filter(|(f, _)| !self.fills(f));
        bulk.map(|(f, units)| units as f64 / self.groups[usize::from(f.group)].units() as f64).sum()
    }
}

impl super::Flow {
    /// Whether the flow is more than a copy of one input.
    pub fn is_coded(&self) -> bool {
        !matches!(self.terms.as_slice(), [t] if t.coefficient == 1 && !t.delayed)
    }
    /// The stream that the flow copies, for a flow that begins at the source.
    pub fn stream(&self) -> Option<u16> {
        match self.terms.as_slice() {
            [t] if !self.is_coded() => match t.input {
                Input::Stream(s) => Some(s),
                Input::Flow(_) => None,
            },
            _ => None,
        }
    }
}
