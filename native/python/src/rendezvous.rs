//! How ranks find each other: through a Python callable (Spark's barrier), or through a TCP store of our own.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flambeau_collective::{CollectiveError, Rendezvous, TcpRendezvous};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;
use crate::signals::Signals;

/// A rendezvous over `all_gather(bytes) -> list[bytes]` of Python's.
pub(crate) struct CallableRendezvous {
    rank: usize,
    world_size: usize,
    all_gather: Py<PyAny>,
    /// The exception that the callable raised, kept for whoever reports the failure.
    raised: std::sync::Arc<Mutex<Option<PyErr>>>,
}

impl CallableRendezvous {
    pub(crate) fn new(
        rank: usize,
        world_size: usize,
        all_gather: Py<PyAny>,
        raised: std::sync::Arc<Mutex<Option<PyErr>>>,
    ) -> Self {
        CallableRendezvous {
            rank,
            world_size,
            all_gather,
            raised,
        }
    }
}

impl Rendezvous for CallableRendezvous {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let gathered = Python::attach(|py| {
            self.all_gather
                .call1(py, (PyBytes::new(py, payload),))?
                .extract::<Vec<Vec<u8>>>(py)
        });
        gathered.map_err(|error| {
            let message = error.to_string();
            self.raised
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(error);
            CollectiveError::Rendezvous {
                message,
                source: None,
            }
        })
    }
}

/// A rendezvous for launchers without Spark. Rank 0 serves `address` ("host:port"); the others connect to it and
/// prove that they know `secret`, at least 16 bytes, and are of the same `attempt`.
#[pyclass(frozen, name = "TcpRendezvous", module = "flambeau._native")]
pub(crate) struct PyTcpRendezvous {
    inner: Mutex<TcpRendezvous>,
    signals: Signals,
}

#[pymethods]
impl PyTcpRendezvous {
    /// Waits for all ranks, for at most `timeout` seconds.
    #[new]
    #[pyo3(signature = (address, rank, world_size, secret, timeout = 60.0, attempt = ""))]
    fn new(
        py: Python<'_>,
        address: &str,
        rank: usize,
        world_size: usize,
        secret: Vec<u8>,
        timeout: f64,
        attempt: &str,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|error| {
            pyo3::exceptions::PyValueError::new_err(format!("timeout: {error}"))
        })?;
        let made = py.detach(|| TcpRendezvous::new(address, rank, world_size, &secret, timeout));
        let inner = made.map_err(|failure| error::from_collective(py, &failure))?;
        let signals = Signals::default();
        let inner = inner
            .for_attempt(attempt)
            .with_interrupt(signals.callback());
        Ok(PyTcpRendezvous {
            inner: Mutex::new(inner),
            signals,
        })
    }

    /// Gives every rank the payloads of all ranks, in rank order. All ranks call it equally often.
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        payload: Vec<u8>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let gathered = py.detach(|| {
            // Locked only while detached: whoever holds it needs the interpreter for signals alone.
            self.inner
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .all_gather(&payload)
        });
        let gathered = gathered.map_err(|failure| {
            let raised = self.signals.take();
            raised.unwrap_or_else(|| error::from_collective(py, &failure))
        })?;
        Ok(gathered
            .iter()
            .map(|payload| PyBytes::new(py, payload))
            .collect())
    }
}
