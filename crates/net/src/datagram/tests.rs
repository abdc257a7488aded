//! Tests without a socket: the fallback from offload, and the kernel's socket table.

use super::*;

const TO: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

/// A kernel that accepts segments up to `mtu` bytes, with offload or without, in at most `room`
/// calls.
struct Kernel {
    mtu_bytes: usize,
    offload: bool,
    /// Kernel's error for an offloaded send with an oversized segment.
    too_big: Errno,
    room: usize,
    taken: Vec<Vec<u8>>,
    calls: usize,
}

impl Kernel {
    fn new() -> Self {
        Self {
            mtu_bytes: 1_400,
            offload: true,
            too_big: Errno::MSGSIZE,
            room: usize::MAX,
            taken: vec![],
            calls: 0,
        }
    }

    fn call(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.calls += 1;
        if let Some(size) = transmit.segment_size {
            assert!(transmit.contents.len().div_ceil(size) <= SEGMENTS_MAX);
            assert!(transmit.contents.len() <= TOGETHER_BYTES_MAX);
            if !self.offload {
                return Err(Errno::IO.into());
            }
            if size > self.mtu_bytes {
                return Err(self.too_big.into());
            }
        } else if transmit.contents.len() > self.mtu_bytes {
            return Err(Errno::MSGSIZE.into());
        }
        self.room -= 1;
        let size = transmit.segment_size.unwrap_or(transmit.contents.len());
        self.taken.extend(transmit.contents.chunks(size).map(<[u8]>::to_vec));
        Ok(())
    }
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i / 7) as u8).collect()
}

#[test]
fn device_without_offload_gets_equal_datagrams_and_is_remembered() {
    let bytes = bytes(100 * 1_200 - 50);
    let segments = Segments::new(TO, &bytes, 1_200);
    let (mut able, mut unable) = (Kernel::new(), Kernel { offload: false, ..Kernel::new() });
    let (offload, fallback) = (Offload(AtomicBool::new(true)), Offload(AtomicBool::new(true)));
    assert_eq!(offload.send(&segments, |t| able.call(t)).expect("it fits"), 100);
    assert_eq!(fallback.send(&segments, |t| unable.call(t)).expect("it fits"), 100);
    assert_eq!(able.taken, unable.taken);
    assert_eq!(able.taken.concat(), bytes);
    assert_eq!((able.calls, unable.calls), (2, 101));
    assert_eq!((offload.0.into_inner(), fallback.0.load(Relaxed)), (true, false));
    assert_eq!(fallback.send(&segments, |t| unable.call(t)).expect("it fits"), 100);
    assert_eq!(unable.calls, 201, "it is not tried again");
}

#[test]
fn datagram_above_the_mtu_does_not_disable_offload() {
    let bytes = bytes(10 * 1_401);
    for too_big in [Errno::MSGSIZE, Errno::INVAL] {
        let mut kernel = Kernel { too_big, ..Kernel::new() };
        let offload = Offload(AtomicBool::new(true));
        let error = offload
            .send(&Segments::new(TO, &bytes, 1_401), |t| kernel.call(t))
            .expect_err("too big, every one of them");
        assert!(matches!(error, SendError::TooBig { size_bytes: 1_401, .. }), "{error}");
        assert!(offload.0.load(Relaxed));
        assert_eq!(offload.send(&Segments::new(TO, &bytes, 1_400), |t| kernel.call(t)).expect("it fits"), 11);
    }
}

#[test]
fn full_buffer_reports_the_sent_count_and_resumes() {
    let bytes = bytes(200 * 1_000);
    let mut kernel = Kernel { room: 2, ..Kernel::new() };
    let offload = Offload(AtomicBool::new(true));
    let segments = Segments::new(TO, &bytes, 1_000);
    let sent = offload.send(&segments, |t| kernel.call(t)).expect("there is some room");
    assert_eq!(sent, 2 * SEGMENTS_MAX);
    assert_eq!(offload.send(&segments.after(sent), |t| kernel.call(t)).expect("full is no error"), 0);
    kernel.room = 9;
    assert_eq!(offload.send(&segments.after(sent), |t| kernel.call(t)).expect("it fits"), 72);
    assert_eq!(kernel.taken.concat(), bytes);
}

#[test]
fn error_behind_sent_datagrams_is_reported_by_next_send() {
    let bytes = bytes(3_000);
    let offload = Offload(AtomicBool::new(false));
    let mut left = 2;
    let mut call = |_: &Transmit<'_>| {
        left -= 1;
        if left < 0 { Err(Errno::PERM.into()) } else { Ok(()) }
    };
    let segments = Segments::new(TO, &bytes, 1_000);
    assert_eq!(offload.send(&segments, &mut call).expect("two go"), 2);
    let error = offload.send(&segments.after(2), &mut call).expect_err("the third is forbidden");
    assert!(matches!(error, SendError::Forbidden { .. }), "{error}");
    assert!(error.to_string().starts_with("datagram to 127.0.0.1:9: "), "{error}");
}

#[test]
fn drops_are_read_from_the_kernels_table() {
    let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
                 1024: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1234 2 0000000000000000 0\n \
                 1025: 0100007F:0036 00000000:0000 07 00000000:00000300 00:00000000 00000000     0        0 1235 2 0000000000000000 17\n";
    assert_eq!(drops_of(table, 1235), Some(17));
    assert_eq!(drops_of(table, 1234), Some(0));
    assert_eq!(drops_of(table, 1), None);
    assert_eq!(drops_of("", 1), None);
}

#[test]
fn payloads_are_bounded_by_the_mtu_and_by_udp() {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    assert_eq!((payload_max(9_000, v4), payload_max(9_000, v6)), (Some(8_972), Some(8_952)));
    assert_eq!((payload_max(29, v4), payload_max(28, v4), payload_max(0, v6)), (Some(1), None, None));
    assert_eq!(payload_max(u32::MAX, v4), Some(PAYLOAD_MAX));
    assert_eq!(payload_max(1_500, "::ffff:192.0.2.1".parse().expect("an address")), Some(1_472));
}
