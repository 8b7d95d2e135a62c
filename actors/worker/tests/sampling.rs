//! Sampling parameters, from the plan to the drawn token.

mod common;

use common::{Driver, Request, fixture, open, options};
use gossamer_backend_api::DType;
use gossamer_wire::SamplingParams;

fn driver() -> Driver {
    Driver::new(open(&fixture("golden-a"), &options(DType::F32, 256), 2))
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

fn request(sampling: SamplingParams) -> Request {
    Request { sampling, ..Request::greedy(&[5, 6, 7, 8], 6) }
}

#[test]
fn parameters_of_one_sequence_do_not_touch_its_neighbours() {
    let mut driver = driver();
    let plain = driver.run(&[request(greedy())], 256, 256)[0].tokens.clone();
    let requests = [
        request(greedy()),
        request(SamplingParams { logit_bias: vec![(9, 100.0)], ..greedy() }),
        request(SamplingParams { allowed_token_ids: vec![3, 400], ..greedy() }),
        request(greedy()),
        request(SamplingParams { logit_bias: vec![(9, 50.0)], frequency_penalty: 100.0, ..greedy() }),
    ];
    let answers = driver.run(&requests, 256, 256);
    assert_eq!(answers[0].tokens, plain);
    assert_eq!(answers[1].tokens, [9; 6]);
    assert!(answers[2].tokens.iter().all(|token| [3, 400].contains(token)), "{:?}", answers[2].tokens);
    assert_eq!(answers[3].tokens, plain);
    // Drawn once, then never again.
    assert_eq!(answers[4].tokens[0], 9);
    assert!(!answers[4].tokens[1..].contains(&9), "{:?}", answers[4].tokens);
}

#[test]
fn stop_tokens_are_held_back_until_min_tokens() {
    let mut driver = driver();
    let bias = SamplingParams { logit_bias: vec![(9, 100.0)], ..greedy() };
    let held = Request { min_tokens: 4, stop_token_ids: vec![9], ..request(bias) };
    let tokens = &driver.run(&[held], 256, 256)[0].tokens;
    assert!(!tokens[..4].contains(&9) && tokens[4..] == [9, 9], "{tokens:?}");
}

#[test]
fn seeds_and_choices_name_the_draw() {
    let mut driver = driver();
    let drawn = |driver: &mut Driver, seed, choice| {
        let sampling = SamplingParams { temperature: 1.5, seed, ..SamplingParams::default() };
        let request = Request { choice, ..Request { generate: 16, ..request(sampling) } };
        driver.run(&[request], 256, 256)[0].tokens.clone()
    };
    let first = drawn(&mut driver, 1, 0);
    assert_eq!(first, drawn(&mut driver, 1, 0));
    assert_ne!(first, drawn(&mut driver, 2, 0));
    assert_ne!(first, drawn(&mut driver, 1, 1));
}

#[test]
fn logprobs_are_those_of_the_unmodified_logits_likeliest_first() {
    let mut driver = driver();
    let sampling = SamplingParams { logprobs: Some(3), logit_bias: vec![(9, 100.0)], ..greedy() };
    let answer = &driver.run(&[request(sampling), request(greedy())], 256, 256);
    let logprobs = answer[0].sampled[0].logprobs.as_ref().unwrap();
    assert!(answer[1].sampled[0].logprobs.is_none());
    let logits = &answer[0].logits;
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let expected = |token: u32| f64::from(logits[token as usize] - most) - sum.ln();
    assert!((f64::from(logprobs.logprob) - expected(9)).abs() < 1e-4, "{logprobs:?}");
    assert_eq!(logprobs.top.len(), 3);
    for (token, logprob) in &logprobs.top {
        assert!((f64::from(*logprob) - expected(*token)).abs() < 1e-4, "{logprobs:?}");
    }
    assert!(logprobs.top[0].1 >= logprobs.top[1].1 && logprobs.top[1].1 >= logprobs.top[2].1);
    assert_eq!(logits[logprobs.top[0].0 as usize], most);
}
