//! What a saved model, a program, Parquet shards, a checkpoint or a run hold, in words.

use std::collections::HashMap;

use flambeau_data::{Contents, DataError, Store, TensorSpec};
use flambeau_torch::{ProgramDescription, TensorDescription};
use flambeau_train::checkpoint::{self, CheckpointContents};
use serde_json::{Value, json};

use crate::saved::SavedProgram;

type Failed = Box<dyn std::error::Error>;

/// Prints what lies at each path. Parquet files of the same columns are told together.
///
/// # Errors
/// What cannot be read.
pub(crate) fn inspect(paths: &[String]) -> Result<(), Failed> {
    let store = Store::new(&HashMap::new())?;
    let mut shards = vec![];
    for path in paths {
        if let Some((work_dir, id)) = run_at(path) {
            print_run(&store, path, work_dir, id)?;
        } else if let Some(found) = checkpoint::describe(&store, path)? {
            print_checkpoint(path, &found);
        } else if let Some(found) = shards_at(&store, path)? {
            shards.extend(found);
        } else {
            print_model(&store, path)?;
        }
    }
    if !shards.is_empty() {
        print_shards(&shards);
    }
    Ok(())
}

/// The Parquet files that a path means: itself, or those under a directory that holds no model.
fn shards_at(store: &Store, path: &str) -> Result<Option<Vec<Contents>>, DataError> {
    let uris = if is_parquet(path) && store.size(path)?.is_some() {
        vec![path.to_owned()]
    } else {
        let mut uris = store.list(path).unwrap_or_default();
        uris.retain(|uri| is_parquet(uri));
        uris.sort();
        uris
    };
    if uris.is_empty() {
        return Ok(None);
    }
    let read = uris.iter().map(|uri| Contents::read(store, uri));
    read.collect::<Result<_, _>>().map(Some)
}

fn is_parquet(uri: &str) -> bool {
    uri.ends_with(".parquet")
}

fn print_shards(shards: &[Contents]) {
    let rows: u64 = shards.iter().map(|shard| shard.num_rows).sum();
    let groups: usize = shards.iter().map(|shard| shard.num_row_groups).sum();
    let bytes: u64 = shards.iter().map(|shard| shard.size).sum();
    println!(
        "{} Parquet {}: {rows} rows, {groups} row groups, {bytes} bytes",
        shards.len(),
        if shards.len() == 1 { "file" } else { "files" },
    );
    for shard in shards {
        println!(
            "  {}: {} rows, {} row groups, {} bytes",
            shard.uri, shard.num_rows, shard.num_row_groups, shard.size
        );
    }
    let mut told: Option<&Contents> = None;
    for shard in shards {
        if told.is_some_and(|other| other.columns == shard.columns) {
            continue;
        }
        println!("columns of {}:", shard.uri);
        for column in &shard.columns {
            let dtype = column.dtype.map_or("no tensor", |dtype| dtype.name());
            println!("  {}: {} ({dtype})", column.name, column.data_type);
        }
        told = Some(shard);
    }
}

/// The work directory and the name of the run whose file a path is; none for a path of anything else.
fn run_at(path: &str) -> Option<(&str, &str)> {
    let (directory, file) = path.rsplit_once('/')?;
    let work_dir = match directory {
        "runs" => ".",
        _ => directory.strip_suffix("/runs")?,
    };
    Some((work_dir, file.strip_suffix(".json")?))
}

fn print_run(store: &Store, path: &str, work_dir: &str, id: &str) -> Result<(), Failed> {
    let question = json!({"ask": "readRun", "id": id}).to_string();
    let answer = flambeau_supervisor::answer(work_dir, &question, &HashMap::new())?;
    let found: Value = serde_json::from_str(&answer)?;
    if found.is_null() {
        return match store.size(path)? {
            None => Err(format!("there is no run at {path}").into()),
            Some(_) => {
                println!(
                    "{path}: a run without a checkpoint, so that the next fit with its runId begins anew"
                );
                Ok(())
            }
        };
    }
    let run = &found["run"];
    let Some(job) = run["job"].as_object() else {
        return Err(format!("{path} is damaged, or another version of Flambeau wrote it").into());
    };
    println!("{path}: a run");
    let of = match run["readsAll"] == true {
        true => "all of them",
        false => "the sizes and the ends of their files",
    };
    println!(
        "rows: {} (SHA-256 of {of})",
        run["rows"].as_str().unwrap_or_default()
    );
    println!("params:");
    for (name, value) in job {
        println!("  {name}: {value}");
    }
    println!("attempts:");
    for attempt in run["attempts"].as_array().into_iter().flatten() {
        let attempt = attempt.as_str().unwrap_or_default();
        let checkpoints = checkpoint::finished(store, work_dir, attempt)?;
        if checkpoints.is_empty() {
            println!("  {attempt}: no checkpoint");
            continue;
        }
        println!("  {attempt}:");
        for info in checkpoints {
            let lack = checkpoint::describe(store, &info.uri)?.and_then(|found| found.lack);
            let lack = lack.map_or(String::new(), |lack| format!(", not whole: {lack}"));
            println!("    step {}: {}{lack}", info.step, info.uri);
        }
    }
    Ok(())
}

fn print_checkpoint(path: &str, found: &CheckpointContents) {
    match &found.lack {
        None => println!("{path}: a checkpoint, committed"),
        Some(lack) => println!("{path}: a checkpoint that nothing goes on from: {lack}"),
    }
    if let Some(state) = &found.state {
        println!("Flambeau: {}", state.version);
        println!("step: {}", state.step);
        println!(
            "epoch: {}, from batch {} on, after {} of its {} rows",
            state.epoch, state.batch, state.num_rows, state.rows_per_epoch
        );
        println!("world size: {}", state.world_size);
        if let Some((attempt, step)) = &found.before {
            println!("before it: step {step} of attempt {attempt}");
        }
        if let Some(last) = state.history.epochs.last() {
            println!("epoch {} came to:", last.epoch);
            for (name, value) in last.figures() {
                let value = value.map_or("none".into(), |value| value.to_string());
                println!("  {name}: {value}");
            }
        }
        if let Some(best) = state.history.best_epoch {
            println!("best epoch: {best}");
        }
    }
    println!("files:");
    for (name, size) in &found.files {
        println!("  {name}: {size} bytes");
    }
}

fn print_model(store: &Store, path: &str) -> Result<(), Failed> {
    let saved = SavedProgram::open(store, path)?;
    println!("{path}: a program, {} ({})", saved.form, saved.program);
    let mut inputs: &[TensorSpec] = &[];
    if let Some(contents) = &saved.contents {
        inputs = &contents.inputs;
        let versions = [
            ("class", &contents.class),
            ("Flambeau", &contents.flambeau_version),
            ("Python", &contents.python_version),
            ("torch", &contents.torch_version),
        ];
        for (name, version) in versions {
            if let Some(version) = version {
                println!("{name}: {version}");
            }
        }
        if let Some(summary) = contents.summary.as_object() {
            for (name, value) in summary {
                println!("{name}: {value}");
            }
        }
        println!("files:");
        for (name, file) in &contents.files {
            println!("  {name}: {} bytes", file.size);
        }
    }
    let form = serde_json::from_value(saved.form.into())?;
    let program = store.get(&saved.program)?;
    let description = flambeau_torch::describe(form, &program, inputs)?;
    print_inputs(inputs);
    print_description(&description);
    Ok(())
}

fn print_inputs(inputs: &[TensorSpec]) {
    if inputs.is_empty() {
        return;
    }
    println!("inputs:");
    for input in inputs {
        let shape = input.shape.as_deref().unwrap_or_default();
        println!(
            "  {}: {} {shape:?} a row, of {}",
            input.name,
            input.dtype,
            input.columns.join(", ")
        );
    }
}

fn print_description(description: &ProgramDescription) {
    if let Some(output) = &description.output {
        println!("outputs:");
        for tensor in output {
            let name = tensor.name.as_deref().unwrap_or("prediction");
            println!("  {name}: {} {:?} a row", tensor.dtype, tensor.shape);
        }
    }
    let numel = |tensor: &TensorDescription| tensor.shape.iter().product::<i64>();
    let parameters = description
        .tensors
        .iter()
        .filter(|tensor| !tensor.is_buffer);
    println!(
        "{} parameters and buffers, {} elements of parameters:",
        description.tensors.len(),
        parameters.map(numel).sum::<i64>()
    );
    for tensor in &description.tensors {
        let role = match (tensor.is_buffer, tensor.requires_grad) {
            (true, _) => "buffer",
            (false, true) => "parameter",
            (false, false) => "frozen parameter",
        };
        println!(
            "  {}: {} {:?}, {role}",
            tensor.name, tensor.dtype, tensor.shape
        );
    }
}
