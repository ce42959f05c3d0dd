//! Flat token files: little-endian integers, no header (the layout of nanoGPT's `train.bin`).
//!
//! Several files are read as if they were one: row `i` is tokens `i·window .. (i+1)·window` of all of them one after
//! the other, so a row may begin in one file and end in the next. Tokens that do not fill a last row are left out. Row
//! numbers count through all files, and so do the messages: with several files they name the first and the last.
//!
//! The width of a token is not in the file and must be given; whether the ids fit a vocabulary is for
//! `decode::tokens` to say. The files are mapped (`mapped` tells what that means for memory and for files that change).

use std::path::PathBuf;

pub use super::token_width::TokenWidth;

use super::concatenated::Concatenated;
use super::mapped::Mapped;
use super::{IndexedSource, Lists, Manifest, Piece, Positions, Records};
use crate::error::{Error, Result};

/// Rows of `window` tokens out of flat token files.
#[derive(Debug)]
pub struct TokenFiles {
    files: Concatenated,
    width: TokenWidth,
    window: usize,
    /// Bytes of one row; checked to fit.
    row_bytes: usize,
    num_rows: u64,
    manifest: Manifest,
}

impl TokenFiles {
    /// Maps files of tokens `width` wide, to be read in this order as rows of `window` tokens.
    pub fn open(paths: &[PathBuf], width: TokenWidth, window: usize) -> Result<Self> {
        let row_bytes = window.checked_mul(width.bytes()).filter(|&bytes| bytes > 0).ok_or_else(|| {
            Error::option(format!("window = {window}: must be at least 1 and small enough to fit into memory"))
        })?;
        let files = paths.iter().map(|path| whole_tokens(Mapped::open(path)?, width)).collect::<Result<Vec<_>>>()?;
        let files = Concatenated::new(files.into_iter().map(|file| (file, 0)).collect());
        let options = format!("width={} window={window}", width.name());
        let manifest = Manifest::new("tokens", files.entries(), &options);
        manifest.require_files()?;
        let num_rows = files.len() / row_bytes as u64;
        if num_rows == 0 {
            return Err(Error::data(format!(
                "{}: {} {} tokens are fewer than one row of {window}: use a smaller window or more data",
                files.label(),
                files.len() / width.bytes() as u64,
                width.name()
            )));
        }
        Ok(Self { files, width, window, row_bytes, num_rows, manifest })
    }

    /// Tokens in a row.
    pub fn window(&self) -> usize {
        self.window
    }
}

/// Refuses a file that ends inside a token.
fn whole_tokens(file: Mapped, width: TokenWidth) -> Result<Mapped> {
    if file.len().is_multiple_of(width.bytes()) {
        return Ok(file);
    }
    Err(Error::format(format!(
        "{}: {} bytes are not whole {} tokens: is it of another width, or cut off?",
        file.name(),
        file.len(),
        width.name()
    )))
}

impl IndexedSource for TokenFiles {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        let bytes = self.files.gather(rows, self.row_bytes)?;
        Ok(Piece {
            file: self.files.label().clone(),
            positions: Positions::RowNumbers(rows.to_vec()),
            records: Records::Lists(Lists {
                values: self.width.column_from_le_bytes(&bytes),
                ends: (1..=rows.len()).map(|row| row * self.window).collect(),
                missing: None,
            }),
            bad: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::Values;
    use crate::error::ErrorKind;

    /// Files of these lengths in tokens; all together they count up from 0.
    fn counting_files(folder: &tempfile::TempDir, lengths: &[usize], width: TokenWidth) -> Vec<PathBuf> {
        let mut next = 0u32;
        let mut write = |(index, &length): (usize, &usize)| {
            let path = folder.path().join(format!("part-{index}.bin"));
            let tokens = next..next + length as u32;
            let bytes: Vec<u8> = match width {
                TokenWidth::U16 => tokens.flat_map(|token| (token as u16).to_le_bytes()).collect(),
                TokenWidth::U32 => tokens.flat_map(|token| (token + 70_000).to_le_bytes()).collect(),
            };
            next += length as u32;
            std::fs::write(&path, bytes).unwrap();
            path
        };
        lengths.iter().enumerate().map(&mut write).collect()
    }

    fn lists(piece: &Piece) -> &Lists {
        let Records::Lists(lists) = &piece.records else { panic!("tokens are lists") };
        lists
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rows_are_the_concatenation_cut_whatever_the_files_and_the_order(
            lengths in prop::collection::vec(0usize..20, 1..8),
            window in 1usize..12,
            width in prop_oneof![Just(TokenWidth::U16), Just(TokenWidth::U32)],
            seed: u64,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let total: usize = lengths.iter().sum();
            let opened = TokenFiles::open(&counting_files(&folder, &lengths, width), width, window);
            if total < window {
                prop_assert_eq!(opened.unwrap_err().kind(), ErrorKind::Data);
                return Ok(());
            }
            let source = opened.unwrap();
            let num_rows = source.num_rows().unwrap();
            prop_assert_eq!(num_rows, (total / window) as u64);
            let mut rows: Vec<u64> = (0..num_rows).collect();
            crate::rng::Rng::new(seed).shuffle(&mut rows);
            let piece = source.gather(&rows).unwrap();
            let base = if width == TokenWidth::U16 { 0 } else { 70_000 };
            let lists = lists(&piece);
            prop_assert_eq!(lists.ends.len(), rows.len());
            for (record, &row) in rows.iter().enumerate() {
                let got: Vec<u32> = lists.range(record).map(|at| lists.values.category(at).unwrap()).collect();
                let first = base + row as u32 * window as u32;
                prop_assert_eq!(got, (first..first + window as u32).collect::<Vec<_>>());
                prop_assert_eq!(piece.positions.place(record), ("row", row));
            }
            prop_assert!(source.gather(&[num_rows]).is_err());
        }
    }

    #[test]
    fn a_file_of_half_a_token_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = counting_files(&folder, &[8], TokenWidth::U16);
        paths.push(folder.path().join("odd.bin"));
        std::fs::write(&paths[1], [0; 1001]).unwrap();
        let error = TokenFiles::open(&paths, TokenWidth::U16, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format);
        assert!(error.to_string().contains("odd.bin: 1001 bytes are not whole u16 tokens"), "{error}");
        std::fs::write(&paths[1], [0; 1002]).unwrap();
        assert!(TokenFiles::open(&paths, TokenWidth::U16, 4).is_ok());
        assert!(TokenFiles::open(&paths, TokenWidth::U32, 4).is_err());
    }

    #[test]
    fn what_makes_no_row_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let paths = counting_files(&folder, &[100], TokenWidth::U16);
        let open = |paths: &[PathBuf], window| TokenFiles::open(paths, TokenWidth::U16, window).unwrap_err();
        assert!(open(&paths, 128).to_string().contains("100 u16 tokens are fewer than one row of 128"));
        assert_eq!(open(&paths, 0).kind(), ErrorKind::Option);
        assert_eq!(open(&paths, usize::MAX).kind(), ErrorKind::Option);
        assert!(open(&[], 4).to_string().contains("no file"));
        assert!(open(&[folder.path().into()], 4).to_string().contains("is a directory"));
        assert_eq!(open(&[folder.path().join("none.bin")], 4).kind(), ErrorKind::Path);
    }

    #[test]
    fn a_file_cut_off_while_it_is_read_is_an_error_not_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let paths = counting_files(&folder, &[50, 50], TokenWidth::U16);
        let source = TokenFiles::open(&paths, TokenWidth::U16, 10).unwrap();
        std::fs::File::options().write(true).open(&paths[1]).unwrap().set_len(0).unwrap();
        let error = source.gather(&[2, 7]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("part-1.bin") && error.to_string().contains("rename"), "{error}");
        assert!(source.gather(&[2]).is_ok());
    }

    #[test]
    fn messages_name_one_file_or_the_first_and_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let paths = counting_files(&folder, &[4, 4, 4], TokenWidth::U16);
        let file = |paths: &[PathBuf]| TokenFiles::open(paths, TokenWidth::U16, 4).unwrap().gather(&[0]).unwrap().file;
        assert!(file(&paths[..1]).ends_with("part-0.bin"));
        let all = file(&paths);
        assert!(all.contains("part-0.bin to ") && all.ends_with("part-2.bin (3 files read as one)"), "{all}");
    }

    #[test]
    fn width_and_window_are_part_of_what_the_data_is() {
        let folder = tempfile::tempdir().unwrap();
        let paths = counting_files(&folder, &[40], TokenWidth::U16);
        let digest = |width, window| TokenFiles::open(&paths, width, window).unwrap().manifest().digest.clone();
        assert_eq!(digest(TokenWidth::U16, 4), digest(TokenWidth::U16, 4));
        assert_ne!(digest(TokenWidth::U16, 4), digest(TokenWidth::U16, 5));
        assert_ne!(digest(TokenWidth::U16, 4), digest(TokenWidth::U32, 4));
    }

    #[test]
    fn wikitext_2_valid_has_2000_rows_of_128_gpt2_tokens() {
        let data = std::env::var_os("ANEMONE_DATA")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
        let path = data.join("wikitext2/valid.bin");
        if !path.exists() {
            eprintln!("skipped: no {}", path.display());
            return;
        }
        let source = TokenFiles::open(std::slice::from_ref(&path), TokenWidth::U16, 128).unwrap();
        assert_eq!(source.num_rows(), Some(2000));
        let piece = source.gather(&[1999, 0]).unwrap();
        let Values::U16(tokens) = &lists(&piece).values else { panic!("u16 tokens stay u16") };
        assert!(tokens.len() == 256 && tokens.iter().all(|&token| token < 50_257));
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(tokens[128], u16::from_le_bytes([bytes[0], bytes[1]]));
    }
}
