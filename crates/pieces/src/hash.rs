//! The hashes of a file and of its pieces, in their transferred form.

/// A BLAKE3 hash, as lower-case hexadecimal in JSON.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHash(pub [u8; 32]);

/// BLAKE3 hash of the plain bytes of a generation (coded group) or of a chunk (routed group),
/// without padding. The bytes are hashed as a part of the tree of their file: see
/// [`PieceHasher`](crate::PieceHasher).
///
/// The hash is in the header of every packet, and relays copy it. With it a sink checks at once
/// that the decoded bytes equal the bytes that the source read. The hash is all zeros for the zeros
/// that flush a code.
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
