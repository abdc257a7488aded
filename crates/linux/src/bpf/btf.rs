//! The kernel's type information (BTF): offsets of fields, and numbers of structures and functions.
//!
//! Source: the kernel's Documentation/bpf/btf.rst, section 2. Leaves out: all other facts of types.
//! Read [`Btf`].

use std::collections::BTreeMap;

/// Path of the running kernel's BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
/// Maximum nesting of anonymous structures; in `sock_common` the depth is two.
const DEPTH_MAX: u32 = 8;

const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FUNC: u32 = 12;

/// Number of the only type in the result of [`one_integer`].
pub(super) const INTEGER: u32 = 1;

/// Builds type information with a single type: an integer of 32 bits.
pub(super) fn one_integer() -> Vec<u8> {
    const HEADER_BYTES: u32 = 24;
    let strings = b"\0int\0";
    // Offset of the name, kind 1 (integer), size in bytes, bits.
    let types = [1u32, 1 << 24, 4, 32].map(u32::to_ne_bytes).concat();
    let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
    bytes.extend([1, 0]);
    let (type_bytes, string_bytes) = (types.len() as u32, strings.len() as u32);
    let header = [HEADER_BYTES, 0, type_bytes, type_bytes, string_bytes];
    bytes.extend(header.map(u32::to_ne_bytes).concat());
    bytes.extend(types);
    bytes.extend(strings);
    bytes
}

/// Type information with an index of its types.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    little: bool,
    /// Offset of each type, starting with type 1.
    starts: Vec<usize>,
}

/// Position of a member in its structure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of earlier members.
    pub index: u32,
    /// Offset in bytes.
    pub offset_bytes: usize,
}

impl<'a> Btf<'a> {
    /// Parses BTF. `None` if the bytes are not BTF of a supported version.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let little = match bytes.first_chunk()? {
            [0x9f, 0xeb] => true,
            [0xeb, 0x9f] => false,
            _ => return None,
        };
        let field = |at: usize| read(bytes, at, little).map(|n| n as usize);
        let body = bytes.get(field(4)?..)?;
        let section = |at: usize| body.get(field(at)?..)?.get(..field(at + 4)?);
        let mut btf = Self { types: section(8)?, strings: section(16)?, little, starts: Vec::new() };
        let mut at = 0;
        while at < btf.types.len() {
            btf.starts.push(at);
            let info = btf.read(at + 4)?;
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    KIND_ARRAY => 12,
                    KIND_STRUCT | KIND_UNION | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        Some(btf)
    }

    /// Number of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.find(KIND_FUNC, name)
    }

    /// Number and size of a structure.
    ///
    /// Units: the size is in bytes.
    pub fn structure(&self, name: &str) -> Option<(u32, usize)> {
        let id = self.find(KIND_STRUCT, name)?;
        let (_, _, start) = self.header(id)?;
        Some((id, self.read(start + 8)? as usize))
    }

    /// Finds a member of a structure, except members of anonymous structures within it.
    pub fn member(&self, structure: u32, name: &str) -> Option<Member> {
        let (kind, count, start) = self.header(structure)?;
        if kind != KIND_STRUCT {
            return None;
        }
        (0..count).find_map(|index| {
            let at = start + 12 + 12 * index;
            let is_it = self.name(self.read(at)?)? == name.as_bytes();
            let offset_bytes = (self.read(at + 8)? & 0xff_ffff) as usize / 8;
            is_it.then_some(Member { index: index as u32, offset_bytes })
        })
    }

    /// Offsets of fields in a structure, and in anonymous structures within it.
    ///
    /// Units: bytes. `None` if a field is missing.
    pub fn offsets<const N: usize>(&self, structure: &str, fields: [&str; N]) -> Option<[i16; N]> {
        let mut found = BTreeMap::new();
        self.members(self.find(KIND_STRUCT, structure)?, 0, DEPTH_MAX, &mut found);
        let mut offsets = [0; N];
        for (offset, field) in offsets.iter_mut().zip(fields) {
            *offset = i16::try_from(*found.get(field.as_bytes())?).ok()?;
        }
        Some(offsets)
    }

    fn members(&self, id: u32, base: u32, depth: u32, found: &mut BTreeMap<&'a [u8], u32>) {
        let Some((kind, count, start)) = self.header(id).filter(|_| depth > 0) else { return };
        if !matches!(kind, KIND_STRUCT | KIND_UNION) {
            return;
        }
        for at in (0..count).map(|i| start + 12 + 12 * i) {
            let (Some(name), Some(inner), Some(bits)) = (self.read(at), self.read(at + 4), self.read(at + 8))
            else {
                return;
            };
            // If the structure has bit fields, the upper byte is a bit field's size.
            let offset = base.saturating_add((bits & 0xff_ffff) / 8);
            match self.name(name) {
                Some([]) | None => self.members(inner, offset, depth - 1, found),
                Some(name) => drop(found.insert(name, offset)),
            }
        }
    }

    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        (1..=self.starts.len() as u32).find(|id| {
            self.header(*id).is_some_and(|(k, _, start)| {
                k == kind
                    && self.read(start).and_then(|name| self.name(name)).is_some_and(|n| n == name.as_bytes())
            })
        })
    }

    /// Kind, number of members, and offset of a type's members.
    fn header(&self, id: u32) -> Option<(u32, usize, usize)> {
        let start = *self.starts.get(usize::try_from(id.checked_sub(1)?).ok()?)?;
        let info = self.read(start + 4)?;
        Some((info >> 24 & 0x1f, (info & 0xffff) as usize, start))
    }

    fn read(&self, at: usize) -> Option<u32> {
        read(self.types, at, self.little)
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(usize::try_from(at).ok()?..)?;
        rest.split(|byte| *byte == 0).next()
    }
}

fn read(bytes: &[u8], at: usize, little: bool) -> Option<u32> {
    let bytes = *bytes.get(at..)?.first_chunk()?;
    Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `struct s { int a; union { int b; int c; }; }` and `func f`.
    fn example() -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        let types = [
            words(&[1, 1 << 24, 4, 32]),
            words(&[0, KIND_UNION << 24 | 2, 4, 7, 1, 0, 9, 1, 0]),
            words(&[3, KIND_STRUCT << 24 | 2, 8, 5, 1, 0, 0, 2, 32]),
            words(&[11, KIND_FUNC << 24, 0]),
        ]
        .concat();
        let strings = b"\0i\0s\0a\0b\0c\0f\0";
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(words(&[24, 0, types.len() as u32, types.len() as u32, strings.len() as u32]));
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn btf_finds_fields_in_anonymous_members_and_functions() {
        let bytes = example();
        let btf = Btf::parse(&bytes).expect("BTF");
        assert_eq!(btf.offsets("s", ["a", "b", "c"]), Some([0, 4, 4]));
        assert_eq!(btf.offsets("s", ["x"]), None);
        assert_eq!((btf.function("f"), btf.function("s")), (Some(4), None));
        assert_eq!(btf.structure("s"), Some((3, 8)));
        assert_eq!(btf.member(3, "a"), Some(Member { index: 0, offset_bytes: 0 }));
        assert_eq!((btf.member(3, "b"), btf.member(2, "b")), (None, None));
    }

    #[test]
    fn generated_type_information_is_well_formed() {
        let bytes = one_integer();
        let btf = Btf::parse(&bytes).expect("BTF");
        assert!(btf.header(INTEGER).is_some() && btf.header(INTEGER + 1).is_none());
    }

    proptest! {
        #[test]
        fn damaged_type_information_never_panics(at in 0usize..200, byte: u8, length in 0usize..200) {
            let mut bytes = example();
            let n = bytes.len();
            bytes[at % n] = byte;
            bytes.truncate(length);
            if let Some(btf) = Btf::parse(&bytes) {
                let _ = (btf.offsets("s", ["a"]), btf.function("f"));
                let _ = (btf.structure("s"), [0, 3, 4].map(|id| btf.member(id, "a")));
            }
        }
    }
}
