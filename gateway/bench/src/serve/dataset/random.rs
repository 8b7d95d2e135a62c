//! Random prompts of given lengths.
//!
//! Completions get token ids, so the length is exact for any vocabulary. Chat gets words; where the server counts tokens
//! (`/tokenize`), each text is cut to its length by that count.

use super::{Client, DatasetName, Prompt, PromptSet, ServeBenchArgs, Server};
use crate::workload::length;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Short common words: one token each, with the blank before them, in the vocabularies of the field.
const WORDS: &str = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an \
    they which one you were all her she there would their we him been has when who will no more if out so up said what \
    its about than into them can only other time new some could these two may first then do any like my now over such \
    our man me even most made after also did many must before through years";

/// What one random prompt consists of.
struct Shape {
    prefix: usize,
    body: usize,
    output: usize,
}

fn shapes(args: &ServeBenchArgs, rng: &mut StdRng) -> Vec<(usize, Shape)> {
    (0..args.num_prompts)
        .map(|index| match args.dataset_name {
            DatasetName::PrefixRepetition => (
                index % args.prefix_repetition_num_prefixes,
                Shape {
                    prefix: args.prefix_repetition_prefix_len,
                    body: args.prefix_repetition_suffix_len,
                    output: args.prefix_repetition_output_len,
                },
            ),
            _ => (
                0,
                Shape {
                    prefix: args.random_prefix_len,
                    body: length(rng, args.random_input_len, args.random_range_ratio),
                    output: length(rng, args.random_output_len, args.random_range_ratio),
                },
            ),
        })
        .collect()
}

/// Draws `count` items below `bound` from a generator of their own, so that prefix `n` is the same wherever it is used.
fn items(seed: u64, stream: u64, count: usize, bound: u32) -> impl Iterator<Item = u32> {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream);
    (0..count).map(move |_| rng.random_range(0..bound))
}

/// Stream of a body; below are those of prefixes. Runs of other lengths draw other prompts, so that what one leaves in a server's prefix
/// cache does not serve the next.
fn body_of(args: &ServeBenchArgs, index: usize) -> u64 {
    let length = match args.dataset_name {
        DatasetName::PrefixRepetition => args.prefix_repetition_suffix_len,
        _ => args.random_input_len,
    };
    (1 + length as u64) << 32 | index as u64
}

/// Prompts as token ids.
pub fn tokens(args: &ServeBenchArgs, server: &Server) -> PromptSet {
    let bound = args.random_vocab_size.or(server.vocab_size).unwrap_or(10_000).max(1);
    let mut rng = StdRng::seed_from_u64(args.seed);
    let prompts =
        shapes(args, &mut rng).into_iter().enumerate().map(|(index, (prefix, shape))| Prompt::Tokens {
            ids: items(args.seed, prefix as u64, shape.prefix, bound)
                .chain(items(args.seed, body_of(args, index), shape.body, bound))
                .collect(),
            output_len: shape.output,
        });
    PromptSet { prompts: prompts.collect(), notes: Vec::new() }
}

/// Prompts as text.
pub async fn text(args: &ServeBenchArgs, client: &Client, server: &Server) -> PromptSet {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut rng = StdRng::seed_from_u64(args.seed);
    let mut set = PromptSet::default();
    let mut counted = true;
    for (index, (prefix, shape)) in shapes(args, &mut rng).into_iter().enumerate() {
        let bound = words.len() as u32;
        let chosen: Vec<&str> = items(args.seed, prefix as u64, shape.prefix, bound)
            .chain(items(args.seed, body_of(args, index), shape.body, bound))
            .map(|word| words[word as usize])
            .collect();
        let target = shape.prefix + shape.body;
        let (mut keep, mut text) = (chosen.len(), chosen.join(" "));
        // The word count is right at once for most vocabularies; a few rounds settle the others.
        for _ in 0..8 {
            if !counted {
                break;
            }
            match client.count_tokens(&server.model, &text).await {
                None => counted = false,
                Some(count) if count == target => break,
                Some(count) => {
                    keep = (keep + target).saturating_sub(count).max(1);
                    text = (0..keep).map(|word| chosen[word % chosen.len()]).collect::<Vec<_>>().join(" ");
                }
            }
        }
        set.prompts.push(Prompt::Text { text, output_len: shape.output });
    }
    set.notes.push("chat prompts: the chat format adds tokens of its own to the requested length".to_owned());
    if !counted {
        set.notes.push("the server has no /tokenize: the requested length is counted in words".to_owned());
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeBenchArgs,
    }

    fn prompts(arguments: &[&str]) -> Vec<Prompt> {
        let args = Cli::parse_from([&["bench"], arguments].concat()).args;
        tokens(&args, &Server { model: "m".to_owned(), vocab_size: Some(500) }).prompts
    }

    #[test]
    fn lengths_are_exact_and_a_seed_repeats() {
        for len in ["1", "128", "8192"] {
            let arguments = ["--num-prompts", "3", "--random-input-len", len];
            let made = prompts(&arguments);
            assert_eq!(made, prompts(&arguments), "the same seed gives the same prompts");
            for prompt in &made {
                let Prompt::Tokens { ids, output_len } = prompt else { panic!("expected token ids") };
                assert_eq!((ids.len().to_string().as_str(), *output_len), (len, 128));
                assert!(ids.iter().all(|id| *id < 500));
            }
            assert_ne!(made[0], prompts(&[&arguments[..], &["--seed", "1"]].concat())[0]);
        }
    }

    #[test]
    fn prompts_of_other_lengths_share_no_beginning() {
        let first = |len: &str| match &prompts(&["--num-prompts", "1", "--random-input-len", len])[0] {
            Prompt::Tokens { ids, .. } => ids[..64].to_vec(),
            Prompt::Text { .. } => panic!("expected token ids"),
        };
        assert_ne!(first("128"), first("2000"));
    }

    #[test]
    fn prefixes_repeat_and_suffixes_do_not() {
        let made = prompts(&["--dataset-name", "prefix_repetition", "--num-prompts", "20"]);
        let ids = |index: usize| match &made[index] {
            Prompt::Tokens { ids, .. } => ids.clone(),
            Prompt::Text { .. } => panic!("expected token ids"),
        };
        assert_eq!(ids(0)[..256], ids(10)[..256]);
        assert_ne!(ids(0)[256..], ids(10)[256..]);
        assert_ne!(ids(0)[..256], ids(1)[..256]);
    }
}
