//! The memory that the tensors of a pickle count on.
//!
//! Torch takes a storage's size from the pickle: where that is more than the archive has, its tensors reach beyond their
//! memory. Nor does torch check the indices of sparse tensors and the scales of quantized ones. It does hold the sizes of
//! each tensor against those of its storage, from 2.13 on.

use std::collections::HashMap;

/// What one operation of a pickle left on the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value<'a> {
    Mark,
    Text(&'a [u8]),
    /// The class of a storage: the bytes of an element.
    Storage(u64),
    Number(i64),
    /// What names a storage: its key, and its size in bytes.
    Name(&'a [u8], u64),
}

/// Refuses a pickle, as torch writes them, of which a storage is larger than its record in the archive or a tensor is not
/// dense.
/// `size_of` gives the bytes of the record of a storage with that key, where there is one.
pub(crate) fn check_storages(
    pickle: &[u8],
    size_of: impl Fn(&str) -> Option<u64>,
) -> Result<(), String> {
    let mut bytes = Bytes(pickle);
    let mut known: HashMap<u32, Value<'_>> = HashMap::new();
    // What lies on top of the stack, as far as it is known.
    let mut top: Vec<Value<'_>> = vec![];
    loop {
        let operation = bytes.take(1)?[0];
        let pushed = match operation {
            b'.' => return Ok(()),
            // Remembering changes nothing of the stack. A mark is no value: what is remembered lies below it.
            b'q' | b'r' => {
                let place = bytes.number(if operation == b'q' { 1 } else { 4 })? as u32;
                match top.last() {
                    Some(value) if *value != Value::Mark => known.insert(place, *value),
                    _ => known.remove(&place),
                };
                continue;
            }
            b't' => {
                let name = if let [
                    ..,
                    Value::Mark,
                    Value::Text(b"storage"),
                    Value::Storage(width),
                    Value::Text(key),
                    Value::Text(_),
                    Value::Number(count),
                ] = top[..]
                {
                    let elements = u64::try_from(count).ok();
                    let size = elements.and_then(|count| count.checked_mul(width));
                    let size =
                        size.ok_or_else(|| format!("a storage of it is to have {count} elements"))?;
                    Some(Value::Name(key, size))
                } else {
                    None
                };
                top.clear();
                name
            }
            b'Q' => {
                let Some(&Value::Name(key, size)) = top.last() else {
                    return Err("a storage of it is not named as torch does".to_string());
                };
                let key = String::from_utf8_lossy(key);
                let held = if size == 0 { Some(0) } else { size_of(&key) };
                if held.is_none_or(|held| held < size) {
                    return Err(format!(
                        "the storage {key} is to have {size} bytes, and the archive holds {} of them",
                        held.unwrap_or(0)
                    ));
                }
                None
            }
            b'(' => Some(Value::Mark),
            b'X' => {
                let length = bytes.number(4)? as usize;
                Some(Value::Text(bytes.take(length)?))
            }
            b'K' => Some(Value::Number(bytes.number(1)? as i64)),
            b'M' => Some(Value::Number(bytes.number(2)? as i64)),
            b'J' => Some(Value::Number(i64::from(bytes.number(4)? as i32))),
            0x8a if bytes.take(1)? == [8] => Some(Value::Number(bytes.number(8)? as i64)),
            b'h' => known.get(&(bytes.number(1)? as u32)).copied(),
            b'j' => known.get(&(bytes.number(4)? as u32)).copied(),
            b'c' => {
                let (module, name) = (bytes.line()?, bytes.line()?);
                if name.starts_with(b"_rebuild_")
                    && ![b"_rebuild_tensor_v2".as_slice(), b"_rebuild_parameter"].contains(&name)
                {
                    let name = String::from_utf8_lossy(name);
                    return Err(format!("it holds a tensor that is not dense ({name})"));
                }
                (module == b"torch").then(|| width_of(name)).flatten()
            }
            0x80 => bytes.take(1).map(|_| None)?,
            b'G' => bytes.take(8).map(|_| None)?,
            b'N' | b'a' | b'b' | b'd' | b'e' | b'l' | b'R' | b's' | b'u' | b')' | b']' | b'}'
            | 0x81 | 0x85 | 0x86 | 0x87 | 0x88 | 0x89 => None,
            other => {
                return Err(format!(
                    "it has the operation {other}, which torch does not write"
                ));
            }
        };
        match pushed {
            Some(value) => top.push(value),
            None => top.clear(),
        }
    }
}

/// The bytes of an element, by the name of the storage's class.
fn width_of(class: &[u8]) -> Option<Value<'static>> {
    let width = match class.strip_suffix(b"Storage")? {
        b"ComplexDouble" => 16,
        b"Double" | b"Long" | b"ComplexFloat" => 8,
        b"Float" | b"Int" | b"ComplexHalf" => 4,
        b"Half" | b"BFloat16" | b"Short" => 2,
        b"Byte" | b"Char" | b"Bool" | b"Float8_e4m3fn" | b"Float8_e5m2" | b"Float8_e4m3fnuz"
        | b"Float8_e5m2fnuz" => 1,
        _ => return None,
    };
    Some(Value::Storage(width))
}

/// What is left of a pickle.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    /// A little-endian number without a sign.
    fn number(&mut self, count: usize) -> Result<u64, String> {
        let bytes = self.take(count)?.iter().rev();
        Ok(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let length = self.0.iter().position(|byte| *byte == b'\n');
        let line = self.take(length.ok_or("it is cut off")?)?;
        self.take(1)?;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parameter of four numbers, as `torch.jit.save` of torch 2.13 writes it; `count` pushes the size of its storage.
    fn pickle(rebuild: &str, count: &[u8]) -> Vec<u8> {
        let mut bytes = vec![];
        bytes.extend(b"\x80\x02c__torch__\nM\nq\0)\x81}(X\x01\0\0\0wq\x01c");
        bytes.extend(rebuild.as_bytes());
        bytes.extend(
            b"\nq\x02((X\x07\0\0\0storageq\x03ctorch\nFloatStorage\nq\x04X\x01\0\0\x000q\x05",
        );
        bytes.extend(b"X\x03\0\0\0cpuq\x06K\x04tQq\x07K\0(K\x04t(K\x01t");
        bytes.extend(b"\x88ccollections\nOrderedDict\nq\x08)RtRq\x09");
        // A second tensor on the same storage, by what is remembered.
        bytes.extend(b"h\x02((h\x03h\x04h\x05h\x06");
        bytes.extend(count);
        bytes.extend(b"tQq\x0aK\x01K\x03\x85q\x0bK\x01\x85\x89h\x08)RtRub.");
        bytes
    }

    #[test]
    fn a_storage_is_as_large_as_its_record() {
        let dense = "torch._utils\n_rebuild_tensor_v2";
        let check = |rebuild, count: &[u8]| {
            check_storages(&pickle(rebuild, count), |key| (key == "0").then_some(16))
        };
        check(dense, b"K\x04").unwrap();
        for (rebuild, count, said) in [
            (
                dense,
                b"K\x05".as_slice(),
                "20 bytes, and the archive holds 16",
            ),
            (dense, b"M\0\x10", "16384 bytes"),
            (dense, b"J\xff\xff\xff\xff", "-1 elements"),
            (dense, b"\x8a\x08\0\0\0\0\0\0\0\x40", "elements"),
            (dense, b"N", "not named as torch does"),
            // Nothing is remembered there, or nothing that is known.
            (dense, b"h\x63", "not named as torch does"),
            (dense, b"h\x07", "not named as torch does"),
            (dense, b"K\x04tK\x05(", "not named as torch does"),
            (
                "torch._utils\n_rebuild_sparse_tensor",
                b"K\x04",
                "not dense",
            ),
            ("torch._utils\n_rebuild_qtensor", b"K\x04", "not dense"),
        ] {
            let error = check(rebuild, count).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let missing = check_storages(&pickle(dense, b"K\x04"), |_| None).unwrap_err();
        assert!(missing.contains("holds 0"), "{missing}");
        check_storages(b"\x80\x02X\xff\xff\xff\xffa", |_| None).unwrap_err();
    }
}
