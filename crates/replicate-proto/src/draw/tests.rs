//! Pictures of hand-made plans: their contents, determinism, and well-formedness.

use super::*;
use crate::plan::{DecodeMap, FlowId, Group, Mode, Sink, Term};
use anabranch_graph::LinkProperties;
use anabranch_graph::builtin::builtin;
use anabranch_units::LinkId;

const UNIT: BitRate = BitRate::mbps(20);

fn link(topology: &Topology, from: &str, to: &str) -> LinkId {
    let ends = (topology.find_site(from).expect("a site"), topology.find_site(to).expect("a site"));
    topology
        .link_ids()
        .find(|l| (topology.link(*l).from, topology.link(*l).to) == ends)
        .unwrap_or_else(|| panic!("no link {from} to {to}"))
}

/// A flow over `from-to` that adds the terms: `A` is a stream, a number is a flow, optionally with
/// a factor before it.
fn flow(topology: &Topology, hop: &str, terms: &str) -> Flow {
    let (from, to) = hop.split_once('-').expect("a hop is two sites");
    let term = |text: &str| {
        let (factor, of) = text.split_once('*').unwrap_or(("1", text));
        let (of, delayed) = of.strip_suffix('\'').map_or((of, false), |of| (of, true));
        let input = match of.parse() {
            Ok(f) => Input::Flow(FlowId(f)),
            Err(_) => Input::Stream(u16::from(of.as_bytes()[0] - b'A')),
        };
        Term { input, coefficient: factor.parse().expect("a factor"), delayed }
    };
    Flow { group: 0, link: link(topology, from, to), terms: terms.split('+').map(term).collect() }
}

fn plan(
    topology: &Topology,
    scheme: Scheme,
    source: u16,
    to: &[u16],
    streams: u16,
    flows: &[(&str, &str)],
) -> Plan {
    let mode = if scheme == Scheme::Coded { Mode::Coded } else { Mode::Routed };
    let decode = DecodeMap { lookahead: 0, state: 0, output: vec![], next: vec![] };
    let sink = |d: &u16| Sink {
        site: SiteId(*d),
        inputs: vec![],
        decode: (mode == Mode::Coded).then(|| decode.clone()),
    };
    Plan {
        scheme,
        source: SiteId(source),
        destinations: to.iter().map(|d| SiteId(*d)).collect(),
        unit: UNIT,
        groups: vec![Group {
            streams,
            weights: vec![],
            mode,
            sinks: to.iter().map(sink).collect(),
            fills: None,
        }],
        flows: flows.iter().map(|(hop, terms)| flow(topology, hop, terms)).collect(),
        rate: UNIT * u64::from(streams),
        bound: UNIT * 2,
        store_and_forward: false,
    }
}

fn butterfly() -> (Topology, Plan) {
    let t = builtin("butterfly", UNIT).expect("built in");
    let flows = [
        ("s-a", "A"),
        ("s-b", "B"),
        ("a-t1", "0"),
        ("a-c", "0"),
        ("b-t2", "1"),
        ("b-c", "1"),
        ("c-d", "3+5"),
        ("d-t1", "6"),
        ("d-t2", "6"),
    ];
    let p = plan(&t, Scheme::Coded, 0, &[5, 6], 2, &flows);
    (t, p)
}

/// A plan coded by hand: seattle to kansas-city, atlanta and new-york at two units.
fn internet2() -> (Topology, Plan) {
    let t = builtin("internet2", UNIT).expect("built in");
    let flows = [
        ("0-1", "A"),
        ("0-2", "B"),
        ("1-3", "0"),
        ("2-4", "1"),
        ("3-4", "2"),
        ("3-5", "2"),
        ("4-6", "3+3*4"),
        ("6-5", "6"),
        ("5-7", "5"),
        ("7-8", "8"),
        ("6-8", "6"),
    ];
    let p = plan(&t, Scheme::Coded, 0, &[4, 5, 8], 2, &flows);
    (t, p)
}

fn b4() -> (Topology, Plan) {
    let t = builtin("b4", UNIT).expect("built in");
    let flows = [
        ("0-1", "A"),
        ("0-3", "B"),
        ("1-2", "0"),
        ("2-3", "2"),
        ("3-2", "1"),
        ("2-12", "2"),
        ("3-12", "1"),
        ("2-4", "2"),
        ("3-5", "1"),
        ("4-6", "7"),
        ("5-6", "8"),
        ("5-7", "8"),
        ("4-7", "7"),
        ("6-9", "9+10"),
        ("7-10", "11+142*12"),
        ("9-10", "13"),
        ("10-11", "14"),
        ("9-11", "13"),
        ("10-9", "14"),
    ];
    let p = plan(&t, Scheme::Coded, 0, &[3, 6, 11, 12], 2, &flows);
    (t, p)
}

fn trees() -> (Topology, Plan) {
    let t = builtin("b4", UNIT).expect("built in");
    let flows = [
        ("0-1", "A"),
        ("0-3", "B"),
        ("1-2", "0"),
        ("2-3", "2"),
        ("3-12", "3"),
        ("3-5", "3"),
        ("5-6", "5"),
        ("3-4", "1"),
        ("4-6", "7"),
        ("4-2", "7"),
        ("2-12", "9"),
    ];
    let p = plan(&t, Scheme::Packed, 0, &[3, 6, 12], 2, &flows);
    (t, p)
}

fn series() -> Vec<ThroughputSeries> {
    let mut all = Vec::new();
    for (name, rate, end) in [
        ("auto (packed)", 39.0, 70),
        ("coded", 37.5, 72),
        ("steiner", 19.0, 140),
        ("multi_path", 13.2, 203),
        ("single_path", 19.2, 138),
    ] {
        let wave = |i: u64| 1.0 - (-(i as f64) / 4.0).exp() + (i as f64 * 1.7).sin() * 0.03;
        let points =
            (1..=end).map(|i| (Duration::from_ms(100 * i), BitRate::bps((rate * 1e6 * wave(i)) as u64)));
        let whole = Some((BitRate::bps((rate * 1e6) as u64), Duration::from_ms(100 * end)));
        all.push(ThroughputSeries { name: name.into(), points: points.collect(), whole });
    }
    all
}

/// Checks that the text is well-formed: every element is closed, and no markup remains in the text.
fn elements(text: &str) -> usize {
    let opened = text.matches('<').count() - text.matches("</").count();
    let closed = text.matches("/>").count() + text.matches("</").count();
    assert_eq!(opened, closed, "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    opened
}

#[test]
fn coded_plan_shows_sums_at_their_sites() {
    let (t, p) = butterfly();
    let text = svg(&t, Some(&p), Theme::Light);
    elements(&text);
    assert!(text.contains("⊕ A+B<"), "{text}");
    assert!(
        text.contains(">coded: 40 Mbit/s of the min-cut&apos;s")
            || text.contains("coded: 40 Mbit/s of the min-cut's 40 Mbit/s (100 %)")
    );
    let (t, p) = internet2();
    let text = svg(&t, Some(&p), Theme::Light);
    assert!(text.contains("⊕ 3·A+B<"), "{text}");
}

/// #17: the legend listed `passes on` although no site passed data on, and links had no label with
/// their contents.
#[test]
fn legend_matches_the_picture_and_links_show_their_contents() {
    let has = |text: &str, words: [bool; 4]| {
        let all = [">destination<", ">destination, passes on<", ">codes (⊕ what it adds)<", ">passes on<"];
        assert_eq!(all.map(|word| text.contains(word)), words, "{text}");
    };
    let (t, p) = trees();
    let text = svg(&t, Some(&p), Theme::Light);
    has(&text, [true, true, false, true]);
    assert!(text.contains("links of 20 Mbit/s"), "{text}");
    let (t, p) = butterfly();
    has(&svg(&t, Some(&p), Theme::Light), [true, false, true, true]);
    let mut pair = Topology::new("pair");
    let ends: Vec<_> = ["a", "b", "c"].iter().map(|n| pair.add_site(*n, None).expect("new")).collect();
    for (to, mbps) in [(1, 10), (2, 30)] {
        let properties = LinkProperties::new(BitRate::mbps(mbps), Duration::from_ms(1));
        pair.add_link(ends[0], ends[to], properties).expect("two sites");
    }
    let p = plan(&pair, Scheme::SinglePath, 0, &[1, 2], 1, &[("a-b", "A"), ("a-c", "A")]);
    let text = svg(&pair, Some(&p), Theme::Dark);
    has(&text, [true, false, false, false]);
    assert!(text.contains(">10 Mbit/s<") && text.contains(">30 Mbit/s<"), "{text}");
}

#[test]
fn sums_use_field_arithmetic_and_delays_are_marked() {
    let t = builtin("butterfly", UNIT).expect("built in");
    // 2 * 142 = 1 under 0x11D, so the second flow undoes the first flow's factor.
    let flows = [("s-a", "2*A+B"), ("a-c", "142*0"), ("s-b", "A+B"), ("b-c", "B'+2")];
    let p = plan(&t, Scheme::Coded, 0, &[3], 2, &flows);
    let carried = Content::of(&t, &p);
    let of = |f: usize| carried.classes[carried.class[f]].as_str();
    assert_eq!([of(0), of(1), of(2), of(3)], ["2·A+B", "A+142·B", "A+B", "A+B+B′"]);
}

#[test]
fn a_cyclic_code_is_drawn_too() {
    let t = builtin("internet2", UNIT).expect("built in");
    let flows =
        [("0-1", "A"), ("0-2", "B"), ("1-2", "0+3'"), ("2-1", "1+2'"), ("1-3", "3+0"), ("2-4", "2+1")];
    let p = plan(&t, Scheme::Coded, 0, &[3, 4], 2, &flows);
    let text = svg(&t, Some(&p), Theme::Dark);
    elements(&text);
    // An endless feedback is too long to write. It gets a name, and the sums use that name.
    assert!(text.contains(">f1 = ") && text.contains("⊕ A+f"), "{text}");
}

#[test]
fn pictures_are_deterministic_and_show_all_flows_and_sites() {
    for (t, p) in [butterfly(), internet2(), b4(), trees()] {
        let text = svg(&t, Some(&p), Theme::Light);
        assert_eq!(text, svg(&t, Some(&p), Theme::Light));
        elements(&text);
        for site in t.sites() {
            assert!(text.contains(&format!(">{}<", site.name)), "{}", site.name);
        }
        assert!(text.matches("<polygon").count() >= p.flows.len());
        elements(&svg(&t, None, Theme::Dark));
    }
}

/// The boxes of all names, sums and labels of a picture, by their text, without the legend and the
/// titles.
fn labels(text: &str) -> Vec<(String, Box2)> {
    let number = |line: &str, field: &str| -> f64 {
        let (_, rest) =
            line.split_once(&format!(" {field}=\"")).unwrap_or_else(|| panic!("no {field} in {line}"));
        rest.split('"').next().and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{field} in {line}"))
    };
    let middles = text.lines().filter(|l| l.starts_with("<text") && l.contains("text-anchor=\"middle\""));
    middles
        .map(|line| {
            let (x, y, size) = (number(line, "x"), number(line, "y"), number(line, "font-size"));
            let content = line.split_once('>').and_then(|(_, rest)| rest.split_once("</")).expect("a text").0;
            (content.to_owned(), Box2::around((x, y - size * 0.35), text_width(content, size), size))
        })
        .collect()
}

#[test]
fn labels_of_the_built_in_topologies_do_not_overlap() {
    for (t, p) in [butterfly(), internet2(), b4(), trees()] {
        for text in [svg(&t, Some(&p), Theme::Light), svg(&t, None, Theme::Light)] {
            let labels = labels(&text);
            assert!(labels.len() > t.sites().len());
            for (i, (a, first)) in labels.iter().enumerate() {
                for (b, second) in &labels[..i] {
                    assert!(first.overlap(second) == 0.0, "{}: `{a}` and `{b}`", t.name());
                }
            }
        }
    }
}

#[test]
fn fill_flows_are_dashed_lines_with_separate_letters() {
    let (t, mut p) = butterfly();
    let plain = svg(&t, Some(&p), Theme::Light);
    p.groups.push(Group { streams: 1, weights: vec![], mode: Mode::Routed, sinks: vec![], fills: Some(0) });
    for (hop, terms) in [("s-a", "A"), ("a-t1", "9")] {
        p.flows.push(Flow { group: 1, ..flow(&t, hop, terms) });
    }
    let text = svg(&t, Some(&p), Theme::Light);
    elements(&text);
    assert!(text.contains("C fills") && !plain.contains("fills"));
    let broken = |svg: &str| svg.matches(FILL_DASH).count();
    assert_eq!((broken(&plain), broken(&text)), (0, 3), "two flows and the legend");
}

#[test]
fn hostile_and_degenerate_topologies_are_drawn() {
    elements(&svg(&Topology::new("nothing"), None, Theme::Light));
    let mut t = Topology::new("<&\"\u{1}>");
    let site = t.add_site("<script>&", None).expect("a first site");
    let text = svg(&t, None, Theme::Light);
    elements(&text);
    assert!(!text.contains("<script>") && !text.contains('\u{1}'));
    let mut other = None;
    for i in 0..30 {
        other = Some(t.add_site(format!("{i}"), None).expect("names differ"));
    }
    let far = LinkProperties::new(UNIT, Duration::from_ms(5));
    t.add_cable(site, other.expect("thirty sites"), far).expect("a good cable");
    elements(&svg(&t, None, Theme::Light));
}

#[test]
fn a_chart_names_its_axes_and_series() {
    let text = throughput_svg("Internet2", &series(), Some(BitRate::mbps(40)), Theme::Light);
    elements(&text);
    for part in [
        "delivered (Mbit/s)",
        "time since the start (s)",
        "min-cut bound",
        "single_path",
        "19.20 Mbit/s, 13.8 s",
        "stroke-dasharray",
    ] {
        assert!(text.contains(part), "{part}");
    }
    elements(&throughput_svg("empty", &[], None, Theme::Dark));
    let one = ThroughputSeries { name: "one".into(), points: vec![], whole: None };
    elements(&throughput_svg("no points", &[one], Some(BitRate::bps(0)), Theme::Dark));
}
