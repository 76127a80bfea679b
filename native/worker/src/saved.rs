//! Programs and saved models as they lie in a store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flambeau_data::{DataError, Store, TensorSpec};
use serde::Deserialize;
use serde_json::Value;

/// What a path means as a model.
pub(crate) struct SavedProgram {
    /// `scripted` or `exported`.
    pub(crate) form: &'static str,
    /// URI of the program that scores.
    pub(crate) program: String,
    /// URI of the weights; none where they are inside the program.
    pub(crate) weights: Option<String>,
    /// What the metadata says; none for a program's file.
    pub(crate) contents: Option<Contents>,
}

/// What a directory says of itself: the part of a saved model's metadata that is Flambeau's, or a `program.json`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Contents {
    /// The class that a saved model is of; none for a directory of programs.
    #[serde(default)]
    pub(crate) class: Option<String>,
    #[serde(default)]
    pub(crate) flambeau_version: Option<String>,
    #[serde(default)]
    pub(crate) python_version: Option<String>,
    #[serde(default)]
    pub(crate) torch_version: Option<String>,
    /// The files of the program by its forms.
    pub(crate) programs: BTreeMap<String, String>,
    /// Why there are not more forms.
    #[serde(default)]
    pub(crate) reasons: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) files: BTreeMap<String, StoredSize>,
    /// The tensors that the model takes.
    #[serde(default)]
    pub(crate) inputs: Vec<TensorSpec>,
    /// The tensors that it returns, as JSON.
    #[serde(default)]
    pub(crate) output: Value,
    /// How a classifier's output reads.
    #[serde(default)]
    pub(crate) classes: Value,
    /// What the training came to.
    #[serde(default)]
    pub(crate) summary: Value,
}

#[derive(Deserialize)]
pub(crate) struct StoredSize {
    /// In bytes.
    pub(crate) size: u64,
}

const WEIGHTS: &str = "weights.safetensors";

impl SavedProgram {
    /// What lies at a path: a file is a program, a directory a saved model or what `flambeau.save_program` wrote.
    ///
    /// # Errors
    /// One sentence that says what is there instead, or what the store says.
    pub(crate) fn open(store: &Store, path: &str) -> Result<SavedProgram, String> {
        let path = path.trim_end_matches('/');
        if !is_directory(path) && store.size(path).map_err(told)?.is_some() {
            let form = if path.ends_with(".pt2") {
                "exported"
            } else {
                "scripted"
            };
            return Ok(SavedProgram {
                form,
                program: path.into(),
                weights: None,
                contents: None,
            });
        }
        let contents = Contents::read(store, path)?;
        let forms = ["scripted", "exported"].into_iter();
        let found = forms
            .filter_map(|form| Some((form, contents.programs.get(form)?)))
            .next();
        let Some((form, program)) = found else {
            let reasons = contents.reasons.iter();
            let reasons: Vec<String> = reasons
                .map(|(form, reason)| format!("{form}: {reason}"))
                .collect();
            return Err(format!(
                "{path} holds no program that libtorch runs ({})",
                reasons.join("; ")
            ));
        };
        Ok(SavedProgram {
            form,
            program: format!("{path}/{program}"),
            weights: contents
                .files
                .contains_key(WEIGHTS)
                .then(|| format!("{path}/{WEIGHTS}")),
            contents: Some(contents),
        })
    }

    /// Copies the program's files into a local directory and returns their paths: the program's and the weights'.
    pub(crate) fn fetch(
        &self,
        store: &Store,
        directory: &Path,
    ) -> Result<(PathBuf, Option<PathBuf>), DataError> {
        let program = directory.join("program");
        store.get_to_file(&self.program, &program)?;
        let weights = match &self.weights {
            None => None,
            Some(uri) => {
                let path = directory.join(WEIGHTS);
                store.get_to_file(uri, &path)?;
                Some(path)
            }
        };
        Ok((program, weights))
    }
}

impl Contents {
    fn read(store: &Store, directory: &str) -> Result<Contents, String> {
        let own = format!("{directory}/program.json");
        if store.size(&own).map_err(told)?.is_some() {
            let text = store.get(&own).map_err(told)?;
            return serde_json::from_slice(&text)
                .map_err(|error| format!("{own} cannot be read: {error}"));
        }
        let parts = store
            .list(&format!("{directory}/metadata"))
            .unwrap_or_default();
        let is_part = |uri: &&String| {
            uri.rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with("part-"))
        };
        let Some(part) = parts.iter().find(is_part) else {
            return Err(format!(
                "{directory} is no model: give a saved model, a directory that flambeau.save_program wrote, or a \
                 program's file"
            ));
        };
        let text = store.get(part).map_err(told)?;
        let unreadable = |error: serde_json::Error| format!("{part} cannot be read: {error}");
        let mut metadata: Value = serde_json::from_slice(&text).map_err(unreadable)?;
        let mut ours = metadata["flambeau"].take();
        ours["class"] = metadata["class"].take();
        serde_json::from_value(ours).map_err(unreadable)
    }
}

fn is_directory(path: &str) -> bool {
    Path::new(path.strip_prefix("file://").unwrap_or(path)).is_dir()
}

fn told(error: DataError) -> String {
    flambeau_train::error_chain(&error)
}
