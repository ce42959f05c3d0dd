//! Memory as a budget in bytes.
//!
//! Whoever brings bytes into the pipeline takes them from a [`ByteBudget`] first and waits if there are none left; the
//! [`Held`] travels with the data and gives them back when it is dropped. Something larger than the whole budget is let
//! in alone rather than never. Takers are served in the order of their calls as long as each waits for its predecessor,
//! which is how `stream` uses it: one taker a budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A number of bytes that may be in use at once.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: u64,
    state: Mutex<State>,
    /// Rung whenever bytes come back or the budget is closed.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    /// The most that was ever in use.
    peak: u64,
    closed: bool,
}

/// Bytes taken from a budget until this is dropped.
#[derive(Debug)]
pub struct Held {
    bytes: u64,
    inner: Arc<Inner>,
}

impl ByteBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { inner: Arc::new(Inner { limit, state: Mutex::default(), freed: Notify::new() }) }
    }

    /// Waits until `bytes` fit, or until nothing else is in use. `None` once the budget is closed.
    pub async fn take(&self, bytes: u64) -> Option<Held> {
        loop {
            // Listen before looking: bytes that come back in between must not be missed.
            let freed = self.inner.freed.notified();
            {
                let mut state = self.inner.lock();
                if state.closed {
                    return None;
                }
                if state.used == 0 || state.used.saturating_add(bytes) <= self.inner.limit {
                    state.add(bytes);
                    return Some(Held { bytes, inner: self.inner.clone() });
                }
            }
            freed.await;
        }
    }

    /// Wakes everyone who waits, with nothing.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.inner.freed.notify_waiters();
        self.inner.freed.notify_one();
    }

    /// Bytes in use now.
    pub fn used(&self) -> u64 {
        self.inner.lock().used
    }

    /// The most bytes that were ever in use.
    pub fn peak(&self) -> u64 {
        self.inner.lock().peak
    }
}

impl Held {
    /// The data changed its size on the way. May overdraw the budget: whoever comes next waits longer.
    pub fn resize(&mut self, bytes: u64) {
        let mut state = self.inner.lock();
        state.used -= self.bytes;
        state.add(bytes);
        self.bytes = bytes;
        drop(state);
        self.inner.freed.notify_one();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inner.lock().used -= self.bytes;
        self.inner.freed.notify_one();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The numbers are right even if another thread panicked: they change in one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, bytes: u64) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_refused(budget: &ByteBudget, bytes: u64) -> bool {
        tokio::time::timeout(Duration::from_millis(20), budget.take(bytes)).await.is_err()
    }

    #[tokio::test]
    async fn a_taker_waits_until_bytes_come_back() {
        let budget = ByteBudget::new(100);
        let first = budget.take(70).await.unwrap();
        assert!(is_refused(&budget, 40).await);
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(40).await.map(|held| held.bytes) }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!(waiting.await.unwrap(), Some(40));
        assert_eq!((budget.used(), budget.peak()), (0, 70));
    }

    #[tokio::test]
    async fn what_is_larger_than_everything_goes_alone() {
        let budget = ByteBudget::new(100);
        let small = budget.take(1).await.unwrap();
        assert!(is_refused(&budget, 1000).await);
        drop(small);
        let _large = budget.take(1000).await.unwrap();
        assert!(is_refused(&budget, 1).await);
    }

    #[tokio::test]
    async fn growth_is_paid_by_the_next_and_closing_wakes_everyone() {
        let budget = ByteBudget::new(100);
        let mut held = budget.take(10).await.unwrap();
        held.resize(95);
        assert!(is_refused(&budget, 10).await);
        held.resize(5);
        assert!(budget.take(10).await.is_some());
        held.resize(100);
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(10).await.is_none() }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        budget.close();
        assert!(waiting.await.unwrap());
        assert!(budget.take(1).await.is_none());
    }
}
