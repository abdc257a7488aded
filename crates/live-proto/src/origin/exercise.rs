//! Exercise of the importer, for a fuzz target.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_import`].

use super::importer::{FetchKind, ImportConfig, Importer};
use super::names::Name;
use super::rendition::{Answer, RequestId, Status};
use anabranch_media::hls::{DeliveryDirectives, MediaPlaylist};
use anabranch_units::Instant;

/// Imports the playlists of an origin, which are separated by zero bytes. The body of a resource is
/// its URI, and a URI with an `x` fails. Returns whether all playlists are valid and the rendition
/// has media.
///
/// Panics: if the first segment's number decreases, or the rendition's playlist is not valid.
pub fn exercise_import(bytes: &[u8]) -> bool {
    let mut now = Instant::ZERO;
    let mut importer = Importer::new(now, ImportConfig::default()).expect("the settings are in range");
    let mut texts = bytes.split(|byte| *byte == 0);
    let mut are_read = true;
    let mut is_over = false;
    let mut last = None;
    loop {
        importer.handle_timeout(now);
        let Some(fetch) = importer.poll_fetch() else {
            match importer.poll_timeout() {
                Some(at) if !is_over => now = at.max(now),
                _ => break,
            }
            continue;
        };
        match fetch.kind {
            FetchKind::Playlist(_) => {
                let Some(text) = texts.next() else {
                    // The origin does not answer further playlist requests. Planned media still
                    // arrive.
                    is_over = true;
                    continue;
                };
                are_read &= importer.handle_bytes(now, fetch.id, text).is_ok();
                are_read &= importer.handle_end(now, fetch.id).is_ok();
            }
            FetchKind::Resource(resource) if resource.uri.contains('x') => {
                importer.handle_failure(now, fetch.id);
            }
            FetchKind::Resource(resource) => {
                let _ = importer.handle_bytes(now, fetch.id, resource.uri.as_bytes());
                let _ = importer.handle_end(now, fetch.id);
            }
        }
        if let Some(playlist) = playlist(&mut importer, now) {
            assert!(last <= Some(playlist.media_sequence), "numbers never fall");
            last = Some(playlist.media_sequence);
        }
    }
    are_read && last.is_some()
}

/// The rendition's playlist.
fn playlist(importer: &mut Importer, now: Instant) -> Option<MediaPlaylist> {
    let (id, directives) = (RequestId(0), DeliveryDirectives::default());
    importer.rendition().handle_request(now, id, Name::Playlist, directives);
    let mut text = Vec::new();
    let mut is_found = false;
    while let Some((_, answer)) = importer.rendition().poll_answer() {
        match answer {
            Answer::Head(head) => is_found = head.status == Status::Ok,
            Answer::Data(bytes) => text.extend_from_slice(&bytes),
            Answer::End | Answer::Aborted => {}
        }
    }
    is_found.then(|| MediaPlaylist::read(&text).expect("a rendition's playlist follows the standard"))
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn fuzz_corpus_results_match_the_file_names() {
        assert!(replay("live_import", super::exercise_import) >= 7);
    }
}
