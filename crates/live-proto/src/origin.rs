//! The packager of a source: one rendition with its live window, from an encoder or another origin.
//!
//! A [`Packager`] takes a stream of fragmented MP4, as ffmpeg uploads it by PUT, and cuts it into
//! segments and parts. An [`Importer`] polls the playlist of another origin and fetches its
//! segments or parts. Both fill a [`Rendition`], which holds the newest segments and answers
//! requests. Playlists are answered at once, blocking, or as delta updates. Segments and parts can
//! be sent before they are complete.
//!
//! Numbers of segments never decrease. With a shared timeline ([`Timeline::Shared`]) they are
//! derived from the media time. So two sources of one stream yield equal names and segment
//! boundaries, and equal bytes if they receive copies of one encoder's output.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 6.2.2 (live playlists), 6.2.5 (delivery
//! directives) and 6.2.6 (preload hints). Leaves out: sockets; the choice of other renditions. Read
//! [`Rendition`] first.
//!
//! [`Timeline::Shared`]: anabranch_media::cmaf::Timeline::Shared

#[doc(hidden)]
pub mod exercise;
mod importer;
mod names;
mod packager;
mod playlist;
mod rendition;
#[cfg(test)]
mod tests;
mod window;

pub use importer::{Fetch, FetchId, FetchKind, ImportConfig, ImportError, Importer};
pub use names::Name;
pub use packager::{PackageError, Packager, PackagerConfig};
pub use rendition::{
    Answer, Freshness, Head, REQUESTS_MAX, Rendition, RenditionConfig, RenditionError, RequestId, Status,
};
pub use window::{PARTS_PER_SEGMENT_MAX, Predecessor, SEGMENT_DURATION_MAX, WINDOW_SEGMENTS_MAX};
