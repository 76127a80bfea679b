//! Whole files, wherever they lie.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::DataError;

/// Reads and writes whole files by URI, blocking the caller. Clones share connections; any thread may call.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<HashMap<String, String>>,
}

impl Store {
    /// A store.
    pub fn new(options: &HashMap<String, String>) -> Result<Self, DataError> {
        Ok(Store {
            inner: Arc::new(options.clone()),
        })
    }
    /// The file's bytes.
    pub fn get(&self, uri: &str) -> Result<Bytes, DataError> {
        let _ = (uri, &self.inner);
        todo!()
    }
    /// Some of the file's bytes.
    pub fn get_range(&self, uri: &str, range: Range<u64>) -> Result<Bytes, DataError> {
        let _ = (uri, range);
        todo!()
    }
    /// Writes a file.
    pub fn put(&self, uri: &str, bytes: Bytes) -> Result<(), DataError> {
        let _ = (uri, bytes);
        todo!()
    }
    /// Copies a local file to `uri`.
    pub fn put_file(&self, uri: &str, local: &Path) -> Result<(), DataError> {
        let _ = (uri, local);
        todo!()
    }
    /// Copies `uri` to a local file.
    pub fn get_to_file(&self, uri: &str, local: &Path) -> Result<(), DataError> {
        let _ = (uri, local);
        todo!()
    }
    /// Length in bytes; `None` where there is no such file.
    pub fn size(&self, uri: &str) -> Result<Option<u64>, DataError> {
        let _ = uri;
        todo!()
    }
    /// All files under a directory.
    pub fn list(&self, prefix: &str) -> Result<Vec<String>, DataError> {
        let _ = prefix;
        todo!()
    }
    /// Removes a file.
    pub fn delete(&self, uri: &str) -> Result<(), DataError> {
        let _ = uri;
        todo!()
    }
    /// Removes a directory.
    pub fn delete_prefix(&self, prefix: &str) -> Result<(), DataError> {
        let _ = prefix;
        todo!()
    }
}
