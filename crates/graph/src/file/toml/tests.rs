//! Tests of the TOML format: reading, error messages, and writing as the inverse of reading.

use crate::file::{Defaults, Format, parse};
use crate::{CAPACITY_MAX, DELAY_MAX, GeoPoint, LinkProperties, Site, Topology, check_site_name};
use anabranch_units::{BitRate, ByteCount, Duration, LOSS_BURST_MAX, LinkId, SiteId, loss_ppm_max};
use proptest::prelude::*;

fn read(text: &str) -> Result<Topology, String> {
    parse(text, Format::Toml, "net.toml", &Defaults::new(BitRate::mbps(100))).map_err(|e| e.to_string())
}

const SITES: &str = "[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n";

#[test]
fn every_field_of_the_format_is_read() {
    let text = r#"
name = "two continents"
[defaults]
capacity = "1 Gbit/s"
delay = "7 ms"
stretch = 2
cost = 3
loss_ppm = 10
loss_burst = 2
queue = "256 KiB"
[[site]]
name = "amsterdam"
latitude_deg = 52.37
longitude_deg = 4.90
[[site]]
name = "ashburn"
latitude_deg = 39.04
longitude_deg = -77.49
switch = false
[[site]]
name = "nowhere"
switch = true
[[link]]
from = "ashburn"
to = "amsterdam"
capacity = "400 Mbit/s"
delay = "40.5 ms"
cost = 0.5
loss_ppm = 1000
loss_burst = 8
queue = "9000 B"
[[cable]]
between = ["amsterdam", "ashburn"]
[[cable]]
between = ["ashburn", "nowhere"]
[[link]]
from = "0"
to = "1"
distance_km = 6600
"#;
    let t = read(text).expect("a good file");
    assert_eq!(t.name(), "two continents");
    assert_eq!(t.sites().len(), 3);
    assert_eq!(t.site(SiteId(1)).place, Some(GeoPoint { latitude_deg: 39.04, longitude_deg: -77.49 }));
    assert_eq!(t.sites().iter().map(|s| s.is_switch).collect::<Vec<_>>(), [false, false, true]);
    let ends: Vec<_> = t.links().iter().map(|l| (l.from.0, l.to.0)).collect();
    assert_eq!(ends, [(1, 0), (0, 1), (1, 0), (1, 2), (2, 1), (0, 1)], "in file order");
    let own = LinkProperties {
        capacity: BitRate::mbps(400),
        delay: Duration::from_us(40_500),
        cost: 0.5,
        loss_ppm: 1000,
        loss_burst: 8,
        queue: Some(ByteCount::new(9000)),
    };
    assert_eq!(t.link(LinkId(0)).properties, own);
    let by_default = LinkProperties {
        capacity: BitRate::gbps(1),
        delay: Duration::from_ms(7),
        cost: 3.0,
        loss_ppm: 10,
        loss_burst: 2,
        queue: Some(ByteCount::kib(256)),
    };
    assert_eq!(t.link(LinkId(3)).properties, by_default);
    let delay_us = |link| t.link(LinkId(link)).properties.delay.as_us();
    // Amsterdam to Ashburn is 6,200 km; twice that length at 200 m per microsecond.
    assert!((61_500..62_500).contains(&delay_us(1)), "{}", delay_us(1));
    assert_eq!(delay_us(5), 33_023, "distances are of fibre and not stretched");
}

#[test]
fn parallel_links_stay_separate() {
    let cable = "[[cable]]\nbetween = [\"a\", \"b\"]\n";
    let t = read(&format!("{SITES}{cable}{cable}")).expect("two cables");
    assert_eq!(t.links().len(), 4);
    assert_eq!(t.link(LinkId(0)).properties.capacity, BitRate::mbps(100), "the caller's default");
}

#[test]
fn errors_are_one_line_with_their_position() {
    let cases = [
        ("[[site]\n", "not TOML: "),
        ("", "no sites: a topology has at least one (net.toml)"),
        ("site = 3", "the file: site 3: must be an array of tables: write [[site]] (net.toml:1)"),
        (
            "[[sites]]\nname = \"a\"",
            "the file has no field `sites`: use name, [defaults], [[site]], [[cable]], [[link]] (net.toml:1)",
        ),
        ("[[site]]\nlatitude_deg = 1.0", "[[site]] is incomplete: add name = \"…\" (net.toml:1)"),
        (
            "[[site]]\nname = \"a\"\nlatitude_deg = 1.0",
            "[[site]] is incomplete: add longitude_deg (net.toml:1)",
        ),
        (
            "[[site]]\nname = \"a\"\nlatitude_deg = 91\nlongitude_deg = 0",
            "[[site]]: latitude_deg 91: must be degrees from -90 to 90 (net.toml:3)",
        ),
        (
            "[[site]]\nname = \"a\"\nlatitude_deg = 0\nlongitude_deg = nan",
            "[[site]]: longitude_deg nan: must be degrees from -180 to 180 (net.toml:4)",
        ),
        (
            "[[site]]\nname = \"a\"\n[[site]]\nname = \"a\"",
            "site `a` appears twice: give each site its own name (net.toml:3)",
        ),
        ("[[site]]\nname = \"a\"\nswitch = 1", "[[site]]: switch 1: must be true or false (net.toml:3)"),
        (
            "[[site]]\nname = \"a\"\nis_switch = true",
            "[[site]] has no field `is_switch`: use name, latitude_deg, longitude_deg, switch, address (net.toml:3)",
        ),
        ("[[site]]\nname = 4", "[[site]]: name 4: must be a text in quotes (net.toml:2)"),
        ("[[site]]\nname = \"../../x\"", "site `../../x`: a name must not contain `/` (net.toml:1)"),
        ("[[site]]\nname = \"\"", "site ``: a name must not be empty (net.toml:1)"),
        (
            "[defaults]\ncapacity = \"0 bit/s\"\n[[site]]\nname = \"a\"",
            "[defaults]: capacity \"0 bit/s\": must be a rate of at least 1 bit/s such as \"20 Mbit/s\" (net.toml:2)",
        ),
        (
            "[defaults]\nstretch = 0.5\n[[site]]\nname = \"a\"",
            "[defaults]: stretch 0.5: must be a number from 1 to 100 (net.toml:2)",
        ),
    ];
    for (text, message) in cases {
        let error = read(text).expect_err(text);
        assert!(
            error == message || message.ends_with(' ') && error.starts_with(message),
            "{text:?}: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn link_errors_are_one_line_with_their_position() {
    let cases = [
        (
            "[[cable]]\nbetween = [\"a\"]",
            "[[cable]]: between (array): must be two sites: [\"…\", \"…\"] (net.toml:6)",
        ),
        (
            "[[cable]]\nbetween = [\"a\", \"b\"]\nqueue = \"9000\"",
            "[[cable]]: queue \"9000\": must be a size such as \"256 KiB\": write \"9000 B\" (net.toml:7)",
        ),
        ("[[cable]]\nbetween = [\"a\", \"z\"]", "no site `z` in this topology: there are a, b (net.toml:6)"),
        (
            "[[cable]]\nbetween = [\"a\", \"a\"]",
            "link from `a` to itself: a link joins two different sites (net.toml:5)",
        ),
        (
            "[[cable]]\nfrom = \"a\"",
            "[[cable]] has no field `from`: use between, capacity, delay, distance_km, cost, loss_ppm, loss_burst, queue (net.toml:6)",
        ),
        ("[[link]]\nfrom = \"a\"", "[[link]] is incomplete: add to = \"…\" (net.toml:5)"),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\ncapacity = \"20\"",
            "[[link]]: capacity \"20\": must be a rate of at least 1 bit/s such as \"20 Mbit/s\": write \"20 bit/s\" (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\ndelay = 5",
            "[[link]]: delay 5: must be a time such as \"5 ms\" (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\ndelay = \"5 ms\"\ndistance_km = 3",
            "[[link]] gives both `delay` and `distance_km`: keep one of them (net.toml:9)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\ndistance_km = -1",
            "[[link]]: distance_km -1: must be a number of km from 0 to 2000000 (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\nloss_ppm = 1000001",
            "[[link]]: loss_ppm 1000001: must be a whole number from 0 to 1000000 (1000 is 0.1 %) (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\nloss_burst = 0",
            "[[link]]: loss_burst 0: must be a whole number of packets from 1 to 1000000 (1: each is lost on its own) (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\nloss_burst = 2.5",
            "[[link]]: loss_burst 2.5: must be a whole number of packets from 1 to 1000000 (1: each is lost on its own) (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\nloss_ppm = 800001\nloss_burst = 4",
            "link a to b: loss_ppm 800001: must be at most 800000 with loss_burst 4, as between two bursts a packet arrives (net.toml:5)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\ncost = inf",
            "[[link]]: cost inf: must be a finite number, at least 0 (net.toml:8)",
        ),
        (
            "[[link]]\nfrom = \"a\"\nto = \"b\"\nqueue = \"many\"",
            "[[link]]: queue \"many\": must be a size such as \"256 KiB\" (net.toml:8)",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(read(&format!("{SITES}{text}")).expect_err(text), message);
    }
    assert!(read(&format!("{SITES}[[link]]\nfrom = \"a\"\nto = \"b\"\nloss_ppm = 1000000")).is_ok());
}

#[test]
fn site_beyond_the_maximum_is_refused() {
    let sites = |n: usize| (0..n).map(|i| format!("[[site]]\nname = \"s{i}\"\n")).collect::<String>();
    assert_eq!(read(&sites(4096)).expect("at the limit").sites().len(), 4096);
    assert_eq!(read(&sites(4097)).expect_err("past it"), "more than 4096 sites (net.toml:8193)");
}

fn topologies() -> impl Strategy<Value = Topology> {
    let place = (-90.0..=90.0f64, -180.0..=180.0f64)
        .prop_map(|(latitude_deg, longitude_deg)| GeoPoint { latitude_deg, longitude_deg });
    let site = (proptest::option::of(place), any::<bool>());
    let name = "\\PC{1,8}|[\"'\\\\]{1,3}".prop_filter("a site's name", |name| check_site_name(name).is_ok());
    let sites = proptest::collection::btree_map(name, site, 2..6);
    let properties = (
        1..=CAPACITY_MAX.as_bps(),
        0..=DELAY_MAX.as_ps(),
        prop_oneof![Just(1.0), 0.0..1e300, 0.0..1e-300],
        (0..=1_000_000u32, prop_oneof![Just(1), 1..=LOSS_BURST_MAX]),
        proptest::option::of(any::<u64>()),
    );
    let properties =
        properties.prop_map(|(capacity, delay, cost, (loss_ppm, loss_burst), queue)| LinkProperties {
            capacity: BitRate::bps(capacity),
            delay: Duration::from_ps(delay),
            cost,
            loss_ppm: loss_ppm.min(loss_ppm_max(loss_burst).expect("in range")),
            loss_burst,
            queue: queue.map(ByteCount::new),
        });
    let links = proptest::collection::vec((any::<(u16, u16, bool)>(), properties), 0..8);
    ("\\PC{0,12}", sites, links).prop_map(|(name, sites, links)| {
        let mut t = Topology::new(name);
        for (number, (name, (place, is_switch))) in sites.into_iter().enumerate() {
            let hosts = ["10.0.0.0/8", "::1", "relay.example"].get(number).map(|h| h.parse().expect("hosts"));
            t.push_site(Site { name, place, is_switch, hosts }).expect("a map's keys differ");
        }
        let n = t.sites().len() as u16;
        for ((a, b, is_cable), properties) in links {
            let (a, b) = (SiteId(a % n), SiteId(b % n));
            if a != b && is_cable {
                t.add_cable(a, b, properties).expect("good properties");
            } else if a != b {
                t.add_link(a, b, properties).expect("good properties");
            }
        }
        t
    })
}

proptest! {
    #[test]
    fn written_topology_reads_back_equal(t in topologies()) {
        let text = super::write(&t);
        prop_assert_eq!(read(&text), Ok(t), "{}", text);
    }

    #[test]
    fn random_text_never_makes_the_toml_reader_panic(text in "\\PC{0,200}|([a-z\\[\\]\"={},.#\\n 0-9]{0,200})") {
        let _ = read(&text);
    }
}
