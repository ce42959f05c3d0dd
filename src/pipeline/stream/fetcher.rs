//! The first stage: says in which order blocks and rows are read, and begins to fetch them.

use std::sync::Arc;

use async_channel::Sender;
use tokio::task::JoinHandle;

use super::{Stopped, WINDOW_ROWS};
use crate::batcher::BatchSpec;
use crate::data::{Cursor, Position};
use crate::error::Result;
use crate::order::{EpochOrder, Share, rows_of_epoch};
use crate::pipeline::budget::{ByteBudget, Held};
use crate::source::{BlockSource, Fetched, IndexedSource, LiveSource, ReadLimits, Source};

/// What the cutter is to read next.
pub(super) enum ToRead {
    Block {
        index: usize,
        fetch: JoinHandle<Result<Fetched>>,
        held: Held,
    },
    Gather {
        source: Arc<dyn IndexedSource>,
        rows: Vec<u64>,
    },
    Live {
        source: Arc<dyn LiveSource>,
        share: Share,
        from: Option<Position>,
    },
    WindowEnd,
    EpochEnd,
    /// Nothing comes any more. A stream that ends without it broke off.
    End,
}

/// Says in which order blocks and rows are read, and begins to fetch them.
pub(super) struct Fetcher {
    pub source: Source,
    pub batch: BatchSpec,
    pub share: Share,
    pub epochs: Option<u64>,
    /// Of the decoder.
    pub expansion: u64,
    pub piece_rows: u64,
    pub fetched: ByteBudget,
    pub limits: ReadLimits,
    pub to_read: Sender<ToRead>,
}

impl Fetcher {
    pub async fn run(self, start: Cursor) {
        let sent = match self.source.clone() {
            Source::Blocks(source) => self.send_blocks(source, &start).await,
            Source::Indexed(source) => self.send_rows(source, &start).await,
            Source::Live(source) => self.send_live(source, start.position).await,
        };
        if sent.is_ok() {
            let _stopped = self.to_read.send(ToRead::End).await;
        }
    }

    fn wants(&self, epoch: u64) -> bool {
        self.epochs.is_none_or(|epochs| epoch < epochs)
    }

    async fn send_blocks(&self, source: Arc<dyn BlockSource>, start: &Cursor) -> std::result::Result<(), Stopped> {
        let bytes: Vec<u64> = source.blocks().iter().map(|block| block.bytes.saturating_mul(self.expansion)).collect();
        let mut first_window = start.window;
        for epoch in (start.epoch..).take_while(|&epoch| self.wants(epoch)) {
            let order = match self.batch.shuffle {
                true => EpochOrder::shuffled(&bytes, self.batch.window_bytes, self.batch.seed, epoch, self.share),
                false => EpochOrder::in_order(bytes.len(), self.share),
            };
            for window in first_window..order.num_windows() {
                for &index in order.window(window) {
                    let held = self.fetched.take(source.blocks()[index].fetch_bytes).await.ok_or(Stopped)?;
                    let (reader, limits) = (source.clone(), self.limits);
                    let fetch = tokio::spawn(async move { reader.fetch(index, limits).await });
                    self.to_read.send(ToRead::Block { index, fetch, held }).await?;
                }
                self.to_read.send(ToRead::WindowEnd).await?;
            }
            first_window = 0;
            self.to_read.send(ToRead::EpochEnd).await?;
        }
        Ok(())
    }

    async fn send_rows(&self, source: Arc<dyn IndexedSource>, start: &Cursor) -> std::result::Result<(), Stopped> {
        let num_rows = source.num_rows();
        // Positions of this shard: of every batch its run of rows.
        let (share, batch_rows) = (self.share, self.batch.rows);
        let own_rows = num_rows.map(|rows| share.count(rows, batch_rows));
        let num_windows = own_rows.map_or(u64::MAX, |rows| rows.div_ceil(WINDOW_ROWS));
        let mut first_window = start.window;
        for epoch in (start.epoch..).take_while(|&epoch| self.wants(epoch)) {
            let order = num_rows.filter(|_| self.batch.shuffle).map(|n| rows_of_epoch(n, self.batch.seed, epoch));
            for window in first_window..num_windows {
                let end = own_rows.unwrap_or(u64::MAX).min((window + 1).saturating_mul(WINDOW_ROWS));
                for first in (window * WINDOW_ROWS..end).step_by(self.piece_rows as usize) {
                    let own = first..end.min(first + self.piece_rows);
                    let positions = own.map(|index| share.position(index, batch_rows));
                    let rows = positions.map(|p| order.as_ref().map_or(p, |order| order.at(p))).collect();
                    self.to_read.send(ToRead::Gather { source: source.clone(), rows }).await?;
                }
                self.to_read.send(ToRead::WindowEnd).await?;
            }
            first_window = 0;
            self.to_read.send(ToRead::EpochEnd).await?;
        }
        Ok(())
    }

    async fn send_live(&self, source: Arc<dyn LiveSource>, from: Option<Position>) -> std::result::Result<(), Stopped> {
        self.to_read.send(ToRead::Live { source, share: self.share, from }).await?;
        self.to_read.send(ToRead::EpochEnd).await?;
        Ok(())
    }
}
