//! Writer of fragments: one `moof` with its `mdat`.
//!
//! Source: ISO/IEC 14496-12, section 8.8; ISO/IEC 23000-19, section 7.3.2.3 (chunks). Read
//! [`fragment`].

use super::Sample;

/// Writes a fragment. `tracks` has the number and the samples of each track; tracks without samples
/// are left out.
///
/// Panics: if the fragment is 2 GiB or larger; the caller bounds its size.
pub(super) fn fragment(sequence: u32, tracks: &[(u32, Vec<Sample>)]) -> Vec<u8> {
    let tracks = || tracks.iter().filter(|(_, samples)| !samples.is_empty());
    let data_bytes: usize = tracks().flat_map(|(_, samples)| samples).map(|sample| sample.data.len()).sum();
    // Positions of the data offsets, with the number of data bytes before each track's data.
    let mut offsets = Vec::new();
    let mut bytes = Vec::with_capacity(data_bytes + 512);
    boxed(&mut bytes, b"moof", |bytes| {
        boxed(bytes, b"mfhd", |bytes| words(bytes, &[0, sequence]));
        let mut before = 0;
        for (id, samples) in tracks() {
            boxed(bytes, b"traf", |bytes| {
                let place = track_fragment(bytes, *id, samples);
                offsets.push((place, before));
            });
            before += samples.iter().map(|sample| sample.data.len()).sum::<usize>();
        }
    });
    let data_at = bytes.len() + 8;
    for (place, before) in offsets {
        let offset = i32::try_from(data_at + before).expect("a fragment is smaller than 2 GiB");
        bytes[place..place + 4].copy_from_slice(&offset.to_be_bytes());
    }
    boxed(&mut bytes, b"mdat", |bytes| {
        for sample in tracks().flat_map(|(_, samples)| samples) {
            bytes.extend_from_slice(&sample.data);
        }
    });
    bytes
}

/// Writes the contents of a `traf`. Returns the position of its data offset. Values that all
/// samples share are written once.
fn track_fragment(bytes: &mut Vec<u8>, id: u32, samples: &[Sample]) -> usize {
    let first = &samples[0];
    let last = &samples[samples.len() - 1];
    let is_duration_shared = samples.iter().all(|sample| sample.duration_ticks == first.duration_ticks);
    let are_later_flags_shared = samples[1..].iter().all(|sample| sample.flags == last.flags);
    let is_first_flag_own = are_later_flags_shared && first.flags != last.flags;
    let has_composition = samples.iter().any(|sample| sample.composition_ticks != 0);
    boxed(bytes, b"tfhd", |bytes| {
        let mut flags = 0x2_0000;
        let mut values = vec![id];
        if is_duration_shared {
            flags |= 0x8;
            values.push(first.duration_ticks);
        }
        if are_later_flags_shared {
            flags |= 0x20;
            values.push(last.flags);
        }
        words(bytes, &[flags]);
        words(bytes, &values);
    });
    boxed(bytes, b"tfdt", |bytes| {
        words(bytes, &[1 << 24]);
        bytes.extend_from_slice(&first.decode_ticks.to_be_bytes());
    });
    let mut place = 0;
    boxed(bytes, b"trun", |bytes| {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = 0x1
            | flag(is_first_flag_own, 0x4)
            | flag(!is_duration_shared, 0x100)
            | 0x200
            | flag(!are_later_flags_shared, 0x400)
            | flag(has_composition, 0x800);
        words(bytes, &[1 << 24 | flags, samples.len() as u32]);
        place = bytes.len();
        words(bytes, &[0]);
        if is_first_flag_own {
            words(bytes, &[first.flags]);
        }
        for sample in samples {
            if !is_duration_shared {
                words(bytes, &[sample.duration_ticks]);
            }
            words(bytes, &[sample.data.len() as u32]);
            if !are_later_flags_shared {
                words(bytes, &[sample.flags]);
            }
            if has_composition {
                bytes.extend_from_slice(&sample.composition_ticks.to_be_bytes());
            }
        }
    });
    place
}

/// Writes a box with these contents.
pub(super) fn boxed(bytes: &mut Vec<u8>, kind: &[u8; 4], contents: impl FnOnce(&mut Vec<u8>)) {
    let begin = bytes.len();
    words(bytes, &[0]);
    bytes.extend_from_slice(kind);
    contents(bytes);
    let size = u32::try_from(bytes.len() - begin).expect("a fragment is smaller than 2 GiB");
    bytes[begin..begin + 4].copy_from_slice(&size.to_be_bytes());
}

pub(super) fn words(bytes: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
}
