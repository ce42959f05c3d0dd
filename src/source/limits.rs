//! How much of a source may be in memory at once.
//!
//! A file says how long its parts are before they are read, and a damaged or malicious one says anything: a kilobyte
//! can promise a terabyte, and a compressed kilobyte can even keep the promise. So every reader compares what is
//! declared with these limits *before* it allocates or decompresses. They come from the memory of the run,
//! `pipeline.memory`, so that a user who has such large records can allow them. Made by `pipeline`, kept by the
//! sources.

/// However small the memory of a run is, parts of this size are read: writers of Parquet and Arrow make them without
/// being asked.
const LEAST_PART_BYTES: u64 = 32 << 20;

/// What a source may put into memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// About how large a piece should be.
    pub piece_bytes: usize,
    /// The largest part that can only be read as a whole: a page, a message, with what it decompresses to.
    pub part_bytes: u64,
    /// The largest record. A larger one is bad, and is not read.
    pub record_bytes: u64,
}

impl ReadLimits {
    /// The limits of a run with so much memory: half of it for a part, a quarter for a record.
    pub fn of_memory(piece_bytes: usize, memory: u64) -> Self {
        let part_bytes = (memory / 2).max(LEAST_PART_BYTES);
        Self { piece_bytes, part_bytes, record_bytes: part_bytes / 2 }
    }

    /// Why a record of so many bytes is bad, if it is.
    pub(super) fn check_record(&self, bytes: u64) -> Result<(), String> {
        if bytes <= self.record_bytes {
            return Ok(());
        }
        let most = mebibytes(self.record_bytes);
        Err(format!(
            "a record of {} is more than the {most} that one may take: raise pipeline.memory",
            mebibytes(bytes)
        ))
    }

    /// Why a part of so many bytes, such as `a page`, cannot be read, if it cannot.
    pub(super) fn check_part(&self, what: &str, bytes: u64) -> Result<(), String> {
        if bytes <= self.part_bytes {
            return Ok(());
        }
        let most = mebibytes(self.part_bytes);
        Err(format!(
            "{what} takes {} in memory, more than the {most} that one may take: it is damaged, or pipeline.memory is \
             to be raised",
            mebibytes(bytes)
        ))
    }
}

/// A size in words; rounded up, so that what is too large never looks as if it fitted.
fn mebibytes(bytes: u64) -> String {
    match bytes {
        0..=0xf_ffff => format!("{bytes} bytes"),
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_memory_but_ordinary_parts_are_always_read() {
        let limits = ReadLimits::of_memory(1, 1 << 30);
        assert_eq!((limits.part_bytes, limits.record_bytes), (512 << 20, 256 << 20));
        let small = ReadLimits::of_memory(1, 1 << 20);
        assert_eq!((small.part_bytes, small.record_bytes), (LEAST_PART_BYTES, LEAST_PART_BYTES / 2));
        assert!(small.check_part("a page", LEAST_PART_BYTES).is_ok() && small.check_record(16 << 20).is_ok());
        let why = small.check_record((16 << 20) + 1).unwrap_err();
        assert_eq!(why, "a record of 17 MiB is more than the 16 MiB that one may take: raise pipeline.memory");
        assert!(small.check_part("a page", u64::MAX).unwrap_err().starts_with("a page takes 17592186044416 MiB"));
    }
}
