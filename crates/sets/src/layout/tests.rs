//! Streams and classes against plain twins, on random contents.

use super::*;
use crate::samples::draws;

/// Random parts in the order of a manifest: small files, and blocks of large ones.
fn parts(id: u64, files: u64) -> Vec<(u64, ByteRange)> {
    let mut draws = draws("layout", id);
    let mut found = Vec::new();
    for file in 0..files {
        let size = match draws.below(20) {
            0 => draws.below(20 * BLOCK_BYTES),
            1 => 0,
            _ => draws.below(40_000),
        };
        found.extend(units(size).filter(|_| draws.below(3) > 0).map(|range| (file, range)));
    }
    found
}

#[test]
fn offsets_and_places_are_inverse() {
    for id in 0..40 {
        let parts = parts(id, 10 + 40 * id);
        let mut layout = Layout::default();
        let mut length = 0;
        let mut begins = Vec::new();
        for (file, range) in &parts {
            layout.push(*file, *range);
            begins.push((length, *file, *range));
            length += range.len();
        }
        assert_eq!(layout.length_bytes(), length);
        assert_eq!(layout.place(length), None);
        for (begin, file, range) in begins {
            for within in [0, range.len() / 2, range.len() - 1] {
                let place = Place { file, offset_bytes: range.start + within };
                assert_eq!(layout.place(begin + within), Some(place), "seed {id}");
                assert_eq!(layout.offset(place), Some(begin + within), "seed {id}");
            }
        }
    }
}

#[test]
fn places_outside_the_stream_have_no_offset() {
    let mut layout = Layout::default();
    assert_eq!((layout.place(0), layout.offset(Place { file: 0, offset_bytes: 0 })), (None, None));
    for file in [5, 9] {
        layout.push(file, ByteRange { start: BLOCK_BYTES, end: BLOCK_BYTES + 10 });
    }
    for (file, offset_bytes) in
        [(4, 0), (5, 0), (5, BLOCK_BYTES - 1), (5, BLOCK_BYTES + 10), (7, 0), (9, 0), (10, 0)]
    {
        assert_eq!(layout.offset(Place { file, offset_bytes }), None, "{file} {offset_bytes}");
    }
}

#[test]
fn neighbouring_blocks_are_one_extent() {
    let mut layout = Layout::default();
    let size = 5 * BLOCK_BYTES + 3;
    units(size).for_each(|range| layout.push(2, range));
    let whole = Extent { stream_bytes: 0, file: 2, range: ByteRange { start: 0, end: size } };
    assert_eq!(layout.extents(0).collect::<Vec<_>>(), [whole]);
    assert_eq!(layout.extents(size).next(), None);
}

#[test]
fn a_small_file_takes_few_bytes() {
    let mut layout = Layout::default();
    for file in 0..1_000_000 {
        layout.push(file, ByteRange { start: 0, end: 16_384 });
    }
    // Capacities may be twice as large.
    assert!(layout.held_bytes() < 14 * 1_000_000, "{}", layout.held_bytes());
    assert_eq!(layout.place(999_999 * 16_384 + 5), Some(Place { file: 999_999, offset_bytes: 5 }));
}

#[test]
fn units_are_whole_files_or_blocks() {
    let lengths = |size| units(size).map(ByteRange::len).collect::<Vec<_>>();
    assert_eq!(lengths(0), [0; 0]);
    assert_eq!(lengths(1), [1]);
    assert_eq!(lengths(BLOCK_BYTES), [BLOCK_BYTES]);
    assert_eq!(lengths(BLOCK_BYTES + 1), [BLOCK_BYTES, 1]);
}

/// Bytes that each destination is sent, and lacks, and the share of the smallest class.
fn check(lacking: &[(u64, ByteRange, Destinations)]) -> Vec<Class> {
    let planned = plan(|| lacking.iter().copied());
    let total: u64 =
        lacking.iter().filter(|(.., set)| !set.is_empty()).map(|(_, range, _)| range.len()).sum();
    assert_eq!(planned.iter().map(|class| class.stream.length_bytes()).sum::<u64>(), total);
    for (file, range, set) in lacking {
        let place = Place { file: *file, offset_bytes: range.start };
        let holding: Vec<&Class> =
            planned.iter().filter(|class| class.stream.offset(place).is_some()).collect();
        if set.is_empty() {
            assert!(holding.is_empty());
            continue;
        }
        let [only] = holding.as_slice() else { panic!("a part is in one stream") };
        assert_eq!(only.destinations.union(set), only.destinations, "each lacking destination gets it");
    }
    for class in &planned {
        assert!(planned.len() == 1 || class.stream.length_bytes() * SHARE_MIN >= total);
    }
    planned
}

#[test]
fn every_destination_gets_what_it_lacks() {
    for id in 0..60 {
        let mut draws = draws("classes", id);
        let destinations = 1 + draws.below(12) as usize;
        let lacking: Vec<(u64, ByteRange, Destinations)> = parts(id, 150)
            .into_iter()
            .map(|(file, range)| {
                // In half of the draws, all or no destinations lack the part.
                let odds = [0, 10, 50, 100][draws.below(4) as usize];
                let set = (0..destinations).filter(|_| draws.below(100) < odds).collect();
                (file, range, set)
            })
            .collect();
        check(&lacking);
    }
}

#[test]
fn small_classes_join_where_they_waste_least() {
    let set = |numbers: &[usize]| numbers.iter().copied().collect::<Destinations>();
    let part =
        |file: u64, bytes: u64, numbers: &[usize]| (file, ByteRange { start: 0, end: bytes }, set(numbers));
    // The small class of 0 and 1 joins the one of 0, 1 and 2, not the one of 3.
    let planned = check(&[part(0, 500_000, &[0, 1, 2]), part(1, 400_000, &[3]), part(2, 900, &[0, 1])]);
    let sets: Vec<Destinations> = planned.iter().map(|class| class.destinations).collect();
    assert_eq!(sets, [set(&[0, 1, 2]), set(&[3])]);
    // From 1 % on a class stands alone.
    assert_eq!(check(&[part(0, 99_000, &[0, 1]), part(1, 1_000, &[0])]).len(), 2);
    assert_eq!(check(&[part(0, 99_001, &[0, 1]), part(1, 999, &[0])]).len(), 1);
}

#[test]
fn the_number_of_classes_is_bounded() {
    let mut lacking = Vec::new();
    for file in 0..3_000u64 {
        let set = (0..12).filter(|bit| (file + 1) & (1 << bit) != 0).collect();
        lacking.push((file, ByteRange { start: 0, end: 1_000 + file }, set));
    }
    let planned = check(&lacking);
    assert!(planned.len() <= 100, "{}", planned.len());
    let mut census = Census::default();
    lacking.iter().for_each(|(_, range, set)| census.count(*set, range.len()));
    assert_eq!(census.bytes.len(), CLASSES_MAX + 1, "one for the sets that were not counted");
}
