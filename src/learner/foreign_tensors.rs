//! Tensors of a `safetensors` file that another program wrote.
//!
//! Nothing that its header declares is believed: shapes are compared with what is expected and with the size of the
//! file before anything is allocated. `model_file` writes such files, and reads our own with their hashes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::{Error, Result};
use crate::files::open_regular;

/// Beyond this a header describes more than tensors; the crate has the same bound.
const LONGEST_HEADER: u64 = 100_000_000;

/// Numbers read at once.
const PIECE: usize = 1 << 14;

/// An open file, its header read.
pub(super) struct ForeignTensors {
    place: String,
    file: File,
    header: Metadata,
    /// Where the tensors begin.
    start: u64,
}

impl ForeignTensors {
    pub fn open(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let failed = |e: std::io::Error| Error::io_at(path, &e);
        let wrong = |why: &str| Error::format(format!("{place}: {why}: it is no whole safetensors file"));
        let mut file = open_regular(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut length = [0; 8];
        if size < 8 {
            return Err(wrong("ends too early"));
        }
        file.read_exact(&mut length).map_err(failed)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER.min(size - 8) {
            return Err(wrong("its header is longer than the file"));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(failed)?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|e| wrong(&format!("its header is not valid ({e})")))?;
        if header.data_len() as u64 != size - 8 - length {
            let (described, there) = (header.data_len(), size - 8 - length);
            return Err(wrong(&format!("its header describes {described} bytes of {there}")));
        }
        Ok(Self { place, file, header, start: 8 + length })
    }

    /// What the file notes under a name.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(name).map(String::as_str)
    }

    /// An error unless there is a tensor of that name, of single precision and of that shape.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<()> {
        let wrong = |why: String| Err(Error::format(format!("{}: {why}", self.place)));
        let Some(found) = self.header.info(name) else { return wrong(format!("has no tensor `{name}`")) };
        if found.dtype != Dtype::F32 || found.shape != shape {
            return wrong(format!("`{name}` is {} {:?} where F32 {shape:?} belongs", found.dtype, found.shape));
        }
        let (from, to) = found.data_offsets;
        let bytes = shape.iter().try_fold(4usize, |bytes, &size| bytes.checked_mul(size));
        match bytes == to.checked_sub(from) {
            true => Ok(()),
            false => wrong(format!("`{name}` has not as many bytes as its shape {shape:?} needs")),
        }
    }

    /// The numbers of a tensor that was expected.
    pub fn take(&mut self, name: &str) -> Result<Vec<f32>> {
        let Some(TensorInfo { data_offsets: (from, to), .. }) = self.header.info(name) else {
            return Err(Error::format(format!("{}: has no tensor `{name}`", self.place)));
        };
        let (from, count) = (*from as u64, (to - from) / 4);
        let failed = |e: std::io::Error| Error::io_at(&self.place, &e);
        self.file.seek(SeekFrom::Start(self.start + from)).map_err(failed)?;
        let mut values = Vec::with_capacity(count);
        let mut bytes = vec![0; 4 * PIECE.min(count)];
        while values.len() < count {
            let piece = &mut bytes[..4 * PIECE.min(count - values.len())];
            self.file.read_exact(piece).map_err(failed)?;
            values.extend(piece.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        Ok(values)
    }
}
