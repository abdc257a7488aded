//! Fields of a message's encoding, read in sequence.

use super::MODE_BITS;
use anabranch_endpoint::DecodeError;
use anabranch_units::{Duration, Instant};

/// Reads the fields of a message in sequence.
pub(super) struct Reader<'a> {
    left: &'a [u8],
    all: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes, all: bytes.len() }
    }
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .left
            .split_first_chunk()
            .ok_or(DecodeError::TooShort { need: self.all - self.left.len() + N, got: self.all })?;
        self.left = rest;
        Ok(*head)
    }
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }
    pub(super) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::UnknownKind(other)),
        }
    }
    pub(super) fn mode(&mut self) -> Result<u16, DecodeError> {
        let mode = self.u16()?;
        let limit = MODE_BITS.into();
        if mode > MODE_BITS { Err(DecodeError::TooLong { limit, got: mode.into() }) } else { Ok(mode) }
    }
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }
    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }
    pub(super) fn duration(&mut self) -> Result<Duration, DecodeError> {
        // Instants and durations are in picoseconds, so 213 days or more overflow.
        let (got, limit) = (self.u64()?, u64::MAX / 1_000);
        if got > limit {
            return Err(DecodeError::TooLong { limit: limit as usize, got: got as usize });
        }
        Ok(Duration::from_ns(got))
    }
    pub(super) fn instant(&mut self) -> Result<Instant, DecodeError> {
        self.duration().map(|since| Instant::ZERO + since)
    }
    /// Reads a number of `N` bytes, at most eight.
    pub(super) fn low<const N: usize>(&mut self) -> Result<u64, DecodeError> {
        let bytes: [u8; N] = self.array()?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
    pub(super) fn text(&mut self, limit: usize) -> Result<String, DecodeError> {
        let got = usize::from(self.u16()?);
        if got > limit {
            return Err(DecodeError::TooLong { limit, got });
        }
        let need = self.all - self.left.len() + got;
        let (head, rest) =
            self.left.split_at_checked(got).ok_or(DecodeError::TooShort { need, got: self.all })?;
        self.left = rest;
        // A text that is not UTF-8 is reported as an unknown kind.
        String::from_utf8(head.to_vec()).map_err(|_| DecodeError::UnknownKind(head[0]))
    }
    pub(super) const fn rest(&mut self) -> &'a [u8] {
        let rest = self.left;
        self.left = &[];
        rest
    }
    pub(super) const fn end(&self) -> Result<(), DecodeError> {
        match self.left.len() {
            0 => Ok(()),
            extra => Err(DecodeError::Trailing { extra }),
        }
    }
}
