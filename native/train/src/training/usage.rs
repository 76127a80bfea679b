//! What a rank uses of its machine, told to the driver in files of the work directory while it trains.

use std::fs;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use flambeau_data::Store;
use serde_json::{Value, json};

use crate::job::Attempt;

/// From one sample to the next, in seconds: the least and the most.
const SECONDS: (f64, f64) = (0.5, 86_400.0);

/// How long the end waits for a write that is under way.
const END: Duration = Duration::from_secs(10);

/// Samples this process, with its children, and its machine until it is dropped. Each sample takes the place of the one before, as
/// `usage/<rank>.json` of the attempt. A store that cannot be written costs the sample and nothing else.
pub(crate) struct UsageSampler {
    over: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl UsageSampler {
    /// That of a rank; none where the attempt asks for no samples, or the system has no thread for it.
    pub(crate) fn of(attempt: &Attempt, rank: usize, store: &Store) -> Option<UsageSampler> {
        let seconds = attempt.usage_seconds?.clamp(SECONDS.0, SECONDS.1);
        let uri = format!("{}/usage/{rank}.json", attempt.directory());
        let store = store.clone();
        let (over, is_over) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let sample = move || {
            // A machine that does not tell of itself ends this alone.
            let _ = write(
                rank,
                Duration::from_secs_f64(seconds),
                &store,
                &uri,
                &is_over,
            );
            drop::<Sender<()>>(end);
        };
        thread::Builder::new()
            .name("flambeau-usage".into())
            .spawn(sample)
            .ok()?;
        Some(UsageSampler {
            over: Some(over),
            ended,
        })
    }
}

impl Drop for UsageSampler {
    fn drop(&mut self) {
        self.over = None;
        let _ = self.ended.recv_timeout(END);
    }
}

/// Writes samples until the other end of `is_over` is gone.
fn write(
    rank: usize,
    interval: Duration,
    store: &Store,
    uri: &str,
    is_over: &Receiver<()>,
) -> io::Result<()> {
    let (mut before, mut number) = (Clocks::now()?, 0);
    while is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let now = Clocks::now()?;
        let values = values(&before, &now)?;
        let sample = json!({"kind": "usage", "rank": rank, "number": number, "values": values});
        let _ = store.put(uri, sample.to_string().into());
        (before, number) = (now, number + 1);
    }
    Ok(())
}

/// A time, and the ticks of CPUs up to then.
struct Clocks {
    time: Instant,
    machine: u64,
    machine_busy: u64,
    process: u64,
}

impl Clocks {
    fn now() -> io::Result<Clocks> {
        let stat = fs::read_to_string("/proc/stat")?;
        // user, nice, system, idle, iowait, irq, softirq and steal; those of guests are among the first two.
        let times: Vec<u64> = numbers(stat.lines().next().unwrap_or_default(), 1..9);
        let [_, _, _, idle, waiting, ..] = times[..] else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let machine = times.iter().sum();
        let process = processes().into_iter().map(|pid| {
            // One that has ended has none. utime, stime, and those of its children that have ended.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after_name = stat.rsplit(')').next().unwrap_or_default();
            numbers(after_name, 11..15).iter().sum::<u64>()
        });
        Ok(Clocks {
            time: Instant::now(),
            machine,
            machine_busy: machine - idle - waiting,
            process: process.sum(),
        })
    }
}

/// The machine's figures, by the names that MLflow gives them, and those of the process.
fn values(before: &Clocks, now: &Clocks) -> io::Result<Value> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let bytes = |name: &str| {
        let line = memory.lines().find(|line| line.starts_with(name));
        line.and_then(|line| numbers(line, 1..2).first().copied())
            .map(|kibibytes| kibibytes as f64 * 1024.0)
            .ok_or(io::ErrorKind::InvalidData)
    };
    let (total, available) = (bytes("MemTotal:")?, bytes("MemAvailable:")?);
    let pages: u64 = processes()
        .iter()
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default())
        .filter_map(|statm| numbers(&statm, 1..2).first().copied())
        .sum();
    // SAFETY: it only reads what it is given.
    let [ticks, page] =
        [libc::_SC_CLK_TCK, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) } as f64);
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let busy = share(
        now.machine_busy.saturating_sub(before.machine_busy),
        now.machine.saturating_sub(before.machine),
    );
    // A child that has ended takes its ticks along until it is waited for.
    let computed = now.process.saturating_sub(before.process) as f64 / ticks;
    let cores = computed / (now.time - before.time).as_secs_f64();
    let rounded = |value: f64| (10.0 * value).round() / 10.0;
    Ok(json!({
        "cpu_utilization_percentage": rounded(100.0 * busy),
        "system_memory_usage_megabytes": rounded((total - available) / 1e6),
        "system_memory_usage_percentage": rounded(100.0 * (total - available) / total),
        "process_cpu_utilization_percentage": rounded(100.0 * cores),
        "process_memory_usage_megabytes": rounded(pages as f64 * page / 1e6),
    }))
}

/// The numbers among these words of a line.
fn numbers(line: &str, words: std::ops::Range<usize>) -> Vec<u64> {
    let words = line.split_whitespace().take(words.end).skip(words.start);
    words.filter_map(|word| word.parse().ok()).collect()
}

/// This process and its children.
fn processes() -> Vec<String> {
    let mut found = vec!["self".to_string()];
    for task in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        // A thread that has ended has none.
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(String::from));
    }
    found
}
