//! How long a blocking all-reduce of float32 between two processes takes, beside the least that it could: a bare loop over
//! the same sizes, in which two processes share one segment, each sums its half of both buffers into both, between two
//! barriers. Prints one line per size with medians; run it on an idle machine.
//!
//! `cargo run --release -p flambeau-collective --example all_reduce_speed [ranks] [tcp]`

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use flambeau_collective::{
    DType, GroupOptions, ProcessGroup, RawBuffer, ReduceOp, TcpRendezvous, Transport,
};

const SIZES: [usize; 9] = [
    64,
    4 << 10,
    64 << 10,
    280 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    25 << 20,
    64 << 20,
];
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let world_size: usize = arguments
        .first()
        .and_then(|count| count.parse().ok())
        .unwrap_or(2);
    let tcp = arguments.iter().any(|argument| argument == "tcp");
    if let Ok(rank) = env::var("RANK") {
        return work(
            rank.parse().expect("RANK"),
            world_size,
            tcp,
            &env::var("ADDRESS").expect("ADDRESS"),
        );
    }
    if world_size == 2 && !tcp {
        println!("bare loop");
        bare();
    }
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address");
    let program = env::current_exe().expect("this program");
    let mut children: Vec<_> = (0..world_size)
        .map(|rank| {
            let mut command = Command::new(&program);
            command
                .args(&arguments)
                .env("RANK", rank.to_string())
                .env("ADDRESS", address.to_string());
            command.spawn().expect("a process")
        })
        .collect();
    children
        .iter_mut()
        .for_each(|child| assert!(child.wait().expect("a rank").success()));
}

fn rounds(bytes: usize) -> usize {
    ((256 << 20) / bytes.max(16 << 10)).clamp(15, 5000)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn work(rank: usize, world_size: usize, tcp: bool, address: &str) {
    let mut rendezvous =
        TcpRendezvous::new(address, rank, world_size, b"speed", TIMEOUT).expect("rendezvous");
    let options = GroupOptions {
        secret: b"speed".to_vec(),
        transport: if tcp {
            Transport::Tcp
        } else {
            Transport::SharedMemory
        },
        ..Default::default()
    };
    let group = ProcessGroup::connect(&mut rendezvous, options).expect("connect");
    if rank == 0 {
        println!(
            "{world_size} ranks, {}\n   bytes   in group memory    elsewhere",
            if tcp { "tcp" } else { "shared memory" }
        );
    }
    for bytes in SIZES {
        let shared = group.allocate(bytes).expect("memory");
        let mut own = vec![0f32; bytes / 4];
        let in_group = shared.raw(0, bytes / 4, DType::Float32).expect("all of it");
        let elsewhere = RawBuffer::cpu(own.as_mut_ptr().cast(), own.len(), DType::Float32);
        let [direct, staged] = [in_group, elsewhere].map(|buffer| {
            let times = (0..rounds(bytes))
                .map(|_| {
                    group.barrier().expect("barrier");
                    let started = Instant::now();
                    // SAFETY: the memory is alive and nobody else's.
                    unsafe { group.all_reduce(buffer, ReduceOp::Sum).expect("all_reduce") };
                    started.elapsed()
                })
                .collect();
            median(times)
        });
        if rank == 0 {
            println!("{bytes:>8} {direct:>12.1} us {staged:>12.1} us");
        }
    }
}

/// The least: what the machine can do for two processes.
fn bare() {
    let longest = SIZES[SIZES.len() - 1];
    let len = 4096 + 2 * longest;
    // SAFETY: a fresh shared mapping; the child of the fork below works on it and ends without returning.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        let memory = memory.cast::<u8>();
        let child = libc::fork();
        assert!(child >= 0);
        let me = usize::from(child == 0);
        let mut count = 0;
        let counters = [
            AtomicU32::from_ptr(memory.cast()),
            AtomicU32::from_ptr(memory.add(64).cast()),
        ];
        let mut barrier = || {
            count += 1;
            counters[me].store(count, Ordering::SeqCst);
            while counters[1 - me].load(Ordering::Acquire) < count {
                std::hint::spin_loop();
            }
        };
        for bytes in SIZES {
            let (half, all) = (bytes / 8, bytes / 4);
            let range = if me == 0 { 0..half } else { half..all };
            let mut times = Vec::new();
            for _ in 0..rounds(bytes) {
                barrier();
                let started = Instant::now();
                barrier();
                let left = std::slice::from_raw_parts_mut(
                    memory.add(4096).cast::<f32>().add(range.start),
                    range.len(),
                );
                let right = memory.add(4096 + longest).cast::<f32>().add(range.start);
                let right = std::slice::from_raw_parts_mut(right, range.len());
                for (left, right) in left.iter_mut().zip(right) {
                    let sum = *left + *right;
                    (*left, *right) = (sum, sum);
                }
                barrier();
                times.push(started.elapsed());
            }
            if me == 0 {
                println!("{bytes:>8} {:>12.1} us", median(times));
            }
        }
        if me == 1 {
            libc::_exit(0);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}
