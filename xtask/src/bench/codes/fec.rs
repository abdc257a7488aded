//! Fixed-rate codes of packets beside ISA-L: parities of a unit made, and what was lost of it got back, per CPU second.
//!
//! A cell is a code with k packets of 1,500 bytes and r parities. ISA-L gets our matrix, so that all bytes are compared. Tables for encoding
//! are made before the clock starts, as users keep them. In decoding the first r packets are lost and all parities are there; what depends
//! on which are lost (the inverse, tables) is made while the clock runs, as a receiver does.
//! Read [`Cell`] first.

use super::{Buffers, IsaL, Times};
use crate::bench::best_seconds;
use anabranch_codes::mds::{Code, Unit};
use anyhow::{Context, ensure};
use serde::Serialize;
use std::hint::black_box;

/// Packets and parities of a unit.
const UNITS: [(usize, usize); 8] = [(4, 1), (10, 1), (10, 2), (10, 4), (20, 4), (20, 10), (40, 4), (40, 10)];
const PACKET_BYTES: usize = 1_500;

/// One measurement.
#[derive(Debug, Serialize)]
pub struct Cell {
    job: &'static str,
    code: &'static str,
    k: usize,
    r: usize,
    size_bytes: usize,
    /// Packets' bytes per CPU second, 10^9 of them, parities not counted.
    gbytes_per_s: f64,
    /// Whose; null for ours.
    peer: Option<&'static str>,
}

/// Measures all units.
///
/// Errors: other bytes come out than went in, or than ISA-L makes.
pub fn measure(isa_l: Option<&IsaL>, seconds: f64) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (k, r) in UNITS {
        for (job, times) in
            [("fec_encode", encode(isa_l, k, r, seconds)), ("fec_decode", decode(isa_l, k, r, seconds))]
        {
            let times = times.with_context(|| format!("{job}, {k} + {r}"))?;
            cells.extend(times.into_iter().map(|(peer, seconds)| Cell {
                job,
                code: "mds",
                k,
                r,
                size_bytes: PACKET_BYTES,
                gbytes_per_s: (k * PACKET_BYTES) as f64 / seconds * 1e-9,
                peer,
            }));
        }
    }
    Ok(cells)
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
            (other.job, other.k, other.r) == (cell.job, cell.k, cell.r) && other.peer.is_some()
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

/// How much faster than ISA-L encoding is to be, and which part of that decoding is to reach.
const ENCODE_RATIO_MIN: f64 = 1.2;
const DECODE_SHARE_MIN: f64 = 0.5;

/// Errors: cells that are slower than they must be.
pub fn check(cells: &[Cell]) -> anyhow::Result<()> {
    let rate = |job: &str, of: &Cell, peer: Option<&str>| {
        let mut same = cells.iter().filter(|cell| (cell.job, cell.k, cell.r) == (job, of.k, of.r));
        same.find(|cell| cell.peer == peer).map(|cell| cell.gbytes_per_s)
    };
    let ratio = |cell: &Cell| match cell.job {
        "fec_encode" => Some((cell.gbytes_per_s / rate(cell.job, cell, Some("isa-l"))?, ENCODE_RATIO_MIN)),
        _ => Some((cell.gbytes_per_s / rate("fec_encode", cell, None)?, DECODE_SHARE_MIN)),
    };
    let slow: Vec<String> = cells
        .iter()
        .filter(|cell| cell.peer.is_none())
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
    fn all_units_are_measured_and_a_slow_one_fails_the_check_by_name() {
        let isa_l = IsaL::load();
        let mut cells = measure(isa_l.as_ref(), 1e-6).unwrap();
        assert_eq!(cells.iter().filter(|cell| cell.peer.is_none()).count(), 2 * UNITS.len());
        for cell in &mut cells {
            cell.gbytes_per_s = if cell.peer.is_some() { 1.0 } else { 1.2 };
        }
        check(&cells).unwrap();
        let cell = cells.iter_mut().find(|cell| cell.job == "fec_decode" && cell.k == 20).unwrap();
        cell.gbytes_per_s = 0.5;
        let error = check(&cells).unwrap_err().to_string();
        assert!(error.contains("fec_decode 20 + 4: 0.42 (at least 0.5)"), "{error}");
    }
}
