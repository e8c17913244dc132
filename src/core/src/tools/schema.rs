//! What a schema of arguments has to be, so that a function can be made of it.

use serde_json::Value;

use crate::error::{Error, ErrorKind, Result, Step};

/// Checks that `schema` describes an object, as far as the far side makes a signature of it.
///
/// # Errors
/// The first place that is not as JSON Schema has it.
pub fn check_schema(tool: &str, schema: &Value) -> Result<()> {
    let bad = |why: String| {
        Error::new(ErrorKind::BadInput, format!("the schema of the tool {tool:?} is not usable: {why}"))
            .at(Step::Parse)
            .with_hint(r#"it is the JSON schema of an object, such as {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}"#)
    };
    let Some(fields) = schema.as_object() else {
        return Err(bad(format!("it is {}, and no object", kind_of(schema))));
    };
    match fields.get("type") {
        None => {}
        Some(Value::String(text)) if text == "object" => {}
        Some(other) => return Err(bad(format!("its \"type\" is {other}, and has to be \"object\""))),
    }
    let no_properties = serde_json::Map::new();
    let properties = match fields.get("properties") {
        None => &no_properties,
        Some(Value::Object(properties)) => properties,
        Some(other) => return Err(bad(format!("its \"properties\" are {}, and no object", kind_of(other)))),
    };
    for (name, property) in properties {
        if !property.is_object() && !property.is_boolean() {
            return Err(bad(format!("the property {name:?} is {}, and no schema", kind_of(property))));
        }
    }
    let Some(required) = fields.get("required") else { return Ok(()) };
    let Some(required) = required.as_array() else {
        return Err(bad(format!("its \"required\" is {}, and no list of names", kind_of(required))));
    };
    for name in required {
        let Some(name) = name.as_str() else {
            return Err(bad(format!("its \"required\" has {name} in it, which is no name")));
        };
        if !properties.contains_key(name) {
            return Err(bad(format!("{name:?} is required and is none of its \"properties\"")));
        }
    }
    Ok(())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_no_schema_of_an_object_is_refused_by_its_place() {
        for (schema, why) in [
            (json!([]), "it is a list"),
            (json!({"type": "array"}), "\"type\" is \"array\""),
            (json!({"properties": []}), "\"properties\" are a list"),
            (json!({"properties": {"a": 1}}), "\"a\" is a number"),
            (json!({"required": "a"}), "\"required\" is a text"),
            (json!({"required": [1]}), "has 1 in it"),
            (json!({"properties": {"a": {}}, "required": ["b"]}), "\"b\" is required"),
        ] {
            let e = check_schema("t", &schema).unwrap_err();
            assert!(e.message().contains(why) && e.message().contains("\"t\""), "{schema}: {e}");
        }
        for schema in [json!({}), json!({"type": "object", "properties": {"a": true}, "required": ["a"]})] {
            check_schema("t", &schema).unwrap();
        }
    }
}
