//! Batches on their way from the reader to where the model computes.

use std::collections::VecDeque;

use flambeau_data::BatchReader;

use crate::error::Cause;
use crate::model::{Model, StagedBatch};

/// The batches that are ahead of the one in use, where the model asks for that.
pub(crate) struct Staging {
    ahead: VecDeque<Staged>,
    is_training: bool,
}

/// A batch that the model has taken note of.
pub(crate) struct Staged {
    /// The number of the batch within the epoch.
    pub(crate) index: u64,
    pub(crate) batch: StagedBatch,
}

impl Staging {
    /// Of batches to train on, or to validate on.
    pub(crate) fn new(is_training: bool) -> Self {
        Staging {
            ahead: VecDeque::new(),
            is_training,
        }
    }

    /// The reader's next batch, none at the end of the epoch. Begins to bring those after it to the model.
    pub(crate) fn next(
        &mut self,
        reader: &mut BatchReader,
        model: &mut dyn Model,
    ) -> Result<Option<Staged>, Cause> {
        while self.ahead.len() <= model.looks_ahead() {
            match stage(reader, model, self.is_training)? {
                Some(staged) => self.ahead.push_back(staged),
                None => break,
            }
        }
        let present = self.ahead.pop_front();
        if let Some(staged) = &present {
            model.await_staged(&staged.batch).map_err(Cause::Model)?;
        }
        Ok(present)
    }
}

fn stage(
    reader: &mut BatchReader,
    model: &mut dyn Model,
    is_training: bool,
) -> Result<Option<Staged>, Cause> {
    let Some(batch) = reader.next()? else {
        return Ok(None);
    };
    let index = batch.index;
    // A rank without rows computes nothing.
    let batch = match batch.num_rows {
        0 => batch.into(),
        _ => model.stage(batch, is_training).map_err(Cause::Model)?,
    };
    Ok(Some(Staged { index, batch }))
}
