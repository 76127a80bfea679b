//! Which parameter lies where in which bucket.

use std::ops::Range;

use flambeau_collective::{DType, Device};

/// Every view starts on a boundary of this many bytes, a cache line and the widest vector register.
const ALIGNMENT: usize = 64;

/// A parameter that is trained. A tied parameter is listed once.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterInfo {
    /// Its qualified name, such as `layers.0.weight`.
    pub name: String,
    /// Number of elements.
    pub numel: usize,
    /// Size of its first dimension, 1 where it has none: the rows of the matrix that it counts as where gradients are
    /// compressed to matrices of low rank.
    pub num_rows: usize,
    /// Type of its elements; one of the floating types.
    pub dtype: DType,
    /// Where it lies, and where its gradients are reduced.
    pub device: Device,
}

/// How large buckets may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Bytes after which the first bucket is closed. Smaller, so that the first reduction starts early. 1 MiB.
    pub first: usize,
    /// Bytes after which every other bucket is closed. 25 MiB, as in PyTorch's DDP.
    pub others: usize,
}

impl BucketSizes {
    /// Buckets of so many bytes, and a first one of no more than 1 MiB.
    pub fn up_to(others: usize) -> BucketSizes {
        BucketSizes {
            first: others.min(1 << 20),
            others,
        }
    }
}

impl Default for BucketSizes {
    fn default() -> Self {
        BucketSizes::up_to(25 << 20)
    }
}

/// A flat piece of memory that is reduced at once.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketInfo {
    /// Type of all its elements.
    pub dtype: DType,
    /// Where it lies.
    pub device: Device,
    /// Number of elements, padding between views included.
    pub numel: usize,
    /// The parameters in it, in the order in which they are expected to become ready.
    pub parameters: Vec<usize>,
}

impl BucketInfo {
    /// Its size in bytes.
    pub fn num_bytes(&self) -> usize {
        self.numel * self.dtype.size()
    }
}

/// Where the gradient of one parameter lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The bucket.
    pub bucket: usize,
    /// Bytes from the start of the bucket.
    pub byte_offset: usize,
    /// Number of elements.
    pub numel: usize,
}

impl View {
    /// Its elements, counted in those of the bucket, which are of type `dtype`.
    pub(crate) fn elements(&self, dtype: DType) -> Range<usize> {
        let start = self.byte_offset / dtype.size();
        start..start + self.numel
    }
}

/// Buckets and the views of all parameters in them.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketLayout {
    /// The buckets, in the order in which they are expected to become ready.
    pub buckets: Vec<BucketInfo>,
    /// One view for each parameter, in registration order.
    pub views: Vec<View>,
    /// Bytes that travel of each bucket that is reduced as it is, to be summed and back; padding left out, so that they do
    /// not depend on the layout.
    pub whole_bytes: Vec<u64>,
}

impl BucketLayout {
    /// Fills buckets with the parameters in `order`, one open bucket for each dtype and device. The parameters of each of
    /// `groups` have buckets of their own, which are closed with the last of the group and whatever their size.
    ///
    /// `order` holds every index of `parameters` once, `groups` each at most once.
    pub fn new(
        parameters: &[ParameterInfo],
        order: &[usize],
        sizes: BucketSizes,
        groups: &[Vec<usize>],
    ) -> BucketLayout {
        let mut group_of = vec![None; parameters.len()];
        for (group, members) in groups.iter().enumerate() {
            members
                .iter()
                .for_each(|&index| group_of[index] = Some(group));
        }
        // Of each group, the parameters that are in no bucket yet.
        let mut missing: Vec<usize> = groups.iter().map(Vec::len).collect();
        let mut views = vec![
            View {
                bucket: 0,
                byte_offset: 0,
                numel: 0
            };
            parameters.len()
        ];
        let mut open: Vec<(Option<usize>, BucketInfo)> = vec![];
        let mut closed: Vec<BucketInfo> = vec![];
        for &index in order {
            let (info, group) = (&parameters[index], group_of[index]);
            let position = open.iter().position(|(of, bucket)| {
                *of == group && bucket.dtype == info.dtype && bucket.device == info.device
            });
            let mut bucket = match position {
                Some(position) => open.remove(position).1,
                None => BucketInfo {
                    dtype: info.dtype,
                    device: info.device,
                    numel: 0,
                    parameters: vec![],
                },
            };
            let align = ALIGNMENT / info.dtype.size();
            let start = bucket.numel.next_multiple_of(align);
            views[index] = View {
                bucket: 0,
                byte_offset: start * info.dtype.size(),
                numel: info.numel,
            };
            bucket.numel = start + info.numel;
            bucket.parameters.push(index);
            let limit = if closed.is_empty() {
                sizes.first
            } else {
                sizes.others
            };
            // Pushed last, so that buckets that stay open are ordered by when their last parameter is ready.
            let is_full = bucket.num_bytes() >= limit;
            match group {
                None if is_full => closed.push(bucket),
                None => open.push((None, bucket)),
                Some(number) => {
                    open.push((group, bucket));
                    missing[number] -= 1;
                    if missing[number] == 0 {
                        let whole = open.extract_if(.., |(of, _)| *of == group);
                        closed.extend(whole.map(|(_, bucket)| bucket));
                    }
                }
            }
        }
        let mut buckets = closed;
        buckets.extend(open.into_iter().map(|(_, bucket)| bucket));
        for (number, bucket) in buckets.iter().enumerate() {
            for &index in &bucket.parameters {
                views[index].bucket = number;
            }
        }
        let whole_bytes = buckets
            .iter()
            .map(|bucket| {
                let numel = bucket
                    .parameters
                    .iter()
                    .map(|&index| parameters[index].numel);
                2 * (numel.sum::<usize>() * bucket.dtype.size()) as u64
            })
            .collect();
        BucketLayout {
            buckets,
            views,
            whole_bytes,
        }
    }
}
