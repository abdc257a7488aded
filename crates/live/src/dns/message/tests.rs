//! Tests of DNS messages.

use super::*;
use anabranch_live_proto::directory::exercise::sample;
use anabranch_live_proto::directory::names::ZONE_BYTES_MAX;
use anabranch_live_proto::directory::{Channel, EDGE_ADDRESSES_MAX, LABEL_BYTES_MAX, Rendition};
use anabranch_testing::replay;
use anabranch_units::BitRate;
use std::net::Ipv6Addr;

const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));

fn question(name: &str, kind: RecordType, edns: Option<Edns>) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
    message.edns = edns;
    message
}

/// EDNS with the data of a client subnet option.
fn subnet(data: &[u8]) -> Option<Edns> {
    let mut edns = Edns::new();
    edns.set_max_payload(4_096);
    edns.options_mut().insert(EdnsOption::Unknown(CLIENT_SUBNET_CODE, data.to_vec()));
    Some(edns)
}

fn reply(message: &[u8]) -> Reply {
    let zone = Zone::new("live.example", vec![[192, 0, 2, 53].into()]).expect("a name");
    let directory = Directory::new(sample()).expect("no defect");
    Responder::new(zone, 5).answer(&directory, message, FROM, Transport::Udp).expect("an answer")
}

fn answer(message: &[u8]) -> Message {
    Message::from_vec(&reply(message).bytes).expect("a message")
}

fn ask(name: &str, kind: RecordType, edns: Option<Edns>) -> Message {
    answer(&question(name, kind, edns).to_vec().expect("a message"))
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    let address = |record: &Record| match record.data {
        RData::A(A(address)) => Some(address.into()),
        RData::AAAA(AAAA(address)) => Some(address.into()),
        _ => None,
    };
    message.answers.iter().filter_map(address).collect()
}

/// Data of the client subnet option in a message.
fn subnet_of(message: &Message) -> Option<Vec<u8>> {
    let options = message.edns.as_ref()?.options();
    options.as_ref().iter().find_map(|(code, option)| {
        (u16::from(*code) == CLIENT_SUBNET_CODE).then(|| Vec::try_from(option).expect("it has a form"))
    })
}

#[test]
fn fuzz_corpus_results_match_the_file_names() {
    assert!(replay("live_dns", exercise) >= 8);
}

#[test]
fn resolver_address_is_used_without_a_client_subnet() {
    let message = ask("low.news.live.example.", RecordType::A, None);
    assert_eq!(addresses(&message), [IpAddr::from([198, 51, 100, 1])]);
    assert_eq!((message.answers[0].ttl, message.metadata.authoritative), (5, true));
    assert!(message.edns.is_none() && !message.metadata.recursion_available);
}

#[test]
fn client_subnets_are_answered_with_their_scope() {
    // Family, source and address in the query; expected edge; expected scope of the answer.
    let cases: [(&[u8], [u8; 4], u8); 5] = [
        (&[0, 1, 24, 0, 10, 2, 2], [198, 51, 100, 2], 15),
        (&[0, 1, 8, 0, 10], [198, 51, 100, 2], 16),
        (&[0, 1, 32, 0, 10, 1, 2, 3], [198, 51, 100, 1], 16),
        (&[0, 1, 24, 0, 192, 0, 2], [198, 51, 100, 1], 1),
        (&[0, 2, 56, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0], [198, 51, 100, 2], 32),
    ];
    for (data, edge, scope) in cases {
        let message = ask("low.news.live.example.", RecordType::A, subnet(data));
        assert_eq!(addresses(&message), [IpAddr::from(edge)], "{data:?}");
        let mut expected = data.to_vec();
        expected[3] = scope;
        assert_eq!(subnet_of(&message), Some(expected));
    }
}

#[test]
fn zero_length_source_prefix_uses_the_resolver_address() {
    for data in [[0, 1, 0, 0], [0, 2, 0, 0]] {
        let message = ask("low.news.live.example.", RecordType::A, subnet(&data));
        assert_eq!(addresses(&message), [IpAddr::from([198, 51, 100, 1])]);
        assert_eq!(subnet_of(&message), Some(data.to_vec()), "the scope is 0");
    }
    let no_family = question("low.news.live.example.", RecordType::A, subnet(&[0; 4]));
    let answer = reply(&no_family.to_vec().expect("a message"));
    assert!(answer.bytes.ends_with(&[0, 8, 0, 4, 0, 0, 0, 0]), "the option is repeated");
}

#[test]
fn malformed_queries_get_formerr() {
    let bad: [&[u8]; 5] = [
        &[0, 3, 24, 0, 192, 0, 2],
        &[0, 1, 33, 0, 192, 0, 2, 0, 0],
        &[0, 1, 24, 0, 192, 0, 2, 0],
        &[0, 1, 23, 0, 192, 0, 3],
        &[0, 1, 24, 8, 192, 0, 2],
    ];
    for data in bad {
        let message = ask("low.news.live.example.", RecordType::A, subnet(data));
        assert_eq!(message.metadata.response_code, ResponseCode::FormErr, "{data:?}");
    }
    let mut twice = question("news.live.example.", RecordType::A, None);
    twice.add_query(Query::query(Name::root(), RecordType::A));
    let twice = answer(&twice.to_vec().expect("a message"));
    assert_eq!((twice.metadata.response_code, twice.metadata.id), (ResponseCode::FormErr, 7));
}

#[test]
fn response_code_depends_on_name_and_record_type() {
    let soa = |message: &Message| matches!(message.authorities[..], [Record { data: RData::SOA(_), .. }]);
    let none = ask("mid.news.live.example.", RecordType::A, None);
    assert!(none.metadata.response_code == ResponseCode::NXDomain && soa(&none));
    let no_data = ask("low.news.live.example.", RecordType::TXT, None);
    assert!(no_data.metadata.response_code == ResponseCode::NoError && soa(&no_data));
    let outside = ask("www.example.", RecordType::A, None);
    assert_eq!(
        (outside.metadata.response_code, outside.metadata.authoritative),
        (ResponseCode::Refused, false)
    );
    let mut edns = Edns::new();
    edns.set_version(1);
    let version = ask("news.live.example.", RecordType::A, Some(edns));
    assert_eq!(u16::from(version.metadata.response_code), u16::from(ResponseCode::BADVERS));
    let apex = ask("live.example.", RecordType::NS, None);
    assert!(matches!(&apex.answers[..], [Record { data: RData::NS(_), .. }]));
    let mut update = question("live.example.", RecordType::SOA, None);
    update.metadata.op_code = OpCode::Notify;
    let update = answer(&update.to_vec().expect("a message"));
    assert_eq!(update.metadata.response_code, ResponseCode::NotImp);
}

#[test]
fn response_messages_are_not_answered() {
    let zone = Zone::new("live.example", vec![]).expect("a name");
    let responder = Responder::new(zone, 5);
    let message = Message::response(7, OpCode::Query).to_vec().expect("a message");
    assert_eq!(responder.answer(&Directory::default(), &message, FROM, Transport::Udp), None);
    assert_eq!(responder.answer(&Directory::default(), &[0; 11], FROM, Transport::Udp), None);
}

/// With the longest names and most addresses, a client limited to 512 bytes must use TCP.
#[test]
fn answers_too_long_for_udp_are_truncated() {
    let label = |letter: &str| letter.repeat(LABEL_BYTES_MAX);
    let zone = format!("{}.{}", label("a"), "b".repeat(ZONE_BYTES_MAX - LABEL_BYTES_MAX - 1));
    let mut contents = sample();
    let renditions = vec![Rendition { name: label("r"), bitrate: BitRate::mbps(1) }];
    contents.channels = vec![Channel { name: label("c"), renditions }];
    contents.edges[0].addresses = vec![Ipv6Addr::LOCALHOST.into(); EDGE_ADDRESSES_MAX];
    let directory = Directory::new(contents).expect("no defect");
    let responder = Responder::new(Zone::new(&zone, vec![]).expect("a name"), 5);
    let name = format!("{}.{}.{zone}.", label("r"), label("c"));
    let mut edns = subnet(&[0, 1, 32, 0, 10, 1, 2, 3]);
    let ask = |edns: &Option<Edns>, transport| {
        let message = question(&name, RecordType::AAAA, edns.clone()).to_vec().expect("a message");
        responder.answer(&directory, &message, FROM, transport).expect("an answer")
    };
    let (udp, tcp) = (ask(&edns, Transport::Udp), ask(&edns, Transport::Tcp));
    assert!(!udp.is_truncated && udp == tcp && udp.bytes.len() > PLAIN_UDP_BYTES_MAX.into());
    edns.as_mut().expect("it is there").set_max_payload(512);
    let udp = ask(&edns, Transport::Udp);
    let message = Message::from_vec(&udp.bytes).expect("a message");
    assert!(udp.is_truncated && message.metadata.truncation && message.answers.is_empty());
    assert!(udp.bytes.len() <= PLAIN_UDP_BYTES_MAX.into());
    assert_eq!(ask(&edns, Transport::Tcp), tcp);
}
