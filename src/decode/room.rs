//! Memory that all workers of a run share while they decode.
//!
//! What a record becomes while it is decoded can be a thousand times as large as the record. Each worker takes room for
//! it before and gives it back when its rows are made, and waits while the others have it; so what is being decoded
//! does not grow with the number of workers. Something larger than all the room is let in alone: its taker has checked
//! that it may be so large. A worker never takes twice without giving back, so no worker waits without end. Used by
//! `image`.

use std::sync::{Condvar, Mutex, PoisonError};

/// A number of bytes that may be in use at once.
#[derive(Debug)]
pub(super) struct Room {
    bytes: u64,
    used: Mutex<u64>,
    /// Rung whenever bytes come back.
    freed: Condvar,
}

/// Room that was taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    bytes: u64,
    room: &'a Room,
}

impl Room {
    /// So many bytes.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, used: Mutex::new(0), freed: Condvar::new() }
    }

    /// Waits until `bytes` fit, or until nothing else is in use.
    pub fn take(&self, bytes: u64) -> Taken<'_> {
        let full = |used: &mut u64| *used > 0 && used.saturating_add(bytes) > self.bytes;
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used = self.freed.wait_while(used, full).unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_add(bytes);
        Taken { bytes, room: self }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut used = self.room.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(self.bytes);
        drop(used);
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn workers_together_never_use_more_than_there_is_and_all_come_to_an_end() {
        let (room, used, most) = (Room::new(100), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|threads| {
            for worker in 0..4u64 {
                let (room, used, most) = (&room, &used, &most);
                threads.spawn(move || {
                    for step in 0..200 {
                        let bytes = [30, 60, 100, 10][(worker as usize + step) % 4];
                        let _taken = room.take(bytes);
                        most.fetch_max(used.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                        used.fetch_sub(bytes, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 100);
        drop(room.take(1000)); // alone
        drop(room.take(100));
    }
}
