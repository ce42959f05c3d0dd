//! The first whole file: it decides columns, kinds and categories, so a run waits for it before it begins.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};

use async_channel::Sender;

use super::arrivals::{Arrivals, Next};
use super::place::{Mark, Taken};
use super::places::Places;
use crate::error::{Error, Result};
use crate::source::store::Shard;

/// How often it is looked for: in folders, and in a store, which takes money for every look.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_OF_STORE: Duration = Duration::from_secs(1);

/// How long a file may take to settle before it is said what the run waits for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The files of a folder as they become whole, to find out what the data is. Nothing is taken by that.
pub struct FirstFiles {
    places: Places,
    arrivals: Arrivals,
    /// Those that were handed out.
    shown: Taken,
    begun: Instant,
    /// What was said last.
    told: Option<String>,
}

impl FirstFiles {
    /// The files that these paths, patterns or addresses match.
    pub fn new(patterns: &[String], settle: Duration) -> Result<Self> {
        Ok(Self {
            places: Places::open(patterns)?,
            arrivals: Arrivals::new(settle),
            shown: Taken::default(),
            begun: Instant::now(),
            told: None,
        })
    }

    /// The first file that is there now, whole or not, and how many there are.
    pub async fn now(&self) -> Result<(Shard, usize)> {
        let files = self.places.look().await?.files;
        let count = files.len();
        match files.into_values().next() {
            Some(first) => Ok((first, count)),
            None => Err(Error::missing_path(format!(
                "{}: no file matches yet; a run would wait for the first",
                self.places.describe()
            ))),
        }
    }

    /// The next whole file in the order of names; waits for it, and says so to whoever may wonder.
    pub async fn next(&mut self, tell: &Sender<String>) -> Result<Shard> {
        loop {
            let look = self.places.look().await?;
            self.arrivals.see(look.files, &HashSet::new(), Instant::now(), SystemTime::now());
            let waiting_for = match self.arrivals.next(&self.shown) {
                Next::File(name) => {
                    let Some(shard) = self.arrivals.shard(&name).cloned() else { continue };
                    let entry = shard.entry().await?;
                    self.shown.add(name, Mark::new(&shard, entry));
                    return Ok(shard);
                }
                Next::Settling(_) if self.begun.elapsed() < PATIENCE => None,
                Next::Settling(_) => Some("the first file is still written to: waiting until it is whole".to_string()),
                Next::Nothing => {
                    let no_folder = look.missing.map_or_else(String::new, |folder| format!(" ({folder} is not there)"));
                    Some(format!("waiting for the first file that matches {}{no_folder}", self.places.describe()))
                }
            };
            if let Some(text) = waiting_for.filter(|text| self.told.as_ref() != Some(text)) {
                let _nobody_wonders = tell.try_send(text.clone());
                self.told = Some(text);
            }
            tokio::time::sleep(if self.places.has_store() { PAUSE_OF_STORE } else { PAUSE }).await;
        }
    }
}
