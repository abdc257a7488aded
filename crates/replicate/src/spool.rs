//! Storage of flows that a site may forward only as a whole: one nameless file for each flow.
//!
//! The files lie in the site's folder, are as large as the flow's packets together, and vanish with
//! their attempt or process, however it ends. Each packet has a fixed position, so a record is
//! found by its number alone. The hash in each packet reveals corruption by the disk, just as it
//! does corruption by a hop.

use anabranch_disk::folder::{Folder, reworded, shown};
use anabranch_replicate_proto::msg::FrameHeader;
use anabranch_replicate_proto::plan::FlowId;
use anabranch_replicate_proto::site::{Fetch, Packet, Store};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A packet to store or to fetch.
#[derive(Debug)]
pub enum SpoolTask {
    /// A packet to store.
    Store(Store<Bytes>),
    /// A packet to fetch.
    Fetch(Fetch),
}

/// The files of one attempt.
#[derive(Debug)]
pub struct Spool {
    folder: Arc<Folder>,
    symbol_bytes: u32,
    files: BTreeMap<FlowId, File>,
}

impl Spool {
    /// Creates a spool with its files in `folder`, for packets of at most `symbol_bytes`.
    pub fn new(folder: Arc<Folder>, symbol_bytes: u32) -> Self {
        Self { folder, symbol_bytes, files: BTreeMap::new() }
    }

    fn offset(&self, index: u64) -> u64 {
        index * (FrameHeader::LEN as u64 + u64::from(self.symbol_bytes))
    }

    /// Stores a packet.
    ///
    /// Errors: the system's, with the operation and path.
    pub fn store(&mut self, store: &Store<Bytes>) -> io::Result<()> {
        let Store { flow, index, packet } = store;
        let at = self.offset(*index);
        let place = |e: io::Error| {
            let what = format!("storing flow {} in {} until it is whole", flow.0, shown(self.folder.path()));
            reworded(&e, format!("{what}: {e}"))
        };
        let file = match self.files.entry(*flow) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                new.insert(self.folder.nameless().map_err(place)?)
            }
        };
        let length = packet.symbol.len() as u32;
        let header = FrameHeader::Data { generation: packet.generation, hash: packet.hash, length };
        file.write_all_at(&header.encode(), at).map_err(place)?;
        file.write_all_at(&packet.symbol, at + FrameHeader::LEN as u64).map_err(place)
    }

    /// Fetches a packet.
    ///
    /// Errors: the system's, or data that differs from the stored data; with the operation and
    /// path.
    pub fn fetch(&self, fetch: Fetch) -> io::Result<Packet<Bytes>> {
        let place = |kind, e: &dyn std::fmt::Display| {
            let what = format!("reading back flow {} in {}", fetch.flow.0, shown(self.folder.path()));
            io::Error::new(kind, format!("{what}: {e}"))
        };
        let file = self.files.get(&fetch.flow);
        let file = file.ok_or_else(|| place(io::ErrorKind::NotFound, &"never stored"))?;
        let at = self.offset(fetch.index);
        let mut header = [0; FrameHeader::LEN];
        file.read_exact_at(&mut header, at).map_err(|e| place(e.kind(), &e))?;
        match FrameHeader::decode(&header, self.symbol_bytes) {
            Ok(FrameHeader::Data { generation, hash, length }) => {
                let mut symbol = BytesMut::zeroed(length as usize);
                file.read_exact_at(&mut symbol, at + FrameHeader::LEN as u64)
                    .map_err(|e| place(e.kind(), &e))?;
                Ok(Packet { generation, hash, symbol: symbol.freeze() })
            }
            Ok(FrameHeader::End { .. } | FrameHeader::Padding { .. }) => {
                Err(place(io::ErrorKind::InvalidData, &"no packet there"))
            }
            Err(e) => Err(place(io::ErrorKind::InvalidData, &e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_disk::folder::Links;
    use anabranch_pieces::GenerationHash;
    use anabranch_replicate_proto::control::SiteProgram;
    use anabranch_replicate_proto::site::Site;

    /// A relay that stores flow 0 (two chunks of 10 bytes) before it forwards it as flow 1.
    fn relay() -> Site<Bytes> {
        let hop = r#"{"stripes": 1, "priority": "bulk"}"#;
        let program = format!(
            r#"{{"run": {{"transfer": 1, "attempt": 1}}, "site": 1, "length": 20, "symbol_bytes": 10, "buffer_packets": 2,
            "groups": [{{"streams": 1, "mode": "routed", "work": [{{"start": 0, "end": 20}}], "flush": 0}}],
            "incoming": [{{"flow": 0, "group": 0, "from": 0, "from_name": "0", "link": 0, "stripes": 1}}],
            "outgoing": [{{"flow": 1, "group": 0, "to": 2, "to_name": "2", "link": 1, "address": "", "hop": {hop},
                "terms": [{{"input": {{"flow": 0}}, "coefficient": 1, "delayed": false}}]}}],
            "sinks": [], "store_and_forward": true}}"#
        );
        let program: SiteProgram = serde_json::from_str(&program).expect("a program");
        Site::new(&program).expect("a good program")
    }

    #[test]
    fn spooled_data_comes_back_intact_and_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let served = Folder::open(folder.path(), Links::Refused).expect("it is there");
        let mut spool = Spool::new(Arc::new(served), 10);
        let mut site = relay();
        let packet = |n: u8| Packet {
            generation: u64::from(n),
            hash: GenerationHash([n; 32]),
            symbol: Bytes::from(vec![n; 10]),
        };
        for n in [1, 0] {
            site.accept(FlowId(0), packet(n)).expect("room for two");
            let store = site.poll_store().expect("it is to be stored");
            spool.store(&store).expect("a disk");
            site.handle_stored(FlowId(0));
            assert_eq!(site.poll_fetch(), None, "the flow has not ended");
        }
        site.accept_end(FlowId(0), 2).expect("it had two");
        let back: Vec<_> = std::iter::from_fn(|| site.poll_fetch())
            .map(|fetch| spool.fetch(fetch).expect("as it was"))
            .collect();
        assert_eq!(back, [packet(1), packet(0)]);
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("it is there").count(),
            0,
            "the files have no names"
        );
    }

    #[test]
    fn missing_folder_is_reported_in_one_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, served) = (folder.path().to_owned(), Folder::open(folder.path(), Links::Refused));
        drop(folder);
        let mut spool = Spool::new(Arc::new(served.expect("it was there")), 10);
        let mut site = relay();
        let packet =
            Packet { generation: 0, hash: GenerationHash::default(), symbol: Bytes::from_static(&[0; 10]) };
        site.accept(FlowId(0), packet).expect("room");
        let error = spool.store(&site.poll_store().expect("it is to be stored")).expect_err("no such folder");
        let said = format!("storing flow 0 in {} until it is whole: ", path.display());
        assert!(error.to_string().starts_with(&said), "{error}");
    }
}
