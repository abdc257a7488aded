//! Datagrams over loopback. No wait is longer than [`PATIENCE`]. All datagrams of a test that must
//! arrive fit together in the receive buffer that Linux grants to any process (`net.core.rmem_max`
//! of 212,992).

use anabranch_net::datagram::{
    Batch, DatagramOptions, DatagramSocket, Ecn, Segments, SendError, payload_max, route_mtu,
};
use anabranch_units::ByteCount;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_testing::skip::skip;

const PATIENCE: Duration = Duration::from_secs(60);
const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

fn socket(at: &str, offload: bool) -> DatagramSocket {
    let options =
        DatagramOptions { offload, receive_buffer: ByteCount::new(212_992), ..DatagramOptions::default() };
    DatagramSocket::bind(at.parse().expect("an address"), &options).expect("a free port")
}

fn has_ipv6() -> bool {
    let there = std::net::UdpSocket::bind(V6).is_ok();
    if !there {
        skip("this machine has no IPv6 loopback");
    }
    there
}

/// Receives `count` datagrams, with their senders.
async fn receive(socket: &DatagramSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let (mut batch, mut all) = (Batch::new(), Vec::new());
    while all.len() < count {
        let came = tokio::time::timeout(PATIENCE, socket.recv(&mut batch));
        let came = came.await.expect("all that was sent fits the buffer").expect("the socket is good");
        let before = all.len();
        all.extend(batch.datagrams().map(|d| (d.from, d.bytes.to_vec())));
        assert_eq!(all.len() - before, came);
    }
    all
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i / 3 % 251) as u8).collect()
}

#[tokio::test]
async fn datagrams_stay_separate_with_and_without_offload() {
    for at in [V4, V6] {
        if at == V6 && !has_ipv6() {
            continue;
        }
        for offload in [true, false] {
            let (near, far) = (socket(at, offload), socket(at, true));
            if offload && !near.offloads() {
                skip("this kernel has no segmentation offload");
                continue;
            }
            let (from, to) = (near.local_addr().expect("bound"), far.local_addr().expect("bound"));
            let max =
                payload_max(route_mtu(to).expect("loopback is there"), to.ip()).expect("more than headers");
            let mut all = 0;
            for (size, count) in [(1_200, 100), (1_452, 64), (8_952, 10), (32_743, 2), (max, 2), (1, 65)] {
                if size > max {
                    skip(&format!("loopback's MTU is too small for datagrams of {size} bytes"));
                    continue;
                }
                all += count as u64;
                let bytes = bytes(size * count - size / 3);
                let segments = Segments::new(to, &bytes, size);
                assert_eq!(segments.count(), count);
                tokio::time::timeout(PATIENCE, near.send(&segments))
                    .await
                    .expect("loopback has room")
                    .expect("it is there");
                let came = receive(&far, count).await;
                assert!(came.iter().map(|(_, b)| b.as_slice()).eq(bytes.chunks(size)), "{size} x {count}");
                assert!(came.iter().all(|(f, _)| *f == from));
            }
            let (sent, received) = (near.counters(), far.counters());
            assert_eq!((sent.sent, sent.sent_bytes), (all, received.received_bytes));
            assert_eq!(received.received, all);
            assert_eq!(sent.send_calls < all / 5, offload, "{sent:?}");
            assert_eq!(near.offloads(), offload);
            assert_eq!(far.receive_drops().unwrap_or(0), 0);
        }
    }
}

#[tokio::test]
async fn mtu_sized_datagram_passes_and_larger_one_fails() {
    for at in [V4, V6] {
        if at == V6 && !has_ipv6() {
            continue;
        }
        let (near, far) = (socket(at, true), socket(at, true));
        if near.may_fragment() {
            skip("this system does not forbid fragments");
            continue;
        }
        let to = far.local_addr().expect("bound");
        let mtu = route_mtu(to).expect("loopback is there");
        let max = payload_max(mtu, to.ip()).expect("loopback takes more than headers");
        let bytes = bytes(max + 1);
        near.send(&Segments::one(to, &bytes[..max])).await.expect("it fits");
        assert_eq!(receive(&far, 1).await[0].1, bytes[..max]);
        let error = near.send(&Segments::one(to, &bytes)).await.expect_err("it does not fit");
        assert!(matches!(error, SendError::TooBig { size_bytes, .. } if size_bytes == max + 1), "{error}");
        let line = error.to_string();
        assert!(
            line.starts_with(&format!("datagram of {} bytes to {to}: too big for the way there", max + 1))
        );
        assert!(!line.contains('\n'));
        assert_eq!(near.counters().send_too_big, 1);
        assert!(near.offloads());
        // The socket still sends after the error.
        near.send(&Segments::one(to, b"after")).await.expect("it fits");
        assert_eq!(receive(&far, 1).await[0].1, b"after");
    }
}

#[tokio::test]
async fn dual_stack_socket_reports_and_answers_ipv4_peers() {
    if !has_ipv6() {
        return;
    }
    let both = socket("[::]:0", true);
    let port = both.local_addr().expect("bound").port();
    if std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|on| on.trim() == "1") {
        skip("this machine keeps IPv4 off IPv6 sockets");
        return;
    }
    for at in [V4, V6] {
        let near = socket(at, true);
        let from = near.local_addr().expect("bound");
        let to = SocketAddr::new(from.ip(), port);
        near.send(&Segments::new(to, &[1; 20], 10).with_ecn(Some(Ecn::Ect0))).await.expect("it is there");
        let mut batch = Batch::with_messages(1);
        let mut count = 0;
        let mut local = None;
        while count < 2 {
            count += tokio::time::timeout(PATIENCE, both.recv(&mut batch))
                .await
                .expect("it was sent")
                .expect("the socket is good");
            for datagram in batch.datagrams() {
                assert_eq!((datagram.from, datagram.ecn), (from, Some(Ecn::Ect0)));
                local = datagram.local;
            }
        }
        assert_eq!(local, Some(from.ip()));
        both.send(&Segments::new(from, &[2; 20], 10).with_source(local)).await.expect("it is there");
        assert!(receive(&near, 2).await.iter().all(|(f, b)| *f == to && b == &[2; 10]));
    }
}

#[tokio::test]
async fn empty_datagram_is_received() {
    let far = socket(V4, true);
    let to = far.local_addr().expect("bound");
    let plain = std::net::UdpSocket::bind(V4).expect("a free port");
    plain.send_to(&[], to).expect("it is there");
    plain.send_to(b"x", to).expect("it is there");
    let came = receive(&far, 2).await;
    assert_eq!((came[0].1.as_slice(), came[1].1.as_slice()), (&b""[..], &b"x"[..]));
    assert_eq!(far.try_recv(&mut Batch::with_messages(1)).expect("the socket is good"), 0);
    // Without bytes no datagram is sent.
    far.send(&Segments::one(to, &[])).await.expect("nothing to do");
    assert_eq!(far.counters().sent, 0);
}

#[tokio::test]
async fn drops_at_a_full_buffer_are_counted() {
    let small = DatagramOptions { receive_buffer: ByteCount::kib(16), ..DatagramOptions::default() };
    let far = DatagramSocket::bind(V4.parse().expect("an address"), &small).expect("a free port");
    let Some(before) = far.receive_drops() else {
        skip("this system does not tell a socket's drops");
        return;
    };
    assert_eq!(before, 0);
    let near = socket(V4, false);
    let bytes = bytes(1_000 * 1_200);
    near.send(&Segments::new(far.local_addr().expect("bound"), &bytes, 1_200)).await.expect("it is there");
    let drops = far.receive_drops().expect("as before");
    assert!((901..1_000).contains(&drops), "{drops}");
    // The datagrams that were not dropped are in the buffer.
    receive(&far, 1_000 - drops as usize).await;
    assert_eq!(far.receive_drops(), Some(drops));
}

#[tokio::test]
async fn socket_reports_the_actual_buffer_sizes() {
    let options = DatagramOptions {
        receive_buffer: ByteCount::kib(100),
        send_buffer: ByteCount::kib(50),
        offload: true,
    };
    let socket = DatagramSocket::bind(V4.parse().expect("an address"), &options).expect("a free port");
    let granted = socket.buffers();
    assert_eq!((granted.receive, granted.send), (ByteCount::kib(100), ByteCount::kib(50)));
    // A setting that the machine does not permit is reported.
    let options = DatagramOptions { receive_buffer: ByteCount::mib(64), ..options };
    let socket = DatagramSocket::bind(V4.parse().expect("an address"), &options).expect("a free port");
    assert!(socket.buffers().receive <= ByteCount::mib(64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_sharing_a_socket_receive_each_datagram_once() {
    let (near, far) = (Arc::new(socket(V4, true)), Arc::new(socket(V4, true)));
    let to = far.local_addr().expect("bound");
    let (report, mut came) = tokio::sync::mpsc::unbounded_channel();
    let receivers: Vec<_> = (0..3)
        .map(|_| {
            let (far, report) = (far.clone(), report.clone());
            tokio::spawn(async move {
                let mut batch = Batch::with_messages(4);
                loop {
                    far.recv(&mut batch).await.expect("the socket is good");
                    for datagram in batch.datagrams() {
                        let number = u32::from_be_bytes(datagram.bytes[..4].try_into().expect("4 bytes"));
                        report.send(number).expect("the test still listens");
                    }
                }
            })
        })
        .collect();
    let senders: Vec<_> = (0..4u32)
        .map(|sender| {
            let near = near.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 * 600];
                for (i, chunk) in bytes.chunks_mut(600).enumerate() {
                    chunk[..4].copy_from_slice(&(sender * 64 + i as u32).to_be_bytes());
                }
                near.send(&Segments::new(to, &bytes, 600)).await.expect("it is there");
            })
        })
        .collect();
    for sender in senders {
        sender.await.expect("it does not fail");
    }
    let mut all = Vec::new();
    while all.len() < 256 {
        let number = tokio::time::timeout(PATIENCE, came.recv()).await.expect("all of it fits the buffer");
        all.push(number.expect("the receivers run"));
    }
    receivers.iter().for_each(tokio::task::JoinHandle::abort);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..256));
}

#[tokio::test]
async fn peer_of_another_family_is_unreachable() {
    if !has_ipv6() {
        return;
    }
    let near = socket(V4, true);
    let to: SocketAddr = (IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]), 9).into();
    let error = near.send(&Segments::one(to, b"x")).await.expect_err("an IPv4 socket");
    assert!(matches!(error, SendError::Unreachable { .. }), "{error}");
    assert_eq!(near.counters().send_unreachable, 1);
}

#[tokio::test]
async fn address_in_use_is_named_in_the_error() {
    let first = socket(V4, true);
    let at = first.local_addr().expect("bound");
    let error = DatagramSocket::bind(at, &DatagramOptions::default()).expect_err("it is taken");
    assert!(error.to_string().starts_with(&format!("{at}: ")), "{error}");
}
