//! Page traces: 32-bit little-endian page numbers, plain or xz-compressed.

use std::fmt;
use std::io::Read;
use std::path::Path;

use lzma_rust2::XzReader;

/// Page numbers from here on are refused: a table of the pages between would not fit.
const MOST_PAGES: u32 = 1 << 28;
/// Touches beyond these are refused, so that a small compressed file cannot fill the memory.
const MOST_TOUCHES: u64 = 1 << 30;

/// The pages that a program touched, in order.
#[derive(Debug)]
pub struct Trace {
    pub touches: Vec<u32>,
    /// One more than the highest page number.
    pub end: u32,
    /// How many different pages there are.
    pub pages: u32,
}

/// Why a file is no trace.
#[derive(Debug)]
pub enum TraceError {
    Read(std::io::Error),
    Compressed(std::io::Error),
    Empty,
    Truncated { bytes: usize },
    PageOutOfRange { at: usize, page: u32 },
    TooLong,
}

impl Trace {
    /// Reads a trace; a file that begins as xz does is unpacked.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let packed = std::fs::read(path).map_err(TraceError::Read)?;
        if !packed.starts_with(b"\xFD7zXZ\0") {
            return Self::from_bytes(&packed);
        }
        let mut bytes = Vec::new();
        XzReader::new(packed.as_slice(), true)
            .take(MOST_TOUCHES * 4 + 1)
            .read_to_end(&mut bytes)
            .map_err(TraceError::Compressed)?;
        Self::from_bytes(&bytes)
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        if bytes.is_empty() {
            return Err(TraceError::Empty);
        }
        if bytes.len() as u64 > MOST_TOUCHES * 4 {
            return Err(TraceError::TooLong);
        }
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(TraceError::Truncated { bytes: bytes.len() });
        }
        let touches: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if let Some((at, &page)) = (0..).zip(&touches).find(|(_, page)| **page >= MOST_PAGES) {
            return Err(TraceError::PageOutOfRange { at, page });
        }
        let end = touches.iter().max().map_or(0, |page| page + 1);
        let mut seen = vec![false; end as usize];
        for &page in &touches {
            seen[page as usize] = true;
        }
        let pages = seen.iter().filter(|seen| **seen).count() as u32;
        Ok(Self {
            touches,
            end,
            pages,
        })
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot be read: {error}"),
            Self::Compressed(error) => write!(f, "is not whole as an xz file: {error}"),
            Self::Empty => f.write_str("is empty: a trace has at least one page number"),
            Self::Truncated { bytes } => write!(
                f,
                "has {bytes} bytes, no multiple of 4: it was cut off, or is no trace"
            ),
            Self::PageOutOfRange { at, page } => write!(
                f,
                "touch {at} is of page {page}: page numbers are below {MOST_PAGES}, dense from 0"
            ),
            Self::TooLong => write!(f, "has more than {MOST_TOUCHES} touches"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_trace_is_refused_with_the_reason() {
        for (bytes, reason) in [
            (&[][..], "is empty"),
            (&[1, 0, 0][..], "cut off"),
            (&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..], "touch 1"),
        ] {
            let error = Trace::from_bytes(bytes).expect_err("no trace").to_string();
            assert!(error.contains(reason), "{error}");
        }
        let trace = Trace::from_bytes(&[3, 0, 0, 0, 3, 0, 0, 0]).expect("a trace");
        assert_eq!((trace.pages, trace.end), (1, 4));
    }
}
