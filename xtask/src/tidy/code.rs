//! A Rust file's code alone, without comments and the insides of literals.
//!
//! Leaves out: any grammar beyond that. Read [`code_only`] first.

/// The text with comments and the insides of literals turned into spaces, line by line as before.
pub(super) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    while i < chars.len() {
        let c = chars[i];
        let next = chars.get(i + 1).copied();
        let end = match (c, next) {
            ('/', Some('/')) => chars[i..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| i + n),
            ('/', Some('*')) => block_comment_end(&chars, i),
            ('"', _) => string_end(&chars, i + 1),
            ('r', Some('"' | '#')) if !continues_a_word(&chars, i) => match raw_string_end(&chars, i + 1) {
                Some(end) => end,
                None => i,
            },
            ('\'', _) => char_end(&chars, i).unwrap_or(i),
            _ => i,
        };
        if end > i {
            chars[i..end].iter().for_each(|c| blank(&mut out, *c));
            i = end;
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

/// Returns whether the character at `i` is inside or at the end of a longer word; the `b` or `c`
/// before a raw string is no word.
fn continues_a_word(chars: &[char], i: usize) -> bool {
    let word = |c: &char| c.is_alphanumeric() || *c == '_';
    match i.checked_sub(1).map(|before| chars[before]) {
        Some('b' | 'c') => i >= 2 && word(&chars[i - 2]),
        Some(c) => word(&c),
        None => false,
    }
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0usize, start);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

/// Returns the index after the closing quote of a string whose inside begins at `i`.
fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// Returns the index after the end of a raw string whose `#`s or quote begin at `i`; `None` if no
/// raw string begins there.
fn raw_string_end(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
    if chars.get(i + hashes) != Some(&'"') {
        return None;
    }
    let mut at = i + hashes + 1;
    while at < chars.len() {
        let closes = chars[at] == '"'
            && chars.len() > at + hashes
            && chars[at + 1..=at + hashes].iter().all(|c| *c == '#');
        if closes {
            return Some(at + hashes + 1);
        }
        at += 1;
    }
    Some(chars.len())
}

/// Returns the index after a character literal at `i`; `None` for a lifetime.
fn char_end(chars: &[char], i: usize) -> Option<usize> {
    match (chars.get(i + 1)?, chars.get(i + 2)) {
        ('\\', Some(_)) => {
            let close = chars[i + 3..].iter().take(10).position(|c| *c == '\'')?;
            Some(i + 3 + close + 1)
        }
        (_, Some('\'')) => Some(i + 3),
        _ => None,
    }
}

/// Returns code (see [`code_only`]) with the items under `#[cfg(test)]` turned into spaces.
pub(super) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = code.to_owned();
    let mut from = 0;
    while let Some(at) = out[from..].find(MARK).map(|at| from + at) {
        let end = item_end(&out, at + MARK.len());
        let blank: String = out[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        from = at + blank.len();
        out.replace_range(at..end, &blank);
    }
    out
}

/// Returns the index after the end of the item at `start`: after a `;`, a `,`, or the brace that
/// closes its first one.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0usize;
    for (i, c) in code[start..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return start + i + 1;
                }
            }
            ';' | ',' if depth == 0 => return start + i + 1,
            _ => {}
        }
    }
    code.len()
}
