//! Runs the ranks of a group as threads of the test, or as processes of their own.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_collective::{GroupOptions, ProcessGroup, Rendezvous, Result, TcpRendezvous};

/// Longer than any test; a hang ends as an error that names who was missing.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What the ranks of a group prove to each other that they hold.
pub const SECRET: &[u8] = b"between the ranks of a group";

/// How ranks are placed: one host for all, or a label for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Shared memory between all.
    OneHost,
    /// TCP between all.
    Tcp,
    /// Shared memory between ranks of equal label, TCP between the others.
    Hosts(Vec<u8>),
}

impl Placement {
    pub fn options(&self, rank: usize) -> GroupOptions {
        use flambeau_collective::TransportChoice;
        let (transport, host_id) = match self {
            Placement::OneHost => (TransportChoice::SharedMemory, None),
            Placement::Tcp => (TransportChoice::Tcp, None),
            Placement::Hosts(labels) => (
                TransportChoice::SharedMemory,
                Some(format!("host-{}", labels[rank])),
            ),
        };
        GroupOptions {
            timeout: PATIENCE,
            connect_timeout: PATIENCE,
            secret: SECRET.to_vec(),
            transport,
            host_id,
            ..Default::default()
        }
    }
}

/// What each rank has put on the table.
type Places = Vec<Option<Vec<u8>>>;

/// A rendezvous between threads.
pub struct Table {
    rank: usize,
    shared: Arc<(Mutex<Places>, Condvar)>,
}

impl Table {
    pub fn seats(world_size: usize) -> Vec<Table> {
        let shared = Arc::new((Mutex::new(vec![None; world_size]), Condvar::new()));
        (0..world_size)
            .map(|rank| Table {
                rank,
                shared: shared.clone(),
            })
            .collect()
    }
}

impl Rendezvous for Table {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.shared.0.lock().unwrap().len()
    }

    fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut payloads = self.shared.0.lock().unwrap();
        payloads[self.rank] = Some(payload.to_vec());
        self.shared.1.notify_all();
        let (payloads, timeout) = self
            .shared
            .1
            .wait_timeout_while(payloads, PATIENCE, |payloads| {
                payloads.iter().any(Option::is_none)
            })
            .unwrap();
        assert!(!timeout.timed_out(), "a rank never came to the table");
        Ok(payloads.iter().flatten().cloned().collect())
    }
}

/// Runs `body` on every rank, each a thread with its own group; the results are in rank order.
pub fn ranks<T: Send>(
    world_size: usize,
    options: impl Fn(usize) -> GroupOptions + Sync,
    body: impl Fn(ProcessGroup) -> T + Sync,
) -> Vec<T> {
    connecting(world_size, options, |group| body(group.expect("connect")))
}

/// As `ranks`, with the outcome of connecting.
pub fn connecting<T: Send>(
    world_size: usize,
    options: impl Fn(usize) -> GroupOptions + Sync,
    body: impl Fn(Result<ProcessGroup>) -> T + Sync,
) -> Vec<T> {
    let (options, body) = (&options, &body);
    thread::scope(|scope| {
        let threads: Vec<_> = Table::seats(world_size)
            .into_iter()
            .map(|mut seat| {
                scope.spawn(move || {
                    let options = options(seat.rank);
                    body(ProcessGroup::connect(&mut seat, options))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank panicked"))
            .collect()
    })
}

/// A rank in a process of its own, running a scenario.
pub struct Process {
    pub child: Child,
    lines: Receiver<String>,
}

const SCENARIO: &str = "FLAMBEAU_TEST_SCENARIO";

/// What this process was started for, where `processes_by` started it.
pub fn scenario() -> Option<String> {
    env::var(SCENARIO).ok()
}

/// The argument `name` that the parent gave.
pub fn argument(name: &str) -> String {
    env::var(format!("FLAMBEAU_TEST_{name}")).unwrap_or_default()
}

/// In a rank's process: connects to the others.
pub fn join(options: impl FnOnce(usize) -> GroupOptions) -> ProcessGroup {
    let (rank, world_size) = (
        argument("RANK").parse().unwrap(),
        argument("WORLD").parse().unwrap(),
    );
    let mut rendezvous =
        TcpRendezvous::new(&argument("ADDRESS"), rank, world_size, SECRET, PATIENCE)
            .expect("rendezvous");
    ProcessGroup::connect(&mut rendezvous, options(rank)).expect("connect")
}

/// Starts `world_size` processes of this test binary that run `scenario`; they end with the values.
pub fn processes(world_size: usize, scenario: &str, arguments: &[(&str, &str)]) -> Vec<Process> {
    let address = held_address();
    let arguments: Vec<_> = arguments
        .iter()
        .copied()
        .chain([("ADDRESS", address.as_str())])
        .collect();
    processes_by(FAULTS, world_size, scenario, &arguments, |_, program| {
        Command::new(program)
    })
}

/// Where rank 0 may listen, at a port that nobody else is given as long as this process lives.
pub fn held_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As long as a connection has the port, the system hands it to no one who asks for any; whoever names it may listen there.
    let client = TcpStream::connect(address).unwrap();
    let (server, _) = listener.accept().unwrap();
    std::mem::forget((client, server));
    unlisten(listener);
    address.to_string()
}

/// Ends a listener at once. Closing it would not, as long as a process that another test is starting has yet to close its copy.
pub fn unlisten(listener: TcpListener) {
    // SAFETY: the descriptor is the listener's, which lives until the end of this function.
    let ended = unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    assert_eq!(ended, 0, "{}", std::io::Error::last_os_error());
}

/// The test that runs the scenarios of `faults`.
pub const FAULTS: &str = "faults::ranks_in_their_own_processes_work_and_part";

/// As `processes`, of scenarios that the test `entry` runs; `command` says how the program is started, and the arguments hold
/// the `ADDRESS` to meet at.
pub fn processes_by(
    entry: &str,
    world_size: usize,
    scenario: &str,
    arguments: &[(&str, &str)],
    command: impl Fn(usize, &Path) -> Command,
) -> Vec<Process> {
    (0..world_size)
        .map(|rank| {
            let mut command = command(rank, &env::current_exe().unwrap());
            command
                .args([entry, "--exact", "--nocapture", "--test-threads=1"])
                .env(SCENARIO, scenario)
                .env("FLAMBEAU_TEST_RANK", rank.to_string())
                .env("FLAMBEAU_TEST_WORLD", world_size.to_string())
                .envs(
                    arguments
                        .iter()
                        .map(|(name, value)| (format!("FLAMBEAU_TEST_{name}"), *value)),
                )
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit());
            let mut child = command.spawn().unwrap();
            let (sender, lines) = mpsc::channel();
            let stdout = BufReader::new(child.stdout.take().unwrap());
            thread::spawn(move || {
                for line in stdout.lines().map_while(std::io::Result::ok) {
                    if let Some(start) = line.find("SAYS ") {
                        let _ = sender.send(line[start + 5..].to_owned());
                    }
                }
            });
            Process { child, lines }
        })
        .collect()
}

/// In a rank's process: tells the parent.
pub fn say(text: impl std::fmt::Display) {
    println!("SAYS {text}");
}

impl Process {
    /// The next thing that the rank says.
    pub fn hear(&self, within: Duration) -> String {
        self.lines
            .recv_timeout(within)
            .unwrap_or_else(|_| panic!("a rank said nothing for {within:?}"))
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that has not been waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until all have said `text`.
pub fn all_say(processes: &[Process], text: &str) {
    for process in processes {
        assert_eq!(process.hear(PATIENCE), text);
    }
}

/// What each of the survivors says next, and how long after `since`; all within `limit`.
pub fn hear_all(
    processes: &HashMap<usize, &Process>,
    since: Instant,
    limit: Duration,
) -> HashMap<usize, String> {
    processes
        .iter()
        .map(|(rank, process)| {
            let said =
                process.hear((limit + Duration::from_secs(5)).saturating_sub(since.elapsed()));
            assert!(
                since.elapsed() < limit,
                "rank {rank} took {:?}: {said}",
                since.elapsed()
            );
            (*rank, said)
        })
        .collect()
}
