//! The trained weights on their way into the store.

use std::fs;
use std::io;

use bytes::Bytes;
use flambeau_data::{DataError, Store};
use tempfile::TempDir;

use crate::digest;
use crate::error::Cause;
use crate::model::Model;
use crate::record::result::{StoredFile, WeightsInfo};

/// Weights in a temporary directory of this machine, which lives as long as this.
pub(crate) struct LocalWeights {
    directory: TempDir,
    /// The files, the one with the weights first.
    files: Vec<LocalFile>,
}

struct LocalFile {
    name: String,
    size: u64,
    sha256: String,
}

impl LocalWeights {
    /// Has the model write its weights.
    ///
    /// # Errors
    ///
    /// The model's, or those of the temporary directory.
    pub(crate) fn of(model: &mut dyn Model) -> Result<LocalWeights, Cause> {
        let directory = directory()?;
        let names = model
            .write_weights(directory.path())
            .map_err(Cause::Model)?;
        if names.is_empty() {
            return Err(Cause::Model("the model wrote no weights".into()));
        }
        LocalWeights::measured(directory, names)
    }

    /// Files of these names and contents, as a checkpoint kept them.
    ///
    /// # Errors
    ///
    /// Those of the temporary directory.
    pub(crate) fn from_files(files: Vec<(String, Bytes)>) -> Result<LocalWeights, Cause> {
        let directory = directory()?;
        for (name, bytes) in &files {
            fs::write(directory.path().join(name), bytes)
                .map_err(io_error(&format!("writing {name} of the weights")))?;
        }
        LocalWeights::measured(directory, files.into_iter().map(|(name, _)| name).collect())
    }

    fn measured(directory: TempDir, names: Vec<String>) -> Result<LocalWeights, Cause> {
        let file = |name: String| {
            let (size, sha256) = digest::of_file(&directory.path().join(&name))
                .map_err(io_error(&format!("reading {name} of the weights")))?;
            Ok(LocalFile { name, size, sha256 })
        };
        let files: Result<_, Cause> = names.into_iter().map(file).collect();
        let files = files?;
        Ok(LocalWeights { directory, files })
    }

    /// Puts the files into `directory` of the store.
    pub(crate) fn store(&self, store: &Store, directory: &str) -> Result<WeightsInfo, DataError> {
        let mut files = Vec::with_capacity(self.files.len());
        for LocalFile { name, size, sha256 } in &self.files {
            let uri = format!("{directory}/{name}");
            store.put_file(&uri, &self.directory.path().join(name))?;
            files.push(StoredFile {
                name: name.clone(),
                uri,
                size: *size,
                sha256: sha256.clone(),
            });
        }
        let StoredFile {
            uri, size, sha256, ..
        } = files[0].clone();
        Ok(WeightsInfo {
            uri,
            size,
            sha256,
            files,
        })
    }
}

fn directory() -> Result<TempDir, Cause> {
    tempfile::tempdir().map_err(io_error("a temporary directory for the weights"))
}

fn io_error(what: &str) -> impl FnOnce(io::Error) -> Cause {
    let what = what.to_string();
    move |source| Cause::Io { what, source }
}
