//! The thread that keeps a rank's connections alive and watches the others'.
//!
//! It needs nothing of the training thread: a rank that computes for a minute, or holds an interpreter's lock, still beats.

use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::control_connection::ControlConnection;
use super::health::Health;
use super::notice::Notice;
use crate::bell::Bell;
use crate::error::{CollectiveError, LossCause, Result};
use crate::phase::Stall;
use crate::poll::{self, NOTHING};

/// How long a connection's end waits for a reason from elsewhere: an abort that another rank has sent counts before the
/// death that followed it.
const GRACE: Duration = Duration::from_millis(100);

/// How long the thread rests after each look, for each peer: all of them beat, and a look costs as much as there are peers. Beats that
/// come meanwhile are read together. Where 256 ranks share two cores, they meet in 0.7 of the time that they take with a third of this
/// (benchmarks/scaling.py).
const REST: Duration = Duration::from_micros(300);

/// How long a rank that has said goodbye still reads, so that what it leaves unread resets no connection.
const LINGER: Duration = Duration::from_secs(5);

/// Ends the thread's watch when dropped: it says no more, and goes when the others have gone.
pub(crate) struct Monitor {
    health: Arc<Health>,
    bell: Bell,
}

impl Monitor {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Io` when the system gives no thread or no pipe.
    pub(crate) fn start(health: Arc<Health>) -> Result<Self> {
        let failed = |error| CollectiveError::io("start the thread that watches the peers", error);
        let bell = Bell::new().map_err(failed)?;
        let watch = Watch::new(health.clone(), bell.clone());
        thread::Builder::new()
            .name("flambeau-monitor".into())
            .spawn(move || watch.run())
            .map_err(failed)?;
        Ok(Monitor { health, bell })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.health.close();
        self.bell.ring();
    }
}

struct Watch {
    health: Arc<Health>,
    bell: Bell,
    lives: Vec<Life>,
    last_look: Instant,
    next_beat: Instant,
    newest: Newest,
}

/// The newest collective that any rank has entered.
struct Newest {
    sequence: u64,
    /// When this rank first knew of it.
    since: Instant,
    /// Whether its late ranks were told of.
    is_told: bool,
}

/// What is known of one peer's connection.
struct Life {
    rank: usize,
    received: Vec<u8>,
    heard: Instant,
    /// When its connection ended.
    ended: Option<Instant>,
}

impl Watch {
    fn new(health: Arc<Health>, bell: Bell) -> Self {
        let now = Instant::now();
        let lives = health
            .others()
            .map(|rank| Life {
                rank,
                received: Vec::new(),
                heard: now,
                ended: None,
            })
            .collect();
        Watch {
            health,
            bell,
            lives,
            last_look: now,
            next_beat: now,
            newest: Newest {
                sequence: 0,
                since: now,
                is_told: false,
            },
        }
    }

    fn run(mut self) {
        let mut closed_at = None;
        loop {
            let now = Instant::now();
            if self.health.is_closing() {
                let since = *closed_at.get_or_insert(now);
                let gone = self
                    .lives
                    .iter()
                    .all(|life| life.ended.is_some() || self.health.has_left(life.rank));
                let flushed = self
                    .lives
                    .iter()
                    .all(|life| self.control(life).is_none_or(ControlConnection::flush));
                if now.duration_since(since) > LINGER || (gone && flushed) {
                    return;
                }
            } else if now >= self.next_beat {
                self.health.tell_all(&self.health.heartbeat());
                self.next_beat = now + self.health.beat_interval();
            }
            if let Err(error) = self.look() {
                // Without poll there is no watch: the group cannot notice a death any more.
                self.health
                    .fail(CollectiveError::io("watch the peers", error));
                return;
            }
            if self.health.failure().is_none() && !self.health.is_closing() {
                self.judge();
                self.tell_of_stall();
                thread::sleep(REST * self.lives.len() as u32);
            }
        }
    }

    fn control(&self, life: &Life) -> Option<&ControlConnection> {
        if life.ended.is_some() {
            None
        } else {
            self.health.control(life.rank)
        }
    }

    /// Waits for the next beat or for news, and reads them.
    fn look(&mut self) -> io::Result<()> {
        let mut interests: Vec<_> = self
            .lives
            .iter()
            .map(|life| {
                self.control(life).map_or(NOTHING, |control| {
                    poll::interest(&control.stream, true, !control.flush())
                })
            })
            .collect();
        interests.push(poll::interest(&self.bell, true, false));
        let ending = self.lives.iter().any(|life| life.ended.is_some());
        let longest = match ending || self.health.is_closing() {
            true => Duration::from_millis(20),
            false => Duration::MAX,
        };
        let until_beat = self.next_beat.saturating_duration_since(Instant::now());
        let limit = until_beat.min(longest).max(Duration::from_millis(5));
        poll::poll(&mut interests, limit)?;

        let now = Instant::now();
        // A process that was stopped itself has not listened: the silence it finds is its own.
        let absence = now.duration_since(self.last_look);
        if absence > limit + self.health.options.heartbeat_timeout / 3 {
            self.lives.iter_mut().for_each(|life| life.heard += absence);
            self.newest.since += absence;
        }
        self.last_look = now;

        if interests[self.lives.len()].revents != 0 {
            self.bell.hush()?;
        }
        for (life, interest) in self.lives.iter_mut().zip(&interests) {
            if interest.revents != 0 && interest.fd >= 0 {
                life.read(&self.health, now);
            }
        }
        Ok(())
    }

    /// Decides who is lost.
    fn judge(&self) {
        let now = Instant::now();
        for life in &self.lives {
            if self.health.has_left(life.rank) {
                continue;
            }
            match life.ended {
                Some(ended) if now.duration_since(ended) >= GRACE => {
                    self.health.lose(life.rank, LossCause::Closed);
                }
                None if now.saturating_duration_since(life.heard)
                    >= self.health.options.heartbeat_timeout =>
                {
                    self.health.lose(life.rank, LossCause::Silent);
                }
                _ => {}
            }
        }
    }

    /// Tells whoever listens of ranks that keep the others waiting, once for each collective.
    fn tell_of_stall(&mut self) {
        let Some((after, listener)) = self.health.stall_listener() else {
            return;
        };
        // Between two beats a rank that has entered the collective is not known to have.
        let after = (*after).max(2 * self.health.beat_interval());
        let (sequence, late) = self.health.behind();
        if sequence != self.newest.sequence {
            self.newest = Newest {
                sequence,
                since: Instant::now(),
                is_told: false,
            };
        }
        let waited = self.newest.since.elapsed();
        if self.newest.is_told || late.is_empty() || waited < after {
            return;
        }
        self.newest.is_told = true;
        listener(Stall {
            late: late
                .into_iter()
                .map(|rank| self.health.late(rank))
                .collect(),
            sequence,
            waited,
        });
    }
}

impl Life {
    fn read(&mut self, health: &Health, now: Instant) {
        let Some(control) = health.control(self.rank) else {
            return;
        };
        let mut chunk = [0; 4096];
        loop {
            match (&control.stream).read(&mut chunk) {
                Ok(0) => self.ended = Some(now),
                Ok(read) => {
                    self.heard = now;
                    self.received.extend_from_slice(&chunk[..read]);
                    // At once, so that no more is kept than one notice, however fast a peer sends.
                    match Notice::decode_all(&mut self.received) {
                        Ok(notices) => notices
                            .into_iter()
                            .for_each(|notice| health.hear(self.rank, notice)),
                        // Whoever speaks like this is not the rank that it was.
                        Err(_) => {
                            self.ended = Some(now);
                            break;
                        }
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.ended = Some(now),
            }
            break;
        }
    }
}
