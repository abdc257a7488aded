//! Comparison of secrets, such as tokens in requests.

/// Compares two byte strings in a time that depends only on their lengths.
pub fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |differing, (a, b)| std::hint::black_box(differing | (a ^ b)));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_equal() {
        assert!(is_equal(b"0123", b"0123"));
        for other in ["", "0", "012", "01234", "0124", "1123"] {
            assert!(!is_equal(other.as_bytes(), b"0123"), "{other}");
        }
    }
}
