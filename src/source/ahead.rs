//! A live source whose first records were looked at: they are delivered all the same.
//!
//! What a column means is found in the first rows, and those of a live source come once. Whoever looks at them leaves
//! the reader here with what it has said so far, and the first one to open the source at its beginning gets all of it
//! again. Used by `pipeline` for tables.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Arrived, LiveReader, LiveSource, Manifest, Piece, ReadLimits};
use crate::data::Position;
use crate::error::{Error, Result};
use crate::order::Share;

/// Where so many records have come, a pause is no reason to wait for more of them.
const ENOUGH: usize = 256;

/// Fewer must do if no more come for so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// However they come, nobody waits longer for more of them. A pipe says nothing of its pauses.
const LONGEST: Duration = Duration::from_secs(20);

/// A live source with what its reader has said before anybody learns.
pub struct Ahead {
    source: Arc<dyn LiveSource>,
    held: Mutex<Option<Held>>,
}

struct Held {
    said: VecDeque<Arrived>,
    reader: Box<dyn LiveReader>,
    is_over: bool,
}

impl Ahead {
    /// Shows records to `see` until there are as many as `wanted`, or until enough of them and a pause. Blocks until
    /// there is one.
    pub fn look(
        source: Arc<dyn LiveSource>,
        limits: &ReadLimits,
        wanted: usize,
        mut see: impl FnMut(&Piece) -> Result<()>,
    ) -> Result<Self> {
        let mut held = Held { said: VecDeque::new(), reader: source.clone().open(None)?, is_over: false };
        let (mut seen, mut bytes, mut last) = (0, 0, Instant::now());
        let mut first: Option<Instant> = None;
        // What is held is in memory: no more of it than one record may take.
        while seen < wanted && bytes < limits.record_bytes && first.is_none_or(|first| first.elapsed() < LONGEST) {
            if seen >= ENOUGH && !source.can_go_back() && first.is_some_and(|first| first.elapsed() > PATIENCE) {
                break;
            }
            match held.reader.next(limits)? {
                None => {
                    held.is_over = true;
                    break;
                }
                Some(Arrived::Quiet) if seen >= ENOUGH || seen > 0 && last.elapsed() > PATIENCE => break,
                Some(Arrived::Quiet) => {}
                Some(arrived) => {
                    if let Arrived::Piece(piece) = &arrived {
                        see(piece)?;
                        (seen, last) = (seen + piece.num_records(), Instant::now());
                        bytes += piece.num_bytes() as u64;
                        first.get_or_insert(last);
                    }
                    held.said.push_back(arrived);
                }
            }
        }
        if seen == 0 {
            return Err(Error::data("the stream ended before its first record: there is nothing to find columns in"));
        }
        Ok(Self { source, held: Mutex::new(Some(held)) })
    }
}

impl LiveSource for Ahead {
    fn manifest(&self) -> &Manifest {
        self.source.manifest()
    }

    fn can_go_back(&self) -> bool {
        self.source.can_go_back()
    }

    fn open(self: Arc<Self>, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take(); // nobody else wants it
        match (from, held) {
            (None, Some(held)) => Ok(Box::new(held)),
            // Who cannot go back goes on with whatever comes, and this comes next.
            (Some(_), Some(held)) if !self.source.can_go_back() => Ok(Box::new(held)),
            _ => self.source.clone().open(from),
        }
    }

    fn check_shards(&self, shards: usize) -> Result<()> {
        self.source.check_shards(shards)
    }

    /// What has shares can go back: each share reads its own of the first records again.
    fn open_share(self: Arc<Self>, share: Share, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        match share.shards {
            1 => self.open(from),
            _ => self.source.clone().open_share(share, from),
        }
    }

    fn kept(&self, position: &Position) {
        self.source.kept(position);
    }
}

impl LiveReader for Held {
    fn next(&mut self, limits: &ReadLimits) -> Result<Option<Arrived>> {
        match self.said.pop_front() {
            Some(arrived) => Ok(Some(arrived)),
            None if self.is_over => Ok(None),
            None => self.reader.next(limits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json_lines::JsonLines;
    use super::super::{Columns, Records};
    use super::*;
    use crate::error::ErrorKind;

    const LIMITS: ReadLimits = ReadLimits { piece_bytes: 16, part_bytes: 1 << 20, record_bytes: 1 << 20 };

    fn lines(text: &'static str) -> Arc<dyn LiveSource> {
        Arc::new(JsonLines::new("a pipe", Box::new(text.as_bytes()), &Columns::Auto, &LIMITS).unwrap())
    }

    fn numbers(piece: &Piece) -> Vec<u32> {
        let Records::Lists(lists) = &piece.records else { panic!("{piece:?}") };
        (0..lists.values.len()).map(|at| lists.values.category(at).unwrap()).collect()
    }

    #[test]
    fn what_was_looked_at_comes_first_and_everything_once() {
        let text = "[1]\n[2]\n[3]\n[4]\n[5]\n[6]\n[7]\n[8]\n[9]\n[10]\n[11]\n[12]\n[13]\n[14]\n[15]\n[16]\n";
        for wanted in [1, 5, 100] {
            let mut seen = Vec::new();
            let ahead = Ahead::look(lines(text), &LIMITS, wanted, |piece| {
                seen.extend(numbers(piece));
                Ok(())
            });
            assert!(seen.len() >= wanted.min(16) && seen[0] == 1, "{seen:?}");
            let mut reader = Arc::new(ahead.unwrap()).open(None).unwrap();
            let mut all = Vec::new();
            while let Some(arrived) = reader.next(&LIMITS).unwrap() {
                if let Arrived::Piece(piece) = arrived {
                    all.extend(numbers(&piece));
                }
            }
            assert_eq!(all, (1..=16).collect::<Vec<u32>>(), "{wanted}");
        }
    }

    #[test]
    fn an_error_while_looking_and_a_stream_without_a_record_are_errors() {
        let refuse = |_: &Piece| Err(Error::data("seen"));
        let error = Ahead::look(lines("[1]\n"), &LIMITS, 1, refuse).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "seen");
        let nothing = Ahead::look(lines("[1]\n"), &LIMITS, 1, |_| Ok(()));
        assert!(nothing.is_ok());
        struct Silent(Manifest);
        impl LiveSource for Silent {
            fn manifest(&self) -> &Manifest {
                &self.0
            }
            fn can_go_back(&self) -> bool {
                false
            }
            fn open(self: Arc<Self>, _: Option<&Position>) -> Result<Box<dyn LiveReader>> {
                Ok(Box::new(Ended))
            }
        }
        struct Ended;
        impl LiveReader for Ended {
            fn next(&mut self, _: &ReadLimits) -> Result<Option<Arrived>> {
                Ok(None)
            }
        }
        let silent = Arc::new(Silent(Manifest::default()));
        let error = Ahead::look(silent, &LIMITS, 1, |_| Ok(())).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
    }
}
