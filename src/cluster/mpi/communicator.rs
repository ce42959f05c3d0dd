//! Bytes between ranks: the collectives that sums in shard order are made of.
//!
//! All of them are *collective*: every rank calls them in the same order. Sums are not MPI's: their bits would depend
//! on the number of ranks. A failure is an error with MPI's own words, of kind [`ErrorKind::RankLost`] where a rank is
//! gone; [`Communicator::shrink`] then makes a communicator of those that are left, where the library can.
//!
//! MPI counts in `int`: messages are cut below 2³¹ bytes, and the cuts follow from lengths that both ends know.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use super::abi::Handle;
use super::library::{Library, failed};
use crate::error::{ErrorKind, Result};

/// The most bytes of one call of MPI, over all ranks: below 2³¹, with room for places.
const CUT: usize = 1 << 30;
const TAG: c_int = 22;
/// How long the end of MPI may take where a rank was lost before.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// How long a launcher may take to read what a rank has said before it ended the job.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// MPI, initialised once for the process. Finalised when the last communicator is gone.
pub(super) struct Session {
    pub library: Library,
    /// Held during every call where the library serves one thread at a time.
    one_thread: Option<Mutex<()>>,
    /// A call failed, because a rank is gone and nobody shrank or for whatever reason: `MPI_Finalize` might wait for
    /// ranks that are gone, or that wait for this one.
    is_broken: AtomicBool,
    /// A rank was lost at some time, whether or not the others went on.
    has_lost: AtomicBool,
}

impl Session {
    /// Initialises MPI. One process can do so once.
    pub fn start(library: Library) -> Result<Arc<Self>> {
        let mut is_initialized = 0;
        // SAFETY: writes one integer, which is there; allowed before MPI_Init.
        library.check("MPI_Initialized", unsafe { (library.initialized)(&mut is_initialized) })?;
        if is_initialized != 0 {
            return Err(failed("MPI is in use already in this process: one cluster per process".into()));
        }
        let (wanted, mut provided) = (library.constants.thread_multiple, 0);
        // SAFETY: MPI allows null for both arguments of `main`; the last is one integer, which is there.
        let code = unsafe { (library.init_thread)(std::ptr::null_mut(), std::ptr::null_mut(), wanted, &mut provided) };
        library.check("MPI_Init_thread", code)?;
        if provided < library.constants.thread_serialized {
            let path = library.path.display();
            return Err(failed(format!("{path}: this MPI library was built without threads; use another")));
        }
        let one_thread = (provided < library.constants.thread_multiple).then(|| Mutex::new(()));
        Ok(Arc::new(Self { library, one_thread, is_broken: false.into(), has_lost: false.into() }))
    }

    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.one_thread.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if *self.is_broken.get_mut() {
            return;
        }
        let finalize = self.library.finalize;
        // SAFETY: initialised by `start`, and this is the last holder: no call is under way and none follows.
        let finalize = move || unsafe { finalize() };
        if !*self.has_lost.get_mut() {
            finalize();
            return;
        }
        // After a lost rank Open MPI 5.0 sometimes waits for it here for ever, though all work is done: a process that
        // ends without this call is better than one that does not end. The library stays loaded (`library.rs`).
        let (over, is_over) = mpsc::channel();
        let spawned = thread::Builder::new().name("anemone-mpi-end".into()).spawn(move || {
            finalize();
            let _ = over.send(());
        });
        if spawned.is_ok() {
            let _ = is_over.recv_timeout(LAST_PATIENCE);
        }
    }
}

/// Bytes that this rank has had from others, by what carried them.
#[derive(Debug, Default)]
pub struct Received {
    exchanged: AtomicU64,
    gathered: AtomicU64,
    broadcast: AtomicU64,
}

impl Received {
    /// By [`Communicator::exchange`].
    pub fn exchanged(&self) -> u64 {
        self.exchanged.load(Relaxed)
    }

    /// By [`Communicator::gather`].
    pub fn gathered(&self) -> u64 {
        self.gathered.load(Relaxed)
    }

    /// By [`Communicator::broadcast`].
    pub fn broadcast(&self) -> u64 {
        self.broadcast.load(Relaxed)
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.exchanged() + self.gathered() + self.broadcast()
    }
}

/// A group of ranks that speak to each other.
pub struct Communicator {
    session: Arc<Session>,
    handle: Handle,
    rank: usize,
    size: usize,
    /// One thread speaks at a time: collectives of one communicator have an order.
    turn: Mutex<()>,
    received: Arc<Received>,
    cut: usize,
}

impl Communicator {
    /// A communicator of all ranks, apart from `MPI_COMM_WORLD`, which belongs to nobody.
    pub(super) fn world(session: &Arc<Session>) -> Result<Self> {
        let world = session.library.constants.world;
        // Failures while it is duplicated are returned, too.
        Self::return_errors(session, world)?;
        Self::duplicate_of(session, world, Arc::default(), CUT)
    }

    /// Another communicator of the same ranks, for another thread.
    pub fn duplicate(&self) -> Result<Self> {
        if self.session.one_thread.is_some() {
            return Err(failed("this MPI library serves one thread at a time (no MPI_THREAD_MULTIPLE)".into()));
        }
        let _turn = self.turn();
        Self::duplicate_of(&self.session, self.handle, self.received.clone(), self.cut)
    }

    /// The same with messages cut at so many bytes, for tests of the cuts.
    #[doc(hidden)]
    #[must_use]
    pub fn with_cut(self, cut: usize) -> Self {
        let mut cut_elsewhere = self;
        cut_elsewhere.cut = cut.max(cut_elsewhere.size);
        cut_elsewhere
    }

    fn duplicate_of(session: &Arc<Session>, of: Handle, received: Arc<Received>, cut: usize) -> Result<Self> {
        let mut handle: Handle = 0; // eight bytes, of which MPICH writes four
        // SAFETY: a communicator of this library, and room for another.
        let code = unsafe { (session.library.comm_dup)(of, &mut handle) };
        session.library.check("MPI_Comm_dup", code)?;
        Self::around(session, handle, received, cut)
    }

    fn around(session: &Arc<Session>, handle: Handle, received: Arc<Received>, cut: usize) -> Result<Self> {
        Self::return_errors(session, handle)?;
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: a communicator of this library; writes one integer, which is there.
        session.library.check("MPI_Comm_rank", unsafe { (session.library.comm_rank)(handle, &mut rank) })?;
        // SAFETY: as above.
        session.library.check("MPI_Comm_size", unsafe { (session.library.comm_size)(handle, &mut size) })?;
        let (rank, size) = (rank as usize, size as usize);
        Ok(Self { session: session.clone(), handle, rank, size, turn: Mutex::new(()), received, cut })
    }

    fn return_errors(session: &Session, handle: Handle) -> Result<()> {
        let Library { set_errhandler, constants, .. } = session.library;
        // SAFETY: a communicator and an error handler of this library.
        session.library.check("MPI_Comm_set_errhandler", unsafe { set_errhandler(handle, constants.errors_return) })
    }

    /// Which rank this is, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What this rank has had from others so far, over all communicators made from the first.
    pub fn received(&self) -> &Received {
        &self.received
    }

    /// Where the library is and what it says of itself, for people.
    pub fn library(&self) -> String {
        let Library { version, family, path, .. } = &self.session.library;
        format!("{version} ({}, {})", path.display(), family.name())
    }

    /// Returns true if [`shrink`](Self::shrink) can replace this communicator after a rank is lost.
    pub fn can_shrink(&self) -> bool {
        self.session.library.recovery.is_some()
    }

    /// Returns true if a call failed and nothing was done about it: others may wait for this rank.
    pub fn is_broken(&self) -> bool {
        self.session.is_broken.load(Relaxed)
    }

    /// Waits until every rank is here.
    pub fn barrier(&self) -> Result<()> {
        let _turn = self.turn();
        // SAFETY: a communicator of this library.
        self.done("a barrier", unsafe { (self.session.library.barrier)(self.handle) })
    }

    /// Replaces the bytes of every rank by those of `root`. All ranks have the same number of them.
    pub fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        let _turn = self.turn();
        for piece in bytes.chunks_mut(self.cut) {
            let (start, len) = (piece.as_mut_ptr().cast::<c_void>(), piece.len() as c_int);
            let Library { bcast, constants, .. } = self.session.library;
            // SAFETY: `len` bytes that are there, and every rank names as many: the caller's part.
            self.done("a broadcast", unsafe { bcast(start, len, constants.byte, root as c_int, self.handle) })?;
        }
        if root != self.rank {
            self.received.broadcast.fetch_add(bytes.len() as u64, Relaxed);
        }
        Ok(())
    }

    /// Puts the bytes of all ranks behind one another, in the order of ranks. `lens[r]` is how many rank r has; all
    /// ranks say the same.
    pub fn gather(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<()> {
        self.check_lens("gather", Some(own.len()), lens, all.len())?;
        let _turn = self.turn();
        if self.can_shrink() && self.size > 1 {
            self.gather_or_fail(own, lens, all)?;
            self.received.gathered.fetch_add((all.len() - own.len()) as u64, Relaxed);
            return Ok(());
        }
        let cut = (self.cut / self.size).max(1);
        let starts = starts(lens);
        let rounds = lens.iter().map(|len| len.div_ceil(cut)).max().unwrap_or(0);
        let mut landed = Vec::new();
        for round in 0..rounds {
            let counts: Vec<c_int> = lens.iter().map(|&len| piece(len, round, cut) as c_int).collect();
            let mine = &own[(round * cut).min(own.len())..][..counts[self.rank] as usize];
            if rounds == 1 {
                let places: Vec<c_int> = starts.iter().map(|&start| start as c_int).collect();
                self.gather_once(mine, &counts, &places, all)?;
                break;
            }
            // Pieces of several rounds are not behind one another in the end: each round lands apart.
            landed.resize(counts.iter().map(|&count| count as usize).sum(), 0);
            let places = int_starts(&counts);
            self.gather_once(mine, &counts, &places, &mut landed)?;
            for (rank, &count) in counts.iter().enumerate() {
                let (from, to) = (places[rank] as usize, starts[rank] + round * cut);
                if count > 0 {
                    all[to..][..count as usize].copy_from_slice(&landed[from..][..count as usize]);
                }
            }
        }
        self.received.gathered.fetch_add((all.len() - own.len()) as u64, Relaxed);
        Ok(())
    }

    /// The same where a rank may be lost: everybody sends its own bytes to everybody. Open MPI's `MPI_Allgatherv`
    /// (5.0, the algorithm of small messages) gathers to the first rank and broadcasts, and drops the broadcast's code:
    /// where a rank is lost meanwhile, another is told of a success and has received nothing.
    fn gather_or_fail(&self, own: &[u8], lens: &[usize], all: &mut [u8]) -> Result<()> {
        let cut = (self.cut / self.size).max(1);
        if lens.iter().any(|&len| len > cut) {
            let sent = vec![own.len(); self.size];
            return self.exchange_long(&own.repeat(self.size), &sent, all, lens, cut);
        }
        let counts: Vec<c_int> = lens.iter().map(|&len| len as c_int).collect();
        let sent = vec![own.len() as c_int; self.size];
        // The same bytes for all: they are only read, so every message may begin at the same place.
        self.exchange_once(own, (&sent, &vec![0; self.size]), all, (&counts, &int_starts(&counts)))
    }

    fn gather_once(&self, own: &[u8], counts: &[c_int], places: &[c_int], all: &mut [u8]) -> Result<()> {
        let Library { allgatherv, constants, .. } = self.session.library;
        let byte = constants.byte;
        // SAFETY: `counts` and `places` have an element per rank and lie within `all` (`check_lens`, `starts`); `own`
        // has as many bytes as `counts` says of this rank; the buffers do not overlap, as one is borrowed mutably.
        let code = unsafe {
            allgatherv(
                start(own),
                own.len() as c_int,
                byte,
                start_mut(all),
                counts.as_ptr(),
                places.as_ptr(),
                byte,
                self.handle,
            )
        };
        self.done("a gather", code)
    }

    /// Sends to every rank its own piece. `sent[r]` bytes go to rank r, `expected[r]` come from it, in the order of
    /// ranks in both buffers. What rank a sends to b is as long as what b expects of a.
    pub fn exchange(&self, send: &[u8], sent: &[usize], receive: &mut [u8], expected: &[usize]) -> Result<()> {
        self.check_lens("exchange", None, sent, send.len())?;
        self.check_lens("exchange", None, expected, receive.len())?;
        let _turn = self.turn();
        let cut = (self.cut / self.size).max(1);
        let is_short = |lens: &[usize]| lens.iter().all(|&len| len <= cut);
        let ints = |values: &[usize]| values.iter().map(|&value| value as c_int).collect::<Vec<_>>();
        if is_short(sent) && is_short(expected) {
            let (to, from) = (ints(&starts(sent)), ints(&starts(expected)));
            self.exchange_once(send, (&ints(sent), &to), receive, (&ints(expected), &from))?;
        } else {
            self.exchange_long(send, sent, receive, expected, cut)?;
        }
        self.received.exchanged.fetch_add((receive.len() - expected[self.rank]) as u64, Relaxed);
        Ok(())
    }

    /// The beginning of every message goes in one collective call, in which all ranks take part alike; whatever is
    /// longer follows between the two that know of it.
    fn exchange_long(
        &self,
        send: &[u8],
        sent: &[usize],
        receive: &mut [u8],
        expected: &[usize],
        cut: usize,
    ) -> Result<()> {
        let (send_starts, receive_starts) = (starts(sent), starts(expected));
        let short = |lens: &[usize]| lens.iter().map(|&len| len.min(cut) as c_int).collect::<Vec<_>>();
        let (to_counts, from_counts) = (short(sent), short(expected));
        let (to, from) = (int_starts(&to_counts), int_starts(&from_counts));
        let parts = send_starts.iter().zip(&to_counts);
        let first: Vec<u8> = parts.flat_map(|(&start, &count)| &send[start..][..count as usize]).copied().collect();
        let mut landed = vec![0; from_counts.iter().map(|&count| count as usize).sum()];
        self.exchange_once(&first, (&to_counts, &to), &mut landed, (&from_counts, &from))?;
        for (rank, &count) in from_counts.iter().enumerate() {
            let piece = &landed[from[rank] as usize..][..count as usize];
            receive[receive_starts[rank]..][..count as usize].copy_from_slice(piece);
        }
        // With each distance d a ring: to rank+d, from rank-d. Every round of a ring is one call of each rank in it.
        for distance in 0..self.size {
            let (to, from) = ((self.rank + distance) % self.size, (self.rank + self.size - distance) % self.size);
            let rounds = sent[to].div_ceil(cut).max(expected[from].div_ceil(cut));
            for round in 1..rounds {
                let (out, into) = (piece(sent[to], round, cut), piece(expected[from], round, cut));
                let out = &send[send_starts[to] + (round * cut).min(sent[to])..][..out];
                let into = &mut receive[receive_starts[from] + (round * cut).min(expected[from])..][..into];
                self.pass_on(out, to, into, from)?;
            }
        }
        Ok(())
    }

    fn exchange_once(
        &self,
        send: &[u8],
        (sent, to): (&[c_int], &[c_int]),
        receive: &mut [u8],
        (expected, from): (&[c_int], &[c_int]),
    ) -> Result<()> {
        let Library { alltoallv, constants, .. } = self.session.library;
        let byte = constants.byte;
        // SAFETY: counts and places have an element per rank and lie within their buffers (`check_lens`, `starts`); the
        // buffers do not overlap, as one is borrowed mutably.
        let code = unsafe {
            alltoallv(
                start(send),
                sent.as_ptr(),
                to.as_ptr(),
                byte,
                start_mut(receive),
                expected.as_ptr(),
                from.as_ptr(),
                byte,
                self.handle,
            )
        };
        self.done("an exchange", code)
    }

    /// One message to one rank while one comes from another; an empty one is not sent.
    fn pass_on(&self, out: &[u8], to: usize, into: &mut [u8], from: usize) -> Result<()> {
        let Library { sendrecv, constants, .. } = self.session.library;
        let partner = |len: usize, rank: usize| if len == 0 { constants.no_rank } else { rank as c_int };
        let (to, from) = (partner(out.len(), to), partner(into.len(), from));
        let mut status = [0u64; 16]; // more than any library's MPI_Status
        // SAFETY: both buffers have as many bytes as are announced and do not overlap, as one is borrowed mutably.
        let code = unsafe {
            sendrecv(
                start(out),
                out.len() as c_int,
                constants.byte,
                to,
                TAG,
                start_mut(into),
                into.len() as c_int,
                constants.byte,
                from,
                TAG,
                self.handle,
                status.as_mut_ptr().cast(),
            )
        };
        self.done("an exchange", code)
    }

    /// A communicator of the ranks that are left after one is gone, in the order they had. Every one of them calls it;
    /// those that have not noticed yet are woken by an error of kind [`ErrorKind::RankLost`].
    pub fn shrink(&self) -> Result<Self> {
        let Some(recovery) = self.session.library.recovery else {
            return Err(failed("a rank is gone, and this MPI cannot go on without it".into()));
        };
        let _turn = self.turn();
        // SAFETY: a communicator of this library. A second revocation of the same communicator does nothing.
        self.session.library.check("MPIX_Comm_revoke", unsafe { (recovery.revoke)(self.handle) })?;
        let mut handle: Handle = 0;
        // SAFETY: a communicator of this library, and room for another.
        let code = unsafe { (recovery.shrink)(self.handle, &mut handle) };
        self.session.library.check("MPIX_Comm_shrink", code)?;
        let left = Self::around(&self.session, handle, self.received.clone(), self.cut)?;
        self.session.is_broken.store(left.size == self.size, Relaxed);
        if left.size == self.size {
            return Err(failed("a call of MPI failed though no rank is gone".into()));
        }
        Ok(left)
    }

    /// Ends all ranks at once, this one included. Say first why: the launcher is given a moment to pass it on, without
    /// which Open MPI's sometimes loses the last lines of a rank.
    pub fn abort(&self, code: i32) -> ! {
        thread::sleep(LAST_WORDS);
        // SAFETY: a communicator of this library. Not within a turn: another thread may be waiting in a collective.
        unsafe { (self.session.library.abort)(self.session.library.constants.world, code) };
        std::process::exit(code)
    }

    fn turn(&self) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        (self.turn.lock().unwrap_or_else(PoisonError::into_inner), self.session.turn())
    }

    fn done(&self, what: &str, code: c_int) -> Result<()> {
        let done = self.session.library.check(what, code);
        if done.is_err() {
            self.session.is_broken.store(true, Relaxed);
        }
        if done.as_ref().is_err_and(|error| error.kind() == ErrorKind::RankLost) {
            self.session.has_lost.store(true, Relaxed);
            if let Some(recovery) = self.session.library.recovery {
                // Now, while the buffers of this call are there: what is still on its way into them is given up. It
                // also wakes the others. SAFETY: a communicator of this library.
                unsafe { (recovery.revoke)(self.handle) };
            }
        }
        done
    }

    fn check_lens(&self, what: &str, own: Option<usize>, lens: &[usize], total: usize) -> Result<()> {
        let is_right = lens.len() == self.size
            && own.is_none_or(|own| own == lens[self.rank])
            && lens.iter().sum::<usize>() == total;
        let (size, ranks) = (self.size, lens.len());
        let wrong = || crate::Error::internal(format!("{what}: lengths of {ranks} ranks do not fit {size} ranks"));
        if is_right { Ok(()) } else { Err(wrong()) }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.session.is_broken.load(Relaxed) {
            let _turn = self.turn();
            let mut handle = self.handle;
            // SAFETY: made by `duplicate_of` or `shrink`, and used no more.
            unsafe { (self.session.library.comm_free)(&mut handle) };
        }
    }
}

/// Where bytes begin. No bytes begin at address 1 in Rust, which is `MPI_IN_PLACE` in two of three families.
fn start(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { std::ptr::from_ref(&NOTHING).cast() } else { bytes.as_ptr().cast() }
}

fn start_mut(bytes: &mut [u8]) -> *mut c_void {
    // Nothing is written to where there is no room.
    if bytes.is_empty() { std::ptr::from_ref(&NOTHING).cast_mut().cast() } else { bytes.as_mut_ptr().cast() }
}

static NOTHING: u64 = 0;

/// The bytes of numbers, as they are in memory.
pub(super) fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: `Plain` numbers have no padding, any byte may be read, and the length is theirs.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The same, to be written.
pub(super) fn bytes_of_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes make a `Plain` number; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// Numbers whose bytes travel as they are.
///
/// # Safety
/// There is no padding, and every pattern of bits is a value.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: four bytes, all patterns are values.
unsafe impl Plain for f32 {}
// SAFETY: eight bytes, all patterns are values.
unsafe impl Plain for f64 {}

/// Where each piece begins when they are behind one another.
fn starts(lens: &[usize]) -> Vec<usize> {
    let add = |at: &mut usize, &len: &usize| {
        let start = *at;
        *at += len;
        Some(start)
    };
    lens.iter().scan(0, add).collect()
}

fn int_starts(counts: &[c_int]) -> Vec<c_int> {
    let lens: Vec<usize> = counts.iter().map(|&count| count as usize).collect();
    starts(&lens).into_iter().map(|start| start as c_int).collect()
}

/// How much of a message of `len` bytes is left for a round, when each takes `cut`.
fn piece(len: usize, round: usize, cut: usize) -> usize {
    len.saturating_sub(round * cut).min(cut)
}
