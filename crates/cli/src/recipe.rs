//! `anabranch recipe`: the mechanism by which two control planes should coordinate, and systems
//! built that way.
//!
//! Leaves out: the rule and the thesis's systems ([`anabranch_recipes`]); the features of our
//! systems, which each system's module states ([`Member::recipe`](crate::member::Member::recipe)).
//! Read [`run`] first.

use crate::exit::OrUsage as _;
use crate::family;
use anabranch_recipes::{
    Administrations, Answer, Feature, FeatureOrigin, FeatureWord, Flow, Mechanism, Number, OPEN, OUTSIDE,
    Resources, Scenario, Separation, Sharing, System, TABLE,
};
use anabranch_units::text::{known, printable};
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};
use std::process::ExitCode;

/// A scenario, or a system.
#[derive(clap::Args)]
pub struct Args {
    /// A system of the thesis or of this command: its features, its mechanism, and advice.
    #[arg(value_name = "SYSTEM", conflicts_with_all = ["systems", "resources", "sharing", "layers", "administrations", "granularity", "timescales"])]
    system: Option<String>,
    /// List all systems with their features and mechanisms.
    #[arg(long, conflicts_with_all = ["resources", "sharing", "layers", "administrations", "granularity", "timescales"])]
    systems: bool,
    /// Devices under both control planes: disjoint, partial or full.
    #[arg(long, value_name = "WORD", value_parser = word::<Resources>)]
    resources: Option<Resources>,
    /// Information that they can share: none, incomplete or complete.
    #[arg(long, value_name = "WORD", value_parser = word::<Sharing>)]
    sharing: Option<Sharing>,
    /// Number of layers of a stack: one or two.
    #[arg(long, value_name = "WORD", value_parser = word::<Number>)]
    layers: Option<Number>,
    /// Owners: one, parts (of one company) or two.
    #[arg(long, value_name = "WORD", value_parser = word::<Administrations>)]
    administrations: Option<Administrations>,
    /// Granularities of their decisions: one, or two if one decides coarsely and the other in
    /// detail.
    #[arg(long, value_name = "WORD", value_parser = word::<Number>)]
    granularity: Option<Number>,
    /// Time scales of their decisions: one, or two if one decides slowly and the other fast.
    #[arg(long, value_name = "WORD", value_parser = word::<Number>)]
    timescales: Option<Number>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn word<W: FeatureWord>(text: &str) -> Result<W, String> {
    let found = W::ALL.iter().find(|word| word.name() == text);
    found
        .copied()
        .ok_or_else(|| format!("unknown word, {}", known(text, W::ALL.iter().map(|word| word.name()))))
}

/// Runs the command.
///
/// Errors: a one-line message for the user: an unknown system, or a scenario that leaves a feature
/// open.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let ours = family::recipes();
    let shown = if let Some(name) = &args.system {
        let system = find(name, &ours).or_usage()?;
        if args.json { system_json(system).to_string() } else { system_text(system) }
    } else if args.systems {
        if args.json { systems_json(&ours).to_string() } else { systems_text(&ours) }
    } else {
        let scenario = Scenario {
            layers: args.layers,
            administrations: args.administrations,
            granularity: args.granularity,
            timescales: args.timescales,
            sharing: args.sharing,
            resources: args.resources,
        };
        let answer = scenario.advise().or_usage()?;
        if args.json { answer_json(&answer, &ours).to_string() } else { answer_text(&answer, &ours) }
    };
    outln!("{shown}");
    Ok(ExitCode::SUCCESS)
}

/// Finds a system by name.
///
/// Errors: an unknown name, with the closest one.
fn find<'a>(name: &str, ours: &'a [System]) -> anyhow::Result<&'a System> {
    let mut all = ours.iter().chain(&TABLE);
    let names = ours.iter().chain(&TABLE).map(|system| system.name);
    all.find(|system| system.name == name)
        .ok_or_else(|| anyhow::anyhow!("system `{}`: {}", printable(name), known(name, names)))
}

/// Names of words, separated by `joined`.
fn words<W: FeatureWord>(all: &[W], joined: &str) -> String {
    all.iter().map(|word| word.name()).collect::<Vec<_>>().join(joined)
}

/// Formats lines, each with a label and a text. Lines without text are omitted.
fn lines<const N: usize>(all: [(&str, String); N]) -> String {
    let filled = all.iter().filter(|(_, text)| !text.is_empty());
    filled.map(|(label, text)| format!("{label:<12}{text}")).collect::<Vec<_>>().join("\n")
}

/// Titles of the systems with this mechanism.
fn titles(of: &[System], mechanism: Mechanism) -> String {
    let having = of.iter().filter(|system| system.has == mechanism);
    having.map(|system| system.title).collect::<Vec<_>>().join(", ")
}

fn outside() -> String {
    lines([("not judged", OUTSIDE.join(" "))])
}

fn answer_text(answer: &Answer, ours: &[System]) -> String {
    let stated = |because: FeatureOrigin| match because {
        FeatureOrigin::Stated => "stated".to_owned(),
        FeatureOrigin::Derived(reason) => reason.to_owned(),
    };
    let feature = |name: &str, because: FeatureOrigin, derived: Option<&str>| {
        let note = derived.map(|other| format!("; the scenario alone leads to {other}"));
        format!("{name}: {}{}", stated(because), note.unwrap_or_default())
    };
    let Feature { value, because, derived } = answer.sharing;
    let sharing = feature(value.name(), because, derived.map(FeatureWord::name));
    let resources = answer.resources.map_or_else(
        || "make no difference here".to_owned(),
        |Feature { value, because, derived }| feature(value.name(), because, derived.map(FeatureWord::name)),
    );
    let features = lines([("sharing", sharing), ("resources", resources)]);
    let Some(mechanism) = answer.mechanism else {
        return format!("not covered\n\n{features}\n{}\n\n{}", lines([("why", OPEN.to_owned())]), outside());
    };
    let advice = lines([
        ("what", mechanism.about().to_owned()),
        ("why", mechanism.why().to_owned()),
        ("without it", mechanism.without().to_owned()),
        ("mind", mechanism.mind().to_owned()),
        ("thesis", titles(&TABLE, mechanism)),
        ("here", titles(ours, mechanism)),
    ]);
    format!("{}\n\n{features}\n{advice}\n\n{}", mechanism.name(), outside())
}

fn answer_json(answer: &Answer, ours: &[System]) -> Value {
    let because = |because: FeatureOrigin| match because {
        FeatureOrigin::Stated => "stated",
        FeatureOrigin::Derived(reason) => reason,
    };
    let names = |of: &[System]| -> Vec<&str> {
        let having = of.iter().filter(|system| Some(system.has) == answer.mechanism);
        having.map(|system| system.name).collect()
    };
    json!({
        "mechanism": answer.mechanism.map(FeatureWord::name),
        "is_covered": answer.mechanism.is_some(),
        "sharing": {
            "value": answer.sharing.value.name(), "because": because(answer.sharing.because),
            "derived": answer.sharing.derived.map(FeatureWord::name),
        },
        "resources": answer.resources.map(|found| json!({
            "value": found.value.name(), "because": because(found.because), "derived": found.derived.map(FeatureWord::name),
        })),
        "about": answer.mechanism.map(Mechanism::about),
        "why": answer.mechanism.map_or(OPEN, Mechanism::why),
        "without_it": answer.mechanism.map(Mechanism::without),
        "mind": answer.mechanism.map(Mechanism::mind),
        "systems_of_thesis": names(&TABLE),
        "systems_here": names(ours),
        "not_judged": OUTSIDE,
    })
}

/// Mechanism that the recipes give for each boundary of a system, as one text.
fn recipes(system: &System) -> String {
    let recipe = |separation: &Separation| {
        let found = Scenario::of(*separation).advise().ok().and_then(|answer| answer.mechanism);
        format!("{}: {}", separation.name(), found.map_or("not covered", FeatureWord::name))
    };
    system.separation.iter().map(recipe).collect::<Vec<_>>().join("; ")
}

fn advised(system: &System) -> String {
    system.advice.map_or_else(String::new, |advice| {
        let mechanism = advice.mechanism.map_or("an interface, mechanism not named", FeatureWord::name);
        format!("{mechanism}: {}", advice.reason)
    })
}

fn system_text(system: &System) -> String {
    let sharing = match system.flow {
        Flow::None => system.sharing.name().to_owned(),
        flow => format!("{}, {}", system.sharing.name(), flow.name()),
    };
    let wanted = system.advice.and_then(|advice| advice.mechanism).unwrap_or(system.has);
    let features = lines([
        ("planes", system.planes.to_owned()),
        ("standing", system.relation.name().to_owned()),
        ("separation", words(system.separation, " or ")),
        ("sharing", sharing),
        ("resources", words(system.resources, " or ")),
        ("assumes", system.assumes.to_owned()),
        ("decision", system.decision.name().to_owned()),
        ("harm", words(system.harm, ", ")),
    ]);
    let place = lines([
        ("has", format!("{}, as the rule has it for these features", system.has.name())),
        ("recipe", recipes(system)),
        ("advised", advised(system)),
        ("without", format!("{}: {}", wanted.name(), wanted.without())),
        ("source", system.source.to_owned()),
    ]);
    format!("{}\n\n{features}\n\n{place}", system.title)
}

fn system_json(system: &System) -> Value {
    let names = |words: Vec<&str>| Value::from(words);
    json!({
        "name": system.name,
        "title": system.title,
        "planes": system.planes,
        "standing": system.relation.name(),
        "separation": names(system.separation.iter().map(|word| word.name()).collect()),
        "sharing": system.sharing.name(),
        "flow": system.flow.name(),
        "resources": names(system.resources.iter().map(|word| word.name()).collect()),
        "assumes": system.assumes,
        "decision": system.decision.name(),
        "harm": names(system.harm.iter().map(|word| word.name()).collect()),
        "has": system.has.name(),
        "advice": system.advice.map(|advice| json!({
            "mechanism": advice.mechanism.map(FeatureWord::name), "reason": advice.reason,
        })),
        "source": system.source,
    })
}

fn systems_text(ours: &[System]) -> String {
    let mut rows = comfy_table::Table::new();
    let header = ["system", "control planes", "separation", "sharing", "resources", "has", "advised"];
    rows.load_preset(NOTHING).set_header(header);
    for system in TABLE.iter().chain(ours) {
        let advice = system.advice.map(|advice| advice.mechanism.map_or("an interface", FeatureWord::name));
        rows.add_row([
            system.name.to_owned(),
            system.planes.to_owned(),
            words(system.separation, " or "),
            system.sharing.name().to_owned(),
            words(system.resources, " or "),
            system.has.name().to_owned(),
            advice.unwrap_or_default().to_owned(),
        ]);
    }
    let more = "`anabranch recipe SYSTEM` shows one of them. The last ones are systems of this command, the others those of the thesis's Table 1.1.";
    format!("{}\n\n{more}", rows.trim_fmt())
}

fn systems_json(ours: &[System]) -> Value {
    let all = |of: &[System]| of.iter().map(system_json).collect::<Vec<_>>();
    json!({ "systems_of_thesis": all(&TABLE), "systems_here": all(ours) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_recipes::mechanism;

    #[test]
    fn each_system_of_the_command_has_a_recipe() {
        use clap::Subcommand as _;
        let verbs = family::Verb::augment_subcommands(clap::Command::new("anabranch"));
        let verbs: Vec<_> = verbs.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        let ours = family::recipes();
        assert_eq!(ours.iter().map(|system| system.name).collect::<Vec<_>>(), verbs);
    }

    #[test]
    fn our_systems_have_the_mechanism_of_the_rule() {
        for system in family::recipes() {
            for resources in system.resources {
                assert_eq!(mechanism(*resources, system.sharing), Some(system.has), "{}", system.name);
            }
            let recipes = system.separation.iter().map(|separation| Scenario::of(*separation).advise());
            let departs = recipes.flatten().any(|answer| answer.mechanism != Some(system.has));
            assert_eq!(departs, system.has == Mechanism::Reaction, "{}", system.name);
        }
    }

    #[test]
    fn unknown_system_is_refused_with_the_closest_name() {
        let error = find("vdm", &family::recipes()).unwrap_err().to_string();
        assert!(error.starts_with("system `vdm`: did you mean `vd") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn recipe_lists_systems_and_limits_of_the_matched_rule() {
        let ours = family::recipes();
        let scenario = Scenario {
            sharing: Some(Sharing::Incomplete),
            resources: Some(Resources::Disjoint),
            ..Scenario::default()
        };
        let text = answer_text(&scenario.advise().unwrap(), &ours);
        assert!(text.starts_with("priority ranking\n"), "{text}");
        for part in ["VDX", "broker", "ECN", "stated"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let open = Scenario { resources: Some(Resources::Partial), ..scenario };
        let answer = open.advise().unwrap();
        assert!(answer_text(&answer, &ours).starts_with("not covered\n"));
        assert_eq!(answer_json(&answer, &ours)["is_covered"], false);
    }
}
