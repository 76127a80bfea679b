//! The least that an all-reduce on one host can take: processes over one segment, each of which sums its part of all
//! buffers into all of them, between two barriers. No header, no checks, no failures; vectors as wide as the processor's,
//! buffers laid out as the group lays them out, and the group's way of waiting.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::{field, serve};

/// The longest buffer, in bytes.
const LONGEST: usize = 64 << 20;
/// From one buffer to the next: they start on different cache sets.
const STRIDE: usize = LONGEST + 17 * 64;
const PAGE: usize = 4096;
/// Floats that are summed at a time.
const TILE: usize = 64;
const SPIN: Duration = Duration::from_micros(5);
const YIELD: Duration = Duration::from_micros(50);

type Tile = [f32; TILE];

/// One process's view of the segment: a page for each process's count, one for the request, then the buffers.
struct Segment {
    start: *mut u8,
    me: usize,
    world_size: usize,
    count: u32,
    spins: bool,
}

pub fn run(world_size: usize) {
    let len = PAGE * (world_size + 1) + STRIDE * world_size;
    // SAFETY: a fresh shared mapping; the children of the forks below work on it and end without returning.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    let mut segment = Segment {
        start: start.cast(),
        me: 0,
        world_size,
        count: 0,
        spins: world_size <= thread::available_parallelism().map_or(1, usize::from),
    };
    for me in 1..world_size {
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            segment.me = me;
            segment.follow();
        }
    }
    serve(|request| {
        let request: serde_json::Value = serde_json::from_str(request).expect("a request");
        let (bytes, count) = (field(&request, "bytes"), field(&request, "count"));
        assert!(bytes <= LONGEST && bytes.is_multiple_of(64 * world_size.max(TILE)));
        segment.request(0).store(bytes as u64, Ordering::Relaxed);
        segment.request(1).store(count as u64, Ordering::Relaxed);
        segment.barrier();
        segment.time(bytes, count)
    });
    segment.request(1).store(0, Ordering::Relaxed);
    segment.barrier();
}

impl Segment {
    /// What a child does: the first process's requests, until one of no calls.
    fn follow(&mut self) -> ! {
        loop {
            self.barrier();
            let [bytes, count] =
                [0, 1].map(|index| self.request(index).load(Ordering::Relaxed) as usize);
            if count == 0 {
                process::exit(0);
            }
            self.time(bytes, count);
        }
    }

    fn time(&mut self, bytes: usize, count: usize) -> Vec<Duration> {
        (0..count)
            .map(|_| {
                self.barrier();
                let started = Instant::now();
                self.barrier();
                self.sum(bytes);
                self.barrier();
                started.elapsed()
            })
            .collect()
    }

    fn count_of(&self, member: usize) -> &AtomicU32 {
        // SAFETY: a word of the member's page, which lives as long as the process.
        unsafe { AtomicU32::from_ptr(self.start.add(PAGE * member).cast()) }
    }

    fn sleepers(&self, member: usize) -> &AtomicU32 {
        // SAFETY: a word of the member's page, which lives as long as the process.
        unsafe { AtomicU32::from_ptr(self.start.add(PAGE * member + 64).cast()) }
    }

    fn request(&self, index: usize) -> &AtomicU64 {
        // SAFETY: a word of the request's page, which lives as long as the process.
        unsafe {
            AtomicU64::from_ptr(
                self.start
                    .add(PAGE * self.world_size)
                    .cast::<u64>()
                    .add(index),
            )
        }
    }

    fn barrier(&mut self) {
        self.count += 1;
        let own = self.count_of(self.me);
        own.store(self.count, Ordering::SeqCst);
        if self.sleepers(self.me).load(Ordering::SeqCst) != 0 {
            futex(own, libc::FUTEX_WAKE, i32::MAX as u32);
        }
        for member in 0..self.world_size {
            self.wait_for(member);
        }
    }

    fn wait_for(&self, member: usize) {
        let (word, sleepers) = (self.count_of(member), self.sleepers(member));
        let mut started = None;
        while word.load(Ordering::Acquire) < self.count {
            match started.get_or_insert_with(Instant::now).elapsed() {
                waited if waited < SPIN && self.spins => std::hint::spin_loop(),
                waited if waited < YIELD => thread::yield_now(),
                _ => {
                    sleepers.fetch_add(1, Ordering::SeqCst);
                    let seen = word.load(Ordering::SeqCst);
                    if seen < self.count {
                        futex(word, libc::FUTEX_WAIT, seen);
                    }
                    sleepers.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// Adds this process's part of all buffers, and writes it to all.
    fn sum(&self, bytes: usize) {
        let tiles = bytes / size_of::<Tile>();
        let [first, end] = [self.me, self.me + 1].map(|part| tiles * part / self.world_size);
        let buffers: Vec<*mut Tile> = (0..self.world_size)
            .map(|member| {
                let offset = PAGE * (self.world_size + 1) + STRIDE * member;
                // SAFETY: each buffer holds all of the tiles.
                unsafe { self.start.add(offset).cast::<Tile>().add(first) }
            })
            .collect();
        // SAFETY: the parts of the processes do not overlap, and barriers keep their uses apart.
        unsafe { by_processor(&buffers, end - first) }
    }
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: the word is live for the call; no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            ptr::null::<libc::timespec>(),
        )
    };
}

/// The loop, compiled for the widest vectors that the processor has.
///
/// # Safety
/// Each buffer holds `len` tiles, which nobody else uses.
unsafe fn by_processor(buffers: &[*mut Tile], len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        unsafe fn avx512(buffers: &[*mut Tile], len: usize) {
            // SAFETY: the caller's promise.
            unsafe { by_number(buffers, len) }
        }
        #[target_feature(enable = "avx2")]
        unsafe fn avx2(buffers: &[*mut Tile], len: usize) {
            // SAFETY: the caller's promise.
            unsafe { by_number(buffers, len) }
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it; the caller's promise.
            return unsafe { avx512(buffers, len) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it; the caller's promise.
            return unsafe { avx2(buffers, len) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { by_number(buffers, len) }
}

/// The loop, compiled for two and for four buffers.
#[inline(always)]
unsafe fn by_number(buffers: &[*mut Tile], len: usize) {
    // SAFETY: the caller's promise, for each.
    unsafe {
        match *buffers {
            [a, b] => sum([a, b], len),
            [a, b, c, d] => sum([a, b, c, d], len),
            _ => panic!("two processes or four"),
        }
    }
}

#[inline(always)]
unsafe fn sum<const N: usize>(buffers: [*mut Tile; N], len: usize) {
    for tile in 0..len {
        // SAFETY: the caller's promise.
        let mut total = unsafe { buffers[0].add(tile).read() };
        for buffer in &buffers[1..] {
            // SAFETY: the caller's promise.
            let values = unsafe { buffer.add(tile).read() };
            for (total, value) in total.iter_mut().zip(values) {
                *total += value;
            }
        }
        for buffer in buffers {
            // SAFETY: the caller's promise.
            unsafe { buffer.add(tile).write(total) };
        }
    }
}
