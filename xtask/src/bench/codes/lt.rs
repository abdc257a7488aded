//! LT codes and the MDS code compared with the `raptorq` crate (RFC 6330): bytes per CPU second of
//! encoding and of decoding, and the number of packets that decoding needs.
//!
//! A row is a code at one number of blocks of 1,024 bytes. `lt` and `raptorq` send repair packets
//! only: k packets are made, and the blocks are recovered from repair packets alone. `lt
//! systematic` and `raptorq systematic` send the blocks and repair packets for 5 % of them, plus
//! two, and 5 % of the blocks are lost; `mds`, which has at most 255 blocks, does the same.
//! Our codes are built again for every turn; raptorq's encoding plan is computed before the clock
//! starts. Packets are made one at a time and dropped before the next one, as a sender does
//! (raptorq makes its source packets in one call). Decoders get the packets one at a time until
//! they are done; the packets were copied just before, as if received. The time includes dropping
//! the decoder with the packets that it took; it excludes dropping the packets that it did not
//! take, and the recovered blocks, which are compared with the original ones.
//! Read [`Row`] first.

use crate::bench::{best_seconds, thread_cpu_s};
use anabranch_codes::Symbol;
use anabranch_codes::lt::{self, Decoder, Inactivation, Params};
use anabranch_codes::mds::{self, Elimination};
use anabranch_endpoint::{Bytes, Len};
use anyhow::{Context, ensure};
use raptorq::{
    EncodingPacket, ObjectTransmissionInformation, SourceBlockDecoder, SourceBlockEncoder,
    SourceBlockEncodingPlan,
};
use serde::Serialize;
use std::hint::black_box;

const BLOCKS: [usize; 5] = [64, 128, 256, 1_000, 10_000];
const BLOCK_BYTES: usize = 1_024;
/// One in this many of a systematic code's blocks is lost.
const LOST: usize = 20;
/// Turns that each decoder gets with each set of packets.
const TURNS: usize = 5;

/// Result of one code at one number of blocks.
#[derive(Serialize)]
pub struct Row {
    job: &'static str,
    k: usize,
    code: &'static str,
    /// Encoding rate, in 10^6 bytes of blocks per CPU second.
    encode_mb_per_s: f64,
    /// Decoding rate, in 10^6 bytes per CPU second: the median over the draws of each draw's best
    /// turn.
    decode_mb_per_s: f64,
    /// Packets needed in addition to k: mean and 99th percentile.
    more_packets_mean: f64,
    more_packets_p99: usize,
    /// Number of draws behind the two values above.
    draws: usize,
}

/// Code that is measured.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Contender {
    Lt,
    LtSystematic,
    Mds,
    RaptorQ,
    RaptorQSystematic,
}

impl Contender {
    const ALL: [Self; 5] = [Self::Lt, Self::LtSystematic, Self::Mds, Self::RaptorQ, Self::RaptorQSystematic];

    const fn name(self) -> &'static str {
        match self {
            Self::Lt => "lt",
            Self::LtSystematic => "lt systematic",
            Self::Mds => "mds",
            Self::RaptorQ => "raptorq",
            Self::RaptorQSystematic => "raptorq systematic",
        }
    }
    const fn is_peer(self) -> bool {
        matches!(self, Self::RaptorQ | Self::RaptorQSystematic)
    }
    /// Builds our code for k blocks.
    fn code(self, k: usize) -> Code {
        let lt = |code: Result<lt::Code, _>| Code::Lt(code.expect("so many blocks make a code"));
        match self {
            Self::Mds => Code::Mds(mds::Code::new(k).expect("few blocks")),
            Self::Lt => lt(lt::Code::new(k, &Params::tuned(k))),
            _ => lt(lt::Code::systematic(k)),
        }
    }
    const fn has(self, k: usize) -> bool {
        !matches!(self, Self::Mds) || k <= mds::BLOCKS_MAX
    }
}

/// A code of the crate `anabranch-codes`.
enum Code {
    Lt(lt::Code),
    Mds(mds::Code),
}

impl Code {
    fn encode_into(&self, blocks: &[&[u8]], id: u32, packet: &mut [u8]) {
        match self {
            Self::Lt(code) => code.encode_into(blocks, id, packet),
            Self::Mds(code) => code.encode_into(blocks, id, packet),
        }
    }
    /// Decodes packets until the blocks are known. Returns the number of packets that were taken,
    /// and the blocks.
    fn decode<S: Symbol>(
        self,
        len: usize,
        packets: impl Iterator<Item = (u32, S)>,
    ) -> (usize, Option<Vec<S>>) {
        fn run<S: Symbol>(
            mut decoder: impl Decoder<S>,
            mut packets: impl Iterator<Item = (u32, S)>,
        ) -> (usize, Option<Vec<S>>) {
            let taken = packets.position(|(id, packet)| decoder.push(id, packet)).map_or(0, |last| last + 1);
            (taken, decoder.into_blocks())
        }
        match self {
            Self::Lt(code) => run(Inactivation::new(code, len), packets),
            Self::Mds(code) => run(Elimination::new(code, len), packets),
        }
    }
}

/// Packets that one contender decodes, in order. It need not take all of them.
enum Packets {
    Ours(Vec<(u32, Bytes)>),
    Theirs(Vec<EncodingPacket>),
}

/// Bytes that begin at a multiple of 64.
struct AlignedBuffer {
    pool: Vec<u8>,
    origin: usize,
}

impl AlignedBuffer {
    fn new(len: usize) -> Self {
        let mut pool = vec![0; len + 64];
        let origin = pool.as_ptr().align_offset(64);
        pool.truncate(origin + len);
        Self { pool, origin }
    }
    fn bytes(&self) -> &[u8] {
        &self.pool[self.origin..]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.pool[self.origin..]
    }
}

/// Blocks that are sent, and the plan that raptorq computes from their number beforehand.
struct File {
    k: usize,
    bytes: AlignedBuffer,
    len: usize,
    config: ObjectTransmissionInformation,
    plan: Option<SourceBlockEncodingPlan>,
}

impl File {
    fn new(k: usize, len: usize, peers: bool) -> anyhow::Result<Self> {
        let mut draw = Draw(k as u64);
        let mut bytes = AlignedBuffer::new(k * len);
        bytes.bytes_mut().fill_with(|| draw.below(256) as u8);
        let symbols = u16::try_from(k).context("blocks for raptorq")?;
        let config = ObjectTransmissionInformation::new((k * len) as u64, u16::try_from(len)?, 1, 1, 8);
        let plan = peers.then(|| SourceBlockEncodingPlan::generate(symbols));
        Ok(Self { k, bytes, len, config, plan })
    }
    fn blocks(&self) -> Vec<&[u8]> {
        self.bytes.bytes().chunks(self.len).collect()
    }
    fn encoder(&self) -> SourceBlockEncoder {
        let plan = self.plan.as_ref().expect("peers are measured only with a plan");
        SourceBlockEncoder::with_encoding_plan(0, &self.config, self.bytes.bytes(), plan)
    }
    /// Number of blocks that a systematic code loses.
    fn lost(&self) -> usize {
        (self.k / LOST).max(1)
    }

    /// Makes the packets that `who` sends; our packets are made in `packet`.
    fn encode(&self, who: Contender, packet: &mut [u8]) {
        let repair = (self.lost() + 2) as u32;
        if who.is_peer() {
            let encoder = self.encoder();
            let repair = if who == Contender::RaptorQ { self.k as u32 } else { repair };
            if who == Contender::RaptorQSystematic {
                black_box(encoder.source_packets());
            }
            (0..repair).for_each(|number| drop(black_box(encoder.repair_packets(number, 1))));
            return;
        }
        let (code, blocks) = (who.code(self.k), self.blocks());
        let sent = self.k as u32 + if who == Contender::Lt { 0 } else { repair };
        for id in 0..sent {
            code.encode_into(&blocks, id, packet);
            black_box(&mut *packet);
        }
    }
    /// The packets that `who` receives in a draw, some more than decoding should need.
    fn packets(&self, who: Contender, draw: u32) -> Packets {
        let k = self.k;
        let mut order = Draw(u64::from(draw) + 1);
        let mut is_lost = vec![false; k];
        let mut left = self.lost();
        while left > 0 {
            let lost = &mut is_lost[order.below(k)];
            left -= usize::from(!*lost);
            *lost = true;
        }
        let spare = (k / 2 + 60) as u32;
        let first = draw * 2_000;
        if who.is_peer() {
            let encoder = self.encoder();
            if who == Contender::RaptorQ {
                return Packets::Theirs(encoder.repair_packets(first, k as u32 + 20));
            }
            let sent = encoder.source_packets().into_iter().zip(&is_lost);
            let mut packets: Vec<_> =
                sent.filter(|(_, is_lost)| !**is_lost).map(|(packet, _)| packet).collect();
            packets.extend(encoder.repair_packets(first, self.lost() as u32 + 20));
            return Packets::Theirs(packets);
        }
        let (code, blocks) = (who.code(k), self.blocks());
        let ids: Vec<u32> = if who == Contender::Lt {
            (0..k as u32 + spare).map(|n| 1_000_000 + first * 100 + n).collect()
        } else {
            let sent = (0..k as u32).filter(|id| !is_lost[*id as usize]);
            sent.chain(k as u32..k as u32 + self.lost() as u32 + 60).collect()
        };
        let packet = |id: u32| {
            let mut packet = vec![0; self.len];
            code.encode_into(&blocks, id, &mut packet);
            (id, Bytes::from(packet))
        };
        Packets::Ours(ids.into_iter().map(packet).collect())
    }
    /// Decodes, and returns the CPU seconds and the number of packets taken.
    ///
    /// Errors: there are too few packets, or the decoded blocks differ from the sent ones.
    fn decode(&self, who: Contender, packets: &Packets) -> anyhow::Result<(f64, usize)> {
        let (mut taken, seconds, is_same);
        match packets {
            Packets::Ours(packets) => {
                // The packets are copied just before decoding, as raptorq's are.
                let packets: Vec<(u32, Bytes)> =
                    packets.iter().map(|(id, packet)| (*id, Bytes::copy_from_slice(packet))).collect();
                let mut packets = packets.into_iter();
                let start = thread_cpu_s();
                let (count, found) = who.code(self.k).decode(self.len, packets.by_ref());
                seconds = thread_cpu_s() - start;
                taken = count;
                let found = found.context("not enough packets")?;
                is_same = self.blocks().iter().zip(&found).all(|(block, found)| found == block);
            }
            Packets::Theirs(packets) => {
                let mut packets = packets.clone().into_iter();
                taken = 0;
                let mut found = None;
                let start = thread_cpu_s();
                let mut decoder = SourceBlockDecoder::new(0, &self.config, self.bytes.bytes().len() as u64);
                for packet in packets.by_ref() {
                    taken += 1;
                    found = decoder.decode([packet]);
                    if found.is_some() {
                        break;
                    }
                }
                drop(decoder);
                seconds = thread_cpu_s() - start;
                is_same = found.context("not enough packets")? == self.bytes.bytes();
            }
        }
        ensure!(is_same, "{}, k = {}: other bytes come out than went in", who.name(), self.k);
        Ok((seconds, taken))
    }
}

/// A small generator of draws, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % end
    }
}

/// Measures every code at every number of blocks.
///
/// Errors: a code's decoded bytes differ from the encoded ones.
pub fn measure(peers: bool, seconds: f64) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for k in BLOCKS {
        rows.extend(measure_at(k, peers, seconds)?);
    }
    Ok(rows)
}

fn measure_at(k: usize, peers: bool, seconds: f64) -> anyhow::Result<Vec<Row>> {
    let file = File::new(k, BLOCK_BYTES, peers)?;
    let all = Contender::ALL.into_iter().filter(|who| who.has(k));
    let who: Vec<Contender> = all.filter(|who| peers || !who.is_peer()).collect();
    let megabytes = 1e-6 * file.bytes.bytes().len() as f64;

    let sets = if k > 5_000 { 5 } else { 20 };
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); who.len()];
    for draw in 0..sets {
        let packets: Vec<Packets> = who.iter().map(|who| file.packets(*who, draw)).collect();
        let mut best = vec![f64::INFINITY; who.len()];
        for _ in 0..TURNS {
            for ((who, packets), best) in who.iter().zip(&packets).zip(&mut best) {
                let (seconds, _) = file.decode(*who, packets)?;
                // Ignores a turn in which the clock did not advance.
                *best = if seconds > 0.0 { best.min(seconds) } else { *best };
            }
        }
        times.iter_mut().zip(best).for_each(|(times, best)| times.push(best));
    }

    let mut packets: Vec<AlignedBuffer> = who.iter().map(|_| AlignedBuffer::new(BLOCK_BYTES)).collect();
    let mut contenders: Vec<Box<dyn FnMut() + '_>> = Vec::new();
    for (who, packet) in who.iter().zip(&mut packets) {
        let file = &file;
        contenders.push(Box::new(move || file.encode(*who, packet.bytes_mut())));
    }
    let encode = best_seconds(&mut contenders, seconds);

    let mut rows = Vec::new();
    for ((who, mut times), encode) in who.iter().copied().zip(times).zip(encode) {
        times.sort_by(f64::total_cmp);
        let (more_packets_mean, more_packets_p99, draws) = more_packets(who, k)?;
        rows.push(Row {
            job: "fountain",
            k,
            code: who.name(),
            encode_mb_per_s: megabytes / encode,
            decode_mb_per_s: megabytes / times[times.len() / 2],
            more_packets_mean,
            more_packets_p99,
            draws,
        });
    }
    Ok(rows)
}

/// Packets needed in addition to k: mean, 99th percentile, and number of draws. The blocks have 8
/// bytes; our code decodes only lengths.
fn more_packets(who: Contender, k: usize) -> anyhow::Result<(f64, usize, usize)> {
    let draws = match (k, who.is_peer()) {
        (5_001.., true) => 5,
        (5_001.., false) => 50,
        (257.., true) => 50,
        (_, true) => 200,
        (..=256, false) => 1_000,
        (_, false) => 200,
    };
    let file = File::new(k, 8, who.is_peer())?;
    let mut all = Vec::new();
    for draw in 0..draws {
        let taken = match file.packets(who, draw) {
            theirs @ Packets::Theirs(_) => file.decode(who, &theirs)?.1,
            Packets::Ours(packets) => {
                let lengths = packets.iter().map(|(id, _)| (*id, Len(8)));
                let (taken, found) = who.code(k).decode(8, lengths);
                found.context("not enough packets")?;
                taken
            }
        };
        all.push(taken - k);
    }
    all.sort_unstable();
    let mean = all.iter().sum::<usize>() as f64 / f64::from(draws);
    Ok((mean, all[all.len() * 99 / 100], draws as usize))
}

/// Values that a code must reach at one number of blocks.
struct Target {
    k: usize,
    /// Least multiple of raptorq's rate; `None` without a target.
    encode: Option<f64>,
    decode: Option<f64>,
    /// Maximum number of packets needed in addition to k.
    more_packets_mean: Option<f64>,
    more_packets_p99: Option<usize>,
}

const TARGETS: [Target; 4] = [
    Target {
        k: 64,
        encode: Some(6.0),
        decode: Some(4.0),
        more_packets_mean: Some(3.0),
        more_packets_p99: Some(10),
    },
    Target {
        k: 128,
        encode: Some(6.0),
        decode: Some(4.0),
        more_packets_mean: Some(4.0),
        more_packets_p99: Some(11),
    },
    Target {
        k: 256,
        encode: Some(6.0),
        decode: Some(4.0),
        more_packets_mean: Some(4.0),
        more_packets_p99: Some(10),
    },
    Target { k: 10_000, encode: None, decode: Some(1.6), more_packets_mean: None, more_packets_p99: None },
];
/// Maximum mean number of packets that a systematic code may need above those lost, up to 256
/// blocks.
const SYSTEMATIC_MORE_MAX: f64 = 2.0;

/// Checks the rows against the targets. Errors: a measured value misses its target.
pub fn check(rows: &[Row]) -> anyhow::Result<()> {
    let mut missed = Vec::new();
    let mut demand = |what: String, is_met: bool| {
        if !is_met {
            missed.push(what);
        }
    };
    let row = |who: Contender, k: usize| {
        let found = rows.iter().find(|row| row.k == k && row.code == who.name());
        found.with_context(|| format!("{} was not measured at k = {k}", who.name()))
    };
    for target in &TARGETS {
        let k = target.k;
        let (ours, theirs) = (row(Contender::Lt, k)?, row(Contender::RaptorQ, k)?);
        if let Some(least) = target.encode {
            let ratio = ours.encode_mb_per_s / theirs.encode_mb_per_s;
            demand(
                format!("encoding at k = {k}: {ratio:.2} times raptorq's rate (at least {least})"),
                ratio >= least,
            );
        }
        if let Some(least) = target.decode {
            let ratio = ours.decode_mb_per_s / theirs.decode_mb_per_s;
            demand(
                format!("decoding at k = {k}: {ratio:.2} times raptorq's rate (at least {least})"),
                ratio >= least,
            );
        }
        if let Some(most) = target.more_packets_mean {
            let mean = ours.more_packets_mean;
            demand(
                format!("lt at k = {k}: k + {mean:.2} packets in the mean (at most {most})"),
                mean <= most,
            );
            let mean = row(Contender::LtSystematic, k)?.more_packets_mean;
            let most = SYSTEMATIC_MORE_MAX;
            demand(format!("lt systematic at k = {k}: k + {mean:.2} packets (at most {most})"), mean <= most);
        }
        if let Some(most) = target.more_packets_p99 {
            let p99 = ours.more_packets_p99;
            demand(
                format!("lt at k = {k}: k + {p99} packets at the 99th percentile (at most {most})"),
                p99 <= most,
            );
        }
    }
    ensure!(missed.is_empty(), "LT codes miss {} of their targets: {}", missed.len(), missed.join("; "));
    eprintln!("LT codes reach all their targets beside raptorq");
    Ok(())
}

/// Prints the rows.
pub fn print_table(rows: &[Row]) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "k",
        "code",
        "encode",
        "/ raptorq",
        "decode",
        "/ raptorq",
        "more packets",
        "99 %",
        "draws",
    ]);
    for row in rows {
        // A systematic code is compared with the systematic peer.
        let peer = match row.code {
            "lt" => Some(Contender::RaptorQ),
            "lt systematic" | "mds" => Some(Contender::RaptorQSystematic),
            _ => None,
        };
        let peer = peer.and_then(|peer| rows.iter().find(|row_| row_.k == row.k && row_.code == peer.name()));
        let ratio =
            |of: fn(&Row) -> f64| peer.map_or_else(String::new, |peer| format!("{:.1}", of(row) / of(peer)));
        table.add_row([
            row.k.to_string(),
            row.code.to_owned(),
            format!("{:.0}", row.encode_mb_per_s),
            ratio(|row| row.encode_mb_per_s),
            format!("{:.0}", row.decode_mb_per_s),
            ratio(|row| row.decode_mb_per_s),
            format!("{:.2}", row.more_packets_mean),
            row.more_packets_p99.to_string(),
            row.draws.to_string(),
        ]);
    }
    for column in [0, 2, 3, 4, 5, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    println!(
        "{table}\nMB of blocks of 1,024 bytes per CPU second; packets needed above k. Systematic: 5 % of the blocks are lost."
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: Contender, k: usize, rate: f64, more_packets_mean: f64) -> Row {
        Row {
            job: "fountain",
            k,
            code: who.name(),
            encode_mb_per_s: rate,
            decode_mb_per_s: rate,
            more_packets_mean,
            more_packets_p99: 1,
            draws: 1,
        }
    }

    #[test]
    fn check_names_a_missed_target() {
        let rows = |ours, more| -> Vec<Row> {
            let at = |k| {
                [
                    (Contender::Lt, ours, more),
                    (Contender::LtSystematic, 1.0, more),
                    (Contender::RaptorQ, 1.0, 0.0),
                ]
                .map(|(who, rate, more)| row(who, k, rate, more))
            };
            BLOCKS.into_iter().flat_map(at).collect()
        };
        assert!(check(&rows(6.0, 2.0)).is_ok());
        let error = check(&rows(5.9, 2.1)).expect_err("too slow").to_string();
        assert!(
            error.contains("miss 6") && error.contains("encoding at k = 64: 5.90 times raptorq's rate"),
            "{error}"
        );
        assert!(error.contains("lt systematic at k = 256: k + 2.10 packets"), "{error}");
    }

    #[test]
    fn every_contender_recovers_the_encoded_blocks() {
        let file = File::new(64, 16, true).unwrap();
        for who in Contender::ALL {
            for draw in 0..3 {
                let (_, taken) = file.decode(who, &file.packets(who, draw)).unwrap();
                assert!((64..100).contains(&taken), "{taken} packets");
            }
            file.encode(who, &mut [0; 16]);
        }
    }
}
