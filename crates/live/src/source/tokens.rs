//! Publishing tokens: they determine which channels a publisher may write.
//!
//! Read [`PublishTokens`].

use anabranch_http::secret;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::fmt;

/// Allowed length of a token, in bytes.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=256;
/// Maximum number of lines of a token file.
const TOKENS_MAX: usize = 1_024;
/// Longest name of a channel or rendition, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Tokens for publishing channels.
///
/// A file has one line `CHANNEL TOKEN` for each token; the channel `*` means all channels. Empty
/// lines and lines that begin with `#` are ignored.
#[derive(Clone, Default)]
pub struct PublishTokens {
    tokens: Vec<(String, String)>,
}

/// Reason why a token file is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFileError {
    /// A line that is not `CHANNEL TOKEN`.
    NotTwoWords {
        /// Number of the line.
        line: usize,
    },
    /// A channel that is not a valid name.
    BadChannel {
        /// Number of the line.
        line: usize,
        /// The channel, as written in the file.
        channel: String,
    },
    /// A token that is not 16 to 256 printable ASCII characters.
    BadToken {
        /// Number of the line.
        line: usize,
        /// Length of the token in bytes.
        bytes: usize,
    },
    /// The file has more than 1,024 tokens.
    TooMany,
    /// The file has no token.
    Empty,
}

impl fmt::Display for TokenFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTwoWords { line } => {
                write!(f, "line {line}: must be `CHANNEL TOKEN`, with `*` for all channels")
            }
            Self::BadChannel { line, channel } => write!(
                f,
                "line {line}: channel `{channel}`: must have 1 to {NAME_BYTES_MAX} letters, digits, `-`, `.` \
                 or `_`, and not begin with `.`"
            ),
            Self::BadToken { line, bytes } => write!(
                f,
                "line {line}: token of {bytes} bytes: must have {} to {} printable ASCII characters",
                TOKEN_BYTES.start(),
                TOKEN_BYTES.end()
            ),
            Self::TooMany => write!(f, "more than {TOKENS_MAX} tokens: use `*` for several channels"),
            Self::Empty => write!(f, "no token: write a line `CHANNEL TOKEN`"),
        }
    }
}

impl std::error::Error for TokenFileError {}

impl PublishTokens {
    /// Parses the text of a token file.
    ///
    /// Errors: [`TokenFileError`].
    ///
    /// ```
    /// use anabranch_live::PublishTokens;
    /// assert!(PublishTokens::read("news 0123456789abcdef\n").is_ok());
    /// assert!(PublishTokens::read("news short\n").is_err());
    /// ```
    pub fn read(text: &str) -> Result<Self, TokenFileError> {
        let mut tokens = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let mut words = content.split_whitespace();
            let (Some(channel), Some(token), None) = (words.next(), words.next(), words.next()) else {
                return Err(TokenFileError::NotTwoWords { line });
            };
            if channel != "*" && !is_name(channel) {
                return Err(TokenFileError::BadChannel { line, channel: channel.to_owned() });
            }
            let bytes = token.len();
            if !TOKEN_BYTES.contains(&bytes) || !token.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(TokenFileError::BadToken { line, bytes });
            }
            if tokens.len() == TOKENS_MAX {
                return Err(TokenFileError::TooMany);
            }
            tokens.push((channel.to_owned(), token.to_owned()));
        }
        if tokens.is_empty() { Err(TokenFileError::Empty) } else { Ok(Self { tokens }) }
    }

    /// Whether a request with these headers may publish `channel`. The token is a Bearer token, or
    /// the user name or password of Basic credentials.
    pub(crate) fn allow(&self, channel: &str, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) else {
            return false;
        };
        let Some((scheme, given)) = value.split_once(' ') else { return false };
        let given = given.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.has(channel, given);
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return false;
        }
        let decoded = BASE64.decode(given).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some(decoded) = decoded else { return false };
        let (user, password) = decoded.split_once(':').unwrap_or((&decoded, ""));
        self.has(channel, user) | self.has(channel, password)
    }

    /// Compares a token with all tokens of the channel, even after a match, so that timing reveals
    /// nothing.
    fn has(&self, channel: &str, given: &str) -> bool {
        let of_channel = self.tokens.iter().filter(|(of, _)| of == "*" || of == channel);
        of_channel
            .fold(false, |found, (_, token)| found | secret::is_equal(token.as_bytes(), given.as_bytes()))
    }
}

/// Whether a text is a valid name of a channel or rendition.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn allows(channel: &str, authorization: &str) -> bool {
        let tokens = PublishTokens::read(&format!("# a comment\n\nnews {TOKEN}\n")).expect("a token file");
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, authorization.parse().expect("a header's value"));
        tokens.allow(channel, &headers)
    }

    #[test]
    fn token_is_valid_for_its_channel_only() {
        let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
        assert!(allows("news", &format!("Bearer {TOKEN}")));
        assert!(allows("news", &basic(&format!("live:{TOKEN}"))));
        assert!(allows("news", &basic(&format!("{TOKEN}:"))));
        assert!(!allows("sports", &format!("Bearer {TOKEN}")));
        for wrong in ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer", "Basic ???", "Digest x"]
        {
            assert!(!allows("news", wrong), "{wrong}");
        }
        assert!(!allows("news", &basic("live:")));
    }

    #[test]
    fn invalid_token_files_are_refused_by_line() {
        let refused = |text: &str| PublishTokens::read(text).err().map(|error| error.to_string());
        assert_eq!(refused(""), Some("no token: write a line `CHANNEL TOKEN`".into()));
        for text in ["news", "a/b 0123456789abcdef", "news short", "news 0123456789abcdef more"] {
            assert!(
                refused(&format!("# one\n{text}")).is_some_and(|line| line.starts_with("line 2: ")),
                "{text}"
            );
        }
        assert!(PublishTokens::read("* 0123456789abcdef").is_ok());
    }
}
