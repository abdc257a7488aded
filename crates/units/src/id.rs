//! Ids: small integers of distinct types, so that ids of different kinds cannot be confused.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $raw);

        impl $name {
            /// The id as an index into a table that is ordered by id.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A site: a data centre, or any other node of a topology. Ids count from 0 in file order.
    SiteId(u16)
}
id! {
    /// A directed link of a topology. Ids count from 0 in file order.
    LinkId(u32)
}
id! {
    /// A peer in the view of a protocol machine. Drivers map the id to a fabric host or a socket
    /// address.
    PeerId(u32)
}
