//! Properties of the encodings: a written message decodes to itself, and truncated or malformed
//! messages are refused.

use super::*;
use crate::mode::Mode;
use proptest::prelude::*;

fn feedback() -> impl Strategy<Value = Feedback> {
    let times = || (0u64..1 << 50, 0u64..1 << 40);
    let tfrc = (times(), 0.0f64..1e12, 0.0f32..=1.0).prop_map(|((sent, delay), rate, loss)| {
        Report::Tfrc(tfrc::Report {
            sent_at: Instant::from_ns(sent),
            delay: Duration::from_ns(delay),
            received_bytes_per_s: rate,
            loss_rate: loss.into(),
        })
    });
    let arrived = (0u64..1 << 40, any::<[u32; 3]>()).prop_map(|(delay, counts)| {
        let [received, lost, runs] = counts.map(|count| count >> 8);
        Report::Arrived(ArrivalReport { delay: Duration::from_ns(delay), received, lost, runs })
    });
    let report = prop_oneof![tfrc, arrived];
    let lacks = proptest::collection::vec(any::<u16>(), 0..=LACKS_MAX);
    let numbers = (any::<u16>(), any::<[u32; 2]>(), any::<(u32, u16)>());
    (numbers, proptest::option::of(report), proptest::option::of(1u64..), lacks).prop_map(
        |((pull, [next, base], (came, digest)), report, grant, lacks)| Feedback {
            pull: PullId(pull),
            next,
            receipt: if report.is_some() { Receipt { came, digest } } else { Receipt::default() },
            report,
            grant: grant.map(BitRate::bps),
            base,
            lacks,
            is_unsaid: next % 2 == 0,
        },
    )
}

fn control() -> impl Strategy<Value = Control> {
    let pull = || any::<u16>().prop_map(PullId);
    let rate = proptest::option::of((1u64..).prop_map(BitRate::bps));
    let request = (pull(), ".{0,40}", any::<[u64; 2]>(), any::<[u32; 4]>(), rate, 0u64..1 << 50).prop_map(
        |(pull, object, [start, length], [block_bytes, blocks_max, window, rtt], grant, after)| {
            Control::Pull(Request {
                pull,
                object,
                start,
                length: Some(length).filter(|length| *length > 0),
                is_cut: window % 2 == 1,
                mode: if rtt % 3 == 0 { Mode::Lttp } else { Mode::Counted },
                rate_control: if rtt % 3 == 1 { RateControl::Bbr } else { RateControl::Tfrc },
                block_bytes,
                blocks_max,
                window,
                grant,
                start_after: Duration::from_ns(after),
                rtt: Some(rtt).filter(|us| *us > 0).map(|us| Duration::from_us(us.into())),
                servers: (after >> 8) as u16,
            })
        },
    );
    let accepted = (pull(), any::<[u64; 2]>(), any::<[u32; 2]>()).prop_map(
        |(pull, [object_bytes, bytes], [block_bytes, blocks_max])| {
            Control::Accepted(PullAcceptance { pull, object_bytes, bytes, block_bytes, blocks_max })
        },
    );
    let found = any::<(u64, i64, Option<[u8; 32]>)>();
    let found = (found, 0..=MODE_BITS).prop_map(|((bytes, modified_ns, hash), mode)| ObjectDescription {
        bytes,
        mode,
        modified_ns,
        hash,
    });
    let found = prop_oneof![found.prop_map(Ok), ".{0,40}".prop_map(Err)];
    let next =
        prop_oneof![Just(Ok(None)), ".{0,40}".prop_map(|name| Ok(Some(name))), ".{0,40}".prop_map(Err)];
    prop_oneof![
        request,
        accepted,
        (pull(), ".{0,40}").prop_map(|(pull, reason)| Control::Refused { pull, reason }),
        (pull(), ".{0,40}").prop_map(|(pull, reason)| Control::GaveUp { pull, reason }),
        pull().prop_map(|pull| Control::Stop { pull }),
        any::<u64>().prop_map(|channel| Control::Hello { channel }),
        any::<u16>().prop_map(|port| Control::Welcome { port }),
        (".{0,40}", any::<bool>()).prop_map(|(object, with_hash)| Control::Describe { object, with_hash }),
        (".{0,40}", found).prop_map(|(object, found)| Control::Described { object, found }),
        (".{0,40}", any::<u64>())
            .prop_map(|(object, hashed_bytes)| Control::Hashing { object, hashed_bytes }),
        (".{0,40}", ".{0,40}").prop_map(|(prefix, after)| Control::List { prefix, after }),
        (".{0,40}", any::<(u64, i64)>()).prop_map(|(object, (bytes, modified_ns))| Control::Listed {
            object,
            bytes,
            modified_ns
        }),
        any::<u64>().prop_map(|names| Control::Unlisted { names }),
        next.prop_map(|next| Control::ListEnd { next }),
        any::<u64>().prop_map(|channel| Control::Channel { channel }),
        Just(Control::Here),
        ".{0,40}".prop_map(|reason| Control::Goodbye { reason }),
        (".{0,40}", any::<[bool; 2]>()).prop_map(|(object, [with_hash, with_content])| {
            Control::Inspect { object, with_hash, with_content }
        }),
        (".{0,40}", any::<([u8; 32], i64)>(), proptest::collection::vec(any::<u8>(), 0..3_000)).prop_map(
            |(object, (hash, modified_ns), content)| {
                let bytes = content.len() as u64;
                let found = ObjectDescription { bytes, mode: 0o640, modified_ns, hash: Some(hash) };
                Control::Short { object, found, content: content.into() }
            }
        ),
    ]
}

proptest! {
    #[test]
    fn datagrams_decode_as_written(
        pull: u16, numbers: [u32; 4], queued: bool, sent in proptest::option::of(0u64..1 << 50), payload in proptest::collection::vec(any::<u8>(), 0..50), feedback in feedback(),
    ) {
        let [sequence, rtt, generation, id] = numbers;
        let rate_control = if sent.is_some() { RateControl::Tfrc } else { RateControl::Bbr };
        let most = Numbers::of(rate_control);
        let (sequence, generation, id) = (sequence % most.packets, generation % most.generations, id % most.ids);
        let packet = Packet {
            pull: PullId(pull),
            sequence,
            timing: sent.map(|sent| Timing {
                sent_at: Instant::from_ns(sent),
                rtt: Some(rtt).filter(|us| *us > 0).map(|us| Duration::from_us(us.into())),
            }),
            queued: queued && sent.is_none(),
            nonce: (rtt % 8) as u8,
            generation,
            id,
            payload: Bytes::from(payload),
        };
        let [object_bytes, bytes] = [sent.unwrap_or(0), rtt.into()];
        let accepted = PullAcceptance { pull: PullId(pull), object_bytes, bytes, block_bytes: id, blocks_max: generation };
        for datagram in [Datagram::Packet(packet), Datagram::Feedback(feedback), Datagram::Accepted(accepted)] {
            let mut bytes = Vec::new();
            datagram.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), datagram.wire_len() as usize);
            prop_assert_eq!(Datagram::decode(&bytes), Ok(datagram.clone()));
            if !matches!(datagram, Datagram::Packet(_)) {
                bytes.push(0);
                prop_assert_eq!(Datagram::decode(&bytes), Err(DecodeError::Trailing { extra: 1 }));
                for end in 0..bytes.len() - 1 {
                    prop_assert!(Datagram::decode(&bytes[..end]).is_err());
                }
            }
        }
    }

    #[test]
    fn control_messages_decode_only_once_complete(control in control()) {
        let mut bytes = Vec::new();
        control.encode_framed(&mut bytes);
        for end in 0..bytes.len() {
            prop_assert_eq!(Control::decode_framed(&bytes[..end]), Ok(None));
        }
        let length = bytes.len();
        bytes.extend([7; 3]);
        prop_assert_eq!(Control::decode_framed(&bytes), Ok(Some((control, length))));
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(kind in 0u8..23, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut datagram = vec![kind];
        datagram.extend(&bytes);
        exercise(&datagram);
        let mut framed = vec![0, datagram.len() as u8];
        framed.extend(&datagram);
        exercise(&framed);
    }
}

#[test]
fn impossible_lengths_and_values_are_refused() {
    let framed = |length: u16| Control::decode_framed_within(&length.to_be_bytes(), CONTROL_BYTES_MAX);
    assert_eq!(framed(CONTROL_BYTES_MAX as u16), Ok(None));
    assert_eq!(framed(CONTROL_BYTES_MAX as u16 + 1), Err(DecodeError::TooLong { limit: 2_112, got: 2_113 }));
    let from_server = |length: usize| Control::decode_framed(&(length as u16).to_be_bytes());
    assert_eq!(from_server(SHORT_MESSAGE_BYTES_MAX), Ok(None));
    assert!(from_server(SHORT_MESSAGE_BYTES_MAX + 1).is_err());
    let short = |bytes: usize| {
        let found = ObjectDescription { bytes: bytes as u64, mode: 0, modified_ns: 0, hash: Some([0; 32]) };
        let content = vec![0; SHORT_BYTES_MAX].into();
        let mut framed = Vec::new();
        Control::Short { object: "x".into(), found, content }.encode_framed(&mut framed);
        framed.resize(framed.len() + bytes - SHORT_BYTES_MAX, 0);
        let length = (framed.len() - 2) as u16;
        framed[..2].copy_from_slice(&length.to_be_bytes());
        Control::decode_framed(&framed)
    };
    assert!(matches!(short(SHORT_BYTES_MAX), Ok(Some((Control::Short { .. }, _)))));
    assert!(short(SHORT_BYTES_MAX + 1).is_err());
    let mut feedback = Vec::new();
    let report = tfrc::Report {
        sent_at: Instant::ZERO,
        delay: Duration::ZERO,
        received_bytes_per_s: 1.0,
        loss_rate: 1.5,
    };
    let lacks = Vec::new();
    let report = Some(Report::Tfrc(report));
    Datagram::Feedback(Feedback {
        pull: PullId(0),
        next: 0,
        receipt: Receipt::default(),
        report,
        grant: None,
        base: 0,
        lacks,
        is_unsaid: false,
    })
    .encode(&mut feedback);
    assert!(Datagram::decode(&feedback).is_err(), "a loss event rate above 1");
}
