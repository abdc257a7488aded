//! Parts of URLs.

/// Host of a URL, without its port.
pub(crate) fn host(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_come_without_port_and_brackets() {
        let hosts = ["http://a.example:80/x", "http://10.0.0.1", "http://[2001:db8::1]:8080/"].map(host);
        assert_eq!(hosts, [Some("a.example"), Some("10.0.0.1"), Some("2001:db8::1")]);
        assert_eq!(host("https://a.example:8443/x"), Some("a.example"));
        assert_eq!(host("ftp://a.example"), None);
    }
}
