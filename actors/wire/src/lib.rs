//! The messages that cross process borders, and their encoding.
//!
//! Wire types are plain data. Engine types (a scheduler's sequence, a worker's slot) never appear here, and nothing
//! here has behaviour beyond checking and naming. Bytes that arrive are untrusted: [`decode`] returns an error for
//! anything that is not exactly one message.
//!
//! Invariant: a token is named by ([`RequestId`], choice, position). Whoever sends tokens twice (a restarted worker or
//! scheduler replays) sends the same names, so that a reader can drop what it already has.

mod codec;
mod plan;
mod request;
mod stats;

pub use codec::{MAX_MESSAGE_BYTES, WireError, decode, encode, encode_into};
pub use plan::{
    BlockGrant, FromWorker, InputTokens, KvGroup, RankPlan, Run, SampledToken, SlotJoin, StepPlan,
    StepResult, WorkerInfo,
};
pub use request::{
    AbortReason, EngineInfo, FinishReason, FromScheduler, Refusal, RequestId, SamplingParams, SequenceKey,
    StopRules, Submit, ToScheduler, TokenDelta, TokenLogprobs,
};
pub use stats::SchedulerStats;

/// Version of everything in this crate. It is the first message on every control channel; both sides must agree.
pub const PROTOCOL_VERSION: u32 = 2;
