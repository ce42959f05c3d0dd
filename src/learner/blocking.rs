//! Blocking twins of async methods, by one mechanism: the future is run on the calling thread.
//!
//! What a [`Learner`](super::Learner) awaits are channels, which need no runtime, so a thread can wait for any of its
//! futures by parking until it is woken.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread.
pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(), // a wake-up that came before is not lost: `park` then returns at once
        }
    }
}

/// Async methods, each with a twin of the same name and arguments that blocks.
macro_rules! with_blocking_twins {
    ($(
        $(#[doc = $doc:literal])*
        pub async fn $name:ident / $blocking:ident(&$self:ident $(, $arg:ident: $type:ty)*) -> $result:ty $body:block
    )*) => {$(
        $(#[doc = $doc])*
        pub async fn $name(&$self $(, $arg: $type)*) -> $result $body

        #[doc = concat!(
            "[`", stringify!($name), "`](Self::", stringify!($name), ") for threads: it blocks, so not for async tasks."
        )]
        pub fn $blocking(&$self $(, $arg: $type)*) -> $result {
            $crate::learner::blocking::wait($self.$name($($arg),*))
        }
    )*};
}
pub(super) use with_blocking_twins;
