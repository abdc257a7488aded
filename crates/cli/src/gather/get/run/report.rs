//! What a `get` says at its end: a line for each object and one for all, for programs; a sentence for people; the exit code.

use super::super::progress::{ServerRow, print_line, rate};
use super::{Object, Run, Stage};
use anabranch_units::ByteCount;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

#[derive(Serialize)]
struct ObjectLine<'a> {
    event: &'static str,
    object: &'a str,
    path: String,
    bytes: Option<u64>,
    blake3: Option<String>,
    kept_bytes: u64,
    verdict: &'static str,
    error: Option<&'a str>,
    /// What servers have that has another version.
    other_versions: &'a BTreeMap<String, String>,
    seconds: Option<f64>,
}

#[derive(Serialize)]
struct EndLine<'a> {
    event: &'static str,
    verified: usize,
    failed: usize,
    fetched_bytes: u64,
    seconds: f64,
    /// Until the last server was connected, and until the first packet came.
    connected_s: Option<f64>,
    first_packet_s: Option<f64>,
    /// Until the last packet came.
    last_packet_s: Option<f64>,
    goodput_mbps: f64,
    received_packets: u64,
    useless_packets: u64,
    malformed_packets: u64,
    stray_packets: u64,
    forged_packets: u64,
    replayed_packets: u64,
    unknown_datagrams: u64,
    dropped_by_the_kernel: Option<u64>,
    /// How often datagrams' keys were changed, as they wear out.
    key_changes: u64,
    servers: &'a [ServerRow],
}

impl Run {
    /// Says what became of everything. `ended` unless it was interrupted.
    pub(super) fn report(&self, ended: bool) -> ExitCode {
        let seconds = self.begun_at.elapsed().as_secs_f64();
        let since = |at: std::time::Instant| (at - self.begun_at).as_secs_f64();
        let (mut verified, mut failed, mut integrity) = (0, 0, false);
        for object in &self.objects {
            let (verdict, error) = match &object.stage {
                Stage::Verified => ("verified", None),
                Stage::Failed { reason, is_integrity } => {
                    integrity |= is_integrity;
                    ("failed", Some(reason.as_str()))
                }
                _ => ("interrupted", None),
            };
            verified += usize::from(object.stage == Stage::Verified);
            failed += usize::from(object.stage != Stage::Verified);
            if self.settings.json {
                print_line(&ObjectLine {
                    event: "object",
                    object: &object.target.name,
                    path: object.target.path.display().to_string(),
                    bytes: object.target.bytes,
                    blake3: object.target.hash.map(|hash| blake3::Hash::from(hash).to_hex().to_string()),
                    kept_bytes: object.kept_bytes,
                    verdict,
                    error,
                    other_versions: &object.others,
                    seconds: object.ended_at.map(|at| (at - self.begun_at).as_secs_f64()),
                });
            }
        }
        let fetched_bytes: u64 = self.objects.iter().map(|object| object.fetched_bytes).sum();
        let goodput_mbps = fetched_bytes as f64 * 8.0 / 1e6 / seconds.max(1e-9);
        let opened = self.links.iter().filter_map(|link| link.connected.as_ref());
        let opened = opened.map(|connected| connected.channel.opener.counters());
        let (forged, replayed) = opened.fold((0, 0), |(forged, replayed), counters| {
            (forged + counters.forged, replayed + counters.replayed + counters.too_old)
        });
        if self.settings.json {
            let counts = self.client.counts();
            print_line(&EndLine {
                event: "end",
                verified,
                failed,
                fetched_bytes,
                seconds,
                connected_s: self.connected_at.map(since),
                first_packet_s: self.packets_at.map(|(first, _)| since(first)),
                last_packet_s: self.packets_at.map(|(_, last)| since(last)),
                goodput_mbps,
                received_packets: counts.packets,
                useless_packets: counts.useless,
                malformed_packets: counts.malformed + self.malformed_datagrams,
                stray_packets: self.client.strays(),
                forged_packets: forged,
                replayed_packets: replayed,
                unknown_datagrams: self.unknown_datagrams,
                dropped_by_the_kernel: self.socket.receive_drops(),
                key_changes: self.links.iter().map(|link| link.key_changes).sum(),
                servers: &self.rows(),
            });
        } else if !self.settings.quiet && !self.settings.streams {
            let objects = if self.objects.len() == 1 { "object" } else { "objects" };
            println!(
                "{verified} of {} {objects} verified, {} fetched in {seconds:.2} s: {}",
                self.objects.len(),
                ByteCount::new(fetched_bytes),
                rate(fetched_bytes as f64 / seconds.max(1e-9))
            );
        }
        if !self.settings.json && !self.settings.streams {
            if !ended {
                eprintln!("anabranch: interrupted; the same command goes on from there");
            } else if self.objects.iter().any(Object::can_go_on) {
                eprintln!("anabranch: what has come is kept; the same command goes on from there");
            }
        }
        match (ended, failed) {
            (false, _) => ExitCode::from(130),
            (true, 0) => ExitCode::SUCCESS,
            (true, _) if integrity => ExitCode::from(4),
            (true, _) if verified > 0 => ExitCode::from(3),
            (true, _) => ExitCode::FAILURE,
        }
    }
}
