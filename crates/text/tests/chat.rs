//! Chat templates: golden texts of `transformers`, files, limits.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use text::{ChatTemplate, Error};

/// The simplest template: questions and answers on lines of their own.
const LINES: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n\
    {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// Golden texts by `transformers` (peers/golden_chat.py).
#[test]
fn chats_match_those_of_transformers() {
    let golden: Value = serde_json::from_str(include_str!("golden/chat.json")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let mut formatted = 0;
    for case in golden.as_array().unwrap() {
        let tokens: Vec<(&str, String)> = case["tokens"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, token)| (name.as_str(), text(token)))
            .collect();
        let template = ChatTemplate::new(case["template"].as_str().unwrap(), &tokens).unwrap();
        for chat in case["chats"].as_array().unwrap() {
            let [question, answer, expected, whole] =
                ["question", "answer", "prompt", "whole"].map(|key| text(&chat[key]));
            assert_eq!(template.prompt(&question).unwrap(), expected, "{}", case["name"]);
            let (prompt, rest) = template.format(&question, &answer).unwrap();
            assert_eq!((prompt.as_str(), prompt.clone() + &rest), (expected.as_str(), whole));
            formatted += 1;
        }
    }
    assert_eq!(formatted, 18);
}

fn open(files: &[(&str, &str)]) -> text::Result<ChatTemplate> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    ChatTemplate::open(folder.path())
}

#[test]
fn templates_are_read_from_the_files_of_a_tokenizer() {
    let config = |template: Value| {
        json!({"eos_token": {"content": "<end>"}, "bos_token": null, "chat_template": template})
            .to_string()
    };
    let one = config(json!(LINES));
    let several = config(json!([
        {"name": "tool_use", "template": "{{ broken"},
        {"name": "default", "template": LINES},
    ]));
    let unused = config(json!("{{ broken"));
    for files in [
        &[("tokenizer_config.json", one.as_str())][..],
        &[("tokenizer_config.json", several.as_str())],
        &[("tokenizer_config.json", unused.as_str()), ("chat_template.jinja", LINES)],
    ] {
        let template = open(files).unwrap();
        assert_eq!(template.format("a", "b").unwrap().1, "b<end>\n");
        assert_eq!(template.around_answer(), ("", "<end>\n"));
    }
}

#[test]
fn unusable_templates_are_refused() {
    let message = |files: &[(&str, &str)]| {
        let message = open(files).unwrap_err().to_string();
        assert!(!message.contains(char::is_control), "{message:?}");
        message
    };
    assert!(message(&[]).contains("expected chat_template.jinja, or the key"));
    assert!(message(&[("tokenizer_config.json", "{")]).contains("tokenizer_config.json: EOF"));
    assert!(message(&[("tokenizer_config.json", "{\"chat_template\":1}")]).contains("neither"));
    for (template, part) in [
        ("{{ broken", "syntax error"),
        ("", "does not begin with the generation prompt"),
        ("{{ messages[0].content }}", "does not begin with the generation prompt"),
        ("{{ raise_exception('no \x07 chats') }}", "no \u{fffd} chats"),
        ("{{ strftime_now('%Y') }}", "unknown function"),
        ("{% include 'secret' %}", "secret"),
    ] {
        let message = message(&[("chat_template.jinja", template)]);
        assert!(message.contains(part), "{template}: {message}");
    }
}

/// Time, output and nesting of an untrusted template are limited.
#[test]
fn resources_are_limited() {
    for template in [
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'chat' %}",
        &"x".repeat((1 << 20) + 1),
    ] {
        assert!(ChatTemplate::new(template, &[]).is_err(), "{}", &template[..20]);
    }
}

/// Messages about a text do not show it, not even if the template raises it.
#[test]
fn messages_do_not_show_texts() {
    let template = format!(
        "{{% if 'secret' in messages[0].content %}}\
         {{{{ raise_exception(messages[0].content) }}}}{{% endif %}}{LINES}"
    );
    let template = ChatTemplate::new(&template, &[]).unwrap();
    for error in
        [template.prompt("my secret").unwrap_err(), template.format("my secret", "x").unwrap_err()]
    {
        assert!(matches!(error, Error::FormatChat) && !error.to_string().contains("secret"));
    }
}
