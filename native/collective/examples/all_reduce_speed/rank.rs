//! One rank of a group. Rank 0 hears the requests and passes them on through the group itself.

use std::time::{Duration, Instant};

use flambeau_collective::{
    DType, GroupBuffer, GroupOptions, ProcessGroup, RawBuffer, ReduceOp, TcpRendezvous,
    TransportChoice,
};

use crate::{field, serve};

/// Longer than other contenders take between two requests.
const TIMEOUT: Duration = Duration::from_secs(3600);

pub fn run(rank: usize, world_size: usize, address: &str, bind_address: &str, transport: &str) {
    let mut rendezvous =
        TcpRendezvous::new(address, rank, world_size, b"speed of one machine", TIMEOUT)
            .expect("rendezvous");
    let options = GroupOptions {
        secret: b"speed of one machine".to_vec(),
        timeout: TIMEOUT,
        bind_address: bind_address.parse().expect("an address"),
        transport: match transport {
            "auto" => TransportChoice::Auto,
            "tcp" => TransportChoice::Tcp,
            other => panic!("no transport {other}"),
        },
        ..Default::default()
    };
    let group = ProcessGroup::connect(&mut rendezvous, options).expect("connect");
    if rank == 0 {
        serve(|request| {
            let request = group
                .broadcast_bytes(request.as_bytes(), 0)
                .expect("others");
            time(&group, &request)
        });
        group.broadcast_bytes(&[], 0).expect("others");
        return;
    }
    loop {
        let request = group.broadcast_bytes(&[], 0).expect("rank 0");
        if request.is_empty() {
            return;
        }
        time(&group, &request);
    }
}

fn time(group: &ProcessGroup, request: &[u8]) -> Vec<Duration> {
    let request: serde_json::Value = serde_json::from_slice(request).expect("a request");
    let len = field(&request, "bytes") / 4;
    let shared: GroupBuffer;
    let mut own: Vec<f32>;
    let buffer = if request["memory"] == "group" {
        shared = group.allocate(len * 4).expect("memory");
        shared.raw(0, len, DType::Float32).expect("all of it")
    } else {
        own = vec![0.0; len];
        RawBuffer::cpu(own.as_mut_ptr().cast(), len, DType::Float32)
    };
    (0..field(&request, "count"))
        .map(|_| {
            group.barrier().expect("barrier");
            let started = Instant::now();
            // SAFETY: the memory is alive and nobody else's.
            unsafe { group.all_reduce(buffer, ReduceOp::Sum).expect("all_reduce") };
            started.elapsed()
        })
        .collect()
}
