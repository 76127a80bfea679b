//! What `benchmarks/scaling.py` measures with how ranks meet: some of a group's ranks, each on a thread.
//!
//! Reads requests from its standard input, one JSON object a line: `{"worldSize": N, "perHost": N, "first": N, "count": N, "address":
//! "HOST:PORT"}`. The ranks from `first` on meet at the address, connect, and pass a barrier. Answers with `{"seconds": S,
//! "connections": N}`: how long the slowest of them took, and how many connections each has at its end.

use std::fs;
use std::io::{self, BufRead};
use std::panic;
use std::process;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{GroupOptions, ProcessGroup, TcpRendezvous, TransportChoice};
use serde_json::{Value, json};

const SECRET: &[u8] = b"between the ranks of a benchmark";
const TIMEOUT: Duration = Duration::from_secs(120);

struct Request {
    world_size: usize,
    per_host: usize,
    first: usize,
    count: usize,
    address: String,
}

fn main() {
    // The other ranks would wait for one that failed.
    panic::set_hook(Box::new(|failure| {
        eprintln!("{failure}");
        process::exit(1)
    }));
    for line in io::stdin().lock().lines().map_while(io::Result::ok) {
        let given: Value = serde_json::from_str(&line).expect("a request");
        let number = |name: &str| given[name].as_u64().expect(name) as usize;
        let request = Request {
            world_size: number("worldSize"),
            per_host: number("perHost"),
            first: number("first"),
            count: number("count"),
            address: given["address"].as_str().expect("address").to_owned(),
        };
        let (seconds, connections) = request.meet();
        println!(
            "{}",
            json!({ "seconds": seconds, "connections": connections })
        );
    }
}

impl Request {
    fn meet(&self) -> (f64, f64) {
        let before = num_sockets();
        // All of these ranks have their connections when they are counted.
        let (met, counted) = (Barrier::new(self.count + 1), Barrier::new(self.count + 1));
        let started = Instant::now();
        thread::scope(|scope| {
            for rank in self.first..self.first + self.count {
                let (met, counted) = (&met, &counted);
                scope.spawn(move || {
                    let group = self.connect(rank);
                    met.wait();
                    counted.wait();
                    drop(group);
                });
            }
            met.wait();
            let seconds = started.elapsed().as_secs_f64();
            let connections = num_sockets().saturating_sub(before) as f64 / self.count as f64;
            counted.wait();
            (seconds, connections)
        })
    }

    /// The rank's group, which has passed a barrier; its connection to the rendezvous is closed.
    fn connect(&self, rank: usize) -> ProcessGroup {
        let mut rendezvous =
            TcpRendezvous::new(&self.address, rank, self.world_size, SECRET, TIMEOUT)
                .expect("a rendezvous");
        let options = GroupOptions {
            timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
            secret: SECRET.to_vec(),
            transport: TransportChoice::SharedMemory,
            host_id: Some(format!("host-{}", rank / self.per_host)),
            ..GroupOptions::default()
        };
        let group = ProcessGroup::connect(&mut rendezvous, options).expect("a group");
        group.barrier().expect("all ranks");
        group
    }
}

fn num_sockets() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("the process's files")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}
