//! `bench spray`: the cost of an agent's coding, by the packets of a unit: the state machine of
//! `spray up` with real packets, without its sockets.
//!
//! Measures CPU time of this thread, the median of turns. A flow sends a unit of full packets; the
//! other end receives it whole, or without its first packet, which the parity restores. The cost of
//! coding is the difference to the same unit without parities (the paper's Figures 15 and 16). Read
//! [`Row`] first.

use super::thread_cpu_s;
use anabranch_endpoint::Bytes;
use anabranch_spray_proto::{
    Body, Config, FlowId, Host, OutgoingDatagram, OutgoingPacket, Parities, UnitSize,
};
use anabranch_units::{Duration, Instant};
use anyhow::ensure;

/// Arguments of `bench spray`.
#[derive(clap::Args)]
pub struct Args {
    /// Units sent in each turn.
    #[arg(long, default_value_t = 2_000)]
    units: u32,
    /// Turns of each kind; the median counts.
    #[arg(long, default_value_t = 15)]
    turns: usize,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Data of a packet that TCP sends over a tunnel of 1,500 bytes.
const PACKET_BYTES: usize = 1_400;
/// Round trip of Figures 11 to 13 without queues, to which times are compared, in microseconds.
const RTT_US: f64 = 4_000.0;

/// CPU time for a unit.
#[derive(serde::Serialize)]
struct Row {
    unit_packets: u8,
    /// Time at the sender and at the receiver, without parities.
    send_us: f64,
    receive_us: f64,
    /// Additional time for one parity at the sender.
    encode_us: f64,
    /// Additional time at the receiver if a parity restores a packet.
    decode_us: f64,
    /// Sum of `encode_us` and `decode_us`, as a share of a round trip of 4 ms.
    rtt_share: f64,
}

/// Runs the benchmark.
///
/// Errors: a packet does not arrive.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for unit_packets in [2, 4, 8, 16] {
        let (send_us, receive_us) = median(args, unit_packets, 0)?;
        let (with_parity_us, recovering_us) = median(args, unit_packets, 1)?;
        let (encode_us, decode_us) = (with_parity_us - send_us, recovering_us - receive_us);
        let rtt_share = (encode_us + decode_us) / RTT_US;
        rows.push(Row { unit_packets, send_us, receive_us, encode_us, decode_us, rtt_share });
    }
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["packets", "send us", "receive us", "encode us", "decode us", "of 4 ms"]);
    for row in &rows {
        let us = [row.send_us, row.receive_us, row.encode_us, row.decode_us].map(|us| format!("{us:.2}"));
        let share = format!("{:.3} %", 100.0 * row.rtt_share);
        table.add_row([&[row.unit_packets.to_string()][..], &us, &[share]].concat());
    }
    println!("{table}");
    Ok(())
}

/// The medians for a unit at its sender and its receiver, in microseconds.
fn median(args: &Args, unit_packets: u8, parities: u8) -> anyhow::Result<(f64, f64)> {
    let turns = (0..args.turns.max(1)).map(|_| turn(args.units, unit_packets, parities));
    let (mut sent, mut received): (Vec<f64>, Vec<f64>) =
        turns.collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip();
    let of = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        1e6 * times[times.len() / 2] / f64::from(args.units)
    };
    Ok((of(&mut sent), of(&mut received)))
}

/// CPU seconds of all units at the sender and at the receiver.
fn turn(units: u32, unit_packets: u8, parities: u8) -> anyhow::Result<(f64, f64)> {
    let config = Config {
        unit: UnitSize::Fixed(unit_packets),
        parities: Parities::Fixed(parities),
        repeats: false,
        ..Config::of_agent()
    };
    let mut hosts = [Host::new(config.clone())?, Host::new(config)?];
    let packet = Bytes::from(vec![7; PACKET_BYTES]);
    let (mut now, mut sent_s, mut received_s) = (Instant::ZERO, 0.0, 0.0);
    for flow in 0..units {
        // Time passes between flows, so that the hosts forget silent flows.
        now += Duration::from_ms(5);
        let start = thread_cpu_s();
        for _ in 0..unit_packets {
            let outgoing = OutgoingPacket {
                packet: packet.clone(),
                payload_bytes: PACKET_BYTES as u32,
                is_acknowledgement: false,
                is_end: false,
                flow_size: None,
            };
            hosts[0].handle_packet(now, FlowId { peer: 1, flow: flow + 2 }, outgoing);
        }
        let leaving: Vec<OutgoingDatagram<Bytes>> = std::iter::from_fn(|| hosts[0].poll_leaving()).collect();
        hosts[0].handle_timeout(now);
        sent_s += thread_cpu_s() - start;
        // If a unit has a parity, its first packet is lost.
        let is_parity =
            |leaving: &OutgoingDatagram<Bytes>| matches!(leaving.datagram.body, Body::Parity { .. });
        let lost = usize::from(leaving.iter().any(is_parity));
        let start = thread_cpu_s();
        for one in leaving.into_iter().skip(lost) {
            hosts[1].handle_datagram(now, 0, one.datagram, (PACKET_BYTES as u32, false));
        }
        let come = std::iter::from_fn(|| hosts[1].poll_arrived()).count();
        hosts[1].handle_timeout(now);
        received_s += thread_cpu_s() - start;
        // Returns the receiver's feedback to the sender, so that no packet waits for it.
        while let Some(said) = hosts[1].poll_leaving() {
            hosts[0].handle_datagram(now, 1, said.datagram, (0, false));
        }
        ensure!(come == usize::from(unit_packets), "{come} packets of {unit_packets} came of unit {flow}");
        ensure!(lost == usize::from(parities), "unit {flow} of {unit_packets} packets has no parity");
    }
    Ok((sent_s, received_s))
}
