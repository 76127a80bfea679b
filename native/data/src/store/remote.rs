//! Objects of S3, Azure and Google Cloud, behind blocking calls.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};
use tokio::runtime::{Builder, Runtime};

use super::location::Scheme;
use crate::error::DataError;

/// Bytes of one part of a large object, read or written.
const PART: usize = 16 * 1024 * 1024;
/// Parts under way at once.
const PARTS_IN_FLIGHT: usize = 8;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Connections to buckets, made when first used. Every request has object_store's time-outs and retries (30 s a request,
/// 3 min with retries), which the options can change.
#[derive(Debug)]
pub(super) struct Remote {
    options: HashMap<String, String>,
    buckets: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    // Dropped last: the clients above hold connections that it drives.
    runtime: Runtime,
}

impl Remote {
    pub(super) fn new(options: &HashMap<String, String>) -> std::io::Result<Self> {
        // An error says that the process has one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("flambeau-store")
            .enable_all()
            .build()?;
        Ok(Remote {
            options: options.clone(),
            buckets: Mutex::default(),
            runtime,
        })
    }

    pub(super) fn bucket(
        &self,
        scheme: Scheme,
        base: &str,
        name: &str,
    ) -> Result<Arc<dyn ObjectStore>, Cause> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(base) {
            return Ok(bucket.clone());
        }
        let bucket: Arc<dyn ObjectStore> = match scheme {
            Scheme::S3 => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(name);
                let with = |builder: AmazonS3Builder, (key, value)| builder.with_config(key, value);
                Arc::new(
                    self.options_of::<AmazonS3ConfigKey>()
                        .fold(builder, with)
                        .build()?,
                )
            }
            Scheme::Azure => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(base);
                let with =
                    |builder: MicrosoftAzureBuilder, (key, value)| builder.with_config(key, value);
                Arc::new(
                    self.options_of::<AzureConfigKey>()
                        .fold(builder, with)
                        .build()?,
                )
            }
            Scheme::Gcs => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(name);
                let with = |builder: GoogleCloudStorageBuilder, (key, value)| {
                    builder.with_config(key, value)
                };
                Arc::new(
                    self.options_of::<GoogleConfigKey>()
                        .fold(builder, with)
                        .build()?,
                )
            }
        };
        buckets.insert(base.to_owned(), bucket.clone());
        Ok(bucket)
    }

    fn options_of<K: FromStr>(&self) -> impl Iterator<Item = (K, String)> {
        self.options
            .iter()
            .filter_map(|(key, value)| Some((normalised(key).parse().ok()?, value.clone())))
    }

    pub(super) fn read(&self, bucket: &dyn ObjectStore, path: &ObjectPath) -> Result<Bytes, Cause> {
        self.runtime.block_on(async {
            let size = bucket.head(path).await?.size;
            let ranges = parts(0..size);
            let mut pieces = bucket.get_ranges(path, &ranges).await?;
            if pieces.len() == 1 {
                return Ok(pieces.remove(0));
            }
            Ok(pieces.concat().into())
        })
    }

    pub(super) fn read_ranges(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>, Cause> {
        Ok(self.runtime.block_on(bucket.get_ranges(path, ranges))?)
    }

    pub(super) fn write(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
        bytes: Bytes,
    ) -> Result<(), Cause> {
        if bytes.len() > PART {
            return self.write_parts(bucket, path, &bytes[..]);
        }
        self.runtime.block_on(bucket.put(path, bytes.into()))?;
        Ok(())
    }

    /// Uploads in parts; nothing is visible before the last one is there.
    pub(super) fn write_parts(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
        mut source: impl Read,
    ) -> Result<(), Cause> {
        self.runtime.block_on(async {
            let mut upload =
                WriteMultipart::new_with_chunk_size(bucket.put_multipart(path).await?, PART);
            loop {
                let mut part = Vec::with_capacity(PART);
                let read = source.by_ref().take(PART as u64).read_to_end(&mut part);
                let ready = match read {
                    Ok(0) => break,
                    Ok(_) => upload
                        .wait_for_capacity(PARTS_IN_FLIGHT)
                        .await
                        .map_err(Cause::from),
                    Err(error) => Err(error.into()),
                };
                if let Err(error) = ready {
                    // The parts would be paid for as long as they lie there.
                    let _ = upload.abort().await;
                    return Err(error);
                }
                upload.put(part.into());
            }
            upload.finish().await?;
            Ok(())
        })
    }

    pub(super) fn read_to_file(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
        local: &Path,
    ) -> Result<(), Cause> {
        let size = self.size(bucket, path)?.ok_or_else(|| {
            Box::new(object_store::Error::NotFound {
                path: path.to_string(),
                source: "it is not there".into(),
            })
        })?;
        super::local::write(local, |file| {
            for ranges in parts(0..size).chunks(PARTS_IN_FLIGHT) {
                let pieces = self
                    .read_ranges(bucket, path, ranges)
                    .map_err(std::io::Error::other)?;
                pieces.iter().try_for_each(|piece| file.write_all(piece))?;
            }
            Ok(())
        })?;
        Ok(())
    }

    pub(super) fn write_file(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
        local: &Path,
    ) -> Result<(), Cause> {
        let file = File::open(local)?;
        if file.metadata()?.len() <= PART as u64 {
            return self.write(bucket, path, super::local::read(local)?);
        }
        self.write_parts(bucket, path, file)
    }

    pub(super) fn size(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
    ) -> Result<Option<u64>, Cause> {
        match self.runtime.block_on(bucket.head(path)) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// All objects below a directory, relative to it, sorted.
    pub(super) fn list(
        &self,
        bucket: &dyn ObjectStore,
        directory: &ObjectPath,
    ) -> Result<Vec<String>, Cause> {
        let found: Vec<_> = self
            .runtime
            .block_on(bucket.list(Some(directory)).try_collect())?;
        let mut files: Vec<String> = found
            .iter()
            .filter_map(|meta| {
                let parts: Vec<String> = meta
                    .location
                    .prefix_match(directory)?
                    .map(|part| part.as_ref().to_owned())
                    .collect();
                Some(parts.join("/"))
            })
            .filter(|name| !name.is_empty())
            .collect();
        files.sort();
        Ok(files)
    }

    /// The names of what lies in a directory, sorted.
    pub(super) fn names(
        &self,
        bucket: &dyn ObjectStore,
        directory: &ObjectPath,
    ) -> Result<Vec<String>, Cause> {
        let found = bucket.list_with_delimiter(Some(directory));
        let found = self.runtime.block_on(found)?;
        let files = found.objects.into_iter().map(|meta| meta.location);
        let paths = files.chain(found.common_prefixes);
        let mut names: Vec<String> = paths
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }

    pub(super) fn delete(&self, bucket: &dyn ObjectStore, path: &ObjectPath) -> Result<(), Cause> {
        match self.runtime.block_on(bucket.delete(path)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn delete_directory(
        &self,
        bucket: &dyn ObjectStore,
        directory: &ObjectPath,
    ) -> Result<(), Cause> {
        let found = bucket.list(Some(directory)).map_ok(|meta| meta.location);
        let objects: Vec<ObjectPath> = self.runtime.block_on(found.try_collect())?;
        let between = objects
            .iter()
            .flat_map(|object| parents_below(directory, object));
        let between: BTreeSet<ObjectPath> = between.collect();
        let found = stream::iter(objects).map(Ok).boxed();
        self.runtime.block_on(async {
            let mut deleted = bucket.delete_stream(found);
            while let Some(result) = deleted.next().await {
                match result {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok::<_, Cause>(())
        })?;
        let keeps = keeps_directories(bucket);
        for parent in between.iter().rev().filter(|_| keeps) {
            let _ = self.delete(bucket, parent);
        }
        // A list of what lies below does not have a file of that very name; the bucket itself is none.
        if directory.as_ref().is_empty() {
            return Ok(());
        }
        // One that is not empty has empty ones in it, now that all files are gone.
        self.delete_unless_filled(bucket, directory)
    }

    /// Removes a directory that is an object, unless something is in it.
    pub(super) fn delete_empty(
        &self,
        bucket: &dyn ObjectStore,
        directory: &ObjectPath,
    ) -> Result<(), Cause> {
        if !keeps_directories(bucket) || directory.as_ref().is_empty() {
            return Ok(());
        }
        match self.size(bucket, directory)? {
            // Directories have no bytes, and object_store finds no object where Azure says that one is a directory.
            None | Some(0) => self.delete_unless_filled(bucket, directory),
            Some(_) => Ok(()),
        }
    }

    fn delete_unless_filled(
        &self,
        bucket: &dyn ObjectStore,
        path: &ObjectPath,
    ) -> Result<(), Cause> {
        match self.delete(bucket, path) {
            Err(error)
                if keeps_directories(bucket)
                    && error.to_string().contains("non-empty directory") =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

/// Whether directories may be objects, which no list shows and which go when they are empty: as in Azure's hierarchical
/// namespace.
fn keeps_directories(bucket: &dyn ObjectStore) -> bool {
    bucket.to_string().starts_with("MicrosoftAzure")
}

/// The directories between a directory and an object below it.
fn parents_below(directory: &ObjectPath, object: &ObjectPath) -> Vec<ObjectPath> {
    let depth = directory.parts().count();
    let parts: Vec<_> = object.parts().collect();
    (depth + 1..parts.len())
        .map(|end| parts[..end].iter().cloned().collect())
        .collect()
}

fn parts(range: Range<u64>) -> Vec<Range<u64>> {
    let step = PART as u64;
    range
        .clone()
        .step_by(PART)
        .map(|start| start..(start + step).min(range.end))
        .collect()
}

fn normalised(key: &str) -> String {
    key.to_ascii_lowercase()
}

/// Refuses option names that none of the object stores knows, so that a typing error is not silently without effect.
pub(super) fn check_options(options: &HashMap<String, String>) -> Result<(), DataError> {
    for key in options.keys() {
        let name = normalised(key);
        let known = AmazonS3ConfigKey::from_str(&name).is_ok()
            || AzureConfigKey::from_str(&name).is_ok()
            || GoogleConfigKey::from_str(&name).is_ok();
        if !known {
            return Err(DataError::UnknownStoreOption { key: key.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_between_are_named() {
        let of = |object: &str| parents_below(&"work/attempts/a".into(), &object.into());
        let below = [
            "work/attempts/a/checkpoints",
            "work/attempts/a/checkpoints/3",
        ];
        assert_eq!(
            of("work/attempts/a/checkpoints/3/best.bin"),
            below.map(ObjectPath::from)
        );
        assert!(of("work/attempts/a/KEPT").is_empty());
    }
}
