//! Places in data that arrives while it is learned from.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::error::{Error, Result};

/// A place in a live source: the offsets of a topic, a byte of a file, the files of a folder that were taken.
///
/// Only the source that made it knows what it means; a cursor carries it, and a checkpoint writes it down as JSON.
/// Cheap to clone: every batch has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(Arc<Value>);

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self(Arc::new(value)))
    }
}

impl Position {
    /// What a source says of a place.
    pub fn new(place: &impl Serialize) -> Result<Self> {
        let value = serde_json::to_value(place).map_err(|e| Error::internal(format!("a position: {e}")))?;
        Ok(Self(Arc::new(value)))
    }

    /// The place again. A position of another kind of source is refused.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&*self.0)
            .map_err(|e| Error::state(format!("the position {} is not one of this source: {e}", self.0)))
    }

    /// The place as JSON, for people.
    pub fn as_json(&self) -> &Value {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_position_is_read_by_its_own_source_and_refused_by_another() {
        let offsets = BTreeMap::from([("0".to_string(), 17u64), ("1".to_string(), 4)]);
        let position = Position::new(&offsets).unwrap();
        let written = serde_json::to_string(&position).unwrap();
        assert_eq!(written, r#"{"0":17,"1":4}"#);
        let again: Position = serde_json::from_str(&written).unwrap();
        assert_eq!(again, position);
        assert_eq!(again.read::<BTreeMap<String, u64>>().unwrap(), offsets);
        let error = again.read::<Vec<String>>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State);
        assert!(error.to_string().contains(r#"{"0":17,"1":4}"#), "{error}");
    }
}
