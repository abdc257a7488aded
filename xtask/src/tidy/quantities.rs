//! Names of quantities in JSON and in rows: the last word of a name, apart from a qualifier, is its
//! unit, and a quantity has the same unit everywhere.
//!
//! Looks at the fields of serialised types, at names written into JSON by hand, and at the columns
//! of tables. Leaves out: types that are only read, because users choose the names in their input;
//! tests; and names made at run time, which `anabranch_record` checks when a row is written. Read
//! [`fault`] first.

use super::{Finding, Rule};

/// Paths of code that makes rows for figures. Units other than SI units are allowed there, because
/// the columns' names contain them.
const ROWS: [&str; 7] = [
    "crates/sim/",
    "crates/emu/",
    "crates/record/",
    "crates/rehearse/src/demo.rs",
    "crates/rehearse/src/codedbulk",
    "crates/cli/src/simulate",
    "xtask/",
];

fn has_rows(path: &str) -> bool {
    ROWS.iter().any(|begin| path.starts_with(begin)) || path.contains("/simulated") || path.ends_with(".csv")
}

/// Returns what is wrong with the name of a quantity; `None` for a good name. `is_number` is false
/// if the value is a text with a unit.
fn fault(name: &str, is_number: bool, is_row: bool) -> Option<&'static str> {
    let words: Vec<&str> = name.split('_').collect();
    let has = |units: &[&str]| {
        let is_date = |at: usize| at > 0 && words[at - 1] == "unix";
        words.iter().enumerate().any(|(at, word)| units.contains(word) && !is_date(at))
    };
    if has(&["seconds"]) {
        Some("times end in `_s`: took_s")
    } else if name == "bytes" {
        Some("say which bytes: length_bytes")
    } else if name == "rate" && is_number {
        Some("rates end in `_bps`: rate_bps")
    } else if !is_row && has(&["kbps", "mbps", "gbps"]) {
        Some("rates end in `_bps`, bits a second; only rows for figures have other units")
    } else if !is_row && has(&["ms", "us"]) {
        Some("times end in `_s`, and times of day in `_unix_ms`; only rows for figures have other units")
    } else {
        None
    }
}

/// Findings of a table's columns, whose names are in the first line that is no comment.
pub(super) fn check_columns(path: &str, text: &str) -> Vec<Finding> {
    let header = text.lines().enumerate().find(|(_, line)| !line.starts_with('#'));
    let columns = header.into_iter().flat_map(|(i, line)| line.split(',').map(move |name| (i, name)));
    columns.filter_map(|(i, name)| finding(path, i, name, true)).collect()
}

/// Findings of a Rust file, whose `code` is without comments and literals.
pub(super) fn check(path: &str, text: &str, code: &str) -> Vec<Finding> {
    if path.contains("/tests/") || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let lines: Vec<(&str, &str)> = text.lines().zip(code.lines()).collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0].1.trim() == "#[cfg(test)]" && pair[1].1.trim_start().starts_with("mod "));
    let lines = &lines[..tests.unwrap_or(lines.len())];
    let mut findings = fields(path, lines);
    for (i, (raw, _)) in lines.iter().enumerate().filter(|(_, (raw, _))| !raw.trim_start().starts_with("//"))
    {
        findings.extend(keys(raw).filter_map(|name| finding(path, i, name, true)));
    }
    findings
}

fn finding(path: &str, line: usize, name: &str, is_number: bool) -> Option<Finding> {
    let fault = fault(name, is_number, has_rows(path))?;
    Some(Finding::new(path, line + 1, Rule::Quantity, format!("`{name}`: {fault}")))
}

/// The names that a line puts into an object: `"name": value`, `insert("name"`.
fn keys(line: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<&str> = line.split('"').collect();
    let quoted = (1..parts.len().saturating_sub(1)).step_by(2);
    quoted.filter_map(move |at| {
        let is_key = parts[at + 1].starts_with(": ") || parts[at - 1].ends_with("insert(");
        is_key.then_some(parts[at])
    })
}

/// The fields of types that derive `Serialize`, under the names that they have in JSON.
fn fields(path: &str, lines: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut is_serialised, mut depth, mut renamed) = (false, 0, None);
    for (i, (raw, code)) in lines.iter().enumerate() {
        let line = code.trim_start();
        if depth == 0 && line.starts_with("#[derive(") {
            is_serialised = line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "Serialize");
        }
        if line.starts_with("#[") {
            let name = raw.split_once("rename = \"").and_then(|(_, rest)| rest.split_once('"'));
            renamed = name.map(|(name, _)| name).or(renamed);
            continue;
        }
        let is_head = depth == 0 && ["struct ", "enum "].iter().any(|word| line.contains(word));
        if is_serialised && (depth > 0 || is_head) {
            for (name, kind) in
                named(if is_head { line.split_once('{').map_or("", |(_, rest)| rest) } else { line })
            {
                let name = renamed.take().unwrap_or(name);
                findings.extend(finding(path, i, name, is_number(kind)));
            }
            depth += line.matches('{').count();
            depth -= line.matches('}').count().min(depth);
            is_serialised = depth > 0;
        } else if is_head {
            is_serialised = false;
        }
    }
    findings
}

/// Fields of a line, `name: Type` each, with the rest of the text after each name.
fn named(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.match_indices(": ").filter_map(|(at, colon)| {
        let begin = line[..at].rfind(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_');
        let name = &line[begin.map_or(0, |begin| begin + 1)..at];
        (!name.is_empty()).then_some((name, &line[at + colon.len()..]))
    })
}

fn is_number(kind: &str) -> bool {
    let kind = kind.trim_start_matches("Option<").trim_start_matches("Vec<");
    let word = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    ["u8", "u16", "u32", "u64", "u128", "usize", "i32", "i64", "f32", "f64"].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::code::code_only;

    fn of(path: &str, text: &str) -> Vec<String> {
        let found = check(path, text, &code_only(text));
        found
            .iter()
            .map(|f| format!("{}: {}", f.line, f.message.split(':').next().unwrap_or_default()))
            .collect()
    }

    const CLI: &str = "crates/cli/src/x.rs";

    #[test]
    fn fields_of_serialised_types_have_the_house_s_units() {
        let bad = "#[derive(Clone, Serialize)]\npub struct A {\n    /// seconds: f64\n    pub seconds: f64,\n    bytes: Option<u64>,\n    rate: u64,\n    \
                   rate_mbps: f64,\n    delay_us: u64,\n    wait_ms_max: u64,\n}\n";
        assert_eq!(
            of(CLI, bad),
            [
                "4: `seconds`",
                "5: `bytes`",
                "6: `rate`",
                "7: `rate_mbps`",
                "8: `delay_us`",
                "9: `wait_ms_max`"
            ]
        );
        let good = "#[derive(serde::Serialize)]\nstruct A<'a> {\n    took_s: f64,\n    length_bytes: u64,\n    rate: BitRate,\n    at_unix_ms: u64,\n    \
                    rate_bps_max: u64,\n    columns: usize,\n    bytes_of: &'a str,\n}\n";
        assert_eq!(of(CLI, good), [""; 0]);
    }

    #[test]
    fn renamed_fields_and_variant_fields_count_as_written() {
        let text = "#[derive(Serialize)]\nenum A {\n    B { flow: u32, bytes: u64 },\n    C(u64),\n    D {\n        #[serde(rename = \"rate_bps\")]\n        rate: u64,\n        \
                    #[serde(rename = \"seconds\")]\n        time: f64,\n    },\n}\nstruct Other {\n    seconds: f64,\n}\n";
        assert_eq!(of(CLI, text), ["3: `bytes`", "9: `seconds`"]);
        let read = "#[derive(Deserialize)]\nstruct A {\n    seconds: f64,\n}\n";
        assert_eq!(of(CLI, read), [""; 0], "users' words");
    }

    #[test]
    fn names_written_by_hand_count_and_tests_do_not() {
        let text = "fn f() {\n    let a = json!({ \"seconds\": 1, \"took_s\": 2 });\n    o.insert(\"rate_mbps\".into(), 1);\n    \
                    // \"seconds\": 1\n    table([\"bytes\", \"rate\"]);\n}\n#[cfg(test)]\nmod tests {\n    const A: &str = json!({ \"seconds\": 1 });\n}\n";
        assert_eq!(of(CLI, text), ["2: `seconds`", "3: `rate_mbps`"]);
        assert_eq!(of("crates/cli/tests/it/x.rs", text), [""; 0]);
    }

    #[test]
    fn rows_for_figures_may_use_other_units() {
        let text = "#[derive(Serialize)]\nstruct Row {\n    rate_mbps: f64,\n    fct_us_mean: f64,\n    seconds: f64,\n}\n";
        for path in ["crates/sim/src/rows.rs", "xtask/src/bench/x.rs", "crates/gather-proto/src/simulated.rs"]
        {
            assert_eq!(of(path, text), ["5: `seconds`"], "{path}");
        }
        let columns = |text: &str| check_columns("experiments/x/y.csv", text).len();
        assert_eq!(columns("# points: seed=1\nservers,goodput_mbps,took_s\n1,2,seconds\n"), 0);
        assert_eq!(columns("servers,seconds,rate\n"), 2);
    }
}
