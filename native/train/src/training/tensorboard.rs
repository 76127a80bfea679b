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

/// Bytes that wait to be written, at most: more are dropped where files can't be written.
const MOST_BYTES: usize = 16 << 20;

// Fields of `Event`, and what is in them.
const FILE_VERSION: u8 = 3;
const SUMMARY: u8 = 5;
const SESSION_LOG: u8 = 7;
const VERSION: &[u8] = b"brain.Event:2";
/// `SessionLog { status: START }`.
const SESSION_START: [u8; 2] = [1 << 3, 1];

/// What was not written yet of a training, and where it goes.
pub(crate) struct TensorBoard {
    /// The files' URI but for their number.
    prefix: String,
    number: u32,
    began: Instant,
    next: Instant,
    records: Vec<u8>,
}

impl TensorBoard {
    /// Writes the first file of a training that has taken so many steps. TensorBoard drops later ones of an earlier attempt.
    ///
    /// # Errors
    ///
    /// What the store says.
    pub(crate) fn begin(
        store: &Store,
        directory: &str,
        num_steps: u64,
    ) -> Result<TensorBoard, DataError> {
        let seconds = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        // Behind the files of an earlier attempt, whatever that one's clock said.
        let names = store.names(directory)?;
        let earlier = names.iter().filter_map(|name| seconds_of(name)).max();
        let seconds = earlier.map_or(seconds, |earlier| seconds.max(earlier + 1));
        let mut board = TensorBoard {
            prefix: format!(
                "{}/{PREFIX}{seconds:010}.{}",
                directory.trim_end_matches('/'),
                host_name()
            ),
            number: 0,
            began: Instant::now(),
            next: Instant::now(),
            records: vec![],
        };
        board.add(now(), num_steps + 1, SESSION_LOG, &SESSION_START);
        board.put(store)?;
        Ok(board)
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
        (!self.records.is_empty()).then_some(self.next)
    }

    /// Writes a file with what was added since the last one that could be written.
    ///
    /// # Errors
    ///
    /// What the store says. Nothing is lost then, unless it is too much for memory.
    pub(crate) fn write(&mut self, store: &Store) -> Result<(), DataError> {
        if self.records.is_empty() {
            return Ok(());
        }
        self.put(store).inspect_err(|_| {
            if self.records.len() > MOST_BYTES {
                self.records.clear();
            }
        })
    }

    fn put(&mut self, store: &Store) -> Result<(), DataError> {
        let began = self.began.elapsed();
        self.next = Instant::now() + INTERVAL.max(began / 10);
        let mut file = vec![];
        push_record(&mut file, &event(now(), 0, FILE_VERSION, VERSION));
        file.extend(&self.records);
        let uri = format!("{}.{:06}", self.prefix, self.number);
        store.put(&uri, file.into())?;
        self.number += 1;
        self.records.clear();
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
        push_record(&mut self.records, &event(time, step, field, content));
    }
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
    use super::*;

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
