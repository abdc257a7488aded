//! Whether a program loads libraries, from its ELF file.
//!
//! Source: elf(5); System V ABI, chapter 5 (program header, dynamic section). Leaves out: 32-bit
//! programs, sections. Read [`linkage`].

/// Maximum number of program headers that are read.
const HEADERS_MAX: u16 = 512;
/// Maximum number of entries of the dynamic section that are read.
const DYNAMIC_MAX: usize = 4_096;
/// Maximum length of a library's name that is read.
const NAME_BYTES_MAX: usize = 256;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const DYNAMIC_BYTES: usize = 16;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Whether a program loads the C library.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// The program loads the C library.
    Libc,
    /// The program loads libraries, but not the C library.
    Other,
    /// The program loads no libraries.
    Static,
    /// The program has another word length or byte order.
    Foreign,
}

/// A part of the file, described by a program header.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Reads a program's linkage. `read` gets an offset and a number of bytes, and returns fewer bytes
/// at the end of the file.
///
/// `None` for files that are not ELF or are damaged.
pub(crate) fn linkage(read: &mut dyn FnMut(u64, usize) -> Option<Vec<u8>>) -> Option<Linkage> {
    let header = read(0, HEADER_BYTES)?;
    if header.get(..4)? != b"\x7fELF" {
        return None;
    }
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if header.get(4..6)? != [2, order] {
        return Some(Linkage::Foreign);
    }
    let (at, size, count) = (long(&header, 32)?, half(&header, 54)?, half(&header, 56)?);
    if usize::from(size) != PROGRAM_HEADER_BYTES || count > HEADERS_MAX {
        return None;
    }
    let headers = read(at, PROGRAM_HEADER_BYTES * usize::from(count))?;
    let segments: Vec<Segment> = headers
        .chunks_exact(PROGRAM_HEADER_BYTES)
        .map_while(|header| {
            Some(Segment {
                kind: word(header, 0)?,
                offset: long(header, 8)?,
                address: long(header, 16)?,
                bytes: long(header, 32)?,
            })
        })
        .collect();
    if segments.len() != usize::from(count) {
        return None;
    }
    if !segments.iter().any(|segment| segment.kind == PT_INTERP) {
        return Some(Linkage::Static);
    }
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
        return Some(Linkage::Static);
    };
    let bytes = usize::try_from(dynamic.bytes).ok()?.min(DYNAMIC_MAX * DYNAMIC_BYTES);
    let dynamic = read(dynamic.offset, bytes)?;
    let entries: Vec<(u64, u64)> = dynamic
        .chunks_exact(DYNAMIC_BYTES)
        .map_while(|entry| Some((long(entry, 0)?, long(entry, 8)?)))
        .take_while(|(tag, _)| *tag != DT_NULL)
        .collect();
    let (_, address) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?;
    let strings = segments.iter().find_map(|segment| {
        let inside = address.checked_sub(segment.address).filter(|inside| *inside < segment.bytes)?;
        (segment.kind == PT_LOAD).then(|| segment.offset.checked_add(inside)).flatten()
    })?;
    for (_, name) in entries.iter().filter(|(tag, _)| *tag == DT_NEEDED) {
        let name = read(strings.checked_add(*name)?, NAME_BYTES_MAX)?;
        if name.split(|byte| *byte == 0).next()?.starts_with(b"libc.so") {
            return Some(Linkage::Libc);
        }
    }
    Some(Linkage::Other)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Reads the linkage of a file in memory.
fn linkage_of(file: &[u8]) -> Option<Linkage> {
    linkage(&mut |at, bytes| {
        let rest = file.get(usize::try_from(at).ok()?..)?;
        Some(rest[..bytes.min(rest.len())].to_vec())
    })
}

/// Implementation of [`crate::exercise_elf`].
pub(crate) fn exercise(bytes: &[u8]) -> bool {
    linkage_of(bytes) == Some(Linkage::Libc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A program with up to three segments: an optional interpreter, the whole file, and the
    /// dynamic section, which requires `library`.
    fn program(has_interpreter: bool, library: &str) -> Vec<u8> {
        const ADDRESS: u64 = 0x1000;
        let table = (HEADER_BYTES + 3 * PROGRAM_HEADER_BYTES) as u64;
        let strings = table + 3 * DYNAMIC_BYTES as u64;
        let mut file = b"\x7fELF\x02".to_vec();
        file.push(if cfg!(target_endian = "little") { 1 } else { 2 });
        file.resize(HEADER_BYTES, 0);
        file[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_ne_bytes());
        file[54..56].copy_from_slice(&(PROGRAM_HEADER_BYTES as u16).to_ne_bytes());
        file[56..58].copy_from_slice(&3u16.to_ne_bytes());
        let interpreter = if has_interpreter { PT_INTERP } else { 4 };
        for (kind, offset, address, bytes) in [
            (interpreter, 0, 0, 0),
            (PT_LOAD, 0, ADDRESS, 1_000),
            (PT_DYNAMIC, table, ADDRESS + table, 3 * DYNAMIC_BYTES as u64),
        ] {
            file.extend(kind.to_ne_bytes());
            file.extend(0u32.to_ne_bytes());
            for field in [offset, address, address, bytes, bytes, 0] {
                file.extend(field.to_ne_bytes());
            }
        }
        for (tag, value) in [(DT_STRTAB, ADDRESS + strings), (DT_NEEDED, 1), (DT_NULL, 0)] {
            file.extend(tag.to_ne_bytes());
            file.extend(value.to_ne_bytes());
        }
        file.push(0);
        file.extend(library.bytes());
        file.push(0);
        file
    }

    #[test]
    fn programs_are_distinguished_by_the_libraries_they_load() {
        assert_eq!(linkage_of(&program(true, "libc.so.6")), Some(Linkage::Libc));
        assert_eq!(linkage_of(&program(true, "libm.so.6")), Some(Linkage::Other));
        assert_eq!(linkage_of(&program(false, "libc.so.6")), Some(Linkage::Static));
        let mut foreign = program(true, "libc.so.6");
        foreign[4] = 1;
        assert_eq!(linkage_of(&foreign), Some(Linkage::Foreign));
        assert_eq!(linkage_of(b"#!/bin/sh\n"), None);
    }

    /// The corpus is of a little-endian machine.
    #[cfg(target_endian = "little")]
    #[test]
    fn elf_corpus_is_read_as_its_names_say() {
        anabranch_testing::replay("dilate_elf", exercise);
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(at in 0usize..400, byte: u8, length in 0usize..400) {
            let mut file = program(true, "libc.so.6");
            let bytes = file.len();
            file[at % bytes] = byte;
            file.truncate(length);
            let _ = exercise(&file);
        }
    }
}
