//! What the params of gradient compression ask for.

use flambeau_collective::DType;

use super::params::{GradientCompression, TrainingParams};
use crate::error::JobError;

/// How gradients are compressed: the job's params that say so.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Compression {
    /// They travel as they are.
    #[default]
    None,
    /// As float16.
    Fp16,
    /// As bfloat16.
    Bf16,
    /// As products of two matrices of at most `rank` columns, from step `start_step` on.
    PowerSgd {
        /// The most columns, at least 1.
        rank: usize,
        /// The first step, counted from 0, whose gradients are compressed.
        start_step: u64,
    },
    /// As the entries of largest magnitude.
    TopK {
        /// The share of each parameter's elements that is sent, above 0 and at most 1.
        ratio: f64,
    },
}

impl Compression {
    /// What a job's params ask for.
    pub fn of(params: &TrainingParams) -> Compression {
        match params.gradient_compression {
            GradientCompression::None => Compression::None,
            GradientCompression::Fp16 => Compression::Fp16,
            GradientCompression::Bf16 => Compression::Bf16,
            GradientCompression::PowerSgd => Compression::PowerSgd {
                rank: params.power_sgd_rank,
                start_step: params.power_sgd_start_step,
            },
            GradientCompression::TopK => Compression::TopK {
                ratio: params.top_k_ratio,
            },
        }
    }

    /// What gradients travel as between devices: as they are, or as floats of this type.
    ///
    /// # Errors
    ///
    /// What `device` allows in place of a compression that has never run on one.
    pub(crate) fn on_device(self) -> Result<Option<DType>, JobError> {
        let name = match self {
            Compression::None => return Ok(None),
            Compression::Fp16 => return Ok(Some(DType::Float16)),
            Compression::Bf16 => return Ok(Some(DType::BFloat16)),
            Compression::PowerSgd { .. } => "powersgd",
            Compression::TopK { .. } => "topk",
        };
        Err(JobError::invalid(
            "gradientCompression",
            name,
            "none, fp16 or bf16 on a GPU; or device cpu",
        ))
    }

    /// Whether something is carried from step to step.
    pub(crate) fn has_state(self) -> bool {
        matches!(
            self,
            Compression::PowerSgd { .. } | Compression::TopK { .. }
        )
    }
}
