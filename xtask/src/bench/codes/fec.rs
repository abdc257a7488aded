//! Fixed-rate codes of packets compared with ISA-L: a unit's parities are computed, and its lost
//! packets recovered; in bytes per CPU second.
//!
//! A cell is a code with k packets of 1,500 bytes and r parities. ISA-L gets our matrix, so that
//! all bytes can be compared. The tables for encoding are computed before the clock starts, because
//! users keep them. In decoding, the first r packets are lost and all parities are present;
//! everything that depends on the lost packets (the inverse, tables) is computed while the clock
//! runs, as a receiver does it.
//! The LDPC code is measured together with the MDS code; for it, the first run of r packets without
//! which it can decode is lost. [`Exact`] counts how often a code decodes from exactly as many
//! packets as blocks. Read [`Cell`] first.

use super::{Buffers, IsaL, Times};
use crate::bench::best_seconds;
use anabranch_codes::fixed::FixedRate;
use anabranch_codes::ldpc;
use anabranch_codes::lt::Decoder as _;
use anabranch_codes::mds::{Code, Unit};
use anabranch_endpoint::{Bytes, Len};
use anabranch_units::{RandomStream, Seed};
use anyhow::{Context, ensure};
use serde::Serialize;
use std::hint::black_box;

/// Packets and parities of a unit.
const UNITS: [(usize, usize); 8] = [(4, 1), (10, 1), (10, 2), (10, 4), (20, 4), (20, 10), (40, 4), (40, 10)];
const PACKET_BYTES: usize = 1_500;

/// Result of one measurement.
#[derive(Debug, Serialize)]
pub struct Cell {
    job: &'static str,
    code: &'static str,
    k: usize,
    r: usize,
    size_bytes: usize,
    /// 10^9 bytes of packets per CPU second, without parities.
    gbytes_per_s: f64,
    /// Name of the peer; null for our code.
    peer: Option<&'static str>,
}

/// Measures all units.
///
/// Errors: decoded bytes differ from the original ones, or parities from ISA-L's.
pub fn measure(isa_l: Option<&IsaL>, seconds: f64) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (k, r) in UNITS {
        for (job, times) in
            [("fec_encode", encode(isa_l, k, r, seconds)), ("fec_decode", decode(isa_l, k, r, seconds))]
        {
            let times = times.with_context(|| format!("{job}, {k} + {r}"))?;
            cells.extend(times.into_iter().map(|(peer, seconds)| cell(job, "mds", (k, r), seconds, peer)));
        }
        cells.extend(ldpc_cells(k, r, seconds).with_context(|| format!("ldpc, {k} + {r}"))?);
    }
    Ok(cells)
}

fn cell(
    job: &'static str,
    code: &'static str,
    (k, r): (usize, usize),
    seconds: f64,
    peer: Option<&'static str>,
) -> Cell {
    let gbytes_per_s = (k * PACKET_BYTES) as f64 / seconds * 1e-9;
    Cell { job, code, k, r, size_bytes: PACKET_BYTES, gbytes_per_s, peer }
}

/// Measures the LDPC code's encoding, and its decoding of as many losses as there are parities, if
/// it can decode them.
fn ldpc_cells(k: usize, r: usize, seconds: f64) -> anyhow::Result<Vec<Cell>> {
    let code = ldpc::Code::new(k, r)?;
    let mut buffers = Buffers::new(PACKET_BYTES, k, 0);
    let blocks: Vec<Bytes> = buffers.split().0.into_iter().map(Bytes::copy_from_slice).collect();
    let parities = code.encode(&blocks, PACKET_BYTES);
    let all: Vec<Bytes> = blocks.iter().chain(&parities).cloned().collect();
    let decode = |lost: std::ops::Range<usize>| {
        let mut decoder = code.decoder(PACKET_BYTES);
        for id in (0..all.len()).filter(|id| !lost.contains(id)) {
            if decoder.push(id as u32, all[id].clone()) {
                return decoder.into_blocks();
            }
        }
        None
    };
    let lost =
        (0..=k - r.min(k)).map(|first| first..first + r.min(k)).find(|lost| decode(lost.clone()).is_some());
    let mut jobs = vec!["fec_encode"];
    let mut contenders: Vec<Box<dyn FnMut() + '_>> = vec![Box::new(|| {
        black_box(code.encode(black_box(&blocks), PACKET_BYTES));
    })];
    if let Some(lost) = lost {
        ensure!(
            decode(lost.clone()).is_some_and(|found| found == blocks),
            "other bytes come out than went in"
        );
        jobs.push("fec_decode");
        contenders.push(Box::new(move || {
            black_box(decode(black_box(lost.clone())));
        }));
    }
    let times = best_seconds(&mut contenders, seconds);
    Ok(jobs.into_iter().zip(times).map(|(job, seconds)| cell(job, "ldpc", (k, r), seconds, None)).collect())
}

/// Share of trials in which a code decodes from exactly as many packets as blocks.
#[derive(Debug, Serialize)]
pub struct Exact {
    job: &'static str,
    code: &'static str,
    k: usize,
    r: usize,
    decoding_share: f64,
    trials: u32,
}

/// Draws which packets arrive, for both codes.
///
/// Errors: a code that cannot be made.
pub fn exact() -> anyhow::Result<Vec<Exact>> {
    let mut rows = Vec::new();
    for k in EXACT_BLOCKS {
        for r in EXACT_PARITIES {
            let mut random = Seed::new(1).stream("fec", (k * 1_000 + r) as u64);
            let mut row = |code, decoding_share, trials| {
                rows.push(Exact { job: "fec_exact", code, k, r, decoding_share, trials });
            };
            row("mds", share_decoded::<Unit>((k, r), EXACT_TRIALS / 10, &mut random)?, EXACT_TRIALS / 10);
            row("ldpc", share_decoded::<ldpc::Code>((k, r), EXACT_TRIALS, &mut random)?, EXACT_TRIALS);
        }
    }
    Ok(rows)
}

const EXACT_BLOCKS: [usize; 6] = [4, 8, 10, 16, 20, 40];
const EXACT_PARITIES: [usize; 6] = [1, 2, 3, 4, 6, 10];
const EXACT_TRIALS: u32 = 10_000;

fn share_decoded<C: FixedRate>(
    (k, r): (usize, usize),
    trials: u32,
    random: &mut RandomStream,
) -> anyhow::Result<f64> {
    let code = C::new(k, r)?;
    let mut ids: Vec<u32> = (0..(k + r) as u32).collect();
    let mut decoded = 0;
    for _ in 0..trials {
        random.shuffle(&mut ids);
        let mut decoder = code.decoder::<Len>(1);
        decoded += u32::from(ids[..k].iter().fold(false, |_, id| decoder.push(*id, Len(1))));
    }
    Ok(f64::from(decoded) / f64::from(trials))
}

/// Prints a row for each number of blocks.
pub fn print_exact(rows: &[Exact]) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    let parities = EXACT_PARITIES.iter().map(|r| format!("r = {r}"));
    table.set_header(["code".to_owned(), "k".to_owned()].into_iter().chain(parities));
    for code in ["mds", "ldpc"] {
        for k in EXACT_BLOCKS {
            let of = rows.iter().filter(|row| (row.code, row.k) == (code, k));
            let shares = of.map(|row| format!("{:.4}", row.decoding_share));
            table.add_row([code.to_owned(), k.to_string()].into_iter().chain(shares));
        }
    }
    println!("{table}\nThe share of draws in which exactly k of k + r packets decode.");
}

fn encode(isa_l: Option<&IsaL>, k: usize, r: usize, seconds: f64) -> anyhow::Result<Times> {
    let (code, unit) = (Code::new(k)?, Unit::new(k, r)?);
    let (mut ours, mut theirs) = (Buffers::new(PACKET_BYTES, k, r), Buffers::new(PACKET_BYTES, k, r));
    let (inputs, mut out) = ours.split();
    let (_, mut peer_out) = theirs.split();
    let rows: Vec<Vec<u8>> = (k..k + r).map(|id| code.coefficients(id as u32)).collect();
    let encoder = isa_l.map(|isa_l| isa_l.encoder(&rows, PACKET_BYTES)).transpose()?;
    if let Some(encoder) = &encoder {
        unit.encode(&inputs, &mut out);
        encoder(&inputs, &mut peer_out);
        ensure!(out == peer_out, "ISA-L's parities differ from ours");
    }
    let mut peers = vec![None];
    let mut contenders: Vec<Box<dyn FnMut() + '_>> =
        vec![Box::new(|| unit.encode(black_box(&inputs), black_box(&mut out)))];
    if let Some(encoder) = &encoder {
        peers.push(Some("isa-l"));
        contenders.push(Box::new(|| encoder(black_box(&inputs), black_box(&mut peer_out))));
    }
    let times = best_seconds(&mut contenders, seconds);
    Ok(peers.into_iter().zip(times).collect())
}

fn decode(isa_l: Option<&IsaL>, k: usize, r: usize, seconds: f64) -> anyhow::Result<Times> {
    let (code, unit) = (Code::new(k)?, Unit::new(k, r)?);
    let (mut sent, mut found) = (Buffers::new(PACKET_BYTES, k, r), Buffers::new(PACKET_BYTES, 0, 2 * r));
    let (blocks, mut parities) = sent.split();
    unit.encode(&blocks, &mut parities);
    let parities: Vec<&[u8]> = parities.into_iter().map(|parity| &*parity).collect();
    let (_, mut out) = found.split();
    let mut peer_out = out.split_off(r);
    let packets: Vec<Option<&[u8]>> =
        (0..k + r).map(|id| (id >= r).then(|| if id < k { blocks[id] } else { parities[id - k] })).collect();
    unit.recover(&packets, &mut out)?;
    ensure!(out.iter().zip(&blocks).all(|(out, block)| out == block), "other bytes come out than went in");
    let mut peers = vec![None];
    let mut contenders: Vec<Box<dyn FnMut() + '_>> = vec![Box::new(|| {
        unit.recover(black_box(&packets), black_box(&mut out)).expect("as many parities as lost packets");
    })];
    let there: Vec<u8> = (r..k + r).flat_map(|id| code.coefficients(id as u32)).collect();
    let inputs: Vec<&[u8]> = packets.iter().copied().flatten().collect();
    if let Some(isa_l) = isa_l {
        let decode = isa_l.decoder(k, r)?;
        decode(&there, &inputs, &mut peer_out)?;
        ensure!(
            peer_out.iter().zip(&blocks).all(|(out, block)| out == block),
            "ISA-L's blocks differ from ours"
        );
        peers.push(Some("isa-l"));
        contenders.push(Box::new(move || {
            decode(black_box(&there), black_box(&inputs), black_box(&mut peer_out))
                .expect("it was done before");
        }));
    }
    let times = best_seconds(&mut contenders, seconds);
    Ok(peers.into_iter().zip(times).collect())
}

/// Prints a row for each unit.
pub fn print_table(cells: &[Cell]) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["job", "code", "k", "r", "ours", "isa-l", "ours / isa-l"]);
    for cell in cells.iter().filter(|cell| cell.peer.is_none()) {
        let same = |other: &&Cell| {
            (other.job, other.code, other.k, other.r) == (cell.job, cell.code, cell.k, cell.r)
                && other.peer.is_some()
        };
        let peer = cells.iter().find(same).map(|other| other.gbytes_per_s);
        table.add_row([
            cell.job.to_owned(),
            cell.code.to_owned(),
            cell.k.to_string(),
            cell.r.to_string(),
            format!("{:.1}", cell.gbytes_per_s),
            peer.map_or_else(|| "-".to_owned(), |peer| format!("{peer:.1}")),
            peer.map_or_else(|| "-".to_owned(), |peer| format!("{:.2}", cell.gbytes_per_s / peer)),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    println!(
        "{table}\nGB of packets per CPU second, best of many short turns; {PACKET_BYTES} bytes a packet."
    );
}

/// Least ratio of our encoding speed to ISA-L's; and the share of ISA-L's decoding speed that ours
/// must reach.
const ENCODE_RATIO_MIN: f64 = 1.2;
const DECODE_SHARE_MIN: f64 = 0.5;

/// Checks the cells against ISA-L. Errors: cells that are slower than they must be.
pub fn check(cells: &[Cell]) -> anyhow::Result<()> {
    let rate = |job: &str, of: &Cell, peer: Option<&str>| {
        let mut same =
            cells.iter().filter(|cell| (cell.job, cell.code, cell.k, cell.r) == (job, of.code, of.k, of.r));
        same.find(|cell| cell.peer == peer).map(|cell| cell.gbytes_per_s)
    };
    let ratio = |cell: &Cell| match cell.job {
        "fec_encode" => Some((cell.gbytes_per_s / rate(cell.job, cell, Some("isa-l"))?, ENCODE_RATIO_MIN)),
        _ => Some((cell.gbytes_per_s / rate("fec_encode", cell, None)?, DECODE_SHARE_MIN)),
    };
    let slow: Vec<String> = cells
        .iter()
        .filter(|cell| cell.peer.is_none() && cell.code == "mds")
        .filter_map(|cell| {
            let (ratio, least) = ratio(cell)?;
            (ratio < least)
                .then(|| format!("{} {} + {}: {ratio:.2} (at least {least})", cell.job, cell.k, cell.r))
        })
        .collect();
    ensure!(
        slow.is_empty(),
        "units too slow (encoding beside ISA-L, decoding beside encoding): {}",
        slow.join("; ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_units_are_measured_and_slow_ones_named() {
        let isa_l = IsaL::load();
        let mut cells = measure(isa_l.as_ref(), 1e-6).unwrap();
        let ours = cells.iter().filter(|cell| cell.peer.is_none() && cell.code == "mds");
        assert_eq!(ours.count(), 2 * UNITS.len());
        for cell in &mut cells {
            cell.gbytes_per_s = if cell.peer.is_some() { 1.0 } else { 1.2 };
        }
        check(&cells).unwrap();
        let slow = |cell: &&mut Cell| cell.job == "fec_decode" && cell.k == 20 && cell.code == "mds";
        let cell = cells.iter_mut().find(slow).unwrap();
        cell.gbytes_per_s = 0.5;
        let error = check(&cells).unwrap_err().to_string();
        assert!(error.contains("fec_decode 20 + 4: 0.42 (at least 0.5)"), "{error}");
    }
}
