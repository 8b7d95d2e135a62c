//! A scripted engine and a client without sockets.

use crate::{
    engine::{Engine, LinkError, SchedulerLink},
    http::{App, Board, TextServices, router},
};
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use gossamer_config::ServeConfig;
use gossamer_tokenizer::{PoolOptions, Tokenizer, TokenizerPool};
use gossamer_wire::{
    EngineInfo, FinishReason, FromScheduler, Refusal, Submit, ToScheduler, TokenDelta, TokenLogprobs,
};
use http_body_util::BodyExt;
use serde_json::Value;
use std::{
    path::Path,
    sync::{Arc, Mutex, OnceLock},
};
use tower::ServiceExt;

/// What the engine does with a submission.
#[derive(Clone)]
pub enum Behaviour {
    /// These tokens, then as the rules say.
    Tokens(Vec<u32>),
    /// Tokens drawn from the seed.
    Seeded,
    /// A refusal.
    Refuse(Refusal),
    /// Some tokens and then nothing more.
    Hang(Vec<u32>),
    /// Some tokens and then an error.
    Fail(Vec<u32>),
}

/// Answers submissions at once, in deltas of the stream interval.
pub struct ScriptedEngine {
    engine: Engine,
    behaviour: Mutex<Behaviour>,
    pub log: Mutex<Vec<ToScheduler>>,
}

impl SchedulerLink for ScriptedEngine {
    fn send(&self, message: &ToScheduler) -> Result<(), LinkError> {
        self.log.lock().unwrap().push(message.clone());
        if let ToScheduler::Submit(submit) = message {
            self.answer(submit);
        }
        Ok(())
    }
}

impl ScriptedEngine {
    fn answer(&self, submit: &Submit) {
        let behaviour = self.behaviour.lock().unwrap().clone();
        let (script, end) = match behaviour {
            Behaviour::Refuse(refusal) => {
                return self.engine.deliver(FromScheduler::Refused { key: submit.key, refusal });
            }
            Behaviour::Tokens(tokens) => (tokens, Some(FinishReason::Length)),
            Behaviour::Hang(tokens) => (tokens, None),
            Behaviour::Fail(tokens) => (tokens, Some(FinishReason::Error("the device is gone".into()))),
            Behaviour::Seeded => {
                let mut state = submit.sampling.seed ^ u64::from(submit.key.choice).wrapping_mul(0x9E37);
                let draw = |_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Words and bytes, sometimes a control token.
                    if state >> 60 == 0 { 200_005 } else { (state >> 33) as u32 % 20_000 }
                };
                ((0..submit.stop.max_tokens).map(draw).collect(), Some(FinishReason::Length))
            }
        };
        let mut tokens: Vec<u32> = script.into_iter().take(submit.stop.max_tokens as usize).collect();
        let mut finish = end;
        if let Some(at) = tokens.iter().position(|token| submit.stop.stop_token_ids.contains(token)) {
            tokens.truncate(at + 1);
            finish = Some(FinishReason::Stop);
        }
        let interval = submit.stream_interval.min(1 << 20) as usize;
        let mut start = 0;
        while start < tokens.len() {
            let end = if start == 0 { 1 } else { (start + interval).min(tokens.len()) };
            let part = &tokens[start..end];
            let logprobs = match submit.sampling.logprobs {
                None => Vec::new(),
                Some(top) => part
                    .iter()
                    .map(|token| TokenLogprobs {
                        logprob: -0.5,
                        top: (0..top).map(|rank| (token + rank, -0.5 - rank as f32)).collect(),
                    })
                    .collect(),
            };
            self.engine.deliver(FromScheduler::Tokens(vec![TokenDelta {
                key: submit.key,
                position: start as u32,
                tokens: part.to_vec(),
                logprobs,
                cached_prompt_tokens: (start == 0).then_some(0),
                finish: finish.clone().filter(|_| end == tokens.len()),
            }]));
            start = end;
        }
        if tokens.is_empty() && finish.is_some() {
            self.engine.deliver(FromScheduler::Tokens(vec![TokenDelta {
                key: submit.key,
                position: 0,
                tokens: Vec::new(),
                logprobs: Vec::new(),
                cached_prompt_tokens: None,
                finish,
            }]));
        }
    }
}

/// The vocabulary of gpt-oss, loaded once.
pub fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    TOKENIZER.get_or_init(|| Arc::new(Tokenizer::o200k_harmony().unwrap())).clone()
}

/// A service for tests.
pub struct Server {
    pub router: Router,
    pub app: Arc<App>,
    pub scripted: Arc<ScriptedEngine>,
}

pub fn config(args: &[&str]) -> ServeConfig {
    let args = args.iter().map(Into::into);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = gossamer_config::resolve(args, [], directory).unwrap().config;
    if config.served_model_names == ["demo"] {
        config.served_model_names = vec!["m".into()];
    }
    config
}

impl Server {
    pub async fn start(args: &[&str], behaviour: Behaviour) -> Self {
        let config = config(args);
        let engine = Engine::new(0, 0);
        let text = match config.skip_tokenizer_init {
            true => None,
            false => {
                let options = PoolOptions { threads: 1, max_jobs: 64 };
                let pool = TokenizerPool::start(tokenizer(), options, None).await.unwrap();
                Some(TextServices::new(pool))
            }
        };
        let max_model_len = config.max_model_len.unwrap_or(131_072);
        let eos = vec![200_002, 199_999, 200_012];
        let app = Arc::new(App::new(config, engine.clone(), eos, Board::private()));
        if let Some(text) = text {
            app.set_text(text);
        }
        let scripted = Arc::new(ScriptedEngine {
            engine: engine.clone(),
            behaviour: Mutex::new(behaviour),
            log: Mutex::default(),
        });
        engine.attach(scripted.clone()).unwrap();
        engine.deliver(FromScheduler::Ready(EngineInfo {
            max_model_len,
            kv_capacity_tokens: 1 << 20,
            vocab_size: 201_088,
        }));
        Self { router: router(app.clone()), app, scripted }
    }

    pub fn set(&self, behaviour: Behaviour) {
        *self.scripted.behaviour.lock().unwrap() = behaviour;
    }

    pub fn submitted(&self) -> Vec<Submit> {
        let log = self.scripted.log.lock().unwrap();
        let submits = log.iter().filter_map(|message| match message {
            ToScheduler::Submit(submit) => Some((**submit).clone()),
            _ => None,
        });
        submits.collect()
    }

    pub async fn raw(&self, request: Request<Body>) -> (StatusCode, String, Vec<u8>) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let kind =
            response.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap()).to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes().to_vec();
        (status, kind, body)
    }

    pub async fn send(&self, path: &str, body: impl Into<Body>) -> (StatusCode, String, Vec<u8>) {
        let request = Request::post(path).header("content-type", "application/json");
        self.raw(request.body(body.into()).unwrap()).await
    }

    /// An answer that must be 200.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        let (status, kind, bytes) = self.send(path, body.to_string()).await;
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(kind, "application/json");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// A refusal: status and the error object.
    pub async fn refused(&self, path: &str, body: impl Into<Body>) -> (u16, Value) {
        let (status, kind, bytes) = self.send(path, body).await;
        assert_eq!(kind, "application/json", "{}", String::from_utf8_lossy(&bytes));
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        let error = value["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{value}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{value}");
        (status.as_u16(), error)
    }

    /// The events of a stream that must end with `[DONE]`.
    pub async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let (status, kind, bytes) = self.send(path, body.to_string()).await;
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(status, 200, "{text}");
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        let mut events: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(events.pop(), Some(""));
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events
            .into_iter()
            .map(|event| {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
                serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
            })
            .collect()
    }
}
