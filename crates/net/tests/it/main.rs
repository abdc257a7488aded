//! Integration tests of the net room: TCP Fast Open, datagrams over loopback, channels keyed from
//! real sessions, and the fuzz corpus.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: sockets, files and the namespace's tables")]

mod datagram;
mod fast_open;
mod seal;

anabranch_net::system! {
    /// A system that occurs in the fuzz corpus.
    GATHER = anabranch_net::keys::SystemSpec {
        word: "gather",
        site: "server",
        controller: None,
        operator: Some("client"),
        controller_dials: false,
        keys_arguments: "",
    };
}
anabranch_net::system! {
    /// System of the certificates in the fuzz corpus.
    REPLICATE = anabranch_net::keys::SystemSpec {
        word: "replicate",
        site: "site",
        controller: Some("controller"),
        operator: Some("operator"),
        controller_dials: false,
        keys_arguments: "",
    };
}
