//! Video over HTTP, as HLS and DASH stream it, without I/O.
//!
//! Leaves out: sockets, playlists and codecs. Read [`player::Player`] first.

pub mod player;
