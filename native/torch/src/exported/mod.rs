//! Graphs of `torch.export`, run through libtorch's dispatcher with autograd.
//!
//! An archive's graph is compiled once, when it is loaded: values get numbered slots, operators are looked up and their
//! constant arguments converted. What cannot be run is refused then, by the name of its node. A run is one call into the
//! dispatcher for each node, so it computes what the module computes in Python, to the bit and with the same random
//! numbers. Parameters and buffers are inputs of the graph, so that a new value is seen by the next run.
//!
//! The mode of dropout and batch normalization is fixed in a graph, so a program is two graphs over the same weights, one
//! for training and one for evaluation; one serves for both where no operator depends on the mode.

mod archive;
mod compile;
mod dispatch;
mod graph;
mod numbers;
mod saved;
mod schema;
mod structure;
mod training;
mod weights;

use std::fs;
use std::path::Path;

use tch::{Device, Tensor};

use crate::error::TorchError;
use crate::program::{NamedTensor, Outputs, Program};
use crate::purity::check_operators;
use archive::{Archive, refused};
use graph::ReadyGraph;
use weights::Weights;

/// Operators without a derivative that eager modules take in evaluation only.
const NO_DERIVATIVE: [&str; 2] = [
    "aten._transformer_encoder_layer_fwd",
    "aten._native_multi_head_attention",
];

/// A program of one or two exported graphs.
pub struct ExportedProgram {
    weights: Weights,
    eval: ReadyGraph,
    train: Option<ReadyGraph>,
    /// What `write` writes: names of files and their bytes.
    archives: Vec<(&'static str, Vec<u8>)>,
}

/// Loads a program from the bytes of its archives: the graph in evaluation mode and, where there is one, that in
/// training mode. The weights are those of the first, zeros where it was saved without them.
///
/// # Errors
///
/// [`TorchError::Param`] where an archive is damaged, is of a layout that is not read, or has a node that cannot be run
/// (which is named); where the first graph is in training mode; where the two do not have the same weights.
pub fn load(eval: &[u8], train: Option<&[u8]>) -> Result<ExportedProgram, TorchError> {
    let mut archive = Archive::open(eval)?;
    let weights = Weights::read(&mut archive)?;
    let graph = ReadyGraph::new(&mut archive, &weights)?;
    if let Some(flag) = graph.mode_flags.iter().find(|flag| flag.training) {
        return Err(refused(&format!(
            "{} is in training mode, which would be the mode of scoring too; call module.eval() before torch.export, or \
             export both modes with flambeau.save_program",
            flag.label
        )));
    }
    let train = match train {
        None => None,
        Some(bytes) => {
            let mut archive = Archive::open(bytes)?;
            weights.check(&mut archive)?;
            Some(ReadyGraph::new(&mut archive, &weights)?)
        }
    };
    Ok(ExportedProgram {
        weights,
        eval: graph,
        train,
        archives: vec![],
    })
}

/// Refuses an archive, of a graph in either mode, that calls what may do more than compute.
///
/// # Errors
///
/// [`TorchError::Param`] names the operators; or says why the archive cannot be loaded.
pub(crate) fn load_pure(bytes: &[u8]) -> Result<(), TorchError> {
    let mut archive = Archive::open(bytes)?;
    let weights = Weights::read(&mut archive)?;
    check_operators(&ReadyGraph::new(&mut archive, &weights)?.operators)
}

impl ExportedProgram {
    /// The program with the archives that it was loaded from, for [`Program::write`]. They are kept without their sample
    /// inputs, which are a pickle.
    ///
    /// # Errors
    ///
    /// [`TorchError::Param`] where an archive is damaged.
    pub fn with_archives(
        mut self,
        eval: &[u8],
        train: Option<&[u8]>,
    ) -> Result<ExportedProgram, TorchError> {
        self.archives = vec![("program.pt2", archive::without_pickles(eval)?)];
        if let Some(train) = train {
            self.archives
                .push(("program-train.pt2", archive::without_pickles(train)?));
        }
        Ok(self)
    }
}

// SAFETY: a run in evaluation mode, which several threads may make at once, only reads the program: its tensors are handles
// with atomic counts, and new values of buffers are dropped.
unsafe impl Sync for ExportedProgram {}

impl Program for ExportedProgram {
    fn tensors(&self) -> Vec<NamedTensor> {
        self.weights.all()
    }

    fn forward(&self, inputs: &[Tensor], training: bool) -> Result<Outputs, TorchError> {
        match &self.train {
            Some(train) if training => train.run(inputs, true),
            None if training => {
                self.check_trainable()?;
                self.eval.run(inputs, true)
            }
            _ => self.eval.run(inputs, false),
        }
    }

    fn arguments(&self) -> Result<Vec<String>, TorchError> {
        Ok(self.eval.arguments())
    }

    fn move_to(&mut self, from: Device, to: Device) -> Result<(), TorchError> {
        self.weights.move_to(to)?;
        [Some(&mut self.eval), self.train.as_mut()]
            .into_iter()
            .flatten()
            .try_for_each(|graph| graph.move_to(from, to))
    }

    fn write(&self, directory: &Path) -> Result<Vec<String>, TorchError> {
        for (name, bytes) in &self.archives {
            let path = directory.join(name);
            fs::write(&path, bytes).map_err(|source| TorchError::Io {
                what: format!("writing {}", path.display()),
                source,
            })?;
        }
        Ok(self
            .archives
            .iter()
            .map(|(name, _)| (*name).to_string())
            .collect())
    }

    fn check_trainable(&self) -> Result<(), TorchError> {
        if self.train.is_some() {
            return Ok(());
        }
        let fixed = self.eval.mode_flags.first().map(|flag| flag.label.as_str());
        match fixed.or_else(|| self.eval.label_of_any(&NO_DERIVATIVE)) {
            None => Ok(()),
            Some(label) => Err(TorchError::Param(format!(
                "the exported program cannot be trained: {label} is in evaluation mode, which torch.export has fixed; export \
                 both modes with flambeau.save_program"
            ))),
        }
    }
}
