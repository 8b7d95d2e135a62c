//! Tool definitions in the TypeScript-like form of the harmony specification.
//!
//! One function is one `type`; descriptions are comments above, defaults are comments behind, optional fields
//! carry `?`. What a model was not trained to read (`minimum`, `pattern` and their like) is left out. Beyond
//! the specification's own renderer, `anyOf`, `const`, `null` and local `$ref`s are understood instead of
//! becoming `any`.

use serde_json::{Map, Value};

use crate::conversation::Tool;

/// Local references followed in one schema; recursive ones end as `any`.
const MAX_REFERENCES: usize = 64;

/// Appends one function with the empty line that follows it.
pub fn write_function(out: &mut String, tool: &Tool) {
    for line in tool.description.as_deref().unwrap_or_default().lines() {
        out.push_str("// ");
        out.push_str(line);
        out.push('\n');
    }
    out.push_str("type ");
    out.push_str(&tool.name);
    match tool.parameters.as_ref().filter(|schema| !schema.is_null()) {
        None => out.push_str(" = () => any;\n\n"),
        Some(schema) => {
            out.push_str(" = (_: ");
            Writer { out, root: schema, references: 0 }.write_type(schema, 0);
            out.push_str(") => any;\n\n");
        }
    }
}

struct Writer<'a> {
    out: &'a mut String,
    root: &'a Value,
    references: usize,
}

impl<'a> Writer<'a> {
    fn write_type(&mut self, schema: &'a Value, indent: usize) {
        let schema = self.resolve(schema);
        if let Some(variants) = schema["oneOf"].as_array() {
            self.write_variants(variants, indent);
        } else if let Some(types) = schema["type"].as_array() {
            self.write_type_names(types);
        } else if let Some(name) = schema["type"].as_str() {
            self.write_named(name, schema, indent);
        } else if let Some(variants) = schema["anyOf"].as_array().filter(|v| !v.is_empty()) {
            self.write_union(variants, indent);
        } else if let Some([only]) = schema["allOf"].as_array().map(Vec::as_slice) {
            self.write_type(only, indent);
        } else if schema["properties"].is_object() {
            self.write_object(schema, indent);
        } else if let Some(values) = schema["enum"].as_array().filter(|v| !v.is_empty()) {
            self.write_joined(values.iter().map(Value::to_string));
        } else if let Some(value) = schema.get("const") {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str("any");
        }
    }

    /// Follows a local reference; what cannot be followed becomes `null`, whose type is `any`.
    fn resolve(&mut self, schema: &'a Value) -> &'a Value {
        static UNKNOWN: Value = Value::Null;
        let mut schema = schema;
        while let Some(reference) = schema["$ref"].as_str() {
            self.references += 1;
            let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            schema = match target {
                Some(target) if self.references <= MAX_REFERENCES => target,
                _ => return &UNKNOWN,
            };
        }
        schema
    }

    fn write_named(&mut self, name: &str, schema: &'a Value, indent: usize) {
        match name {
            "object" => self.write_object(schema, indent),
            "array" => match schema.get("items") {
                Some(items) => {
                    self.write_type(items, indent);
                    self.out.push_str("[]");
                }
                None => self.out.push_str("Array<any>"),
            },
            "string" => {
                let values = schema["enum"].as_array().into_iter().flatten();
                let names: Vec<String> =
                    values.filter_map(Value::as_str).map(|name| format!("\"{name}\"")).collect();
                if names.is_empty() { self.out.push_str("string") } else { self.write_joined(names) }
            }
            _ => self.out.push_str(type_name(name).unwrap_or("any")),
        }
    }

    fn write_type_names(&mut self, types: &[Value]) {
        let names: Vec<&str> = types
            .iter()
            .filter_map(Value::as_str)
            .map(|name| if name == "integer" { "number" } else { name })
            .collect();
        if names.is_empty() { self.out.push_str("any") } else { self.write_joined(names) }
    }

    fn write_joined<S: AsRef<str>>(&mut self, parts: impl IntoIterator<Item = S>) {
        for (i, part) in parts.into_iter().enumerate() {
            self.out.push_str(if i == 0 { "" } else { " | " });
            self.out.push_str(part.as_ref());
        }
    }

    /// `anyOf`, on one line.
    fn write_union(&mut self, variants: &'a [Value], indent: usize) {
        for (i, variant) in variants.iter().enumerate() {
            self.out.push_str(if i == 0 { "" } else { " | " });
            self.write_type(variant, indent);
        }
    }

    /// `oneOf` outside of a property: a line for each variant.
    fn write_variants(&mut self, variants: &'a [Value], indent: usize) {
        for variant in variants {
            self.out.push('\n');
            self.push_indent(indent);
            self.out.push_str(" | ");
            self.write_nullable(variant, indent + 3);
            let default = variant.get("default").map(|value| format!("default: {value}"));
            self.write_trailing(variant["description"].as_str(), default);
        }
    }

    fn write_object(&mut self, schema: &'a Value, indent: usize) {
        if let Some(description) = schema["description"].as_str() {
            self.write_comment(description, indent);
        }
        self.out.push_str("{\n");
        if let Some(properties) = schema["properties"].as_object() {
            let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
            self.write_properties(properties, required, indent);
        }
        self.push_indent(indent);
        self.out.push('}');
    }

    fn write_properties(&mut self, properties: &'a Map<String, Value>, required: &[Value], indent: usize) {
        for (name, schema) in properties {
            let optional = if required.iter().any(|r| r.as_str() == Some(name)) { "" } else { "?" };
            if let Some(title) = schema["title"].as_str() {
                self.write_comment(title, indent);
                self.push_indent(indent);
                self.out.push_str("//\n");
            }
            let variants = schema["oneOf"].as_array();
            let description = schema["description"].as_str();
            if variants.is_none()
                && let Some(description) = description
            {
                self.write_comment(description, indent);
            }
            self.write_examples(schema, indent);
            match variants {
                Some(variants) => self.write_choice(name, optional, schema, variants, indent),
                None => {
                    self.push_indent(indent);
                    self.out.push_str(name);
                    self.out.push_str(optional);
                    self.out.push_str(": ");
                    self.write_nullable(schema, indent + 4);
                    self.out.push(',');
                    self.write_trailing(None, default_of(schema));
                    self.out.push('\n');
                }
            }
        }
    }

    fn write_examples(&mut self, schema: &Value, indent: usize) {
        let Some(examples) = schema["examples"].as_array().filter(|examples| !examples.is_empty()) else {
            return;
        };
        self.write_comment("Examples:", indent);
        for example in examples.iter().filter_map(Value::as_str) {
            self.write_comment(&format!("- \"{example}\""), indent);
        }
    }

    /// A property that is one of several types, one to a line. A description that the property shares with
    /// its first variant is written once.
    fn write_choice(
        &mut self,
        name: &str,
        optional: &str,
        schema: &'a Value,
        variants: &'a [Value],
        indent: usize,
    ) {
        let description = schema["description"].as_str();
        let of_first = variants.first().and_then(|variant| variant["description"].as_str());
        let above = description.filter(|_| description != of_first);
        if let Some(description) = above {
            self.write_comment(description, indent);
        }
        if let Some(default) = default_of(schema) {
            self.write_comment(&default, indent);
        }
        self.push_indent(indent);
        self.out.push_str(name);
        self.out.push_str(optional);
        self.out.push_str(":\n");
        for (i, variant) in variants.iter().enumerate() {
            self.push_indent(indent);
            self.out.push_str(" | ");
            self.write_nullable(variant, indent + 3);
            let covered = i == 0 && above.is_some();
            let own = variant["description"].as_str().filter(|own| !covered && Some(*own) != description);
            self.write_trailing(own, default_of(variant));
            self.out.push('\n');
        }
        self.push_indent(indent);
        self.out.push_str(",\n");
    }

    fn write_nullable(&mut self, schema: &'a Value, indent: usize) {
        let before = self.out.len();
        self.write_type(schema, indent);
        if schema["nullable"] == true && !self.out[before..].contains("null") {
            self.out.push_str(" | null");
        }
    }

    fn write_trailing(&mut self, description: Option<&str>, default: Option<String>) {
        let parts: Vec<&str> = description.into_iter().chain(default.as_deref()).collect();
        if !parts.is_empty() {
            self.out.push_str(" // ");
            self.out.push_str(&parts.join(" "));
        }
    }

    fn write_comment(&mut self, text: &str, indent: usize) {
        self.push_indent(indent);
        self.out.push_str("// ");
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn push_indent(&mut self, indent: usize) {
        self.out.extend(std::iter::repeat_n(' ', indent));
    }
}

fn type_name(name: &str) -> Option<&str> {
    match name {
        "integer" | "number" => Some("number"),
        "boolean" | "null" => Some(name),
        _ => None,
    }
}

/// The default of a schema as a comment: names of an enumeration bare, other strings quoted, all else as JSON.
fn default_of(schema: &Value) -> Option<String> {
    let default = schema.get("default")?;
    let is_enum = schema["enum"].as_array().is_some_and(|values| !values.is_empty());
    Some(match default.as_str() {
        Some(text) if is_enum => format!("default: {text}"),
        Some(text) => format!("default: \"{text}\""),
        None => format!("default: {default}"),
    })
}
