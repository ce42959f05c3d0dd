//! The one error type.
//!
//! Every message is a sentence a user can act on: what is wrong, where, and what to do about it. Callers tell
//! failures apart by [`Error::kind`]; the text is for people.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

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
    /// Ranks that cannot work together: no MPI library, or another than the launcher's.
    Cluster,
    /// Another rank is gone, in the middle of something.
    RankLost,
    /// A defect of this program, such as a thread that panicked.
    Internal,
}

/// What went wrong, where, and what to do.
///
/// The text says all of it, for people. What a program may want to act on is there as data too: [`kind`](Self::kind),
/// and where it is known the [`key`](Self::key) of an option, the [`path`](Self::path) of a file and the
/// [`row`](Self::row) in it. Sources and decoders outside this crate make errors of their own:
///
/// ```
/// use anemone::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Data, "token 70000 is outside 0..50257").at_row(1042).at_path("train-0003.bin");
/// assert_eq!(error.to_string(), "train-0003.bin: row 1042: token 70000 is outside 0..50257");
/// assert_eq!((error.kind(), error.row()), (ErrorKind::Data, Some(1042)));
/// ```
#[derive(Clone)]
pub struct Error(Box<Facts>);

/// Behind a pointer, so that a `Result` is not larger than what it usually holds.
#[derive(Clone)]
struct Facts {
    kind: ErrorKind,
    message: String,
    key: Option<String>,
    path: Option<PathBuf>,
    row: Option<u64>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! of_kind {
    ($($name:ident $kind:ident)*) => {$(
        pub(crate) fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        }
    )*};
}

impl Error {
    of_kind! {
        data Data
        circuit Circuit
        option Option
        missing_path Path
        format Format
        state State
        diverged Diverged
        unsupported Unsupported
        device Device
        internal Internal
    }

    /// An error of a kind: what is wrong, where it is not said otherwise, and what to do. Lowercase, no full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Facts { kind, message: message.into(), key: None, path: None, row: None, source: None }))
    }

    /// A failed read or write of something that is not a file of its own: a pipe, a thread, a port.
    pub fn io(what: &str, source: &io::Error) -> Self {
        // A copy: an `io::Error` cannot be cloned, and an `Error` can.
        let copy = source.raw_os_error().map(io::Error::from_raw_os_error);
        let copy = copy.unwrap_or_else(|| io::Error::new(source.kind(), source.to_string()));
        Self::new(kind_of(source), format!("{what}: {source}")).with_source(copy)
    }

    /// A failed read or write of a file. A path that is not there, or is of the wrong kind, is told apart from a disk
    /// that fails: the first is for the user to correct.
    pub fn io_at(path: impl AsRef<Path>, source: &io::Error) -> Self {
        let path = path.as_ref();
        Self::io(&path.display().to_string(), source).with_path(path)
    }

    /// Something that a smaller build has been made without.
    #[allow(dead_code)] // a build with everything never says so
    pub(crate) fn not_built(what: &str, feature: &str) -> Self {
        Self::unsupported(format!("{what} is not in this build: it needs the feature \"{feature}\""))
    }

    /// What sort of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The option it is about: a key of a pipeline, such as `learn.step`.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// The file it is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The row it is about: of the file where [`path`](Self::path) is known, otherwise of the batch.
    pub fn row(&self) -> Option<u64> {
        self.0.row
    }

    /// The same error with a place put in front: `file.json: node 3: …`.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.0.message = format!("{place}: {}", self.0.message);
        self
    }

    /// The same error with a file put in front, which [`path`](Self::path) names from then on.
    pub fn at_path(self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        self.at(path.display()).with_path(path)
    }

    /// The same error with a row put in front, which [`row`](Self::row) names from then on.
    pub fn at_row(self, row: u64) -> Self {
        self.at(format_args!("row {row}")).with_row(row)
    }

    /// Names the option; the message is expected to name it too.
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.0.key = Some(key.into());
        self
    }

    /// Names the file; the message is expected to name it too.
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// Names the row; the message is expected to name it too.
    pub fn with_row(mut self, row: u64) -> Self {
        self.0.row = Some(row);
        self
    }

    /// Keeps the error below this one, for `source()`. The message is expected to say what it says.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }
}

fn kind_of(source: &io::Error) -> ErrorKind {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    match source.kind() {
        NotFound | IsADirectory | NotADirectory => ErrorKind::Path,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

/// What both say; not what is below them, which cannot be compared.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        let facts = |error: &Self| {
            let Facts { kind, message, key, path, row, .. } = &*error.0;
            (*kind, message.clone(), key.clone(), path.clone(), *row)
        };
        facts(self) == facts(other)
    }
}

impl Eq for Error {}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn where_it_happened_is_in_the_text_and_in_the_data() {
        let error = Error::option("step = 1.4: must be in (0, 1]").with_key("learn.step").at("learn");
        assert_eq!(
            (error.to_string().as_str(), error.key()),
            ("learn: step = 1.4: must be in (0, 1]", Some("learn.step"))
        );
        let error = Error::data("a NaN").at_row(7).at_path("a.npy");
        assert_eq!(error.to_string(), "a.npy: row 7: a NaN");
        assert_eq!((error.path(), error.row()), (Some(Path::new("a.npy")), Some(7)));
        assert_ne!(error, Error::new(ErrorKind::Data, "a.npy: row 7: a NaN"), "the data is part of what it says");
    }

    #[test]
    fn what_a_system_says_is_below() {
        for below in [io::Error::from_raw_os_error(28), io::Error::other("nobody listens")] {
            let error = Error::io_at("a.bin", &below);
            assert_eq!(error.kind(), ErrorKind::Io);
            assert_eq!(error.to_string(), format!("a.bin: {below}"));
            let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
            assert_eq!((source.kind(), source.to_string()), (below.kind(), below.to_string()));
            assert_eq!(error.clone(), error);
        }
        assert_eq!(Error::io_at("a.bin", &io::ErrorKind::NotFound.into()).kind(), ErrorKind::Path);
        assert!(Error::data("a NaN").source().is_none());
    }
}
