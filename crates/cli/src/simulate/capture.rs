//! Captures of chosen links for Wireshark: headers of the packets that arrive at the link's far
//! end.

use anabranch_endpoint::PeerId;
use anabranch_fabric::{Envelope, EventQueue, Flag, PacketMeta};
use anabranch_record::pcapng::{
    self, CaptureError, Ecn, Interface, PacketHead, PacketKind, SynOptions, TcpHead,
};
use anabranch_sim::{Msg, Plan, Simulation};
use anabranch_transport::Segment;
use anabranch_units::{Instant, LinkId, RunInstant};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Name of the file in the run directory.
const NAME: &str = "packets.pcapng";

/// A capture that is being written.
pub(super) struct Capture {
    out: pcapng::Capture<BufWriter<File>>,
    interfaces: BTreeMap<LinkId, Interface>,
    /// Window scale with which the largest window fits into 16 bits.
    window_shift: u8,
    path: PathBuf,
}

impl Capture {
    /// Starts a capture of `links` at the beginning of `simulation`.
    ///
    /// Errors: unknown links; an error of the operating system.
    pub(super) fn new<Q: EventQueue>(
        folder: &Path,
        links: &[String],
        plan: &Plan,
        simulation: &mut Simulation<'_, Q>,
    ) -> anyhow::Result<Self> {
        let path = folder.join(NAME);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut out =
            pcapng::Capture::new(BufWriter::new(file), concat!("anabranch ", env!("CARGO_PKG_VERSION")))?;
        let mut interfaces = BTreeMap::new();
        for name in links {
            let link = plan.network().find_link(name).map_err(|error| anyhow::anyhow!("--pcap: {error}"))?;
            let speed = plan.network().port_settings(link).rate;
            if let std::collections::btree_map::Entry::Vacant(free) = interfaces.entry(link) {
                free.insert(out.interface(name, speed)?);
                simulation.tap(link);
            }
        }
        let window_max = plan.scenario().transport.receive_buffer.as_u64();
        let window_shift = (0..14).find(|shift| window_max >> shift <= u64::from(u16::MAX)).unwrap_or(14);
        Ok(Self { out, interfaces, window_shift, path })
    }

    /// Writes the packets that the links have delivered since the last call.
    ///
    /// Errors: a packet whose headers cannot be encoded; an error of the operating system.
    pub(super) fn take<Q: EventQueue>(&mut self, simulation: &mut Simulation<'_, Q>) -> anyhow::Result<()> {
        for (link, tapped) in simulation.take_tapped() {
            let written = self.packet(self.interfaces[&link], tapped.at, &tapped.meta, &tapped.body);
            written.with_context(|| match &tapped.body.msg {
                Msg::Segment(segment) => {
                    format!("{NAME}: a segment with {} bytes of headers", segment.header_bytes)
                }
                Msg::Datagram(_) => NAME.to_owned(),
            })?;
        }
        Ok(())
    }

    /// Writes the buffered packets to the file.
    ///
    /// Errors: an error of the operating system.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.out.into_inner().flush().with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn packet(
        &mut self,
        on: Interface,
        at: Instant,
        meta: &PacketMeta,
        envelope: &Envelope<Msg>,
    ) -> Result<(), CaptureError> {
        let mut sack = Vec::new();
        let kind = match &envelope.msg {
            Msg::Segment(segment) => {
                sack.extend(segment.sack.iter().map(|(start, end)| (sequence(start), sequence(end))));
                PacketKind::Tcp(self.tcp(segment, &sack))
            }
            Msg::Datagram(_) => PacketKind::Udp,
        };
        let ecn = match (meta.has(Flag::Ect), meta.has(Flag::Ce)) {
            (false, _) => Ecn::NotEct,
            (true, false) => Ecn::Ect0,
            (true, true) => Ecn::Ce,
        };
        let head = PacketHead {
            src: meta.src,
            dst: meta.dst,
            src_port: port(envelope.from),
            dst_port: port(envelope.to),
            size_bytes: meta.size_bytes,
            ecn,
            kind,
        };
        self.out.packet(on, at, &head, None)
    }

    fn tcp<'a>(&self, segment: &Segment, sack: &'a [(u32, u32)]) -> TcpHead<'a> {
        let us = |at: RunInstant| (at.as_ps() / 1_000_000) as u32;
        TcpHead {
            seq: if segment.syn { 0 } else { sequence(segment.seq) },
            ack: segment.ack.map(sequence),
            payload_bytes: segment.len,
            syn: segment.syn.then_some(SynOptions {
                mss_bytes: None,
                sack_permitted: false,
                window_shift: Some(self.window_shift),
            }),
            fin: segment.fin,
            ece: segment.ece,
            cwr: segment.cwr,
            // A SYN's window is not scaled (RFC 7323 section 2.2).
            window: if segment.syn {
                segment.window.min(u16::MAX.into()) as u16
            } else {
                (segment.window >> self.window_shift).min(u16::MAX.into()) as u16
            },
            sack,
            timestamps: Some((us(segment.sent_at), segment.echo.map_or(0, us))),
            ..TcpHead::default()
        }
    }
}

/// Sequence number of a byte position. SYN takes the first number, and numbers wrap.
fn sequence(position: u64) -> u32 {
    position.wrapping_add(1) as u32
}

/// Port of a node, from its index, so that different nodes have different ports.
fn port(end: PeerId) -> u16 {
    (1_024 + end.0 % 64_000) as u16
}
