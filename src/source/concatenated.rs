//! Mapped files read as if they were one.
//!
//! Fixed-size rows are cut out of the concatenation of all files (of what follows their headers), so a row may begin in
//! one file and end in the next. Row numbers count through all of them; so do messages, which name the first and the
//! last file where there are several. Used by `tokens` and `npy`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::FileEntry;
use super::mapped::Mapped;
use crate::error::{Error, Result};

/// Pages are handed back to the kernel when this much of all files may be resident.
const RELEASE_BYTES: usize = 32 << 20;

/// Files one after the other.
#[derive(Debug)]
pub(super) struct Concatenated {
    parts: Vec<Part>,
    /// All files together, for messages.
    label: Arc<str>,
    /// By how much resident memory may have grown since pages were last handed back.
    touched: AtomicUsize,
}

/// One file.
#[derive(Debug)]
struct Part {
    file: Mapped,
    /// Where its data begins.
    data: usize,
    /// Where its data begins and ends in the concatenation.
    start: u64,
    end: u64,
}

impl Concatenated {
    /// Files in this order, each with the byte where its data begins, which is inside it.
    pub fn new(files: Vec<(Mapped, usize)>) -> Self {
        let label = match files.as_slice() {
            [] => "no file".into(),
            [(file, _)] => file.name().clone(),
            [(first, _), .., (last, _)] => {
                format!("{} to {} ({} files read as one)", first.name(), last.name(), files.len()).into()
            }
        };
        let mut start = 0;
        let part = |(file, data): (Mapped, usize)| {
            let end = start + (file.len() - data) as u64; // mappings share one address space, so their sum fits
            let part = Part { file, data, start, end };
            start = end;
            part
        };
        Self { parts: files.into_iter().map(part).collect(), label, touched: AtomicUsize::new(0) }
    }

    /// Bytes of all data.
    pub fn len(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// All files together, for messages.
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// What a manifest says of the files.
    pub fn entries(&self) -> Vec<FileEntry> {
        self.parts.iter().map(|part| part.file.entry()).collect()
    }

    /// The bytes of some rows of `row_bytes` each, in the given order.
    pub fn gather(&self, rows: &[u64], row_bytes: usize) -> Result<Vec<u8>> {
        let num_rows = self.len() / row_bytes as u64;
        if let Some(row) = rows.iter().find(|&&row| row >= num_rows) {
            return Err(Error::data(format!("{}: row {row} is outside 0..{num_rows}", self.label)));
        }
        let mut is_read = vec![false; self.parts.len()];
        let mut bytes = Vec::with_capacity(rows.len() * row_bytes);
        for row in rows {
            let mut start = row * row_bytes as u64;
            let end = start + row_bytes as u64;
            let mut index = self.parts.partition_point(|part| part.end <= start);
            while start < end {
                let part = &self.parts[index];
                is_read[index] = true;
                let stop = end.min(part.end);
                let at = |place: u64| part.data + (place - part.start) as usize;
                self.count(part.file.append_to(at(start)..at(stop), &mut bytes));
                start = stop;
                index += 1;
            }
        }
        // Once per gather, not once per row: it asks the file system. And afterwards: before, it would say nothing of
        // these bytes.
        self.parts.iter().zip(is_read).filter(|(_, is_read)| *is_read).try_for_each(|(part, _)| part.file.check())?;
        Ok(bytes)
    }

    /// Hands pages back now and then, so that resident memory does not grow with what was read.
    fn count(&self, touched: usize) {
        if self.touched.fetch_add(touched, Ordering::Relaxed) + touched >= RELEASE_BYTES {
            self.touched.store(0, Ordering::Relaxed);
            self.parts.iter().for_each(|part| part.file.release());
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::super::mapped::TOUCH_BYTES;
    use super::*;

    /// Bytes of a mapping that are resident.
    fn resident(file: &Mapped) -> usize {
        let start = format!("{:x}-", file.bytes().as_ptr() as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        1024 * rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    }

    #[test]
    fn a_small_file_is_not_handed_back_in_whatever_order_it_is_read() {
        const ROW: usize = 4096;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::fs::File::create(&path).unwrap().set_len(3 * TOUCH_BYTES as u64).unwrap();
        let files = Concatenated::new(vec![(Mapped::open(&path).unwrap(), 0)]);
        let num_rows = files.len() / ROW as u64;
        for row in (0..num_rows).map(|row| row * 937 % num_rows) {
            files.gather(&[row], ROW).unwrap();
            assert!(files.touched.load(Ordering::Relaxed) <= 3 * TOUCH_BYTES, "row {row} counts what is there already");
        }
        assert_eq!(files.touched.load(Ordering::Relaxed), 3 * TOUCH_BYTES);
    }

    #[test]
    fn resident_memory_stays_bounded_however_much_is_read() {
        const ROW: usize = 64 << 10;
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = folder.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(RELEASE_BYTES as u64 * 3 / 2).unwrap();
            (Mapped::open(&path).unwrap(), 0)
        };
        let files = Concatenated::new(vec![open("a.bin"), open("b.bin")]);
        let all_resident = || files.parts.iter().map(|part| resident(&part.file)).sum::<usize>();
        files.entries();
        assert_eq!(all_resident(), 0);
        let num_rows = files.len() / ROW as u64;
        let mut most = 0;
        // In order, which makes the kernel gather its cache into huge pages; then each row far from the last.
        for row in (0..num_rows).chain((0..num_rows / 4).map(|row| row * 37 % num_rows)) {
            assert!(files.gather(&[row], ROW).unwrap().iter().all(|&byte| byte == 0));
            if row % 16 == 0 {
                most = most.max(all_resident());
            }
        }
        assert!(most > 0 && most <= RELEASE_BYTES + TOUCH_BYTES, "{most} bytes");
    }
}
