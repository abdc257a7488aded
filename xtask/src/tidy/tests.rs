//! Every rule of tidy, on a text that keeps it and on one that breaks it.

use super::walls::{Kind, Room, line_of, wall};
use super::*;

const TABLE: &str = "\
# Rooms

| room | kind | what | may use |
| --- | --- | --- | --- |
| `units` | pure | quantities | – |
| `graph` | pure | networks | `units` |
| `replicate-proto` | proto | a system | `units`, `graph` |
| `net` | driver | sockets | `units` |
| `cli` | top | verbs | `units`, `graph`, `replicate-proto`, `net` |

| planned room | what |
| --- | --- |
| `gather` | a system |
";

fn table() -> Table {
    let (table, findings) = Table::parse(TABLE);
    assert_eq!(findings, []);
    table
}

fn room(name: &str, uses: &[&str]) -> Room {
    let uses = uses.iter().enumerate().map(|(i, u)| ((*u).to_owned(), 10 + i)).collect();
    Room { name: name.into(), manifest: format!("crates/{name}/Cargo.toml"), uses, dependencies: Vec::new() }
}

fn all_rooms() -> Vec<Room> {
    vec![
        room("units", &[]),
        room("graph", &["units"]),
        room("replicate-proto", &["units", "graph"]),
        room("net", &["units"]),
        room("cli", &["units", "graph", "replicate-proto", "net"]),
    ]
}

fn lines(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(Finding::to_string).collect()
}

/// Findings of one Rust file as `line: rule`.
fn of_file(path: &str, text: &str) -> Vec<String> {
    check_file(&table(), path, text).iter().map(|f| format!("{}: {}", f.line, f.rule.name())).collect()
}

#[test]
fn table_is_read_without_planned_rooms() {
    let table = table();
    assert_eq!(table.rows.len(), 5);
    assert_eq!(table.rows["cli"].may_use, ["units", "graph", "replicate-proto", "net"]);
    assert_eq!(table.rows["net"].kind, Kind::Driver);
    assert!(table.rows["units"].may_use.is_empty());
}

#[test]
fn a_broken_table_is_a_finding() {
    let with = |row: &str| {
        let text = format!("| room | kind | may use |\n| --- | --- | --- |\n| `units` | pure | – |\n{row}\n");
        lines(&Table::parse(&text).1)
    };
    assert!(with("").is_empty());
    assert_eq!(
        with("| units | pure | – |"),
        ["ARCHITECTURE.md:4: table: `units` is not one room's name in backticks"]
    );
    let kinds = "must be pure, network, proto, driver, service, top or tool";
    assert_eq!(
        with("| `net` | drivers | – |"),
        [format!("ARCHITECTURE.md:4: table: kind `drivers`: {kinds}")]
    );
    assert_eq!(
        with("| `units` | pure | – |"),
        ["ARCHITECTURE.md:4: table: room `units` has two rows: keep one"]
    );
    assert_eq!(with("| `net` | driver | `x` |"), ["ARCHITECTURE.md:4: table: `x` has no row of its own"]);
    assert_eq!(Table::parse("no table").1.len(), 1);
}

#[test]
fn allowed_edges_pass_and_other_edges_are_named() {
    assert!(check_rooms(&table(), &all_rooms()).is_empty());
    let mut rooms = all_rooms();
    rooms[1] = room("graph", &["units", "replicate-proto"]);
    assert_eq!(
        lines(&check_rooms(&table(), &rooms)),
        [
            "crates/graph/Cargo.toml:11: edge: `graph` may not use `replicate-proto`: ARCHITECTURE.md:6 allows it units",
            "crates/graph/Cargo.toml:11: wall: `graph` uses `replicate-proto`, which stands above it: arrows go down only",
        ]
    );
}

#[test]
fn rooms_and_rows_match_one_to_one() {
    let mut rooms = all_rooms();
    rooms.push(room("spare", &[]));
    rooms.remove(3);
    assert_eq!(
        lines(&check_rooms(&table(), &rooms)),
        [
            "crates/spare/Cargo.toml:1: table: room `spare` has no row in ARCHITECTURE.md's table: add one",
            "ARCHITECTURE.md:8: table: room `net` is not in the workspace: move its row to the planned rooms",
        ]
    );
}

#[test]
fn a_grant_that_no_manifest_uses_is_a_finding() {
    let mut rooms = all_rooms();
    rooms[4] = room("cli", &["units", "graph", "net"]);
    assert_eq!(
        lines(&check_rooms(&table(), &rooms)),
        ["ARCHITECTURE.md:9: grant: `cli` does not use `replicate-proto`: take the grant out of the row"]
    );
}

#[test]
fn service_may_use_drivers_and_its_own_proto() {
    let service = |used: &str, kind: Kind| wall("gather", Kind::Service, used, kind);
    for kind in [Kind::Pure, Kind::Network, Kind::Driver] {
        assert_eq!(service("room", kind), None, "{kind:?}");
    }
    assert_eq!(service("gather-proto", Kind::Proto), None);
    assert!(service("shuffle-proto", Kind::Proto).is_some_and(|m| m.contains("its own is `gather-proto`")));
    assert!(service("shuffle", Kind::Service).is_some());
    assert_eq!(wall("cli", Kind::Top, "gather", Kind::Service), None);
    for kind in [Kind::Pure, Kind::Network, Kind::Proto, Kind::Driver] {
        assert!(wall("room", kind, "gather", Kind::Service).is_some(), "{kind:?}");
    }
}

#[test]
fn proto_may_use_no_driver_or_proto() {
    assert!(check_walls(&table()).is_empty());
    let text = TABLE.replace("`units`, `graph` |", "`units`, `net`, `gather-proto` |").replace(
        "| `net` | driver | sockets | `units` |",
        "| `net` | driver | sockets | `replicate-proto` |\n| `gather-proto` | proto | another | `units` |",
    );
    assert_eq!(
        lines(&check_walls(&Table::parse(&text).0)),
        [
            "ARCHITECTURE.md:8: wall: driver `net` uses proto `replicate-proto`: take any machine, and join them in a service",
            "ARCHITECTURE.md:7: wall: proto `replicate-proto` uses driver `net`: return a machine and let the driver take it",
            "ARCHITECTURE.md:7: wall: proto `replicate-proto` uses proto `gather-proto`: move what they share into a room below",
        ]
    );
}

#[test]
fn dependency_line_differs_from_dev_dependency_line() {
    let manifest = "[dev-dependencies]\nanabranch-net.workspace = true\n[dependencies]\nanabranch-netx = \"1\"\nanabranch-net = \"1\"\n";
    assert_eq!(line_of(manifest, "anabranch-net"), 5);
    assert_eq!(line_of(manifest, "anabranch-codes"), 1);
}

#[test]
fn a_module_opens_with_its_doc() {
    assert!(of_file("crates/graph/src/a.rs", "\n//! What it is.\nfn f() {}\n").is_empty());
    assert_eq!(of_file("crates/graph/src/a.rs", "\n// What it is.\n"), ["2: module-doc"]);
    assert_eq!(of_file("crates/graph/src/a.rs", ""), ["1: module-doc"]);
    assert!(of_file("docs/a.md", "no Rust").is_empty());
}

#[test]
fn ignored_doc_examples_are_reported() {
    let example = |info: &str| format!("//! A.\n\n/// ```{info}\n/// f();\n/// ```\nfn f() {{}}\n");
    for good in ["", "no_run", "text", "rust"] {
        assert!(of_file("crates/graph/src/a.rs", &example(good)).is_empty(), "{good}");
    }
    for bad in ["ignore", "rust,ignore", "ignore-x86"] {
        assert_eq!(of_file("crates/graph/src/a.rs", &example(bad)), ["3: ignored-example"], "{bad}");
    }
}

#[test]
fn only_rooms_that_meet_the_machine_lift_bans() {
    let text = "//! A.\n#![allow(\n    clippy::disallowed_methods,\n)]\n";
    for good in ["crates/net/src/lib.rs", "crates/cli/src/main.rs", "crates/graph/tests/it/main.rs"] {
        assert!(of_file(good, text).is_empty(), "{good}");
    }
    for bad in
        ["crates/graph/src/lib.rs", "crates/replicate-proto/src/tests/x.rs", "crates/unknown/src/lib.rs"]
    {
        assert_eq!(of_file(bad, text), ["3: lifted-ban"], "{bad}");
    }
    assert!(of_file("crates/graph/src/a.rs", "//! A.\n// not clippy::disallowed_methods\n").is_empty());
}

#[test]
fn unfinished_code_is_found_and_mentions_are_not() {
    let path = "crates/graph/src/a.rs";
    assert_eq!(of_file(path, "//! A.\nfn f() { todo!() }\n"), ["2: unfinished"]);
    assert_eq!(of_file(path, "//! A.\nfn f() { std::unimplemented!(\"x\") }\n"), ["2: unfinished"]);
    let talk = "//! A todo!() is not allowed.\n/* todo!() /* */ todo!() */\nconst A: &str = \"todo!()\";\n\
                const B: &str = r#\"\" todo!()\"#;\nconst C: (char, char, &[u8]) = ('\"', '\\'', br\"todo!\");\n\
                fn f<'a>(x: &'a str) { my_todo!(x) } // todo!()\n";
    assert!(of_file(path, talk).is_empty());
}

#[test]
fn ignored_and_should_panic_tests_are_found() {
    let path = "crates/graph/src/a.rs";
    assert_eq!(of_file(path, "//! A.\n#[test]\n#[ignore]\nfn t() {}\n"), ["3: loose-test"]);
    assert_eq!(of_file(path, "//! A.\n#[should_panic(expected = \"x\")]\nfn t() {}\n"), ["2: loose-test"]);
    assert!(of_file(path, "//! A.\n#[ignore = \"needs TUN\"]\nfn t() {}\n").is_empty());
}

#[test]
fn machine_paths_are_found_in_every_file_kind() {
    let home = MACHINE_FOLDERS[1];
    assert_eq!(of_file("docs/a.md", &format!("see {home}x\n")), ["1: machine-path"]);
    assert_eq!(
        of_file("Makefile", &format!("a:\n\tcp x \"{}y\"\n", MACHINE_FOLDERS[4])),
        ["2: machine-path"]
    );
    for good in ["https://example.org", "crates", "$ROOT}", "~"] {
        assert!(of_file("docs/a.md", &format!("see {good}{home}x\n")).is_empty(), "{good}");
    }
}

#[test]
fn line_may_declare_a_necessary_exception() {
    let home = MACHINE_FOLDERS[1];
    assert!(
        of_file("Makefile", &format!("x = {home}y # tidy-allow: machine-path, the container's own\n"))
            .is_empty()
    );
    assert_eq!(of_file("Makefile", &format!("x = {home}y # tidy-allow: edge\n")), ["1: machine-path"]);
}

#[test]
fn the_repository_itself_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the repository");
    run(Args { place: Repository { root: Some(root.to_owned()) }, accept: false })
        .expect("see the lines above");
}
