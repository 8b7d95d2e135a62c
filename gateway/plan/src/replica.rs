//! The engines of one replica; prompts that are handed from one to another.
//!
//! Invariant: events are handled in the order of their time; at equal times steps end before requests arrive.

use crate::cost::LayoutCost;
use crate::engine::{Blueprint, Engine, Event, Part};
use crate::search::PlanError;
use crate::shape::ModelShape;
use crate::workload::Request;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// What became of a request, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub serial: u32,
    pub event: Event,
    pub at: u64,
}

/// One replica.
pub(crate) struct Replica {
    /// Engines that take requests, and, where decoding is separate, engines that take prompts over.
    front: Vec<Engine>,
    back: Vec<Engine>,
    /// Requests that are on their way, by arrival.
    inbox: VecDeque<(u64, u32)>,
    /// Prompts whose keys and values are on their way: when they are there, and whose.
    handoffs: BinaryHeap<Reverse<(u64, u32)>>,
    cost: Arc<LayoutCost>,
    /// Bytes of a value in the KV cache.
    value_bytes: f64,
    /// What happened since it was last asked.
    pub news: Vec<News>,
    events: Vec<(u32, Event)>,
    /// The time of the last event.
    pub now: u64,
}

impl Replica {
    pub fn new(blueprint: &Blueprint<'_>, split: Option<(u32, u32)>) -> Result<Self, PlanError> {
        let engines = |count: u32, part: Part| -> Result<Vec<Engine>, PlanError> {
            (0..count).map(|_| blueprint.engine(part)).collect()
        };
        let (front, back) = match split {
            None => (engines(1, Part::Whole)?, Vec::new()),
            Some((prefill, decode)) => (engines(prefill, Part::Prefill)?, engines(decode, Part::Decode)?),
        };
        Ok(Self {
            front,
            back,
            inbox: VecDeque::new(),
            handoffs: BinaryHeap::new(),
            cost: Arc::clone(&blueprint.cost),
            value_bytes: blueprint.settings.kv_value_bytes,
            news: Vec::new(),
            events: Vec::new(),
            now: 0,
        })
    }

    /// A request will arrive.
    pub fn deliver(&mut self, at: u64, serial: u32) {
        self.inbox.push_back((at, serial));
    }

    /// Requests that were delivered and are not finished.
    pub fn open(&self) -> u32 {
        let engines: u32 = self.front.iter().chain(&self.back).map(Engine::open).sum();
        engines + (self.inbox.len() + self.handoffs.len()) as u32
    }

    /// Nanoseconds that its engines worked, on average over them.
    pub fn busy(&self) -> u64 {
        let engines = self.front.len() + self.back.len();
        self.front.iter().chain(&self.back).map(|engine| engine.busy).sum::<u64>() / engines.max(1) as u64
    }

    /// Handles all that happens before `end`.
    pub fn run_until(&mut self, end: u64, requests: &[Request], shape: &ModelShape) -> Result<(), PlanError> {
        loop {
            let next_of = |engines: &[Engine]| {
                let due = engines
                    .iter()
                    .enumerate()
                    .filter_map(|(index, engine)| Some((engine.next_done()?, index)));
                due.min().unwrap_or((u64::MAX, 0))
            };
            let (front, back) = (next_of(&self.front), next_of(&self.back));
            let handoff = self.handoffs.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let arrival = self.inbox.front().map_or(u64::MAX, |(at, _)| *at);
            let now = front.0.min(back.0).min(handoff).min(arrival);
            if now >= end || now == u64::MAX {
                return Ok(());
            }
            self.now = now;
            if front.0 == now {
                self.front[front.1].step(&mut self.events)?;
                self.settle_front(requests, shape);
            } else if back.0 == now {
                self.back[back.1].step(&mut self.events)?;
                self.settle_back();
            } else if handoff == now {
                if let Some(Reverse((_, serial))) = self.handoffs.pop()
                    && let Some(engine) = self.back.iter_mut().min_by_key(|engine| engine.open())
                {
                    engine.submit(now, serial, &requests[serial as usize], &mut self.events)?;
                    self.settle_back();
                }
            } else if let Some((_, serial)) = self.inbox.pop_front()
                && let Some(engine) = self.front.iter_mut().min_by_key(|engine| engine.open())
            {
                engine.submit(now, serial, &requests[serial as usize], &mut self.events)?;
                self.settle_front(requests, shape);
            }
        }
    }

    /// Events of engines that take requests. Where others decode, the end there is the prompt's alone.
    fn settle_front(&mut self, requests: &[Request], shape: &ModelShape) {
        let at = self.now;
        for (serial, event) in self.events.drain(..) {
            let request = &requests[serial as usize];
            if event == Event::Finished && !self.back.is_empty() && request.output > 1 {
                let bytes = shape.prompt_kv_bytes(request.input, self.value_bytes);
                self.handoffs.push(Reverse((at + self.cost.handoff(bytes), serial)));
            } else {
                self.news.push(News { serial, event, at });
            }
        }
    }

    fn settle_back(&mut self) {
        let at = self.now;
        self.news.extend(self.events.drain(..).map(|(serial, event)| News { serial, event, at }));
    }
}
