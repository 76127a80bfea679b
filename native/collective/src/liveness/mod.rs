//! Who is alive, and the first cause of the group's failure.
//!
//! Every two ranks have a control connection (`control_connection`), over which they send notices (`notice`). A thread of each rank
//! sends heartbeats and reads the others' (`monitor`); it never blocks for longer than a heartbeat, and needs nothing of the
//! threads that wait in collectives. What is known of the others, and the first cause, is the group's health (`health`), at which
//! every wait looks at least every 50 ms (`wait`). Heartbeats also say what a rank is in (`crate::phase`), so that one that is waited for can be
//! named with that. Whoever finds a failure tells all others before it acts on it, so that the first
//! cause, and not its consequences, is what every rank reports.

pub(crate) mod control_connection;
pub(crate) mod health;
pub(crate) mod monitor;
pub(crate) mod notice;
pub(crate) mod wait;
