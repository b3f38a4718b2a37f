//! Checks of a statement against the other files of its run.

use super::{Finding, Verdict, close, gradient_blocks};
use crate::LoadedModel;
use crate::Plan;
use crate::Statement;
use crate::config::Config;
use crate::report;
use crate::report::Marking;
use crate::run::chain::Chain;
use crate::run::folder::Folder;
use crate::run::history::{self, HistoryEntry};
use crate::run::ledger_file::{LEDGER, SealedMark};
use crate::run::result::{RESULT, RunResult, SAMPLES};
use crate::run::snapshot::{self, Snapshot};
use accounting::Event;
use protocol::{Params, Role, Trainable};
use serde::Serialize;
use serde_json::Value;

const CHECKPOINTS: &str = "checkpoints";

/// A multiplier is searched to a precision of 1e-6; on another machine the search may end at the
/// other side of that.
const SEARCHED: f64 = 3e-6;

/// More steps than any run has: a configuration that asks for them was not this run's.
const MOST_STEPS: f64 = 1e8;

/// More blocks than any model has.
const MOST_BLOCKS: u64 = 1 << 20;

pub(super) fn check(verdict: &mut Verdict, folder: &Folder, statement: &Statement) {
    let config = Config::read(&folder.join("config.toml"));
    match &config {
        Ok(config) => {
            let plan = plan(config, statement);
            verdict.check(
                "plan",
                plan.as_ref().map_err(Clone::clone).and_then(|plan| planned(plan, statement)),
            );
            verdict.check("statement", plan.and_then(|plan| recomputed(config, plan, statement)));
        }
        Err(error) => verdict.check("plan", Err(error.to_string())),
    }
    match folder.join(LEDGER).exists() {
        true => verdict.check("ledger file", ledger(folder, statement)),
        false => verdict.miss("ledger file", "ledger.json is missing"),
    }
    match folder.sealed().exists() {
        true => verdict.check("sealed mark", mark(folder)),
        false => verdict.out_of_reach(
            "sealed mark",
            "removed when the run was over; while it ran, it held the ledger to its last charge",
        ),
    }
    let Ok(config) = &config else { return };
    match folder.join(RESULT).exists() {
        true => verdict.check("result", result(folder, config, statement)),
        false => verdict.miss(
            "result",
            "result.json is missing: the run is not finished (muffle resume), or the file \
             was removed",
        ),
    }
    match folder.join(history::FILE).exists() {
        true => verdict.check("history", entries(folder, config, statement)),
        false => verdict.miss("history", "history.jsonl is missing"),
    }
    match has_checkpoints(folder) {
        true => verdict.check(CHECKPOINTS, checkpoint(folder, config, statement)),
        false => verdict.miss(CHECKPOINTS, "there are none"),
    }
    let needed =
        [RESULT, history::FILE, SAMPLES].into_iter().find(|name| !folder.join(name).exists());
    match (folder.join(report::FILE).exists(), needed) {
        (true, None) => verdict.check("report", page(folder)),
        (true, Some(name)) => {
            verdict.miss("report", &format!("report.html cannot be recomputed without {name}"))
        }
        (false, _) => verdict.miss("report", "report.html is missing; muffle report writes it"),
    }
}

/// The plan that follows from the configuration.
fn plan(config: &Config, statement: &Statement) -> Result<Plan, String> {
    Plan::check(config).map_err(|failed| failed.to_string())?;
    let epochs = config.training.epochs.or(3.0);
    let steps = config
        .training
        .steps
        .given()
        .map_or(epochs * statement.records as f64 / statement.lot_size, |steps| *steps as f64);
    if !(steps <= MOST_STEPS) {
        return Err(format!("config.toml: {steps} steps are more than any run has"));
    }
    let tensors = placeholders(config, statement)?;
    Plan::new(config, statement.records, &tensors)
        .map_err(|unplanned| format!("config.toml: {unplanned}"))
}

/// Tensors that are asked for in as many blocks as the model's own: a plan depends on nothing else
/// of them.
fn placeholders(config: &Config, statement: &Statement) -> Result<Vec<Trainable>, String> {
    let blocks = statement.ledger.events().runs().iter().find_map(|(event, _)| match event {
        Event::Gaussian { release, .. } => gradient_blocks(release, statement.noise_multiplier?),
        Event::NonPrivate => None,
    });
    let blocks = blocks.unwrap_or(1);
    if blocks > MOST_BLOCKS {
        return Err(format!("{blocks} blocks are more than any model has"));
    }
    let tensor = |role| Trainable { name: String::new(), shape: vec![1, 1], role };
    Ok(match config.optimizer.entry().needs_pairs {
        true => vec![tensor(Role::Left(1)), tensor(Role::Right(0))],
        false => (0..blocks).map(|_| tensor(Role::Hidden)).collect(),
    })
}

/// Noise and steps are those of the plan, and all that was charged is in it.
fn planned(plan: &Plan, statement: &Statement) -> Finding {
    let near = |a: f64, b: f64| (a - b).abs() <= SEARCHED * b;
    if let Some(sigma) =
        statement.noise_multiplier.filter(|sigma| !near(*sigma, plan.sigma.gradient))
    {
        return Err(format!(
            "config.toml asks for σ = {}, not the stated {sigma}",
            plan.sigma.gradient
        ));
    }
    if statement.steps > plan.steps {
        return Err(format!(
            "config.toml asks for {} steps, not the stated {}",
            plan.steps, statement.steps
        ));
    }
    let same = |a: &Event, b: &Event| match (a, b) {
        (Event::Gaussian { lots: a, release: x }, Event::Gaussian { lots: b, release: y }) => {
            let alike = x
                .blocks()
                .iter()
                .zip(y.blocks())
                .all(|((x, n), (y, m))| n == m && near(x.get(), y.get()));
            a == b && x.blocks().len() == y.blocks().len() && alike
        }
        _ => a == b,
    };
    let mut left: Vec<(&Event, u64)> =
        plan.events.runs().iter().map(|(event, count)| (event, *count)).collect();
    for (event, count) in statement.ledger.events().runs() {
        match left.iter_mut().find(|(known, left)| same(event, known) && *left >= *count) {
            Some((_, left)) => *left -= count,
            None => {
                return Err(format!(
                    "{count} times a {event} was charged, which config.toml does not plan"
                ));
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

/// The statement is the one that follows from configuration and ledger.
fn recomputed(config: &Config, plan: Plan, statement: &Statement) -> Finding {
    let mut plan = plan;
    if let Some(sigma) = statement.noise_multiplier {
        plan.sigma.gradient = sigma;
    }
    let mut written = Statement::new(
        config,
        &plan,
        &statement.chain()?,
        statement.steps,
        statement.coverage.isolation,
        statement.weights_sha256.clone(),
    )
    .map_err(|failed| failed.to_string())?;
    if let (Some(again), Some(stated)) = (written.epsilon, statement.epsilon)
        && close(stated, again)
    {
        written.epsilon = statement.epsilon;
    }
    if let (Some(again), Some(stated)) = (written.promised_epsilon, statement.promised_epsilon)
        && close(stated, again)
    {
        written.promised_epsilon = statement.promised_epsilon;
    }
    if written == *statement {
        return Ok("recomputed from config.toml and the ledger, it is the same".into());
    }
    Err(format!(
        "recomputed from config.toml and the ledger, it has another {}",
        differing(statement, &written).join(", ")
    ))
}

/// The fields in which two documents of one type differ.
fn differing<T: Serialize>(a: &T, b: &T) -> Vec<String> {
    let (Ok(Value::Object(a)), Ok(Value::Object(b))) =
        (serde_json::to_value(a), serde_json::to_value(b))
    else {
        return vec!["JSON form".into()];
    };
    a.into_iter().filter(|(key, value)| b.get(key) != Some(value)).map(|(key, _)| key).collect()
}

/// The ledger of the run is the stated one, and closes with this statement.
fn ledger(folder: &Folder, statement: &Statement) -> Finding {
    let text = folder.read(LEDGER).map_err(|failed| failed.to_string())?.unwrap_or_default();
    let kept = Chain::parse(&text).map_err(|what| format!("{LEDGER}: {what}"))?;
    let stated = statement.chain()?;
    kept.check(&stated.mark(), "the statement").map_err(|what| format!("{LEDGER}: {what}"))?;
    if kept.ledger() != stated.ledger() || kept.sessions() != stated.sessions() {
        return Err(format!(
            "{LEDGER} has {} charges in {} sessions, and is not the stated ledger",
            kept.charges(),
            kept.sessions().len()
        ));
    }
    let closing = kept
        .closing()
        .ok_or_else(|| format!("{LEDGER} has no closing entry: the run did not come to its end"))?;
    let expected = statement.closing().map_err(|failed| failed.to_string())?;
    for (name, same) in [
        ("weights", closing.weights_sha256 == expected.weights_sha256),
        ("configuration", closing.config_sha256 == expected.config_sha256),
        ("privacy statement", closing.statement_sha256 == expected.statement_sha256),
    ] {
        if !same {
            return Err(format!("{LEDGER} closes with the hash of another {name}"));
        }
    }
    Ok(format!(
        "{LEDGER} has the same charges, and closes with the hashes of weights, configuration and \
         statement"
    ))
}

/// The mark of a run whose sealed folder is still there.
fn mark(folder: &Folder) -> Finding {
    let text = folder
        .read(LEDGER)
        .map_err(|failed| failed.to_string())?
        .ok_or_else(|| format!("{LEDGER} is missing"))?;
    let chain = Chain::parse(&text).map_err(|what| format!("{LEDGER}: {what}"))?;
    let mark = SealedMark::read(folder).map_err(|failed| failed.to_string())?;
    chain.check(&mark.ledger, "the sealed mark")?;
    Ok("the ledger contains it; the run has not removed what is sealed yet (muffle resume does)"
        .into())
}

/// `result.json` has the figures of the statement.
fn result(folder: &Folder, config: &Config, statement: &Statement) -> Finding {
    let result = RunResult::read(folder)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("{RESULT} is missing"))?;
    let mut chain = statement.chain()?;
    chain.close(statement.closing().map_err(|error| error.to_string())?)?;
    let expected = RunResult {
        figures: config.data.publicity().into(),
        ..RunResult::new(
            statement,
            &chain,
            config.optimizer.name(),
            result.out.clone(),
            result.metrics,
        )
    };
    match differing(&result, &expected).as_slice() {
        [] => Ok(format!("{RESULT} has the same figures")),
        keys => Err(format!("{RESULT}: not as stated: {}", keys.join(", "))),
    }
}

/// ε begins at zero, stays within the promise and ends at the stated value.
fn entries(folder: &Folder, config: &Config, statement: &Statement) -> Finding {
    let text = folder.read(history::FILE).map_err(|failed| failed.to_string())?.unwrap_or_default();
    let entries = history::parse(&text).map_err(|error| format!("{}: {error}", history::FILE))?;
    let marking: Marking = config.data.publicity().into();
    let wrong = |entry: &HistoryEntry, what: &str| {
        Err(format!("{}, step {}: {what}", history::FILE, entry.step))
    };
    for (index, entry) in entries.iter().enumerate() {
        if entry.step > statement.steps || index > 0 && entry.step <= entries[index - 1].step {
            return wrong(entry, "out of order");
        }
        if entry.figures != marking {
            return wrong(entry, "figures are marked other than config.toml says");
        }
        let kept = match (entry.epsilon, statement.promised_epsilon) {
            // Before the first step something was spent only if steps were lost in an interruption.
            (Some(epsilon), Some(promised)) => {
                let lost = super::lost(statement) > 0;
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
        if !kept {
            return wrong(entry, "ε is not within what was promised");
        }
    }
    let Some(last) = entries.last() else { return Err(format!("{} is empty", history::FILE)) };
    if let (Some(seen), Some(stated)) = (last.epsilon, statement.epsilon)
        && last.step == statement.steps
        // What was charged after it and lost in an interruption was not seen yet.
        && !(close(seen, stated) || super::lost(statement) > 0 && seen < stated)
    {
        return wrong(last, &format!("ε is {seen}, {stated} is stated"));
    }
    Ok(format!("{} entries, the last after step {}", entries.len(), last.step))
}

fn has_checkpoints(folder: &Folder) -> bool {
    std::fs::read_dir(folder.join(CHECKPOINTS)).is_ok_and(|entries| entries.count() > 0)
}

/// The last checkpoint is that of the last step, was made under this configuration, has a position
/// of the stated ledger, and holds the model's weights.
fn checkpoint(folder: &Folder, config: &Config, statement: &Statement) -> Finding {
    let mut damage = None;
    let newest =
        Snapshot::newest(&folder.join(CHECKPOINTS), &mut |what| damage = Some(what.to_string()));
    if let Some(what) = damage {
        return Err(what);
    }
    let newest = newest.map_err(|failed| failed.to_string())?.ok_or("there is none")?;
    if newest.step != statement.steps {
        return Err(format!(
            "the last is of step {}, the model of step {}",
            newest.step, statement.steps
        ));
    }
    if newest.belongs.config != config.digest() {
        return Err("made under another config.toml".into());
    }
    statement.chain()?.check(&newest.belongs.ledger, "the last checkpoint")?;
    // Low-rank additions are part of other weights by the end.
    if config.model.lora_rank > 0 {
        return Ok(format!(
            "step {}, this config.toml, a position of the stated ledger",
            newest.step
        ));
    }
    let subject = LoadedModel::look_at(&folder.path().to_string_lossy(), &mut |_| ())
        .map_err(|failed| failed.to_string())?;
    let prints = |params: &Params| {
        params
            .iter()
            .map(|tensor| snapshot::fingerprint(std::iter::once(tensor)))
            .collect::<Vec<_>>()
    };
    let there = prints(&subject.params);
    match prints(&newest.params).iter().all(|print| there.contains(print)) {
        true => Ok(format!(
            "step {}, this config.toml, a position of the stated ledger, the model's weights",
            newest.step
        )),
        false => Err("its weights are not the model's".into()),
    }
}

/// The recomputed report is the same, except for the description of the machine.
fn page(folder: &Folder) -> Finding {
    let there = folder.read(report::FILE).map_err(|failed| failed.to_string())?.unwrap_or_default();
    let again = report::page(folder).map_err(|failed| failed.to_string())?.html();
    let lines = |text: &str| -> Vec<String> {
        let machine = |line: &&str| {
            ["system", "threads"]
                .iter()
                .all(|row| !line.starts_with(&format!("<tr><th scope=\"row\">{row}</th>")))
        };
        text.lines().filter(machine).map(String::from).collect()
    };
    let (there, again) = (lines(&there), lines(&again));
    match (0..there.len().max(again.len())).find(|&index| there.get(index) != again.get(index)) {
        None => Ok("report.html, recomputed, is the same".into()),
        Some(index) => Err(format!(
            "report.html differs from the one recomputed from the other files, about line {}",
            index + 1
        )),
    }
}
