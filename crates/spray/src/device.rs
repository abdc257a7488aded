//! The TUN device, from which the agent reads the packets that the kernel gives it, and to which it writes those that came.
//!
//! The kernel hands over what TCP sends at once as one long packet, and takes what came together as one (segmentation and receive offload);
//! `tun-rs` cuts and joins them. Read [`Device`] first.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::{DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, SyncDevice, VIRTIO_NET_HDR_LEN};

/// Bytes that a packet to write has before it.
pub(crate) const HEADROOM: usize = VIRTIO_NET_HDR_LEN;
/// The longest packet that the kernel hands over at once, with its head.
const READ_MAX: usize = VIRTIO_NET_HDR_LEN + 65_535;
/// The longest packet after it was cut, and how many there are then at the most.
const PACKET_MAX: usize = 16_384;
const PACKETS_MAX: usize = IDEAL_BATCH_SIZE;
/// The device's own limit for packets. Those of routes are lower, and count.
const MTU: u16 = 16_000;

/// The device. Closed with the process, or when dropped, and its routes with it.
pub(crate) struct Device {
    device: AsyncFd<Owned>,
    whole: Vec<u8>,
    packets: Vec<Vec<u8>>,
    lengths: Vec<usize>,
    joining: GROTable,
}

struct Owned(SyncDevice);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Device {
    /// Makes the device in the network namespace of this thread.
    ///
    /// Errors: the system's.
    /// Panics: outside of a tokio runtime.
    pub(crate) fn make(name: &str) -> io::Result<Self> {
        let device = DeviceBuilder::new().name(name).mtu(MTU).offload(true).build_sync()?;
        // The device has no address, so where the system filters by the way back, `routing` has a rule; and nobody there speaks IPv6 to
        // the device itself. Where such a file is missing there is nothing to set.
        let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0");
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0");
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "unsound for types that change their descriptor, which a device never does"
        )]
        let device = AsyncFd::with_interest(Owned(device), Interest::READABLE)?;
        Ok(Self {
            device,
            whole: vec![0; READ_MAX],
            packets: vec![vec![0; PACKET_MAX]; PACKETS_MAX],
            lengths: vec![0; PACKETS_MAX],
            joining: GROTable::default(),
        })
    }

    /// Waits until there are packets.
    ///
    /// Errors: the runtime is gone.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.device.readable().await.map(|mut ready| ready.retain_ready())
    }

    /// Reads what TCP sent at once, as packets; none if there is nothing.
    ///
    /// Errors: the system's.
    pub(crate) fn read(&mut self) -> io::Result<impl Iterator<Item = &mut [u8]>> {
        let (whole, packets, lengths) = (&mut self.whole, &mut self.packets, &mut self.lengths);
        let read = self
            .device
            .try_io(Interest::READABLE, |device| device.0.recv_multiple(whole, packets, lengths, 0));
        let count = match read {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok(packets.iter_mut().zip(&*lengths).take(count).map(|(packet, length)| &mut packet[..*length]))
    }

    /// Writes packets, each behind [`HEADROOM`] bytes. What the kernel refuses is lost, as on a wire.
    ///
    /// Errors: the last refusal.
    pub(crate) fn write(&mut self, packets: &mut [Vec<u8>]) -> io::Result<()> {
        self.device.get_ref().0.send_multiple(&mut self.joining, packets, HEADROOM).map(drop)
    }
}
