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
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, parse_url_opts};

use super::BoxFuture;
use super::store::{Fetch, Looks, Store, Trouble};
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
    fn look<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Fetch<Looks>> {
        Box::pin(async move { Ok(looks(&self.0.head(&place(path)?).await.map_err(trouble)?)) })
    }

    fn read<'a>(&'a self, path: &'a str, range: Range<u64>, version: Option<&'a str>) -> BoxFuture<'a, Fetch<Bytes>> {
        let options =
            GetOptions { range: Some(range.into()), if_match: version.map(str::to_string), ..GetOptions::default() };
        Box::pin(async move {
            let answer = self.0.get_opts(&place(path)?, options).await.map_err(trouble)?;
            answer.bytes().await.map_err(trouble)
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Fetch<Vec<(String, Looks)>>> {
        Box::pin(async move {
            let folder = place(folder)?;
            let mut listing = self.0.list(Some(&folder));
            let mut files = Vec::new();
            while let Some(found) = listing.next().await {
                let found = found.map_err(trouble)?;
                files.push((found.location.to_string(), looks(&found)));
            }
            Ok(files)
        })
    }
}

fn looks(object: &ObjectMeta) -> Looks {
    // A weak tag says that two contents are alike, not that they are the same bytes.
    let version = object.e_tag.as_deref().filter(|tag| !tag.starts_with("W/"));
    Looks { size: object.size, modified: Some(object.last_modified.into()), version: version.map(Into::into) }
}

fn place(path: &str) -> Fetch<Path> {
    Path::parse(path).map_err(|error| Trouble::Lasting(format!("not a path in a store: {error}")))
}

fn trouble(error: object_store::Error) -> Trouble {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => Trouble::Missing,
        E::Precondition { .. } => Trouble::Changed,
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
        let looks = cloud.look("d/a b.bin").await.unwrap();
        assert_eq!((looks.size, looks.modified.is_some()), (3, true));
        assert_eq!(cloud.look("d").await, Err(Trouble::Missing));
        let version = looks.version.as_deref();
        assert!(version.is_some());
        assert_eq!(cloud.read("d/a b.bin", 1..3, version).await.unwrap(), "bc");
        cloud.0.put(&Path::parse("d/a b.bin").unwrap(), "xyz".into()).await.unwrap();
        assert_eq!(cloud.read("d/a b.bin", 1..3, version).await, Err(Trouble::Changed));
        assert_eq!(cloud.read("d/a b.bin", 1..3, None).await.unwrap(), "yz");
        let mut below: Vec<(String, u64)> =
            cloud.list("d").await.unwrap().into_iter().map(|(name, looks)| (name, looks.size)).collect();
        below.sort();
        assert_eq!(below, [("d/a b.bin".into(), 3), ("d/e/c.bin".into(), 2)]);
        assert_eq!(cloud.list("").await.unwrap().len(), 3);
        assert!(matches!(cloud.look("a//b").await, Err(Trouble::Lasting(_))));
    }

    #[cfg(feature = "aws")]
    #[test]
    fn an_address_is_a_store_and_a_place() {
        let (_, place) = open("s3://bucket/data/*.bin", "s3://bucket/data/").unwrap();
        assert_eq!(place, "data");
        assert!(open("s3://[", "s3://[").is_err_and(|error| error.to_string().contains("not an address")));
    }
}
