//! stub
use super::findings::Findings;
use crate::error::Result;
use std::path::{Path, PathBuf};
/// x
pub struct Written {
    /// x
    pub html: PathBuf,
}
/// x
pub fn write(_findings: &Findings, folder: &Path) -> Result<Written> {
    Ok(Written { html: folder.join("report.html") })
}
