//! TensorBoard's event files: TFRecords of the protocol buffer `Event`, of which a fit needs four fields.
//!
//! A store can't append, so a file is whole when it is written, and what comes after it goes into the next one. TensorBoard
//! reads the files of a directory in the order of their names.

use std::time::{Duration, Instant, UNIX_EPOCH};

use flambeau_collective::host_name;
use flambeau_data::{DataError, Store};

use crate::record::history::{EpochRecord, NamedValue};
use crate::training::hooks::StepReport;

const PREFIX: &str = "events.out.tfevents.";

/// The least time between two files. Later it is a tenth of the time since the first, so that a fit of ten hours has about
/// 90 files.
const INTERVAL: Duration = Duration::from_secs(10);

/// Bytes that are written before their time, so that steps by the thousand a second are no matter of memory.
const FULL_BYTES: usize = 8 << 20;

/// Bytes that wait to be written, at most: what comes while they can't be is dropped.
const MOST_BYTES: usize = 2 * FULL_BYTES;

// Fields of `Event`, and what is in them.
const FILE_VERSION: u8 = 3;
const SUMMARY: u8 = 5;
const SESSION_LOG: u8 = 7;
const VERSION: &[u8] = b"brain.Event:2";
/// `SessionLog { status: START }`.
const SESSION_START: [u8; 2] = [1 << 3, 1];

/// What was not written yet of a training, and where it goes.
pub(crate) struct TensorBoard {
    directory: String,
    /// The files' URI but for their number, once one was written.
    prefix: Option<String>,
    number: u32,
    began: Instant,
    next: Instant,
    records: Vec<u8>,
    /// Those of the records, as TensorBoard counts them.
    steps: Option<Steps>,
    /// Those of which records were dropped.
    lost: Option<Steps>,
    /// Why files could not be written, the first time.
    failure: Option<String>,
    /// Whether the last one could not.
    is_failing: bool,
}

/// The first and the last.
type Steps = (u64, u64);

impl TensorBoard {
    /// What a training that has taken so many steps is told in. TensorBoard drops later ones of an earlier attempt.
    pub(crate) fn new(directory: &str, num_steps: u64) -> TensorBoard {
        let mut board = TensorBoard {
            directory: directory.to_owned(),
            prefix: None,
            number: 0,
            began: Instant::now(),
            next: Instant::now(),
            records: vec![],
            steps: None,
            lost: None,
            failure: None,
            is_failing: false,
        };
        board.add(now(), num_steps + 1, SESSION_LOG, &SESSION_START);
        board
    }

    /// What a step came to.
    pub(crate) fn add_step(&mut self, time: f64, report: &StepReport, rows_per_second: f64) {
        let values = [
            ("train/loss_step", report.loss),
            ("train/learning_rate", report.learning_rate),
            ("train/gradient_norm", report.gradient_norm),
            ("train/rows_per_second", Some(rows_per_second)),
        ];
        let values = values.map(|(tag, value)| (tag.to_owned(), value));
        self.add_values(time, report.step + 1, &values);
    }

    /// What an epoch came to.
    pub(crate) fn add_epoch(&mut self, time: f64, record: &EpochRecord) {
        let of = |part: &'static str, metrics: &[NamedValue]| -> Vec<NamedValue> {
            let named = |(name, value): &NamedValue| (format!("{part}/{name}"), *value);
            metrics.iter().map(named).collect()
        };
        let mut values = vec![
            ("train/loss_epoch".to_owned(), record.loss),
            ("validation/loss".to_owned(), record.validation_loss),
        ];
        values.extend(of("train", &record.metrics));
        values.extend(of("validation", &record.validation_metrics));
        self.add_values(time, record.steps, &values);
    }

    /// When the next file is to be written, if there is anything to write.
    pub(crate) fn due(&self) -> Option<Instant> {
        let is_full = self.records.len() >= FULL_BYTES && !self.is_failing;
        (!self.records.is_empty()).then_some(if is_full { self.began } else { self.next })
    }

    /// Writes a file with what was added since the last one that could be written.
    ///
    /// # Errors
    ///
    /// What the store says. It is tried again then: what waits goes on waiting, as far as memory allows.
    pub(crate) fn write(&mut self, store: &Store) -> Result<(), DataError> {
        if self.records.is_empty() {
            return Ok(());
        }
        let written = self.put(store);
        let interval = match &written {
            Ok(()) => INTERVAL.max(self.began.elapsed() / 10),
            Err(error) => {
                self.failure.get_or_insert_with(|| error.to_string());
                INTERVAL
            }
        };
        self.is_failing = written.is_err();
        self.next = Instant::now() + interval;
        written
    }

    /// Why files could not be written, and which steps are missing there if nothing more is written.
    pub(crate) fn warning(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        let missing = [self.lost, self.steps].into_iter().flatten();
        let missing = match missing.reduce(joined) {
            None => "nothing is missing there".to_owned(),
            Some((first, last)) => {
                format!("what is missing there lies between steps {first} and {last}")
            }
        };
        Some(format!(
            "TensorBoard's files could not be written: {failure}; {missing}"
        ))
    }

    fn put(&mut self, store: &Store) -> Result<(), DataError> {
        let prefix = match &self.prefix {
            Some(prefix) => prefix,
            None => self.prefix.insert(new_prefix(store, &self.directory)?),
        };
        let mut file = vec![];
        push_record(&mut file, &event(now(), 0, FILE_VERSION, VERSION));
        file.extend(&self.records);
        store.put(&format!("{prefix}.{:06}", self.number), file.into())?;
        self.number += 1;
        self.records = vec![];
        self.steps = None;
        Ok(())
    }

    fn add_values(&mut self, time: f64, step: u64, values: &[NamedValue]) {
        let mut summary = vec![];
        for (tag, value) in values {
            let Some(value) = value else { continue };
            let mut message = vec![];
            push_bytes(&mut message, 1, tag.as_bytes());
            message.push(2 << 3 | 5);
            message.extend((*value as f32).to_le_bytes());
            push_bytes(&mut summary, 1, &message);
        }
        self.add(time, step, SUMMARY, &summary);
    }

    fn add(&mut self, time: f64, step: u64, field: u8, content: &[u8]) {
        let steps = if self.records.len() < MOST_BYTES {
            push_record(&mut self.records, &event(time, step, field, content));
            &mut self.steps
        } else {
            &mut self.lost
        };
        *steps = Some(steps.map_or((step, step), |steps| joined(steps, (step, step))));
    }
}

/// All steps between.
fn joined(one: Steps, other: Steps) -> Steps {
    (one.0.min(other.0), one.1.max(other.1))
}

/// The URI of a training's files but for their number: they come after those that the directory has, whatever the clock said
/// that those were named by.
fn new_prefix(store: &Store, directory: &str) -> Result<String, DataError> {
    let seconds = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let names = store.names(directory)?;
    let earlier = names.iter().filter_map(|name| seconds_of(name)).max();
    let seconds = earlier.map_or(seconds, |earlier| seconds.max(earlier + 1));
    let directory = directory.trim_end_matches('/');
    Ok(format!("{directory}/{PREFIX}{seconds:010}.{}", host_name()))
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// The seconds that the name of an event file tells.
fn seconds_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

/// An `Event` with `wall_time`, `step` and one more field.
fn event(time: f64, step: u64, field: u8, content: &[u8]) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(time.to_le_bytes());
    event.push(2 << 3);
    push_varint(&mut event, step);
    push_bytes(&mut event, field, content);
    event
}

fn push_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    push_varint(message, bytes.len() as u64);
    message.extend(bytes);
}

fn push_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 1 << 7 {
        message.push(value as u8 | 1 << 7);
        value >>= 7;
    }
    message.push(value as u8);
}

/// A TFRecord: length, checksum of the length, data, checksum of the data.
fn push_record(file: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    file.extend(length);
    file.extend(masked_crc(&length).to_le_bytes());
    file.extend(data);
    file.extend(masked_crc(data).to_le_bytes());
}

/// The CRC-32C, rotated and shifted, as TFRecords have it.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::*;

    /// Adds steps until so many bytes wait, or are dropped; returns the last one.
    fn fill(board: &mut TensorBoard, num_bytes: usize, from: u64) -> u64 {
        let (mut step, mut added) = (from, 0);
        while added < num_bytes {
            let before = board.records.len();
            let report = StepReport {
                epoch: 0,
                step,
                steps_per_epoch: 1 << 40,
                num_rows: 1,
                loss: Some(0.5),
                gradient_norm: Some(1.0),
                learning_rate: Some(0.1),
            };
            board.add_step(0.0, &report, 1.0);
            added += (board.records.len() - before).max(100);
            step += 1;
        }
        step
    }

    #[test]
    fn much_is_written_before_its_time_and_a_store_that_fails_is_no_matter_of_memory() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("logs");
        let store = Store::new(&HashMap::new()).unwrap();
        let mut board = TensorBoard::new(logs.to_str().unwrap(), 0);
        board.write(&store).unwrap();
        assert_eq!((board.due(), board.warning()), (None, None));
        let few = fill(&mut board, 1000, 0);
        assert!(board.due().unwrap() > Instant::now());
        let written = fill(&mut board, FULL_BYTES, few);
        assert!(board.due().unwrap() <= Instant::now());
        board.write(&store).unwrap();

        let kept: Vec<_> = fs::read_dir(&logs).unwrap().map(Result::unwrap).collect();
        let before = kept.iter().map(|file| file.metadata().unwrap().len());
        let before: u64 = before.sum();
        fs::rename(&logs, directory.path().join("aside")).unwrap();
        fs::write(&logs, "in the way").unwrap();
        let waiting = fill(&mut board, MOST_BYTES, written);
        board.write(&store).unwrap_err();
        // Tried again in its time, and not at once though it is full.
        assert!(board.due().unwrap() > Instant::now());
        let last = fill(&mut board, 1 << 20, waiting);
        assert!(board.records.len() < MOST_BYTES + 1000);

        fs::remove_file(&logs).unwrap();
        fs::rename(directory.path().join("aside"), &logs).unwrap();
        board.write(&store).unwrap();
        let files = fs::read_dir(&logs).unwrap().map(Result::unwrap);
        let after: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
        assert!(after >= before + MOST_BYTES as u64);
        let warning = board.warning().unwrap();
        let missing = format!("between steps {} and {last}", waiting + 1);
        assert!(warning.ends_with(&missing), "{warning}");
    }

    #[test]
    fn checksums_are_those_of_tfrecords() {
        // Those of RFC 3720, B.4 (8a9136aa and 62a8ab43), as TensorBoard masks them.
        assert_eq!(masked_crc(&[0; 32]), 0x0fd7_fffa);
        assert_eq!(masked_crc(&[0xff; 32]), 0xf909_b029);
        // How TensorFlow's own files begin: a record of 24 bytes.
        assert_eq!(masked_crc(&24u64.to_le_bytes()), 0x224b_7fa3);
    }

    #[test]
    fn an_event_is_a_protocol_buffer() {
        // Of protoc: wall_time 1.5, step 300, file_version "v".
        let expected = [
            9, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x10, 0xac, 2, 0x1a, 1, b'v',
        ];
        assert_eq!(event(1.5, 300, FILE_VERSION, b"v"), expected);
    }
}
