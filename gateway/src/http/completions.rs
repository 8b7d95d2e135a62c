//! `/v1/completions`.

use super::{
    App, body,
    choice::{Body as PieceBody, Choice, Decoder, StopReason},
    completion_request::CompletionRequest,
    completion_stream::CompletionWriter,
    error::ApiError,
    generation::{self, Generation, Step, Terms},
    logprobs::TextLogprobs,
    router::{authorize, json_bytes},
    sse::EventStream,
    unix_seconds,
    usage::Usage,
};
use axum::{body::Body, extract::State, http::Request, response::Response};
use gossamer_tokenizer::TextOutput;
use serde::Serialize;
use std::sync::Arc;

/// The whole answer.
#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChoice>,
    usage: Usage,
}

#[derive(Serialize)]
struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

/// Handles a request.
pub async fn handle(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, ApiError> {
    let tenant = authorize(&app, request.headers())?;
    let terms = Terms::new(request.headers(), tenant)?;
    let info = app.admit()?;
    let limits = app.limits(&info);
    let body = body::read(request).await?;
    let fields = generation::parse(&app, body).await?;
    let mut request = CompletionRequest::take(&app, fields, &limits).await?;
    let prompts = std::mem::take(&mut request.prompts);
    let plan = Plan {
        prompt_ids: request
            .common
            .return_token_ids
            .then(|| prompts.iter().map(|prompt| prompt.tokens.clone()).collect()),
        request,
    };

    let common = &plan.request.common;
    let client_stops: Arc<[u32]> = common.stop_token_ids.clone().into();
    let keep_tokens = plan.request.logprobs.is_some() || common.return_token_ids;
    let choices = (0..prompts.len() * common.n as usize)
        .map(|_| {
            let decoder = match app.tokenizer() {
                Some(tokenizer) => Decoder::Text(TextOutput::new(
                    tokenizer.clone(),
                    common.stop.clone(),
                    plan.request.skip_special,
                )),
                None => Decoder::Ids(0),
            };
            Choice::new(decoder, client_stops.clone(), keep_tokens)
        })
        .collect();
    if prompts.iter().all(|prompt| prompt.max_tokens == 0) {
        return only_echo(&app, prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum(), &plan);
    }
    let mut generation = Generation::start(&app, prompts, choices, common, terms, false)?;
    let id = format!("cmpl-{}", generation.id());
    if common.stream {
        generation.first().await?;
        let include_usage = common.stream_options.include_usage;
        let writer = CompletionWriter::new(&app, &id, generation.id(), plan);
        return Ok(EventStream::response(generation, writer, include_usage));
    }
    let mut texts: Vec<_> = (0..generation.choices.len()).map(|index| plan.empty(index)).collect();
    loop {
        match generation.step().await {
            Step::Choice(index) => plan.collect(&app, &mut generation.choices[index], &mut texts[index]),
            Step::Finished => break,
            Step::Failed(error) => return Err(error),
        }
    }
    let choices = texts.into_iter().map(|collected| collected.choice).collect();
    answer(&app, &id, choices, generation.usage())
}

/// What the answer needs of the request.
pub struct Plan {
    /// The request without its prompts.
    pub request: CompletionRequest,
    /// Where they are to be returned.
    pub prompt_ids: Option<Vec<Vec<u32>>>,
}

struct Collected {
    choice: CompletionChoice,
    offset: usize,
}

impl Plan {
    /// The echoed prompt of a choice.
    pub fn echo(&self, index: usize) -> Option<&str> {
        let texts = self.request.echo.as_ref()?;
        texts.get(index / self.request.common.n as usize).map(String::as_str)
    }

    fn empty(&self, index: usize) -> Collected {
        let text = self.echo(index).unwrap_or_default().to_owned();
        let prompt = index / self.request.common.n as usize;
        Collected {
            offset: text.chars().count(),
            choice: CompletionChoice {
                index,
                text,
                logprobs: self.request.logprobs.map(|_| TextLogprobs::default()),
                finish_reason: None,
                stop_reason: None,
                token_ids: self.request.common.return_token_ids.then(Vec::new),
                prompt_token_ids: self.prompt_ids.as_ref().and_then(|ids| ids.get(prompt).cloned()),
            },
        }
    }

    fn collect(&self, app: &App, choice: &mut Choice, collected: &mut Collected) {
        let tokenizer = app.tokenizer().map(|tokenizer| &**tokenizer);
        for piece in std::mem::take(&mut choice.pieces) {
            let PieceBody::Content(text) = &piece.body else { continue };
            collected.choice.text.push_str(text);
            for drawn in choice.take_tokens(piece.tokens) {
                if let Some(ids) = &mut collected.choice.token_ids {
                    ids.push(drawn.token);
                }
                if let (Some(top), Some(logprobs)) = (self.request.logprobs, &mut collected.choice.logprobs) {
                    logprobs.push(tokenizer, &drawn, top as usize, &mut collected.offset);
                }
            }
        }
        if choice.finish.is_some()
            && let Some(ids) = &mut collected.choice.token_ids
        {
            ids.extend(choice.take_rest().map(|drawn| drawn.token));
        }
        collected.choice.finish_reason = choice.finish.map(|finish| finish.as_str());
        collected.choice.stop_reason = choice.stop_reason.take();
    }
}

/// `max_tokens: 0` with `echo`: the prompt alone, and nothing to generate.
fn only_echo(app: &App, prompt_tokens: u64, plan: &Plan) -> Result<Response, ApiError> {
    if plan.request.common.stream {
        return Err(ApiError::invalid("max_tokens", "max_tokens: 0 is not allowed with 'stream': true"));
    }
    let prompts = plan.request.echo.as_ref().map_or(0, Vec::len);
    let choices = (0..prompts * plan.request.common.n as usize)
        .map(|index| CompletionChoice { finish_reason: Some("length"), ..plan.empty(index).choice })
        .collect();
    let id = format!("cmpl-echo-{:016x}", rand::random::<u64>());
    answer(app, &id, choices, Usage::new(prompt_tokens, 0, 0, None))
}

fn answer(app: &App, id: &str, choices: Vec<CompletionChoice>, usage: Usage) -> Result<Response, ApiError> {
    let completion = Completion {
        id,
        object: "text_completion",
        created: unix_seconds(),
        model: app.config.model_name(),
        choices,
        usage,
    };
    Ok(json_bytes(serde_json::to_vec(&completion).map_err(|error| ApiError::internal(error.to_string()))?))
}
