use super::*;
use serde_json::{Value, json};

/// Configuration of the 20b model, without the keys that have no bearing.
fn base() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 4, "hidden_size": 2880, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
        "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "sliding_window": 128, "swiglu_limit": 7.0, "rope_theta": 150000, "eos_token_id": 200002,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
                         "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false},
        "quantization_config": {"quant_method": "mxfp4"},
    })
}

fn load(config: &Value, generation: Option<Value>) -> Result<ModelConfig, ModelConfigError> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    if let Some(generation) = generation {
        std::fs::write(directory.path().join("generation_config.json"), generation.to_string()).unwrap();
    }
    ModelConfig::load(directory.path())
}

fn with(key: &str, value: Value) -> Value {
    let mut config = base();
    config[key] = value;
    config
}

#[test]
fn layers_alternate_where_the_file_does_not_say() {
    use LayerKind::{Full, Sliding};
    assert_eq!(load(&base(), None).unwrap().layers, [Sliding, Full, Sliding, Full]);
    let listed = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    assert_eq!(load(&with("layer_types", listed), None).unwrap().layers, [Full, Full, Sliding, Full]);
}

#[test]
fn generation_config_has_the_last_word_on_eos() {
    assert_eq!(load(&base(), None).unwrap().eos_token_ids, [200002]);
    let generation = json!({"eos_token_id": [200002, 199999, 200012]});
    assert_eq!(load(&base(), Some(generation)).unwrap().eos_token_ids, [200002, 199999, 200012]);
    assert_eq!(load(&base(), Some(json!({}))).unwrap().eos_token_ids, [200002]);
}

#[test]
fn either_name_of_the_experts_per_token_is_read() {
    let mut config = with("num_experts_per_tok", Value::Null);
    config["experts_per_token"] = json!(2);
    assert_eq!(load(&config, None).unwrap().experts_per_token, 2);
}

#[test]
fn rope_parameters_are_read_like_rope_scaling() {
    let mut config = base();
    let mut parameters = config["rope_scaling"].clone();
    parameters["rope_theta"] = json!(150000.0);
    config["rope_parameters"] = parameters;
    let object = config.as_object_mut().unwrap();
    object.remove("rope_scaling");
    object.remove("rope_theta");
    assert_eq!(load(&config, None).unwrap().rope, load(&base(), None).unwrap().rope);
}

#[test]
fn yarn_keeps_fast_frequencies_and_interpolates_slow_ones() {
    let rope = load(&base(), None).unwrap().rope;
    let frequencies = rope.inverse_frequencies(64);
    assert_eq!(frequencies.len(), 32);
    assert_eq!(frequencies[0], 1.0);
    let slowest = 150000f64.powf(-62.0 / 64.0) / 32.0;
    assert!((f64::from(frequencies[31]) / slowest - 1.0).abs() < 1e-6, "{}", frequencies[31]);
    // Between the borders 8.09 and 17.4 both parts count.
    let (kept, interpolated) = (150000f64.powf(-24.0 / 64.0), 150000f64.powf(-24.0 / 64.0) / 32.0);
    let middle = f64::from(frequencies[12]);
    assert!(interpolated < middle && middle < kept, "{interpolated} < {middle} < {kept}");
    assert!((rope.magnitude() - 1.346_573_6).abs() < 1e-6, "{}", rope.magnitude());
}

#[test]
fn refusals_name_the_file_and_the_key() {
    let yarn = |key: &str, value: Value| {
        let mut config = base();
        config["rope_scaling"][key] = value;
        config
    };
    let cases = [
        (with("architectures", json!(["LlamaForCausalLM"])), "'LlamaForCausalLM' is not supported"),
        (with("architectures", Value::Null), "'architectures' is missing"),
        (with("hidden_size", Value::Null), "'hidden_size' is missing"),
        (with("hidden_size", json!(100)), "'hidden_size': expected a multiple of 32"),
        (with("hidden_size", json!("2880")), "'hidden_size': expected a whole number"),
        (with("head_dim", json!(63)), "'head_dim': expected an even number"),
        (with("num_key_value_heads", json!(7)), "'num_key_value_heads': expected a divisor"),
        (with("num_experts_per_tok", json!(33)), "'num_experts_per_tok': expected at most"),
        (with("experts_per_token", json!(5)), "'experts_per_token': expected num_experts_per_tok's value 4"),
        (with("layer_types", json!(["full_attention"])), "'layer_types': expected num_hidden_layers = 4"),
        (
            with("layer_types", json!(["a", "b", "c", "d"])),
            "expected sliding_attention or full_attention, got a",
        ),
        (with("rms_norm_eps", json!(0)), "'rms_norm_eps': expected a number above 0"),
        (with("hidden_act", json!("gelu")), "'hidden_act': expected silu, got gelu"),
        (with("attention_bias", json!(false)), "'attention_bias': expected true"),
        (with("quantization_config", json!({"quant_method": "awq"})), "'quantization_config.quant_method'"),
        (with("eos_token_id", json!(201088)), "'eos_token_id': expected ids below vocab_size"),
        (with("rope_theta", Value::Null), "'rope_theta' is missing"),
        (yarn("rope_type", json!("linear")), "'rope_scaling.rope_type': expected yarn or default"),
        (yarn("factor", Value::Null), "'rope_scaling.factor' is missing"),
        (yarn("beta_slow", json!(64.0)), "'rope_scaling.beta_fast': expected more than beta_slow 64"),
    ];
    for (config, expected) in cases {
        let error = load(&config, None).expect_err(expected).to_string();
        assert!(
            error.contains(expected) && error.contains("config.json"),
            "expected '{expected}' in '{error}'"
        );
    }
}

#[test]
fn a_missing_or_broken_file_is_an_error_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let error = ModelConfig::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("cannot read") && error.contains("config.json"), "{error}");
    std::fs::write(directory.path().join("config.json"), "{").unwrap();
    let error = ModelConfig::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("EOF") && error.contains("config.json"), "{error}");
}
