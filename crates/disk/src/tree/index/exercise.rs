//! Damage to an index, for fuzzing: a scan neither fails nor gets a wrong hash.

use super::{Index, Sent, Stat};
use anabranch_pieces::FileHash;
use anabranch_sets::FileTime;
use std::path::Path;
use std::sync::OnceLock;

/// Files of the index, enough for several levels of pages.
const FILES: u64 = 2_000;
const PAGE_BYTES: usize = 4_096;
const HEADER_BYTES: usize = 320;
/// Bytes of one edit: its kind, two places, and a value.
const EDIT_BYTES: usize = 10;

fn path(number: u64) -> Vec<u8> {
    format!("d{:02}/f{number:05}", number / 100).into_bytes()
}

fn stat(number: u64) -> Stat {
    let time = FileTime::new(1_000 + number.cast_signed(), 5).expect("fewer than a second");
    Stat {
        mode: 0o644,
        size_bytes: number,
        modified: time,
        changed: time,
        inode: number,
        device: 1,
        links: 1,
        user: 0,
        group: 0,
    }
}

fn hash(number: u64) -> FileHash {
    FileHash(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn sent() -> Sent {
    Sent::decode(&[7; super::SENT_BYTES]).expect("any bytes with a time are a record")
}

/// The bytes of a whole index, which is made at `place`.
fn whole(place: &Path) -> Vec<u8> {
    let index = Index::open(place, &stat(0)).expect("it can be made");
    let keep = index.with(true, |lookups| {
        (0..FILES).try_for_each(|number| lookups.keep(&path(number), Some((&stat(number), &hash(number)))))
    });
    keep.expect("it can be written");
    let sent: Vec<_> = (0..FILES).map(|number| (path(number), sent())).collect();
    index.note_sent(&sent).expect("it can be written");
    drop(index);
    std::fs::read(place).expect("it is there")
}

/// Changes the bytes of a file by edits of ten bytes each: one byte, zeros, a copy of another page,
/// a shorter file, or a byte of the header.
fn damage(bytes: &mut Vec<u8>, edits: &[u8]) {
    for edit in edits.chunks_exact(EDIT_BYTES) {
        if bytes.is_empty() {
            return;
        }
        let place = |at: usize| {
            let place = u32::from_le_bytes(edit[at..at + 4].try_into().expect("four bytes"));
            place as usize % bytes.len()
        };
        let (at, other, value) = (place(1), place(5), edit[9]);
        match edit[0] % 5 {
            0 => bytes[at] ^= value,
            1 => {
                let end = bytes.len().min(at + other % (4 * PAGE_BYTES));
                bytes[at..end].fill(0);
            }
            2 => {
                let (from, to) = (other / PAGE_BYTES * PAGE_BYTES, at / PAGE_BYTES * PAGE_BYTES);
                let end = bytes.len().min(from + PAGE_BYTES).min(bytes.len() + from - to);
                bytes.copy_within(from..end.max(from), to);
            }
            3 => bytes.truncate(at),
            _ => {
                let at = at % HEADER_BYTES.min(bytes.len());
                bytes[at] ^= value;
            }
        }
    }
}

/// Damages an index at a place of `folder` by `edits`, and reads it. Returns true if nothing in it
/// was lost.
///
/// Panics: a scan fails, or gets a wrong hash; a record of a transfer is wrong; the index is not
/// whole after the scan.
pub fn exercise_damage(folder: &Path, edits: &[u8]) -> bool {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let place = folder.join("index");
    // A damaged one of the run before.
    drop(std::fs::remove_file(&place));
    let whole = WHOLE.get_or_init(|| whole(&place));
    let mut bytes = whole.clone();
    damage(&mut bytes, edits);
    std::fs::write(&place, &bytes).expect("it is ours");
    let index = match Index::open(&place, &stat(0)) {
        Ok(index) => index,
        Err(error) => {
            // With another format in its header it is taken for another program's file.
            assert!(bytes.get(..HEADER_BYTES) != whole.get(..HEADER_BYTES), "{error}");
            return false;
        }
    };
    let scan = |index: &Index| {
        let (mut kept, mut lost) = (0, 0);
        let scanned = index.with(true, |lookups| {
            for number in 0..FILES {
                match lookups.hash(&path(number), &stat(number))? {
                    Some(found) => {
                        assert_eq!(found, hash(number), "the wrong hash of file {number}");
                        kept += 1;
                    }
                    None => {
                        lookups.keep(&path(number), Some((&stat(number), &hash(number))))?;
                        lost += 1;
                    }
                }
            }
            Ok(())
        });
        scanned.expect("damage fails no scan");
        (kept, lost)
    };
    let (kept, _) = scan(&index);
    let records = (0..FILES).filter(|number| {
        let found = index.sent(&path(*number)).expect("damage fails no transfer");
        assert!(found.is_none_or(|found| found == sent()), "a wrong record of file {number}");
        found.is_some()
    });
    let records = records.count() as u64;
    drop(index);
    let again = Index::open(&place, &stat(0)).expect("it was made again");
    assert_eq!(scan(&again), (FILES, 0), "the index is whole after a scan");
    kept == FILES && records == FILES
}
