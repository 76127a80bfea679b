//! Files of tensors by name, as the safetensors format has them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use crate::error::TorchError;
use crate::tensor::{bytes_of, kind_name, of_bytes};

/// Vector kernels give other last bits on memory that is aligned otherwise; torch aligns its own to this.
const ALIGNMENT: usize = 64;

/// The longest header, as the safetensors crate has it: more is no description of tensors.
const MAX_HEADER: usize = 100_000_000;

const CODES: [(Kind, &str); 12] = [
    (Kind::Double, "F64"),
    (Kind::Float, "F32"),
    (Kind::Half, "F16"),
    (Kind::BFloat16, "BF16"),
    (Kind::Float8e4m3fn, "F8_E4M3"),
    (Kind::Float8e5m2, "F8_E5M2"),
    (Kind::Int64, "I64"),
    (Kind::Int, "I32"),
    (Kind::Int16, "I16"),
    (Kind::Int8, "I8"),
    (Kind::Uint8, "U8"),
    (Kind::Bool, "BOOL"),
];

/// Writes tensors with metadata, tensor by tensor, so that no second copy of all of them is made in memory. Those whose size
/// keeps the alignment come first, since the format knows no gaps.
///
/// # Errors
///
/// [`TorchError::Param`] for a tensor that the format cannot hold, and what `file` says.
pub(crate) fn write(
    file: &mut impl Write,
    tensors: &[(String, Tensor)],
    metadata: &[(String, String)],
) -> Result<(), TorchError> {
    let mut ordered: Vec<(&str, &Tensor, &str)> = vec![];
    for (name, tensor) in tensors {
        let code = CODES.iter().find(|(kind, _)| *kind == tensor.kind());
        let Some((_, code)) = code.filter(|_| !tensor.is_sparse()) else {
            return Err(TorchError::Param(format!(
                "model: {name} is a tensor of {}, which safetensors cannot hold",
                kind_name(tensor.kind())
            )));
        };
        ordered.push((name, tensor, code));
    }
    ordered.sort_by_key(|(name, tensor, _)| {
        let size = tensor.kind().elt_size_in_bytes();
        let keeps = (tensor.numel() * size).is_multiple_of(ALIGNMENT);
        (!keeps, std::cmp::Reverse(size), *name)
    });
    let header = header(&ordered, metadata);
    let text = |source| TorchError::Io {
        what: "writing tensors".into(),
        source,
    };
    file.write_all(&(header.len() as u64).to_le_bytes())
        .map_err(text)?;
    file.write_all(header.as_bytes()).map_err(text)?;
    for (_, tensor, _) in ordered {
        let flat = tch::no_grad(|| tensor.f_to_device(Device::Cpu)?.f_contiguous())?;
        file.write_all(bytes_of(&flat)).map_err(text)?;
    }
    Ok(())
}

/// The JSON, padded so that the first tensor is aligned.
fn header(ordered: &[(&str, &Tensor, &str)], metadata: &[(String, String)]) -> String {
    let string = |text: &str| Value::from(text).to_string();
    let pairs: Vec<String> = metadata
        .iter()
        .map(|(name, value)| format!("{}:{}", string(name), string(value)))
        .collect();
    let mut header = format!("{{\"__metadata__\":{{{}}}", pairs.join(","));
    let mut start = 0;
    for (name, tensor, code) in ordered {
        let end = start + tensor.numel() * tensor.kind().elt_size_in_bytes();
        let shape = Value::from(tensor.size());
        header += &format!(
            ",{}:{{\"dtype\":\"{code}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}",
            string(name)
        );
        start = end;
    }
    header.push('}');
    let length = (8 + header.len()).next_multiple_of(ALIGNMENT) - 8;
    format!("{header:length$}")
}

/// A file's tensors and metadata, over its bytes.
pub(crate) struct SafeTensors<'a> {
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
    data: &'a [u8],
}

struct Entry {
    kind: Kind,
    size: Vec<i64>,
    start: usize,
    end: usize,
}

impl<'a> SafeTensors<'a> {
    /// Reads the header of a whole file.
    ///
    /// # Errors
    ///
    /// [`TorchError::Data`] for bytes that are no such file, or not all of one.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<SafeTensors<'a>, TorchError> {
        parse(bytes).map_err(|reason| {
            TorchError::Data(format!("this is not a whole safetensors file: {reason}"))
        })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(crate) fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// A copy of a tensor, in torch's own memory; `None` where the file has none of that name.
    pub(crate) fn tensor(&self, name: &str) -> Result<Option<Tensor>, TorchError> {
        let Some(entry) = self.entries.get(name) else {
            return Ok(None);
        };
        of_bytes(&self.data[entry.start..entry.end], entry.kind, &entry.size).map(Some)
    }
}

fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>, String> {
    let (length, rest) = bytes
        .split_first_chunk::<8>()
        .ok_or("it is shorter than 8 bytes")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|error| error.to_string())?;
    if length > MAX_HEADER {
        return Err(format!(
            "its header should be {length} bytes long, and at most {MAX_HEADER} are read"
        ));
    }
    if length > rest.len() {
        return Err(format!(
            "its header should be {length} bytes long, but {} are left",
            rest.len()
        ));
    }
    let (header, data) = rest.split_at(length);
    let header: Map<String, Value> =
        serde_json::from_slice(header).map_err(|error| error.to_string())?;
    let (mut entries, mut metadata) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in header {
        if name == "__metadata__" {
            metadata = serde_json::from_value(value).map_err(|error| error.to_string())?;
        } else {
            let entry = entry(&value, data.len())
                .ok_or_else(|| format!("its entry {name} does not fit"))?;
            entries.insert(name, entry);
        }
    }
    check_places(&entries, data.len())?;
    Ok(SafeTensors {
        entries,
        metadata,
        data,
    })
}

/// Refuses tensors that share bytes, and bytes that are no tensor's, as the format does.
fn check_places(entries: &BTreeMap<String, Entry>, num_bytes: usize) -> Result<(), String> {
    let mut places: Vec<(usize, usize)> = entries.values().map(|e| (e.start, e.end)).collect();
    places.sort_unstable();
    let mut end = 0;
    for (start, next) in places {
        if start != end {
            return Err(format!("its tensors overlap or leave a gap at byte {end}"));
        }
        end = next;
    }
    match end == num_bytes {
        true => Ok(()),
        false => Err(format!(
            "{} bytes after its tensors are none's",
            num_bytes - end
        )),
    }
}

fn entry(value: &Value, num_bytes: usize) -> Option<Entry> {
    let code = value["dtype"].as_str()?;
    let (kind, _) = CODES.iter().find(|(_, known)| *known == code)?;
    let size: Vec<i64> = serde_json::from_value(value["shape"].clone()).ok()?;
    let [start, end]: [usize; 2] = serde_json::from_value(value["data_offsets"].clone()).ok()?;
    let numel = size.iter().try_fold(1usize, |product, &size| {
        product.checked_mul(usize::try_from(size).ok()?)
    })?;
    let wanted = numel.checked_mul(kind.elt_size_in_bytes())?;
    (start <= end && end <= num_bytes && end - start == wanted).then_some(Entry {
        kind: *kind,
        size,
        start,
        end,
    })
}

/// Tensors with metadata, in memory.
pub(crate) fn to_bytes(
    tensors: &[(String, Tensor)],
    metadata: &[(String, String)],
) -> Result<Vec<u8>, TorchError> {
    let mut bytes = io::Cursor::new(vec![]);
    write(&mut bytes, tensors, metadata)?;
    Ok(bytes.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Vec<u8> {
        let tensors = [
            ("b".to_string(), Tensor::from_slice(&[1.5f32, -2.0, 3.0])),
            (
                "a".to_string(),
                Tensor::from_slice(&[7i64; 8]).reshape([2, 4]),
            ),
        ];
        to_bytes(&tensors, &[("format".into(), "pt".into())]).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = example();
        let file = SafeTensors::read(&bytes).unwrap();
        assert_eq!(file.metadata()["format"], "pt");
        assert_eq!(file.names().collect::<Vec<_>>(), ["a", "b"]);
        let b = file.tensor("b").unwrap().unwrap();
        assert_eq!(Vec::<f32>::try_from(b).unwrap(), [1.5, -2.0, 3.0]);
        assert_eq!(file.tensor("a").unwrap().unwrap().size(), [2, 4]);
        assert!(file.tensor("c").unwrap().is_none());
    }

    #[test]
    fn the_first_tensor_is_aligned_and_keeps_the_next_aligned() {
        let bytes = example();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!((8 + length) % ALIGNMENT, 0);
        let text = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
        assert!(text.find("\"a\"").unwrap() < text.find("\"b\"").unwrap());
    }

    #[test]
    fn broken_files_are_refused() {
        let bytes = example();
        let broken = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut copy = bytes.clone();
            edit(&mut copy);
            SafeTensors::read(&copy)
                .err()
                .map(|error| error.to_string())
        };
        assert!(broken(&|_| ()).is_none());
        assert!(
            broken(&|b| b.truncate(5))
                .unwrap()
                .contains("shorter than 8 bytes")
        );
        assert!(broken(&|b| b[7] = 1).unwrap().contains("header should be"));
        assert!(
            broken(&|b| {
                b.pop();
            })
            .unwrap()
            .contains("does not fit")
        );
        assert!(broken(&|b| b[8] = b'[').is_some());
        assert!(broken(&|b| b.push(0)).unwrap().contains("are none's"));
        let long = (MAX_HEADER as u64 + 1).to_le_bytes();
        let long = broken(&|b| b[..8].copy_from_slice(&long)).unwrap();
        assert!(long.contains("at most 100000000"), "{long}");
        let swap = |from: &str, to: &str| {
            let at = bytes
                .windows(from.len())
                .position(|window| window == from.as_bytes())
                .unwrap();
            let mut copy = bytes.clone();
            copy[at..at + to.len()].copy_from_slice(to.as_bytes());
            SafeTensors::read(&copy).is_err()
        };
        assert!(swap("\"F32\"", "\"F99\""));
        assert!(swap("[2,4]", "[2,5]"));
        // Both tensors in the same bytes.
        assert!(swap("[64,76]", "[0,12] "));
        assert!(swap("[2,4]", "[-2,]"));
    }

    proptest::proptest! {
        #![proptest_config(cases())]

        /// What is read has as many bytes as it says; everything else is an error.
        #[test]
        fn files_of_any_bytes_are_read_or_refused(
            place in 0usize..200,
            length in 0usize..6,
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..6),
        ) {
            let mut file = example();
            let start = place.min(file.len());
            let end = (start + length).min(file.len());
            file.splice(start..end, bytes);
            if let Ok(read) = SafeTensors::read(&file) {
                for name in read.names() {
                    drop(read.tensor(name).unwrap().unwrap());
                }
            }
        }
    }

    /// More cases where `FLAMBEAU_LONG` is 1.
    fn cases() -> proptest::prelude::ProptestConfig {
        let is_long = std::env::var("FLAMBEAU_LONG").is_ok_and(|value| value == "1");
        proptest::prelude::ProptestConfig {
            cases: if is_long { 100_000 } else { 500 },
            failure_persistence: None,
            ..Default::default()
        }
    }
}
