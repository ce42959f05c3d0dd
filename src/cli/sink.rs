//! Where lines of rows go: a file, or standard output.
//!
//! Files and pipes get text as it was drawn: it is data, and its reader wants every byte. A terminal obeys control
//! characters, and a model of text may draw any of them, so there they are written out, as `output` does in messages.

use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::path::Path;

use super::output::harmless;
use crate::error::{Error, Result};
use crate::files::WholeFile;

/// Takes lines.
pub(super) struct Sink {
    to: Place,
    /// For messages.
    name: String,
    /// True where control characters would be obeyed.
    is_terminal: bool,
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
            let stdout = std::io::stdout();
            let is_terminal = stdout.is_terminal();
            let to = Place::StandardOutput(BufWriter::new(stdout));
            return Ok(Self { to, name: "standard output".into(), is_terminal });
        };
        Ok(Self { to: Place::File(WholeFile::create(path)?), name: path.display().to_string(), is_terminal: false })
    }

    /// Writes a line; `false` if the reader is gone, as after `| head`.
    pub fn line(&mut self, line: &str) -> Result<bool> {
        let line = if self.is_terminal { harmless(line, &['\n', '\t']) } else { Cow::Borrowed(line) };
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
