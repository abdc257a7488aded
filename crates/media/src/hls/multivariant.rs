//! Multivariant playlists: the renditions of a presentation.
//!
//! Source: draft-pantos-hls-rfc8216bis, section 4.4.6. Leaves out: attributes and tags that no
//! relay needs, which are ignored. Read [`MultivariantPlaylist`].

use super::read::{read_tags, text};
use super::write::QuotedText;
use super::{PlaylistError, VARIANTS_MAX};
use anabranch_units::BitRate;
use m3u8_parser::m3u8::parser::parse_attributes;
use m3u8_parser::m3u8::tags::{AttributeValue, Tag};
use std::fmt::{self, Write as _};

/// A variant (EXT-X-STREAM-INF).
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// URI of the variant's playlist.
    pub uri: String,
    /// Highest bitrate of the variant.
    pub bandwidth: BitRate,
    /// Mean bitrate of the variant.
    pub average_bandwidth: Option<BitRate>,
    /// Codecs in the notation of RFC 6381.
    pub codecs: Option<String>,
    /// Width and height in pixels.
    pub resolution: Option<(u32, u32)>,
    /// Frames per second.
    pub frame_rate: Option<f64>,
    /// Group of the variant's audio renditions.
    pub audio: Option<String>,
    /// Pathway of content steering that has the variant. `None` for the pathway `.`.
    pub pathway_id: Option<String>,
}

/// Kind of a rendition.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RenditionKind {
    /// Audio.
    Audio,
    /// Video.
    Video,
    /// Subtitles.
    Subtitles,
}

impl RenditionKind {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Audio, "AUDIO"), (Self::Video, "VIDEO"), (Self::Subtitles, "SUBTITLES")];
}

/// An alternative rendition (EXT-X-MEDIA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendition {
    /// Kind of the rendition.
    pub kind: RenditionKind,
    /// Group of the rendition.
    pub group_id: String,
    /// Name of the rendition in players.
    pub name: String,
    /// URI of the rendition's playlist. `None` if the variants contain the rendition.
    pub uri: Option<String>,
    /// Language (RFC 5646).
    pub language: Option<String>,
    /// Number of channels, in the notation of the attribute CHANNELS.
    pub channels: Option<String>,
    /// Whether players choose the rendition by default, without a choice of the viewer.
    pub is_default: bool,
    /// Whether players may choose the rendition without the viewer.
    pub is_autoselect: bool,
}

/// The steering server that players query (EXT-X-CONTENT-STEERING).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steering {
    /// URI of the steering manifest.
    pub server_uri: String,
    /// Pathway that players use first.
    pub pathway_id: Option<String>,
}

/// Playlist that lists all renditions of a presentation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultivariantPlaylist {
    /// Whether each segment of each rendition begins with a key frame.
    pub has_independent_segments: bool,
    /// The steering server.
    pub steering: Option<Steering>,
    /// Alternative renditions.
    pub renditions: Vec<Rendition>,
    /// Variants, in order of preference.
    pub variants: Vec<Variant>,
}

impl MultivariantPlaylist {
    /// Reads a multivariant playlist. Renditions other than audio, video and subtitles are ignored.
    ///
    /// Errors: [`PlaylistError`] for text that does not follow the standard, a playlist without
    /// variants, an exceeded limit of this module, or variables.
    pub fn read(bytes: &[u8]) -> Result<Self, PlaylistError> {
        let mut playlist = Self::default();
        let mut tags = read_tags(bytes)?.into_iter();
        while let Some(tag) = tags.next() {
            match tag {
                Tag::ExtXIndependentSegments => playlist.has_independent_segments = true,
                tag @ Tag::ExtXStreamInf { .. } => {
                    let Some(Tag::Uri(uri)) = tags.find(|tag| !matches!(tag, Tag::Unknown(_))) else {
                        return Err(PlaylistError::Missing { tag: "URI after EXT-X-STREAM-INF" });
                    };
                    bounded("variants", playlist.variants.len())?;
                    playlist.variants.push(read_variant(tag, uri)?);
                }
                tag @ Tag::ExtXMedia { .. } => {
                    bounded("renditions", playlist.renditions.len())?;
                    playlist.renditions.extend(read_rendition(tag)?);
                }
                Tag::Unknown(line) => {
                    if let Some(attributes) = line.strip_prefix("EXT-X-CONTENT-STEERING:") {
                        playlist.steering = Some(read_steering(attributes)?);
                    }
                }
                Tag::ExtXDefine(_) => {
                    return Err(PlaylistError::Unsupported { what: "variables (EXT-X-DEFINE)" });
                }
                _ => {}
            }
        }
        if playlist.variants.is_empty() {
            return Err(PlaylistError::Missing { tag: "EXT-X-STREAM-INF" });
        }
        Ok(playlist)
    }

    /// Writes the playlist as text.
    pub fn write(&self) -> String {
        let mut text = String::new();
        self.write_to(&mut text).expect("writing to a string cannot fail");
        text
    }

    fn write_to(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "#EXTM3U\n#EXT-X-VERSION:7")?;
        if self.has_independent_segments {
            writeln!(text, "#EXT-X-INDEPENDENT-SEGMENTS")?;
        }
        let quoted = |text: &mut String, name: &str, value: &Option<String>| match value {
            Some(value) => write!(text, ",{name}={}", QuotedText(value)),
            None => Ok(()),
        };
        if let Some(steering) = &self.steering {
            write!(text, "#EXT-X-CONTENT-STEERING:SERVER-URI={}", QuotedText(&steering.server_uri))?;
            quoted(text, "PATHWAY-ID", &steering.pathway_id)?;
            text.push('\n');
        }
        for rendition in &self.renditions {
            let kind = RenditionKind::ALL.iter().find(|(kind, _)| *kind == rendition.kind);
            let word = kind.map_or("AUDIO", |(_, word)| word);
            write!(text, "#EXT-X-MEDIA:TYPE={word},GROUP-ID={}", QuotedText(&rendition.group_id))?;
            write!(text, ",NAME={}", QuotedText(&rendition.name))?;
            quoted(text, "LANGUAGE", &rendition.language)?;
            quoted(text, "CHANNELS", &rendition.channels)?;
            for (name, is_set) in [("DEFAULT", rendition.is_default), ("AUTOSELECT", rendition.is_autoselect)]
            {
                if is_set {
                    write!(text, ",{name}=YES")?;
                }
            }
            quoted(text, "URI", &rendition.uri)?;
            text.push('\n');
        }
        for variant in &self.variants {
            write!(text, "#EXT-X-STREAM-INF:BANDWIDTH={}", variant.bandwidth.as_bps())?;
            if let Some(average) = variant.average_bandwidth {
                write!(text, ",AVERAGE-BANDWIDTH={}", average.as_bps())?;
            }
            quoted(text, "CODECS", &variant.codecs)?;
            if let Some((width, height)) = variant.resolution {
                write!(text, ",RESOLUTION={width}x{height}")?;
            }
            if let Some(rate) = variant.frame_rate {
                write!(text, ",FRAME-RATE={rate:.3}")?;
            }
            quoted(text, "AUDIO", &variant.audio)?;
            quoted(text, "PATHWAY-ID", &variant.pathway_id)?;
            text.push('\n');
            text.extend(variant.uri.chars().filter(|c| !matches!(c, '\n' | '\r')));
            text.push('\n');
        }
        Ok(())
    }
}

/// Refuses an entry beyond [`VARIANTS_MAX`]; `count` is the number of entries before it.
fn bounded(what: &'static str, count: usize) -> Result<(), PlaylistError> {
    if count < VARIANTS_MAX { Ok(()) } else { Err(PlaylistError::TooMany { what, max: VARIANTS_MAX }) }
}

/// Checks the length of an optional text attribute.
fn optional(what: &'static str, value: Option<String>) -> Result<Option<String>, PlaylistError> {
    value.map(|value| text(what, value)).transpose()
}

fn read_variant(tag: Tag, uri: String) -> Result<Variant, PlaylistError> {
    let Tag::ExtXStreamInf {
        bandwidth,
        average_bandwidth,
        codecs,
        resolution,
        frame_rate,
        audio,
        extra_attributes,
        ..
    } = tag
    else {
        return Err(PlaylistError::Missing { tag: "EXT-X-STREAM-INF" });
    };
    let is_pathway = |(name, _): &(String, AttributeValue)| name == "PATHWAY-ID";
    let pathway_id = match extra_attributes.into_iter().find(is_pathway) {
        Some((_, AttributeValue::Quoted(id))) => Some(id),
        _ => None,
    };
    let pixels = |resolution: &str| {
        let (width, height) = resolution.split_once('x')?;
        Some((width.parse().ok()?, height.parse().ok()?))
    };
    if let Some(rate) = frame_rate.filter(|rate| !(0.0..=1_000.0).contains(rate)) {
        let got = rate.to_string();
        return Err(PlaylistError::OutOfRange { what: "FRAME-RATE", got, allowed: "from 0 to 1000" });
    }
    Ok(Variant {
        uri: text("URI of a variant", uri)?,
        bandwidth: BitRate::bps(bandwidth.into()),
        average_bandwidth: average_bandwidth.map(|rate| BitRate::bps(rate.into())),
        codecs: optional("CODECS", codecs)?,
        resolution: resolution.as_deref().and_then(pixels),
        frame_rate,
        audio: optional("AUDIO", audio)?,
        pathway_id: optional("PATHWAY-ID", pathway_id)?,
    })
}

fn read_rendition(tag: Tag) -> Result<Option<Rendition>, PlaylistError> {
    let Tag::ExtXMedia { type_, group_id, name, uri, default, autoselect, language, channels, .. } = tag
    else {
        return Ok(None);
    };
    let Some((kind, _)) = RenditionKind::ALL.into_iter().find(|(_, word)| *word == type_) else {
        return Ok(None);
    };
    Ok(Some(Rendition {
        kind,
        group_id: text("GROUP-ID", group_id)?,
        name: text("NAME", name.unwrap_or_default())?,
        uri: optional("URI of EXT-X-MEDIA", uri)?,
        language: optional("LANGUAGE", language)?,
        channels: optional("CHANNELS", channels)?,
        is_default: default == Some(true),
        is_autoselect: autoselect == Some(true),
    }))
}

fn read_steering(attributes: &str) -> Result<Steering, PlaylistError> {
    let read = parse_attributes(attributes);
    let mut attributes = read.map_err(|error| PlaylistError::Syntax {
        line: 1,
        what: format!("EXT-X-CONTENT-STEERING: {error}"),
    })?;
    let server_uri = attributes.remove("SERVER-URI").ok_or(PlaylistError::Missing { tag: "SERVER-URI" })?;
    let pathway_id = optional("PATHWAY-ID", attributes.remove("PATHWAY-ID"))?;
    Ok(Steering { server_uri: text("SERVER-URI", server_uri)?, pathway_id })
}
