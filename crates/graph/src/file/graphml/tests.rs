//! Tests of the GraphML reader with samples in the style of the Internet Topology Zoo, and of its
//! error messages.

use crate::file::{Defaults, Format, parse, parse_with_warnings};
use crate::{GeoPoint, Topology};
use anabranch_units::{BitRate, Duration, LinkId, SiteId};
use proptest::prelude::*;

const RING: &str = include_str!("../../../../../fuzz/corpus/topology_graphml/ring.graphml");
const GAPS: &str = include_str!("../../../../../fuzz/corpus/topology_graphml/gaps.graphml");
const ONE_WAY: &str = include_str!("../../../../../fuzz/corpus/topology_graphml/one_way.graphml");

fn read(text: &str) -> Result<Topology, String> {
    parse(text, Format::GraphMl, "zoo.graphml", &Defaults::new(BitRate::mbps(100))).map_err(|e| e.to_string())
}

fn names(t: &Topology) -> Vec<&str> {
    t.sites().iter().map(|s| s.name.as_str()).collect()
}

fn rates_mbps(t: &Topology) -> Vec<f64> {
    t.links().iter().map(|l| l.properties.capacity.as_mbps_f64()).collect()
}

#[test]
fn zoo_file_has_names_positions_rates_and_delays() {
    let t = read(RING).expect("a good file");
    assert_eq!(t.name(), "Ring sample");
    assert_eq!(names(&t), ["Geneva", "Bern", "Zürich"]);
    assert_eq!(t.site(SiteId(1)).place, Some(GeoPoint { latitude_deg: 46.94809, longitude_deg: 7.44744 }));
    assert_eq!(rates_mbps(&t), [10_000.0, 10_000.0, 2_500.0, 2_500.0, 100.0, 100.0]);
    // Geneva to Bern: 129 km, times 1.5, at 200 km per millisecond.
    let delay = t.link(LinkId(0)).properties.delay;
    assert!((960..975).contains(&delay.as_us()), "{delay}");
    assert_eq!(t.link(LinkId(1)).properties.delay, delay, "undirected means both ways");
}

#[test]
fn gaps_are_filled_and_shared_labels_distinguished() {
    let t = read(GAPS).expect("a good file");
    assert_eq!(t.name(), "topology");
    assert_eq!(names(&t), ["New York (0)", "New York (1)", "2", "n3", "4"]);
    assert_eq!(t.links().len(), 10, "parallel edges stay apart");
    assert_eq!(rates_mbps(&t)[..6], [100.0, 100.0, 1_000.0, 1_000.0, 100.0, 100.0], "0 means not known");
    assert_eq!(t.link(LinkId(0)).properties.delay, Duration::ZERO, "the same place");
    assert_eq!(t.link(LinkId(4)).properties.delay, Duration::from_ms(5), "a place is not known");
}

#[test]
fn directed_edges_are_one_way() {
    let t = read(ONE_WAY).expect("a good file");
    let ends: Vec<_> = t.links().iter().map(|l| (l.from.0, l.to.0)).collect();
    assert_eq!(ends, [(0, 1), (0, 1), (1, 0)]);
    assert_eq!(rates_mbps(&t), [155.0, 0.064, 0.064]);
}

#[test]
fn generated_node_name_never_equals_another_label() {
    let node = |id: &str, label: &str| format!("<node id='{id}'><data key='l'>{label}</data></node>");
    let nodes = [node("1", "x"), node("2", "x"), node("3", "x (1)")].concat();
    let text = format!(
        "<graphml><key attr.name='label' for='node' id='l'/><graph edgedefault='undirected'>{nodes}</graph></graphml>"
    );
    assert_eq!(names(&read(&text).expect("a good file")), ["x (1)'", "x (2)", "x (1)"]);
}

#[test]
fn errors_are_one_line_with_their_position() {
    let of = |body: &str| {
        format!(
            "<graphml>\n<key attr.name='Latitude' for='node' id='a'/><key attr.name='Longitude' for='node' id='o'/>\
             <key attr.name='LinkSpeed' for='edge' id='s'/><key attr.name='LinkSpeedUnits' for='edge' id='u'/>\n\
             <graph edgedefault='undirected'>\n<node id='p'/><node id='q'/>\n{body}\n</graph></graphml>"
        )
    };
    let cases = [
        ("<graphml>\n<graph>".to_owned(), "not XML: "),
        ("<gml/>".to_owned(), "neither GraphML nor SNDlib's XML: the first element is <gml> (zoo.graphml:1)"),
        ("<graphml/>".to_owned(), "not GraphML: there is no <graph> (zoo.graphml:1)"),
        ("<graphml><graph/></graphml>".to_owned(), "no sites: a topology has at least one (zoo.graphml)"),
        ("<!DOCTYPE g [<!ENTITY a \"b\">]><g/>".to_owned(), "a DTD (<!DOCTYPE …>) is not read: delete it"),
        (of("<hyperedge/>"), "a hyperedge: write it as edges between pairs of nodes (zoo.graphml:5)"),
        (
            of("<node id='r'><graph/></node>"),
            "a graph inside a node: keep its nodes in the outer graph (zoo.graphml:5)",
        ),
        (of("<node/>"), "node: id (missing): must be there (zoo.graphml:5)"),
        (of("<node id='p'/>"), "node: id p: must be unlike every other node's (zoo.graphml:5)"),
        (of("<edge source='p'/>"), "edge: target (missing): must be the id of a node (zoo.graphml:5)"),
        (
            of("<edge source='p' target='z'/>"),
            "edge names node `z`, which the file does not have: add the node (zoo.graphml:5)",
        ),
        (
            of("<edge source='p' target='q' directed='no'/>"),
            "edge: directed no: must be `true` or `false` (zoo.graphml:5)",
        ),
        (
            of("<edge source='p' target='q'>\n<data key='s'>fast</data></edge>"),
            "edge: LinkSpeed fast: must be a number from 0 to 1e15 bit/s (zoo.graphml:6)",
        ),
        (
            of("<edge source='p' target='q'><data key='s'>2</data><data key='u'>Q</data></edge>"),
            "edge: LinkSpeedUnits Q: must be one of K, M, G, T (zoo.graphml:5)",
        ),
        (
            of("<node id='r'><data key='a'>95</data><data key='o'>0</data></node>"),
            "node: Latitude 95: must be degrees from -90 to 90 (zoo.graphml:5)",
        ),
        (
            of("<node id='r'><data key='a'>5</data><data key='o'>east</data></node>"),
            "node: Longitude east: must be degrees from -180 to 180 (zoo.graphml:5)",
        ),
    ];
    for (text, message) in cases {
        let error = read(&text).expect_err(&text);
        assert!(error.starts_with(message), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

proptest! {
    #[test]
    fn damaged_graphml_never_makes_the_reader_panic(at in 0usize..3_000, remove in 0usize..40, insert in "\\PC{0,8}|[<>&/='\"0-9]{0,6}") {
        for text in [RING, GAPS, ONE_WAY] {
            let mut damaged: Vec<char> = text.chars().collect();
            let at = at % damaged.len();
            let end = (at + remove).min(damaged.len());
            damaged.splice(at..end, insert.chars());
            let _ = read(&damaged.into_iter().collect::<String>());
        }
    }
}

/// A file of two sites, with `attributes` on its first element and `inside` as additional content.
fn two_sites(attributes: &str, inside: &str) -> String {
    format!(
        "<graphml {attributes}>{inside}<graph><node id='1'/><node id='2'/><edge source='1' target='2'/></graph></graphml>"
    )
}

/// #17: the parser's time grew with the cube of the number of nested namespaces: 2.5 s for 2,500
/// namespaces (65 KB), 20 s for 5,000.
#[test]
fn sixteen_namespaces_are_read_and_more_refused_before_parsing() {
    let declared = |count: usize| (0..count).map(|n| format!("xmlns:a{n}='x{n}' ")).collect::<String>();
    assert!(read(&two_sites(&declared(16), "")).is_ok());
    let said = read(&two_sites(&declared(17), "")).expect_err("one more");
    assert!(said.contains("more than 16 declarations of namespaces (xmlns)"), "{said}");
    let nested: String = (0..5_000).map(|n| format!("<a xmlns:a{n}='x{n}'>\n")).collect();
    let said = read(&two_sites("", &nested)).expect_err("many more");
    assert!(said.contains("more than 16 declarations") && said.ends_with("(zoo.graphml:17)"), "{said}");
}

/// #17: 60,000 attributes of one element took 2.5 s.
#[test]
fn sixty_four_attributes_are_read_and_more_refused() {
    let attributes = |count: usize| (0..count).map(|n| format!("a{n} = 'x' ")).collect::<String>();
    assert!(read(&two_sites(&attributes(64), "")).is_ok());
    for count in [65, 60_000] {
        let said = read(&two_sites(&attributes(count), "")).expect_err("too many");
        assert!(said.contains("more than 64 attributes in an element"), "{said}");
    }
}

#[test]
fn text_quotes_and_comments_hold_no_attribute_or_namespace() {
    let many = "xmlns:a='b' ".repeat(100);
    let quoted = "xmlns:a= > ".repeat(100);
    let aside = format!("<!-- {many} > <b {many}> --><?p {many}?><data>{many}<![CDATA[<b {many}>]]></data>");
    let text =
        two_sites(&format!("xmlns='http://graphml.graphdrawing.org/xmlns' label=\"{quoted}\""), &aside);
    assert_eq!(read(&text).map(|t| t.sites().len()), Ok(2));
}

fn loaded(text: &str) -> crate::file::LoadedTopology {
    let defaults = Defaults::new(BitRate::mbps(100));
    parse_with_warnings(text, Format::GraphMl, "zoo.graphml", &defaults).expect("a good file")
}

/// #52: Interoute in the Zoo was refused because it has edges from a node to itself.
#[test]
fn edges_from_a_node_to_itself_are_left_out() {
    let file =
        |edges: &str| format!("<graphml><graph><node id='p'/><node id='q'/>\n{edges}</graph></graphml>");
    let one = loaded(&file("<edge source='p' target='p'/><edge source='p' target='q'/>"));
    assert_eq!(one.topology.links().len(), 2);
    assert_eq!(one.warnings, ["an edge from a node to itself is left out (zoo.graphml:2)"]);
    let two = loaded(&file("<edge source='p' target='p'/><edge source='q' target='q'/>"));
    assert_eq!(two.warnings, ["2 edges from a node to itself are left out (zoo.graphml:2)"]);
}

/// #52: files of networkx have no labels; their capacities and delays were ignored without a
/// warning.
#[test]
fn networkx_attributes_are_read_or_cause_warnings() {
    let file = |units: &str, edge: &str| {
        format!(
            "<graphml><key for='edge' attr.name='capacity' id='d0'/><key for='edge' attr.name='delay' id='d1'/>\
             <key for='edge' attr.name='bandwidth' id='d2'/><key for='edge' attr.name='colour' id='d3'/>\
             <key for='graph' attr.name='capacity_unit' id='d4'/><key for='graph' attr.name='delay_unit' id='d5'/>\
             <key for='node' attr.name='Latitude' id='d6'/><key for='node' attr.name='Longitude' id='d7'/>\
             <graph>{units}<node id='n0'><data key='d6'>NaN</data><data key='d7'>nan</data></node><node id='n1'/>\n\
             <edge source='n0' target='n1'>{edge}</edge></graph></graphml>"
        )
    };
    let properties = |loaded: &crate::file::LoadedTopology| {
        let link = &loaded.topology.links()[0].properties;
        (link.capacity, link.delay)
    };
    let with_units = loaded(&file(
        "",
        "<data key='d0'>10 Gbit/s</data><data key='d1'>7 ms</data><data key='d3'>red</data>",
    ));
    assert_eq!(names(&with_units.topology), ["n0", "n1"]);
    assert_eq!(with_units.topology.sites()[0].place, None, "NaN is missing");
    assert_eq!(properties(&with_units), (BitRate::gbps(10), Duration::from_ms(7)));
    assert_eq!(with_units.warnings, Vec::<String>::new());
    let units = "<data key='d4'>Mbps</data><data key='d5'>us</data>";
    let fnss = loaded(&file(units, "<data key='d0'>2.5</data><data key='d1'>30</data>"));
    assert_eq!(properties(&fnss), (BitRate::bps(2_500_000), Duration::from_us(30)));
    let plain = loaded(&file("", "<data key='d0'>10</data><data key='d2'>10</data>"));
    assert_eq!(properties(&plain), (BitRate::mbps(100), Duration::from_ms(5)));
    assert_eq!(
        plain.warnings,
        [
            "`capacity` of edges is a number without a unit and is not read: write it as `10 Gbit/s`, or give the graph `capacity_unit` (zoo.graphml:2)",
            "fields of edges that are not read: `bandwidth`: name them `capacity` or `delay`, with a unit as in `10 Gbit/s`, if they are (zoo.graphml:2)",
        ]
    );
    for (edge, said) in [
        ("<data key='d0'>fast</data>", "edge: capacity fast: must be a rate such as `10 Gbit/s`"),
        ("<data key='d1'>-3 ms</data>", "edge: delay -3 ms: must be a time such as `5 ms`"),
        ("<data key='d1'>2 h</data>", "edge: delay 2 h: must be a time such as `5 ms`"),
    ] {
        let error = read(&file("", edge)).expect_err(edge);
        assert!(error.starts_with(said), "{error}");
    }
}

/// #52: yEd stores labels in the drawing of nodes, declares all edges as directed, and shows the
/// direction by arrows.
#[test]
fn yed_files_have_labels_and_arrows() {
    let node = |id: &str, label: &str| {
        format!(
            "<node id='{id}'><data key='d6'><y:ShapeNode><y:NodeLabel a='b'>{label}</y:NodeLabel></y:ShapeNode></data></node>"
        )
    };
    let edge = |ends: &str, source: &str, target: &str| {
        format!(
            "<edge {ends}><data key='d9'><y:PolyLineEdge><y:Arrows source='{source}' target='{target}'/></y:PolyLineEdge></data></edge>"
        )
    };
    let text = [
        "<graphml xmlns:y='http://www.yworks.com/xml/graphml'><key for='node' id='d6' yfiles.type='nodegraphics'/>",
        "<key for='edge' id='d9' yfiles.type='edgegraphics'/><graph edgedefault='directed' id='G'>",
        &node("n0", "core"),
        &node("n1", "edge 1"),
        &edge("source='n0' target='n1'", "none", "none"),
        &edge("source='n0' target='n1'", "none", "standard"),
        &edge("source='n0' target='n1'", "delta", "none"),
        &edge("source='n0' target='n1'", "standard", "standard"),
        "</graph></graphml>",
    ];
    let topology = loaded(&text.concat()).topology;
    assert_eq!(names(&topology), ["core", "edge 1"]);
    let links: Vec<_> = topology.links().iter().map(|link| (link.from.0, link.to.0)).collect();
    assert_eq!(links, [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0)]);
}
