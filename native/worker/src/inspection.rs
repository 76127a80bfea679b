//! What a saved model, a program or Parquet shards hold, in words.

use std::collections::HashMap;

use flambeau_data::{Contents, DataError, Store, TensorSpec};
use flambeau_torch::{ProgramDescription, TensorDescription};

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
        match shards_at(&store, path)? {
            Some(found) => shards.extend(found),
            None => print_model(&store, path)?,
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
