//! Ranks in network namespaces of their own: hosts as different as one machine can make them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{FAULTS, PATIENCE, Process, all_say, processes_by};

/// Two namespaces joined by a pair of virtual interfaces; removed when dropped.
struct Network {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.83.0.1", "10.83.0.2"];

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

impl Network {
    fn new() -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let id = format!(
            "{}{}",
            std::process::id() % 100_000_000,
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let network = Network {
            names: [format!("flambeau-{id}-a"), format!("flambeau-{id}-b")],
        };
        let [a, b] = &network.names;
        let (left, right) = (format!("fl{id}a"), format!("fl{id}b"));
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!(
            "link add {left} netns {a} type veth peer name {right} netns {b}"
        ))?;
        for (name, device, address) in [(a, &left, ADDRESSES[0]), (b, &right, ADDRESSES[1])] {
            ip(&format!("-n {name} addr add {address}/24 dev {device}"))?;
            ip(&format!("-n {name} link set {device} up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The namespaces, or a word on why there are none.
fn network() -> Option<Network> {
    let network = Network::new();
    network
        .map_err(|reason| println!("SKIPPED: no network namespaces here: {reason}"))
        .ok()
}

/// Two ranks in each namespace.
fn start(network: &Network, arguments: &[(&str, &str)]) -> Vec<Process> {
    let address = format!("{}:29417", ADDRESSES[0]);
    let arguments: Vec<_> = arguments
        .iter()
        .copied()
        .chain([("ADDRESS", address.as_str())])
        .collect();
    processes_by(
        FAULTS,
        4,
        "across namespaces",
        &arguments,
        |rank, program| {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", &network.names[rank / 2]])
                .arg(program);
            command.env("FLAMBEAU_TEST_BIND", ADDRESSES[rank / 2]);
            command
        },
    )
}

/// Ranks that take themselves to be on one host, and whose attempt to share memory shows that they are not, use TCP.
#[test]
fn ranks_that_cannot_attach_fall_back_to_tcp() {
    let Some(network) = network() else { return };
    let processes = start(&network, &[("HOST", "everyone's")]);
    all_say(&processes, "ready");
    for (rank, process) in processes.iter().enumerate() {
        assert_eq!(process.hear(PATIENCE), "10", "rank {rank}");
        assert_eq!(process.hear(PATIENCE), "not shared", "rank {rank}");
    }
}

/// Four ranks, two in each namespace, meet over the wire between the namespaces, share memory inside each, and agree; then
/// the wire is cut, and both sides name a rank of the other.
#[test]
fn ranks_in_two_namespaces_work_together_until_the_wire_is_cut() {
    let Some(network) = network() else { return };
    let processes = start(&network, &[("HEARTBEAT", "4")]);
    all_say(&processes, "ready");
    for (rank, process) in processes.iter().enumerate() {
        assert_eq!(process.hear(PATIENCE), "10", "rank {rank}");
        assert_eq!(process.hear(PATIENCE), "shared", "rank {rank}");
    }
    let device = wire(&network.names[0]);
    let cut = Instant::now();
    ip(&format!("-n {} link set {device} down", network.names[0])).unwrap();
    for (rank, process) in processes.iter().enumerate() {
        let said = process.hear(Duration::from_secs(25));
        assert!(
            cut.elapsed() < Duration::from_secs(20),
            "rank {rank} took {:?}",
            cut.elapsed()
        );
        // One of the other side; silent, or already given up by this rank's neighbour.
        let named = if rank < 2 {
            ["lost 2", "lost 3"]
        } else {
            ["lost 0", "lost 1"]
        };
        assert!(
            named.iter().any(|name| said.starts_with(name)),
            "rank {rank}: {said}"
        );
    }
}

fn wire(namespace: &str) -> String {
    let mut child = Command::new("ip")
        .args(["-n", namespace, "-o", "link"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .collect::<Vec<_>>();
    child.wait().unwrap();
    let line = lines
        .iter()
        .find(|line| line.contains(": fl"))
        .expect("the wire");
    line.split([':', '@'])
        .nth(1)
        .expect("a device")
        .trim()
        .to_owned()
}
