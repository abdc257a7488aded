//! URLs of playlists and of the resources in playlists.
//!
//! Source: RFC 3986, section 5.2. Read [`join_url`].

use super::URL_BYTES_MAX;

const SCHEMES: [&str; 2] = ["http://", "https://"];

/// Whether a text is the URL of a resource on an HTTP server.
pub(super) fn is_http_url(url: &str) -> bool {
    let rest = SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    let is_text = url.bytes().all(|byte| byte.is_ascii_graphic());
    url.len() <= URL_BYTES_MAX && is_text && authority.is_some_and(|authority| !authority.is_empty())
}

/// Resolves `reference` against the document at `base` to an absolute URL. Returns `None` if the
/// result exceeds [`URL_BYTES_MAX`] or a text contains characters other than printable ASCII.
///
/// ```
/// use anabranch_live_proto::play::join_url;
/// let base = "http://a/news/main/index.m3u8?x=1";
/// assert_eq!(join_url(base, "1.m4s").as_deref(), Some("http://a/news/main/1.m4s"));
/// assert_eq!(join_url(base, "../b/1.m4s").as_deref(), Some("http://a/news/b/1.m4s"));
/// assert_eq!(join_url(base, "/c").as_deref(), Some("http://a/c"));
/// ```
pub fn join_url(base: &str, reference: &str) -> Option<String> {
    let reference = reference.split('#').next().unwrap_or_default();
    let base = base.split('#').next().unwrap_or_default();
    let (scheme, rest) = base.split_once("://")?;
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(authority_end);
    let base_path = target.split('?').next().unwrap_or_default();
    let has_scheme = reference.split_once("://").is_some_and(|(word, _)| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    let url = if has_scheme {
        reference.to_owned()
    } else if let Some(rest) = reference.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if reference.is_empty() {
        format!("{scheme}://{authority}{target}")
    } else if reference.starts_with('?') {
        format!("{scheme}://{authority}{base_path}{reference}")
    } else {
        let (path, query) = match reference.find('?') {
            Some(at) => reference.split_at(at),
            None => (reference, ""),
        };
        let folder = if path.starts_with('/') { "" } else { &base_path[..base_path.rfind('/').unwrap_or(0)] };
        let separator = if path.starts_with('/') { "" } else { "/" };
        let path = without_dots(&format!("{folder}{separator}{path}"));
        format!("{scheme}://{authority}{path}{query}")
    };
    (url.len() <= URL_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic())).then_some(url)
}

/// Removes `.` and `..` from a path (section 5.2.4).
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for word in path.split('/').skip(1) {
        is_folder = matches!(word, "." | "..");
        match word {
            "." => {}
            ".." => drop(kept.pop()),
            word => kept.push(word),
        }
    }
    let mut path: String = kept.iter().flat_map(|word| ["/", word]).collect();
    if is_folder || path.is_empty() {
        path.push('/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Uses the examples of RFC 3986, section 5.4, with the base `http://a/b/c/d;p?q`.
    #[test]
    fn references_resolve_as_the_rfc_says() {
        for (reference, url) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("g#s", "http://a/b/c/g"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../../../g", "http://a/g"),
            ("https://h/i", "https://h/i"),
        ] {
            assert_eq!(join_url("http://a/b/c/d;p?q", reference).as_deref(), Some(url), "{reference}");
        }
        assert_eq!(join_url("http://a", "g").as_deref(), Some("http://a/g"));
        assert_eq!(join_url("http://a/b", "g h"), None);
    }

    proptest! {
        #[test]
        fn joined_urls_keep_the_host(path in "[a-z./]{0,20}", reference in "[a-z.][a-z./?=]{0,20}") {
            let url = join_url(&format!("http://host:1/{path}"), &reference).expect("short ASCII");
            prop_assert!(url.starts_with("http://host:1/") && is_http_url(&url), "{}", url);
            prop_assert!(!url.split('?').next().is_some_and(|path| path.contains("/../")), "{}", url);
        }
    }
}
