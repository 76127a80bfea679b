//! Operations in flight, and the thread that carries them out.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::deadline::SLICE;
use crate::error::{CollectiveError, Result};
use crate::liveness::health::Health;
use crate::lock::lock;

/// The outcome of an operation, once there is one.
#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<()>>>,
    there: Condvar,
}

/// An operation that another thread carries out.
///
/// The buffers belong to the operation until it has ended. Dropping the handle waits for that too (the result is then
/// lost), so that memory cannot be freed under a running operation unless the handle is leaked.
#[must_use = "dropping it waits for the operation and loses its result"]
pub struct Work {
    outcome: Arc<Outcome>,
    health: Arc<Health>,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("is_done", &self.is_done())
            .finish()
    }
}

impl Work {
    /// Waits until the operation has ended, for at most the group's timeout per operation that is queued before it. The
    /// group's interrupt is asked meanwhile; when it fires, the group fails, and the wait goes on only until the operation
    /// has let go of its buffers.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<()> {
        self.join()
    }

    /// Whether the operation has ended. Never blocks.
    pub fn is_done(&self) -> bool {
        lock(&self.outcome.result).is_some()
    }

    fn join(&self) -> Result<()> {
        loop {
            let mut result = lock(&self.outcome.result);
            if result.is_none() {
                result = match self.outcome.there.wait_timeout(result, SLICE) {
                    Ok((result, _)) => result,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
            if let Some(result) = &*result {
                return result.clone();
            }
            drop(result);
            if self.health.failure().is_none() && self.health.options.is_interrupted() {
                self.health.fail(CollectiveError::Interrupted);
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // The result was asked for, or is not wanted.
        let _ = self.join();
    }
}

type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// The communication thread. It ends when dropped, after what is queued.
pub(crate) struct CommunicationThread {
    jobs: Option<Sender<(Job, Arc<Outcome>)>>,
    thread: Option<JoinHandle<()>>,
    health: Arc<Health>,
}

impl CommunicationThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Io` when the system gives none.
    pub(crate) fn start(health: Arc<Health>) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<(Job, Arc<Outcome>)>();
        let watched = health.clone();
        let thread = thread::Builder::new()
            .name("flambeau-collective".into())
            .spawn(move || {
                for (job, outcome) in queue {
                    // A panic fails the group, so that neither this rank nor another waits for what will not come.
                    let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| {
                        Err(watched.abort("its communication thread panicked"))
                    });
                    *lock(&outcome.result) = Some(result);
                    outcome.there.notify_all();
                }
            })
            .map_err(|error| CollectiveError::io("start the communication thread", error))?;
        Ok(CommunicationThread {
            jobs: Some(jobs),
            thread: Some(thread),
            health,
        })
    }

    /// Queues a job; jobs run one after the other.
    pub(crate) fn submit(&self, job: Job) -> Work {
        let outcome = Arc::new(Outcome::default());
        if let Some(jobs) = &self.jobs {
            jobs.send((job, outcome.clone()))
                .expect("the thread takes jobs until this value is dropped");
        }
        Work {
            outcome,
            health: self.health.clone(),
        }
    }
}

impl Drop for CommunicationThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::options::GroupOptions;
    use crate::peer::Peer;

    #[test]
    fn a_panic_on_the_communication_thread_ends_the_work_and_the_group() {
        let host = "here".to_owned();
        let peers = vec![Peer { rank: 0, host }];
        let options = GroupOptions::default();
        let health = Arc::new(Health::new(0, peers, vec![None], options));
        let thread = CommunicationThread::start(health.clone()).unwrap();
        let work = thread.submit(Box::new(|| panic!("as a defect of ours may")));
        let started = Instant::now();
        while !work.is_done() {
            assert!(started.elapsed() < Duration::from_secs(30), "it hangs");
            thread::sleep(Duration::from_millis(1));
        }
        let error = work.wait().unwrap_err();
        assert!(
            matches!(&error, CollectiveError::Aborted { rank: 0, .. }),
            "{error:?}"
        );
        assert_eq!(health.failure().unwrap().to_string(), error.to_string());
        // The thread is still there for what is queued behind.
        let next = thread.submit(Box::new(move || health.failure().map_or(Ok(()), Err)));
        assert_eq!(next.wait().unwrap_err().to_string(), error.to_string());
    }
}
