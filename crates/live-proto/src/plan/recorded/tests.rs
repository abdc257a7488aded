//! Tests of the readers of recorded requests, and of their error messages.

use super::*;
use proptest::prelude::*;

fn records(text: &str, format: RecordFormat) -> Result<Vec<RecordedRequest>, String> {
    Records::new(text.as_bytes(), format).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn log(text: &str) -> Result<Vec<RecordedRequest>, String> {
    records(text, RecordFormat::Requests)
}

fn window(text: &str, from: Option<u64>, seconds: u64) -> Result<RecordedWindow, RecordError> {
    let records = Records::new(text.as_bytes(), RecordFormat::Requests);
    let from = from.map(|from| Instant::from_us(from * 1_000_000));
    RecordedWindow::read(records, from, Duration::from_secs(seconds), |address| address.to_string())
}

#[test]
fn log_columns_are_read_in_any_order() {
    let read = log("viewers,video,user agent,bitrate,time,place\n3,\"a, b\",x,2.5 Mbit/s,1.25,paris\n");
    let expected = RecordedRequest {
        line: 2,
        time: Instant::from_us(1_250_000),
        place: Some(ViewerLocation::Name("paris".to_owned())),
        video: "a, b".to_owned(),
        bitrate: Some(BitRate::bps(2_500_000)),
        viewers: 3,
    };
    assert_eq!(read, Ok(vec![expected]));
    let read = log("time,video,address,bitrate_kbps\n0,v,2001:db8::1,400\n").expect("a log");
    assert_eq!(read[0].place, Some(ViewerLocation::Address("2001:db8::1".parse().expect("an address"))));
    assert_eq!((read[0].bitrate, read[0].viewers), (Some(BitRate::bps(400_000)), 1));
    let read = log("time,video\n0,v\n").expect("a log");
    assert_eq!((&read[0].place, read[0].bitrate), (&None, None));
}

#[test]
fn bad_records_are_refused_by_line() {
    let cases = [
        ("", "line 1: no column `time`: the first line names the columns"),
        ("time,place\n", "line 1: no column `video`: the first line names the columns"),
        ("time,video,time\n", "line 1: column `time` is there twice: remove one"),
        ("time,video,place,address\n", "line 1: columns `place` and `address`: remove one of them"),
        ("time,video\n1,v\n1\n", "line 3: 1 values: must be 2, as columns"),
        ("time,video\n\n\n-1,v\n", "line 4: time `-1`: must be seconds from 0 to 1e12, as 1417392000.25"),
        (
            "time,video\r\n\r\n1,\"a\nb\"\r\n\r\nx,v",
            "line 6: time `x`: must be seconds from 0 to 1e12, as 1417392000.25",
        ),
        ("time,video\nNaN,v\n", "line 2: time `NaN`: must be seconds from 0 to 1e12, as 1417392000.25"),
        ("time,video\n1,\n", "line 2: video ``: must be a name of 1 to 256 bytes"),
        ("time,video,address\n1,v,paris\n", "line 2: address `paris`: must be an address, as 192.0.2.1"),
        (
            "time,video,bitrate\n1,v,400\n",
            "line 2: bitrate `400`: must be a rate from 1 bit/s to 1 Tbit/s with its unit, as 2.5 Mbit/s",
        ),
        (
            "time,video,bitrate_kbps\n1,v,0\n",
            "line 2: bitrate_kbps `0`: must be a whole number from 1 to 1000000000",
        ),
        ("time,video,viewers\n1,v,0\n", "line 2: viewers `0`: must be a whole number from 1 to 1000000000"),
    ];
    for (text, expected) in cases {
        assert_eq!(log(text).expect_err(text), expected);
    }
    let latin = Records::new(&b"time,video\n1,caf\xe9\n"[..], RecordFormat::Requests).last();
    let error = latin.expect("a record").expect_err("it is not UTF-8");
    assert_eq!(error.to_string(), "line 2: text that is not UTF-8");
}

#[test]
fn records_are_read_up_to_their_limits() {
    let line = |bytes: usize| format!("time,video,comment\n1,v,{}\n", "c".repeat(bytes - 5));
    // The reader fetches whole buffers, and the first buffer also holds the heading.
    assert!(log(&line(RECORD_BYTES_MAX - 8_192)).is_ok());
    assert!(log(&line(RECORD_BYTES_MAX + 8_192)).expect_err("too long").contains("more than 65536 bytes"));
    let unclosed = format!("time,video\n1,\"v\n{}", "1,v\n".repeat(100_000));
    assert_eq!(
        log(&unclosed).expect_err("too long"),
        "line 2: a record of more than 65536 bytes: look for a quote without its end"
    );
    let name = |bytes: usize| log(&format!("time,video\n1,{}\n", "v".repeat(bytes)));
    assert!(name(NAME_BYTES_MAX).is_ok() && name(NAME_BYTES_MAX + 1).is_err());
}

#[test]
fn sessions_of_2019_begin_with_their_first_round() {
    let read =
        records("1,34347669376,grimnax,5415,5419\n2,33848559952,sal_gu,0,0\n", RecordFormat::Twitch2019);
    let read = read.expect("sessions");
    assert_eq!(read[0].time, Instant::from_us(5_415 * 600 * 1_000_000));
    assert_eq!((read[0].video.as_str(), read[0].viewers, read[1].line), ("grimnax", 1, 2));
    let refused = |text: &str| records(text, RecordFormat::Twitch2019).expect_err(text);
    assert_eq!(refused("1,2,a,3\n"), "line 1: 4 values: must be 5, as columns");
    assert_eq!(refused("1,2,a,3,4\n1,2,a,7,4\n"), "line 2: stop `4`: must be no earlier than start");
    assert_eq!(
        refused("user,stream,streamer,start,stop\n"),
        "line 1: start `start`: must be the number of a round"
    );
}

#[test]
fn snapshots_of_2015_count_viewers() {
    let line = |id: &str, views: &str, kbps: &str| {
        let columns =
            [id, views, "t", "say \"hi", "9", "n", "0", "1", "0", "en", "5", "en", "t", kbps, "1280x720"];
        columns.join("\t") + "\n"
    };
    let text = line("a", "12", "2142.36") + &line("b", "0", "100") + &line("c", "7", "0");
    let read = records(&text, RecordFormat::Twitch2015).expect("a snapshot");
    let of = |at: usize| (read[at].line, read[at].video.as_str(), read[at].viewers, read[at].bitrate);
    assert_eq!(of(0), (1, "a", 12, Some(BitRate::bps(2_142_360))));
    assert_eq!(of(1), (3, "c", 7, None));
    assert_eq!(read.len(), 2, "a stream without viewers asks for nothing");
    let refused = records(&line("a", "-1", "0"), RecordFormat::Twitch2015).expect_err("it is negative");
    assert_eq!(refused, "line 1: current views `-1`: must be a whole number from 0 to 1000000000");
}

#[test]
fn window_begins_at_the_earliest_request() {
    let text = "time,video,place\n9,c,x\n3,b,y\n4,b,y\n13,d,x\n2,a,z\n";
    let first = window(text, None, 5).expect("a window");
    assert_eq!((first.from(), first.requests()), (Instant::from_us(2_000_000), 3));
    assert_eq!(
        (first.videos(), first.places()),
        (&["b", "a"].map(String::from)[..], &["y", "z"].map(String::from)[..])
    );
    let later = window(text, Some(4), 9).expect("a window");
    assert_eq!(later.videos(), ["b", "c"].map(String::from), "9 s after 4 s are over at 13 s");
    let error = window(text, Some(100), 60).expect_err("nothing is asked then");
    assert!(error.to_string().contains("no request in this window"), "{error}");
}

#[test]
fn window_refuses_requests_above_its_limit() {
    let many = |count: usize| "time,video\n".to_owned() + &"1,v\n".repeat(count);
    assert_eq!(window(&many(REQUESTS_MAX), None, 1).map(|window| window.requests()), Ok(REQUESTS_MAX));
    let line = REQUESTS_MAX as u64 + 2;
    assert_eq!(
        window(&many(REQUESTS_MAX + 1), None, 1),
        Err(RecordError { line, fault: RecordFault::TooMany })
    );
}

proptest! {
    #[test]
    fn window_contains_the_requests_of_its_time_span(
        times in prop::collection::vec(0..50u64, 1..40), from in prop::option::of(0..50u64), length in 1..20u64,
    ) {
        let line = |(number, time): (usize, &u64)| format!("{time},v{number}\n");
        let text = "time,video\n".to_owned() + &times.iter().enumerate().map(line).collect::<String>();
        let begin = from.unwrap_or(*times.iter().min().expect("not empty"));
        let mut expected: Vec<(u64, usize)> =
            times.iter().copied().zip(0..).filter(|(time, _)| (begin..begin + length).contains(time)).collect();
        expected.sort_unstable();
        match window(&text, from, length) {
            Ok(window) => {
                let asked: Vec<String> =
                    window.rows().iter().map(|row| window.videos()[row.video as usize].clone()).collect();
                let expected: Vec<String> = expected.iter().map(|(_, number)| format!("v{number}")).collect();
                prop_assert_eq!(asked, expected);
            }
            Err(error) => prop_assert!(error.fault == RecordFault::Empty && expected.is_empty()),
        }
    }

    #[test]
    fn names_and_counts_survive_a_csv_round_trip(
        rows in prop::collection::vec(("[a-z,\" ]{1,9}", "[a-z]{1,4}", 1..9_999u64, 1..5u64), 1..20),
    ) {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["time", "video", "place", "bitrate_kbps", "viewers"]).expect("memory");
        for ((video, place, kbps, viewers), time) in rows.iter().zip(0u64..) {
            let cells = [time.to_string(), video.clone(), place.clone(), kbps.to_string(), viewers.to_string()];
            writer.write_record(cells).expect("memory");
        }
        let text = String::from_utf8(writer.into_inner().expect("memory")).expect("UTF-8");
        let read = log(&text).map_err(TestCaseError::fail)?;
        let read: Vec<_> = read.into_iter().map(|request| {
            let Some(ViewerLocation::Name(place)) = request.place else { panic!("a place is stated") };
            (request.video, place, request.bitrate.expect("stated").as_bps() / 1_000, request.viewers)
        }).collect();
        prop_assert_eq!(read, rows);
    }

    #[test]
    fn random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        crate::plan::exercise_records(&bytes);
    }

    #[test]
    fn random_log_fields_are_read_or_refused(text in "time,video,bitrate_kbps\n([0-9,ab\"\n]{0,60})") {
        crate::plan::exercise_records(text.as_bytes());
    }
}
