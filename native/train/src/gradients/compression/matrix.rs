//! The products of PowerSGD: a tall or wide matrix, row by row in memory, times few vectors.
//!
//! A set of vectors is one slice, one vector after the other. All sums have an order that depends on sizes alone, so that
//! every processor comes to the same bits.

use flambeau_collective::Kernel;

/// Running sums of a product, which the compiler turns into vector instructions.
const LANES: usize = 16;
/// Rows that are worked on together, so that a vector is read once for all of them.
const ROWS: usize = 4;

/// `left[c][i] = Σ_j matrix[i][j] · right[c][j]`: each of `right`'s vectors times the matrix of rows `num_columns` long.
pub(super) fn times(matrix: &[f32], num_columns: usize, right: &[f32], left: &mut [f32]) {
    Times {
        matrix,
        num_columns,
        right,
        left,
    }
    .run();
}

/// `right[c][j] = Σ_i left[c][i] · matrix[i][j]`: each of `left`'s vectors times the transposed matrix.
pub(super) fn transposed_times(
    matrix: &[f32],
    num_columns: usize,
    left: &[f32],
    right: &mut [f32],
) {
    TransposedTimes {
        matrix,
        num_columns,
        left,
        right,
    }
    .run();
}

/// `matrix[i][j] = Σ_c left[c][i] · right[c][j]`.
pub(super) fn outer(left: &[f32], right: &[f32], num_columns: usize, matrix: &mut [f32]) {
    Outer {
        left,
        right,
        num_columns,
        matrix,
    }
    .run();
}

struct Times<'a> {
    matrix: &'a [f32],
    num_columns: usize,
    right: &'a [f32],
    left: &'a mut [f32],
}

impl Kernel for Times<'_> {
    #[inline(always)]
    fn body(self) {
        let num_rows = self.matrix.len() / self.num_columns;
        let vectors = self.right.chunks_exact(self.num_columns);
        for (vector, products) in vectors.zip(self.left.chunks_exact_mut(num_rows)) {
            let blocks = self.matrix.chunks(ROWS * self.num_columns);
            for (rows, products) in blocks.zip(products.chunks_mut(ROWS)) {
                match products {
                    [a, b, c, d] => [*a, *b, *c, *d] = dots::<ROWS>(rows, vector),
                    few => {
                        let rows = rows.chunks_exact(self.num_columns);
                        for (row, product) in rows.zip(few) {
                            [*product] = dots::<1>(row, vector);
                        }
                    }
                }
            }
        }
    }
}

/// The inner products of a vector with each of `N` rows as long as it.
#[inline(always)]
fn dots<const N: usize>(rows: &[f32], vector: &[f32]) -> [f32; N] {
    let len = vector.len();
    let whole = len / LANES * LANES;
    let mut sums = [[0.0f32; LANES]; N];
    for start in (0..whole).step_by(LANES) {
        let vector = &vector[start..start + LANES];
        for (row, sums) in sums.iter_mut().enumerate() {
            let row = &rows[row * len + start..row * len + start + LANES];
            for ((sum, x), y) in sums.iter_mut().zip(row).zip(vector) {
                *sum += x * y;
            }
        }
    }
    for (row, sums) in sums.iter_mut().enumerate() {
        let rest = &rows[row * len + whole..(row + 1) * len];
        for ((sum, x), y) in sums.iter_mut().zip(rest).zip(&vector[whole..]) {
            *sum += x * y;
        }
    }
    sums.map(|sums| {
        let mut sums = sums;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
            width /= 2;
        }
        sums[0]
    })
}

struct TransposedTimes<'a> {
    matrix: &'a [f32],
    num_columns: usize,
    left: &'a [f32],
    right: &'a mut [f32],
}

impl Kernel for TransposedTimes<'_> {
    #[inline(always)]
    fn body(self) {
        let len = self.num_columns;
        let num_rows = self.matrix.len() / len;
        let sums = self.right.chunks_exact_mut(len);
        for (factors, sums) in self.left.chunks_exact(num_rows).zip(sums) {
            sums.fill(0.0);
            let blocks = self.matrix.chunks(ROWS * len);
            for (rows, factors) in blocks.zip(factors.chunks(ROWS)) {
                if let [a, b, c, d] = *factors {
                    let (first, rest) = rows.split_at(len);
                    let (second, rest) = rest.split_at(len);
                    let (third, fourth) = rest.split_at(len);
                    let rows = first.iter().zip(second).zip(third).zip(fourth);
                    for (sum, (((w, x), y), z)) in sums.iter_mut().zip(rows) {
                        *sum += (a * w + b * x) + (c * y + d * z);
                    }
                } else {
                    for (row, &factor) in rows.chunks_exact(len).zip(factors) {
                        for (sum, x) in sums.iter_mut().zip(row) {
                            *sum += factor * x;
                        }
                    }
                }
            }
        }
    }
}

struct Outer<'a> {
    left: &'a [f32],
    right: &'a [f32],
    num_columns: usize,
    matrix: &'a mut [f32],
}

impl Kernel for Outer<'_> {
    #[inline(always)]
    fn body(self) {
        let num_rows = self.matrix.len() / self.num_columns;
        let rows = self.matrix.chunks_exact_mut(self.num_columns);
        for (row, values) in rows.enumerate() {
            let factors = self.left.iter().skip(row).step_by(num_rows);
            let mut pairs = factors.zip(self.right.chunks_exact(self.num_columns));
            if let Some((factor, vector)) = pairs.next() {
                for (value, x) in values.iter_mut().zip(vector) {
                    *value = factor * x;
                }
            }
            for (factor, vector) in pairs {
                for (value, x) in values.iter_mut().zip(vector) {
                    *value += factor * x;
                }
            }
        }
    }
}

/// Makes vectors of `len` elements orthonormal, in their order: modified Gram–Schmidt in float64, each projection twice
/// ("twice is enough", Giraud et al. 2005). A vector that lies within those before it becomes one that does not, so that
/// a matrix of zeros leaves a basis behind. There are at most `len`.
pub(super) fn orthogonalize(vectors: &mut [f32], len: usize) {
    for number in 0..vectors.len() / len {
        let (before, rest) = vectors.split_at_mut(number * len);
        let vector = &mut rest[..len];
        let mut unit = 0;
        while !normalize(vector, before) {
            vector.fill(0.0);
            vector[unit] = 1.0;
            unit += 1;
        }
    }
}

/// What must be left of a vector for its direction to be more than rounding errors, of its length before.
const LEAST_REST: f64 = 1e-6;

/// Takes the directions of `others`, which are orthonormal, out of a vector, and makes its length 1; `false` where nothing
/// is left of it. A vector that is not finite stays so, since that is what the caller has to see.
fn normalize(vector: &mut [f32], others: &[f32]) -> bool {
    let length = inner(vector, vector).sqrt();
    for _ in 0..2 {
        for other in others.chunks_exact(vector.len()) {
            let shadow = inner(vector, other);
            for (x, &y) in vector.iter_mut().zip(other) {
                *x = (f64::from(*x) - shadow * f64::from(y)) as f32;
            }
        }
    }
    let rest = inner(vector, vector).sqrt();
    if rest <= LEAST_REST * length {
        return false;
    }
    vector
        .iter_mut()
        .for_each(|x| *x = (f64::from(*x) / rest) as f32);
    true
}

/// The inner product in float64.
fn inner(left: &[f32], right: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0f64; LANES];
    for (left, right) in left.chunks(LANES).zip(right.chunks(LANES)) {
        for ((sum, &x), &y) in sums.iter_mut().zip(left).zip(right) {
            *sum += f64::from(x) * f64::from(y);
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-4.0f32..4.0, len)
    }

    fn case() -> impl Strategy<Value = (usize, usize, usize, Vec<f32>, Vec<f32>, Vec<f32>)> {
        (1usize..12, 1usize..70, 1usize..4).prop_flat_map(|(rows, columns, rank)| {
            (
                Just(rows),
                Just(columns),
                Just(rank),
                numbers(rows * columns),
                numbers(rows * rank),
                numbers(columns * rank),
            )
        })
    }

    fn close(actual: f32, terms: impl Iterator<Item = f64> + Clone) -> bool {
        let magnitude: f64 = terms.clone().map(f64::abs).sum();
        (f64::from(actual) - terms.sum::<f64>()).abs() <= 1e-6 * magnitude
    }

    proptest! {
        /// Each product against its definition in float64.
        #[test]
        fn products_are_those_of_their_definitions((rows, columns, rank, matrix, left, right) in case()) {
            let m = |i: usize, j: usize| f64::from(matrix[i * columns + j]);
            let (l, r) = (|c: usize, i: usize| f64::from(left[c * rows + i]), |c: usize, j: usize| f64::from(right[c * columns + j]));
            let mut product = vec![f32::NAN; rank * rows];
            times(&matrix, columns, &right, &mut product);
            let mut transposed = vec![f32::NAN; rank * columns];
            transposed_times(&matrix, columns, &left, &mut transposed);
            let mut whole = vec![f32::NAN; rows * columns];
            outer(&left, &right, columns, &mut whole);
            for c in 0..rank {
                for i in 0..rows {
                    prop_assert!(close(product[c * rows + i], (0..columns).map(|j| m(i, j) * r(c, j))));
                }
                for j in 0..columns {
                    prop_assert!(close(transposed[c * columns + j], (0..rows).map(|i| l(c, i) * m(i, j))));
                }
            }
            for i in 0..rows {
                for j in 0..columns {
                    prop_assert!(close(whole[i * columns + j], (0..rank).map(|c| l(c, i) * r(c, j))));
                }
            }
        }

        /// Orthonormal, with each vector within the span of itself and those before; dependent ones are made anew.
        #[test]
        fn vectors_become_orthonormal(len in 3usize..40, vectors in numbers(3 * 40), dependence in 0usize..4) {
            let mut vectors = vectors[..3 * len].to_vec();
            match dependence {
                0 => vectors.copy_within(..len, len),
                1 => vectors[..len].fill(0.0),
                2 => vectors.fill(0.0),
                _ => {}
            }
            orthogonalize(&mut vectors, len);
            for a in 0..3 {
                for b in 0..3 {
                    let product = inner(&vectors[a * len..(a + 1) * len], &vectors[b * len..(b + 1) * len]);
                    prop_assert!((product - f64::from(u8::from(a == b))).abs() < 1e-5, "{a} {b}: {product}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let mut vectors = vec![f32::NAN, 1.0, 2.0, 3.0];
        orthogonalize(&mut vectors, 2);
        assert!(vectors.iter().all(|value| value.is_nan()), "{vectors:?}");
    }
}
