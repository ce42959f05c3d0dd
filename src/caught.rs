//! Panics that are caught, without a word on standard error.
//!
//! Readers of damaged files panic now and then, in crates that are not ours; whoever calls them turns that into an
//! error with a place. The text that Rust prints for every panic would come first and look as if the program had
//! crashed. So a panic inside [`quietly`] is not printed: its text and place are in the error. All other panics, and
//! those of other threads, are reported as they were before. Used by `source` and `pipeline`; `learner` reads the text
//! of its own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many calls of `quietly` this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What the latest of its quiet panics said, and where it was.
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Does some work; an `Err` is what a panic in it said, and where. What the work changed before it is in any state.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                return before(panic);
            }
            let said = panic.payload_as_str().unwrap_or("no message");
            let place = panic.location().map_or(String::new(), |place| format!(" ({}:{})", place.file(), place.line()));
            let _gone = TEXT.try_with(|text| text.replace(format!("{said}{place}")));
        }));
    });
    TEXT.take(); // of a panic that another call inside has caught
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    done.map_err(|panic| match TEXT.take() {
        // One that another thread handed over had no hook here.
        text if text.is_empty() => panic_text(&*panic).unwrap_or("no message").to_string(),
        text => text,
    })
}

/// What a panic said, if that was a text.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_text_and_place_and_the_next_one_is_its_own() {
        assert_eq!(quietly(|| 7), Ok(7));
        let nested = quietly(|| quietly(|| panic!("inner {}", 1)).unwrap_or_else(|text| text.len()));
        assert!(nested.is_ok());
        let handed_over = quietly(|| std::panic::resume_unwind(Box::new("from elsewhere"))).unwrap_err();
        assert_eq!(handed_over, "from elsewhere");
        let text = quietly(|| -> usize { panic!("row {} is odd", 3) }).unwrap_err();
        assert!(text.starts_with("row 3 is odd (") && text.contains("caught.rs:"), "{text}");
    }
}
