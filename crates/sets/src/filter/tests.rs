//! Rules and their order, lists of files, sizes and ages. `disk` compares whole trees with rclone.

use super::*;

fn with(rules: &[&str]) -> Filter {
    let filter = rules.iter().map(|rule| (*rule).to_owned()).collect();
    Filter::new(&Options { filter, ..Options::default() }).unwrap_or_else(|error| panic!("{error}"))
}

fn at(seconds: i64) -> FileTime {
    FileTime::new(seconds, 0).expect("no nanoseconds")
}

#[test]
fn the_first_match_decides() {
    let filter = with(&["- secret*", "+ *.jpg", "- *"]);
    assert!(filter.includes_path(b"a/file.jpg"));
    assert!(!filter.includes_path(b"a/secret.jpg") && !filter.includes_path(b"a/file.png"));
    assert!(with(&[]).includes_path(b"anything") && with(&[]).includes_directory(b"any"));
}

#[test]
fn rules_beyond_paths_are_named_and_dropped() {
    let options = |size_bytes_max| Options {
        filter: vec!["- *.bak".to_owned()],
        size_bytes_max,
        modified_min: size_bytes_max.map(|_| at(5)),
        ..Options::default()
    };
    let filter = Filter::new(&options(Some(1))).expect("right options");
    assert_eq!(filter.beyond_paths(), Some("--max-size"));
    assert!(!filter.includes_file(b"a", 2, at(9)) && !filter.includes_file(b"a", 1, at(4)));
    let of_paths = filter.of_paths();
    assert_eq!((of_paths.beyond_paths(), of_paths.is_open()), (None, false));
    assert!(of_paths.includes_file(b"a", 2, at(4)) && !of_paths.includes_file(b"a.bak", 1, at(9)));
    let ages = Options { modified_min: Some(at(5)), ..Options::default() };
    assert_eq!(Filter::new(&ages).expect("right options").beyond_paths(), Some("--max-age"));
}

#[test]
fn a_reset_drops_earlier_rules() {
    let filter = with(&["- *", "!", "- *.bak"]);
    assert!(filter.includes_path(b"a") && filter.includes_directory(b"a"));
    assert!(!filter.includes_path(b"a.bak"));
}

#[test]
fn excluded_directories_are_not_read() {
    for rule in ["- dir/", "- dir/**", "- /dir/"] {
        let filter = with(&[rule]);
        assert!(!filter.includes_directory(b"dir") && !filter.includes_path(b"dir/a"), "{rule}");
        assert!(filter.includes_directory(b"other") && filter.includes_path(b"dir"), "{rule}");
    }
    let nested = with(&["- dir/"]);
    assert!(!nested.includes_directory(b"a/dir"));
    assert!(with(&["- /dir/"]).includes_directory(b"a/dir"));
}

#[test]
fn included_files_open_their_directories_only() {
    let filter = with(&["+ /a/b/*.txt", "- *"]);
    assert!(filter.includes_directory(b"a") && filter.includes_directory(b"a/b"));
    assert!(!filter.includes_directory(b"c") && !filter.includes_directory(b"a/c"));
    assert!(filter.includes_path(b"a/b/x.txt") && !filter.includes_path(b"a/x.txt"));
}

#[test]
fn includes_exclude_the_rest() {
    let text = Text { name: "rules".to_owned(), text: "# no rule\n  ; nor this\n\n *.png \n".to_owned() };
    let options =
        Options { include: vec!["*.jpg".to_owned()], include_from: vec![text], ..Options::default() };
    let filter = Filter::new(&options).expect("right patterns");
    assert!(filter.includes_path(b"a.jpg") && filter.includes_path(b"d/b.png"));
    assert!(!filter.includes_path(b"a.gif"));
}

#[test]
fn listed_files_are_the_only_ones() {
    let from = |listed| Filter::new(&Options { files_from: vec![listed], ..Options::default() });
    let lines = from(Listed::Lines("# list\n /a/b \n\nc\n".to_owned())).expect("a list");
    assert!(lines.includes_path(b"a/b") && lines.includes_path(b"c") && !lines.includes_path(b"a/c"));
    assert!(lines.includes_directory(b"a") && !lines.includes_directory(b"d"));
    let raw = from(Listed::RawLines("# list\n a".to_owned())).expect("a list");
    assert!(raw.includes_path(b"# list") && raw.includes_path(b" a") && !raw.includes_path(b"a"));
    let zeros = from(Listed::Zeros(b"a\nb\0\xff/x\0".to_vec())).expect("a list");
    assert!(
        zeros.includes_path(b"a\nb") && zeros.includes_path(b"\xff/x") && zeros.includes_directory(b"\xff")
    );
    assert!(!from(Listed::Lines(String::new())).expect("an empty list").includes_path(b"a"));
    let both = Options {
        files_from: vec![Listed::Lines("a".to_owned())],
        exclude: vec!["b".to_owned()],
        ..Options::default()
    };
    assert_eq!(Filter::new(&both).err(), Some(FilterError::FilesFromAlone));
}

#[test]
fn sizes_and_times_bound_files_alone() {
    let options = Options {
        size_bytes_min: Some(10),
        size_bytes_max: Some(20),
        modified_min: Some(at(100)),
        modified_max: Some(at(200)),
        ..Options::default()
    };
    let filter = Filter::new(&options).expect("right bounds");
    for (size, time, expected) in [
        (10, 100, true),
        (20, 200, true),
        (9, 150, false),
        (21, 150, false),
        (15, 99, false),
        (15, 201, false),
    ] {
        assert_eq!(filter.includes_file(b"a", size, at(time)), expected, "{size} {time}");
    }
    assert!(filter.includes_directory(b"a"));
    let reversed = Options { size_bytes_min: Some(21), ..options.clone() };
    assert!(matches!(Filter::new(&reversed), Err(FilterError::Range { .. })));
    let reversed = Options { modified_min: Some(at(201)), ..options };
    assert!(matches!(Filter::new(&reversed), Err(FilterError::Range { .. })));
}

#[test]
fn names_need_not_be_text() {
    let filter = with(&["- a?c", "- *.\u{fffd}"]);
    assert!(!filter.includes_path(b"a\xffc") && filter.includes_path(b"a\xff\xfec"));
    assert!(!filter.includes_path(b"x.\x80"));
}

#[test]
fn errors_of_rules_name_the_rule_and_line() {
    let from = |text: &str| {
        let text = Text { name: "rules.txt".to_owned(), text: text.to_owned() };
        let options = Options { filter_from: vec![text], ..Options::default() };
        Filter::new(&options).expect_err("a wrong rule").to_string()
    };
    assert_eq!(from("+ a\nb"), "`b`: a rule begins with `+ ` or `- `, or is `!` (rules.txt:2)");
    assert_eq!(
        from("\n- {a"),
        "`{a`: `{` lacks its counterpart: write `\\` before it if it is a name's (rules.txt:2)"
    );
    assert_eq!(from("-\n"), "`-`: a rule begins with `+ ` or `- `, or is `!` (rules.txt:1)");
}

#[test]
fn rules_are_bounded() {
    let rules = |count: usize| {
        let filter = (0..count).map(|n| format!("- {n}")).collect();
        Filter::new(&Options { filter, ..Options::default() })
    };
    assert!(rules(RULES_MAX).is_ok());
    assert_eq!(rules(RULES_MAX + 1).err(), Some(FilterError::TooMany));
}

#[test]
fn markers_are_names() {
    let options = Options { exclude_if_present: vec![".ignore".to_owned()], ..Options::default() };
    let filter = Filter::new(&options).expect("a name");
    assert!(filter.has_markers() && filter.is_marker(b".ignore") && !filter.is_marker(b"ignore"));
}
