//! Every operation against the sequential reference: sizes, types, operators, ranks, transports, and memory.

use flambeau_collective::{DType, GroupBuffer, ProcessGroup, RawBuffer, ReduceOp, part_of};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::harness::{self, Placement};
use crate::reference::{self, Elements};

const FLOATS_AND_INTEGERS: [DType; 5] = [
    DType::Float32,
    DType::Float64,
    DType::Float16,
    DType::BFloat16,
    DType::Int64,
];
const OPS: [ReduceOp; 4] = [
    ReduceOp::Sum,
    ReduceOp::Average,
    ReduceOp::Min,
    ReduceOp::Max,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast(usize),
}

#[derive(Debug, Clone)]
struct Case {
    placement: Placement,
    world_size: usize,
    operation: Operation,
    dtype: DType,
    op: ReduceOp,
    len: usize,
    seed: u64,
    specials: bool,
    /// Whether each rank's buffer lies in the group's memory, and how many elements in.
    in_group: Vec<Option<usize>>,
}

fn placement(world_size: usize) -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::OneHost),
        Just(Placement::Tcp),
        prop::collection::vec(0u8..3, world_size).prop_map(Placement::Hosts),
    ]
}

fn case(len: impl Strategy<Value = usize> + Clone + 'static) -> impl Strategy<Value = Case> {
    (1usize..=5)
        .prop_flat_map(move |world_size| {
            let operation = prop_oneof![
                3 => Just(Operation::AllReduce),
                1 => Just(Operation::ReduceScatter),
                1 => Just(Operation::AllGather),
                1 => (0..world_size).prop_map(Operation::Broadcast),
            ];
            let in_group = prop_oneof![
                2 => Just(vec![Some(0); world_size]),
                2 => Just(vec![None; world_size]),
                1 => prop::collection::vec(prop::option::of(0usize..40), world_size),
            ];
            (
                (placement(world_size), Just(world_size), operation),
                (
                    prop::sample::select(&FLOATS_AND_INTEGERS[..]),
                    prop::sample::select(&OPS[..]),
                    len.clone(),
                ),
                (any::<u64>(), any::<bool>(), in_group),
            )
        })
        .prop_map(
            |((placement, world_size, operation), (dtype, op, len), (seed, specials, in_group))| {
                Case {
                    placement,
                    world_size,
                    operation,
                    dtype,
                    op,
                    len,
                    seed,
                    specials,
                    in_group,
                }
            },
        )
}

/// Lengths near the borders of cache lines, small exchanges, staging areas and segments, and between.
fn lens() -> impl Strategy<Value = usize> + Clone {
    prop_oneof![
        3 => 0usize..70,
        2 => 0usize..20_000,
        1 => prop::sample::select(vec![1023, 1024, 1025, 65_535, 65_536, 65_537, 131_072, 131_073]),
        1 => 0usize..600_000,
    ]
}

fn inputs(case: &Case) -> Vec<Elements> {
    (0..case.world_size)
        .map(|rank| {
            Elements::random(
                case.dtype,
                case.len,
                case.seed ^ (rank as u64) << 32,
                case.specials,
            )
        })
        .collect()
}

/// A rank's buffer: its own memory or the group's.
struct Memory {
    own: Elements,
    group: Option<(GroupBuffer, RawBuffer)>,
}

impl Memory {
    fn new(group: &ProcessGroup, case: &Case, own: Elements) -> Self {
        let size = case.dtype.size();
        let offset = case.in_group[group.rank()];
        // All allocate, also those who do not use it.
        let buffer = group.allocate((case.len + 40) * size).unwrap();
        let group = offset.map(|offset| {
            let raw = buffer.raw(offset * size, case.len, case.dtype).unwrap();
            // SAFETY: the buffer holds as many bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    own.bytes().as_ptr(),
                    raw.ptr.cast(),
                    own.bytes().len(),
                )
            };
            (buffer, raw)
        });
        Memory { own, group }
    }

    fn raw(&mut self, case: &Case) -> RawBuffer {
        match &self.group {
            Some((_, raw)) => *raw,
            None => RawBuffer::cpu(self.own.as_mut_ptr(), case.len, case.dtype),
        }
    }

    fn into_elements(mut self) -> Elements {
        if let Some((_buffer, raw)) = &self.group {
            // SAFETY: the buffer is alive and the operation on it has ended.
            let bytes = unsafe { std::slice::from_raw_parts(raw.ptr.cast::<u8>(), raw.bytes()) };
            self.own.overwrite(bytes);
        }
        self.own
    }
}

fn carry_out(case: &Case) -> Vec<Elements> {
    let inputs = inputs(case);
    let options = |rank| case.placement.options(rank);
    harness::ranks(case.world_size, options, |group| {
        let mut memory = Memory::new(&group, case, inputs[group.rank()].clone());
        let raw = memory.raw(case);
        // SAFETY: the memory is alive and nobody else's.
        unsafe {
            match case.operation {
                Operation::AllReduce => group.all_reduce(raw, case.op),
                Operation::ReduceScatter => group.reduce_scatter(raw, case.op),
                Operation::AllGather => group.all_gather(raw),
                Operation::Broadcast(root) => group.broadcast(raw, root),
            }
            .unwrap();
        }
        memory.into_elements()
    })
}

fn check(case: &Case) {
    let inputs = inputs(case);
    let results = carry_out(case);
    let size = case.dtype.size();
    match case.operation {
        Operation::AllReduce => {
            let expected = reference::reduced(&inputs, case.op);
            for (rank, result) in results.iter().enumerate() {
                assert!(
                    reference::same(result, &expected),
                    "rank {rank} of {case:?}"
                );
                assert_eq!(result.bytes(), results[0].bytes(), "ranks differ: {case:?}");
            }
            if !case.specials {
                assert!(reference::near(&results[0], &inputs, case.op), "{case:?}");
            }
        }
        Operation::ReduceScatter => {
            let expected = reference::reduced(&inputs, case.op);
            for (rank, result) in results.iter().enumerate() {
                let mut own = expected.clone();
                own.copy_from(result, part_of(case.len, rank, case.world_size), size);
                assert!(reference::same(&own, &expected), "rank {rank} of {case:?}");
            }
        }
        Operation::AllGather => {
            let mut expected = inputs[0].clone();
            for (rank, input) in inputs.iter().enumerate() {
                expected.copy_from(input, part_of(case.len, rank, case.world_size), size);
            }
            for result in &results {
                assert_eq!(result.bytes(), expected.bytes(), "{case:?}");
            }
        }
        Operation::Broadcast(root) => {
            for result in &results {
                assert_eq!(result.bytes(), inputs[root].bytes(), "{case:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, max_shrink_iters: 40, ..Default::default() })]

    #[test]
    fn operations_match_the_reference(case in case(lens())) {
        check(&case);
    }
}

/// Few cases, whatever `PROPTEST_CASES` says: each takes seconds.
#[test]
fn long_operations_match_the_reference() {
    let config = ProptestConfig {
        cases: 6,
        failure_persistence: None,
        max_shrink_iters: 4,
        ..Default::default()
    };
    let lens = prop_oneof![600_000usize..1 << 23, Just(1usize << 24)];
    let checked = |case: Case| {
        check(&case);
        Ok(())
    };
    TestRunner::new(config).run(&case(lens), checked).unwrap();
}

#[test]
fn the_longest_buffer_is_reduced_on_every_transport() {
    for placement in [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 1, 0]),
    ] {
        for in_group in [vec![Some(0); 3], vec![None; 3]] {
            check(&Case {
                placement: placement.clone(),
                world_size: 3,
                operation: Operation::AllReduce,
                dtype: DType::Float32,
                op: ReduceOp::Average,
                len: 1 << 24,
                seed: 7,
                specials: false,
                in_group,
            });
        }
    }
}

/// The arithmetic has loops of their own for usual numbers of ranks, of which eight is more than the random cases have.
#[test]
fn eight_ranks_match_the_reference() {
    for placement in [Placement::OneHost, Placement::Tcp] {
        for op in OPS {
            check(&Case {
                placement: placement.clone(),
                world_size: 8,
                operation: Operation::AllReduce,
                dtype: DType::Float32,
                op,
                len: 30_001,
                seed: 11,
                specials: true,
                in_group: vec![Some(0); 8],
            });
        }
    }
}

/// The same sums in the same order, wherever the ranks are: equal to the bit.
#[test]
fn transports_agree_to_the_bit() {
    let placements = [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 0, 1, 1, 1]),
        Placement::Hosts(vec![0, 1, 0, 1, 0]),
        Placement::Hosts(vec![2, 1, 1, 0, 2]),
    ];
    for dtype in FLOATS_AND_INTEGERS {
        for len in [5, 70_000, 400_000] {
            let results: Vec<_> = placements
                .iter()
                .map(|placement| {
                    carry_out(&Case {
                        placement: placement.clone(),
                        world_size: 5,
                        operation: Operation::AllReduce,
                        dtype,
                        op: ReduceOp::Sum,
                        len,
                        seed: 3,
                        specials: false,
                        in_group: vec![None; 5],
                    })
                })
                .collect();
            for (placement, result) in placements.iter().zip(&results) {
                for elements in result {
                    assert_eq!(
                        elements.bytes(),
                        results[0][0].bytes(),
                        "{placement:?} of {dtype}, {len}"
                    );
                }
            }
        }
    }
}

/// Groups mix types, operators, lengths and memory, and are longer than what travels together.
#[test]
fn groups_match_the_reference() {
    for placement in [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 1, 1]),
    ] {
        let shapes: Vec<_> = (0..150)
            .map(|index| {
                (
                    FLOATS_AND_INTEGERS[index % 5],
                    OPS[index / 5 % 4],
                    [0, 1, 33, 5000, 140_000][index % 7 % 5],
                )
            })
            .collect();
        let input = |rank: usize, index: usize| {
            let (dtype, _, len) = shapes[index];
            Elements::random(dtype, len, (rank * 1000 + index) as u64, false)
        };
        let results = harness::ranks(
            3,
            |rank| placement.options(rank),
            |group| {
                let mut own: Vec<_> = (0..shapes.len())
                    .map(|index| input(group.rank(), index))
                    .collect();
                let shared: Vec<_> = shapes
                    .iter()
                    .map(|(dtype, _, len)| group.allocate(dtype.size() * len).unwrap())
                    .collect();
                let buffers: Vec<_> = shapes
                    .iter()
                    .enumerate()
                    .map(|(index, (dtype, op, len))| {
                        // A third lies in the group's memory, and a third on some ranks only.
                        let in_group = index % 3 == 0 || index % 3 == 1 && group.rank() != 1;
                        if !in_group {
                            return (RawBuffer::cpu(own[index].as_mut_ptr(), *len, *dtype), *op);
                        }
                        let bytes = own[index].bytes();
                        // SAFETY: the allocation is this long.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                bytes.as_ptr(),
                                shared[index].as_ptr(),
                                bytes.len(),
                            )
                        };
                        (shared[index].raw(0, *len, *dtype).unwrap(), *op)
                    })
                    .collect();
                // SAFETY: the memory is alive, nobody else's, and no two buffers overlap.
                unsafe { group.grouped_all_reduce(&buffers).unwrap() };
                buffers
                    .iter()
                    .enumerate()
                    .map(|(index, (buffer, _))| {
                        let mut result = own[index].clone();
                        if buffer.len > 0 {
                            // SAFETY: the memory is alive.
                            result.overwrite(unsafe {
                                std::slice::from_raw_parts(buffer.ptr.cast(), buffer.bytes())
                            });
                        }
                        result
                    })
                    .collect::<Vec<_>>()
            },
        );
        for (index, (_, op, _)) in shapes.iter().enumerate() {
            let inputs: Vec<_> = (0..3).map(|rank| input(rank, index)).collect();
            let expected = reference::reduced(&inputs, *op);
            for result in &results {
                assert!(
                    reference::same(&result[index], &expected),
                    "buffer {index} over {placement:?}"
                );
                assert_eq!(result[index].bytes(), results[0][index].bytes());
            }
        }
    }
}

#[test]
fn many_small_operations_in_a_row() {
    for placement in [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 0, 1, 1]),
    ] {
        harness::ranks(
            4,
            |rank| placement.options(rank),
            |group| {
                let buffer = group.allocate(64).unwrap();
                for round in 0..300i64 {
                    let raw = buffer.raw(0, 1, DType::Int64).unwrap();
                    // SAFETY: the buffer is alive and nobody else's.
                    unsafe {
                        raw.ptr.cast::<i64>().write(round + group.rank() as i64);
                        group.all_reduce(raw, ReduceOp::Sum).unwrap();
                        assert_eq!(raw.ptr.cast::<i64>().read(), 4 * round + 6);
                    }
                    if round % 50 == 0 {
                        group.barrier().unwrap();
                    }
                }
            },
        );
    }
}

#[test]
fn messages_of_any_length_reach_everyone() {
    for placement in [
        Placement::OneHost,
        Placement::Tcp,
        Placement::Hosts(vec![0, 1, 1]),
    ] {
        harness::ranks(
            3,
            |rank| placement.options(rank),
            |group| {
                for scale in [0, 1, 1000, 700_000] {
                    let payload = |rank: usize| vec![rank as u8 + 1; rank * scale];
                    let gathered = group.all_gather_bytes(&payload(group.rank())).unwrap();
                    assert_eq!(gathered, [payload(0), payload(1), payload(2)]);
                    let own = if group.rank() == 2 {
                        payload(2)
                    } else {
                        Vec::new()
                    };
                    assert_eq!(group.broadcast_bytes(&own, 2).unwrap(), payload(2));
                }
            },
        );
    }
}
