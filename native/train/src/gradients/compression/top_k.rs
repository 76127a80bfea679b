//! The largest gradients alone, the rest remembered: sparse gradients with error feedback, as in Deep Gradient Compression
//! (Lin et al. 2018) and Sparsified SGD with Memory (Stich et al. 2018).

use std::ops::Range;

use flambeau_collective::{ProcessGroup, Result};

use super::largest::Largest;
use super::memory::add;
use super::plan::Entries;
use super::wire::Wire;
use super::{BucketView, Compressor, Exchange, ParameterState};

/// Sends of each parameter the entries of largest magnitude, of what this rank has not sent yet.
///
/// What is not sent is kept and added to the next step's gradients, so that in the end everything is. Each rank chooses
/// for itself. Every rank gets all ranks' entries and adds them in rank order.
pub(super) struct TopK {
    views: Vec<Entries>,
    /// What this rank has not sent, for each element of the bucket.
    memory: Vec<f32>,
    /// Each rank's entries, in rank order: index in the bucket in the upper half, the number's bits in the lower.
    wire: Wire<i64>,
    /// Where this rank's are.
    own: Range<usize>,
    largest: Largest,
    world_size: usize,
}

impl TopK {
    /// A compressor that sends `ratio` of each parameter's elements, rounded up. A collective call.
    pub(super) fn new(
        group: &ProcessGroup,
        numel: usize,
        views: &[BucketView],
        ratio: f64,
    ) -> Result<TopK> {
        let views = Entries::of(views, ratio);
        let num = views.iter().map(|entries| entries.num).sum::<usize>();
        let (rank, world_size) = (group.rank(), group.world_size());
        Ok(TopK {
            views,
            memory: vec![0.0; numel],
            wire: Wire::new(group, num * world_size)?,
            own: rank * num..(rank + 1) * num,
            largest: Largest::default(),
            world_size,
        })
    }
}

impl Compressor for TopK {
    fn compress(&mut self, _step: u64, gradients: &mut [f32]) -> Option<Exchange> {
        add(&mut self.memory, gradients);
        let mut sent = self.wire.elements()[self.own.clone()].iter_mut();
        for entries in &self.views {
            let start = entries.view.range.start;
            let unsent = &mut self.memory[entries.view.range.clone()];
            for (&index, sent) in self.largest.find(unsent, entries.num).iter().zip(&mut sent) {
                let value = std::mem::take(&mut unsent[index as usize]);
                *sent = ((start as i64 + i64::from(index)) << 32) | i64::from(value.to_bits());
            }
        }
        Some(Exchange::Gather(self.wire.raw()))
    }

    fn decompress(&mut self, gradients: &mut [f32]) {
        gradients.fill(0.0);
        for &sent in self.wire.elements().iter() {
            gradients[(sent as u64 >> 32) as usize] += f32::from_bits(sent as u32);
        }
        let world_size = self.world_size as f32;
        gradients.iter_mut().for_each(|value| *value /= world_size);
    }

    fn save(&mut self, parameters: &mut [ParameterState]) {
        for Entries { view, .. } in &self.views {
            parameters[view.index].unsent = self.memory[view.range.clone()].to_vec();
        }
    }

    fn restore(&mut self, parameters: &[ParameterState]) {
        for Entries { view, .. } in &self.views {
            self.memory[view.range.clone()].copy_from_slice(&parameters[view.index].unsent);
        }
    }
}
