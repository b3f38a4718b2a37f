//! Templates of texts with a source: stored with the model, and used for evaluation and generation.

#![allow(clippy::unwrap_used)]

#[path = "support/small_run.rs"]
mod small_run;

use data::{Content, Prepared, Record};
use engine::{Input, Target};
use muffle::load::data::{Split, rows};
use muffle::run::{Silent, train};
use muffle::{LoadedModel, Outcome, evaluate};
use std::path::Path;

const CHAT: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n\
    {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// Trains for three steps with a template, in `place/run`.
fn trained(place: &Path, template: &str) -> Result<Outcome, muffle::Error> {
    let config = small_run::config(place, "");
    let folder = place.join("tokenizer");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(place.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let files = serde_json::json!({"eos_token": "<eos>", "chat_template": CHAT});
    std::fs::write(folder.join("tokenizer_config.json"), files.to_string()).unwrap();
    let config = [
        format!("model.tokenizer={}", folder.display()),
        format!("data.template={template:?}"),
        "training.steps=3".into(),
        "evaluation.score=true".into(),
        "evaluation.test_examples=4".into(),
    ]
    .iter()
    .fold(config, |config, change| config.with(change).unwrap());
    train(&config, &place.join("run"), &mut Silent)
}

fn record(source: &str, target: &str) -> Record {
    let content = Content::Text {
        source: Some(source.into()),
        target: target.into(),
        references: Vec::new(),
    };
    Record { content, group: None, line: 1 }
}

/// A saved model has the prompts and the figures of its training, for each kind of template.
#[test]
fn saved_models_use_the_template_of_their_training() {
    for (template, stored, prompt, learned) in [
        ("auto", "{source}\n{target}", "a b\n", "c"),
        ("paper", "paper", " a b ", " c "),
        ("Q: {source}\nA: {target} .", "Q: {source}\nA: {target} .", "Q: a b\nA:", " c ."),
        ("chat", "chat", "<user>a b\n<assistant>", "c"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let outcome = trained(place.path(), template).unwrap();
        let run = place.path().join("run");
        let saved = std::fs::read_to_string(run.join("model/config.json")).unwrap();
        let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
        assert_eq!(saved["prompt_template"], stored);
        let mut model =
            LoadedModel::open_for_inference(run.to_str().unwrap(), &mut |_| ()).unwrap();
        let tokenizer = model.tokenizer.as_ref().unwrap();
        let preparation = model.preparation(&[], 129);
        let given = preparation.prompt("a b").unwrap();
        let Prepared::Example(example) = preparation.example(&record("a b", "c")).unwrap() else {
            panic!("an example")
        };
        let (Input::Tokens(tokens), Target::Next(targets)) =
            (&example.parts()[0].input, &example.parts()[0].target)
        else {
            panic!("a text")
        };
        // The prompt of generation is the part of the example that is not learned.
        assert!(tokens.starts_with(&given), "{template}");
        let unlearned = targets.iter().take_while(|&&target| target == Target::NONE).count();
        assert_eq!(unlearned + 1, given.len(), "{template}");
        // Special tokens are not decoded.
        assert_eq!(tokenizer.decode(&given).unwrap(), prompt);
        assert_eq!(tokenizer.decode(&tokens[given.len()..]).unwrap(), learned);
        assert_eq!(tokens.last(), tokenizer.token_id("<eos>").as_ref(), "{template}");
        let mut config = small_run::config(place.path(), "").data;
        config.template = muffle::config::Auto::Auto;
        let test = || rows(&config, Split::Validation).unwrap().unwrap();
        let mut network = model.network.new_instance();
        let params = model.params.clone();
        let scores = evaluate::rows(&mut network, &params, &preparation, test(), 4).unwrap();
        let known = outcome.scores.unwrap();
        assert!(
            (scores.nll.unwrap() - known.nll.unwrap()).abs() < 1e-6,
            "{template}: {scores:?} {known:?}"
        );
        let settings = (&small_run::config(place.path(), "").evaluation).into();
        let texts = evaluate::generate(&mut model, &params, test(), settings, 4, &mut |_| ());
        assert_eq!(texts.unwrap(), outcome.texts, "{template}");
        // Another template changes the figures.
        model.set_template(&"{source} ; {target}".parse().unwrap()).unwrap();
        let preparation = model.preparation(&[], 129);
        let other = evaluate::rows(&mut network, &params, &preparation, test(), 4).unwrap();
        assert!((other.nll.unwrap() - scores.nll.unwrap()).abs() > 1e-6, "{template}");
    }
}

#[test]
fn unusable_templates_are_refused() {
    let refused = |template: &str| {
        let place = tempfile::tempdir().unwrap();
        trained(place.path(), template).unwrap_err().to_string()
    };
    let long = format!("{}{{source}} {{target}}", "word ".repeat(300));
    let message = refused(&long);
    assert!(message.contains("data.max_length: expected at least"), "{message}");
    let place = tempfile::tempdir().unwrap();
    let config = small_run::config(place.path(), "data.template=chat");
    let message = train(&config, &place.path().join("run"), &mut Silent).unwrap_err().to_string();
    assert!(message.contains("data.template: \"chat\" needs the folder"), "{message}");
    let invalid = muffle::Config::parse("[data]\ntemplate = \"{source}\"").unwrap_err().to_string();
    assert!(invalid.contains("data.template: expected \"paper\", \"chat\""), "{invalid}");
    assert!(invalid.contains("got {target} 0 times"), "{invalid}");
}
