//! The bytes of a file as they are, or what a `.zst` file decompresses to, streamed.

use std::io::Read;

use super::store::Shard;
use crate::error::{Error, Result};

/// Returns true if the file is compressed, by its name.
pub(super) fn is_compressed(shard: &Shard) -> bool {
    shard.name().to_ascii_lowercase().ends_with(".zst")
}

/// All of a file from its beginning. Must be called where a runtime is, and read where none is.
pub(super) fn unpacked(shard: &Shard) -> Result<Box<dyn Read + Send>> {
    let reader = shard.reader(0..shard.size())?;
    if !is_compressed(shard) {
        return Ok(Box::new(reader));
    }
    let decoder = zstd::stream::read::Decoder::new(reader);
    Ok(Box::new(decoder.map_err(|error| Error::io_at(&**shard.name(), &error))?))
}
