//! Video over HTTP, streamed by HLS and DASH, without I/O.
//!
//! Leaves out: sockets and codecs. Read [`player::Player`], [`hls::MediaPlaylist`] and
//! [`steering::SteeringManifest`] first.

pub mod bitrates;
pub mod cmaf;
pub mod cmcd;
#[doc(hidden)]
pub mod exercise;
pub mod hls;
pub mod player;
pub mod prefixes;
pub mod qoe;
pub mod steering;
