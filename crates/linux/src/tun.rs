//! TUN devices: network devices whose packets a program reads and writes.
//!
//! [`open`] creates a plain device, with one packet per read or write. A [`Device`] has
//! segmentation and receive offload: the kernel delivers several segments of a connection as one
//! long packet, and accepts such packets. The `tun-rs` crate opens both kinds, and splits and
//! merges the long packets. Source: the kernel's Documentation/networking/tuntap.rst. Read [`open`]
//! and [`Device`].

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tun_rs::{DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, SyncDevice, VIRTIO_NET_HDR_LEN};

/// Bytes to leave free before a packet that is written.
pub const HEADROOM: usize = VIRTIO_NET_HDR_LEN;
/// Maximum size in bytes of one read from the kernel: a long packet and its header.
const READ_MAX: usize = VIRTIO_NET_HDR_LEN + 65_535;
/// Maximum size in bytes of a packet after the split, and maximum number of such packets per read.
const PACKET_MAX: usize = 16_384;
const PACKETS_MAX: usize = IDEAL_BATCH_SIZE;
/// Opens `/dev/net/tun`, and closes it again, as a test.
///
/// Errors: the system's: the file does not exist, or this user may not open it.
pub fn check() -> io::Result<()> {
    std::fs::File::options().read(true).write(true).open("/dev/net/tun").map(drop)
}

/// Creates a plain device in the network namespace of this thread. The descriptor never blocks;
/// closing it removes the device.
///
/// Errors: the system's.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let device = DeviceBuilder::new().name(name).enable(false).build_sync()?;
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    // SAFETY: the device releases its descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(device.into_raw_fd()) })
}

/// A device with offload. Dropping this value removes the device and its routes.
pub struct Device {
    name: String,
    mtu_bytes: u16,
    /// `None` after another program has deleted the device.
    device: Option<AsyncFd<OwnedDevice>>,
    whole: Vec<u8>,
    packets: Vec<Vec<u8>>,
    lengths: Vec<usize>,
    joining: GROTable,
}

struct OwnedDevice(SyncDevice);

impl AsRawFd for OwnedDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Device {
    /// Creates the device in the network namespace of this thread, with this MTU.
    ///
    /// Errors: the system's.
    /// Panics: outside a tokio runtime.
    pub fn make(name: &str, mtu_bytes: u16) -> io::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            mtu_bytes,
            device: Some(open_offloaded(name, mtu_bytes)?),
            whole: vec![0; READ_MAX],
            packets: vec![vec![0; PACKET_MAX]; PACKETS_MAX],
            lengths: vec![0; PACKETS_MAX],
            joining: GROTable::default(),
        })
    }

    /// Creates the device again after it was deleted or moved to another network namespace. Returns
    /// its index.
    ///
    /// Errors: the system's; the value then has no device.
    /// Panics: outside a tokio runtime.
    pub fn make_again(&mut self) -> io::Result<u32> {
        self.device = None;
        self.device = Some(open_offloaded(&self.name, self.mtu_bytes)?);
        self.joining = GROTable::default();
        self.index()
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's index.
    ///
    /// Errors: the system's.
    pub fn index(&self) -> io::Result<u32> {
        self.device.as_ref().ok_or(io::ErrorKind::NotFound)?.get_ref().0.if_index()
    }

    /// Waits for packets; without a device, waits for ever.
    ///
    /// Errors: the runtime has shut down.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.device {
            Some(device) => device.readable().await.map(|mut ready| ready.retain_ready()),
            None => std::future::pending().await,
        }
    }

    /// Reads one long packet, and returns its segments; none if no packet is waiting, or without a
    /// device.
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

    /// Writes packets, each after [`HEADROOM`] bytes. Packets that the kernel refuses are lost, as
    /// on a wire.
    ///
    /// Errors: the error of the last refused packet.
    pub fn write(&mut self, packets: &mut [Vec<u8>]) -> io::Result<()> {
        let device = self.device.as_ref().ok_or(io::ErrorKind::NotFound)?;
        device.get_ref().0.send_multiple(&mut self.joining, packets, HEADROOM).map(drop)
    }
}

fn open_offloaded(name: &str, mtu_bytes: u16) -> io::Result<AsyncFd<OwnedDevice>> {
    let device = DeviceBuilder::new().name(name).mtu(mtu_bytes).offload(true).build_sync()?;
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    #[expect(
        deprecated,
        reason = "unsound for types that change their descriptor, which a device never does"
    )]
    AsyncFd::with_interest(OwnedDevice(device), Interest::READABLE)
}

/// Returns true if the error means that the device was deleted: reads first report a shutdown, then
/// a detached device.
fn is_deleted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BADFD | Errno::FAULT | Errno::NODEV))
}
