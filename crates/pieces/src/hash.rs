//! The hashes of a file and of its pieces, as they travel.

/// A BLAKE3 hash, as lower-case hexadecimal in JSON.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHash(pub [u8; 32]);

/// BLAKE3 of a generation's plain bytes (coded group) or of a chunk's (routed group), padding left out, as part of their
/// file's tree: see [`PieceHasher`](crate::PieceHasher).
///
/// It travels in the header of every packet, copied by relays, and tells a sink at once whether what it decoded is what
/// the source read. All zero for the zeros that flush a code out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct GenerationHash(pub [u8; 32]);

impl serde::Serialize for FileHash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> serde::Deserialize<'de> for FileHash {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        blake3::Hash::from_hex(text.as_bytes()).map(|h| Self(*h.as_bytes())).map_err(serde::de::Error::custom)
    }
}
impl std::fmt::Display for FileHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}
