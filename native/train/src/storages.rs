//! The memory that the tensors of a pickle count on.
//!
//! Torch 2.13 holds the sizes of each tensor that it loads against those of its storage, older ones do not, and all take
//! the storage's size from the pickle: where that is more than the archive has, the tensor reaches beyond its memory. Nor
//! does torch check the indices of sparse tensors and the scales of quantized ones.

use std::collections::HashMap;

/// What one operation of a pickle left on the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value<'a> {
    Mark,
    Text(&'a [u8]),
    /// The class of a storage: the bytes of an element.
    Storage(u64),
    Number(i64),
    /// A tuple of numbers, by its place among those of the pickle.
    Numbers(usize),
    /// A storage of so many elements.
    Held(u64),
}

/// Refuses a pickle, as torch writes them, of which a storage is larger than its record in the archive, or a tensor
/// reaches beyond its storage or is not dense.
/// `size_of` gives the bytes of the record of a storage with that key, where there is one.
pub(crate) fn check_storages(
    pickle: &[u8],
    size_of: impl Fn(&str) -> Option<u64>,
) -> Result<(), String> {
    let mut bytes = Bytes(pickle);
    let mut known: HashMap<u32, Value<'_>> = HashMap::new();
    let mut tuples: Vec<Vec<i64>> = vec![];
    // What lies on top of the stack, as far as it is known; the key, elements and bytes of the tuple that lies there; and
    // whether a storage waits for the sizes of its tensor.
    let mut top: Vec<Value<'_>> = vec![];
    let mut named: Option<(&[u8], u64, u64)> = None;
    let mut waits = false;
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
                if let [
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
                    let size = elements.and_then(|count| Some((count, count.checked_mul(width)?)));
                    let (count, size) =
                        size.ok_or_else(|| format!("a storage of it is to have {count} elements"))?;
                    named = Some((key, count, size));
                    top.clear();
                    continue;
                }
                let mark = top.iter().rposition(|value| *value == Value::Mark);
                mark.and_then(|mark| {
                    let taken = top.split_off(mark);
                    numbers(&taken[1..], &mut tuples)
                })
            }
            b')' => numbers(&[], &mut tuples),
            0x85..=0x87 => {
                let start = top.len().checked_sub(usize::from(operation - 0x84));
                start.and_then(|start| numbers(&top.split_off(start), &mut tuples))
            }
            b'Q' => {
                let (key, count, size) =
                    named.ok_or("a storage of it is not named as torch does")?;
                let key = String::from_utf8_lossy(key);
                let held = if size == 0 { Some(0) } else { size_of(&key) };
                if held.is_none_or(|held| held < size) {
                    return Err(format!(
                        "the storage {key} is to have {size} bytes, and the archive holds {} of them",
                        held.unwrap_or(0)
                    ));
                }
                waits = true;
                Some(Value::Held(count))
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
            b'N' | b'a' | b'b' | b'd' | b'e' | b'l' | b'R' | b's' | b'u' | b']' | b'}' | 0x81
            | 0x88 | 0x89 => None,
            other => {
                return Err(format!(
                    "it has the operation {other}, which torch does not write"
                ));
            }
        };
        named = None;
        match pushed {
            Some(value) => top.push(value),
            None => top.clear(),
        }
        if let [
            ..,
            Value::Held(count),
            Value::Number(offset),
            Value::Numbers(sizes),
            Value::Numbers(strides),
        ] = top[..]
        {
            let (sizes, strides) = (&tuples[sizes], &tuples[strides]);
            if !fits(count, offset, sizes, strides) {
                return Err(format!(
                    "a tensor of sizes {sizes:?}, strides {strides:?} and offset {offset} does not lie in its storage of \
                     {count} elements"
                ));
            }
            waits = false;
        } else if waits && !top.iter().any(|value| matches!(value, Value::Held(_))) {
            return Err("a tensor of it is not written as torch does".to_string());
        }
    }
}

/// A tuple, where numbers alone are in it.
fn numbers(values: &[Value<'_>], tuples: &mut Vec<Vec<i64>>) -> Option<Value<'static>> {
    let number = |value: &Value<'_>| match value {
        Value::Number(number) => Some(*number),
        _ => None,
    };
    tuples.push(values.iter().map(number).collect::<Option<_>>()?);
    Some(Value::Numbers(tuples.len() - 1))
}

/// Whether all elements of a tensor lie in a storage of so many.
fn fits(count: u64, offset: i64, sizes: &[i64], strides: &[i64]) -> bool {
    let Ok(offset) = u64::try_from(offset) else {
        return false;
    };
    if sizes.len() != strides.len() || sizes.iter().chain(strides).any(|&number| number < 0) {
        return false;
    }
    if sizes.contains(&0) {
        return offset <= count;
    }
    let last = sizes
        .iter()
        .zip(strides)
        .try_fold(offset, |last, (&size, &stride)| {
            last.checked_add((size as u64 - 1).checked_mul(stride as u64)?)
        });
    last.is_some_and(|last| last < count)
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
    fn pickle(rebuild: &str, count: &[u8], sizes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![];
        bytes.extend(b"\x80\x02c__torch__\nM\nq\0)\x81}(X\x01\0\0\0wq\x01c");
        bytes.extend(rebuild.as_bytes());
        bytes.extend(
            b"\nq\x02((X\x07\0\0\0storageq\x03ctorch\nFloatStorage\nq\x04X\x01\0\0\x000q\x05",
        );
        bytes.extend(b"X\x03\0\0\0cpuq\x06");
        bytes.extend(count);
        bytes.extend(b"tQq\x07");
        bytes.extend(sizes);
        bytes.extend(b"\x88ccollections\nOrderedDict\nq\x08)RtRq\x09");
        // A second tensor on the same storage, by what is remembered.
        bytes.extend(b"h\x02((h\x03h\x04h\x05h\x06");
        bytes.extend(count);
        bytes.extend(b"tQq\x0aK\x01K\x03\x85q\x0bK\x01\x85\x89h\x08)RtRub.");
        bytes
    }

    #[test]
    fn a_storage_is_as_large_as_its_record() {
        const WHOLE: &[u8] = b"K\0(K\x04t(K\x01t";
        let dense = "torch._utils\n_rebuild_tensor_v2";
        let check = |rebuild, count: &[u8], sizes: &[u8]| {
            let bytes = pickle(rebuild, count, sizes);
            check_storages(&bytes, |key| (key == "0").then_some(16))
        };
        check(dense, b"K\x04", WHOLE).unwrap();
        check(dense, b"K\x04", b"K\0(K\x02K\x02t(K\x02K\x01t").unwrap();
        check(dense, b"K\x04", b"K\x03))").unwrap();
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
            (
                "torch._utils\n_rebuild_sparse_tensor",
                b"K\x04",
                "not dense",
            ),
            ("torch._utils\n_rebuild_qtensor", b"K\x04", "not dense"),
        ] {
            let error = check(rebuild, count, WHOLE).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        for (sizes, said) in [
            (b"K\0(K\x05t(K\x01t".as_slice(), "does not lie"),
            (b"K\x01(K\x04t(K\x01t", "does not lie"),
            (b"J\xff\xff\xff\xff(K\x04t(K\x01t", "does not lie"),
            (b"K\0(K\x04t(K\x02t", "does not lie"),
            (b"K\0(K\x04t(J\xff\xff\xff\xfft", "does not lie"),
            (b"K\0(K\x04t(\x8a\x08\0\0\0\0\0\0\0\x40t", "does not lie"),
            (b"K\0(K\x04t)", "does not lie"),
            (b"K\x04))", "does not lie"),
            (b"N(K\x04t(K\x01t", "not written as torch does"),
            (b"K\0(Nt(K\x01t", "not written as torch does"),
        ] {
            let error = check(dense, b"K\x04", sizes).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let missing = check_storages(&pickle(dense, b"K\x04", WHOLE), |_| None).unwrap_err();
        assert!(missing.contains("holds 0"), "{missing}");
        check_storages(b"\x80\x02X\xff\xff\xff\xffa", |_| None).unwrap_err();
    }
}
