//! The model card: a `README.md` beside the weights, as on the Hugging Face hub.
//!
//! It is for readers. The privacy statement in `privacy.json` is what `muffle verify` checks.

use crate::config::Config;
use crate::load::model::{LoadedModel, is_hub_model};
use crate::report::digits::{up, up_e};
use crate::report::statement::{FILE as STATEMENT, Statement};
use crate::run::model_files::saves_adapter;
use std::fmt::Write;

/// The name of the file.
pub const FILE: &str = "README.md";

/// Renders the card of a model.
pub(crate) fn render(statement: &Statement, config: &Config, model: &LoadedModel) -> String {
    let mut text = String::from("---\n");
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    let task = Task::of(model);
    if task != Task::Images {
        line("library_name: transformers");
    }
    line(&format!("pipeline_tag: {}", task.pipeline()));
    if is_hub_model(&config.model.source) {
        line(&format!("base_model: {}", config.model.source));
    }
    line("tags:\n- differential-privacy\n- muffle\n---\n");
    line("# Model card\n");
    line(&summary(statement));
    line("\n## Privacy\n");
    for paragraph in statement.words() {
        line(&format!("{paragraph}\n"));
    }
    for (title, list) in
        [("Covered", statement.covered()), ("Not covered", statement.not_covered())]
    {
        if !list.is_empty() {
            line(&format!("{title} by the guarantee:\n"));
            list.iter().for_each(|item| line(&format!("- {item}")));
            line("");
        }
    }
    line("| setting | value |\n|---|---|");
    for (name, value) in table(statement, config) {
        line(&format!("| {name} | {value} |"));
    }
    line(&format!(
        "\nThe statement is [`{STATEMENT}`]({STATEMENT}), with all charges. `muffle verify` \
         recomputes ε from them and compares the hashes of the weights:\n\n```console\n$ muffle \
         verify .\n```\n"
    ));
    line("## Use\n");
    line(task.usage());
    if saves_adapter(config) {
        line(
            "The folder `adapter` has the same changes as low-rank adapters, for the original \
             model:\n\n```python\nfrom peft import PeftModel\nmodel = \
             PeftModel.from_pretrained(base, \"DIR/adapter\")\n```",
        );
    }
    text
}

/// The first sentence: whether and how the training data are protected.
fn summary(statement: &Statement) -> String {
    match (statement.private, statement.epsilon, statement.delta) {
        (true, Some(epsilon), Some(delta)) => format!(
            "This model was trained with differential privacy: **ε = {}** at δ = {}.",
            up(epsilon, 3),
            up_e(delta)
        ),
        _ => "This model has **no privacy guarantee**.".into(),
    }
}

/// Settings by name.
fn table(statement: &Statement, config: &Config) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let (Some(epsilon), Some(delta)) = (statement.epsilon, statement.delta) {
        rows.push(("ε", up(epsilon, 3)));
        rows.push(("δ", up_e(delta)));
    }
    if let Some(unit) = statement.unit {
        let mut protected = unit.adjacency.to_string();
        if let Some(column) = &statement.person_column {
            let _ = write!(protected, ", persons by {column:?}");
        }
        rows.push(("adjacency", protected));
    }
    rows.push(("records", statement.records.to_string()));
    rows.push(("sampling", statement.sampling_in_words()));
    if let Some(multiplier) = statement.noise_multiplier {
        rows.push(("noise multiplier", format!("{multiplier:.4}")));
    }
    rows.push(("steps", statement.steps.to_string()));
    rows.push(("optimizer", config.optimizer.name().into()));
    rows.push(("randomness", statement.randomness.to_string()));
    rows
}

/// The task of a model, for the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Generation,
    Texts,
    Images,
}

impl Task {
    fn of(model: &LoadedModel) -> Self {
        match (&model.tokenizer, model.generates_text()) {
            (None, _) => Self::Images,
            (Some(_), true) => Self::Generation,
            (Some(_), false) => Self::Texts,
        }
    }

    fn pipeline(self) -> &'static str {
        match self {
            Self::Generation => "text-generation",
            Self::Texts => "text-classification",
            Self::Images => "image-classification",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Generation => {
                "```console\n$ muffle generate DIR --source \"…\"\n```\n\n```python\nfrom \
                 transformers import AutoModelForCausalLM, AutoTokenizer\ntokenizer = \
                 AutoTokenizer.from_pretrained(\"DIR\")\nmodel = \
                 AutoModelForCausalLM.from_pretrained(\"DIR\")\n```\n\nThe prompts of training \
                 have the template `prompt_template` in `config.json`.\n"
            }
            Self::Texts => {
                "```console\n$ muffle predict DIR --data FILE\n```\n\n```python\nfrom \
                 transformers import AutoModelForSequenceClassification, \
                 AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained(\"DIR\")\nmodel = \
                 AutoModelForSequenceClassification.from_pretrained(\"DIR\")\n```\n"
            }
            Self::Images => "```console\n$ muffle predict DIR --data FILE\n```\n",
        }
    }
}
