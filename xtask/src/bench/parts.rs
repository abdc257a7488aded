//! Speed of this machine at the single parts of `replicate`'s work. [`super::relay`] attributes its
//! CPU seconds to these parts. Read [`Parts`].

use super::best_seconds;
use anabranch_codes::kernel_in_use;
use anabranch_net::keys::{Role, SetRequest, SystemSpec, make_set, write_set};
use anabranch_net::tls::{CredentialFiles, Credentials, server_name};
use anyhow::Context as _;
use rustls::{ClientConnection, ServerConnection};
use std::hint::black_box;
use std::io::{Read as _, Write as _};

/// CPU time that each part gets.
const SECONDS: f64 = 0.2;

/// CPU seconds per byte of each part.
pub struct Parts {
    /// rustls: plain bytes in, records out.
    pub seal_s: f64,
    /// rustls: records in, plain bytes out.
    pub open_s: f64,
    /// A sum of two symbols, per byte of both.
    pub xor_s: f64,
    /// BLAKE3, one thread.
    pub blake3_s: f64,
    /// XXH3.
    pub xxh3_s: f64,
}

impl std::fmt::Display for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let speed = |s: f64| 1e-9 / s;
        write!(
            f,
            "GB per CPU second: TLS seal {:.1}, open {:.1}, xor ({}) {:.1}, BLAKE3 {:.1}, XXH3 {:.1}",
            speed(self.seal_s),
            speed(self.open_s),
            kernel_in_use(),
            speed(self.xor_s),
            speed(self.blake3_s),
            speed(self.xxh3_s)
        )
    }
}

impl Parts {
    /// Measures all parts with symbols of this length.
    ///
    /// Errors: keys that cannot be made.
    pub fn measure(symbol_bytes: u32) -> anyhow::Result<Self> {
        let length = symbol_bytes as usize;
        // More data than all caches hold, because a relay never finds a symbol in a cache.
        let count = (32 << 20) / length.max(1) + 2;
        let symbols: Vec<Vec<u8>> = (0..count).map(|i| vec![i as u8; length]).collect();
        let (client, server) = connection()?;
        let (seal_s, open_s) = tls(client, server, &symbols)?;
        let kernel = kernel_in_use();
        let mut sum = vec![0; length];
        let (mut added, mut hashed, mut digested) = (0, 0, 0);
        let next = |at: &mut usize| {
            *at = (*at + 1) % count;
            &symbols[*at]
        };
        let times = best_seconds(
            &mut [
                Box::new(|| {
                    let (one, other) = (next(&mut added), next(&mut added));
                    kernel.xor(&[one, other], black_box(&mut sum));
                }),
                Box::new(|| {
                    black_box(blake3::hash(next(&mut hashed)));
                }),
                Box::new(|| {
                    black_box(xxhash_rust::xxh3::xxh3_64(next(&mut digested)));
                }),
            ],
            SECONDS,
        );
        let byte = 1.0 / length as f64;
        Ok(Self {
            seal_s,
            open_s,
            xor_s: times[0] * byte / 2.0,
            blake3_s: times[1] * byte,
            xxh3_s: times[2] * byte,
        })
    }
}

anabranch_net::system! {
    /// The system of the two ends.
    BENCH = SystemSpec {
        word: "bench",
        site: "site",
        controller: Some("controller"),
        operator: Some("operator"),
        controller_dials: false,
        keys_arguments: "",
    };
}

/// The client's and the server's end of a TLS connection as two sites have them, before the
/// handshake.
fn connection() -> anyhow::Result<(ClientConnection, ServerConnection)> {
    let set = make_set(&SetRequest {
        system: BENCH,
        sites: vec!["a".into(), "b".into()],
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: 1,
    })?;
    let folder = std::env::temp_dir().join(format!("anabranch-bench-keys-{}", std::process::id()));
    let credentials = write_set(&folder, &set).map_err(anyhow::Error::from).and_then(|()| {
        let load = |name| {
            Ok::<_, anyhow::Error>(Credentials::load(&CredentialFiles::in_set(
                &folder,
                BENCH,
                Role::Site,
                name,
            ))?)
        };
        Ok((load("a")?, load("b")?))
    });
    let _ = std::fs::remove_dir_all(&folder);
    let (a, b) = credentials?;
    let client = ClientConnection::new(a.client_config()?, server_name(BENCH, Role::Site, "b")?)?;
    Ok((client, ServerConnection::new(b.server_config()?)?))
}

/// CPU seconds per byte for sealing at one end and for opening at the other end, in memory.
fn tls(
    mut client: ClientConnection,
    mut server: ServerConnection,
    symbols: &[Vec<u8>],
) -> anyhow::Result<(f64, f64)> {
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        wire.clear();
        client.write_tls(&mut wire)?;
        server.read_tls(&mut &wire[..])?;
        server.process_new_packets()?;
        wire.clear();
        server.write_tls(&mut wire)?;
        client.read_tls(&mut &wire[..])?;
        client.process_new_packets()?;
    }
    let mut plain = vec![0; symbols[0].len()];
    let (mut seal_s, mut open_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..8 {
        let (mut sealing, mut opening, mut bytes) = (0.0, 0.0, 0);
        for symbol in symbols.iter().take(128) {
            let start = super::thread_cpu_s();
            wire.clear();
            let mut left = &symbol[..];
            while !left.is_empty() || client.wants_write() {
                let taken = client.writer().write(left)?;
                left = &left[taken..];
                client.write_tls(&mut wire)?;
            }
            let sealed = super::thread_cpu_s();
            let (mut records, mut at) = (&wire[..], 0);
            while at < symbol.len() {
                server.read_tls(&mut records).context("records in memory")?;
                server.process_new_packets()?;
                while let Ok(read @ 1..) = server.reader().read(&mut plain[at..]) {
                    at += read;
                }
            }
            let opened = super::thread_cpu_s();
            sealing += sealed - start;
            opening += opened - sealed;
            bytes += symbol.len();
        }
        seal_s = f64::min(seal_s, sealing / bytes as f64);
        open_s = f64::min(open_s, opening / bytes as f64);
    }
    Ok((seal_s, open_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_takes_below_a_microsecond_per_byte() {
        let parts = Parts::measure(16_384).expect("keys can be made");
        let all = [parts.seal_s, parts.open_s, parts.xor_s, parts.blake3_s, parts.xxh3_s];
        assert!(all.iter().all(|s| *s > 0.0 && *s < 1e-6), "{parts}");
    }
}
