//! Files in clouds and behind web addresses: the one door to `object_store`.
//!
//! An address becomes a [`Store`] and a place in it. Which addresses there are is decided by the features `aws`, `gcp`,
//! `azure` and `http`. Opened by `store`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, parse_url_opts};

use super::BoxFuture;
use super::store::{Fetch, Store, Trouble};
use crate::error::{Error, Result};

/// The store behind an address, and the place that the address names in it. `pattern` is what the user wrote.
pub(super) fn open(pattern: &str, address: &str) -> Result<(Arc<dyn Store>, String)> {
    // What the clouds' own tools read; a bare REGION or TOKEN in the environment is somebody else's.
    let settings =
        std::env::vars().filter(|(key, _)| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| key.starts_with(prefix)));
    let (store, place) = parse_url_opts(&parsed(pattern, address)?, settings)
        .map_err(|error| Error::io(pattern, &std::io::Error::other(error.to_string())))?;
    Ok((Arc::new(Cloud(store)), place.to_string()))
}

/// Whatever type the caller needs: an address has the type of a crate that only the store knows.
fn parsed<T: FromStr<Err: fmt::Display>>(pattern: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| Error::option(format!("{pattern}: not an address: {error}")))
}

struct Cloud(Box<dyn ObjectStore>);

impl Store for Cloud {
    fn size<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Fetch<u64>> {
        Box::pin(async move { Ok(self.0.head(&place(path)?).await.map_err(trouble)?.size) })
    }

    fn read<'a>(&'a self, path: &'a str, range: Range<u64>) -> BoxFuture<'a, Fetch<Bytes>> {
        Box::pin(async move { self.0.get_range(&place(path)?, range).await.map_err(trouble) })
    }

    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Fetch<Vec<(String, u64)>>> {
        Box::pin(async move {
            let folder = place(folder)?;
            let mut listing = self.0.list(Some(&folder));
            let mut files = Vec::new();
            while let Some(found) = listing.next().await {
                let found = found.map_err(trouble)?;
                files.push((found.location.to_string(), found.size));
            }
            Ok(files)
        })
    }
}

fn place(path: &str) -> Fetch<Path> {
    Path::parse(path).map_err(|error| Trouble::Lasting(format!("not a path in a store: {error}")))
}

fn trouble(error: object_store::Error) -> Trouble {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => Trouble::Missing,
        E::Generic { .. } | E::JoinError { .. } => Trouble::Passing(error.to_string()),
        _ => Trouble::Lasting(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn a_cloud_is_a_store() {
        let memory = InMemory::new();
        for (name, content) in [("d/a b.bin", "abc"), ("d/e/c.bin", "de"), ("dd/x.bin", "")] {
            memory.put(&Path::parse(name).unwrap(), content.into()).await.unwrap();
        }
        let cloud = Cloud(Box::new(memory));
        assert_eq!(cloud.size("d/a b.bin").await, Ok(3));
        assert_eq!(cloud.size("d").await, Err(Trouble::Missing));
        assert_eq!(cloud.read("d/a b.bin", 1..3).await.unwrap(), "bc");
        let mut below = cloud.list("d").await.unwrap();
        below.sort();
        assert_eq!(below, [("d/a b.bin".into(), 3), ("d/e/c.bin".into(), 2)]);
        assert_eq!(cloud.list("").await.unwrap().len(), 3);
        assert!(matches!(cloud.size("a//b").await, Err(Trouble::Lasting(_))));
    }

    #[cfg(feature = "aws")]
    #[test]
    fn an_address_is_a_store_and_a_place() {
        let (_, place) = open("s3://bucket/data/*.bin", "s3://bucket/data/").unwrap();
        assert_eq!(place, "data");
        assert!(open("s3://[", "s3://[").is_err_and(|error| error.to_string().contains("not an address")));
    }
}
