//! DNS messages: parses queries and writes answers.
//!
//! Source: RFC 1035, section 4; RFC 6891 (EDNS); RFC 7871 (client subnet). Leaves out: sockets, and
//! the meaning of names (`directory::names`). Read [`Responder`].

use anabranch_live_proto::directory::names::{Outcome, RecordKind, Resolution, Zone};
use anabranch_live_proto::directory::{CLIENT_SUBNET_CODE, ClientSubnet, Directory};
use hickory_proto::op::{Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, AAAA, NS, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder, DecodeError};
use std::net::IpAddr;

/// Longest answer over UDP in bytes. No path needs to fragment such answers (DNS flag day 2020).
const UDP_BYTES_MAX: u16 = 1_232;
/// Longest answer over UDP to a client without EDNS, in bytes (RFC 1035, section 4.2.1).
const PLAIN_UDP_BYTES_MAX: u16 = 512;
/// Maximum number of additional records in a query. Clients send OPT, and possibly a signature.
const ADDITIONAL_MAX: u16 = 4;
/// Timers in the start of authority: refresh, retry, expire. No secondary server uses them.
const SOA_TIMES_S: [i32; 3] = [3_600, 600, 86_400];

/// Transport of a query.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// An encoded answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) bytes: Vec<u8>,
    pub(super) code: ResponseCode,
    /// Whether the answer was truncated, so that the client must repeat the query over TCP.
    pub(super) is_truncated: bool,
}

/// Answers queries about one zone.
#[derive(Clone, Debug)]
pub(super) struct Responder {
    zone: Zone,
    ttl_s: u32,
    apex: Name,
    server: Name,
    contact: Name,
}

/// EDNS parameters of a query.
#[derive(Copy, Clone, Debug)]
struct QuestionEdns {
    payload_bytes_max: u16,
    version: u8,
    subnet: Option<ClientSubnet>,
}

/// The parsed parts of a query message.
struct Question {
    query: Query,
    edns: Option<QuestionEdns>,
}

/// A record in the additional section of a query.
struct AdditionalRecord<'a> {
    name: Name,
    kind: u16,
    class: u16,
    ttl: u32,
    data: &'a [u8],
}

impl Responder {
    /// Creates a responder for `zone`, whose records have a time to live of `ttl_s` seconds.
    ///
    /// Panics: never, because a zone's name leaves room for a label.
    pub(super) fn new(zone: Zone, ttl_s: u32) -> Self {
        let name = |first: &[&str]| {
            let labels = first.iter().copied().chain(zone.labels().iter().map(String::as_str));
            let mut name =
                Name::from_labels(labels.map(str::as_bytes)).expect("a zone leaves room for a label");
            name.set_fqdn(true);
            name
        };
        let (apex, server, contact) = (name(&[]), name(&["ns"]), name(&["hostmaster"]));
        Self { zone, ttl_s, apex, server, contact }
    }

    /// Answers a message from `from`. `None` if the message is not a query: an answer could start a
    /// loop between two servers.
    pub(super) fn answer(
        &self,
        directory: &Directory,
        message: &[u8],
        from: IpAddr,
        transport: Transport,
    ) -> Option<Reply> {
        let mut decoder = BinDecoder::new(message);
        let header = Header::read(&mut decoder).ok()?;
        if header.message_type != MessageType::Query {
            return None;
        }
        let mut response = Message::response(header.id, header.op_code);
        response.metadata = Metadata::response_from_request(&header);
        if header.op_code != OpCode::Query {
            response.metadata.response_code = ResponseCode::NotImp;
            return Some(encode(&response, PLAIN_UDP_BYTES_MAX));
        }
        let Some(question) = read(&mut decoder, &header) else {
            response.metadata.response_code = ResponseCode::FormErr;
            return Some(encode(&response, PLAIN_UDP_BYTES_MAX));
        };
        let scope = self.resolve(directory, &question, from, &mut response);
        if let Some(asked) = question.edns {
            response.set_edns(edns(asked, scope));
        }
        let payload = question.edns.map_or(PLAIN_UDP_BYTES_MAX, |edns| edns.payload_bytes_max);
        let bytes_max = match transport {
            Transport::Udp => payload.clamp(PLAIN_UDP_BYTES_MAX, UDP_BYTES_MAX),
            Transport::Tcp => u16::MAX,
        };
        Some(encode(&response, bytes_max))
    }

    /// Fills in the response, and returns the scope of its answer.
    fn resolve(
        &self,
        directory: &Directory,
        question: &Question,
        from: IpAddr,
        response: &mut Message,
    ) -> u8 {
        let query = &question.query;
        response.add_query(query.clone());
        let code = &mut response.metadata.response_code;
        if question.edns.is_some_and(|edns| edns.version != 0) {
            *code = ResponseCode::BADVERS;
            return 0;
        }
        if query.query_class() != DNSClass::IN {
            *code = ResponseCode::Refused;
            return 0;
        }
        let subnet = question.edns.and_then(|edns| edns.subnet);
        let viewer = subnet.and_then(ClientSubnet::viewer).unwrap_or(from);
        let kind = match query.query_type() {
            RecordType::A => RecordKind::A,
            RecordType::AAAA => RecordKind::Aaaa,
            RecordType::NS => RecordKind::Ns,
            RecordType::SOA => RecordKind::Soa,
            _ => RecordKind::Other,
        };
        let Resolution { outcome, scope } = self.zone.resolve(directory, query.name().iter(), kind, viewer);
        let is_authoritative = !matches!(outcome, Outcome::Refused | Outcome::Unavailable);
        response.metadata.authoritative = is_authoritative;
        let record = |data| Record::from_rdata(query.name().clone(), self.ttl_s, data);
        match outcome {
            Outcome::Addresses(addresses) => {
                response.add_answers(addresses.into_iter().map(|address| record(data(address))));
            }
            Outcome::NameServer => {
                response.add_answer(record(RData::NS(NS(self.server.clone()))));
            }
            Outcome::Authority => {
                response.add_answer(record(self.authority(directory)));
            }
            Outcome::NoData | Outcome::NoName => {
                if outcome == Outcome::NoName {
                    response.metadata.response_code = ResponseCode::NXDomain;
                }
                let authority = self.authority(directory);
                response.add_authority(Record::from_rdata(self.apex.clone(), self.ttl_s, authority));
            }
            Outcome::Refused => response.metadata.response_code = ResponseCode::Refused,
            Outcome::Unavailable => response.metadata.response_code = ResponseCode::ServFail,
        }
        scope
    }

    /// The start of authority record. Its serial number is derived from the directory's version.
    fn authority(&self, directory: &Directory) -> RData {
        let version = directory.version();
        let serial = (version.lead << 20).wrapping_add(version.decision) as u32;
        let [refresh, retry, expire] = SOA_TIMES_S;
        let (server, contact) = (self.server.clone(), self.contact.clone());
        RData::SOA(SOA::new(server, contact, serial, refresh, retry, expire, self.ttl_s))
    }
}

fn data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

fn edns(asked: QuestionEdns, scope: u8) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_BYTES_MAX);
    if let Some(subnet) = asked.subnet {
        edns.options_mut().insert(EdnsOption::Unknown(CLIENT_SUBNET_CODE, subnet.answer(scope)));
    }
    edns
}

/// Encodes a response. If it is too long, only the question is kept, and the truncation bit is set.
fn encode(response: &Message, bytes_max: u16) -> Reply {
    let code = response.metadata.response_code;
    let write = |message: &Message| message.to_vec().expect("names and records are in their limits");
    let bytes = write(response);
    if bytes.len() <= usize::from(bytes_max) {
        return Reply { bytes, code, is_truncated: false };
    }
    Reply { bytes: write(&response.truncate()), code, is_truncated: true }
}

/// Reads the sections after a header. `None` for a malformed message.
fn read(decoder: &mut BinDecoder<'_>, header: &Header) -> Option<Question> {
    let counts = header.counts;
    if counts.queries != 1 || counts.answers != 0 || counts.authorities != 0 {
        return None;
    }
    if counts.additionals > ADDITIONAL_MAX {
        return None;
    }
    let query = Query::read(decoder).ok()?;
    let mut edns = None;
    for _ in 0..counts.additionals {
        let record = additional(decoder).ok()?;
        if record.kind != u16::from(RecordType::OPT) {
            continue;
        }
        // RFC 6891, section 6.1.1: at most one OPT record, with the root as its name.
        if edns.is_some() || !record.name.is_root() {
            return None;
        }
        let version = record.ttl.to_be_bytes()[1];
        let subnet = client_subnet(record.data)?;
        edns = Some(QuestionEdns { payload_bytes_max: record.class, version, subnet });
    }
    decoder.is_empty().then_some(Question { query, edns })
}

fn additional<'a>(decoder: &mut BinDecoder<'a>) -> Result<AdditionalRecord<'a>, DecodeError> {
    let name = Name::read(decoder)?;
    let mut number = || decoder.read_u16().map(|number| number.unverified());
    let (kind, class) = (number()?, number()?);
    let ttl = decoder.read_u32()?.unverified();
    let length = decoder.read_u16()?.unverified();
    let data = decoder.read_slice(length.into())?.unverified();
    Ok(AdditionalRecord { name, kind, class, ttl, data })
}

/// The client subnet among the EDNS options. The outer `None` means malformed options.
fn client_subnet(mut options: &[u8]) -> Option<Option<ClientSubnet>> {
    let mut subnet = None;
    while !options.is_empty() {
        let (head, rest) = options.split_first_chunk::<4>()?;
        let [code, length] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_be_bytes);
        let (data, rest) = rest.split_at_checked(length.into())?;
        options = rest;
        if code == CLIENT_SUBNET_CODE {
            let read = ClientSubnet::read(data).ok()?;
            if subnet.replace(read).is_some() {
                return None;
            }
        }
    }
    Some(subnet)
}

/// Answers a message over both transports. Returns whether the answer has no error code.
///
/// Panics: if an answer cannot be parsed, has another id, or exceeds the limit of the transport or
/// of amplification.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    use anabranch_live_proto::directory::exercise::sample;
    let directory = Directory::new(sample()).expect("the sample has no defect");
    let zone = Zone::new("live.example", vec![[192, 0, 2, 53].into()]).expect("a name");
    let responder = Responder::new(zone, 5);
    let answer = |transport| responder.answer(&directory, bytes, [10, 1, 2, 3].into(), transport);
    let Some(udp) = answer(Transport::Udp) else { return false };
    assert!(udp.bytes.len() <= usize::from(UDP_BYTES_MAX), "{} bytes", udp.bytes.len());
    assert!(udp.bytes.len() <= bytes.len() + 256, "{} bytes for {}", udp.bytes.len(), bytes.len());
    let tcp = answer(Transport::Tcp).expect("both transports have an answer");
    for reply in [&udp, &tcp] {
        match Message::from_vec(&reply.bytes) {
            Ok(read) => assert_eq!(read.metadata.id.to_be_bytes()[..], bytes[..2]),
            // The library cannot parse a client subnet of family 0, which the answer repeats.
            Err(error) => assert!(matches!(error, DecodeError::UnknownAddressFamily(0)), "{error}"),
        }
    }
    udp.code == ResponseCode::NoError
}

#[cfg(test)]
mod tests;
