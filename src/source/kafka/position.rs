//! Where a run is in a topic.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::data::Position;
use crate::error::Result;

/// A place in a topic: the next offset of every partition. It lives in our checkpoints; what a broker keeps for a group
/// is a copy for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// Of every partition that is known, the offset after the last message of the windows before.
    pub next: BTreeMap<i32, i64>,
    /// The partition of the window before: the one after it is next, or is asked first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<i32>,
    /// The window that begins here, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
}

/// A window: consecutive messages of one partition. Offsets may have holes, where a topic is compacted or transactions
/// end; so it is held to both the end and the number of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    pub partition: i32,
    /// The offset after its last message.
    pub end: i64,
    pub messages: u64,
}

impl Place {
    /// The same place, as a checkpoint holds it.
    pub fn position(&self) -> Result<Position> {
        Position::new(self)
    }

    /// The place after a window.
    pub fn after(&self, window: Window) -> Self {
        let mut after = Self { next: self.next.clone(), last: Some(window.partition), window: None };
        after.next.insert(window.partition, window.end);
        after
    }

    /// The partitions in the order in which they are asked: the one after the last window's first.
    pub fn turns(&self) -> impl Iterator<Item = i32> {
        let after = |partition: &&i32| self.last.is_some_and(|last| **partition > last);
        self.next.keys().filter(after).chain(self.next.keys().filter(move |p| !after(p))).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_begin_after_the_last_window_and_go_round() {
        let mut place = Place { next: [(0, 5), (2, 7), (5, 0)].into(), ..Place::default() };
        assert_eq!(place.turns().collect::<Vec<_>>(), [0, 2, 5]);
        place = place.after(Window { partition: 2, end: 9, messages: 2 });
        assert_eq!(place.turns().collect::<Vec<_>>(), [5, 0, 2]);
        assert_eq!(place.next[&2], 9);
        assert_eq!(place.position().unwrap().read::<Place>().unwrap(), place);
        let written = serde_json::to_string(&place).unwrap();
        assert_eq!(written, r#"{"next":{"0":5,"2":9,"5":0},"last":2}"#);
    }
}
