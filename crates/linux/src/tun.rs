//! TUN devices: network devices whose packets a program reads and writes.
//!
//! [`open`] makes a plain device: one packet for each read and write. A [`Device`] has segmentation and receive offload: the
//! kernel hands over several segments of a connection as one long packet, and takes such packets. The `tun-rs` crate opens both
//! kinds, and cuts and joins the long packets. Source: the kernel's Documentation/networking/tuntap.rst. Read [`open`] and [`Device`].

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
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
/// Opens `/dev/net/tun`, and closes it again.
///
/// Errors: the system's: the file is missing, or this user may not open it.
pub fn check() -> io::Result<()> {
    std::fs::File::options().read(true).write(true).open("/dev/net/tun").map(drop)
}

/// Makes a plain device in the network namespace of this thread. The descriptor never blocks, and the device goes with it.
///
/// Errors: the system's.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let device = DeviceBuilder::new().name(name).enable(false).build_sync()?;
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    // SAFETY: the device gives up its descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(device.into_raw_fd()) })
}

/// A device with offload. It goes when this value is dropped, and its routes with it.
pub struct Device {
    name: String,
    mtu_bytes: u16,
    /// `None` once another program has deleted it.
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
    /// Makes the device in the network namespace of this thread, with this longest packet.
    ///
    /// Errors: the system's.
    /// Panics: outside of a tokio runtime.
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

    /// Makes the device again after it was deleted or moved to another network namespace. Returns its index.
    ///
    /// Errors: the system's; there is no device then.
    /// Panics: outside of a tokio runtime.
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

    /// Waits for packets; for ever without a device.
    ///
    /// Errors: the runtime is gone.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.device {
            Some(device) => device.readable().await.map(|mut ready| ready.retain_ready()),
            None => std::future::pending().await,
        }
    }

    /// Reads the packets of one long packet; none if no packet waits, or without a device.
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

    /// Writes packets, each behind [`HEADROOM`] bytes. Packets that the kernel refuses are lost, as on a wire.
    ///
    /// Errors: the last refusal.
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

/// Whether the system says that the device does not exist any more: reads find it shut down, later ones detached.
fn is_deleted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BADFD | Errno::FAULT | Errno::NODEV))
}
