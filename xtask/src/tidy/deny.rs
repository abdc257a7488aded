//! Crates from outside: allowed licences, sources and names, by `deny.toml` at the root.
//!
//! cargo-deny reads the same file. The file is checked here because building cargo-deny on a fresh
//! machine takes 141 crates (95 s of CPU time without optimisation). Licences, sources and names do
//! not need it. Leaves out: advisories, and crates in two versions. Read [`check`] first.

use super::{Finding, Rule};
use cargo_metadata::Metadata;
use serde::Deserialize;

/// Path of the file in the repository.
pub(super) const DENY: &str = "deny.toml";

/// All keys that the file may have. Another key is an error, because nothing would check it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Deny {
    licenses: Licenses,
    sources: Sources,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Level,
    unknown_git: Level,
    allow_registry: Vec<String>,
}

/// The only level that the file may set.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Deny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

/// A crate that the workspace is built of.
struct Crate<'a> {
    name: &'a str,
    license: Option<&'a str>,
    /// Registry or repository of the crate; `None` for the workspace's own crates.
    source: Option<&'a str>,
}

/// Checks all crates of the workspace against the text of `deny.toml`.
pub(super) fn check(text: &str, metadata: &Metadata) -> Vec<Finding> {
    let crates = metadata.packages.iter().map(|package| Crate {
        name: &package.name,
        license: package.license.as_deref(),
        source: package.source.as_ref().map(|source| source.repr.as_str()),
    });
    check_crates(text, crates)
}

fn check_crates<'a>(text: &str, crates: impl Iterator<Item = Crate<'a>>) -> Vec<Finding> {
    let found = |message: String| Finding::new(DENY, 1, Rule::Deny, message);
    let deny: Deny = match toml::from_str(text) {
        Ok(deny) => deny,
        Err(error) => {
            let error = error.to_string();
            return vec![found(error.split_whitespace().collect::<Vec<_>>().join(" "))];
        }
    };
    let (Level::Deny, Level::Deny) = (&deny.sources.unknown_registry, &deny.sources.unknown_git);
    let mut findings = Vec::new();
    for of in crates {
        let name = of.name;
        let allowed = |license: &str| deny.licenses.allow.iter().any(|allowed| allowed == license);
        match of.license {
            None => findings.push(found(format!("`{name}` names no licence"))),
            Some(license) if !satisfied(license, &allowed) => {
                findings.push(found(format!("`{name}`: licence `{license}` is not among those allowed")));
            }
            Some(_) => {}
        }
        let from = of.source.map(|source| source.strip_prefix("registry+").unwrap_or(source));
        if let Some(from) = from.filter(|from| !deny.sources.allow_registry.iter().any(|r| r == from)) {
            findings.push(found(format!("`{name}` comes from {from}, which is no source allowed")));
        }
        if let Some(ban) = deny.bans.deny.iter().find(|ban| ban.name == name) {
            findings.push(found(format!("`{name}` may not be used: {}", ban.reason)));
        }
    }
    findings
}

/// Returns whether a licence expression (SPDX 2.3, annex D; `/` is an old `OR`) offers an allowed
/// choice.
fn satisfied(expression: &str, allowed: &impl Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest, allowed) && rest.is_empty()
}

/// Evaluates `all OR all …`.
fn any(rest: &mut &[&str], allowed: &impl Fn(&str) -> bool) -> bool {
    let mut is = all(rest, allowed);
    while let Some(after) = rest.strip_prefix(&["OR"]) {
        *rest = after;
        is |= all(rest, allowed);
    }
    is
}

/// Evaluates `one AND one …`, which binds closer than `OR`.
fn all(rest: &mut &[&str], allowed: &impl Fn(&str) -> bool) -> bool {
    let mut is = one(rest, allowed);
    while let Some(after) = rest.strip_prefix(&["AND"]) {
        *rest = after;
        is &= one(rest, allowed);
    }
    is
}

/// A licence, with an exception or without, or an expression in brackets.
fn one(rest: &mut &[&str], allowed: &impl Fn(&str) -> bool) -> bool {
    match *rest {
        ["(", after @ ..] => {
            *rest = after;
            let is = any(rest, allowed);
            *rest = rest.strip_prefix(&[")"]).unwrap_or(&["unclosed"]);
            is
        }
        [license, "WITH", exception, after @ ..] => {
            *rest = after;
            allowed(&format!("{license} WITH {exception}"))
        }
        [license, after @ ..] => {
            *rest = after;
            allowed(license)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]\n\
                        [sources]\nunknown-registry = \"deny\"\nunknown-git = \"deny\"\nallow-registry = [\"https://x\"]\n\
                        [bans]\ndeny = [{ crate = \"bad\", reason = \"it is\" }]\n";

    fn of(text: &str, name: &str, license: Option<&str>, source: Option<&str>) -> Vec<String> {
        let findings = check_crates(text, [Crate { name, license, source }].into_iter());
        findings.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn licences_are_read_as_expressions() {
        let allowed = |license: &str| ["MIT", "Apache-2.0", "A WITH B"].contains(&license);
        for good in [
            "MIT",
            "MIT OR X",
            "X OR MIT",
            "MIT/X",
            "X OR A WITH B",
            "(X OR MIT) AND Apache-2.0",
            "X AND X OR MIT",
            "MIT OR X AND X",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "X",
            "MIT AND X",
            "MIT WITH B",
            "(MIT OR X) AND X",
            "MIT AND",
            "(MIT",
            "MIT)",
            "MIT MIT",
            "mit",
        ] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn disallowed_licences_sources_and_crates_are_found() {
        assert!(of(TEXT, "good", Some("MIT"), Some("registry+https://x")).is_empty());
        assert!(of(TEXT, "own", Some("Apache-2.0"), None).is_empty());
        assert_eq!(of(TEXT, "a", None, None), ["`a` names no licence"]);
        assert_eq!(
            of(TEXT, "a", Some("GPL-3.0"), None),
            ["`a`: licence `GPL-3.0` is not among those allowed"]
        );
        for source in ["registry+https://y", "git+https://x"] {
            assert_eq!(of(TEXT, "a", Some("MIT"), Some(source)).len(), 1, "{source}");
        }
        assert_eq!(of(TEXT, "bad", Some("MIT"), None), ["`bad` may not be used: it is"]);
    }

    #[test]
    fn unchecked_keys_and_levels_are_refused() {
        for (from, to) in [
            ("[bans]", "[bans]\nwildcards = \"deny\""),
            ("unknown-git = \"deny\"", "unknown-git = \"allow\""),
        ] {
            assert_eq!(of(&TEXT.replace(from, to), "a", Some("MIT"), None).len(), 1, "{to}");
        }
    }
}
