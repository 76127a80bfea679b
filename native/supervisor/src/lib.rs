//! The supervisor: what the driver of a training decides, and what it keeps in the work directory.
//!
//! A launcher starts and stops ranks and tells how each of them ended; which failure was the first, whether it is worth
//! another attempt, what a run is and whose, what is kept and what is swept is decided here, once for all launchers and
//! languages.
//!
//! Everything is one question in JSON and one answer ([`answer`]), and nothing is remembered between two of them. So a
//! driver that does not see the work directory asks in a task of the cluster, and the host's own timers keep what has to
//! be written again and again: a lease every hour, a claim every ten seconds.

mod attempt;
mod checkpoints;
mod claim;
mod error;
mod failure;
mod id;
mod logs;
mod prepared;
mod question;
mod rows;
mod run;
mod sweep;
mod work_directory;

pub use error::SupervisorError;
pub use question::answer;
