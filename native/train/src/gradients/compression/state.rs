//! What compression carries from one step to the next, and how it lies in a checkpoint.

use super::memory;

/// What a rank keeps of its gradients' compression, for each parameter in registration order. It does not depend on the
/// layout of the buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompressionState {
    /// One for each parameter.
    pub parameters: Vec<ParameterState>,
}

/// The same of one parameter. Both are empty where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterState {
    /// What this rank has not sent of its gradients: one number for each element.
    pub unsent: Vec<f32>,
    /// The columns of PowerSGD's Q, one after the other; the same on every rank.
    pub basis: Vec<f32>,
}

impl CompressionState {
    /// Little-endian: for each parameter both lists, each as its length (64 bits) and its numbers.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        for parameter in &self.parameters {
            for numbers in [&parameter.unsent, &parameter.basis] {
                bytes.extend((numbers.len() as u64).to_le_bytes());
                bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
        }
        bytes
    }

    /// What [`to_bytes`](Self::to_bytes) gave; `None` for other bytes.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<CompressionState> {
        let mut parameters = vec![];
        while !bytes.is_empty() {
            let (unsent, rest) = take(bytes)?;
            let (basis, rest) = take(rest)?;
            parameters.push(ParameterState { unsent, basis });
            bytes = rest;
        }
        Some(CompressionState { parameters })
    }

    /// Whether another state is of the same parameters, with as many numbers each.
    pub(crate) fn is_like(&self, other: &CompressionState) -> bool {
        let sizes = |state: &CompressionState| -> Vec<(usize, usize)> {
            let of = |p: &ParameterState| (p.unsent.len(), p.basis.len());
            state.parameters.iter().map(of).collect()
        };
        sizes(self) == sizes(other)
    }

    /// What rank `rank` of `world_size` goes on with, of what `states` gives for each rank of a world of another size. The
    /// ranks of the old world are dealt out, and what they have not sent counts `world_size / old` times, so that the mean
    /// over the ranks is what it was and no gradient is lost.
    ///
    /// # Errors
    ///
    /// What `states` says.
    pub(crate) fn dealt<E>(
        rank: usize,
        world_size: usize,
        old: usize,
        mut states: impl FnMut(usize) -> Result<CompressionState, E>,
    ) -> Result<CompressionState, E> {
        let mut dealt = states(rank % old)?;
        for other in (rank + world_size..old).step_by(world_size) {
            let other = states(other)?;
            for (parameter, other) in dealt.parameters.iter_mut().zip(&other.parameters) {
                memory::add(&mut parameter.unsent, &other.unsent);
            }
        }
        // A rank beyond the old world has nothing of its own.
        let factor = if rank < old {
            world_size as f32 / old as f32
        } else {
            0.0
        };
        if factor != 1.0 {
            let unsent = dealt.parameters.iter_mut().flat_map(|p| &mut p.unsent);
            unsent.for_each(|value| *value *= factor);
        }
        Ok(dealt)
    }
}

/// A list off the front of bytes, and what is behind it.
fn take(bytes: &[u8]) -> Option<(Vec<f32>, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let num_bytes = usize::try_from(u64::from_le_bytes(*len))
        .ok()?
        .checked_mul(4)?;
    let (numbers, rest) = rest.split_at_checked(num_bytes)?;
    let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    Some((numbers.chunks_exact(4).map(number).collect(), rest))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn state() -> impl Strategy<Value = CompressionState> {
        let numbers = || prop::collection::vec(-1e3f32..1e3, 0..5);
        let parameter =
            (numbers(), numbers()).prop_map(|(unsent, basis)| ParameterState { unsent, basis });
        prop::collection::vec(parameter, 0..4)
            .prop_map(|parameters| CompressionState { parameters })
    }

    proptest! {
        #[test]
        fn states_come_back_as_they_were_written(state in state()) {
            let bytes = state.to_bytes();
            prop_assert_eq!(CompressionState::from_bytes(&bytes), Some(state.clone()));
            if !bytes.is_empty() {
                prop_assert_eq!(CompressionState::from_bytes(&bytes[..bytes.len() - 1]), None);
            }
        }

        #[test]
        fn bytes_of_strangers_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = CompressionState::from_bytes(&bytes);
        }

        /// The mean over the ranks of what was not sent stays what it was.
        #[test]
        fn nothing_is_lost_between_worlds(old in 1usize..6, new in 1usize..6, values in prop::collection::vec(-8.0f32..8.0, 6)) {
            let of = |rank: usize| CompressionState {
                parameters: vec![ParameterState { unsent: vec![values[rank]; 3], basis: vec![0.5, 2.0] }],
            };
            let mut sum = 0.0f64;
            for rank in 0..new {
                let dealt = CompressionState::dealt(rank, new, old, |rank| Ok::<_, Infallible>(of(rank))).unwrap();
                prop_assert_eq!(&dealt.parameters[0].basis, &vec![0.5, 2.0]);
                prop_assert_eq!(dealt.parameters[0].unsent.len(), 3);
                sum += f64::from(dealt.parameters[0].unsent[1]);
                if old == new {
                    prop_assert_eq!(dealt, of(rank));
                }
            }
            let before = values[..old].iter().map(|&value| f64::from(value)).sum::<f64>() / old as f64;
            prop_assert!((sum / new as f64 - before).abs() < 1e-5);
        }
    }
}
