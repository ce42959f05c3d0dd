//! Files as memory, read-only: the one door to `memmap2`.
//!
//! A mapping costs address space, not memory: the kernel reads pages when they are touched and drops them when it needs
//! room. Two things about that surprise people, and both are dealt with here:
//!
//! * Touched pages count as resident memory of the process, so reading a large file looks like a leak.
//!   [`Mapped::append_to`] says how much it touched, and [`Mapped::release`] hands pages back; the kernel's cache of
//!   the file keeps them, so that the next touch finds them.
//! * A file that becomes shorter while it is mapped, or whose disk fails, raises SIGBUS where its lost part is touched.
//!   On Linux `bus_error` makes zeros of that part instead of ending the process. The end of the last page that is left
//!   reads as zeros too, without a signal. [`Mapped::check`], after each round of reading, finds both: what was read is
//!   thrown away, and the run ends with an error. Do not rewrite a file in place while it is read: write another and
//!   rename it.
//!
//! No order is announced to the kernel (`Advice::Random`, `Advice::Sequential`): its own read-ahead notices rows in
//! order, and for shuffled rows reading around each one soon has a file that fits into memory in the cache, where
//! `Random` would fetch it page by page. Used by `concatenated`, for `tokens` and `npy`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use super::FileEntry;
#[cfg(target_os = "linux")]
use super::bus_error::Region;
use crate::data::Digest;
use crate::error::{Error, Result};

/// How much of a file's beginning and end goes into its digest.
const DIGEST_BYTES: usize = 64 << 10;

/// Most that the kernel maps at one touch, where it has it in its cache already: a huge page.
pub(super) const TOUCH_BYTES: usize = 2 << 20;

/// A file that is read as memory.
#[derive(Debug)]
pub(super) struct Mapped {
    /// The path as it was given, for messages.
    name: Arc<str>,
    /// Kept open to ask for its length again.
    file: File,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    /// Knows whether a part of the mapping was lost; `None` for an empty file.
    #[cfg(target_os = "linux")]
    region: Option<&'static Region>,
    /// Which stretches of [`TOUCH_BYTES`] were touched since pages were last handed back, a bit each: rows in any order
    /// count a stretch once, and a small file never for more than there is of it.
    touched: Vec<AtomicU64>,
}

impl Mapped {
    /// Maps a whole file.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let read_error = |e: io::Error| Error::io_at(&name, &e);
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = std::fs::metadata(path).map_err(read_error)?.file_type();
        if kind.is_dir() {
            return Err(Error::missing_path(format!(
                "{name}: is a directory: name the files in it, such as {name}/*.bin"
            )));
        }
        if !kind.is_file() {
            return Err(Error::missing_path(format!(
                "{name}: is not a regular file, so it cannot be read in any order"
            )));
        }
        let file = File::open(path).map_err(read_error)?;
        let length = file.metadata().map_err(read_error)?.len();
        if usize::try_from(length).is_err() {
            return Err(Error::data(format!("{name}: {length} bytes are more than this machine can address")));
        }
        let map = if length == 0 {
            None
        } else {
            // SAFETY: a mapping must not change while it is borrowed. This process maps the file read-only and never
            // writes it, so only another process could, which the module documentation forbids. Where it happens all
            // the same, the bytes are only copied or parsed as plain integers (`bytes`, `append_to`), for which any
            // content will do, and `check` looks for a file that was shortened. Pages that are lost are replaced by
            // zeros (`bus_error`).
            Some(unsafe { Mmap::map(&file) }.map_err(read_error)?)
        };
        let stretches = (length as usize).div_ceil(TOUCH_BYTES);
        let touched = (0..stretches.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            name: name.into(),
            file,
            #[cfg(target_os = "linux")]
            region: map.as_deref().map(Region::watch),
            map,
            touched,
        })
    }

    /// The path, for messages.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Bytes it had when it was opened.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Refuses a file that has become shorter, or a part of which could not be read. To be called after each round of
    /// reading, before what was read is used.
    pub fn check(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|e| Error::io_at(&*self.name, &e))?.len();
        if now < self.len() as u64 {
            let fact = format!(
                "shrank while it was read: it had {} bytes and now has {now}; do not rewrite a file while it is read, \
                 write another and rename it",
                self.len()
            );
            return Err(Error::io_at(&*self.name, &io::Error::new(io::ErrorKind::UnexpectedEof, fact)));
        }
        if self.is_lost() {
            let fact = "a part of it could not be read: it shrank while it was read and grew again, or its disk failed";
            return Err(Error::io_at(&*self.name, &io::Error::other(fact)));
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn is_lost(&self) -> bool {
        self.region.is_some_and(Region::is_lost)
    }

    #[cfg(not(target_os = "linux"))]
    fn is_lost(&self) -> bool {
        false
    }

    /// Copies some bytes to the end of a buffer. Returns by how much resident memory may have grown.
    pub fn append_to(&self, range: Range<usize>, buffer: &mut Vec<u8>) -> usize {
        buffer.extend_from_slice(&self.bytes()[range.clone()]);
        if range.is_empty() {
            return 0;
        }
        // After the touch: a thread that hands pages back in between counts too much, never too little.
        let is_new = |stretch: &usize| {
            let bit = 1 << (stretch % 64);
            self.touched[stretch / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
        };
        (range.start / TOUCH_BYTES..=(range.end - 1) / TOUCH_BYTES).filter(is_new).count() * TOUCH_BYTES
    }

    /// Hands all pages back to the kernel, if any was touched since the last time.
    pub fn release(&self) {
        let mut is_touched = false;
        for stretches in &self.touched {
            is_touched |= stretches.swap(0, Ordering::Relaxed) != 0;
        }
        if is_touched {
            self.hand_back();
        }
    }

    fn hand_back(&self) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            // SAFETY: on Linux this makes anonymous and private memory forget what was written to it. This mapping is
            // of a file, shared and read-only (`Mmap::map` in `open`): nothing was written, and the next touch, by any
            // thread, finds the file's bytes again. A failure leaves pages where they are.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }

    /// What a manifest says of the file: its name without the folder, its size, a digest of its first and last 64 KiB.
    pub fn entry(&self) -> FileEntry {
        let (bytes, ends) = (self.bytes(), self.len().min(DIGEST_BYTES));
        let digest = Digest::new().part(&bytes[..ends]).part(&bytes[bytes.len() - ends..]).finish();
        self.hand_back(); // a thousand files would keep a huge page or two each
        FileEntry { name: file_name(&self.name), bytes: bytes.len() as u64, digest }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mapped {
    fn drop(&mut self) {
        // Before the mapping goes: what is mapped at its place later is not ours.
        if let Some(region) = self.region {
            region.forget();
        }
    }
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_copy_in_another_folder_has_the_same_entry_and_a_change_at_either_end_shows() {
        let folder = tempfile::tempdir().unwrap();
        let write = |place: &str, bytes: &[u8]| {
            let path = folder.path().join(place).join("a.bin");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            Mapped::open(&path).unwrap().entry()
        };
        let mut bytes = vec![7; 200_000];
        let entry = write("here", &bytes);
        assert_eq!((entry.name.as_str(), entry.bytes), ("a.bin", 200_000));
        assert_eq!(entry, write("there", &bytes));
        for at in [0, DIGEST_BYTES - 1, 200_000 - DIGEST_BYTES, 199_999] {
            bytes[at] = 8;
            assert_ne!(entry.digest, write("there", &bytes).digest, "byte {at}");
            bytes[at] = 7;
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Mapped::open(folder.path()).unwrap_err();
        assert!(error.to_string().ends_with("/*.bin") && error.to_string().contains("is a directory"), "{error}");
        let error = Mapped::open(&folder.path().join("none.bin")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Path);
        assert!(error.to_string().contains("none.bin"), "{error}");
        let empty = folder.path().join("empty.bin");
        File::create(&empty).unwrap();
        assert_eq!(Mapped::open(&empty).unwrap().bytes(), b"");
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error_and_a_longer_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::write(&path, [1; 100]).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(120).unwrap();
        mapped.check().unwrap();
        file.set_len(99).unwrap();
        let error = mapped.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("shrank while it was read: it had 100 bytes and now has 99"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_part_that_is_lost_reads_as_zeros_and_is_an_error_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let bytes = vec![7; 100_000];
        std::fs::write(&path, &bytes).unwrap();
        let (mapped, other) = (Mapped::open(&path).unwrap(), Mapped::open(&path).unwrap());
        let read = |mapped: &Mapped| {
            let mut buffer = Vec::new();
            mapped.append_to(0..100_000, &mut buffer);
            buffer
        };
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(10_000).unwrap();
        let lost = read(&mapped);
        assert!(lost[..10_000] == bytes[..10_000] && lost[10_000..].iter().all(|&byte| byte == 0));
        assert!(mapped.check().unwrap_err().to_string().contains("shrank while it was read"));
        file.set_len(100_000).unwrap();
        assert!(mapped.check().unwrap_err().to_string().contains("could not be read"), "what was read is no less lost");
        other.check().unwrap(); // the same file, mapped apart and never read while it was short
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| assert_eq!(read(&other).len(), 100_000));
            }
        });
        drop(mapped);
        assert_eq!(read(&Mapped::open(&path).unwrap())[..10_000], bytes[..10_000]);
    }

    #[test]
    fn rows_count_what_they_touch_once_until_it_is_handed_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        File::create(&path).unwrap().set_len(3 * TOUCH_BYTES as u64).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        let touch = |range| mapped.append_to(range, &mut Vec::new());
        let in_order: usize = (0..3 * TOUCH_BYTES).step_by(4096).map(|start| touch(start..start + 4096)).sum();
        assert_eq!(in_order, 3 * TOUCH_BYTES);
        assert_eq!((touch(0..1), touch(2 * TOUCH_BYTES..2 * TOUCH_BYTES + 1), touch(1..2)), (0, 0, 0));
        mapped.release();
        assert_eq!(touch(TOUCH_BYTES..TOUCH_BYTES + 1), TOUCH_BYTES);
        assert_eq!(touch(TOUCH_BYTES - 1..TOUCH_BYTES + 1), TOUCH_BYTES, "one of two is known");
        assert_eq!(touch(5..5), 0);
        assert_eq!(touch(0..3 * TOUCH_BYTES), TOUCH_BYTES, "two of three are known");
    }
}
