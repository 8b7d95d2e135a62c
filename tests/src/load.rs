//! A mixed load whose every token is known: what one run gives, any other run must give too.
//!
//! Requests are greedy or seeded, with penalties, log-probabilities, several choices, long prompts; streamed or not. Only
//! token ids are sent and compared, so a model without tokenizer will do.

use crate::client::{Client, Event};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::task::JoinHandle;

const COMPLETIONS: &str = "/v1/completions";

/// One request.
#[derive(Clone)]
pub struct Job {
    /// The document.
    pub body: Value,
    /// Whether the answer is streamed.
    pub stream: bool,
}

/// All that a client can compare.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Outcome {
    /// Per choice: token ids.
    pub tokens: Vec<Vec<u64>>,
    /// Per choice: log-probabilities of the drawn tokens.
    pub logprobs: Vec<Vec<Value>>,
    /// Per choice: how it ended.
    pub finish: Vec<String>,
    /// Tokens of the prompt and of the answer, as billed.
    pub usage: (u64, u64),
}

/// A load under way.
pub struct Load {
    /// Tokens that its streams have got so far.
    seen: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Result<Outcome, String>>>,
}

/// Sixteen requests of about `tokens` tokens each, for a vocabulary of 512.
pub fn mixed(tokens: u32) -> Vec<Job> {
    let prompt = |number: u32, length: u32| -> Vec<u32> {
        (0..length).map(|at| (at * 7 + number * 31 + at * at % 13) % 500).collect()
    };
    (0..16)
        .map(|number| {
            // Long ones are prefilled in several chunks.
            let length = if number % 4 == 3 { 1200 + number * 10 } else { 5 + number };
            let mut body = json!({
                "prompt": prompt(number, length), "max_tokens": tokens + number, "ignore_eos": true,
                "return_token_ids": true, "temperature": 0,
            });
            let more = match number % 5 {
                0 => json!({}),
                1 => json!({"temperature": 1, "seed": 1000 + number}),
                2 => json!({"temperature": 0.8, "seed": number, "top_p": 0.9, "top_k": 40, "logprobs": 2}),
                3 => json!({"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}),
                _ => json!({"temperature": 1, "seed": number, "n": 2, "logprobs": 0}),
            };
            for (name, value) in more.as_object().expect("fields") {
                body[name] = value.clone();
            }
            Job { body, stream: number % 3 != 2 }
        })
        .collect()
}

impl Load {
    /// Sends all requests at once, each over a connection of its own.
    pub fn start(port: u16, jobs: &[Job]) -> Self {
        let seen = Arc::new(AtomicUsize::new(0));
        let task = |job: &Job| tokio::spawn(run(Client::new(port), job.clone(), seen.clone()));
        let tasks = jobs.iter().map(task).collect();
        Self { seen, tasks }
    }

    /// Tokens that its streams have got so far.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// How many requests have ended.
    pub fn ended(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_finished()).count()
    }

    /// Waits until its streams have got this many tokens more. Fails when the load ends before.
    pub async fn advance(&self, tokens: usize) {
        let goal = self.seen() + tokens;
        crate::server::eventually(&format!("{goal} tokens"), async || {
            let seen = self.seen();
            assert!(
                self.ended() < self.tasks.len(),
                "the load ended after {seen} tokens, too early to disturb"
            );
            if seen >= goal { Ok(()) } else { Err(format!("{seen} tokens")) }
        })
        .await;
    }

    /// What came of each request.
    pub async fn results(self) -> Vec<Result<Outcome, String>> {
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await.expect("no request panics"));
        }
        all
    }

    /// What came of each request, none of which may have failed.
    pub async fn outcomes(self) -> Vec<Outcome> {
        let results = self.results().await.into_iter().enumerate();
        results
            .map(|(number, result)| result.unwrap_or_else(|error| panic!("request {number}: {error}")))
            .collect()
    }
}

/// Runs a load to its end.
pub async fn undisturbed(port: u16, jobs: &[Job]) -> Vec<Outcome> {
    let outcomes = Load::start(port, jobs).outcomes().await;
    for (job, outcome) in jobs.iter().zip(&outcomes) {
        check(job, outcome);
    }
    outcomes
}

/// Compares request by request, so that a failure shows the first token that differs.
pub fn assert_same(expected: &[Outcome], got: &[Outcome], what: &str) {
    assert_eq!(expected.len(), got.len(), "{what}");
    for (number, (expected, got)) in expected.iter().zip(got).enumerate() {
        for (choice, (expected, got)) in expected.tokens.iter().zip(&got.tokens).enumerate() {
            let differs = expected.iter().zip(got).position(|(a, b)| a != b);
            assert!(
                differs.is_none() && expected.len() == got.len(),
                "{what}: request {number}, choice {choice}: {} tokens, expected {}, first difference at {differs:?}",
                got.len(),
                expected.len()
            );
        }
        assert_eq!(expected, got, "{what}: request {number}");
    }
}

/// What holds for every answer, disturbed or not.
fn check(job: &Job, outcome: &Outcome) {
    let (n, most) =
        (job.body["n"].as_u64().unwrap_or(1), job.body["max_tokens"].as_u64().expect("set above"));
    assert_eq!(outcome.tokens.len() as u64, n);
    assert!(outcome.tokens.iter().all(|tokens| tokens.len() as u64 == most), "{outcome:?}");
    assert!(outcome.finish.iter().all(|finish| finish == "length"), "{outcome:?}");
    assert_eq!(outcome.usage, (job.body["prompt"].as_array().expect("ids").len() as u64, n * most));
}

async fn run(client: Client, job: Job, seen: Arc<AtomicUsize>) -> Result<Outcome, String> {
    let n = job.body["n"].as_u64().unwrap_or(1) as usize;
    let mut outcome = Outcome {
        tokens: vec![vec![]; n],
        logprobs: vec![vec![]; n],
        finish: vec![String::new(); n],
        usage: (0, 0),
    };
    if !job.stream {
        let answer = client.try_post(COMPLETIONS, &job.body).await?;
        if answer.status != 200 {
            return Err(format!("status {}: {}", answer.status, answer.body));
        }
        outcome.add(&answer.body)?;
        return Ok(outcome);
    }
    let mut body = job.body;
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = client.try_open(COMPLETIONS, &body).await?;
    while let Some(events) = stream.next().await? {
        for Event { data, .. } in events {
            seen.fetch_add(outcome.add(&data)?, Ordering::Relaxed);
        }
    }
    if stream.done { Ok(outcome) } else { Err("the stream ended without [DONE]".to_owned()) }
}

impl Outcome {
    /// Adds a document or an event; how many tokens it had.
    fn add(&mut self, data: &Value) -> Result<usize, String> {
        if let Some(error) = data.get("error") {
            return Err(format!("an error event: {error}"));
        }
        let mut count = 0;
        for choice in data["choices"].as_array().ok_or_else(|| format!("no choices in {data}"))? {
            let index = choice["index"].as_u64().ok_or("no index")? as usize;
            let ids = choice["token_ids"].as_array().ok_or_else(|| format!("no token_ids in {choice}"))?;
            count += ids.len();
            self.tokens[index].extend(ids.iter().filter_map(Value::as_u64));
            let logprobs = choice["logprobs"]["token_logprobs"].as_array();
            self.logprobs[index].extend(logprobs.into_iter().flatten().cloned());
            self.finish[index] += choice["finish_reason"].as_str().unwrap_or_default();
        }
        if let Some(usage) = data.get("usage").filter(|usage| !usage.is_null()) {
            let field = |name: &str| usage[name].as_u64().unwrap_or_default();
            self.usage = (field("prompt_tokens"), field("completion_tokens"));
        }
        Ok(count)
    }
}
