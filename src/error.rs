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
    /// What was asked is not understood or cannot be: an option outside its range, a pipeline file with an unknown key,
    /// a size beyond any machine.
    Option,
    /// A path that does not exist, or that is a folder where a file is expected, or the reverse.
    Path,
    /// The contents of a file or stream are not what they should be: damaged, cut off, not of this format.
    Format,
    /// Saved state that does not fit what it is put into, or a run that is not continued: parameters of another
    /// circuit, a checkpoint of another run.
    State,
    /// A model that is none any more: a likelihood that is no number.
    Diverged,
    /// A combination that has no meaning, such as gradient steps on Gaussian inputs.
    Unsupported,
    /// Reading or writing failed.
    Io,
    /// A device that is not there, that its driver cannot use, or whose memory does not suffice.
    Device,
    /// A defect of this program, such as a thread that panicked.
    Internal,
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

    /// Something that a smaller build has been made without.
    #[allow(dead_code)] // a build with everything never says so
    pub(crate) fn not_built(what: &str, feature: &str) -> Self {
        Self::unsupported(format!("{what} is not in this build: it needs the feature \"{feature}\""))
    }

    pub(crate) fn device(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Device, message: message.into() }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Internal, message: message.into() }
    }

    pub(crate) fn path(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Path, message: message.into() }
    }

    /// A failed read or write, with the path it was about. A path that is not there, or is of the wrong kind, is told
    /// apart from a disk that fails: the first is for the user to correct.
    pub fn io(what: &str, source: &std::io::Error) -> Self {
        use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
        let kind = match source.kind() {
            NotFound | IsADirectory | NotADirectory => ErrorKind::Path,
            _ => ErrorKind::Io,
        };
        Self { kind, message: format!("{what}: {source}") }
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
