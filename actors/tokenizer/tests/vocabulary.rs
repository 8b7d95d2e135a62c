//! The built-in vocabulary and tokenizers from files: ids, bytes, and text that must stay text.

// The lint knows test functions, not their helpers.
#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;

use gossamer_tokenizer::{EncodeCursor, Segment, Tokenizer, TokenizerError};
use proptest::prelude::*;

static O200K: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::o200k_harmony().unwrap());

/// A small byte-level BPE tokenizer with harmony's control tokens, trained and written as files are in the field.
fn small_tokenizer() -> &'static Tokenizer {
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{AddedToken, TokenizerBuilder};
    static SMALL: LazyLock<Tokenizer> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let corpus = dir.path().join("corpus.txt");
        std::fs::write(
            &corpus,
            "the end of the message is the end of the channel <|end|> <|end|>\n".repeat(50),
        )
        .unwrap();
        let controls = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"];
        let mut trainer = BpeTrainer::builder()
            .vocab_size(320)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(controls.iter().map(|name| AddedToken::from(*name, true)).collect())
            .build();
        let bytes = ByteLevel::new(false, true, true);
        let mut tokenizer: tokenizers::TokenizerImpl<
            BPE,
            tokenizers::NormalizerWrapper,
            ByteLevel,
            ByteLevel,
            ByteLevel,
        > = TokenizerBuilder::new()
            .with_model(BPE::default())
            .with_normalizer(None)
            .with_pre_tokenizer(Some(bytes))
            .with_post_processor(Some(bytes))
            .with_decoder(Some(bytes))
            .build()
            .unwrap();
        tokenizer.train_from_files(&mut trainer, vec![corpus.to_str().unwrap().to_owned()]).unwrap();
        tokenizer.save(dir.path().join("tokenizer.json"), false).unwrap();
        Tokenizer::load(dir.path(), 512).unwrap()
    });
    &SMALL
}

#[test]
fn the_built_in_vocabulary_has_the_published_ids() {
    assert_eq!(O200K.vocab_size(), 201_088);
    for (name, id) in [
        ("<|return|>", 200_002),
        ("<|constrain|>", 200_003),
        ("<|channel|>", 200_005),
        ("<|start|>", 200_006),
        ("<|end|>", 200_007),
        ("<|message|>", 200_008),
        ("<|call|>", 200_012),
    ] {
        assert_eq!(O200K.special_id(name), Some(id), "{name}");
        assert!(O200K.is_special(id));
        assert_eq!(O200K.token_bytes(id), name.as_bytes());
        assert_eq!(O200K.text_bytes(id), b"");
    }
    for (text, id) in [("analysis", 35644), ("final", 17196), ("assistant", 173_781), ("comment", 12606)] {
        assert_eq!(O200K.encode_ordinary(text), [id], "{text}");
        assert_eq!(O200K.text_bytes(id), text.as_bytes());
    }
    assert_eq!(O200K.encode_ordinary("\u{1F999}"), [4103, 99, 247]);
    assert_eq!(O200K.encode_ordinary("\u{13000}"), [172, 241, 222, 222]);
    assert_eq!(O200K.token_bytes(1_000_000), b"");
}

#[test]
fn the_name_of_a_control_token_in_a_text_is_text() {
    assert_eq!(O200K.encode_ordinary("<|end|>").len(), 5);
    assert_eq!(O200K.encode_with_special("<|end|>"), [200_007]);
    assert_eq!(
        O200K.split_special("a<|start|><|end|>뷁<|"),
        [
            Segment::Text("a".into()),
            Segment::Token(200_006),
            Segment::Token(200_007),
            Segment::Text("뷁<|".into())
        ]
    );
    let small = small_tokenizer();
    let end = small.special_id("<|end|>").unwrap();
    let ids = small.encode_ordinary("say <|end|> now<|end|>");
    assert!(!ids.contains(&end), "{ids:?}");
    assert_eq!(small.decode(&ids, true), "say <|end|> now<|end|>");
    assert_eq!(small.encode_with_special("<|end|>"), [end]);
}

#[test]
fn a_vocabulary_that_merges_up_to_a_control_token_still_gives_none() {
    // A file whose model can reach the name of a special token by merges.
    let dir = tempfile::tempdir().unwrap();
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "ab", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir.path(), 3).unwrap();
    assert_eq!(tokenizer.encode_ordinary("aabb"), [0, 0, 1, 1]);
    assert_eq!(tokenizer.encode_with_special("aabb"), [0, 2, 1]);
}

#[test]
fn the_special_tokens_of_a_file_are_known_by_name() {
    let small = small_tokenizer();
    let specials: Vec<_> = small.specials().map(|(name, _)| name).collect();
    assert_eq!(specials.len(), 5, "{specials:?}");
    assert_eq!(small.special_id("<|call|>"), None);
    for id in 0..small.vocab_size() as u32 {
        assert!(!small.token_bytes(id).is_empty(), "token {id} has no bytes");
    }
}

#[test]
fn what_cannot_be_loaded_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let load = || Tokenizer::load(dir.path(), 512).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(load().contains("--skip-tokenizer-init"), "{}", load());
    assert!(
        Tokenizer::load(dir.path(), 201_088).is_ok(),
        "gpt-oss without a file uses the built-in vocabulary"
    );
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(load().starts_with("expected a tokenizer in"), "{}", load());
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    assert!(load().contains("got WordLevel"), "{}", load());
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 512}, "merges": []}
    });
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    assert!(matches!(
        Tokenizer::load(dir.path(), 512),
        Err(TokenizerError::TooManyTokens { largest: 512, vocab_size: 512, .. })
    ));
}

/// A tokenizer.json with the vocabulary of gpt-oss, as it is published, after `change` was made to it.
fn published_file(change: impl FnOnce(&mut serde_json::Value)) -> (tempfile::TempDir, Tokenizer) {
    use serde_json::{Map, Value, json};
    // The printable alphabet of byte-level vocabularies.
    let mut shown: Vec<char> = (0..=255u8).map(char::from).collect();
    let hidden = (0..=255usize).filter(|b| !matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF));
    for (byte, code) in hidden.zip(0x100u32..) {
        shown[byte] = char::from_u32(code).unwrap();
    }
    let vocab: Map<String, Value> = (0..199_998)
        .map(|id| (O200K.token_bytes(id).iter().map(|&b| shown[b as usize]).collect(), json!(id)))
        .collect();
    let added: Vec<Value> =
        [(199_999, "<|endoftext|>"), (200_006, "<|start|>"), (200_018, "<|endofprompt|>")]
            .iter()
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
            })
            .collect();
    let mut file = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": tiktoken_rs::O200K_BASE_PAT_STR}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
        ]},
        "model": {"type": "BPE", "dropout": null, "ignore_merges": true, "vocab": vocab, "merges": []}
    });
    change(&mut file);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir.path(), 201_088).unwrap();
    (dir, tokenizer)
}

#[test]
fn the_published_file_of_gpt_oss_is_recognised_and_a_changed_one_is_not() {
    // The file has no merges, so only the built-in encoder makes more than single bytes of unknown words.
    let word = "tokenizations";
    let expected = O200K.encode_ordinary(word);
    let (_dir, published) = published_file(|_| {});
    assert_eq!(published.encode_ordinary(word), expected);
    assert_eq!(published.special_id("<|endofprompt|>"), Some(200_018));
    assert_eq!(published.special_id("<|reserved_200018|>"), None);
    assert_eq!(published.vocab_size(), 200_019);
    assert_eq!(published.text_bytes(201_000), b"");
    let (_dir, changed) = published_file(|file| {
        file["model"]["vocab"].as_object_mut().unwrap().remove("Ġthe");
    });
    assert_ne!(
        changed.encode_ordinary(word),
        expected,
        "a file with another vocabulary takes the general way"
    );
}

/// The tokenizer of the demo model, which the repository ships.
fn demo_tokenizer() -> &'static Tokenizer {
    static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| {
        Tokenizer::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/model").as_ref(), 3072).unwrap()
    });
    &DEMO
}

/// Texts that reach every alternative of the vocabulary's pattern.
fn awkward_text() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\n\n",
        "\u{a0}",
        "\u{3000}",
        "a",
        "Ab",
        "WORLD",
        "hello",
        "'s",
        "'LL",
        "'",
        "1",
        "123456",
        "...",
        "/",
        "//\n",
        "<|end|>",
        "<|",
        "뷁",
        "한국어",
        "é",
        "\u{301}",
        "𓀀",
        "🦙",
        "中文",
        "ǅ",
        "ª",
        "_",
        "-",
    ]);
    prop_oneof![prop::collection::vec(parts, 0..40).prop_map(|parts| parts.concat()), any::<String>(),]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn ids_are_those_of_the_reference_encoder(text in awkward_text()) {
        prop_assert_eq!(O200K.encode_ordinary(&text), tiktoken_rs::o200k_harmony_singleton().encode_ordinary(&text));
    }

    #[test]
    fn encoding_in_slices_changes_nothing(text in awkward_text(), budget in 1usize..30) {
        for tokenizer in [&*O200K, small_tokenizer(), demo_tokenizer()] {
            let mut cursor = EncodeCursor::new(vec![Segment::Text(text.clone())]);
            while !cursor.step(tokenizer, budget) {}
            prop_assert_eq!(cursor.into_ids(), tokenizer.encode_ordinary(&text));
        }
    }

    #[test]
    fn text_survives_encoding_and_holds_no_special_token(text in awkward_text()) {
        for tokenizer in [&*O200K, small_tokenizer(), demo_tokenizer()] {
            let ids = tokenizer.encode_ordinary(&text);
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
            prop_assert_eq!(tokenizer.decode(&ids, true), &*text);
        }
    }

    #[test]
    fn long_pieces_merge_like_short_ones(piece in "[ab]{90,300}") {
        prop_assert_eq!(O200K.encode_ordinary(&piece), tiktoken_rs::o200k_harmony_singleton().encode_ordinary(&piece));
    }
}

#[test]
fn hostile_texts_are_encoded_in_full() {
    for (tokenizer, size) in [(&*O200K, 1 << 19), (demo_tokenizer(), 1 << 17)] {
        for part in [" ", "a", "\n ", "뷁", "!", "<|"] {
            let mut text = part.repeat(size / part.len());
            text.push('x');
            let ids = tokenizer.encode_ordinary(&text);
            assert!(tokenizer.decode(&ids, true) == text, "{size} bytes of {part:?} came back changed");
        }
    }
}
