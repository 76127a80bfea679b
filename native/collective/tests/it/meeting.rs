//! How ranks find and trust each other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{
    CollectiveError, Connections, GroupOptions, ProcessGroup, Rendezvous, TcpRendezvous,
    TransportChoice,
};

use crate::harness::{self, PATIENCE, Placement, SECRET, held_address, unlisten};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_tcp_rendezvous_gathers_in_rank_order_whoever_comes_first() {
    let address = held_address();
    thread::scope(|scope| {
        for rank in 0..4 {
            let address = &address;
            scope.spawn(move || {
                // Rank 0, which serves, comes last.
                thread::sleep(Duration::from_millis(200 * (4 - rank as u64) % 800));
                let mut rendezvous =
                    TcpRendezvous::new(address, rank, 4, SECRET, PATIENCE).unwrap();
                for round in 0..3u8 {
                    let payload = vec![round; rank * 1000];
                    let gathered = rendezvous.all_gather(&payload).unwrap();
                    assert_eq!(gathered.len(), 4);
                    for (rank, payload) in gathered.iter().enumerate() {
                        assert_eq!(*payload, vec![round; rank * 1000]);
                    }
                }
            });
        }
    });
}

#[test]
fn a_group_meets_over_tcp_with_strangers_at_the_door() {
    let address = held_address();
    thread::scope(|scope| {
        for rank in 0..3 {
            let address = &address;
            scope.spawn(move || {
                let mut rendezvous =
                    TcpRendezvous::new(address, rank, 3, SECRET, PATIENCE).unwrap();
                let group =
                    ProcessGroup::connect(&mut rendezvous, Placement::Tcp.options(rank)).unwrap();
                group.barrier().unwrap();
            });
        }
        scope.spawn(|| {
            let mut strangers = Vec::new();
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(300) {
                if let Ok(mut stranger) = TcpStream::connect(&address) {
                    // Some are silent, some talk nonsense.
                    if strangers.len() % 2 == 1 {
                        let _ = stranger.write_all(&[b'x'; 200]);
                    }
                    strangers.push(stranger);
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
    });
}

/// More than a meeting examines at a time.
#[test]
fn silent_connections_keep_nobody_waiting() {
    let (sender, address) = mpsc::channel();
    let started = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rendezvous = TcpRendezvous::new("127.0.0.1:0", 0, 2, SECRET, PATIENCE).unwrap();
            sender.send(rendezvous.address()).unwrap();
            rendezvous.all_gather(b"").unwrap();
        });
        let address = address.recv().unwrap();
        let silent: Vec<_> = (0..300)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut rendezvous =
            TcpRendezvous::new(&address.to_string(), 1, 2, SECRET, PATIENCE).unwrap();
        rendezvous.all_gather(b"").unwrap();
        drop(silent);
    });
    assert!(started.elapsed() < 10 * SECOND, "{:?}", started.elapsed());
}

/// More ranks than connections are examined at a time, and all of them at the door when it opens.
#[test]
fn hundreds_of_ranks_meet() {
    const RANKS: usize = 200;
    let mut server = TcpRendezvous::new("127.0.0.1:0", 0, RANKS, SECRET, PATIENCE).unwrap();
    let address = server.address().to_string();
    thread::scope(|scope| {
        for rank in 1..RANKS {
            let address = &address;
            scope.spawn(move || {
                let mut rendezvous =
                    TcpRendezvous::new(address, rank, RANKS, SECRET, PATIENCE).unwrap();
                let gathered = rendezvous.all_gather(&[rank as u8]).unwrap();
                assert_eq!(gathered.len(), RANKS);
            });
        }
        let gathered = server.all_gather(&[0]).unwrap();
        assert!(gathered.iter().map(|one| one[0]).eq(0..RANKS as u8));
    });
}

/// Whoever was hung up on before an answer, for want of room or of threads, was not refused.
#[test]
fn a_rank_that_got_no_answer_comes_again() {
    let address = held_address();
    let listener = TcpListener::bind(&address).unwrap();
    thread::scope(|scope| {
        let member = scope.spawn(|| {
            let mut rendezvous = TcpRendezvous::new(&address, 1, 2, SECRET, PATIENCE).unwrap();
            rendezvous.all_gather(b"one").unwrap()
        });
        drop(listener.accept().unwrap());
        unlisten(listener);
        let mut server = TcpRendezvous::new(&address, 0, 2, SECRET, PATIENCE).unwrap();
        assert_eq!(server.all_gather(b"zero").unwrap()[1], b"one");
        assert_eq!(member.join().unwrap()[0], b"zero");
    });
}

/// A straggler of another attempt, which holds the same secret, comes to the address that an attempt meets at.
#[test]
fn another_attempts_rank_is_a_stranger() {
    let address = held_address();
    let come = |rank, attempt, timeout| {
        TcpRendezvous::new(&address, rank, 2, SECRET, timeout)
            .unwrap()
            .for_attempt(attempt)
            .all_gather(attempt.as_bytes())
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| come(0, "second", PATIENCE));
        let error = come(1, "first", PATIENCE).unwrap_err();
        assert!(error.to_string().contains("attempt"), "{error}");
        let gathered = come(1, "second", PATIENCE).unwrap();
        assert_eq!(gathered, [b"second", b"second"]);
        server.join().unwrap().unwrap();
    });
}

/// Whoever waits for a rank that never comes can be called off.
#[test]
fn an_interrupt_ends_the_wait_of_either_side() {
    for rank in [0, 1] {
        let asked = Instant::now();
        let interrupt = move || asked.elapsed() > Duration::from_millis(200);
        let error = TcpRendezvous::new(&held_address(), rank, 2, SECRET, PATIENCE)
            .unwrap()
            .with_interrupt(Arc::new(interrupt))
            .all_gather(b"")
            .unwrap_err();
        assert!(matches!(error, CollectiveError::Interrupted), "{error}");
        assert!(asked.elapsed() < PATIENCE / 2);
    }
    // Rank 0 is there, and waits for another one too.
    let address = held_address();
    let come = |rank| TcpRendezvous::new(&address, rank, 3, SECRET, PATIENCE).unwrap();
    thread::scope(|scope| {
        let called_off = Arc::new(AtomicBool::new(false));
        let asks = |flag: &Arc<AtomicBool>| {
            let flag = flag.clone();
            move || flag.load(Ordering::Relaxed)
        };
        let mut server = come(0).with_interrupt(Arc::new(asks(&called_off)));
        let serving = scope.spawn(move || server.all_gather(b""));
        let asked = Instant::now();
        let interrupt = move || asked.elapsed() > Duration::from_millis(500);
        let ended = come(1).with_interrupt(Arc::new(interrupt)).all_gather(b"");
        called_off.store(true, Ordering::Relaxed);
        let error = ended.unwrap_err();
        assert!(matches!(error, CollectiveError::Interrupted), "{error}");
        assert!(asked.elapsed() < PATIENCE / 2);
        serving.join().unwrap().unwrap_err();
    });
}

#[test]
fn a_weak_secret_is_refused() {
    for secret in [&b""[..], b"fifteen bytes.."] {
        let error = TcpRendezvous::new("127.0.0.1:0", 0, 2, secret, SECOND).unwrap_err();
        let expected = format!(
            "the secret has {} bytes, but must have at least 16",
            secret.len()
        );
        assert!(error.to_string().contains(&expected), "{error}");
        let options = GroupOptions {
            secret: secret.to_vec(),
            ..Placement::Tcp.options(0)
        };
        let error = ProcessGroup::connect(&mut harness::Table::seats(2).remove(0), options);
        assert!(error.unwrap_err().to_string().contains(&expected));
    }
    // Who is alone has nobody to prove it to.
    TcpRendezvous::new("127.0.0.1:0", 0, 1, b"", SECOND).unwrap();
}

#[test]
fn ranks_that_mean_different_things_are_named() {
    let options = |rank: usize| {
        let seed = if rank == 2 { "1" } else { "0" };
        let batch = if rank > 0 { "32" } else { "64" };
        GroupOptions {
            terms: [("seed", seed), ("epochs", "3"), ("batchSize", batch)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
            host_id: Some(format!("host-{rank}")),
            ..Placement::Tcp.options(rank)
        }
    };
    for error in harness::connecting(3, options, Result::unwrap_err) {
        assert!(matches!(error, CollectiveError::Terms { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "the ranks do not run the same job: rank 1 on host-1 differs from rank 0 on host-0 in batchSize; rank 2 on \
             host-2 differs from rank 0 on host-0 in seed, batchSize; give all ranks one job"
        );
    }
    // Those of another release have others altogether.
    let options = |rank: usize| GroupOptions {
        terms: vec![("seed".into(), "0".into()); rank],
        ..Placement::Tcp.options(rank)
    };
    for error in harness::connecting(2, options, Result::unwrap_err) {
        assert!(error.to_string().contains("another version"), "{error}");
    }
}

#[test]
fn a_missing_rank_is_named() {
    let address = held_address();
    thread::scope(|scope| {
        for rank in 0..2 {
            let address = &address;
            scope.spawn(move || {
                let mut rendezvous = TcpRendezvous::new(address, rank, 3, SECRET, 3 * SECOND).unwrap();
                let error = rendezvous.all_gather(b"here").unwrap_err();
                assert!(error.to_string().contains("rank 2"), "{error}");
                if rank == 0 {
                    assert!(matches!(error, CollectiveError::Timeout { missing, .. } if missing[0].peer.rank == 2));
                }
            });
        }
    });
}

#[test]
fn a_wrong_secret_is_refused_at_the_rendezvous() {
    let address = held_address();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rendezvous = TcpRendezvous::new(&address, 0, 2, SECRET, 3 * SECOND).unwrap();
            let error = rendezvous.all_gather(b"").unwrap_err();
            assert!(error.to_string().contains("could not prove"), "{error}");
        });
        scope.spawn(|| {
            let mut rendezvous =
                TcpRendezvous::new(&address, 1, 2, b"a guess of sixteen", 30 * SECOND).unwrap();
            let started = Instant::now();
            let error = rendezvous.all_gather(b"").unwrap_err();
            assert!(error.to_string().contains("secret"), "{error}");
            assert!(started.elapsed() < 20 * SECOND);
        });
    });
}

#[test]
fn a_wrong_secret_is_refused_between_peers() {
    let options = |rank: usize| GroupOptions {
        secret: if rank == 1 {
            b"a guess of sixteen".to_vec()
        } else {
            SECRET.to_vec()
        },
        connect_timeout: 3 * SECOND,
        ..Placement::OneHost.options(rank)
    };
    for (rank, error) in harness::connecting(2, options, Result::unwrap_err)
        .into_iter()
        .enumerate()
    {
        assert!(
            matches!(error, CollectiveError::Rendezvous { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("secret"), "rank {rank}: {error}");
    }
}

/// Everything that a connection carries on the way to being refused or accepted, seen from outside.
#[test]
fn the_secret_is_never_sent() {
    let secret = b"a secret that is easy to find in a capture";
    let (front, back) = (TcpListener::bind("127.0.0.1:0").unwrap(), held_address());
    let address = front.local_addr().unwrap().to_string();
    let capture = thread::spawn({
        let back = back.clone();
        move || {
            let (client, _) = front.accept().unwrap();
            let server = loop {
                if let Ok(server) = TcpStream::connect(&back) {
                    break server;
                }
                thread::sleep(Duration::from_millis(10));
            };
            let pump = |mut from: TcpStream, mut to: TcpStream| {
                thread::spawn(move || {
                    let (mut seen, mut chunk) = (Vec::new(), [0; 4096]);
                    while let Ok(read @ 1..) = from.read(&mut chunk) {
                        seen.extend_from_slice(&chunk[..read]);
                        if to.write_all(&chunk[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    seen
                })
            };
            let there = pump(client.try_clone().unwrap(), server.try_clone().unwrap());
            let back = pump(server, client);
            [there.join().unwrap(), back.join().unwrap()].concat()
        }
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rendezvous = TcpRendezvous::new(&back, 0, 2, secret, PATIENCE).unwrap();
            assert_eq!(rendezvous.all_gather(b"zero").unwrap()[1], b"one");
        });
        scope.spawn(|| {
            let mut rendezvous = TcpRendezvous::new(&address, 1, 2, secret, PATIENCE).unwrap();
            assert_eq!(rendezvous.all_gather(b"one").unwrap()[0], b"zero");
        });
    });
    let seen = capture.join().unwrap();
    let has = |text: &[u8]| seen.windows(text.len()).any(|window| window == text);
    assert!(has(b"zero") && has(b"one"));
    assert!(!has(secret) && !has(&secret[..12]));
}

#[test]
fn a_rank_that_never_connects_is_named() {
    // Rank 1 gives its address, and then does not connect.
    struct Deserter(harness::Table);
    impl Rendezvous for Deserter {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn world_size(&self) -> usize {
            self.0.world_size()
        }
        fn all_gather(&mut self, payload: &[u8]) -> flambeau_collective::Result<Vec<Vec<u8>>> {
            self.0.all_gather(payload)?;
            Err(CollectiveError::Interrupted)
        }
    }
    let mut seats = harness::Table::seats(2);
    let mut deserter = Deserter(seats.pop().unwrap());
    let mut faithful = seats.pop().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let options = GroupOptions {
                connect_timeout: SECOND,
                ..Placement::Tcp.options(0)
            };
            let error = ProcessGroup::connect(&mut faithful, options).unwrap_err();
            assert!(
                matches!(&error, CollectiveError::Timeout { missing, .. } if missing[0].peer.rank == 1),
                "{error:?}"
            );
        });
        scope.spawn(move || {
            assert!(ProcessGroup::connect(&mut deserter, Placement::Tcp.options(1)).is_err());
        });
    });
}

#[test]
fn ranks_that_do_not_fit_together_say_so() {
    let options = |rank: usize| GroupOptions {
        transport: if rank == 0 {
            TransportChoice::Tcp
        } else {
            TransportChoice::Auto
        },
        ..Placement::Tcp.options(rank)
    };
    for error in harness::connecting(2, options, Result::unwrap_err) {
        assert!(error.to_string().contains("another transport"), "{error}");
    }
    let everywhere = |rank: usize| GroupOptions {
        bind_address: "0.0.0.0".parse().unwrap(),
        ..Placement::Tcp.options(rank)
    };
    let mut alone = harness::Table::seats(2).remove(0);
    let error = ProcessGroup::connect(&mut alone, everywhere(0)).unwrap_err();
    assert!(error.to_string().contains("0.0.0.0"), "{error}");
}

#[test]
fn the_address_of_another_family_works() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("SKIPPED: no IPv6 loopback");
        return;
    }
    let options = |rank: usize| GroupOptions {
        bind_address: "::1".parse().unwrap(),
        ..Placement::Tcp.options(rank)
    };
    harness::ranks(2, options, |group| {
        group.barrier().unwrap();
        assert_eq!(group.world_size(), 2);
        assert!(!group.host_of(1).is_empty());
    });
}

#[test]
fn ranks_work_with_those_of_their_host_and_leaders_with_each_other() {
    let of = |shared_memory: &[usize], tcp: &[usize]| Connections {
        shared_memory: shared_memory.into(),
        tcp: tcp.into(),
    };
    let cases = [
        (
            Placement::OneHost,
            [of(&[1, 2], &[]), of(&[0, 2], &[]), of(&[0, 1], &[])],
        ),
        (
            Placement::Tcp,
            [of(&[], &[1, 2]), of(&[], &[0, 2]), of(&[], &[0, 1])],
        ),
        (
            Placement::Hosts(vec![0, 1, 0]),
            [of(&[2], &[1]), of(&[], &[0]), of(&[0], &[])],
        ),
    ];
    for (placement, expected) in cases {
        harness::ranks(
            3,
            |rank| placement.options(rank),
            |group| {
                assert_eq!(
                    group.connections(),
                    &expected[group.rank()],
                    "{placement:?}"
                )
            },
        );
    }
}

#[test]
fn hosts_are_named_as_they_call_themselves() {
    harness::ranks(
        3,
        |rank| Placement::Hosts(vec![0, 1, 0]).options(rank),
        |group| {
            assert_eq!(
                (group.host_of(0), group.host_of(1), group.host_of(2)),
                ("host-0", "host-1", "host-0")
            );
        },
    );
}
