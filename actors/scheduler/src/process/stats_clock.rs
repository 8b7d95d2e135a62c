//! When statistics are sent, and the one of them that needs a clock.

use crate::Scheduler;
use gossamer_wire::SchedulerStats;
use std::time::{Duration, Instant};

/// Statistics are sent when they changed, but not more often than this.
const STATS_AT_MOST: Duration = Duration::from_millis(100);
/// Statistics are sent at least this often.
const STATS_AT_LEAST: Duration = Duration::from_secs(1);

pub(super) struct StatsClock {
    sent: SchedulerStats,
    sent_at: Instant,
    forced: bool,
    pub busy_ns: u64,
    busy_since: Instant,
    device_busy: f32,
}

impl StatsClock {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            sent: SchedulerStats::default(),
            sent_at: now,
            forced: true,
            busy_ns: 0,
            busy_since: now,
            device_busy: 0.0,
        }
    }

    pub fn due(&mut self) {
        self.forced = true;
    }

    pub fn next(&mut self, scheduler: &Scheduler) -> Option<SchedulerStats> {
        let elapsed = self.sent_at.elapsed();
        if !self.forced && elapsed < STATS_AT_MOST {
            return None;
        }
        let window = self.busy_since.elapsed();
        if window >= STATS_AT_LEAST {
            self.device_busy = (self.busy_ns as f64 / window.as_nanos() as f64).min(1.0) as f32;
            (self.busy_ns, self.busy_since) = (0, Instant::now());
        }
        let stats = SchedulerStats { device_busy: self.device_busy, ..scheduler.stats() };
        if !self.forced && stats == self.sent && elapsed < STATS_AT_LEAST {
            return None;
        }
        (self.sent, self.sent_at, self.forced) = (stats.clone(), Instant::now(), false);
        Some(stats)
    }
}
