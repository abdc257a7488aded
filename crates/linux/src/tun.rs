//! The TUN device, from which the agent reads the packets that the kernel gives it, and to which it writes those that came.
//!
//! The kernel hands over what TCP sends at once as one long packet, and takes what came together as one (segmentation and receive offload);
//! `tun-rs` cuts and joins them. Read [`Device`] first.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::{DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, SyncDevice, VIRTIO_NET_HDR_LEN};

/// Bytes that a packet to write has before it.
pub const HEADROOM: usize = VIRTIO_NET_HDR_LEN;
/// The longest packet that the kernel hands over at once, with its head.
const READ_MAX: usize = VIRTIO_NET_HDR_LEN + 65_535;
/// The longest packet after it was cut, and how many there are then at the most.
const PACKET_MAX: usize = 16_384;
const PACKETS_MAX: usize = IDEAL_BATCH_SIZE;
/// The device's own limit for packets. Those of routes are lower, and count.
const MTU: u16 = 16_000;

/// The device. Closed with the process, or when dropped, and its routes with it.
pub struct Device {
    name: String,
    /// `None` once another program has deleted it.
    device: Option<AsyncFd<Owned>>,
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
    pub fn make(name: &str) -> io::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            device: Some(open(name)?),
            whole: vec![0; READ_MAX],
            packets: vec![vec![0; PACKET_MAX]; PACKETS_MAX],
            lengths: vec![0; PACKETS_MAX],
            joining: GROTable::default(),
        })
    }

    /// Makes it again, where it was deleted, or taken to another network namespace. Returns its index.
    ///
    /// Errors: the system's; there is no device then.
    /// Panics: outside of a tokio runtime.
    pub fn make_again(&mut self) -> io::Result<u32> {
        self.device = None;
        self.device = Some(open(&self.name)?);
        self.joining = GROTable::default();
        self.index()
    }

    /// Its index.
    ///
    /// Errors: the system's.
    pub fn index(&self) -> io::Result<u32> {
        self.device.as_ref().ok_or(io::ErrorKind::NotFound)?.get_ref().0.if_index()
    }

    /// Waits until there are packets; without a device for ever.
    ///
    /// Errors: the runtime is gone.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.device {
            Some(device) => device.readable().await.map(|mut ready| ready.retain_ready()),
            None => std::future::pending().await,
        }
    }

    /// Reads what TCP sent at once, as packets; none if there is nothing, or no device.
    ///
    /// Errors: the system's.
    pub fn read(&mut self) -> io::Result<impl Iterator<Item = &mut [u8]>> {
        let (whole, packets, lengths) = (&mut self.whole, &mut self.packets, &mut self.lengths);
        let read = self.device.as_ref().map_or(Ok(0), |device| {
            device.try_io(Interest::READABLE, |device| device.0.recv_multiple(whole, packets, lengths, 0))
        });
        let count = match read {
            Ok(count) => count,
            Err(error) if is_deleted(&error) => {
                self.device = None;
                0
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok(packets.iter_mut().zip(&*lengths).take(count).map(|(packet, length)| &mut packet[..*length]))
    }

    /// Writes packets, each behind [`HEADROOM`] bytes. What the kernel refuses is lost, as on a wire.
    ///
    /// Errors: the last refusal.
    pub fn write(&mut self, packets: &mut [Vec<u8>]) -> io::Result<()> {
        let device = self.device.as_ref().ok_or(io::ErrorKind::NotFound)?;
        device.get_ref().0.send_multiple(&mut self.joining, packets, HEADROOM).map(drop)
    }
}

/// Makes a device in the network namespace of this thread.
fn open(name: &str) -> io::Result<AsyncFd<Owned>> {
    let device = DeviceBuilder::new().name(name).mtu(MTU).offload(true).build_sync()?;
    // The device has no address, so where the system filters by the way back, `routing` has a rule; and nobody there speaks IPv6 to
    // the device itself. Without these files the kernel has no such setting.
    let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0");
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0");
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    #[expect(
        deprecated,
        reason = "unsound for types that change their descriptor, which a device never does"
    )]
    AsyncFd::with_interest(Owned(device), Interest::READABLE)
}

/// Whether the system says that the device does not exist any more: reads find it shut down, later ones detached.
fn is_deleted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BADFD | Errno::FAULT | Errno::NODEV))
}
