//! Where lines of rows go: a file, or standard output.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Takes lines.
pub(super) struct Sink {
    writer: Box<dyn Write>,
    /// For messages.
    name: String,
}

impl Sink {
    /// The file, which is replaced if it is there, or standard output.
    pub fn open(out: Option<&Path>) -> Result<Self> {
        let Some(path) = out else {
            return Ok(Self { writer: Box::new(BufWriter::new(std::io::stdout())), name: "standard output".into() });
        };
        let name = path.display().to_string();
        let file = File::create(path).map_err(|e| Error::io(&name, &e))?;
        Ok(Self { writer: Box::new(BufWriter::new(file)), name })
    }

    /// Writes a line; `false` if nobody reads on, as after `| head`.
    pub fn line(&mut self, line: &str) -> Result<bool> {
        let written = self.writer.write_all(line.as_bytes()).and_then(|()| self.writer.write_all(b"\n"));
        self.understand(written)
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<()> {
        let flushed = self.writer.flush();
        self.understand(flushed).map(drop)
    }

    fn understand(&self, written: std::io::Result<()>) -> Result<bool> {
        match written {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(Error::io(&self.name, &e)),
        }
    }
}

/// Writes a whole file, which is replaced if it is there.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|e| Error::io(&path.display().to_string(), &e))
}
