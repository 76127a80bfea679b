//! Batches on their way from the reader to where the model computes.

use flambeau_data::BatchReader;

use crate::error::Cause;
use crate::model::{Model, StagedBatch};

/// The batch that is ahead of the one in use, where the model asks for that.
#[derive(Default)]
pub(crate) struct Staging {
    ahead: Option<Staged>,
}

/// A batch that the model has taken note of.
pub(crate) struct Staged {
    /// The number of the batch within the epoch.
    pub(crate) index: u64,
    pub(crate) batch: StagedBatch,
}

impl Staging {
    /// The reader's next batch, none at the end of the epoch. Begins to bring the one after it to the model.
    pub(crate) fn next(
        &mut self,
        reader: &mut BatchReader,
        model: &mut dyn Model,
    ) -> Result<Option<Staged>, Cause> {
        let present = match self.ahead.take() {
            Some(staged) => Some(staged),
            None => stage(reader, model)?,
        };
        if present.is_some() && model.looks_ahead() {
            self.ahead = stage(reader, model)?;
        }
        Ok(present)
    }
}

fn stage(reader: &mut BatchReader, model: &mut dyn Model) -> Result<Option<Staged>, Cause> {
    let Some(batch) = reader.next()? else {
        return Ok(None);
    };
    let index = batch.index;
    // A rank without rows computes nothing.
    let batch = match batch.num_rows {
        0 => batch.into(),
        _ => model.stage(batch).map_err(Cause::Model)?,
    };
    Ok(Some(Staged { index, batch }))
}
