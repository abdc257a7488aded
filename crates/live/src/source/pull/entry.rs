//! The playlist at a pulled channel's URL: the renditions it contains, and their names.
//!
//! Read [`Entry`].

use anabranch_live_proto::play::join_url;
use anabranch_media::hls::{MediaPlaylist, MultivariantPlaylist, PlaylistError, RenditionKind};

/// Role of a media playlist in an origin's entry playlist.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum PlaylistRole {
    /// The configured URL is itself the media playlist.
    Itself,
    /// The variant with this index, among variants with distinct URIs.
    Variant(usize),
    /// The audio rendition with this index, among audio renditions with a URI.
    Sound(usize),
}

/// A rendition to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PulledRendition {
    /// Name of the rendition at this source.
    pub name: String,
    pub which: PlaylistRole,
}

/// The playlist at the configured URL.
#[derive(Debug)]
pub(super) enum Entry {
    Media,
    Variants {
        playlist: MultivariantPlaylist,
        /// URL of the playlist after redirects.
        url: String,
    },
}

impl Entry {
    /// Parses the playlist fetched from `url`.
    ///
    /// Errors: [`PlaylistError`].
    pub fn read(text: &[u8], url: String) -> Result<Self, PlaylistError> {
        match MultivariantPlaylist::read(text) {
            Ok(playlist) => Ok(Self::Variants { playlist, url }),
            Err(PlaylistError::Missing { .. }) => MediaPlaylist::read(text).map(|_| Self::Media),
            Err(error) => Err(error),
        }
    }

    /// Distinct URIs of the variants, in order.
    fn variants(playlist: &MultivariantPlaylist) -> Vec<&str> {
        let mut uris: Vec<&str> = Vec::new();
        for variant in &playlist.variants {
            if !uris.contains(&&*variant.uri) {
                uris.push(&variant.uri);
            }
        }
        uris
    }

    fn sounds(playlist: &MultivariantPlaylist) -> Vec<&str> {
        let sounds = playlist.renditions.iter().filter(|rendition| rendition.kind == RenditionKind::Audio);
        sounds.filter_map(|rendition| rendition.uri.as_deref()).collect()
    }

    /// The renditions to pull, with their names.
    pub fn renditions(&self) -> Vec<PulledRendition> {
        let Self::Variants { playlist, .. } = self else {
            return vec![PulledRendition { name: "main".to_owned(), which: PlaylistRole::Itself }];
        };
        let variants = (0..Self::variants(playlist).len())
            .map(|index| PulledRendition { name: variant_name(index), which: PlaylistRole::Variant(index) });
        let sounds = (0..Self::sounds(playlist).len())
            .map(|index| PulledRendition { name: sound_name(index), which: PlaylistRole::Sound(index) });
        variants.chain(sounds).collect()
    }

    /// URL of a rendition's media playlist. `None` if the rendition does not exist.
    pub fn url(&self, which: PlaylistRole) -> Option<String> {
        let Self::Variants { playlist, url } = self else { return None };
        let uri = match which {
            PlaylistRole::Itself => return Some(url.clone()),
            PlaylistRole::Variant(index) => *Self::variants(playlist).get(index)?,
            PlaylistRole::Sound(index) => *Self::sounds(playlist).get(index)?,
        };
        join_url(url, uri)
    }

    /// The multivariant playlist with this source's names and without subtitles. `None` for a media
    /// playlist.
    pub fn into_variants(self) -> Option<MultivariantPlaylist> {
        let Self::Variants { playlist, .. } = self else { return None };
        let uris: Vec<String> = Self::variants(&playlist).into_iter().map(str::to_owned).collect();
        let mut playlist = MultivariantPlaylist { steering: None, ..playlist };
        for variant in &mut playlist.variants {
            let index = uris.iter().position(|uri| *uri == variant.uri).unwrap_or_default();
            variant.uri = format!("{}/index.m3u8", variant_name(index));
        }
        playlist.renditions.retain(|rendition| rendition.kind == RenditionKind::Audio);
        let with_uri = playlist.renditions.iter_mut().filter_map(|rendition| rendition.uri.as_mut());
        for (index, uri) in with_uri.enumerate() {
            *uri = format!("{}/index.m3u8", sound_name(index));
        }
        Some(playlist)
    }
}

fn variant_name(index: usize) -> String {
    format!("v{}", index + 1)
}

fn sound_name(index: usize) -> String {
    format!("a{}", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEDIAMTX: &str = include_str!("../../../../media/tests/hls/mediamtx_variants.m3u8");
    const BASE: &str = "http://10.0.0.1:8888/cam/index.m3u8?cookieCheck=1";

    #[test]
    fn separate_audio_is_pulled_as_a_rendition() {
        let entry = Entry::read(MEDIAMTX.as_bytes(), BASE.to_owned()).expect("a playlist");
        let names: Vec<String> = entry.renditions().into_iter().map(|rendition| rendition.name).collect();
        assert_eq!(names, ["v1", "a1"]);
        let session = "session=e6c39594-5df0-4323-a4ca-f910befb764d";
        let url = format!("http://10.0.0.1:8888/cam/audio2_stream.m3u8?{session}");
        assert_eq!(entry.url(PlaylistRole::Sound(0)), Some(url));
        assert_eq!(entry.url(PlaylistRole::Variant(1)), None);
        let text = entry.into_variants().expect("it has variants").write();
        assert!(text.contains("URI=\"a1/index.m3u8\"") && text.contains("\nv1/index.m3u8\n"), "{text}");
        assert!(text.contains("CODECS=\"avc1.42c00d,mp4a.40.2\"") && !text.contains("session"), "{text}");
    }

    #[test]
    fn variants_with_one_uri_are_one_rendition() {
        let variant = "#EXT-X-STREAM-INF:BANDWIDTH=1\na.m3u8\n";
        let text = format!("#EXTM3U\n{variant}{variant}#EXT-X-STREAM-INF:BANDWIDTH=2\nb.m3u8\n");
        let entry = Entry::read(text.as_bytes(), BASE.to_owned()).expect("a playlist");
        assert_eq!(entry.renditions().len(), 2);
        let uris = entry.into_variants().expect("it has variants").variants;
        let uris: Vec<&str> = uris.iter().map(|variant| &*variant.uri).collect();
        assert_eq!(uris, ["v1/index.m3u8", "v1/index.m3u8", "v2/index.m3u8"]);
    }

    #[test]
    fn media_playlist_yields_the_rendition_main() {
        let text = b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\na.mp4\n";
        let entry = Entry::read(text, BASE.to_owned()).expect("a playlist");
        assert_eq!(
            entry.renditions(),
            [PulledRendition { name: "main".to_owned(), which: PlaylistRole::Itself }]
        );
        assert!(Entry::read(b"<html>", BASE.to_owned()).is_err());
    }
}
