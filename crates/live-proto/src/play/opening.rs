//! Requests with which a player follows its first playlists.

use super::PlayerKind;
use super::listing::{Listing, ListingMatch};
use super::urls::join_url;
use anabranch_media::hls::{MediaPlaylist, MultivariantPlaylist, Resource};

/// Authority of the URLs in this module, which the results do not contain.
const ORIGIN: &str = "http://playlist";

/// Targets of the requests that a new player makes after the playlist at `path`: the first variant,
/// or the initialisation section and the first part.
///
/// A player without parts starts at a segment that depends on the player, so the result has no
/// segment. Resources on other servers, in byte ranges and with a query are left out. Empty for
/// other content.
pub(crate) fn opening_targets(path: &str, playlist: &[u8]) -> Vec<String> {
    let base = format!("{ORIGIN}{path}");
    let target = |uri: &str| {
        let url = join_url(&base, uri)?;
        let target = url.strip_prefix(ORIGIN).filter(|target| target.starts_with('/'))?;
        (!target.contains('?')).then(|| target.to_owned())
    };
    if let Ok(read) = MultivariantPlaylist::read(playlist)
        && let Some(first) = read.variants.first()
    {
        return target(&first.uri).into_iter().collect();
    }
    let Ok(read) = MediaPlaylist::read(playlist) else { return Vec::new() };
    let listing = Listing::new(read, PlayerKind::Buffering);
    let ListingMatch::Item(item) = listing.find(listing.start().0) else { return Vec::new() };
    let part = Some(item.resource).filter(|_| listing.is_low_latency());
    let resources = item.map.map(AsRef::as_ref).into_iter().chain(part);
    let is_whole = |resource: &&Resource| resource.range.is_none();
    resources.filter(is_whole).filter_map(|resource| target(&resource.uri)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEDIA: &str = "#EXTM3U\n#EXT-X-VERSION:6\n#EXT-X-TARGETDURATION:2\n#EXT-X-PART-INF:PART-TARGET=1\n\
        #EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK=3\n#EXT-X-MEDIA-SEQUENCE:7\n\
        #EXT-X-MAP:URI=\"init.mp4\"\n\
        #EXT-X-PART:DURATION=1,URI=\"7.0.m4s\",INDEPENDENT=YES\n#EXT-X-PART:DURATION=1,URI=\"7.1.m4s\"\n\
        #EXTINF:2,\n7.m4s\n\
        #EXT-X-PART:DURATION=1,URI=\"8.0.m4s\",INDEPENDENT=YES\n#EXT-X-PART:DURATION=1,URI=\"8.1.m4s\"\n\
        #EXTINF:2,\n8.m4s\n";

    #[test]
    fn first_variant_follows_a_multivariant_playlist() {
        let playlist = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\nlow/index.m3u8\n\
            #EXT-X-STREAM-INF:BANDWIDTH=2000\nhigh/index.m3u8\n";
        assert_eq!(opening_targets("/news/index.m3u8", playlist.as_bytes()), ["/news/low/index.m3u8"]);
    }

    #[test]
    fn initialisation_and_first_part_follow_a_media_playlist() {
        let targets = opening_targets("/news/main/index.m3u8", MEDIA.as_bytes());
        assert_eq!(targets, ["/news/main/init.mp4", "/news/main/7.0.m4s"]);
    }

    #[test]
    fn segments_are_left_out_without_parts() {
        let lines = MEDIA.lines().filter(|line| !line.starts_with("#EXT-X-PART"));
        let playlist: String = lines.map(|line| format!("{line}\n")).collect();
        assert_eq!(opening_targets("/news/main/index.m3u8", playlist.as_bytes()), ["/news/main/init.mp4"]);
    }

    #[test]
    fn other_servers_queries_and_ranges_are_left_out() {
        for uri in ["http://other/init.mp4", "//other/init.mp4", "init.mp4?session=1"] {
            let playlist = MEDIA.replace("init.mp4", uri);
            assert_eq!(opening_targets("/a/index.m3u8", playlist.as_bytes()), ["/a/7.0.m4s"], "{uri}");
        }
        let playlist = MEDIA.replace("\"init.mp4\"", "\"init.mp4\",BYTERANGE=\"100@0\"");
        assert_eq!(opening_targets("/a/index.m3u8", playlist.as_bytes()), ["/a/7.0.m4s"]);
        assert_eq!(opening_targets("/a/index.m3u8", b"<html>"), Vec::<String>::new());
    }
}
