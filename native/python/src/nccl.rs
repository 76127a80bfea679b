//! NCCL as the ranks of a stage find it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use flambeau_collective::{CollectiveError, GroupOptions, NcclMeeting, ProcessGroup};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;
use crate::rendezvous::CallableRendezvous;
use crate::signals::Signals;

/// Opens NCCL on every rank and compares the versions. Returns the version, and the bytes of the unique id that rank 0 has made;
/// both are the same on all ranks. Needs no GPU.
///
/// All ranks call it. The file that the environment variable `FLAMBEAU_NCCL` names is opened; where that is not set,
/// `libnccl.so.2` in the first of `directories` that has one; else the system's. `all_gather`, `secret` and `bind_address` are as
/// for `train`.
///
/// Raises `flambeau.errors.CollectiveError`, with what each rank has where they do not have the same.
#[pyfunction]
pub(crate) fn nccl_meeting(
    py: Python<'_>,
    directories: Vec<PathBuf>,
    rank: usize,
    world_size: usize,
    all_gather: Py<PyAny>,
    secret: Vec<u8>,
    bind_address: IpAddr,
) -> PyResult<(String, Py<PyBytes>)> {
    let signals = Signals::default();
    let raised = Arc::new(Mutex::new(None));
    let mut rendezvous = CallableRendezvous::new(rank, world_size, all_gather, raised.clone());
    let options = GroupOptions {
        secret,
        bind_address,
        interrupt: Some(signals.callback()),
        ..GroupOptions::default()
    };
    let held = py.detach(|| -> Result<NcclMeeting, CollectiveError> {
        let group = ProcessGroup::connect(&mut rendezvous, options)?;
        NcclMeeting::hold(&group, &directories)
    });
    let meeting = held.map_err(|failure| {
        // What a signal's handler or the rendezvous itself raised says more than that the meeting failed.
        let exception = signals.take();
        exception
            .or_else(|| raised.lock().unwrap_or_else(PoisonError::into_inner).take())
            .unwrap_or_else(|| error::from_collective(py, &failure))
    })?;
    let version = meeting.library().version().to_string();
    let identity = PyBytes::new(py, meeting.unique_id().bytes());
    Ok((version, identity.unbind()))
}
