//! SHA-256 of what goes into the store and comes back, in lower-case hexadecimal.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

/// That of bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The size of a file, and its SHA-256, in one pass and a small buffer.
pub(crate) fn of_file(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut size = 0;
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok((size, hex(&hash.finalize())));
        }
        hash.update(&buffer[..length]);
        size += length as u64;
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
