//! The `anabranch` command: it joins systems to drivers and speaks to people. Holds no protocol.

fn main() {}
