//! What a TCP link carries: bytes from one end to the other, one way or both ways at once, and a word that they are there.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::{field, serve};

/// Bytes that a system call takes.
const CHUNK: usize = 256 << 10;

pub fn connect(address: &str) {
    let mut link = reach(address);
    serve(|request| {
        let request: serde_json::Value = serde_json::from_str(request).expect("a request");
        let [bytes, count, ways] = ["bytes", "count", "ways"].map(|name| field(&request, name));
        (0..count)
            .map(|_| {
                let head = [bytes as u64, ways as u64].map(u64::to_le_bytes).concat();
                let started = Instant::now();
                link.write_all(&head).expect("the other end");
                exchange(&link, bytes, if ways == 2 { bytes } else { 0 });
                link.read_exact(&mut [0]).expect("the other end");
                started.elapsed()
            })
            .collect()
    });
}

pub fn listen(address: &str) {
    let (mut link, _) = TcpListener::bind(address)
        .and_then(|listener| listener.accept())
        .expect("a connection");
    link.set_nodelay(true).expect("a socket");
    let mut head = [0; 16];
    while link.read_exact(&mut head).is_ok() {
        let [bytes, ways] = [0, 8]
            .map(|at| u64::from_le_bytes(std::array::from_fn(|index| head[at + index])) as usize);
        exchange(&link, if ways == 2 { bytes } else { 0 }, bytes);
        link.write_all(&[0]).expect("the other end");
    }
}

/// Waits for the other end to listen.
fn reach(address: &str) -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(link) => {
                link.set_nodelay(true).expect("a socket");
                return link;
            }
            Err(error) if started.elapsed() > Duration::from_secs(20) => {
                panic!("{address}: {error}")
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Sends and receives at the same time.
fn exchange(link: &TcpStream, outgoing: usize, incoming: usize) {
    thread::scope(|scope| {
        if outgoing > 0 && incoming > 0 {
            scope.spawn(|| send(link, outgoing));
        } else {
            send(link, outgoing);
        }
        receive(link, incoming);
    });
}

fn send(mut link: &TcpStream, bytes: usize) {
    let chunk = vec![0; CHUNK.min(bytes)];
    let mut left = bytes;
    while left > 0 {
        left -= link
            .write(&chunk[..left.min(CHUNK)])
            .expect("the other end");
    }
}

fn receive(mut link: &TcpStream, bytes: usize) {
    let mut chunk = vec![0; CHUNK.min(bytes)];
    let mut left = bytes;
    while left > 0 {
        let room = left.min(CHUNK);
        match link.read(&mut chunk[..room]).expect("the other end") {
            0 => panic!("the other end is gone"),
            read => left -= read,
        }
    }
}
