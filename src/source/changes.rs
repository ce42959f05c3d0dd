//! Waits until something changes in a folder.
//!
//! On Linux the kernel says so at once; elsewhere, and where the kernel will not (too many watches, a network disk),
//! the folder counts as changed every [`POLL`]. Either way a change is a reason to look, not a promise: whoever waits
//! looks at the files themselves, and looks now and then without being told, since a folder on a network may change
//! unseen. The door of `inotify`. Used by `follow`, and by whoever watches a folder that gets files.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// How often a folder is looked at where the kernel does not say when.
const POLL: Duration = Duration::from_millis(250);

/// Changes of one folder: files in it that are written, made, moved or deleted.
#[derive(Debug)]
pub(super) struct Changes {
    #[cfg(target_os = "linux")]
    watch: Option<linux::Watch>,
}

impl Changes {
    /// Watches a folder from now on. One that cannot be watched is looked at now and then instead.
    pub(super) fn watch(folder: &Path) -> Self {
        #[cfg(target_os = "linux")]
        return Self { watch: linux::Watch::new(folder).ok() };
        #[cfg(not(target_os = "linux"))]
        {
            let _ = folder;
            Self {}
        }
    }

    /// Names of files that were moved into the folder since this was called last: a rename is whole at once.
    pub(super) fn take_moved(&self) -> HashSet<String> {
        #[cfg(target_os = "linux")]
        if let Some(watch) = &self.watch {
            return watch.take_moved();
        }
        HashSet::new()
    }

    /// Waits for a change, at most so long. Returns true if something may have changed since the last call.
    pub(super) fn wait(&mut self, timeout: Duration) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(watch) = &self.watch {
            match watch.wait(timeout) {
                linux::Seen::Change => return true,
                linux::Seen::Nothing => return false,
                linux::Seen::End => self.watch = None, // the folder is gone, or another one is mounted there
            }
        }
        std::thread::sleep(timeout.min(POLL));
        true
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashSet;
    use std::io::ErrorKind;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};

    /// A thread that reads the kernel's events: it ends with its watch, whoever takes that away.
    pub(super) struct Watch {
        watches: Watches,
        folder: WatchDescriptor,
        changes: Receiver<()>,
        moved: Arc<Mutex<HashSet<String>>>,
    }

    /// Names that are kept for whoever asks. Somebody who never does has no use for more.
    const MOST_MOVED: usize = 10_000;

    pub(super) enum Seen {
        Change,
        Nothing,
        /// There are no more events.
        End,
    }

    impl Watch {
        pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
            let inotify = Inotify::init()?;
            let mut watches = inotify.watches();
            let mask = WatchMask::MODIFY
                | WatchMask::CLOSE_WRITE
                | WatchMask::CREATE
                | WatchMask::DELETE
                | WatchMask::MOVE
                | WatchMask::ATTRIB
                | WatchMask::ONLYDIR;
            let folder = watches.add(folder, mask)?;
            let (sender, changes) = sync_channel(1);
            let moved = Arc::new(Mutex::new(HashSet::new()));
            let seen = moved.clone();
            std::thread::Builder::new().name("changes".into()).spawn(move || read_events(inotify, &sender, &seen))?;
            Ok(Self { watches, folder, changes, moved })
        }

        pub(super) fn take_moved(&self) -> HashSet<String> {
            std::mem::take(&mut self.moved.lock().unwrap_or_else(PoisonError::into_inner))
        }

        pub(super) fn wait(&self, timeout: Duration) -> Seen {
            match self.changes.recv_timeout(timeout) {
                Ok(()) => Seen::Change,
                Err(RecvTimeoutError::Timeout) => Seen::Nothing,
                Err(RecvTimeoutError::Disconnected) => Seen::End,
            }
        }
    }

    #[cfg(test)]
    impl Watch {
        /// What the thread sends to, so that a test can see it end.
        pub(super) fn replace_receiver(&mut self, other: Receiver<()>) -> Receiver<()> {
            std::mem::replace(&mut self.changes, other)
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            // Without a watch the kernel says so, once; that ends the thread. If it is gone already, so is the thread.
            let _gone = self.watches.remove(self.folder.clone());
        }
    }

    impl std::fmt::Debug for Watch {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Watch")
        }
    }

    fn read_events(mut inotify: Inotify, changes: &SyncSender<()>, moved: &Mutex<HashSet<String>>) {
        let mut buffer = [0; 4096];
        loop {
            let is_over = match inotify.read_events_blocking(&mut buffer) {
                Ok(events) => {
                    let mut is_over = false;
                    for event in events {
                        is_over |= event.mask.contains(EventMask::IGNORED);
                        note_moved(event.mask, event.name, &mut moved.lock().unwrap_or_else(PoisonError::into_inner));
                    }
                    is_over
                }
                Err(error) => error.kind() != ErrorKind::Interrupted,
            };
            // A change that is told and not yet looked at stands for this one, too.
            if matches!(changes.try_send(()), Err(TrySendError::Disconnected(()))) || is_over {
                return;
            }
        }
    }

    /// A file that is written to under its name is not whole any more for having been moved there.
    fn note_moved(mask: EventMask, name: Option<&std::ffi::OsStr>, moved: &mut HashSet<String>) {
        let Some(name) = name.and_then(|name| name.to_str()).filter(|_| !mask.contains(EventMask::ISDIR)) else {
            return;
        };
        if mask.contains(EventMask::MOVED_TO) && moved.len() < MOST_MOVED {
            moved.insert(name.to_string());
        } else if mask.intersects(EventMask::MODIFY | EventMask::CREATE) {
            moved.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_change_is_noticed_at_once_and_quiet_lasts_as_long_as_asked() {
        let folder = tempfile::tempdir().unwrap();
        let mut changes = Changes::watch(folder.path());
        let begun = Instant::now();
        let quiet = changes.wait(Duration::from_millis(60));
        assert!(begun.elapsed() >= Duration::from_millis(50));
        assert!(!quiet || !cfg!(target_os = "linux"));
        let file = folder.path().join("a");
        for change in 0..4 {
            match change {
                0 => std::fs::write(&file, "x").unwrap(),
                1 => std::fs::write(&file, "xy").unwrap(),
                2 => std::fs::rename(&file, folder.path().join("b")).unwrap(),
                _ => std::fs::remove_file(folder.path().join("b")).unwrap(),
            }
            let begun = Instant::now();
            assert!(changes.wait(Duration::from_secs(20)), "change {change}");
            assert!(begun.elapsed() < Duration::from_secs(10));
            while changes.wait(Duration::from_millis(30)) && cfg!(target_os = "linux") {}
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn files_that_were_moved_there_are_named_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("elsewhere")).unwrap();
        for name in ["elsewhere/a", "elsewhere/b", "elsewhere/c"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let mut changes = Changes::watch(folder.path());
        std::fs::rename(at("elsewhere/a"), at("a")).unwrap();
        std::fs::rename(at("elsewhere/b"), at("b")).unwrap();
        std::fs::write(at("b"), "and written to").unwrap();
        std::fs::copy(at("elsewhere/c"), at("c")).unwrap();
        std::fs::rename(at("elsewhere"), at("folder")).unwrap();
        while changes.wait(Duration::from_millis(200)) {}
        assert_eq!(changes.take_moved(), ["a".to_string()].into());
        assert!(changes.take_moved().is_empty());
    }

    #[test]
    fn a_folder_that_goes_or_never_was_is_still_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let mut gone = Changes::watch(folder.path());
        let mut never = Changes::watch(&folder.path().join("never"));
        drop(folder);
        for changes in [&mut gone, &mut never] {
            for _ in 0..3 {
                assert!(changes.wait(Duration::from_millis(300)));
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_watch_that_is_dropped_takes_its_thread_with_it() {
        let folder = tempfile::tempdir().unwrap();
        // Its thread holds the sender, so a closed channel is a thread that has ended.
        let mut watch = linux::Watch::new(folder.path()).unwrap();
        let (_, closed) = std::sync::mpsc::sync_channel(1);
        let changes = watch.replace_receiver(closed);
        drop(watch);
        let begun = Instant::now();
        while changes.recv_timeout(Duration::from_millis(50)) != Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {
            assert!(begun.elapsed() < Duration::from_secs(20), "the thread waits on");
        }
    }
}
