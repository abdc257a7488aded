//! Destinations of packets and timers.
//!
//! Read [`Target`].

/// Destination of a packet or a timer: an element or a node of the fabric.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Target(u32);

const NODE_BIT: u32 = 1 << 31;

impl Target {
    /// Returns the target of the `index`th element.
    ///
    /// Panics: if the index is 2^31 or more.
    pub const fn element(index: u32) -> Self {
        assert!(index < NODE_BIT);
        Self(index)
    }
    /// Returns the target of the `index`th node.
    ///
    /// Panics: if the index is 2^31 or more.
    pub const fn node(index: u32) -> Self {
        assert!(index < NODE_BIT);
        Self(index | NODE_BIT)
    }
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
    /// Returns true if the target is a node, false if it is an element.
    #[inline]
    pub const fn is_node(self) -> bool {
        self.0 & NODE_BIT != 0
    }
    /// Index among the elements or among the nodes.
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & !NODE_BIT) as usize
    }
}
