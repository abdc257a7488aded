//! Codecs and picture size of a stream, in the notation of multivariant playlists.
//!
//! Source: RFC 6381, section 3; ISO/IEC 14496-15, sections 5.3.1 and 8.3.2 with annex E (AVC,
//! HEVC); *AV1 Codec ISO Media File Format Binding*, sections 2.3 and 5; ISO/IEC 14496-1, section
//! 7.2.6 (AAC); *Encapsulation of Opus in ISO Base Media File Format*, section 4.3. Leaves out:
//! other codecs and sample entries of QuickTime, for which no name is derived. Read [`CodecInfo`].

use super::boxes::Contents;
use super::{StreamError, TRACKS_MAX};
use std::fmt::Write as _;

/// Maximum number of sample entries of a track that are read.
const ENTRIES_MAX: usize = 1;

/// Codecs and picture size of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodecInfo {
    /// Codecs of all audio and video tracks, separated by commas. `None` if one codec is unknown,
    /// because players assume that the list is complete.
    pub codecs: Option<String>,
    /// Width and height of the largest video track, in pixels.
    pub resolution: Option<(u32, u32)>,
}

impl CodecInfo {
    /// Codecs and picture size of an initialisation section (`ftyp` and `moov`); empty if the
    /// section cannot be read.
    pub fn of_init(init: &[u8]) -> Self {
        read(init).unwrap_or_default()
    }
}

fn read(init: &[u8]) -> Result<CodecInfo, StreamError> {
    let mut moov = Contents::new(*b"file", init).find(*b"moov")?;
    let mut info = CodecInfo::default();
    let mut names: Vec<Option<String>> = Vec::new();
    while let Some(trak) = moov.child()? {
        if !trak.is(*b"trak") || names.len() == TRACKS_MAX {
            continue;
        }
        let mdia = trak.find(*b"mdia")?;
        let mut hdlr = mdia.find(*b"hdlr")?;
        hdlr.take(8)?;
        let handler = hdlr.array()?;
        let mut stsd = mdia.find(*b"minf")?.find(*b"stbl")?.find(*b"stsd")?;
        stsd.take(8)?;
        for _ in 0..ENTRIES_MAX {
            let Some(entry) = stsd.child()? else { break };
            match &handler {
                b"vide" => {
                    let (name, width, height) = picture(entry)?;
                    names.push(name);
                    let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
                    if width > 0
                        && height > 0
                        && info.resolution.is_none_or(|r| pixels(r) < pixels((width, height)))
                    {
                        info.resolution = Some((width, height));
                    }
                }
                b"soun" => names.push(sound(entry)?),
                _ => {}
            }
        }
    }
    let mut known: Vec<String> = names.into_iter().collect::<Option<_>>().unwrap_or_default();
    known.sort();
    known.dedup();
    // Video first, as encoders write the list.
    known.sort_by_key(|name| is_sound(name));
    info.codecs = Some(known.join(",")).filter(|codecs| !codecs.is_empty());
    Ok(info)
}

fn is_sound(name: &str) -> bool {
    ["mp4a", "Opus", "fLaC", "ac-3", "ec-3"].iter().any(|sound| name.starts_with(sound))
}

/// Codec, width and height of a `VisualSampleEntry`.
fn picture(entry: Contents<'_>) -> Result<(Option<String>, u32, u32), StreamError> {
    let kind = entry.kind();
    let mut boxes = entry;
    boxes.take(24)?;
    let width = u16::from_be_bytes(boxes.array()?);
    let height = u16::from_be_bytes(boxes.array()?);
    boxes.take(50)?;
    let name = match &kind {
        b"avc1" | b"avc3" => boxes.find(*b"avcC").ok().and_then(|config| avc(kind, config).ok()),
        b"hvc1" | b"hev1" => boxes.find(*b"hvcC").ok().and_then(|config| hevc(kind, config).ok()),
        b"av01" => boxes.find(*b"av1C").ok().and_then(|config| av1(config).ok()),
        _ => None,
    };
    Ok((name, width.into(), height.into()))
}

/// `avc1.PPCCLL`: profile, constraints and level in hexadecimal.
fn avc(kind: [u8; 4], mut config: Contents<'_>) -> Result<String, StreamError> {
    let [_, profile, constraints, level] = config.array()?;
    Ok(format!("{}.{profile:02x}{constraints:02x}{level:02x}", kind.escape_ascii()))
}

/// `hvc1.1.6.L93.B0`: profile space and profile, compatibility flags in reverse order, tier and
/// level, constraint bytes without zeros at the end.
fn hevc(kind: [u8; 4], mut config: Contents<'_>) -> Result<String, StreamError> {
    let [_, profile] = config.array()?;
    let compatibility = config.u32()?;
    let constraints: [u8; 6] = config.array()?;
    let [level] = config.array()?;
    let space = ["", "A", "B", "C"][usize::from(profile >> 6)];
    let tier = if profile & 0x20 == 0 { 'L' } else { 'H' };
    let mut name = format!(
        "{}.{space}{}.{:X}.{tier}{level}",
        kind.escape_ascii(),
        profile & 0x1f,
        compatibility.reverse_bits()
    );
    let used = constraints.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    for byte in &constraints[..used] {
        let _ = write!(name, ".{byte:X}");
    }
    Ok(name)
}

/// `av01.P.LLT.DD`: profile, level, tier and bit depth.
fn av1(mut config: Contents<'_>) -> Result<String, StreamError> {
    let [_, profile_and_level, depth] = config.array()?;
    let (profile, level) = (profile_and_level >> 5, profile_and_level & 0x1f);
    let tier = if depth & 0x80 == 0 { 'M' } else { 'H' };
    let bits = match (depth & 0x40 != 0, depth & 0x20 != 0) {
        (false, _) => 8,
        (true, false) => 10,
        (true, true) => 12,
    };
    Ok(format!("av01.{profile}.{level:02}{tier}.{bits:02}"))
}

/// Codec of an `AudioSampleEntry`.
fn sound(entry: Contents<'_>) -> Result<Option<String>, StreamError> {
    let kind = entry.kind();
    let mut boxes = entry;
    boxes.take(28)?;
    Ok(match &kind {
        b"mp4a" => boxes.find(*b"esds").ok().and_then(|esds| aac(esds).ok().flatten()),
        b"Opus" | b"fLaC" | b"ac-3" | b"ec-3" => Some(kind.escape_ascii().to_string()),
        _ => None,
    })
}

/// The contents of the next descriptor. `None` if its tag differs from `tag` (ISO/IEC 14496-1,
/// section 8.3.3).
fn descriptor<'a>(of: &mut Contents<'a>, tag: u8) -> Result<Option<Contents<'a>>, StreamError> {
    let [found] = of.array()?;
    let mut length = 0;
    for _ in 0..4 {
        let [byte] = of.array()?;
        length = length << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    let contents = Contents::new(*b"esds", of.take(length)?);
    Ok((found == tag).then_some(contents))
}

/// `mp4a.40.2`: object type of the stream, and for MPEG-4 its audio object type.
fn aac(mut esds: Contents<'_>) -> Result<Option<String>, StreamError> {
    esds.take(4)?;
    let Some(mut stream) = descriptor(&mut esds, 3)? else { return Ok(None) };
    let [_, _, flags] = stream.array()?;
    if flags & 0x80 != 0 {
        stream.take(2)?;
    }
    if flags & 0x40 != 0 {
        let [length] = stream.array()?;
        stream.take(length.into())?;
    }
    if flags & 0x20 != 0 {
        stream.take(2)?;
    }
    let Some(mut config) = descriptor(&mut stream, 4)? else { return Ok(None) };
    let [kind] = config.array()?;
    if kind != 0x40 {
        return Ok(Some(format!("mp4a.{kind:02X}")));
    }
    config.take(12)?;
    let Some(mut specific) = descriptor(&mut config, 5)? else { return Ok(None) };
    let [first, second] = specific.array()?;
    let audio = match first >> 3 {
        31 => 32 + u32::from((first & 7) << 3 | second >> 5),
        audio => audio.into(),
    };
    Ok(Some(format!("mp4a.40.{audio}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RECORDED: &[u8] = include_bytes!("../../tests/cmaf/fragments_120ms.mp4");

    fn boxed(kind: &[u8; 4], contents: &[&[u8]]) -> Vec<u8> {
        let contents = contents.concat();
        let mut bytes = (contents.len() as u32 + 8).to_be_bytes().to_vec();
        bytes.extend_from_slice(kind);
        bytes.extend(contents);
        bytes
    }

    fn track(handler: &[u8; 4], entry: &[u8]) -> Vec<u8> {
        let hdlr = boxed(b"hdlr", &[&[0; 8], handler, &[0; 12]]);
        let stsd = boxed(b"stsd", &[&[0; 8], entry]);
        let minf = boxed(b"minf", &[&boxed(b"stbl", &[&stsd])]);
        boxed(b"trak", &[&boxed(b"mdia", &[&hdlr, &minf])])
    }

    fn picture(kind: &[u8; 4], (width, height): (u16, u16), config: Vec<u8>) -> Vec<u8> {
        let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
        track(b"vide", &boxed(kind, &[&[0; 24], &size, &[0; 50], &config]))
    }

    fn sound(kind: &[u8; 4], config: &[u8]) -> Vec<u8> {
        track(b"soun", &boxed(kind, &[&[0; 28], config]))
    }

    fn info(tracks: &[&[u8]]) -> CodecInfo {
        CodecInfo::of_init(&[boxed(b"ftyp", &[b"iso6"]), boxed(b"moov", tracks)].concat())
    }

    fn aac(object: u8, specific: &[u8]) -> Vec<u8> {
        let specific = [&[5, specific.len() as u8][..], specific].concat();
        let config = [&[object][..], &[0; 12], &specific].concat();
        // Lengths have four bytes, as ffmpeg writes them.
        let config = [&[4, 0x80, 0x80, 0x80, config.len() as u8][..], &config].concat();
        let stream = [&[0, 1, 0][..], &config].concat();
        boxed(b"esds", &[&[0; 4], &[3, stream.len() as u8], &stream])
    }

    #[test]
    fn recorded_stream_of_ffmpeg_has_its_codecs() {
        let info = CodecInfo::of_init(RECORDED);
        let codecs = info.codecs.expect("H.264 and AAC");
        assert!(codecs.starts_with("avc1.") && codecs.ends_with(",mp4a.40.2"), "{codecs}");
        assert!(info.resolution.is_some());
    }

    /// Examples of the standards: RFC 6381, section 3.3; ISO/IEC 14496-15, annex E.3; the AV1
    /// binding, section 5.
    #[test]
    fn codecs_have_the_names_of_the_standards() {
        let avc = boxed(b"avcC", &[&[1, 0x64, 0, 0x1f, 0xff]]);
        let hevc = |profile: u8, constraints: [u8; 6], level: u8| {
            boxed(b"hvcC", &[&[1, profile], &0x6000_0000_u32.to_be_bytes(), &constraints, &[level], &[0; 10]])
        };
        let main = hevc(1, [0xb0, 0, 0, 0, 0, 0], 93);
        let high_tier = hevc(0x22, [0; 6], 153);
        let av1 = boxed(b"av1C", &[&[0x81, 0x04, 0x4c, 0]]);
        for (track, name) in [
            (picture(b"avc1", (1280, 720), avc.clone()), "avc1.64001f"),
            (picture(b"avc3", (1280, 720), avc), "avc3.64001f"),
            (picture(b"hvc1", (1280, 720), main.clone()), "hvc1.1.6.L93.B0"),
            (picture(b"hev1", (1280, 720), main), "hev1.1.6.L93.B0"),
            (picture(b"hvc1", (1280, 720), high_tier), "hvc1.2.6.H153"),
            (picture(b"av01", (1280, 720), av1), "av01.0.04M.10"),
        ] {
            let info = info(&[&track]);
            assert_eq!((info.codecs.as_deref(), info.resolution), (Some(name), Some((1280, 720))));
        }
        for (track, name) in [
            (sound(b"mp4a", &aac(0x40, &[0x12, 0x10])), "mp4a.40.2"),
            (sound(b"mp4a", &aac(0x40, &[0x2b, 0x92])), "mp4a.40.5"),
            (sound(b"mp4a", &aac(0x40, &[0xf9, 0x40])), "mp4a.40.42"),
            (sound(b"mp4a", &aac(0x6b, &[])), "mp4a.6B"),
            (sound(b"Opus", &boxed(b"dOps", &[&[0; 11]])), "Opus"),
        ] {
            assert_eq!(info(&[&track]).codecs.as_deref(), Some(name));
        }
    }

    #[test]
    fn unknown_codec_omits_the_codec_list() {
        let known = picture(b"avc1", (640, 360), boxed(b"avcC", &[&[1, 0x42, 0xc0, 0x1e]]));
        let small = picture(b"avc1", (64, 36), boxed(b"avcC", &[&[1, 0x42, 0xc0, 0x1e]]));
        let voice = sound(b"mp4a", &aac(0x40, &[0x12, 0x10]));
        assert_eq!(info(&[&voice, &known, &small]).codecs.as_deref(), Some("avc1.42c01e,mp4a.40.2"));
        assert_eq!(info(&[&small, &known]).resolution, Some((640, 360)));
        for unknown in [
            picture(b"vp09", (640, 360), Vec::new()),
            picture(b"avc1", (640, 360), Vec::new()),
            picture(b"avc1", (640, 360), boxed(b"avcC", &[&[1]])),
            sound(b"mp4a", &[]),
        ] {
            let info = info(&[&known, &unknown]);
            assert_eq!((info.codecs, info.resolution), (None, Some((640, 360))));
        }
        // The list excludes subtitles.
        let subtitles = track(b"subt", &boxed(b"stpp", &[]));
        assert_eq!(info(&[&known, &subtitles]).codecs.as_deref(), Some("avc1.42c01e"));
    }

    proptest! {
        #[test]
        fn changed_sections_do_not_panic(changes in prop::collection::vec((0_usize..1_500, any::<u8>()), 0..20), cut in 0_usize..1_500) {
            let mut init = RECORDED[..1_500].to_vec();
            for (at, byte) in changes {
                init[at] = byte;
            }
            init.truncate(cut);
            let _ = CodecInfo::of_init(&init);
        }
    }
}
