//! Whole files, wherever they lie.
//!
//! Nothing here appends, renames or maps a file on a shared store: a file is written whole, and what is committed only as
//! several files needs a marker file, written last.

mod local;
mod location;
mod remote;
mod shared;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;

use crate::error::DataError;
use location::Location;
pub(crate) use location::percent_decode;
use remote::Remote;

/// Reads and writes whole files by URI, blocking the caller. Clones share connections; any thread may call, except one that runs
/// a tokio runtime.
///
/// A URI is a plain path, `file:`, `dbfs:` (its FUSE mount), `s3://`, `s3a://`, `abfs://`, `abfss://` or `gs://`; with a scheme, its
/// path is percent-decoded. Other schemes are refused by name. Requests to object stores are retried and end in an error
/// after about three minutes; local calls last as long as the file system lets them.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: HashMap<String, String>,
    /// Made at the first remote URI: a process that reads local files has no runtime and no threads for it.
    remote: OnceLock<Remote>,
}

/// A location ready for use.
enum Target {
    Local(PathBuf),
    Remote(Arc<dyn ObjectStore>, ObjectPath),
}

impl Store {
    /// A store with object_store's options by their names (`aws_endpoint`, `azure_storage_account_key`, `timeout`, ...), which add to
    /// what the environment says. Connects to nothing yet.
    ///
    /// # Errors
    /// [`DataError::UnknownStoreOption`] for a name that no object store knows.
    pub fn new(options: &HashMap<String, String>) -> Result<Self, DataError> {
        remote::check_options(options)?;
        Ok(Store {
            inner: Arc::new(Inner {
                options: options.clone(),
                remote: OnceLock::new(),
            }),
        })
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// [`DataError::NotFound`] where it is not; [`DataError::Io`] and [`DataError::Store`] as with all methods.
    pub fn get(&self, uri: &str) -> Result<Bytes, DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::read(&path).map_err(io_error("read", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .read(bucket.as_ref(), &path)
                .map_err(store_error("read", uri)),
        }
    }

    /// Some of the file's bytes; a range past its end is an error.
    pub fn get_range(&self, uri: &str, range: Range<u64>) -> Result<Bytes, DataError> {
        Ok(self.get_ranges(uri, &[range])?.remove(0))
    }

    /// Several ranges, concurrently where the store is remote, in the order asked for. Neighbours are read at once.
    pub fn get_ranges(&self, uri: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::read_ranges(&path, ranges).map_err(io_error("read", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .read_ranges(bucket.as_ref(), &path, ranges)
                .map_err(store_error("read", uri)),
        }
    }

    /// Writes a file whole, making directories as needed. On local disks and object stores readers see the old file or the
    /// new one; on `/Volumes` and `/dbfs` the file is written in place.
    pub fn put(&self, uri: &str, bytes: Bytes) -> Result<(), DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::write(&path, |file| io::Write::write_all(file, &bytes))
                .map_err(io_error("write", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .write(bucket.as_ref(), &path, bytes)
                .map_err(store_error("write", uri)),
        }
    }

    /// Copies a local file to `uri`, in parts of 16 MiB where the store is remote.
    pub fn put_file(&self, uri: &str, local: &Path) -> Result<(), DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::copy(local, &path).map_err(io_error("write", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .write_file(bucket.as_ref(), &path, local)
                .map_err(store_error("write", uri)),
        }
    }

    /// Copies `uri` to a local file, holding at most 128 MiB of it in memory.
    pub fn get_to_file(&self, uri: &str, local: &Path) -> Result<(), DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::copy(&path, local).map_err(io_error("read", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .read_to_file(bucket.as_ref(), &path, local)
                .map_err(store_error("read", uri)),
        }
    }

    /// Length in bytes; `None` where there is no such file.
    pub fn size(&self, uri: &str) -> Result<Option<u64>, DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::size(&path).map_err(io_error("look at", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .size(bucket.as_ref(), &path)
                .map_err(store_error("look at", uri)),
        }
    }

    /// The URIs of all files below a directory at any depth, sorted, in the directory's own form; none where there is no such
    /// directory. Not for finding shards: a listing can show uncommitted files.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, DataError> {
        let files = match self.target(directory)? {
            Target::Local(path) => local::list(&path).map_err(io_error("list", directory))?,
            Target::Remote(bucket, path) => self
                .remote(directory)?
                .list(bucket.as_ref(), &path)
                .map_err(store_error("list", directory))?,
        };
        Ok(files
            .iter()
            .map(|file| location::child_uri(directory, file))
            .collect())
    }

    /// The names of what lies in a directory, files and directories, sorted; none where there is no such directory.
    pub fn names(&self, directory: &str) -> Result<Vec<String>, DataError> {
        match self.target(directory)? {
            Target::Local(path) => local::names(&path).map_err(io_error("list", directory)),
            Target::Remote(bucket, path) => self
                .remote(directory)?
                .names(bucket.as_ref(), &path)
                .map_err(store_error("list", directory)),
        }
    }

    /// Removes a file; one that is not there is no error.
    pub fn delete(&self, uri: &str) -> Result<(), DataError> {
        match self.target(uri)? {
            Target::Local(path) => local::delete(&path).map_err(io_error("delete", uri)),
            Target::Remote(bucket, path) => self
                .remote(uri)?
                .delete(bucket.as_ref(), &path)
                .map_err(store_error("delete", uri)),
        }
    }

    /// Removes a directory with all that is in it; one that is not there is no error.
    ///
    /// # Errors
    /// [`DataError::InvalidUri`] for a whole bucket, or the root or a top directory of this machine.
    pub fn delete_prefix(&self, directory: &str) -> Result<(), DataError> {
        let too_much = || DataError::InvalidUri {
            uri: directory.to_owned(),
            reason: "it is a whole bucket or a top directory, which is not deleted".into(),
        };
        match self.target(directory)? {
            Target::Local(path) => {
                if path.is_absolute() && path.components().count() < 3 {
                    return Err(too_much());
                }
                local::delete_directory(&path).map_err(io_error("delete", directory))
            }
            Target::Remote(bucket, path) => {
                if path.as_ref().is_empty() {
                    return Err(too_much());
                }
                let remote = self.remote(directory)?;
                remote
                    .delete_directory(bucket.as_ref(), &path)
                    .map_err(store_error("delete", directory))
            }
        }
    }

    /// Removes a directory that has nothing in it. One that has something in it, as another may be writing there, stays, and
    /// is no error, nor is one that is not there.
    pub fn delete_empty(&self, directory: &str) -> Result<(), DataError> {
        match self.target(directory)? {
            Target::Local(path) => {
                local::delete_empty(&path).map_err(io_error("delete", directory))
            }
            Target::Remote(bucket, path) => self
                .remote(directory)?
                .delete_empty(bucket.as_ref(), &path)
                .map_err(store_error("delete", directory)),
        }
    }

    /// Whether reading costs a request over the network.
    pub(crate) fn is_remote(&self, uri: &str) -> Result<bool, DataError> {
        Ok(matches!(Location::parse(uri)?, Location::Remote { .. }))
    }

    fn target(&self, uri: &str) -> Result<Target, DataError> {
        match Location::parse(uri)? {
            Location::Local(path) => Ok(Target::Local(path)),
            Location::Remote {
                scheme,
                base,
                bucket,
                path,
            } => {
                let bucket = self
                    .remote(uri)?
                    .bucket(scheme, &base, &bucket)
                    .map_err(store_error("connect to", uri))?;
                Ok(Target::Remote(bucket, path))
            }
        }
    }

    fn remote(&self, uri: &str) -> Result<&Remote, DataError> {
        if let Some(remote) = self.inner.remote.get() {
            return Ok(remote);
        }
        let remote = Remote::new(&self.inner.options).map_err(io_error("connect to", uri))?;
        Ok(self.inner.remote.get_or_init(|| remote))
    }
}

fn io_error(operation: &'static str, uri: &str) -> impl Fn(io::Error) -> DataError {
    move |source| match local::is_absent(&source) {
        true => DataError::NotFound {
            uri: uri.to_owned(),
        },
        false => DataError::Io {
            operation,
            uri: uri.to_owned(),
            source,
        },
    }
}

fn store_error(
    operation: &'static str,
    uri: &str,
) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> DataError {
    move |source| match source.downcast_ref::<object_store::Error>() {
        Some(object_store::Error::NotFound { .. }) => DataError::NotFound {
            uri: uri.to_owned(),
        },
        _ => DataError::Store {
            operation,
            uri: uri.to_owned(),
            source,
        },
    }
}
