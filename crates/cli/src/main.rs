//! The `anabranch` command: it joins systems to drivers and speaks to people. Holds no protocol.
#![expect(
    clippy::disallowed_methods,
    reason = "a driver: sockets, files, clocks and the environment are its business"
)]

mod replicate;

fn main() {}
