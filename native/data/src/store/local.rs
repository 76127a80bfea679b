//! Files of this machine and its mounts.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Ends the names of files that are still being written; `list` does not show them.
const UNFINISHED: &str = ".flambeau-unfinished";

/// Ranges closer than this are read at once: a seek on a mounted object store costs more than these bytes.
const GAP: u64 = 256 * 1024;

pub(super) fn read(path: &Path) -> io::Result<Bytes> {
    fs::read(path).map(Bytes::from)
}

/// Several ranges, in the order asked for. A range past the end is an error.
pub(super) fn read_ranges(path: &Path, ranges: &[Range<u64>]) -> io::Result<Vec<Bytes>> {
    let mut file = File::open(path)?;
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&index| ranges[index].start);
    let mut pieces = vec![Bytes::new(); ranges.len()];
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let Range { start, mut end } = ranges[first].clone();
        let mut taken = 1;
        while let Some(range) = rest
            .get(taken)
            .map(|&index| &ranges[index])
            .filter(|range| range.start <= end.saturating_add(GAP))
        {
            end = end.max(range.end);
            taken += 1;
        }
        let whole = read_range(&mut file, start, end)?;
        for &index in &rest[..taken] {
            let range = &ranges[index];
            pieces[index] =
                whole.slice((range.start - start) as usize..(range.end - start) as usize);
        }
        rest = &rest[taken..];
    }
    Ok(pieces)
}

fn read_range(file: &mut File, start: u64, end: u64) -> io::Result<Bytes> {
    let length = end.saturating_sub(start);
    let too_short = || {
        let message = format!("bytes {start}..{end} were asked for, but it ends before");
        io::Error::new(ErrorKind::UnexpectedEof, message)
    };
    // A length that is wrong must not become memory that there is not.
    if end > file.metadata()?.len() {
        return Err(too_short());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.seek(SeekFrom::Start(start))?;
    file.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length {
        return Err(too_short());
    }
    Ok(bytes.into())
}

/// Writes a whole file, so that a reader sees all of it or, on a disk, nothing.
pub(super) fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // A mounted object store cannot rename (or copies to do it): there the file is written in place, once, from its start to
    // its end. Whoever needs all or nothing there writes a marker after it.
    let in_place = is_mounted_store(path);
    let target = if in_place {
        path.to_owned()
    } else {
        unfinished_name(path)
    };
    let result = File::create(&target).and_then(|mut file| {
        fill(&mut file)?;
        file.flush()?;
        sync(&file)
    });
    let result = if in_place {
        result
    } else {
        result.and_then(|()| fs::rename(&target, path))
    };
    if result.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&target);
    }
    result
}

fn is_mounted_store(path: &Path) -> bool {
    ["/Volumes", "/dbfs", "/Workspace"]
        .iter()
        .any(|mount| path.starts_with(mount))
}

/// A name of this file's alone. It does not hold the file's own name: TensorBoard reads whatever has `tfevents` in its name.
fn unfinished_name(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut hasher = DefaultHasher::new();
    path.file_name().hash(&mut hasher);
    path.with_file_name(format!(
        ".{:016x}.{}-{number}{UNFINISHED}",
        hasher.finish(),
        std::process::id()
    ))
}

/// Forces bytes to the medium; some mounts have no such call and need none.
fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOSYS | libc::EINVAL | libc::ENOTSUP)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    write(to, |file| io::copy(&mut source, file).map(|_| ()))
}

pub(super) fn size(path: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All files below a directory, relative to it, sorted; nothing where there is no such directory.
pub(super) fn list(directory: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        let entries = match fs::read_dir(directory.join(&relative)) {
            Err(error) if is_absent(&error) => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = relative.join(entry.file_name());
            // Follows links: a mount may be built of them.
            match fs::metadata(entry.path()) {
                Ok(metadata) if metadata.is_dir() => open.push(name),
                Ok(_) => files.extend(
                    name.to_str()
                        .filter(|name| !name.ends_with(UNFINISHED))
                        .map(str::to_owned),
                ),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The names of a directory's entries, sorted; nothing where there is no such directory.
pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if is_absent(&error) => return Ok(vec![]),
        entries => entries?,
    };
    let mut names = vec![];
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

pub(super) fn delete(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if is_absent(&error) => Ok(()),
        result => result,
    }
}

pub(super) fn delete_directory(path: &Path) -> io::Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if is_absent(&error) => Ok(()),
        result => result,
    }
}

pub(super) fn delete_empty(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if is_absent(&error) || is_filled(&error) => Ok(()),
        result => result,
    }
}

/// As rmdir(2) says it of a directory that is not empty: by either.
fn is_filled(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists
    )
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
