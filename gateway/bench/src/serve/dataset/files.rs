//! Data sets from files: ShareGPT and JSONL.

use super::{DatasetError, Prompt, PromptSet, ServeBenchArgs};
use gossamer_tokenizer::Tokenizer;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Output length where a file and the arguments give none.
const DEFAULT_OUTPUT_LEN: usize = 128;

/// What the field's clients leave out of ShareGPT: turns of fewer tokens, longer prompts, longer sums of both.
const SHAREGPT_MIN_TURN: usize = 4;
const SHAREGPT_MAX_PROMPT: usize = 1024;
const SHAREGPT_MAX_TOTAL: usize = 2048;

/// Rows that can be used, and the count of those that cannot, by reason.
#[derive(Default)]
struct Rows {
    usable: Vec<Prompt>,
    skipped: BTreeMap<&'static str, usize>,
}

impl Rows {
    fn add(&mut self, row: Result<Prompt, &'static str>) {
        match row {
            Ok(prompt) => self.usable.push(prompt),
            Err(reason) => *self.skipped.entry(reason).or_default() += 1,
        }
    }

    /// Shuffles by the seed and takes as many as asked for, repeating if there are too few; says all of it.
    fn into_set(mut self, path: &Path, args: &ServeBenchArgs) -> Result<PromptSet, DatasetError> {
        let left_out: usize = self.skipped.values().sum();
        let reasons: Vec<String> =
            self.skipped.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
        let reasons = if reasons.is_empty() { "the file has no rows".to_owned() } else { reasons.join(", ") };
        if self.usable.is_empty() {
            return Err(DatasetError::Empty { path: path.to_owned(), rows: left_out, reasons });
        }
        self.usable.shuffle(&mut StdRng::seed_from_u64(args.seed));
        let mut notes = Vec::new();
        if left_out > 0 {
            notes.push(format!("{left_out} rows left out ({reasons})"));
        }
        let usable = self.usable.len();
        if usable < args.num_prompts {
            notes.push(format!("{usable} usable rows for {} requests: rows are repeated", args.num_prompts));
        }
        let prompts = self.usable.into_iter().cycle().take(args.num_prompts).collect();
        Ok(PromptSet { prompts, notes })
    }
}

fn read(args: &ServeBenchArgs) -> Result<(PathBuf, String), DatasetError> {
    let path = args.dataset_path.clone().unwrap_or_default();
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(DatasetError::Read { path, source }),
    }
}

/// A JSON list of objects with `conversations`; the first human turn is the prompt, the turn after it gives the length.
pub fn sharegpt(args: &ServeBenchArgs) -> Result<PromptSet, DatasetError> {
    let (path, text) = read(args)?;
    let expected = "a JSON list of objects with 'conversations'";
    let wrong = |got: String| DatasetError::Format { path: path.clone(), expected, got };
    let parsed = serde_json::from_str::<Value>(&text).map_err(|error| wrong(format!("no JSON: {error}")))?;
    let list = parsed.as_array().ok_or_else(|| wrong(kind(&parsed).to_owned()))?;
    let tokenizer = tokenizer(args)?;
    let mut rows = Rows::default();
    for row in list {
        rows.add(sharegpt_row(row, &tokenizer, args.sharegpt_output_len));
    }
    rows.into_set(&path, args)
}

fn tokenizer(args: &ServeBenchArgs) -> Result<Tokenizer, DatasetError> {
    Ok(match &args.tokenizer {
        Some(path) if path.is_dir() => Tokenizer::from_file(&path.join("tokenizer.json"))?,
        Some(path) => Tokenizer::from_file(path)?,
        None => Tokenizer::o200k_harmony()?,
    })
}

fn sharegpt_row(
    row: &Value,
    tokenizer: &Tokenizer,
    output_len: Option<usize>,
) -> Result<Prompt, &'static str> {
    let turns = row["conversations"].as_array().ok_or("no 'conversations'")?;
    let [first, second, ..] = turns.as_slice() else { return Err("fewer than two turns") };
    if !matches!(first["from"].as_str(), Some("human" | "user")) {
        return Err("first turn not from a human");
    }
    let text = first["value"].as_str().filter(|text| !text.is_empty()).ok_or("no text")?;
    let answer = second["value"].as_str().ok_or("no text")?;
    let tokens = |text: &str| tokenizer.encode_ordinary(text).len();
    let prompt_len = tokens(text);
    // A length that was asked for may be short.
    let too_short = |answer_len| output_len.is_none() && answer_len < SHAREGPT_MIN_TURN;
    let answer_len = output_len.unwrap_or_else(|| tokens(answer));
    if prompt_len < SHAREGPT_MIN_TURN || too_short(answer_len) {
        return Err("a turn below 4 tokens");
    }
    if prompt_len > SHAREGPT_MAX_PROMPT || prompt_len + answer_len > SHAREGPT_MAX_TOTAL {
        return Err("a prompt above 1024 tokens, or above 2048 with its answer");
    }
    Ok(Prompt::Text { text: text.to_owned(), output_len: answer_len })
}

/// A file of JSON lines with `prompt` and optionally `output_len`.
pub fn custom(args: &ServeBenchArgs) -> Result<PromptSet, DatasetError> {
    let (path, text) = read(args)?;
    let mut rows = Rows::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        rows.add(custom_row(line, args.sharegpt_output_len));
    }
    rows.into_set(&path, args)
}

fn custom_row(line: &str, output_len: Option<usize>) -> Result<Prompt, &'static str> {
    let row = serde_json::from_str::<Value>(line).map_err(|_| "not JSON")?;
    let text = row["prompt"].as_str().filter(|text| !text.is_empty()).ok_or("no 'prompt'")?;
    let own = row["output_len"].as_u64().and_then(|len| usize::try_from(len).ok()).filter(|len| *len > 0);
    Ok(Prompt::Text { text: text.to_owned(), output_len: output_len.or(own).unwrap_or(DEFAULT_OUTPUT_LEN) })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "an object",
        Value::String(_) => "a string",
        Value::Null => "null",
        _ => "another value",
    }
}
