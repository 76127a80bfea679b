//! Who a process is to the others: its host's name, and what decides whether memory can be shared.

use std::fs;
use std::io;

/// The name of this process's host, for messages.
pub fn host_name() -> String {
    match fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(name) if !name.trim().is_empty() => name.trim().to_owned(),
        _ => "localhost".to_owned(),
    }
}

/// Equal for processes of one boot of one kernel, in one network namespace (which abstract sockets, over which memory is
/// passed, belong to). Whether memory can really be shared, the attempt shows.
///
/// # Errors
/// Where `/proc` does not tell; such a process shares with none.
pub(crate) fn host_id() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/net")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}
