//! The first records of a source, looked at before anything is learned.

use std::sync::Arc;

use super::Opened;
use crate::detached::detached;
use crate::error::{Error, ErrorKind, Result};
use crate::source::ahead::Ahead;
use crate::source::{BlockSource, Piece, Source};

impl Opened {
    /// The pieces of a block with its first `wanted` records.
    async fn first_pieces(&self, source: &Arc<dyn BlockSource>, block: usize, wanted: usize) -> Result<Vec<Piece>> {
        let fetched = source.fetch(block, self.limits).await?;
        // Cutting is work, not waiting, and may itself wait for bytes: not on a thread that drives others.
        let cut = tokio::task::spawn_blocking(move || {
            let (mut seen, mut pieces) = (0, Vec::new());
            for piece in fetched.pieces {
                let piece = piece?;
                seen += piece.num_records();
                pieces.push(piece);
                if seen >= wanted {
                    break;
                }
            }
            Ok::<_, Error>(pieces)
        });
        cut.await.map_err(|e| Error::internal(format!("looking at the first rows: {e}")))?
    }

    /// Like `look`; records of a live stream are held, and delivered all the same.
    pub(in crate::pipeline) async fn look_and_hold(
        &mut self,
        records: usize,
        mut see: impl FnMut(&Piece) -> Result<()> + Send,
    ) -> Result<()> {
        let (Source::Live(source), None) = (&self.source, &self.first_file) else {
            return self.look(records, see).await;
        };
        let (source, limits) = (source.clone(), self.limits);
        // Reading blocks until somebody writes, and is shown where it may be: pieces come through a channel.
        let (send, pieces) = async_channel::bounded(1);
        let look = detached("first-records", move || {
            Ahead::look(source, &limits, records, |piece| {
                send.send_blocking(piece.clone()).map_err(|_| Error::internal("nobody looks at the first records"))
            })
        });
        let mut look = std::pin::pin!(look);
        let ahead = loop {
            tokio::select! {
                biased;
                Ok(piece) = pieces.recv() => see(&piece)?,
                ahead = &mut look => break ahead?,
            }
        };
        while let Ok(piece) = pieces.try_recv() {
            see(&piece)?;
        }
        self.source = Source::Live(Arc::new(ahead));
        Ok(())
    }

    /// Shows the first records to `see`, about `records` of them.
    pub(super) async fn look(&self, records: usize, mut see: impl FnMut(&Piece) -> Result<()>) -> Result<()> {
        match self.first_file.as_ref().unwrap_or(&self.source) {
            Source::Indexed(source) => {
                let rows: Vec<u64> = (0..source.num_rows().unwrap_or(u64::MAX).min(records as u64)).collect();
                rows.chunks(1024).try_for_each(|rows| see(&source.gather(rows)?))
            }
            Source::Blocks(source) => {
                let (mut left, mut damaged) = (records, None);
                for block in 0..source.blocks().len() {
                    match self.first_pieces(source, block, left).await {
                        Ok(pieces) => {
                            for piece in pieces {
                                see(&piece)?;
                                left = left.saturating_sub(piece.num_records());
                            }
                        }
                        // What a damaged block means for the run is decided when it is read (`on_bad`).
                        Err(error) if matches!(error.kind(), ErrorKind::Data | ErrorKind::Format) => {
                            damaged.get_or_insert(error);
                        }
                        Err(error) => return Err(error),
                    }
                    if left == 0 {
                        break;
                    }
                }
                damaged.filter(|_| left == records).map_or(Ok(()), Err) // unless nothing could be seen
            }
            Source::Live(_) => Err(Error::option(
                "a live stream comes only once, so its first rows cannot be looked at: say decode.kind, and \
                 decode.cats for rows",
            )),
        }
    }
}
