//! Gradients as 16-bit floats: what PyTorch's `fp16_compress_hook` and `bf16_compress_hook` do, but that the sum is one of
//! float32 and rounded once, after the division by the number of ranks.

use flambeau_collective::{Half, ProcessGroup, ReduceOp, Result, narrow, widen};

use super::wire::{Plain, Wire};
use super::{BucketView, Compressor, Exchange};

/// Compresses to half the bytes. float16 has 11 bits of precision and ends at 65504, beyond which gradients become
/// infinite; bfloat16 has 8 bits and the range of float32.
pub(super) struct Halves<H> {
    views: Vec<BucketView>,
    /// The gradients without the padding between them.
    wire: Wire<H>,
}

impl<H: Half + Plain> Halves<H> {
    /// A collective call.
    pub(super) fn new(group: &ProcessGroup, views: &[BucketView]) -> Result<Self> {
        Ok(Halves {
            wire: Wire::new(group, views.iter().map(|view| view.range.len()).sum())?,
            views: views.to_vec(),
        })
    }
}

impl<H: Half + Plain + Send> Compressor for Halves<H> {
    fn compress(&mut self, _step: u64, gradients: &mut [f32]) -> Option<Exchange> {
        let mut rest = self.wire.elements();
        for view in &self.views {
            let (halves, behind) = rest.split_at_mut(view.range.len());
            narrow(&gradients[view.range.clone()], halves);
            rest = behind;
        }
        Some(Exchange::Reduce(self.wire.raw(), ReduceOp::Average))
    }

    fn decompress(&mut self, gradients: &mut [f32]) {
        let mut rest = &*self.wire.elements();
        for view in &self.views {
            let (halves, behind) = rest.split_at(view.range.len());
            widen(halves, &mut gradients[view.range.clone()]);
            rest = behind;
        }
    }
}
