//! Reading the crate's own source text: the files, and their code as tokens without comments and literals.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses the part it needs"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// A file under `src/`.
pub struct SourceFile {
    /// Its path below `src/`, with `/` between the parts.
    pub path: String,
    pub text: String,
}

/// Every `.rs` file below `src/`, sorted by path.
pub fn source_files() -> Vec<SourceFile> {
    fn visit(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("src/ is readable") {
            let path = entry.expect("src/ is readable").path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    visit(&root, &mut found);
    found.sort();
    found
        .iter()
        .map(|path| SourceFile {
            path: path
                .strip_prefix(&root)
                .expect("found below it")
                .components()
                .map(|part| part.as_os_str().to_str().expect("file names are ASCII"))
                .collect::<Vec<_>>()
                .join("/"),
            text: fs::read_to_string(path).expect("source is UTF-8"),
        })
        .collect()
}

/// One word or sign of code, and the line it stands on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// The code of `text`: identifiers, numbers, `::`, and single signs. Comments are left out; a string or
/// character literal becomes one token `""`.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut i = 0;
    while i < chars.len() {
        let end = token_end(&chars, i);
        let piece = &chars[i..end];
        let first = piece[0];
        let is_comment = piece.starts_with(&['/', '/']) || piece.starts_with(&['/', '*']);
        if !first.is_whitespace() && !is_comment {
            let is_literal = piece.len() > 1 && piece.iter().any(|c| matches!(c, '"' | '\''));
            let is_lifetime = first == '\'' && piece.last() != Some(&'\'');
            tokens.push(Token {
                text: if is_literal && !is_lifetime {
                    "\"\"".to_owned()
                } else {
                    piece.iter().collect()
                },
                line,
            });
        }
        line += piece.iter().filter(|c| **c == '\n').count();
        i = end;
    }
    tokens
}

/// One past the last character of the token, comment or white space that starts at `i`.
fn token_end(chars: &[char], i: usize) -> usize {
    let next = chars.get(i + 1).copied();
    match chars[i] {
        '/' if next == Some('/') => chars[i..]
            .iter()
            .position(|c| *c == '\n')
            .map_or(chars.len(), |n| i + n),
        '/' if next == Some('*') => block_comment_end(chars, i),
        '"' => string_end(chars, i),
        '\'' => quote_end(chars, i),
        ':' if next == Some(':') => i + 2,
        c if is_word(c) => {
            let end = (i..chars.len())
                .find(|&n| !is_word(chars[n]))
                .unwrap_or(chars.len());
            let prefix: String = chars[i..end].iter().collect();
            match (prefix.as_str(), chars.get(end)) {
                ("r" | "br" | "cr", Some('"' | '#')) => raw_string_end(chars, end),
                ("b" | "c", Some('"')) => string_end(chars, end),
                ("b", Some('\'')) => quote_end(chars, end),
                _ => end,
            }
        }
        _ => i + 1,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut i = start;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                i += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], quote: usize) -> usize {
    let mut i = quote + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// A raw string whose `#`s or quote start at `i`; a raw identifier ends after its name.
fn raw_string_end(chars: &[char], i: usize) -> usize {
    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
    if chars.get(i + hashes) != Some(&'"') {
        return (i + hashes..chars.len())
            .find(|&n| !is_word(chars[n]))
            .unwrap_or(chars.len());
    }
    let body = i + hashes + 1;
    (body..chars.len())
        .find(|&n| {
            chars[n] == '"' && chars[n + 1..].iter().take_while(|c| **c == '#').count() >= hashes
        })
        .map_or(chars.len(), |n| n + 1 + hashes)
}

/// A character literal, or a lifetime, that starts with the quote at `i`.
fn quote_end(chars: &[char], i: usize) -> usize {
    if chars.get(i + 1) == Some(&'\\') {
        // The escaped character may itself be a quote.
        return (i + 3..chars.len())
            .find(|&n| chars[n] == '\'')
            .map_or(chars.len(), |n| n + 1);
    }
    if chars.get(i + 2) == Some(&'\'') {
        return i + 3;
    }
    (i + 1..chars.len())
        .find(|&n| !is_word(chars[n]))
        .unwrap_or(chars.len())
}

/// Whether the tokens from `at` on read as `words`.
pub fn reads(tokens: &[Token], at: usize, words: &[&str]) -> bool {
    tokens.len() >= at + words.len()
        && words
            .iter()
            .zip(&tokens[at..])
            .all(|(word, token)| token.text == *word)
}

/// Index of the sign that closes the bracket at `open`; the end if none does.
pub fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len()
}
