//! Tests with a reader that shares no code with the writer and refuses all unexpected content.

use super::*;
use proptest::prelude::*;

fn u16_le(bytes: &[u8]) -> usize {
    u16::from_le_bytes([bytes[0], bytes[1]]).into()
}
fn u32_le(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
fn u16_be(bytes: &[u8]) -> u32 {
    u32::from(bytes[0]) << 8 | u32::from(bytes[1])
}
fn u32_be(bytes: &[u8]) -> u32 {
    u16_be(bytes) << 16 | u16_be(&bytes[2..])
}

/// Returns types and bodies of all blocks, and checks both lengths of each.
fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let length = u32_le(&file[4..]) as usize;
        let (block, rest) = file.split_at(length);
        assert!(length.is_multiple_of(4) && length >= 12);
        assert_eq!(u32_le(&block[length - 4..]) as usize, length);
        blocks.push((u32_le(block), &block[8..length - 4]));
        file = rest;
    }
    blocks
}

/// Returns codes and values of options, and checks that they end correctly.
fn options(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut options = Vec::new();
    while !bytes.is_empty() {
        let (code, length) = (u16_le(bytes) as u16, u16_le(&bytes[2..]));
        let (value, rest) = bytes[4..].split_at(length.next_multiple_of(4));
        assert!(value[length..].iter().all(|x| *x == 0), "filled up with zeros");
        if code == 0 {
            assert!(length == 0 && rest.is_empty(), "nothing behind the end");
            return options;
        }
        options.push((code, &value[..length]));
        bytes = rest;
    }
    assert!(options.is_empty(), "options end");
    options
}

/// Checks a checksum by RFC 1071, in 64 bits: the sum of all words and the checksum is all ones.
fn adds_up(parts: &[&[u8]]) -> bool {
    let words = |part: &&[u8]| {
        part.chunks(2).map(|w| u64::from(w[0]) * 256 + u64::from(*w.get(1).unwrap_or(&0))).sum::<u64>()
    };
    let sum: u64 = parts.iter().map(words).sum();
    sum > 0 && sum.is_multiple_of(0xffff)
}

/// The options of a segment.
#[derive(Debug, Default, PartialEq)]
struct Options {
    mss: Option<u32>,
    sack_permitted: bool,
    shift: Option<u8>,
    timestamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
}

fn tcp_options(mut bytes: &[u8]) -> Options {
    let mut found = Options::default();
    while let [kind, rest @ ..] = bytes {
        match kind {
            0 => {
                assert!(rest.iter().all(|x| *x == 0), "zeros behind the end");
                break;
            }
            1 => bytes = rest,
            _ => {
                let (option, behind) = bytes.split_at(rest[0].into());
                let value = &option[2..];
                match (kind, value.len()) {
                    (2, 2) => assert!(found.mss.replace(u16_be(value)).is_none()),
                    (3, 1) => assert!(found.shift.replace(value[0]).is_none()),
                    (4, 0) => found.sack_permitted = true,
                    (5, 8 | 16 | 24 | 32) => {
                        assert!(found.sack.is_empty());
                        found.sack = value.chunks(8).map(|b| (u32_be(b), u32_be(&b[4..]))).collect();
                    }
                    (8, 8) => {
                        assert!(found.timestamps.replace((u32_be(value), u32_be(&value[4..]))).is_none());
                    }
                    other => panic!("option {other:?}"),
                }
                bytes = behind;
            }
        }
    }
    found
}

/// Compares all fields of the headers with `head`, and returns the TCP options.
fn check(head: &PacketHead<'_>, bytes: &[u8]) -> Options {
    let (ip, transport) = bytes.split_at(20);
    assert_eq!((ip[0], u16_be(&ip[2..])), (0x45, head.size_bytes));
    assert_eq!((u16_be(&ip[4..]), u16_be(&ip[6..]), ip[8]), (0, 0x4000, 64));
    let ecn = match head.ecn {
        Ecn::NotEct => 0b00,
        Ecn::Ect1 => 0b01,
        Ecn::Ect0 => 0b10,
        Ecn::Ce => 0b11,
    };
    assert_eq!(ip[1], ecn);
    assert_eq!(ip[12..16], host_address(head.src).octets());
    assert_eq!(ip[16..], host_address(head.dst).octets());
    assert!(adds_up(&[ip]));
    let length = ((head.size_bytes - 20) as u16).to_be_bytes();
    assert!(adds_up(&[&ip[12..], &[0, ip[9]], &length, transport]));
    assert_eq!((u16_be(transport), u16_be(&transport[2..])), (head.src_port.into(), head.dst_port.into()));
    match &head.kind {
        PacketKind::Udp => {
            assert_eq!((ip[9], transport.len()), (17, 8));
            assert_eq!(u16_be(&transport[4..]), head.size_bytes - 20);
            assert!(u16_be(&transport[6..]) > 0, "there is a checksum");
            Options::default()
        }
        PacketKind::Tcp(tcp) => {
            assert_eq!(ip[9], 6);
            let header_bytes = usize::from(transport[12] >> 4) * 4;
            assert_eq!(transport.len(), header_bytes);
            assert_eq!(head.size_bytes - 20 - header_bytes as u32, tcp.payload_bytes);
            assert_eq!((u32_be(&transport[4..]), u32_be(&transport[8..])), (tcp.seq, tcp.ack.unwrap_or(0)));
            let flag = |bit: u8| transport[13] >> bit & 1 == 1;
            assert_eq!((flag(0), flag(1), flag(2)), (tcp.fin, tcp.syn.is_some(), tcp.rst));
            assert_eq!((flag(3), flag(4), flag(5)), (false, tcp.ack.is_some(), false));
            assert_eq!((flag(6), flag(7), transport[12] & 15), (tcp.ece, tcp.cwr, 0));
            assert_eq!((u16_be(&transport[14..]), u16_be(&transport[18..])), (tcp.window.into(), 0));
            tcp_options(&transport[20..])
        }
    }
}

fn ack<'a>(options_bytes: u32, sack: &'a [(u32, u32)], timestamps: Option<(u32, u32)>) -> PacketHead<'a> {
    let tcp = TcpHead { ack: Some(7), sack, timestamps, ..TcpHead::default() };
    PacketHead { size_bytes: 40 + options_bytes, ..of(PacketKind::Tcp(tcp)) }
}

fn of(kind: PacketKind<'_>) -> PacketHead<'_> {
    PacketHead { src: 1, dst: 2, src_port: 3, dst_port: 4, size_bytes: 1_500, ecn: Ecn::Ect0, kind }
}

fn headers(head: &PacketHead<'_>) -> Vec<u8> {
    head.headers().expect("good headers").as_slice().to_vec()
}

proptest! {
    #[test]
    fn encoded_headers_match_the_packet_head(
        (src, dst, src_port, dst_port, ecn) in any::<(u16, u16, u16, u16, u8)>(),
        (seq, ack, fin, rst, ece, cwr) in any::<(u32, Option<u32>, bool, bool, bool, bool)>(),
        (window, timestamps, mss_bytes, sack_permitted) in any::<(u16, Option<(u32, u32)>, Option<u16>, bool)>(),
        (syn, window_shift) in (any::<bool>(), proptest::option::of(0u8..=14)),
        sack in proptest::collection::vec(any::<(u32, u32)>(), 0..6),
        (words, payload_bytes, udp) in (0u32..=10, 0u32..=65_455, any::<bool>()),
        at_ps: u64,
    ) {
        let syn = syn.then_some(SynOptions { mss_bytes, sack_permitted, window_shift });
        let tcp = TcpHead { seq, ack, payload_bytes, syn, fin, rst, ece, cwr, window, sack: &sack, timestamps };
        let ecn = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce][usize::from(ecn % 4)];
        let kind = if udp { PacketKind::Udp } else { PacketKind::Tcp(tcp) };
        let size_bytes = 40 + 4 * words + payload_bytes;
        let head = PacketHead { src, dst, src_port, dst_port, size_bytes, ecn, kind };

        let mut capture = Capture::new(Vec::new(), "test").expect("memory takes everything");
        capture.interface("a", BitRate::gbps(1)).expect("a good name");
        let link = capture.interface("b", BitRate::gbps(1)).expect("a good name");
        let at = Instant::from_us(0) + anabranch_units::Duration::from_ps(at_ps);
        capture.packet(link, at, &head, None).expect("good headers");
        let file = capture.into_inner();
        let (block_type, body) = blocks(&file)[3];
        prop_assert_eq!((block_type, u32_le(body)), (6, 1));
        let ns = u64::from(u32_le(&body[4..])) << 32 | u64::from(u32_le(&body[8..]));
        prop_assert_eq!(ns, at_ps / 1_000);
        let captured = u32_le(&body[12..]) as usize;
        prop_assert_eq!((u32_le(&body[16..]), body.len()), (size_bytes, 20 + captured));
        prop_assert!(captured <= HEADERS_BYTES_MAX && captured <= size_bytes as usize);
        let found = check(&head, &body[20..]);
        if !udp {
            // Every option that is present was requested.
            prop_assert!(found.timestamps.is_none() || found.timestamps == timestamps);
            prop_assert!(sack.starts_with(&found.sack));
            let asked = syn.unwrap_or_default();
            prop_assert!(found.mss.is_none() || found.mss == asked.mss_bytes.map(Into::into));
            prop_assert!(found.shift.is_none() || found.shift == asked.window_shift);
            prop_assert!(!found.sack_permitted || asked.sack_permitted);
        }
    }
}

#[test]
fn tcp_options_fit_the_bytes_left_by_the_payload() {
    let blocks = [(10, 20), (30, 40), (50, 60), (70, 80), (90, 100)];
    let stamps = Some((1, 2));
    for (room, count, timestamps, kept) in [
        (0, 5, stamps, (0, false)),
        (8, 5, stamps, (0, false)),
        (12, 0, stamps, (0, true)),
        (12, 5, None, (1, false)),
        (12, 5, stamps, (1, false)),
        (20, 5, stamps, (2, false)),
        (24, 5, stamps, (1, true)),
        (24, 1, stamps, (1, true)),
        (40, 5, stamps, (3, true)),
        (40, 5, None, (4, false)),
    ] {
        let head = ack(room, &blocks[..count], timestamps);
        let found = check(&head, &headers(&head));
        assert_eq!((found.sack.len(), found.timestamps.is_some()), kept, "{room} {count}");
        assert_eq!(found.sack, blocks[..kept.0]);
    }
    let syn = SynOptions { mss_bytes: Some(1_460), sack_permitted: true, window_shift: Some(14) };
    for (room, kept) in [(0, 0), (4, 1), (8, 2), (12, 3), (24, 4)] {
        let tcp = TcpHead { syn: Some(syn), timestamps: stamps, ..TcpHead::default() };
        let head = PacketHead { size_bytes: 40 + room, ..of(PacketKind::Tcp(tcp)) };
        let found = check(&head, &headers(&head));
        let there = [
            found.mss == Some(1_460),
            found.sack_permitted,
            found.shift == Some(14),
            found.timestamps == stamps,
        ];
        assert_eq!(there, [0 < kept, 1 < kept, 2 < kept, 3 < kept], "{room}");
    }
}

#[test]
fn impossible_header_lengths_are_refused() {
    let refused = |head: PacketHead<'_>| head.headers().expect_err("refused");
    let sized = |size_bytes, kind| PacketHead { size_bytes, ..of(kind) };
    let tcp = |payload_bytes| PacketKind::Tcp(TcpHead { payload_bytes, ..TcpHead::default() });
    assert!(sized(65_535, PacketKind::Udp).headers().is_ok());
    assert_eq!(refused(sized(65_536, PacketKind::Udp)), HeadError::TooLong { got_bytes: 65_536 });
    assert!(sized(28, PacketKind::Udp).headers().is_ok());
    assert_eq!(refused(sized(27, PacketKind::Udp)), HeadError::TooShort { got_bytes: 27 });
    for good in [40, 80] {
        assert!(sized(1_000 + good, tcp(1_000)).headers().is_ok());
    }
    for got_bytes in [-1i64, 36, 42, 84] {
        let size_bytes = (1_000 + got_bytes) as u32;
        assert_eq!(refused(sized(size_bytes, tcp(1_000))), HeadError::HeaderLength { got_bytes });
    }
    let syn = SynOptions { window_shift: Some(15), ..SynOptions::default() };
    let syn = PacketKind::Tcp(TcpHead { syn: Some(syn), payload_bytes: 1_460, ..TcpHead::default() });
    assert_eq!(refused(of(syn)), HeadError::WindowShift { got: 15 });
}

#[test]
fn capture_holds_section_interfaces_and_packets_in_order() {
    let mut capture = Capture::new(Vec::new(), "anabranch").expect("memory takes everything");
    let first = capture.interface("a -> b", BitRate::gbps(10)).expect("a good name");
    capture.packet(first, Instant::from_us(5), &of(PacketKind::Udp), Some("dropped")).expect("good headers");
    let second = capture.interface("b -> ç", BitRate::mbps(1)).expect("a good name");
    capture.packet(second, Instant::from_us(4), &of(PacketKind::Udp), None).expect("good headers");
    let file = capture.into_inner();
    let blocks = blocks(&file);
    let types: Vec<u32> = blocks.iter().map(|(block_type, _)| *block_type).collect();
    assert_eq!(types, [0x0a0d_0d0a, 1, 6, 1, 6]);
    let section = blocks[0].1;
    assert_eq!(section[..8], [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
    assert_eq!(section[8..16], [0xff; 8]);
    assert_eq!(options(&section[16..]), [(4, &b"anabranch"[..])]);
    for (block, name, speed) in [(1, "a -> b", 10_000_000_000u64), (3, "b -> ç", 1_000_000)] {
        let interface = blocks[block].1;
        assert_eq!((u16_le(interface), u16_le(&interface[2..]), u32_le(&interface[4..])), (101, 0, 80));
        let expected = [(2, name.as_bytes()), (8, &speed.to_le_bytes()), (9, &[9])];
        assert_eq!(options(&interface[8..]), expected);
    }
    assert_eq!(options(&blocks[2].1[20 + 28..]), [(1, &b"dropped"[..])]);
    assert_eq!(blocks[4].1.len(), 20 + 28);
}

#[test]
fn texts_above_the_limit_are_refused_without_output() {
    let mut capture = Capture::new(Vec::new(), "test").expect("memory takes everything");
    let limit = "x".repeat(TEXT_BYTES_MAX);
    let long = limit.clone() + "x";
    let link = capture.interface(&limit, BitRate::gbps(1)).expect("at the limit");
    let before = capture.out.clone();
    let too_long =
        |result| matches!(result, Err(CaptureError::TextTooLong { got_bytes }) if got_bytes == long.len());
    assert!(too_long(capture.interface(&long, BitRate::gbps(1)).map(|_| ())));
    assert!(too_long(capture.packet(link, Instant::ZERO, &of(PacketKind::Udp), Some(&long))));
    let short = PacketHead { size_bytes: 20, ..of(PacketKind::Udp) };
    assert!(matches!(capture.packet(link, Instant::ZERO, &short, None), Err(CaptureError::Head(_))));
    assert_eq!(capture.out, before);
    capture.packet(link, Instant::ZERO, &of(PacketKind::Udp), Some(&limit)).expect("at the limit");
    assert_eq!(blocks(&capture.out).len(), 3);
}

#[test]
fn hosts_have_distinct_addresses() {
    let shown = |host| host_address(host).to_string();
    assert_eq!(
        [shown(0), shown(254), shown(255), shown(u16::MAX)],
        ["10.0.0.1", "10.0.0.255", "10.0.1.0", "10.1.0.0"]
    );
}
