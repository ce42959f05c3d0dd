//! The one error type.
//!
//! Every message is a sentence a user can act on: what is wrong, where, and what to do about it. Callers tell
//! failures apart by [`Error::kind`]; the text is for people.

use std::fmt;

/// Why something failed, coarse enough to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value in a batch: a category out of range, a NaN, the wrong number of variables, no rows.
    Data,
    /// A circuit that is not one: not decomposable, not smooth, wrong shapes, no single root.
    Circuit,
    /// An option outside its range: a step size, a number of latents, a schedule.
    Option,
    /// A file or text that does not parse as what it should be.
    Format,
    /// Parameters or optimizer state that do not fit the circuit they are put into.
    State,
    /// A model that is none any more: a likelihood that is no number.
    Diverged,
    /// A combination that has no meaning, such as gradient steps on Gaussian inputs.
    Unsupported,
    /// Reading or writing failed.
    Io,
    /// A device that is not there, that its driver cannot use, or whose memory does not suffice.
    Device,
}

/// What went wrong, where, and what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn data(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Data, message: message.into() }
    }

    pub(crate) fn circuit(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Circuit, message: message.into() }
    }

    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Option, message: message.into() }
    }

    pub(crate) fn format(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Format, message: message.into() }
    }

    pub(crate) fn diverged(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Diverged, message: message.into() }
    }

    pub(crate) fn state(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::State, message: message.into() }
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Unsupported, message: message.into() }
    }

    pub(crate) fn device(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Device, message: message.into() }
    }

    /// A failed read or write, with the path it was about.
    pub fn io(what: &str, source: &std::io::Error) -> Self {
        Self { kind: ErrorKind::Io, message: format!("{what}: {source}") }
    }

    /// What sort of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with a place put in front: `file.json: node 3: …`.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}
