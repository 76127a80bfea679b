//! The arithmetic of an all-reduce: sums of 2 and 4 buffers, in place, by one thread. The buffers of 64 KiB lie in the
//! second-level cache, those of 16 MiB in none.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flambeau_collective::{DType, ReduceOp, reduce_in_place};

/// Bytes from the end of one buffer to the start of the next, so that they start on different cache sets.
const GAP: usize = 17 * 64;

fn sums(criterion: &mut Criterion) {
    for dtype in [
        DType::Float32,
        DType::BFloat16,
        DType::Float16,
        DType::Float64,
    ] {
        let mut group = criterion.benchmark_group(format!("sum of {dtype}"));
        for num_buffers in [2, 4] {
            for bytes in [64 << 10, 16 << 20] {
                let stride = bytes + GAP;
                // Words, so that every type is aligned; zeros, which are zero in every type.
                let mut memory = vec![0u64; num_buffers * stride / 8];
                let start = memory.as_mut_ptr().cast::<u8>();
                let buffers: Vec<*mut u8> = (0..num_buffers)
                    .map(|buffer| start.wrapping_add(buffer * stride))
                    .collect();
                group.throughput(Throughput::Bytes((num_buffers * bytes) as u64));
                let id = BenchmarkId::new(format!("{num_buffers} buffers"), bytes);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| {
                        let buffers = black_box(&buffers);
                        // SAFETY: the buffers are parts of `memory` that do not overlap, and hold `bytes` bytes.
                        unsafe {
                            reduce_in_place(dtype, ReduceOp::Sum, buffers, bytes / dtype.size())
                        };
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, sums);
criterion_main!(benches);
