//! The trained weights on their way into the store.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flambeau_data::Store;
use sha2::{Digest, Sha256};

use crate::checkpoint::hex;
use crate::error::Cause;
use crate::model::Model;
use crate::result::{StoredFile, WeightsInfo};

/// Has the model write its weights into a temporary directory and puts the files into `directory` of the store.
///
/// # Errors
///
/// The model's, the store's, or those of the temporary directory.
pub(crate) fn store_weights(
    model: &mut dyn Model,
    store: &Store,
    directory: &str,
) -> Result<WeightsInfo, Cause> {
    let local = tempfile::tempdir().map_err(io_error("a temporary directory for the weights"))?;
    let names = model.write_weights(local.path()).map_err(Cause::Model)?;
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let path = local.path().join(&name);
        let (size, sha256) =
            measure(&path).map_err(io_error(&format!("reading {name} of the weights")))?;
        let uri = format!("{directory}/{name}");
        store.put_file(&uri, &path)?;
        files.push(StoredFile {
            name,
            uri,
            size,
            sha256,
        });
    }
    let Some(first) = files.first() else {
        return Err(Cause::Model("the model wrote no weights".into()));
    };
    Ok(WeightsInfo {
        uri: first.uri.clone(),
        size: first.size,
        sha256: first.sha256.clone(),
        files,
    })
}

/// Size and SHA-256 of a file, in one pass and a small buffer.
fn measure(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut size = 0;
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok((size, hex(&hash.finalize())));
        }
        hash.update(&buffer[..length]);
        size += length as u64;
    }
}

fn io_error(what: &str) -> impl FnOnce(io::Error) -> Cause {
    let what = what.to_string();
    move |source| Cause::Io { what, source }
}
