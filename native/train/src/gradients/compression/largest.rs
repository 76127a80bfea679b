//! Which numbers of many are the largest.

use flambeau_collective::Kernel;

/// Numbers that are looked at together: a row of vectors without one that is large enough is passed over at once.
const ROW: usize = 64;
/// Numbers below which looking at a sample first does not pay.
const FEW: usize = 4096;
/// The least size of a sample.
const SAMPLE: usize = 2048;

/// Finds the `k` numbers of largest magnitude and keeps its memory for the next time. Of equal ones the first are taken.
/// NaN counts as the largest, so that it is seen.
#[derive(Default)]
pub(super) struct Largest {
    keys: Vec<u32>,
    candidates: Vec<u32>,
}

impl Largest {
    /// The indices of the largest of `values`, ascending; there are `k` of them, or fewer values.
    pub(super) fn find(&mut self, values: &[f32], k: usize) -> &[u32] {
        let k = k.min(values.len());
        let guess = self.guess(values, k);
        self.collect(values, guess);
        if self.candidates.len() < k {
            self.collect(values, 0);
        }
        self.keep(values, k);
        &self.candidates
    }

    /// A key that somewhat more than `k` of the values probably reach, from a sample of them.
    fn guess(&mut self, values: &[f32], k: usize) -> u32 {
        if values.len() < FEW {
            return 0;
        }
        let stride = (values.len() / SAMPLE.max(values.len() / 256)).max(1);
        self.keys.clear();
        self.keys
            .extend(values.iter().step_by(stride).map(|&value| key(value)));
        let expected = k as f64 * self.keys.len() as f64 / values.len() as f64;
        // Four standard deviations of the number that a random sample has.
        let rank = (expected + 4.0 * expected.sqrt() + 1.0) as usize;
        if rank >= self.keys.len() {
            return 0;
        }
        *self
            .keys
            .select_nth_unstable_by(rank, |left, right| right.cmp(left))
            .1
    }

    fn collect(&mut self, values: &[f32], least: u32) {
        self.candidates.clear();
        let candidates = &mut self.candidates;
        Collect {
            values,
            least,
            candidates,
        }
        .run();
    }

    /// Leaves the `k` largest of the candidates.
    fn keep(&mut self, values: &[f32], k: usize) {
        if k == 0 {
            self.candidates.clear();
        }
        if self.candidates.len() <= k {
            return;
        }
        let key_of = |&index: &u32| key(values[index as usize]);
        self.keys.clear();
        self.keys.extend(self.candidates.iter().map(key_of));
        let (larger, &mut least, _) = self
            .keys
            .select_nth_unstable_by(k - 1, |left, right| right.cmp(left));
        let mut ties = k - larger.iter().filter(|&&key| key > least).count();
        self.candidates.retain(|index| {
            let key = key_of(index);
            let is_tie = key == least && ties > 0;
            ties -= usize::from(is_tie);
            key > least || is_tie
        });
    }
}

/// Orders numbers by magnitude.
#[inline(always)]
fn key(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Gathers the indices of values whose key is at least `least`.
struct Collect<'a> {
    values: &'a [f32],
    least: u32,
    candidates: &'a mut Vec<u32>,
}

impl Kernel for Collect<'_> {
    #[inline(always)]
    fn body(self) {
        for (number, row) in self.values.chunks(ROW).enumerate() {
            let num = row
                .iter()
                .map(|&value| u32::from(key(value) >= self.least))
                .sum::<u32>();
            if num == 0 {
                continue;
            }
            for (offset, &value) in row.iter().enumerate() {
                if key(value) >= self.least {
                    self.candidates.push((number * ROW + offset) as u32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Largest;

    /// All indices sorted by magnitude, then by index.
    fn sorted(values: &[f32], k: usize) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..values.len() as u32).collect();
        indices.sort_by(|&left, &right| {
            let magnitude = |index: u32| values[index as usize].abs();
            magnitude(right).total_cmp(&magnitude(left))
        });
        indices.truncate(k);
        indices.sort();
        indices
    }

    proptest! {
        #[test]
        fn the_largest_are_those_of_a_sort(
            values in prop::collection::vec(prop_oneof![any::<f32>(), (-2i8..3).prop_map(f32::from)], 0..300),
            k in 0usize..310,
        ) {
            let mut largest = Largest::default();
            prop_assert_eq!(largest.find(&values, k), sorted(&values, k));
        }

        /// Enough values for a sample, many of them equal, the large ones anywhere or all in one place.
        #[test]
        fn the_largest_of_many_are_those_of_a_sort(
            len in 4000usize..30_000, k in 1usize..600, levels in 1u32..5000, gathered: bool, seed: u32,
        ) {
            let value = |index: u32| {
                let random = index.wrapping_add(seed).wrapping_mul(0x9E37_79B9).rotate_left(13).wrapping_mul(0x85EB_CA6B);
                let value = (random % levels) as f32 - levels as f32 / 2.0;
                if gathered && index < 700 { value * 1e6 } else { value }
            };
            let values: Vec<f32> = (0..len as u32).map(value).collect();
            let mut largest = Largest::default();
            for _ in 0..2 {
                prop_assert_eq!(largest.find(&values, k), sorted(&values, k));
            }
        }
    }
}
