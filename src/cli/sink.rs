//! Where lines of rows go: a file, or standard output.

use std::io::{BufWriter, Stdout, Write};
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::WholeFile;

/// Takes lines.
pub(super) struct Sink {
    to: Place,
    /// For messages.
    name: String,
}

enum Place {
    StandardOutput(BufWriter<Stdout>),
    File(WholeFile),
}

impl Place {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::StandardOutput(writer) => writer,
            Self::File(file) => file,
        }
    }
}

impl Sink {
    /// The file, which is replaced if it is there, once the new one is whole; or standard output.
    pub fn open(out: Option<&Path>) -> Result<Self> {
        let Some(path) = out else {
            let to = Place::StandardOutput(BufWriter::new(std::io::stdout()));
            return Ok(Self { to, name: "standard output".into() });
        };
        Ok(Self { to: Place::File(WholeFile::create(path)?), name: path.display().to_string() })
    }

    /// Writes a line; `false` if nobody reads on, as after `| head`.
    pub fn line(&mut self, line: &str) -> Result<bool> {
        let writer = self.to.writer();
        let written = writer.write_all(line.as_bytes()).and_then(|()| writer.write_all(b"\n"));
        self.understand(written)
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<()> {
        let flushed = self.to.writer().flush();
        self.understand(flushed)?;
        match self.to {
            Place::StandardOutput(_) => Ok(()),
            Place::File(file) => file.finish(),
        }
    }

    fn understand(&self, written: std::io::Result<()>) -> Result<bool> {
        match written {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(Error::io(&self.name, &e)),
        }
    }
}
