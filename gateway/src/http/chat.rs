//! `/v1/chat/completions`.

use super::{
    App, body,
    chat_request::ChatRequest,
    chat_stream::ChatWriter,
    choice::{Body as PieceBody, Choice, Decoder, StopReason},
    error::ApiError,
    generation::{self, Generation, Prompt, Step, Terms},
    logprobs::ChatLogprobs,
    router::{authorize, json_bytes},
    sampling::max_tokens,
    sse::EventStream,
    unix_seconds,
    usage::Usage,
};
use axum::{body::Body, extract::State, http::Request, response::Response};
use gossamer_harmony::{ChatOutput, ChatOutputOptions};
use gossamer_tokenizer::Tokenizer;
use gossamer_wire::RequestId;
use serde::Serialize;
use std::sync::Arc;

/// The whole answer.
#[derive(Serialize)]
struct ChatCompletion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct AssistantMessage {
    role: &'static str,
    content: Option<String>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: String,
    arguments: String,
}

/// What the answer needs of the request.
pub struct Plan {
    /// Alternatives per token.
    pub logprobs: Option<u32>,
    /// Whether reasoning is shown.
    pub include_reasoning: bool,
    /// Where they are to be returned.
    pub prompt_ids: Option<Vec<u32>>,
    /// Whether the answer's token ids are to be returned.
    pub return_token_ids: bool,
    /// Names the calls.
    pub request: RequestId,
    /// For the names of tokens.
    pub tokenizer: Arc<Tokenizer>,
}

impl Plan {
    /// Id of a call. It is the same whenever the call is told.
    pub fn call_id(&self, choice: usize, call: u32) -> String {
        format!("call_{}_{choice}_{call}", self.request)
    }
}

/// Handles a request.
pub async fn handle(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, ApiError> {
    let tenant = authorize(&app, request.headers())?;
    let terms = Terms::new(request.headers(), tenant)?;
    let info = app.admit()?;
    let limits = app.limits(&info);
    let body = body::read(request).await?;
    let fields = generation::parse(&app, body).await?;
    let request = ChatRequest::take(&app, fields, &limits)?;
    let common = request.common;
    let tokens = request.conversation.encode(&app).await?;
    let budget = max_tokens(&limits, tokens.len(), request.max_tokens, "messages", common.budget_field)?;

    let text = app.text()?;
    let control = match &text.control {
        Ok(control) => *control,
        Err(missing) => return Err(ApiError::invalid("messages", missing.to_string())),
    };
    let options = ChatOutputOptions {
        tokenizer: text.pool.tokenizer().clone(),
        control,
        stops: common.stop.clone(),
        tools: request.tools.into(),
        turns_end_after: (!common.ignore_eos).then_some(common.min_tokens),
    };
    let client_stops: Arc<[u32]> = common.stop_token_ids.clone().into();
    let keep_tokens = request.logprobs.is_some() || common.return_token_ids;
    let choices = (0..common.n)
        .map(|_| {
            let decoder = Decoder::Chat(Box::new(ChatOutput::new(options.clone())), Vec::new());
            Choice::new(decoder, client_stops.clone(), keep_tokens)
        })
        .collect();
    let prompt_ids = common.return_token_ids.then(|| tokens.clone());
    let prompt = Prompt { tokens, max_tokens: budget };
    let mut generation = Generation::start(&app, vec![prompt], choices, &common, terms, true)?;
    let plan = Plan {
        logprobs: request.logprobs,
        include_reasoning: request.include_reasoning,
        prompt_ids,
        return_token_ids: common.return_token_ids,
        request: generation.id(),
        tokenizer: options.tokenizer,
    };
    let id = format!("chatcmpl-{}", generation.id());
    if common.stream {
        generation.first().await?;
        let writer = ChatWriter::new(&app, &id, plan, common.n as usize, common.stream_options);
        return Ok(EventStream::response(generation, writer, common.stream_options.include_usage));
    }
    let mut answers: Vec<_> =
        (0..generation.choices.len()).map(|index| Collected::new(index, &plan)).collect();
    loop {
        match generation.step().await {
            Step::Choice(index) => answers[index].collect(&mut generation.choices[index], &plan),
            Step::Finished => break,
            Step::Failed(error) => return Err(error),
        }
    }
    let completion = ChatCompletion {
        id: &id,
        object: "chat.completion",
        created: unix_seconds(),
        model: app.config.model_name(),
        choices: answers.into_iter().map(Collected::finish).collect(),
        usage: generation.usage(),
        prompt_token_ids: plan.prompt_ids,
    };
    Ok(json_bytes(serde_json::to_vec(&completion).map_err(|error| ApiError::internal(error.to_string()))?))
}

/// A choice as it grows.
struct Collected {
    choice: ChatChoice,
    content: String,
    reasoning: String,
}

impl Collected {
    fn new(index: usize, plan: &Plan) -> Self {
        Self {
            choice: ChatChoice {
                index,
                message: AssistantMessage {
                    role: "assistant",
                    content: None,
                    reasoning: None,
                    reasoning_content: None,
                    tool_calls: Vec::new(),
                },
                logprobs: plan.logprobs.map(|_| ChatLogprobs::default()),
                finish_reason: None,
                stop_reason: None,
                token_ids: plan.return_token_ids.then(Vec::new),
            },
            content: String::new(),
            reasoning: String::new(),
        }
    }

    fn collect(&mut self, choice: &mut Choice, plan: &Plan) {
        let calls = &mut self.choice.message.tool_calls;
        for piece in std::mem::take(&mut choice.pieces) {
            for drawn in choice.take_tokens(piece.tokens) {
                if let Some(ids) = &mut self.choice.token_ids {
                    ids.push(drawn.token);
                }
                if let (Some(top), Some(logprobs)) = (plan.logprobs, &mut self.choice.logprobs) {
                    logprobs.push(&plan.tokenizer, &drawn, top as usize);
                }
            }
            match piece.body {
                PieceBody::Content(text) => self.content.push_str(&text),
                PieceBody::Reasoning(text) if plan.include_reasoning => self.reasoning.push_str(&text),
                PieceBody::Reasoning(_) => {}
                PieceBody::CallStart { index, name } => calls.push(Call {
                    id: plan.call_id(self.choice.index, index),
                    r#type: "function",
                    function: Function { name, arguments: String::new() },
                }),
                PieceBody::CallArguments { index, text } => {
                    if let Some(call) = calls.get_mut(index as usize) {
                        call.function.arguments.push_str(&text);
                    }
                }
            }
        }
        if choice.finish.is_some()
            && let Some(ids) = &mut self.choice.token_ids
        {
            ids.extend(choice.take_rest().map(|drawn| drawn.token));
        }
        self.choice.finish_reason = choice.finish.map(|finish| finish.as_str());
        self.choice.stop_reason = choice.stop_reason.take();
    }

    fn finish(mut self) -> ChatChoice {
        let message = &mut self.choice.message;
        if !self.reasoning.is_empty() {
            message.reasoning_content = Some(self.reasoning.clone());
            message.reasoning = Some(self.reasoning);
        }
        let elsewhere = message.reasoning.is_some() || !message.tool_calls.is_empty();
        message.content = (!self.content.is_empty() || !elsewhere).then_some(self.content);
        self.choice
    }
}
