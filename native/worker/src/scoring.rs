//! Parquet rows through a model into a Parquet file.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use flambeau_data::{
    BatchReader, Contents, DataFile, DatasetSpec, Manifest, Numbers, OrderConfig, ReaderOptions,
    SampleOrder, Store, TableWriter, TensorSpec,
};
use flambeau_torch::{Scorer, ScorerSpec, Scores};
use serde_json::{Value, json};

use crate::arguments::ScoreArguments;
use crate::saved::SavedProgram;

type Failed = Box<dyn std::error::Error>;

/// The columns that a classifier's scores have.
const CLASS_FIELDS: [&str; 3] = ["prediction", "rawPrediction", "probability"];

/// Scores the rows and prints how many there were.
///
/// # Errors
/// What cannot be read, run or written.
pub(crate) fn score(arguments: &ScoreArguments) -> Result<(), Failed> {
    let store = Store::new(&HashMap::new())?;
    let saved = SavedProgram::open(&store, &arguments.model)?;
    let spec = DatasetSpec {
        inputs: inputs(arguments, &saved, &store)?,
        labels: vec![],
        weight: None,
        raw_columns: vec![],
    };
    let manifest = Arc::new(Manifest::read(
        &store,
        &DataFile::whole(&arguments.rows),
        &spec,
    )?);
    let directory = tempfile::tempdir()?;
    let (program, weights) = saved.fetch(&store, directory.path())?;
    let spec = json!({
        "form": saved.form,
        "program": program,
        "weights": weights,
        "inputs": tensors(manifest.spec()),
        "output": output(&saved, manifest.spec(), &program)?,
        "batchSize": arguments.batch_size,
        "classes": class_output(&saved),
        "fields": fields(&saved),
        "numThreads": arguments.num_threads.unwrap_or_else(num_cores),
        "gpu": arguments.gpu,
    });
    let names = names(&saved, &spec["output"]);
    let spec: ScorerSpec = serde_json::from_value(spec)?;
    let scorer = Scorer::open(&spec)?;

    let scored = directory.path().join("scores.parquet");
    let mut writer = TableWriter::create(&scored, names)?;
    let mut reader = reader(&store, &manifest, arguments.batch_size)?;
    reader.start(0, 0)?;
    while let Some(batch) = reader.next()? {
        let inputs: Vec<&[u8]> = batch.inputs.iter().map(|input| input.as_bytes()).collect();
        let scores = scorer.score(batch.num_rows, &inputs)?;
        writer.write(batch.num_rows, scores.into_iter().map(numbers_of).collect())?;
    }
    writer.finish()?;
    store.put_file(&arguments.output, &scored)?;
    println!("{} rows", manifest.num_rows());
    Ok(())
}

/// The tensors that the command line asks for, else those of the model.
fn inputs(
    arguments: &ScoreArguments,
    saved: &SavedProgram,
    store: &Store,
) -> Result<Vec<TensorSpec>, Failed> {
    let known = saved
        .contents
        .as_ref()
        .map_or(&[][..], |contents| &contents.inputs);
    if arguments.inputs.is_empty() {
        if known.is_empty() {
            let message =
                "nothing says which columns the program takes: give one --input for each argument";
            return Err(message.into());
        }
        return Ok(known.to_vec());
    }
    if !known.is_empty() && known.len() != arguments.inputs.len() {
        return Err(format!(
            "the model takes {} inputs, and there are {} --input",
            known.len(),
            arguments.inputs.len()
        )
        .into());
    }
    let stored = Contents::read(store, &arguments.rows[0])?;
    let mut specs = vec![];
    for (index, columns) in arguments.inputs.iter().enumerate() {
        let (dtype, shape) = match known.get(index) {
            Some(tensor) => (tensor.dtype, tensor.shape.clone()),
            None => {
                let column = stored.columns.iter().find(|one| one.name == columns[0]);
                let dtype = column.and_then(|column| column.dtype).ok_or_else(|| {
                    format!("{} has no column {} of numbers", stored.uri, columns[0])
                })?;
                (dtype, None)
            }
        };
        specs.push(TensorSpec {
            name: columns[0].clone(),
            columns: columns.clone(),
            dtype,
            shape,
        });
    }
    Ok(specs)
}

fn tensors(spec: &DatasetSpec) -> Vec<Value> {
    let tensors = spec.inputs.iter();
    tensors
        .map(|tensor| json!({"dtype": tensor.dtype, "shape": tensor.shape}))
        .collect()
}

/// The tensors that the program returns: as its metadata says, else as two rows tell.
fn output(
    saved: &SavedProgram,
    spec: &DatasetSpec,
    program: &std::path::Path,
) -> Result<Value, Failed> {
    if let Some(contents) = saved.contents.as_ref()
        && contents.output.is_array()
    {
        return Ok(contents.output.clone());
    }
    let form = serde_json::from_value(json!(saved.form))?;
    let description = flambeau_torch::describe(form, &std::fs::read(program)?, &spec.inputs)?;
    Ok(serde_json::to_value(description.output)?)
}

fn is_classifier(saved: &SavedProgram) -> bool {
    let class = saved
        .contents
        .as_ref()
        .and_then(|contents| contents.class.as_deref());
    class.is_some_and(|class| class.ends_with("ClassificationModel"))
}

fn class_output(saved: &SavedProgram) -> Value {
    match &saved.contents {
        Some(contents) if is_classifier(saved) => contents.classes.clone(),
        _ => Value::Null,
    }
}

fn fields(saved: &SavedProgram) -> &'static [&'static str] {
    if is_classifier(saved) {
        &CLASS_FIELDS
    } else {
        &[]
    }
}

/// The names of the columns: `prediction` for the only tensor, else the tensors' own.
fn names(saved: &SavedProgram, output: &Value) -> Vec<String> {
    if is_classifier(saved) {
        return CLASS_FIELDS.map(str::to_owned).to_vec();
    }
    let tensors = output.as_array().map_or(&[][..], Vec::as_slice);
    let name = |tensor: &Value| tensor["name"].as_str().unwrap_or("prediction").to_owned();
    tensors.iter().map(name).collect()
}

/// All rows in their order.
fn reader(
    store: &Store,
    manifest: &Arc<Manifest>,
    batch_size: usize,
) -> Result<BatchReader, Failed> {
    let config = OrderConfig {
        num_lanes: 1,
        rows_per_lane: batch_size,
        seed: 0,
        shuffle: false,
        drop_last: false,
        window_rows: batch_size,
        dealt_rows: 0,
    };
    let order = Arc::new(SampleOrder::new(manifest, config)?);
    let options = ReaderOptions {
        // Each row is read once.
        memory_budget: 0,
        ..ReaderOptions::default()
    };
    let reader = BatchReader::new(store.clone(), manifest.clone(), order, 0, 1, options)?;
    Ok(reader)
}

fn numbers_of(scores: Scores) -> Numbers {
    match scores {
        Scores::F32(values) => Numbers::Float32(values),
        Scores::F64(values) => Numbers::Float64(values),
        Scores::I64(values) => Numbers::Int64(values),
        Scores::Bool(values) => Numbers::Bool(values),
    }
}

fn num_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
