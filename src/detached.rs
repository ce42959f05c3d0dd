//! Work on a thread that nobody has to wait for.

use crate::error::{Error, Result};

/// Runs `work` on a thread of its own. Whoever stops waiting leaves it behind: unlike a runtime's blocking workers, it
/// does not keep the program from ending, so it may read from standard input or compute for minutes.
pub(crate) async fn detached<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (done, wait) = async_channel::bounded(1);
    let spawned = std::thread::Builder::new().name(format!("anemone-{name}")).spawn(move || {
        let _nobody_waits = done.send_blocking(work());
    });
    spawned.map_err(|e| Error::io("cannot start a thread", &e))?;
    wait.recv().await.unwrap_or_else(|_| Err(Error::internal(format!("{name}: its thread ended without an answer"))))
}
