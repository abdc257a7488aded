//! Plans of a small network, and error messages about invalid demand.

use super::*;

/// Two reflectors; neither reflector has capacity for both channels, as in Figure 4.4.
const NETWORK: &str = r#"
[[node]]
name = "s"
tier = "source"
media = "http://127.0.0.1:7201"
control = "127.0.0.1:7301"
[[node]]
name = "x"
tier = "reflector"
media = "http://127.0.0.1:7202"
control = "127.0.0.1:7302"
[[node]]
name = "y"
tier = "reflector"
media = "http://127.0.0.1:7203"
control = "127.0.0.1:7303"
[[node]]
name = "e"
tier = "edge"
media = "http://127.0.0.1:7204"
[[link]]
from = "s"
to = "x"
capacity = "10Mbit/s"
cost = 10
[[link]]
from = "s"
to = "y"
capacity = "10Mbit/s"
cost = 20
[[link]]
from = "x"
to = "e"
capacity = "6Mbit/s"
cost = 1
[[link]]
from = "y"
to = "e"
capacity = "6Mbit/s"
cost = 1
[[group]]
name = "here"
edges = ["e"]
[[group]]
name = "there"
edges = [{ edge = "e", cost = 3 }]
[[channel]]
name = "news"
renditions = { high = "4Mbit/s", low = "400kbit/s" }
[[channel]]
name = "sport"
renditions = { high = "5Mbit/s" }
"#;

const DEMAND: &str = r#"
[[demand]]
group = "here"
channel = "news"
rendition = "high"
viewers = 30
[[demand]]
group = "there"
channel = "news"
rendition = "high"
viewers = 2
[[demand]]
group = "there"
channel = "sport"
rendition = "high"
viewers = 5
"#;

fn layout() -> Layout {
    Description::from_toml(NETWORK).and_then(Layout::new).expect("a good network")
}

fn answer(slack: f64) -> Answer {
    let layout = layout();
    let demand = demand::read(DEMAND, &layout).expect("good demand");
    let job = job(&layout, demand, ppm(slack));
    let solved = Round::new(RoundSettings::default()).solve(layout.network(), layout.groups(), &job);
    let (plan, report) = solved.expect("small");
    Answer::of(&layout, &job, &plan, &report)
}

#[test]
fn two_channels_use_two_reflectors_if_one_is_narrow() {
    let answer = answer(0.05);
    assert_eq!((answer.requests, answer.requests_served), (3, 3));
    assert_eq!((answer.viewers, answer.viewers_served), (37, 37));
    assert!(answer.links.iter().all(|link| link.streams <= 1 && link.used_bps <= link.plannable_bps));
    // The cheaper reflector carries the channel with the higher bitrate. The cost is 5 * 11 + 4 *
    // 21, plus 3 * (4 + 5) for the group `there`.
    assert!((answer.cost - 166.0).abs() < 1e-9, "{}", answer.cost);
    // The bound is of a relaxed plan, which fills the last 0.7 Mbit/s of the cheap reflector and so
    // saves 7.
    let (gap, plain) = (answer.gap_of_cost_share.expect("it costs"), answer.gap_share);
    assert!((7.0 / 166.0..0.1).contains(&gap) && plain < 0.001, "{gap} {plain}");
}

#[test]
fn unserved_requests_are_named() {
    // If a fifth of each link stays free, the channel `sport` does not fit.
    let answer = answer(0.2);
    assert_eq!((answer.requests_served, answer.viewers_served), (2, 32));
    let sport = answer.trees.iter().find(|tree| tree.channel == "sport").expect("it is asked for");
    assert!(sport.links.is_empty() && sport.groups[0].edge.is_none(), "{sport:?}");
}

#[test]
fn invalid_demand_is_refused_in_one_line_with_location() {
    let cases = [
        ("group = \"here\"", "group = \"her\"", "line 2: demand of group `her`: the network has no group"),
        (
            "channel = \"sport\"",
            "channel = \"x\"",
            "line 12: demand of group `there`: the network has no channel",
        ),
        ("rendition = \"high\"", "rendition = \"hi\"", "no rendition of channel `news` `hi`"),
        ("viewers = 30", "viewers = 0", "line 2: demand of group `here`: 0 viewers: must be from 1 to"),
        ("viewers = 30", "viewers = -1", "line 6: "),
        ("viewers = 30", "viewers = 30\nplace = 1", "line 7: "),
        (
            "channel = \"sport\"",
            "channel = \"news\"",
            "line 12: demand of group `there`: news/high is listed twice",
        ),
    ];
    for (from, to, words) in cases {
        assert!(DEMAND.contains(from), "{from}");
        let error = demand::read(&DEMAND.replacen(from, to, 1), &layout()).expect_err(words);
        let error = format!("{error:#}");
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
    let none = demand::read("", &layout()).expect_err("no demand").to_string();
    assert!(none.contains("add a [[demand]]"), "{none}");
}

fn of_log(text: &str) -> Result<BTreeMap<(GroupId, Object), u64>, String> {
    let records = Records::new(text.as_bytes(), RecordFormat::Requests);
    demand::of_requests(records, &layout()).map_err(|error| format!("{error:#}"))
}

#[test]
fn log_of_requests_is_summed_by_group_and_rendition() {
    let log = "time,video,place,bitrate,viewers\n0,news,here,4Mbit/s,29\n9,news,here,4000 kbit/s,1\n\
               0,news,there,4Mbit/s,2\n0,sport,there,5Mbit/s,5\n";
    assert_eq!(of_log(log), Ok(demand::read(DEMAND, &layout()).expect("good demand")));
    let by_address =
        of_log("time,video,address\n0,sport,192.0.2.1\n").expect("one rendition, one group for all");
    assert_eq!(
        by_address.into_iter().map(|((group, _), viewers)| (group.0, viewers)).collect::<Vec<_>>(),
        [(0, 1)]
    );
}

#[test]
fn invalid_log_record_is_refused_in_one_located_line() {
    let cases = [
        ("time,video\n0,news\n", "no column `place` or `address`"),
        ("time,video,place\n0,sport,here\n0,sport,her\n", "line 3: the network has no group `her`"),
        ("time,video,place\n0,sprot,here\n", "line 2: the network has no channel `sprot`"),
        (
            "time,video,place\n0,news,here\n",
            "line 2: channel `news` has 2 renditions: add a column `bitrate`",
        ),
        (
            "time,video,place,bitrate_kbps\n0,news,here,7\n",
            "line 2: channel `news` has no rendition of 7 kbit/s",
        ),
        ("time,video,place\n0,news\n", "line 2: 2 values: must be 3, as columns"),
        ("time,video,place\n", "no request"),
    ];
    for (log, words) in cases {
        let error = of_log(log).expect_err(words);
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
}

#[test]
fn gaps_are_rounded_up() {
    assert_eq!(
        [percent(0.0), percent(0.000_01), percent(0.001), percent(0.012_34)],
        ["0.00 %", "0.01 %", "0.10 %", "1.24 %"]
    );
}
