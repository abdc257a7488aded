//! A query to a DNS server with the viewer's client subnet.
//!
//! Source: RFC 1035; RFC 7871 (client subnet). Leaves out: recursion, caches, TCP. Read [`resolve`].

use anabranch_live_proto::directory::AddressPrefix;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{ClientSubnet, EdnsOption};
use hickory_proto::rr::{Name, RData, RecordType};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// Longest wait for an answer before the query is sent again.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Number of times that a query is sent.
const TRIES: u32 = 3;
/// Longest answer in bytes.
const ANSWER_BYTES_MAX: usize = 4_096;

/// IPv4 addresses of `name`, or IPv6 addresses if it has no IPv4 addresses.
///
/// Errors: an invalid name; no answer; an answer with an error code; an error of the system.
pub(super) async fn resolve(
    server: SocketAddr,
    name: &str,
    subnet: Option<AddressPrefix>,
) -> io::Result<Vec<IpAddr>> {
    let mut name = Name::from_utf8(name).map_err(io::Error::other)?;
    name.set_fqdn(true);
    for record_type in [RecordType::A, RecordType::AAAA] {
        let found = ask(server, Query::query(name.clone(), record_type), subnet).await?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

async fn ask(server: SocketAddr, query: Query, subnet: Option<AddressPrefix>) -> io::Result<Vec<IpAddr>> {
    let any = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(server).await?;
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(ANSWER_BYTES_MAX as u16);
    if let Some(subnet) = subnet {
        let option = ClientSubnet::new(subnet.address(), subnet.length(), 0);
        edns.options_mut().insert(EdnsOption::Subnet(option));
    }
    message.set_edns(edns);
    let question = message.to_vec().map_err(io::Error::other)?;
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    for _ in 0..TRIES {
        socket.send(&question).await?;
        let deadline = Instant::now() + ANSWER_TIME;
        while let Ok(received) = timeout_at(deadline, socket.recv(&mut buffer)).await {
            let Ok(answer) = Message::from_vec(&buffer[..received?]) else { continue };
            // The answer belongs to another query, or is forged.
            if answer.metadata.id != message.metadata.id || answer.queries != [query.clone()] {
                continue;
            }
            if answer.metadata.response_code != ResponseCode::NoError {
                return Err(io::Error::other(answer.metadata.response_code.to_string()));
            }
            let addresses = answer.answers.iter().filter_map(|record| match &record.data {
                RData::A(address) => Some(IpAddr::V4(address.0)),
                RData::AAAA(address) => Some(IpAddr::V6(address.0)),
                _ => None,
            });
            return Ok(addresses.collect());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
