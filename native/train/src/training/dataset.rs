//! The rows of a job as one rank reads them.

use std::sync::Arc;
use std::time::Duration;

use flambeau_collective::ProcessGroup;
use flambeau_data::{
    BatchReader, DataFile, DatasetSpec, Manifest, OrderConfig, ReaderOptions, SampleOrder, Store,
};

use crate::error::{Cause, JobError};
use crate::job::TrainingJob;
use crate::training::hooks::Interrupt;
use crate::training::host;

/// A set of shards, the order of its rows and this rank's reader of them.
pub(crate) struct Dataset {
    pub(crate) num_rows: u64,
    pub(crate) window_rows: usize,
    pub(crate) order: Arc<SampleOrder>,
    pub(crate) reader: BatchReader,
}

/// The training rows, and the validation rows where there are any.
pub(crate) struct Datasets {
    pub(crate) train: Dataset,
    pub(crate) validation: Option<Dataset>,
}

impl Datasets {
    /// Opens the job's shards. Rank 0 reads their footers and tells the others; all ranks call this.
    ///
    /// # Errors
    ///
    /// What the footers say against the job, and fewer rows than the workers need.
    pub(crate) fn open(
        job: &TrainingJob,
        group: &ProcessGroup,
        store: &Store,
        interrupt: Option<Interrupt>,
    ) -> Result<Datasets, Cause> {
        let data = &job.data;
        let train = manifest(group, store, &data.train, &data.spec)?;
        let validation = match data.validation.as_slice() {
            [] => None,
            // The shapes that training's first row fixed hold for validation too.
            uris => Some(manifest(group, store, uris, train.spec())?),
        };
        let num_rows = train.num_rows();
        let workers = job.params.num_workers.max(group.world_size());
        if num_rows < workers as u64 {
            return Err(invalid(
                "numWorkers",
                workers,
                &format!("at most {num_rows}, the number of training rows"),
            ));
        }
        let total = num_rows
            + validation
                .as_ref()
                .map_or(0, |manifest| manifest.num_rows());
        let options = |rows: u64| ReaderOptions {
            memory_budget: (job.params.memory_budget as f64 * rows as f64 / total as f64) as u64,
            num_threads: reader_threads(group),
            timeout: Duration::from_secs_f64(job.params.collective_timeout),
            interrupt: interrupt.clone(),
            ..ReaderOptions::default()
        };
        let train = Dataset::new(job, group, store, train, true, options(num_rows))?;
        if train.order.batches_per_epoch() == 0 {
            let allowed = format!(
                "false: {num_rows} rows do not fill one global batch of {}",
                job.params.global_batch()
            );
            return Err(invalid("dropLast", true, &allowed));
        }
        let validation = validation
            .map(|manifest| {
                let options = options(manifest.num_rows());
                Dataset::new(job, group, store, manifest, false, options)
            })
            .transpose()?;
        Ok(Datasets { train, validation })
    }
}

impl Dataset {
    fn new(
        job: &TrainingJob,
        group: &ProcessGroup,
        store: &Store,
        manifest: Arc<Manifest>,
        training: bool,
        options: ReaderOptions,
    ) -> Result<Dataset, Cause> {
        let params = &job.params;
        let window_rows = params.window_rows(manifest.bytes_per_row());
        let config = OrderConfig {
            num_lanes: params.lanes(),
            rows_per_lane: params.rows_per_lane(),
            seed: params.seed as u64,
            shuffle: training && params.shuffle,
            drop_last: training && params.drop_last,
            window_rows,
            dealt_rows: params.dealt_rows(manifest.bytes_per_row()),
        };
        let order = Arc::new(SampleOrder::new(&manifest, config)?);
        let num_rows = manifest.num_rows();
        let reader = BatchReader::new(
            store.clone(),
            manifest,
            order.clone(),
            group.rank(),
            group.world_size(),
            options,
        )?;
        Ok(Dataset {
            num_rows,
            window_rows,
            order,
            reader,
        })
    }
}

/// Reads a manifest on rank 0 and gives it to all ranks, so that the footers are read once and all ranks agree.
fn manifest(
    group: &ProcessGroup,
    store: &Store,
    files: &[DataFile],
    spec: &DatasetSpec,
) -> Result<Arc<Manifest>, Cause> {
    if group.rank() == 0 {
        let manifest = Manifest::read(store, files, spec)?;
        let message = serde_json::to_vec(&manifest).expect("a manifest is JSON");
        group.broadcast_bytes(&message, 0)?;
        return Ok(Arc::new(manifest));
    }
    let message = group.broadcast_bytes(&[], 0)?;
    let manifest =
        Manifest::from_json(&message).map_err(|error| Cause::Version(error.to_string()))?;
    Ok(Arc::new(manifest))
}

/// Threads that decode rows: half of this rank's share of the cores, from 1 to 4.
fn reader_threads(group: &ProcessGroup) -> usize {
    (host::num_cores() / host::num_ranks_here(group) / 2).clamp(1, 4)
}

fn invalid(param: &str, value: impl ToString, allowed: &str) -> Cause {
    JobError::invalid(param, value, allowed).into()
}
