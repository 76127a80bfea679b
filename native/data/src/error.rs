//! What can be wrong with a dataset, a store, or a request for batches.

use std::io;
use std::time::Duration;

use object_store::client::HttpError;

/// The crate's error. Rows are counted from 0 within the file that `uri` names.
///
/// Every variant about a value names its column and the mend, so that its text can be shown to a user as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A null where a tensor needs a number.
    #[error(
        "column `{column}` holds a null at row {row} of {uri}; drop or fill nulls before training (for instance `df.na.fill` or an Imputer)"
    )]
    NullValue {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The first such row.
        row: u64,
    },
    /// A label that is NaN.
    #[error(
        "label column `{column}` holds NaN at row {row} of {uri}; drop such rows before training"
    )]
    NanLabel {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The first such row.
        row: u64,
    },
    /// A weight that is NaN, infinite or negative.
    #[error(
        "weight column `{column}` holds {value} at row {row} of {uri}; weights must be finite and at least 0"
    )]
    InvalidWeight {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The first such row.
        row: u64,
        /// The value found.
        value: f64,
    },
    /// An array, vector or binary value whose length differs from the others'.
    #[error(
        "column `{column}` holds {got} elements at row {row} of {uri} where {expected} are expected; every row must have the same length (pad or cut the arrays before training)"
    )]
    RaggedArray {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The first such row.
        row: u64,
        /// Elements a row must have (of the nested level that differs).
        expected: usize,
        /// Elements this row has.
        got: usize,
    },
    /// A fraction where whole numbers are asked for.
    #[error(
        "column `{column}` holds {value} at row {row} of {uri}, which is not a whole number, but {dtype} is asked for; round or cast the column, or ask for float32"
    )]
    NonIntegral {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The first such row.
        row: u64,
        /// The value found, as text.
        value: String,
        /// The dtype asked for.
        dtype: &'static str,
    },
    /// A value that the tensor's dtype cannot hold.
    #[error("column `{column}` holds {value} at row {row} of {uri}, which {dtype} cannot hold")]
    OutOfRange {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The first such row.
        row: u64,
        /// The value found, as text.
        value: String,
        /// The dtype asked for.
        dtype: &'static str,
    },
    /// A Spark ML vector whose fields contradict each other.
    #[error("column `{column}` holds a malformed Spark ML vector at row {row} of {uri}: {reason}")]
    InvalidVector {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The row.
        row: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A batch whose values take more than 2 GiB in one column.
    #[error(
        "the {num_rows} rows of a batch do not fit one Arrow array of 2 GiB a column: lower batchSize ({reason})"
    )]
    BatchTooLarge {
        /// Rows of the batch.
        num_rows: usize,
        /// What Arrow says.
        reason: String,
    },
    /// A column of a type that cannot become the tensor's dtype.
    #[error(
        "column `{column}` has type {found}, which cannot become {dtype}; allowed: {allowed}. {mend}"
    )]
    UnsupportedType {
        /// The column.
        column: String,
        /// Its type in the shards.
        found: String,
        /// The dtype asked for.
        dtype: &'static str,
        /// What could become that dtype.
        allowed: &'static str,
        /// How to mend it.
        mend: &'static str,
    },
    /// Shards that disagree on a column's type.
    #[error(
        "column `{column}` has type {got} in {uri} but {expected} in the shards before it; write all shards with one schema"
    )]
    MixedTypes {
        /// The column.
        column: String,
        /// The shard that differs.
        uri: String,
        /// The type in the first shard.
        expected: String,
        /// The type in this one.
        got: String,
    },
    /// A column that a shard lacks.
    #[error("column `{column}` is not in {uri}; its columns are: {}", available.join(", "))]
    MissingColumn {
        /// The column.
        column: String,
        /// The shard.
        uri: String,
        /// The columns there are, `key=value` directories included.
        available: Vec<String>,
    },
    /// A shape that the columns' elements do not fill.
    #[error(
        "tensor `{tensor}`: shape {shape:?} holds {} elements a row, but its columns hold {elements}",
        shape.iter().product::<usize>()
    )]
    ShapeMismatch {
        /// The tensor.
        tensor: String,
        /// The shape that was given.
        shape: Vec<usize>,
        /// Elements a row in the data.
        elements: usize,
    },
    /// A dataset spec that contradicts itself.
    #[error("invalid dataset spec: {reason}")]
    InvalidSpec {
        /// What is wrong.
        reason: String,
    },
    /// A manifest that does not hold together.
    #[error("the manifest cannot be used: {reason}")]
    InvalidManifest {
        /// What is wrong.
        reason: String,
    },
    /// No rows at all.
    #[error("the dataset is empty: {num_shards} Parquet files with no rows")]
    EmptyDataset {
        /// How many files were looked at.
        num_shards: usize,
    },
    /// A setting out of its bounds.
    #[error("{name} = {value} is not allowed; allowed: {allowed}")]
    InvalidOption {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// An option that no object store knows.
    #[error(
        "store option = {key} is not allowed; allowed: object_store's names, such as aws_access_key_id, aws_endpoint, \
         azure_storage_account_key, google_service_account, timeout"
    )]
    UnknownStoreOption {
        /// Its name.
        key: String,
    },
    /// A URI scheme that the store does not know.
    #[error(
        "the scheme `{scheme}` of {uri} is not supported; supported: local paths, file, dbfs, s3, s3a, abfs, abfss, gs"
    )]
    UnknownScheme {
        /// The scheme.
        scheme: String,
        /// The whole URI.
        uri: String,
    },
    /// A URI that cannot be read.
    #[error("cannot read the URI {uri}: {reason}")]
    InvalidUri {
        /// The URI.
        uri: String,
        /// Why not.
        reason: String,
    },
    /// A file that is not there.
    #[error("{uri} does not exist")]
    NotFound {
        /// The file.
        uri: String,
    },
    /// The object store refused or could not be reached.
    #[error("cannot {operation} {uri}: {source}")]
    Store {
        /// What was tried ("read", "write", ...).
        operation: &'static str,
        /// On what.
        uri: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A local file could not be read or written.
    #[error("cannot {operation} {uri}: {source}")]
    Io {
        /// What was tried ("read", "write", ...).
        operation: &'static str,
        /// On what.
        uri: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A shard that is no valid Parquet.
    #[error("{uri} cannot be read as Parquet: {source}")]
    Parquet {
        /// The shard.
        uri: String,
        /// The cause.
        source: parquet::errors::ParquetError,
    },
    /// The Parquet decoder panicked, which corrupt bytes can bring about.
    #[error("decoding {uri} failed: {message}")]
    Decoder {
        /// The shard.
        uri: String,
        /// The panic's text.
        message: String,
    },
    /// A bitmap of the rows to read of a file that does not suit the file.
    #[error("{bitmap} cannot say which rows of {uri} are read: {reason}")]
    InvalidBitmap {
        /// The file.
        uri: String,
        /// The file with the bitmap.
        bitmap: String,
        /// What does not fit.
        reason: String,
    },
    /// A shard that is not the one the manifest was read from.
    #[error("{uri} changed since the training began: {reason}")]
    ShardChanged {
        /// The shard.
        uri: String,
        /// What differs.
        reason: String,
    },
    /// Rows did not arrive in time.
    #[error("waited {:.1} s for rows of {uri} without success", waited.as_secs_f64())]
    Timeout {
        /// A shard that is awaited.
        uri: String,
        /// How long it was waited.
        waited: Duration,
    },
    /// The interrupt that the caller installed asked to stop.
    #[error("interrupted while waiting for rows")]
    Interrupted,
    /// The reader was used after an error without a new `start`, or before its first.
    #[error("the batch reader is not started (or stopped after an error); call start")]
    NotStarted,
}

impl DataError {
    /// Whether the same request may go better later: a store that throttled, timed out, failed by itself or could not be
    /// reached, and rows that came too late. Neither what a file holds nor a request that a store refuses.
    pub fn is_transient(&self) -> bool {
        match self {
            DataError::Timeout { .. } => true,
            DataError::Store { source, .. } => is_transient(&**source),
            DataError::Io { source, .. } => is_transient(source),
            _ => false,
        }
    }

    /// Whether it is of a store, its paths and options, and not of what lies in files.
    pub fn is_of_store(&self) -> bool {
        use DataError as E;
        matches!(
            self,
            E::Store { .. }
                | E::UnknownScheme { .. }
                | E::InvalidUri { .. }
                | E::UnknownStoreOption { .. }
                | E::NotFound { .. }
                | E::Io { .. }
                | E::Timeout { .. }
        )
    }
}

fn is_transient(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind;
    use object_store::Error;
    if let Some(error) = error.downcast_ref::<Error>() {
        return match error {
            // What is left after object_store's own retries, and what it has no other variant for, such as options that
            // contradict each other.
            Error::Generic { source, .. } => {
                let mut link: Option<&(dyn std::error::Error + 'static)> = Some(&**source);
                while let Some(error) = link.filter(|error| !may_pass(*error)) {
                    link = error.source();
                }
                link.is_some()
            }
            // Refusals have variants of their own.
            error => matches!(error, Error::JoinError { .. }),
        };
    }
    let Some(error) = error.downcast_ref::<io::Error>() else {
        return false;
    };
    if let Some(within) = error.get_ref() {
        return is_transient(within);
    }
    // What mounted stores and network file systems fail with: EIO too, where what is behind the mount fails by itself.
    let by_kind = matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::WouldBlock
            | ErrorKind::ResourceBusy
            | ErrorKind::StaleNetworkFileHandle
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::NotConnected
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::BrokenPipe
    );
    by_kind || error.raw_os_error() == Some(libc::EIO)
}

/// Whether one link of an object store's error says that the service was busy, failed, or was lost on the way.
fn may_pass(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.is::<HttpError>() {
        return true;
    }
    // The type that holds the status is object_store's own, so its words have to do. An error in a response that is a success
    // is S3's SlowDown or InternalError; a 400 may be of a slow upload, or of credentials that a new process has anew.
    let text = error.to_string();
    let status = text.strip_prefix("Server returned non-2xx status code: ");
    text.starts_with("Server returned error response: ")
        || status.is_some_and(|status| {
            ["5", "408", "429"]
                .iter()
                .any(|code| status.starts_with(code))
                || ["RequestTimeout", "ExpiredToken"]
                    .iter()
                    .any(|code| status.contains(&format!("<Code>{code}</Code>")))
        })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use object_store::aws::AmazonS3Builder;
    use object_store::{ObjectStoreExt, RetryConfig};
    use tokio::runtime::Builder;

    use super::*;

    fn of_store(source: object_store::Error) -> DataError {
        DataError::Store {
            operation: "read",
            uri: "s3://bucket/x".into(),
            source: Box::new(source),
        }
    }

    fn of_disk(code: i32) -> DataError {
        DataError::Io {
            operation: "read",
            uri: "/Volumes/x".into(),
            source: io::Error::from_raw_os_error(code),
        }
    }

    /// What object_store says, without its retries, of a service that answers so, or that hangs up where it does not.
    fn of_service(answer: &'static str) -> object_store::Error {
        // An error says that the process has one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let bucket = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_region("us-east-1")
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_skip_signature(true)
            .with_retry(RetryConfig {
                max_retries: 0,
                ..RetryConfig::default()
            })
            .build()
            .unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(bucket.get(&"x".into())).unwrap_err()
    }

    const EXPIRED: &str = "HTTP/1.1 400 Bad Request\r\nContent-Length: 46\r\n\r\n\
                           <Error><Code>ExpiredToken</Code></Error>      ";

    #[test]
    fn what_may_go_better_later() {
        let late = DataError::Timeout {
            uri: "x".into(),
            waited: Duration::from_secs(1),
        };
        let answered = |answer| of_store(of_service(answer));
        let passed_on = DataError::Io {
            operation: "read",
            uri: "x".into(),
            source: io::Error::other(of_service("")),
        };
        for error in [
            late,
            answered("HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"),
            answered("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"),
            answered(""),
            passed_on,
            answered(EXPIRED),
            of_disk(libc::EIO),
            of_disk(libc::ETIMEDOUT),
        ] {
            assert!(error.is_transient(), "{error}");
        }
        let forbidden = of_store(object_store::Error::PermissionDenied {
            path: "x".into(),
            source: "403".into(),
        });
        let gone = DataError::NotFound { uri: "x".into() };
        // No bucket was named.
        let unbuilt = of_store(AmazonS3Builder::new().build().unwrap_err());
        for error in [
            forbidden,
            gone,
            unbuilt,
            answered("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
            of_disk(libc::EACCES),
            of_disk(libc::ENOSPC),
            DataError::NotStarted,
        ] {
            assert!(!error.is_transient(), "{error}");
        }
    }
}
