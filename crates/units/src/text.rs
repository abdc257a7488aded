//! Text that came from outside, made fit to be shown: on a terminal, in a log, in a message of one line.
//!
//! Source: Unicode Standard, section 23.1 (control codes) and Annex 9, section 2 (directional formatting characters).
//! Leaves out: markup (XML and HTML escape what is theirs), and width. There is one function: [`printable`].

use std::borrow::Cow;

/// The text in one line that does what it says: each control character (C0, delete, C1, line breaks of any kind) and each
/// character that changes the direction of what follows becomes U+FFFD, so that nobody's file name can move a cursor,
/// colour a line, break a table's row or show itself backwards.
///
/// Cost: one pass; nothing is copied where nothing is changed.
///
/// ```
/// use anabranch_units::text::printable;
/// assert_eq!(printable("größe 日本.tar"), "größe 日本.tar");
/// assert_eq!(printable("all well\x1b[2J\nx"), "all well\u{fffd}[2J\u{fffd}x");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(misleads) { Cow::Owned(text.replace(misleads, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Whether a terminal would do something else than show the character.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{fffe}'
                | '\u{ffff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// #17: a peer's words reached operators' terminals with their escape sequences.
    #[test]
    fn what_moves_a_terminal_or_turns_text_round_is_replaced() {
        for c in
            ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}').chain("\u{202e}\u{2066}\u{2028}\u{200f}".chars())
        {
            assert_eq!(printable(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        for c in " ~\u{a0}\u{ff}\u{200d}\u{2027}\u{202f}\u{2065}\u{206a}\u{1f469}".chars() {
            let text = format!("a{c}b");
            assert!(matches!(printable(&text), Cow::Borrowed(same) if same == text), "{c:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printable_stays_as_it_is_and_is_as_long(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert_eq!(shown.chars().count(), text.chars().count());
            prop_assert!(!shown.contains(char::is_control));
            prop_assert_eq!(printable(&shown), shown.as_ref());
        }
    }
}
