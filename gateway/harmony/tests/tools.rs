//! JSON schemas as the model reads them.

mod common;

use gossamer_harmony::{Conversation, Piece, Tool, render};
use serde_json::{Value, json};

/// The definition of one function with these parameters.
fn check(parameters: Value, expected: &str) {
    let tool = Tool { name: "f".into(), description: None, parameters: Some(parameters) };
    let conversation = Conversation { tools: vec![tool], ..Conversation::default() };
    let pieces = render(&conversation).unwrap_or_default();
    let block = pieces.iter().find_map(|piece| match piece {
        Piece::Text(text) => text.split_once("namespace functions {\n\n")?.1.split_once("\n\n} // namespace"),
        Piece::Control(_) => None,
    });
    assert_eq!(block.map(|(definition, _)| definition), Some(expected));
}

fn check_property(schema: Value, expected: &str) {
    check(
        json!({"type": "object", "properties": {"p": schema}}),
        &format!("type f = (_: {{\n{expected}\n}}) => any;"),
    );
}

#[test]
fn scalar_types() {
    check_property(json!({"type": "string"}), "p?: string,");
    check_property(json!({"type": "integer"}), "p?: number,");
    check_property(json!({"type": "number"}), "p?: number,");
    check_property(json!({"type": "boolean"}), "p?: boolean,");
    check_property(json!({"type": "null"}), "p?: null,");
    check_property(json!({"type": ["integer", "string", "null"]}), "p?: number | string | null,");
    check_property(json!({"type": "string", "nullable": true}), "p?: string | null,");
    check_property(json!({"type": "banana"}), "p?: any,");
    check_property(json!({}), "p?: any,");
    check_property(json!(true), "p?: any,");
    check_property(json!({"const": 5}), "p?: 5,");
    check_property(json!({"enum": [1, "a", null]}), "p?: 1 | \"a\" | null,");
}

#[test]
fn required_fields_keep_the_clients_order() {
    check(
        json!({"type": "object", "required": ["zeta"], "properties": {
            "zeta": {"type": "string"}, "alpha": {"type": "string"}
        }}),
        "type f = (_: {\nzeta: string,\nalpha?: string,\n}) => any;",
    );
}

#[test]
fn descriptions_titles_examples_and_defaults_are_comments() {
    check_property(
        json!({"type": "string", "title": "T", "description": "D", "examples": ["a", 1], "default": "x"}),
        "// T\n//\n// D\n// Examples:\n// - \"a\"\np?: string, // default: \"x\"",
    );
    check_property(
        json!({"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}),
        "p?: \"celsius\" | \"fahrenheit\", // default: celsius",
    );
    check_property(json!({"type": "number", "default": -1}), "p?: number, // default: -1");
}

#[test]
fn arrays_and_objects_nest() {
    check_property(json!({"type": "array", "items": {"type": "string"}}), "p?: string[],");
    check_property(json!({"type": "array"}), "p?: Array<any>,");
    check_property(
        json!({"type": "object", "properties": {"q": {"type": "object", "properties": {"r": {"type": "string"}}}},
               "required": ["q"]}),
        "p?: {\n    q: {\n        r?: string,\n        },\n    },",
    );
    check(json!({"properties": {"q": {"type": "string"}}}), "type f = (_: {\nq?: string,\n}) => any;");
}

#[test]
fn alternatives() {
    check_property(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "p?: number | null,");
    check_property(json!({"allOf": [{"type": "integer"}]}), "p?: number,");
    check_property(
        json!({"description": "D", "default": "x", "oneOf": [
            {"type": "string", "description": "S"}, {"type": "integer", "description": "I", "default": 3}
        ]}),
        "// D\n// default: \"x\"\np?:\n | string\n | number // I default: 3\n,",
    );
    check_property(
        json!({"description": "D", "oneOf": [{"type": "string", "description": "D"}, {"type": "integer", "nullable": true}]}),
        "p?:\n | string\n | number | null\n,",
    );
    check(
        json!({"oneOf": [{"type": "string", "description": "S"}, {"type": "integer"}]}),
        "type f = (_: \n | string // S\n | number) => any;",
    );
}

#[test]
fn local_references_are_followed_and_recursion_ends() {
    check(
        json!({"type": "object", "properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "string"}}}),
        "type f = (_: {\np?: string,\n}) => any;",
    );
    check_property(json!({"$ref": "#/nowhere"}), "p?: any,");
    check_property(json!({"$ref": "https://example.com/x"}), "p?: any,");
    let mut list = json!({"type": "object", "properties": {"next": {"$ref": "#"}, "other": {"$ref": "#"}}});
    let tool = |parameters| Tool { name: "f".into(), description: None, parameters: Some(parameters) };
    for _ in 0..2 {
        let conversation = Conversation { tools: vec![tool(list.clone())], ..Conversation::default() };
        let size: usize = render(&conversation)
            .unwrap_or_default()
            .iter()
            .map(|piece| if let Piece::Text(text) = piece { text.len() } else { 0 })
            .sum();
        assert!(size > 0 && size < 100_000, "a recursive schema became {size} bytes");
        list = json!({"$ref": "#"});
    }
}
