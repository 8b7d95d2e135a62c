//! Counters that all API servers share, in memory that the supervisor owns.
//!
//! Every word is an atomic that only grows, except the connection counts, of which each word belongs to one server. A server
//! that restarts goes on adding, so a scrape of any of them gives the whole.
//!
//! Times are kept in nanoseconds: sums of floats cannot be added atomically.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// What the words mean; a reader with another description must not open the memory.
pub const BOARD_LAYOUT: &str =
    "gateway board 4: counters u64, histograms u64, connections u64[256], was ready u64, replaced u64[3]";

/// Number of 64-bit words.
pub const BOARD_WORDS: usize = REPLACED_WORD + 3;

/// The first of three words in which the supervisor counts the processes it replaced: API servers, schedulers, workers.
pub const REPLACED_WORD: usize = WAS_READY + 1;

const MOST_SERVERS: usize = 256;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Prompt tokens of requests that got their first token.
    PromptTokens,
    /// Tokens billed.
    GenerationTokens,
    /// Prompt tokens found in the prefix cache.
    CachedTokens,
    /// Choices that ended on a stop token, string or tool call.
    FinishedStop,
    /// Choices that reached their budget.
    FinishedLength,
    /// Choices whose client went away.
    FinishedAbort,
    /// Choices that failed.
    FinishedError,
    /// Answers of status 1xx to 5xx, in this order.
    Status1,
    Status2,
    Status3,
    Status4,
    Status5,
}

const COUNTERS: usize = Counter::Status5 as usize + 1;

/// A histogram: buckets, then one for all beyond, then the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Histogram {
    /// From the request's arrival to its first token.
    TimeToFirstToken,
    /// Between two tokens of a choice.
    InterTokenLatency,
    /// From the request's arrival to its end.
    EndToEnd,
    /// Prompt tokens per request.
    PromptTokens,
    /// Tokens generated per request.
    GenerationTokens,
}

/// All histograms.
pub const HISTOGRAMS: [Histogram; 5] = [
    Histogram::TimeToFirstToken,
    Histogram::InterTokenLatency,
    Histogram::EndToEnd,
    Histogram::PromptTokens,
    Histogram::GenerationTokens,
];

const MOST_BUCKETS: usize = 22;
const HISTOGRAM_WORDS: usize = MOST_BUCKETS + 2;
const CONNECTIONS: usize = COUNTERS + HISTOGRAMS.len() * HISTOGRAM_WORDS;
const WAS_READY: usize = CONNECTIONS + MOST_SERVERS;

/// Upper bounds in nanoseconds.
const fn milliseconds<const N: usize>(bounds: [u64; N]) -> [u64; N] {
    let mut scaled = bounds;
    let mut index = 0;
    while index < N {
        scaled[index] = bounds[index] * 1_000_000;
        index += 1;
    }
    scaled
}

const FIRST_TOKEN: [u64; 22] = milliseconds([
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000, 20_000, 40_000, 80_000,
    160_000, 640_000, 2_560_000,
]);
const INTER_TOKEN: [u64; 21] = milliseconds([
    1, 2, 5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500, 5000, 7500, 10_000, 40_000,
    80_000,
]);
const END_TO_END: [u64; 21] = milliseconds([
    300, 500, 800, 1000, 1500, 2000, 2500, 5000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000,
    120_000, 240_000, 480_000, 960_000, 1_920_000, 7_680_000,
]);
const TOKENS: [u64; 17] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000];

impl Histogram {
    /// Upper bounds of the buckets: nanoseconds, or tokens.
    pub fn bounds(self) -> &'static [u64] {
        match self {
            Self::TimeToFirstToken => &FIRST_TOKEN,
            Self::InterTokenLatency => &INTER_TOKEN,
            Self::EndToEnd => &END_TO_END,
            Self::PromptTokens | Self::GenerationTokens => &TOKENS,
        }
    }

    /// Whether values are times.
    pub fn is_time(self) -> bool {
        !matches!(self, Self::PromptTokens | Self::GenerationTokens)
    }

    fn start(self) -> usize {
        COUNTERS + self as usize * HISTOGRAM_WORDS
    }
}

/// Where the words are.
pub trait BoardMemory: Send + Sync {
    /// At least [`BOARD_WORDS`] words, zero at first.
    fn words(&self) -> &[AtomicU64];
}

impl BoardMemory for Vec<AtomicU64> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

impl BoardMemory for gossamer_channel::Segment {
    fn words(&self) -> &[AtomicU64] {
        gossamer_channel::Segment::words(self)
    }
}

/// The counters; clones share them.
#[derive(Clone)]
pub struct Board {
    memory: Arc<dyn BoardMemory>,
}

impl Board {
    /// Counters in shared memory.
    ///
    /// # Errors
    /// The memory has too few words.
    pub fn new(memory: Arc<dyn BoardMemory>) -> Result<Self, String> {
        match memory.words().len() {
            words if words >= BOARD_WORDS => Ok(Self { memory }),
            words => Err(format!("expected {BOARD_WORDS} words for the counters, got {words}")),
        }
    }

    /// Counters of this process alone.
    pub fn private() -> Self {
        Self { memory: Arc::new((0..BOARD_WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>()) }
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, count: u64) {
        self.words()[counter as usize].fetch_add(count, Relaxed);
    }

    /// Reads a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.words()[counter as usize].load(Relaxed)
    }

    /// Counts an answer.
    pub fn count_status(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.words()[Counter::Status1 as usize + class].fetch_add(1, Relaxed);
    }

    /// Answers of status 1xx to 5xx.
    pub fn statuses(&self) -> [u64; 5] {
        std::array::from_fn(|class| self.words()[Counter::Status1 as usize + class].load(Relaxed))
    }

    /// Adds `count` values of the same size.
    pub fn observe(&self, histogram: Histogram, value: u64, count: u64) {
        let bounds = histogram.bounds();
        let bucket = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        let start = histogram.start();
        self.words()[start + bucket].fetch_add(count, Relaxed);
        self.words()[start + HISTOGRAM_WORDS - 1].fetch_add(value.saturating_mul(count), Relaxed);
    }

    /// Adds `count` equal times.
    pub fn observe_time(&self, histogram: Histogram, time: Duration, count: u64) {
        self.observe(histogram, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), count);
    }

    /// Number of values per bucket (the last is for all beyond), and their sum.
    pub fn histogram(&self, histogram: Histogram) -> (Vec<u64>, u64) {
        let start = histogram.start();
        let buckets =
            (start..=start + histogram.bounds().len()).map(|word| self.words()[word].load(Relaxed)).collect();
        (buckets, self.words()[start + HISTOGRAM_WORDS - 1].load(Relaxed))
    }

    /// Says how many connections a server has; `u64::MAX`: it accepts none.
    pub fn set_connections(&self, server: u16, count: u64) {
        if let Some(word) = self.words().get(CONNECTIONS + usize::from(server)) {
            word.store(count, Relaxed);
        }
    }

    /// Connections of all servers.
    pub fn connections(&self, servers: u16) -> u64 {
        self.connection_words(servers).filter(|count| *count != u64::MAX).sum()
    }

    /// The fewest connections that a server other than `except` has.
    pub fn fewest_connections(&self, except: u16, servers: u16) -> u64 {
        let others = self.connection_words(servers).enumerate();
        others
            .filter(|(index, _)| *index != usize::from(except))
            .map(|(_, count)| count)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Says that a server takes requests.
    pub fn set_was_ready(&self) {
        self.words()[WAS_READY].store(1, Relaxed);
    }

    /// Processes that died and were replaced: API servers, schedulers, workers.
    pub fn replaced(&self) -> [u64; 3] {
        std::array::from_fn(|kind| self.words()[REPLACED_WORD + kind].load(Relaxed))
    }

    /// Whether any server ever took requests: what starts now is a successor.
    pub fn was_ready(&self) -> bool {
        self.words()[WAS_READY].load(Relaxed) != 0
    }

    fn connection_words(&self, servers: u16) -> impl Iterator<Item = u64> {
        let servers = usize::from(servers).min(MOST_SERVERS);
        self.words()[CONNECTIONS..CONNECTIONS + servers].iter().map(|word| word.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_do_not_overlap_and_fit() {
        for histogram in HISTOGRAMS {
            assert!(histogram.bounds().len() <= MOST_BUCKETS);
            assert!(histogram.bounds().is_sorted());
        }
        let board = Board::private();
        for (index, histogram) in HISTOGRAMS.into_iter().enumerate() {
            board.observe(histogram, u64::MAX >> 8, index as u64 + 1);
        }
        for (index, histogram) in HISTOGRAMS.into_iter().enumerate() {
            let (buckets, _) = board.histogram(histogram);
            assert_eq!(buckets.iter().sum::<u64>(), index as u64 + 1, "{histogram:?}");
            assert_eq!(buckets.last(), Some(&(index as u64 + 1)), "{histogram:?}");
        }
        assert_eq!(board.statuses(), [0; 5]);
    }

    #[test]
    fn the_server_with_fewest_connections_is_found_among_the_others() {
        let board = Board::private();
        for (server, count) in [(0, 9), (1, 3), (2, u64::MAX)] {
            board.set_connections(server, count);
        }
        assert_eq!(board.fewest_connections(0, 3), 3);
        assert_eq!(board.fewest_connections(1, 3), 9);
        assert_eq!(board.connections(3), 12);
    }

    #[test]
    fn too_little_memory_is_refused() {
        assert!(Board::new(Arc::new(Vec::<AtomicU64>::new())).is_err());
    }
}
