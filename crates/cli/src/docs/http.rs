//! Reference of the HTTP interfaces, from the OpenAPI descriptions of the services.
//!
//! Leaves out: `/metrics`, whose metrics are listed in the documents of the systems.

use super::markdown::{Page, anchor, code, escaped};
use super::schema::{array, base, entries};
use serde_json::Value;

/// Names of the systems with an HTTP interface for operators, each with its OpenAPI description.
pub fn descriptions() -> [(&'static str, String); 4] {
    [
        ("replicate", anabranch_replicate::openapi()),
        ("shuffle", anabranch_shuffle::openapi()),
        ("broker", anabranch_broker::openapi()),
        ("live", anabranch_live::controller::openapi()),
    ]
}

/// Methods of OpenAPI in the order of the pages.
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Returns a page that lists the interfaces, and a page for each interface.
pub fn pages() -> Vec<Page> {
    let lead = "Controllers answer operators and their own daemons by HTTP over mutual TLS. \
                [Operations](../docs/operations.md#metrics-and-the-api) shows a request with curl. \
                Each service answers `/openapi.json` with the description from which its page is made.";
    let mut first = Page::new("http.md", "HTTP interfaces", lead);
    let pages: Vec<_> = descriptions().into_iter().map(|(system, text)| page(system, &text)).collect();
    let row = |(page, info): &(Page, Info)| {
        [format!("[{}]({})", page.title, page.path), escaped(&info.title), escaped(&info.description)]
    };
    first.table(["system", "service", "purpose"], pages.iter().map(row));
    let mut all = vec![first];
    all.extend(pages.into_iter().map(|(page, _)| page));
    all
}

/// Title and description of an interface.
struct Info {
    title: String,
    description: String,
}

fn page(system: &str, description: &str) -> (Page, Info) {
    let api: Value = serde_json::from_str(description).expect("the service wrote it");
    let info = Info { title: text(&api["info"]["title"]), description: text(&api["info"]["description"]) };
    let lead = format!("{}. {}", escaped(&info.title), escaped(&info.description));
    let mut page = Page::new(format!("http/{system}.md"), system, &lead);
    let operations: Vec<_> = entries(&api["paths"])
        .flat_map(|(path, item)| METHODS.iter().map(move |method| (*method, path, &item[*method])))
        .filter(|(.., operation)| operation.is_object())
        .collect();
    let heading = |method: &str, path: &str| format!("{} {path}", method.to_uppercase());
    let row = |(method, path, operation): &(&str, &String, &Value)| {
        let heading = heading(method, path);
        let answers: Vec<_> = entries(&operation["responses"]).map(|(status, _)| status.as_str()).collect();
        [format!("[{}](#{})", code(&heading), anchor(&heading)), summary(operation), answers.join(", ")]
    };
    page.table(["request", "purpose", "answers"], operations.iter().map(row));
    for (method, path, operation) in operations {
        page.line(format_args!("\n## {}\n\n{}", code(heading(method, path)), summary(operation)));
        describe(&mut page, operation);
    }
    page.line("\n## Messages\n\nBodies are JSON. A field without *required* may be left out.");
    for (name, schema) in entries(&api["components"]["schemas"]) {
        page.line(format_args!("\n### {name}\n\n{}", escaped(&text(&schema["description"]))));
        fields(&mut page, schema);
    }
    (page, info)
}

/// Returns summary and description of an operation as one text.
fn summary(operation: &Value) -> String {
    let both = [text(&operation["summary"]), text(&operation["description"])];
    escaped(both.join(" ").trim())
}

/// Adds parameters, body and answers of an operation to the page.
fn describe(page: &mut Page, operation: &Value) {
    let parameters = array(&operation["parameters"]);
    if !parameters.is_empty() {
        page.table(
            ["parameter", "in", "type", "meaning"],
            parameters.iter().map(|parameter| {
                let schema = &parameter["schema"];
                let meaning = required(&parameter["required"] == true, &text(&parameter["description"]));
                [code(text(&parameter["name"])), text(&parameter["in"]), kind(schema), meaning]
            }),
        );
    }
    let bodies: Vec<_> = entries(&operation["requestBody"]["content"]).collect();
    for (media, body) in bodies {
        page.line(format_args!("\nBody: {} ({}).", kind(&body["schema"]), code(media)));
    }
    page.table(
        ["status", "meaning", "body"],
        entries(&operation["responses"]).map(|(status, answer)| {
            let body = entries(&answer["content"]).map(|(_, content)| kind(&content["schema"]));
            let body = body.collect::<Vec<_>>().join(", ");
            [status.clone(), escaped(&text(&answer["description"])), body]
        }),
    );
}

/// Adds the fields of a message, or its alternatives, to the page.
fn fields(page: &mut Page, schema: &Value) {
    if schema["properties"].is_object() {
        let names: Vec<&Value> = schema["required"].as_array().into_iter().flatten().collect();
        page.table(
            ["field", "type", "meaning"],
            entries(&schema["properties"]).map(|(name, field)| {
                let is_required = names.iter().any(|required| *required == name);
                [code(name), kind(field), required(is_required, &text(&field["description"]))]
            }),
        );
        return;
    }
    let alternatives = array(&schema["oneOf"]);
    if alternatives.is_empty() {
        page.line(format_args!("\nType: {}.", kind(schema)));
    }
    for alternative in alternatives {
        page.line(format_args!("\nOne alternative: {}", escaped(&text(&alternative["description"]))));
        if alternative["properties"].is_object() {
            fields(page, alternative);
        } else {
            page.line(format_args!("\nType: {}.", kind(alternative)));
        }
    }
}

fn required(is_required: bool, meaning: &str) -> String {
    let mark = if is_required { "*Required.* " } else { "" };
    format!("{mark}{}", escaped(meaning))
}

/// Describes the type of a value in words, with links to messages.
fn kind(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap_or(target);
        return format!("[{name}](#{})", anchor(name));
    }
    for list in ["oneOf", "anyOf", "allOf"] {
        if let Some(items) = schema[list].as_array() {
            let items: Vec<_> = items.iter().filter(|item| item["type"] != "null").map(kind).collect();
            return items.join(" or ");
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| code(text(value))).collect::<Vec<_>>().join(", ");
    }
    match base(schema) {
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        "object" if schema["properties"].is_object() => {
            let names: Vec<_> = entries(&schema["properties"])
                .map(|(name, field)| format!("{}: {}", code(name), kind(field)))
                .collect();
            format!("object with {}", names.join(", "))
        }
        name => name.to_owned(),
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| if value.is_null() { String::new() } else { value.to_string() }, str::to_owned)
}
