//! Tests of the decoding of responses: refusals, truncation, random bytes. Leaves out: requests,
//! which `tests/it` sends.

use super::*;

use proptest::prelude::*;

/// Builds an acknowledgement as the kernel sends it: header, error number, the request's header,
/// and a reason.
fn refusal(code: i32, request: &[u8], flags: u16, reason: &str) -> Vec<u8> {
    let text = [reason.as_bytes(), &[0]].concat();
    let mut attribute = [((text.len() + 4) as u16).to_ne_bytes(), REASON.to_ne_bytes()].concat();
    attribute.extend(text);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    let length = (HEADER_BYTES + 4 + request.len() + attribute.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(2u16.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend((-code).to_ne_bytes());
    bytes.extend(request);
    bytes.extend(attribute);
    bytes
}

fn request(length: u32) -> Vec<u8> {
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.resize(length as usize, 0);
    bytes
}

fn verdict_of(bytes: &[u8]) -> Option<Result<()>> {
    let mut answers = decode::<netlink_packet_route::RouteNetlinkMessage>(bytes).ok()?;
    match answers.pop()? {
        (header, Ok(NetlinkPayload::Error(error))) => Some(acknowledged(&header, &error)),
        _ => None,
    }
}

#[test]
fn refusal_carries_the_kernels_reason() {
    let capped = refusal(22, &request(16), NLM_F_CAPPED | NLM_F_ACK_TLVS, "no such table");
    let whole = refusal(22, &request(20), NLM_F_ACK_TLVS, "no such table");
    for bytes in [capped, whole] {
        let error = verdict_of(&bytes).expect("an acknowledgement").expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(error.to_string(), "Invalid argument (os error 22): no such table");
        let error = io::Error::from(error);
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().ends_with("no such table"));
    }
}

#[test]
fn refusal_without_a_reason_keeps_its_error_number() {
    let bytes = refusal(19, &request(16), 0, "not announced by a flag");
    let error = io::Error::from(verdict_of(&bytes).expect("an acknowledgement").expect_err("refused"));
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}

/// A dump of a link, an address, a route and a rule in the kernel's format.
fn listed() -> Vec<u8> {
    let mut netlink = Netlink::open(None).expect("every process may list");
    let mut all = Vec::new();
    use netlink_packet_route::RouteNetlinkMessage as Message;
    let requests = [
        Message::GetLink(Default::default()),
        Message::GetAddress(Default::default()),
        Message::GetRoute(Default::default()),
        Message::GetRule(Default::default()),
    ];
    for request in requests {
        netlink.send([(request, NLM_F_DUMP)]).expect("the kernel listens");
        loop {
            let (received, _) =
                recv(&netlink.socket, netlink.buffer.as_mut_slice(), RecvFlags::empty()).expect("an answer");
            all.extend(&netlink.buffer[..received]);
            let answers = decode::<Message>(&netlink.buffer[..received]).expect("well formed");
            if answers
                .iter()
                .any(|(_, p)| matches!(p, Ok(NetlinkPayload::Done(_) | NetlinkPayload::Error(_))))
            {
                break;
            }
        }
    }
    all
}

#[test]
fn truncated_responses_never_panic() {
    let refusal = refusal(22, &request(16), NLM_F_CAPPED | NLM_F_ACK_TLVS, "no such table");
    let listed = listed();
    assert!(decode::<netlink_packet_route::RouteNetlinkMessage>(&listed).expect("whole").len() >= 4);
    for bytes in [refusal, listed] {
        for length in 0..bytes.len().min(8_192) {
            let mut cut = bytes[..length].to_vec();
            crate::exercise_netlink(&cut);
            // The last message ends with the datagram, so that the parsers of its attributes see
            // the truncation.
            let mut at = 0;
            while let Some(n) = cut.get(at..).and_then(|rest| rest.first_chunk()) {
                let n = (u32::from_ne_bytes(*n) as usize).next_multiple_of(4).max(HEADER_BYTES);
                if at + n > length {
                    cut[at..at + 4].copy_from_slice(&((length - at) as u32).to_ne_bytes());
                    break;
                }
                at += n;
            }
            crate::exercise_netlink(&cut);
        }
    }
}

#[test]
fn corpus_datagrams_decode_as_their_names_say() {
    anabranch_testing::replay("linux_netlink", crate::exercise_netlink);
}

proptest! {
    #[test]
    fn random_responses_never_panic(
        kind: u16, flags: u16, body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        for kind in [kind, 2, 3, 16 + kind % 32] {
            let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
            bytes.extend([0; 8]);
            bytes.extend(&body);
            crate::exercise_netlink(&bytes);
        }
    }
}
