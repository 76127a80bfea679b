//! Which parameters any rank used, packed into few float64 that can be summed.

/// Packs one small counter for each parameter into float64 numbers, so that a sum over ranks adds up every counter
/// without a carry into the next: whole numbers are exact below 2^53.
pub(crate) struct UsageCode {
    num_parameters: usize,
    /// Bits of a counter, which counts up to the world size.
    bits: u32,
    /// Counters in one number.
    per_number: usize,
}

impl UsageCode {
    pub(crate) fn new(num_parameters: usize, world_size: usize) -> UsageCode {
        let bits = usize::BITS - world_size.leading_zeros();
        UsageCode {
            num_parameters,
            bits,
            per_number: (52 / bits) as usize,
        }
    }

    /// Appends the numbers that say which parameters `is_used`.
    pub(crate) fn encode(&self, is_used: impl Fn(usize) -> bool, vector: &mut Vec<f64>) {
        for start in (0..self.num_parameters).step_by(self.per_number) {
            let end = (start + self.per_number).min(self.num_parameters);
            let number = (start..end).rev().fold(0u64, |number, index| {
                number << self.bits | u64::from(is_used(index))
            });
            vector.push(number as f64);
        }
    }

    /// Reads summed numbers: a parameter is used where its counter is not 0.
    pub(crate) fn decode(&self, numbers: &[f64], used: &mut [bool]) {
        let mask = (1u64 << self.bits) - 1;
        for (used, &number) in used.chunks_mut(self.per_number).zip(numbers) {
            let mut number = number as u64;
            for used in used {
                *used = number & mask != 0;
                number >>= self.bits;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::UsageCode;

    proptest! {
        #[test]
        fn the_sum_of_codes_says_which_any_rank_used(
            ranks in (1usize..300).prop_flat_map(|num| {
                prop::collection::vec(prop::collection::vec(any::<bool>(), num), 1..9)
            })
        ) {
            let num = ranks[0].len();
            let code = UsageCode::new(num, ranks.len());
            let mut sum: Vec<f64> = vec![];
            for rank in &ranks {
                let mut numbers = vec![];
                code.encode(|index| rank[index], &mut numbers);
                sum.resize(numbers.len(), 0.0);
                sum.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum += number);
            }
            let mut used = vec![false; num];
            code.decode(&sum, &mut used);
            let expected: Vec<bool> = (0..num).map(|index| ranks.iter().any(|rank| rank[index])).collect();
            prop_assert_eq!(used, expected);
        }
    }
}
