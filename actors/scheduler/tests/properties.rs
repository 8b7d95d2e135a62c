//! Random arrivals, lengths, aborts, cache sizes and losses of workers and API servers, against a model in which every
//! mistake changes a token.

mod common;
#[path = "common/driver.rs"]
mod driver;

use driver::Driver;
use gossamer_scheduler::SchedulerConfig;
use gossamer_wire::{KvGroup, RequestId, SamplingParams, SequenceKey, StopRules, Submit, WorkerInfo};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Arrival {
    document: u32,
    shared: u32,
    own: u32,
    max_tokens: u32,
    min_tokens: u32,
    stops: bool,
    stream_interval: u32,
    priority: i32,
    tenant: u64,
    cache_salt: u64,
    api_server: u16,
    choices: u32,
    deadline_in: Option<u64>,
}

#[derive(Clone, Debug)]
enum Event {
    Arrive(Arrival),
    Abort(prop::sample::Index),
    Plan,
    Complete,
    LoseWorker,
    RestartApiServer(u16),
    Wait(u64),
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (
        (0..3u32, 0..60u32, 0..12u32, 1..30u32, 0..6u32, any::<bool>()),
        (1..6u32, -1..2i32, 0..3u64, 0..2u64, 0..2u16, 1..4u32, prop::option::weighted(0.1, 1..40u64)),
    )
        .prop_map(|(a, b)| Arrival {
            document: a.0,
            shared: a.1,
            own: a.2,
            max_tokens: a.3,
            min_tokens: a.4,
            stops: a.5,
            stream_interval: b.0,
            priority: b.1,
            tenant: b.2,
            cache_salt: b.3,
            api_server: b.4,
            choices: b.5,
            deadline_in: b.6,
        })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => arrival().prop_map(Event::Arrive),
        2 => any::<prop::sample::Index>().prop_map(Event::Abort),
        12 => Just(Event::Plan),
        12 => Just(Event::Complete),
        1 => Just(Event::LoseWorker),
        1 => (0..2u16).prop_map(Event::RestartApiServer),
        1 => (0..10u64).prop_map(Event::Wait),
    ]
}

fn setting() -> impl Strategy<Value = (SchedulerConfig, WorkerInfo)> {
    (
        (1..9u32, 1..40u32, any::<bool>(), any::<bool>(), 1..4u32, 4..60u32),
        (
            6..80u32,
            1..9u32,
            prop::sample::select(vec![vec![None], vec![Some(5), None], vec![Some(1), None, Some(13)]]),
        ),
    )
        .prop_map(
            |((seqs, budget, caching, chunked, in_flight, queued), (blocks, block_size, windows))| {
                let config = SchedulerConfig {
                    max_num_seqs: seqs,
                    max_num_batched_tokens: if chunked { budget } else { budget + 100 },
                    max_model_len: 100,
                    enable_prefix_caching: caching,
                    enable_chunked_prefill: chunked,
                    steps_in_flight: in_flight,
                    max_queued_requests: queued,
                    cuda_graph_capture_size: 0,
                };
                let info = WorkerInfo {
                    rank: 0,
                    num_blocks: blocks,
                    block_size,
                    groups: windows.into_iter().map(|window| KvGroup { window }).collect(),
                    max_model_len: 96,
                    vocab_size: 40,
                };
                (config, info)
            },
        )
}

fn document(document: u32, length: u32) -> impl Iterator<Item = u32> {
    (0..length).map(move |i| common::mix(u64::from(document), u64::from(i)) as u32 % 40)
}

fn submits(arrival: &Arrival, serial: u32, epoch: u16, now: u64) -> Vec<Submit> {
    let mut prompt: Vec<u32> = document(arrival.document, arrival.shared).collect();
    prompt.extend(document(1000 + serial, arrival.own));
    if prompt.is_empty() {
        prompt.push(7);
    }
    let submit = |choice| Submit {
        key: SequenceKey { request: RequestId::new(arrival.api_server, epoch, serial), choice },
        prompt: prompt.clone(),
        generated: Vec::new(),
        sampling: SamplingParams { seed: u64::from(serial % 4), ..Default::default() },
        stop: StopRules {
            max_tokens: arrival.max_tokens,
            min_tokens: arrival.min_tokens,
            stop_token_ids: if arrival.stops { vec![0, 1, 2] } else { Vec::new() },
        },
        stream_interval: arrival.stream_interval,
        priority: arrival.priority,
        tenant: arrival.tenant,
        cache_salt: arrival.cache_salt,
        deadline_unix_ms: arrival.deadline_in.map(|after| now + after),
    };
    (0..arrival.choices).map(submit).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn outputs_equal_the_straight_line_whatever_happens(
        (config, info) in setting(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut driver = Driver::new(config, info);
        let mut epochs = [0u16; 2];
        for (serial, event) in events.iter().enumerate() {
            match event {
                Event::Arrive(arrival) => {
                    let epoch = epochs[usize::from(arrival.api_server)];
                    for submit in submits(arrival, serial as u32, epoch, driver.now) {
                        driver.submit(submit);
                    }
                }
                Event::Abort(index) => {
                    if !driver.order.is_empty() {
                        let key = driver.order[index.index(driver.order.len())];
                        driver.abort(key);
                    }
                }
                Event::Plan => _ = driver.plan(),
                Event::Complete => _ = driver.complete(),
                Event::LoseWorker => driver.lose_worker(),
                Event::RestartApiServer(api_server) => {
                    epochs[usize::from(*api_server)] += 1;
                    driver.hello(*api_server, epochs[usize::from(*api_server)]);
                }
                Event::Wait(ms) => driver.now += ms,
            }
        }
        driver.finish();
        driver.check_all_served();
    }
}
