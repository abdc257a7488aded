//! The multivariant playlist of a channel.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 4.4.6.2 and 7. Leaves out: alternative renditions;
//! FRAME-RATE. Read [`playlist`] and [`SourceSteering`].

use anabranch_media::cmaf::CodecInfo;
use anabranch_media::hls::{MultivariantPlaylist, Steering, VARIANTS_MAX, Variant};
use anabranch_units::BitRate;

/// Content steering of a source's multivariant playlists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSteering {
    /// Base URL of the steering server, as players reach it: `https://steer.example`.
    pub server: String,
    /// Name and base URL of each edge. Players use the first edge until they ask the steering
    /// server.
    pub pathways: Vec<(String, String)>,
}

/// A rendition with media, for the playlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedRendition {
    pub rendition: String,
    pub peak_rate: BitRate,
    pub codecs: CodecInfo,
}

/// Playlist of a channel's renditions, in order of decreasing bitrate. With steering, each pathway
/// lists all renditions, or those with the highest bitrates if the playlist would have too many
/// entries.
pub(super) fn playlist(
    channel: &str,
    mut listed: Vec<ListedRendition>,
    steering: Option<&SourceSteering>,
) -> MultivariantPlaylist {
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.peak_rate));
    let variant = |listed: &ListedRendition, base: &str, pathway_id: Option<String>| Variant {
        uri: format!("{base}{}/index.m3u8", listed.rendition),
        bandwidth: listed.peak_rate,
        average_bandwidth: None,
        codecs: listed.codecs.codecs.clone(),
        resolution: listed.codecs.resolution,
        frame_rate: None,
        audio: None,
        pathway_id,
    };
    let Some(SourceSteering { server, pathways }) = steering.filter(|steering| !steering.pathways.is_empty())
    else {
        let variants = listed.iter().take(VARIANTS_MAX).map(|listed| variant(listed, "", None)).collect();
        return MultivariantPlaylist { variants, ..MultivariantPlaylist::default() };
    };
    let pathways = &pathways[..pathways.len().min(VARIANTS_MAX)];
    listed.truncate(VARIANTS_MAX / pathways.len());
    let of_pathway = |(name, url): &(String, String)| {
        let base = format!("{}/{channel}/", url.trim_end_matches('/'));
        listed.iter().map(|listed| variant(listed, &base, Some(name.clone()))).collect::<Vec<_>>()
    };
    let steering = Steering {
        server_uri: format!("{}/v1/steering/{channel}", server.trim_end_matches('/')),
        pathway_id: Some(pathways[0].0.clone()),
    };
    let variants = pathways.iter().flat_map(of_pathway).collect();
    MultivariantPlaylist { steering: Some(steering), variants, ..MultivariantPlaylist::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(count: u64) -> Vec<ListedRendition> {
        let codecs = CodecInfo { codecs: Some("avc1.64001f".to_owned()), resolution: Some((640, 360)) };
        let rendition = |number: u64| ListedRendition {
            rendition: format!("r{number}"),
            peak_rate: BitRate::bps(1_000 + number),
            codecs: codecs.clone(),
        };
        (0..count).map(rendition).collect()
    }

    fn steering(count: usize) -> SourceSteering {
        let pathway = |edge: usize| (format!("edge-{edge}"), format!("https://e{edge}.example/"));
        SourceSteering {
            server: "https://steer.example/".to_owned(),
            pathways: (0..count).map(pathway).collect(),
        }
    }

    #[test]
    fn renditions_have_codecs_and_relative_uris() {
        let playlist = playlist("news", listed(2), None);
        let uris: Vec<_> = playlist.variants.iter().map(|variant| &*variant.uri).collect();
        assert_eq!(uris, ["r1/index.m3u8", "r0/index.m3u8"]);
        let text = playlist.write();
        assert!(text.contains("BANDWIDTH=1001,CODECS=\"avc1.64001f\",RESOLUTION=640x360\n"), "{text}");
        assert_eq!(MultivariantPlaylist::read(text.as_bytes()), Ok(playlist));
    }

    #[test]
    fn each_pathway_lists_the_same_renditions() {
        let read = |renditions, edges| {
            let playlist = playlist("news", listed(renditions), Some(&steering(edges)));
            assert_eq!(MultivariantPlaylist::read(playlist.write().as_bytes()).as_ref(), Ok(&playlist));
            playlist
        };
        let playlist = read(2, 2);
        let steering = playlist.steering.expect("it is configured");
        assert_eq!(steering.server_uri, "https://steer.example/v1/steering/news");
        assert_eq!(steering.pathway_id.as_deref(), Some("edge-0"));
        let of = |variant: &Variant| (variant.pathway_id.clone().expect("each has one"), variant.uri.clone());
        let expected = [("edge-0", "https://e0", "r1"), ("edge-0", "https://e0", "r0")]
            .into_iter()
            .chain([("edge-1", "https://e1", "r1"), ("edge-1", "https://e1", "r0")])
            .map(|(name, base, r)| (name.to_owned(), format!("{base}.example/news/{r}/index.m3u8")));
        assert!(playlist.variants.iter().map(of).eq(expected), "{:?}", playlist.variants);
        assert_eq!(read(10, 100).variants.len(), 200, "two renditions of each of 100 pathways");
        assert_eq!(read(3, VARIANTS_MAX + 1).variants.len(), VARIANTS_MAX);
    }
}
