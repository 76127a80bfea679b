//! What `benchmarks/all_reduce.py` measures with: the group's all-reduce, and the least that it could take.
//!
//! ```text
//! all_reduce_speed rank RANK WORLD_SIZE ADDRESS BIND_ADDRESS auto|tcp
//! all_reduce_speed bare WORLD_SIZE
//! all_reduce_speed link listen|connect ADDRESS
//! ```
//!
//! One process of each kind (rank 0; the bare loop's first; the link's connecting end) reads requests from its standard
//! input, one JSON object a line, and answers each with `{"us": MEDIAN}`, until the input ends:
//!
//! - rank: `{"bytes": N, "count": N, "memory": "group"|"own"}`, `count` calls of `all_reduce` on as many bytes of float32;
//! - bare: `{"bytes": N, "count": N}`, the same by the bare loop;
//! - link: `{"bytes": N, "count": N, "ways": 1|2}`, as many bytes sent one way, or both ways at once.

mod bare;
mod link;
mod rank;

use std::env;
use std::io::{self, BufRead};
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["rank", rank, world_size, address, bind_address, transport] => rank::run(
            number(rank),
            number(world_size),
            address,
            bind_address,
            transport,
        ),
        ["bare", world_size] => bare::run(number(world_size)),
        ["link", "listen", address] => link::listen(address),
        ["link", "connect", address] => link::connect(address),
        _ => panic!("see the documentation at the top of {}", file!()),
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// Answers each request with the median of the times that `time` takes for it.
fn serve(mut time: impl FnMut(&str) -> Vec<Duration>) {
    for request in io::stdin().lock().lines().map_while(io::Result::ok) {
        let mut times = time(&request);
        times.sort();
        let median = times[times.len() / 2].as_secs_f64() * 1e6;
        println!("{}", serde_json::json!({ "us": median }));
    }
}

/// A number of a request.
fn field(request: &serde_json::Value, name: &str) -> usize {
    request[name].as_u64().expect(name) as usize
}
