//! The third stage, several side by side: decodes pieces, in whatever order they come.

use std::sync::Arc;
use std::time::Instant;

use async_channel::{Receiver, Sender};

use super::{Done, Job, Work, caught};
use crate::batcher::BatcherInput;
use crate::decode::{Decoded, Decoder, Output};
use crate::pipeline::waits::Waits;

/// Decodes pieces, in whatever order they come.
pub(super) struct DecoderStage {
    pub to_do: Receiver<Work>,
    pub done: Sender<Done>,
    pub decoder: Arc<dyn Decoder>,
    pub waits: Arc<Waits>,
}

impl DecoderStage {
    pub fn run(self) {
        loop {
            let begun = Instant::now();
            let Ok(Work { number, job, mut held }) = self.to_do.recv_blocking() else { return };
            self.waits.decoders.add_input(begun.elapsed());
            let begun = Instant::now();
            let decoded = caught(|| match &job {
                Job::Decode(piece) => self.decoder.decode(piece),
                Job::Gather(source, rows) => self.decoder.decode(&source.gather(rows)?),
            });
            drop(job);
            self.waits.decoders.add_busy(begun.elapsed());
            if let Ok(decoded) = &decoded {
                held.resize(num_bytes(decoded));
            }
            let begun = Instant::now();
            if self
                .done
                .send_blocking(Done {
                    number,
                    result: decoded.map(|decoded| Some(BatcherInput::Decoded(decoded))),
                    held: Some(held),
                })
                .is_err()
            {
                return;
            }
            self.waits.decoders.add_output(begun.elapsed());
        }
    }
}

fn num_bytes(decoded: &Decoded) -> u64 {
    match &decoded.output {
        Output::Rows(table) => table.num_bytes() as u64,
        Output::Tokens(tokens) => tokens.num_bytes() as u64,
    }
}
