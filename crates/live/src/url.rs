//! Splits URLs into their parts.

/// Host of a URL without its port.
pub(crate) fn host(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    }
}

/// Server part and request target of a URL.
pub(crate) fn split(url: &str) -> Option<(&str, String)> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let target = rest[end..].split('#').next().unwrap_or_default();
    let slash = if target.starts_with('/') { "" } else { "/" };
    Some((&url[..url.len() - rest.len() + end], format!("{slash}{target}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_begins_with_a_slash() {
        assert_eq!(split("http://a:80/x?y#z"), Some(("http://a:80", "/x?y".to_owned())));
        assert_eq!(split("http://a?y"), Some(("http://a", "/?y".to_owned())));
        assert_eq!(split("https://a/x"), Some(("https://a", "/x".to_owned())));
        assert_eq!(split("ftp://a/x"), None);
    }

    #[test]
    fn hosts_have_no_port_and_no_brackets() {
        let hosts = ["http://a.example:80/x", "http://10.0.0.1", "http://[2001:db8::1]:8080/"].map(host);
        assert_eq!(hosts, [Some("a.example"), Some("10.0.0.1"), Some("2001:db8::1")]);
        assert_eq!(host("https://a.example:8443/x"), Some("a.example"));
        assert_eq!(host("ftp://a.example"), None);
    }
}
