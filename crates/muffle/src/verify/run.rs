//! Checks of a statement against the other files of its run.

use super::{Failure, Finding, Verdict, close, gradient_blocks, lost_steps};
use crate::LoadedModel;
use crate::Plan;
use crate::Statement;
use crate::config::{Config, ExternalModel};
use crate::report;
use crate::report::Marking;
use crate::run::chain::{Chain, ChainError};
use crate::run::folder::Folder;
use crate::run::history::{self, BestFigures, HistoryEntry};
use crate::run::ledger_file::{LEDGER, SealedMark};
use crate::run::plan_file::RunPlan;
use crate::run::result::{RESULT, RunResult, SAMPLES};
use crate::run::selection::selected_step;
use crate::run::snapshot::{self, Snapshot};
use accounting::Event;
use protocol::{Params, Role, Trainable};
use serde::Serialize;
use serde_json::Value;

const CHECKPOINTS: &str = "checkpoints";

/// The largest relative difference between a noise multiplier and the recomputed one.
///
/// Calibration searches to a precision of 1e-6; on another machine the search may end on the other
/// side of the solution.
const SIGMA_TOLERANCE: f64 = 3e-6;

/// The maximum number of steps for which a plan is recomputed.
const MAX_STEPS: f64 = 1e8;

/// The maximum number of blocks for which a plan is recomputed.
const MAX_BLOCKS: u64 = 1 << 20;

/// Checks a statement against the other files of its run.
pub(super) fn check(verdict: &mut Verdict, folder: &Folder, statement: &Statement) {
    let config = Config::read(&folder.join("config.toml"));
    match &config {
        Ok(config) => match recompute_plan(config, statement) {
            Ok(plan) => {
                verdict.add("plan", check_plan(&plan, statement));
                match RunPlan::read(folder) {
                    Ok(Some(stated)) => verdict.add("plan file", check_plan_file(stated, &plan)),
                    Ok(None) => verdict.add_missing("plan file", "plan.json is missing"),
                    Err(error) => verdict.add("plan file", Err(error.into())),
                }
                verdict.add("statement", check_statement(config, plan, statement));
            }
            Err(failure) => {
                let repeated = Failure::new(failure.to_string());
                verdict.add("plan", Err(failure));
                verdict.add("statement", Err(repeated));
            }
        },
        Err(error) => verdict.add("plan", Err(Failure::new(error.to_string()))),
    }
    match folder.join(LEDGER).exists() {
        true => verdict.add("ledger file", check_ledger_file(folder, statement)),
        false => verdict.add_missing("ledger file", "ledger.json is missing"),
    }
    match folder.sealed().exists() {
        true => verdict.add("sealed mark", check_sealed_mark(folder)),
        false => verdict.add_out_of_reach(
            "sealed mark",
            "removed when the run was finished; until then it had the position of the ledger",
        ),
    }
    let Ok(config) = &config else { return };
    match folder.join(RESULT).exists() {
        true => verdict.add("result", check_result(folder, config, statement)),
        false => verdict.add_missing(
            "result",
            "result.json is missing: the run is not finished (muffle resume), or the file \
             was removed",
        ),
    }
    match folder.join(history::FILE).exists() {
        true => verdict.add("history", check_history(folder, config, statement)),
        false => verdict.add_missing("history", "history.jsonl is missing"),
    }
    match has_checkpoints(folder) {
        true => verdict.add(CHECKPOINTS, check_checkpoint(folder, config, statement)),
        false => verdict.add_missing(CHECKPOINTS, "the folder has no checkpoint"),
    }
    let needed =
        [RESULT, history::FILE, SAMPLES].into_iter().find(|name| !folder.join(name).exists());
    match (folder.join(report::FILE).exists(), needed) {
        (true, None) => verdict.add("report", check_report(folder)),
        (true, Some(name)) => verdict
            .add_missing("report", &format!("report.html cannot be recomputed without {name}")),
        (false, _) => {
            verdict.add_missing("report", "report.html is missing; muffle report writes it")
        }
    }
}

/// Recomputes the plan from the configuration.
fn recompute_plan(config: &Config, statement: &Statement) -> Result<Plan, Failure> {
    Plan::check(config)?;
    let epochs = config.training.epochs.or(3.0);
    let steps = config
        .training
        .steps
        .given()
        .map_or(epochs * statement.records as f64 / statement.lot_size, |steps| *steps as f64);
    if !(steps <= MAX_STEPS) {
        return Err(Failure::new(format!(
            "config.toml: expected at most {MAX_STEPS} steps, got {steps}"
        )));
    }
    let tensors = placeholders(config, statement)?;
    Plan::new(config, statement.records, &tensors)
        .map_err(|error| Failure::new(format!("config.toml: {error}")))
}

/// Creates placeholder tensors with as many blocks as the model has.
///
/// A plan depends on no other property of the tensors.
fn placeholders(config: &Config, statement: &Statement) -> Result<Vec<Trainable>, Failure> {
    let blocks = statement.ledger.events().runs().iter().find_map(|(event, _)| match event {
        Event::Gaussian { release, .. } => gradient_blocks(release, statement.noise_multiplier?),
        _ => None,
    });
    let blocks = blocks.unwrap_or(1);
    if blocks > MAX_BLOCKS {
        return Err(Failure::new(format!(
            "charges: expected at most {MAX_BLOCKS} blocks, got {blocks}"
        )));
    }
    let tensor = |role| Trainable::new("", [1, 1], role);
    Ok(match config.optimizer.entry().needs_pairs {
        true => vec![tensor(Role::Left(1)), tensor(Role::Right(0))],
        false => (0..blocks).map(|_| tensor(Role::Hidden)).collect(),
    })
}

/// Whether two noise multipliers are the same up to the precision of a calibration.
fn sigma_agrees(a: f64, b: f64) -> bool {
    (a - b).abs() <= SIGMA_TOLERANCE * b
}

/// Checks that noise and steps are those of the plan, and that all charges are in it.
fn check_plan(plan: &Plan, statement: &Statement) -> Finding {
    if let Some(sigma) =
        statement.noise_multiplier.filter(|sigma| !sigma_agrees(*sigma, plan.sigma.gradient))
    {
        return Err(Failure::new(format!(
            "config.toml gives σ = {}, not the stated {sigma}",
            plan.sigma.gradient
        )));
    }
    if statement.steps > plan.steps {
        return Err(Failure::new(format!(
            "config.toml gives {} steps, not the stated {}",
            plan.steps, statement.steps
        )));
    }
    let same = |a: &Event, b: &Event| match (a, b) {
        (Event::Gaussian { lots: a, release: x }, Event::Gaussian { lots: b, release: y }) => {
            let same_blocks = x
                .blocks()
                .iter()
                .zip(y.blocks())
                .all(|((x, n), (y, m))| n == m && sigma_agrees(x.get(), y.get()));
            a == b && x.blocks().len() == y.blocks().len() && same_blocks
        }
        _ => a == b,
    };
    let mut remaining: Vec<(&Event, u64)> =
        plan.events.runs().iter().map(|(event, count)| (event, *count)).collect();
    for (event, count) in statement.ledger.events().runs() {
        match remaining.iter_mut().find(|(known, left)| same(event, known) && *left >= *count) {
            Some((_, left)) => *left -= count,
            None => {
                return Err(Failure::new(format!(
                    "the ledger has {count} charges of {event}, which config.toml does not plan"
                )));
            }
        }
    }
    let sigma = statement.noise_multiplier.map_or(String::new(), |sigma| format!(", σ = {sigma}"));
    Ok(format!(
        "{} steps, lots of {}{sigma} follow from config.toml",
        plan.steps,
        statement.lot_size.round()
    ))
}

/// Checks that `plan.json` has the numbers of the recomputed plan.
///
/// The board shows them for a run that is not finished.
fn check_plan_file(stated: RunPlan, plan: &Plan) -> Finding {
    let mut expected = RunPlan::from(plan);
    if let (Some(a), Some(b)) = (stated.noise_multiplier, expected.noise_multiplier)
        && sigma_agrees(a, b)
    {
        expected.noise_multiplier = stated.noise_multiplier;
    }
    if let (Some(a), Some(b)) = (stated.promised_epsilon, expected.promised_epsilon)
        && close(a, b)
    {
        expected.promised_epsilon = stated.promised_epsilon;
    }
    if expected == stated {
        return Ok("the numbers of the plan".into());
    }
    Err(Failure::new(format!(
        "config.toml gives another {}",
        differing_fields(&stated, &expected).join(", ")
    )))
}

/// Checks that the statement is the one that follows from configuration and ledger.
fn check_statement(config: &Config, plan: Plan, statement: &Statement) -> Finding {
    let mut plan = plan;
    if let Some(sigma) = statement.noise_multiplier {
        plan.sigma.gradient = sigma;
    }
    let mut expected = Statement::new(
        config,
        &plan,
        &statement.chain()?,
        statement.steps,
        statement.model_step,
        statement.coverage.isolation,
        statement.weights_sha256.clone(),
    )?;
    if let (Some(epsilon), Some(stated)) = (expected.epsilon, statement.epsilon)
        && close(stated, epsilon)
    {
        expected.epsilon = statement.epsilon;
    }
    if let (Some(epsilon), Some(stated)) = (expected.promised_epsilon, statement.promised_epsilon)
        && close(stated, epsilon)
    {
        expected.promised_epsilon = statement.promised_epsilon;
    }
    if expected == *statement {
        return Ok("the same as recomputed from config.toml and the ledger".into());
    }
    Err(Failure::new(format!(
        "config.toml and the ledger give another {}",
        differing_fields(statement, &expected).join(", ")
    )))
}

/// The fields in which two documents of one type differ.
fn differing_fields<T: Serialize>(a: &T, b: &T) -> Vec<String> {
    let (Ok(Value::Object(a)), Ok(Value::Object(b))) =
        (serde_json::to_value(a), serde_json::to_value(b))
    else {
        return vec!["JSON form".into()];
    };
    a.into_iter().filter(|(key, value)| b.get(key) != Some(value)).map(|(key, _)| key).collect()
}

/// Makes a failure about the ledger in the folder of the run.
fn ledger_failure(source: ChainError) -> Failure {
    Failure::LedgerFile { file: LEDGER, source }
}

/// Checks that the ledger of the run is the stated one, and closes with this statement.
fn check_ledger_file(folder: &Folder, statement: &Statement) -> Finding {
    let text = folder.read(LEDGER)?.unwrap_or_default();
    let chain = Chain::parse(&text).map_err(ledger_failure)?;
    let stated = statement.chain()?;
    chain.check(&stated.mark(), "the statement").map_err(ledger_failure)?;
    if chain.ledger() != stated.ledger() || chain.sessions() != stated.sessions() {
        return Err(Failure::new(format!(
            "{LEDGER}: expected {} charges in {} sessions, as stated; got {} in {}",
            stated.charges(),
            stated.sessions().len(),
            chain.charges(),
            chain.sessions().len()
        )));
    }
    let closing = chain.closing().ok_or_else(|| {
        Failure::new(format!("{LEDGER} has no closing entry: the run is not finished"))
    })?;
    let expected = statement.closing()?;
    for (name, same) in [
        ("weights", closing.weights_sha256 == expected.weights_sha256),
        ("configuration", closing.config_sha256 == expected.config_sha256),
        ("privacy statement", closing.statement_sha256 == expected.statement_sha256),
    ] {
        if !same {
            return Err(Failure::new(format!("{LEDGER} closes with the hash of another {name}")));
        }
    }
    Ok(format!(
        "{LEDGER} has the same charges, and closes with the hashes of weights, configuration and \
         statement"
    ))
}

/// Checks that the ledger contains the sealed mark, which exists until the run is finished.
fn check_sealed_mark(folder: &Folder) -> Finding {
    let text = folder.read(LEDGER)?.ok_or_else(|| Failure::new(format!("{LEDGER} is missing")))?;
    let chain = Chain::parse(&text).map_err(ledger_failure)?;
    let mark = SealedMark::read(folder)?;
    chain.check(&mark.ledger, "the sealed mark")?;
    Ok("the ledger contains it; muffle resume removes the private state of the run".into())
}

/// Checks that `result.json` has the figures of the statement.
fn check_result(folder: &Folder, config: &Config, statement: &Statement) -> Finding {
    let result =
        RunResult::read(folder)?.ok_or_else(|| Failure::new(format!("{RESULT} is missing")))?;
    let mut chain = statement.chain()?;
    chain.close(statement.closing()?)?;
    let expected = RunResult {
        figures: config.data.publicity().into(),
        ..RunResult::new(
            statement,
            &chain,
            config.optimizer.name(),
            result.out.clone(),
            result.metrics.clone(),
        )
    };
    let best = BestFigures::of(&history::read(folder, u64::MAX)?);
    if folder.join(history::FILE).exists()
        && result.metrics != result.metrics.clone().with_best(best)
    {
        return Err(Failure::new(format!(
            "{RESULT}: the best figures are not those of {}",
            history::FILE
        )));
    }
    match differing_fields(&result, &expected).as_slice() {
        [] => Ok(format!("{RESULT} has the same figures")),
        keys => Err(Failure::new(format!("{RESULT}: not as stated: {}", keys.join(", ")))),
    }
}

/// Checks ε and the selection of the model's parameters.
///
/// ε starts at zero, stays within the promise and ends at the stated value.
fn check_history(folder: &Folder, config: &Config, statement: &Statement) -> Finding {
    let text = folder.read(history::FILE)?.unwrap_or_default();
    let entries = history::parse(&text)
        .map_err(|error| Failure::new(format!("{}: {error}", history::FILE)))?;
    let marking: Marking = config.data.publicity().into();
    let wrong = |entry: &HistoryEntry, message: &str| {
        Err(Failure::new(format!("{}, step {}: {message}", history::FILE, entry.step)))
    };
    for (index, entry) in entries.iter().enumerate() {
        if entry.step > statement.steps || index > 0 && entry.step <= entries[index - 1].step {
            return wrong(entry, "out of order");
        }
        if entry.figures != marking {
            return wrong(entry, "the marking of figures is not that of config.toml");
        }
        let in_order = match (entry.epsilon, statement.promised_epsilon) {
            // Before the first step ε is positive only if steps were lost in an interruption.
            (Some(epsilon), Some(promised)) => {
                let lost = lost_steps(statement) > 0;
                epsilon <= promised
                    && if entry.step == 0 && !lost {
                        epsilon == 0.0
                    } else {
                        epsilon > 0.0 || entry.step == 0
                    }
            }
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => {
                entry.step == 0 && statement.promised_epsilon.is_none()
            }
        };
        if !in_order {
            return wrong(entry, "ε is not within the promise");
        }
    }
    let Some(last) = entries.last() else {
        return Err(Failure::new(format!("{} is empty", history::FILE)));
    };
    if let (Some(seen), Some(stated)) = (last.epsilon, statement.epsilon)
        && last.step == statement.steps
        // Charges after the entry that were lost in an interruption are not in it.
        && !(close(seen, stated) || lost_steps(statement) > 0 && seen < stated)
    {
        return wrong(last, &format!("ε is {seen}, {stated} is stated"));
    }
    let every = config.training.checkpoint_every;
    let selected = selected_step(config.evaluation.select, &entries, every, statement.steps);
    let model_step = selected.unwrap_or(statement.steps);
    if model_step != statement.model_step {
        return Err(Failure::new(format!(
            "{}: selects step {model_step} for the model, step {} is stated",
            history::FILE,
            statement.model_step
        )));
    }
    Ok(format!("{} entries, the last after step {}", entries.len(), last.step))
}

fn has_checkpoints(folder: &Folder) -> bool {
    std::fs::read_dir(folder.join(CHECKPOINTS)).is_ok_and(|entries| entries.count() > 0)
}

/// Checks that the last checkpoint is that of the statement.
///
/// It must have the last step, this configuration, a position of the stated ledger, and the model's
/// weights, as its last, averaged or selected parameters.
fn check_checkpoint(folder: &Folder, config: &Config, statement: &Statement) -> Finding {
    let mut damage = None;
    let newest =
        Snapshot::newest(&folder.join(CHECKPOINTS), &mut |line| damage = Some(line.to_string()));
    if let Some(line) = damage {
        return Err(Failure::new(line));
    }
    let newest = newest?.ok_or_else(|| Failure::new("the folder has no checkpoint"))?;
    if newest.step != statement.steps {
        return Err(Failure::new(format!(
            "the last is of step {}, the statement of step {}",
            newest.step, statement.steps
        )));
    }
    let (model_step, released) = newest.released();
    if model_step != statement.model_step {
        return Err(Failure::new(format!(
            "it selects the parameters of step {model_step}, the model is stated to have those of \
             step {}",
            statement.model_step
        )));
    }
    if newest.identity.config != config.digest() {
        return Err(Failure::new("made under another config.toml"));
    }
    statement.chain()?.check(&newest.identity.ledger, "the last checkpoint")?;
    // The saved model has low-rank adapters merged into its weights, or the format of another
    // program.
    if config.model.lora_rank > 0 || ExternalModel::of(&config.model.source).is_some() {
        return Ok(format!(
            "step {}, this config.toml, a position of the stated ledger",
            newest.step
        ));
    }
    let model = LoadedModel::open_for_inference(&folder.path().to_string_lossy(), &mut |_| ())?;
    let fingerprints = |params: &Params| {
        params
            .iter()
            .map(|tensor| snapshot::fingerprint(std::iter::once(tensor)))
            .collect::<Vec<_>>()
    };
    let of_model = fingerprints(&model.params);
    match fingerprints(released).iter().all(|print| of_model.contains(print)) {
        true => Ok(format!(
            "step {}, this config.toml, a position of the stated ledger, the model's weights",
            newest.step
        )),
        false => Err(Failure::new("its weights are not the model's")),
    }
}

/// Checks that the recomputed report is the same, except for the description of the machine.
fn check_report(folder: &Folder) -> Finding {
    let found = folder.read(report::FILE)?.unwrap_or_default();
    let hidden = report::Redaction::of_page(&found).map_err(Failure::new)?;
    let expected = report::page(folder, &hidden)?.html();
    let (found, expected): (Vec<&str>, Vec<&str>) =
        (found.lines().collect(), expected.lines().collect());
    let same = |index: usize| match (found.get(index), expected.get(index)) {
        (Some(found), Some(expected)) => found == expected || are_machines(found, expected),
        _ => false,
    };
    let count = found.len().max(expected.len());
    match (0..count).find(|&index| !same(index)) {
        None if hidden.is_empty() => Ok("report.html is the same as recomputed".into()),
        None => Ok(format!("report.html is the same as recomputed without the hidden {hidden}")),
        Some(index) => Err(Failure::new(format!(
            "report.html differs from the one recomputed from the other files, about line {}",
            index + 1
        ))),
    }
}

/// Whether two lines are the same row of the machine, which may be another one.
fn are_machines(found: &str, expected: &str) -> bool {
    ["system", "threads"].into_iter().any(|name| {
        let text = |line: &str| {
            let row = line.strip_prefix(&format!("<tr><th scope=\"row\">{name}</th><td>"))?;
            row.strip_suffix("</td></tr>").map(|text| !text.contains(['<', '>']))
        };
        text(found) == Some(true) && text(expected) == Some(true)
    })
}
