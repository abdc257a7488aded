//! The bytes of one object, shared by all its viewers.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Received bytes of an object, without the dropped front.
#[derive(Debug, Default)]
pub(super) struct Body {
    /// Pieces in order, none empty, each with the position of its first byte.
    pieces: VecDeque<(u64, Bytes)>,
    /// Position of the first held byte.
    base: u64,
    /// Position after the last received byte.
    end: u64,
}

/// A later copy differs from the bytes of the first copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct CopyMismatch;

impl Body {
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Number of held bytes.
    pub(super) fn held(&self) -> u64 {
        self.end - self.base
    }

    /// Adds bytes of a copy from position `at`, which is at most [`Self::end`]. Bytes already held
    /// are compared, not replaced. Returns whether new bytes were added.
    ///
    /// Errors: [`CopyMismatch`]; nothing is added then.
    pub(super) fn add(&mut self, at: u64, mut bytes: Bytes) -> Result<bool, CopyMismatch> {
        debug_assert!(at <= self.end, "a leg begins at or before the end of what has arrived");
        let known = (self.end - at).min(bytes.len() as u64);
        let mut position = at;
        let mut left = &bytes[..known as usize];
        while !left.is_empty() {
            if position < self.base {
                let dropped = (self.base - position).min(left.len() as u64);
                (position, left) = (position + dropped, &left[dropped as usize..]);
                continue;
            }
            let held = self.from(position).expect("positions from base to end are held");
            let length = held.len().min(left.len());
            if held[..length] != left[..length] {
                return Err(CopyMismatch);
            }
            (position, left) = (position + length as u64, &left[length..]);
        }
        let new = bytes.split_off(known as usize);
        if new.is_empty() {
            return Ok(false);
        }
        let at = self.end;
        self.end += new.len() as u64;
        self.pieces.push_back((at, new));
        Ok(true)
    }

    /// The rest of the piece that holds `position`. `None` at the end and before the base.
    pub(super) fn from(&self, position: u64) -> Option<Bytes> {
        if position < self.base || position >= self.end {
            return None;
        }
        let after = self.pieces.partition_point(|(at, _)| *at <= position);
        let (at, bytes) = &self.pieces[after - 1];
        Some(bytes.slice((position - at) as usize..))
    }

    /// Drops pieces at the front until at most `bytes_max` bytes are held. Returns the number of
    /// dropped bytes.
    pub(super) fn keep_last(&mut self, bytes_max: u64) -> u64 {
        let before = self.base;
        while self.held() > bytes_max {
            let Some((at, bytes)) = self.pieces.pop_front() else { break };
            self.base = at + bytes.len() as u64;
        }
        self.base - before
    }

    /// Copies all pieces into one. Later viewers get it in one write, and the read buffers that
    /// held the pieces are freed.
    pub(super) fn join(&mut self) {
        if self.pieces.len() < 2 {
            return;
        }
        let mut whole = BytesMut::with_capacity(self.held() as usize);
        for (_, bytes) in &self.pieces {
            whole.extend_from_slice(bytes);
        }
        self.pieces.clear();
        self.pieces.push_back((self.base, whole.freeze()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dropped_bytes_are_neither_held_nor_compared() {
        let mut body = Body::default();
        for piece in [&b"abc"[..], b"def", b"gh"] {
            body.add(body.end(), Bytes::from_static(piece)).expect("no overlap");
        }
        assert_eq!(body.keep_last(5), 3);
        assert_eq!((body.base(), body.held(), body.from(2)), (3, 5, None));
        assert_eq!(body.from(4).as_deref(), Some(&b"ef"[..]));
        assert_eq!(body.add(0, Bytes::from_static(b"xxxdefghi")), Ok(true));
        assert_eq!(body.add(3, Bytes::from_static(b"dxf")), Err(CopyMismatch));
        body.join();
        assert_eq!(body.from(3).as_deref(), Some(&b"defghi"[..]));
    }

    proptest! {
        #[test]
        fn copies_in_chunks_of_any_size_yield_the_object(
            object in proptest::collection::vec(any::<u8>(), 0..60),
            cuts in proptest::collection::vec((any::<bool>(), 0usize..9), 0..60),
        ) {
            let mut body = Body::default();
            let mut legs = [0usize; 2];
            for (leg, length) in cuts {
                let at = &mut legs[usize::from(leg)];
                let end = (*at + length).min(object.len());
                let bytes = Bytes::copy_from_slice(&object[*at..end]);
                prop_assert!(body.add(*at as u64, bytes).is_ok());
                *at = end;
            }
            prop_assert_eq!(body.end() as usize, legs[0].max(legs[1]));
            let mut read = Vec::new();
            while let Some(bytes) = body.from(read.len() as u64) {
                read.extend_from_slice(&bytes);
            }
            prop_assert_eq!(&read[..], &object[..body.end() as usize]);
        }
    }
}
