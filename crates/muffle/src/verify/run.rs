//! A statement beside the run it came from: the configuration and the plan that follows from it,
//! and every other file that says the same.

use super::{Found, Verdict, close, gradient_blocks};
use crate::Plan;
use crate::Statement;
use crate::Subject;
use crate::config::{Config, Publicity};
use crate::report;
use crate::run::chain::Chain;
use crate::run::folder::Folder;
use crate::run::history::{self, Look};
use crate::run::ledger_file::{LEDGER, SealedMark};
use crate::run::outcome::{RESULT, SAMPLES};
use crate::run::snapshot::{self, Snapshot};
use accounting::Event;
use protocol::{Params, Role, Trainable};
use serde_json::{Value, json};

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
            verdict.check("statement", plan.and_then(|plan| again(config, plan, statement)));
        }
        Err(what) => verdict.check("plan", Err(what.clone())),
    }
    match folder.join(LEDGER).exists() {
        true => verdict.check("ledger file", ledger(folder, statement)),
        false => verdict.miss("ledger file", "ledger.json is not there"),
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
            "result.json is not there: the run did not come to its end \
            (muffle resume), or it was removed",
        ),
    }
    match folder.join(history::FILE).exists() {
        true => verdict.check("history", looks(folder, config, statement)),
        false => verdict.miss("history", "history.jsonl is not there"),
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
            verdict.miss("report", &format!("report.html cannot be made again without {name}"))
        }
        (false, _) => verdict.miss("report", "report.html is not there; muffle report writes it"),
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
    let tensors = stand_ins(config, statement)?;
    Plan::new(config, statement.records, &tensors)
        .map_err(|unplanned| format!("config.toml: {unplanned}"))
}

/// Tensors that are asked for in as many blocks as the model's own: a plan depends on nothing else
/// of them.
fn stand_ins(config: &Config, statement: &Statement) -> Result<Vec<Trainable>, String> {
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
fn planned(plan: &Plan, statement: &Statement) -> Found {
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

/// The whole statement, written again.
fn again(config: &Config, plan: Plan, statement: &Statement) -> Found {
    let mut plan = plan;
    if let Some(sigma) = statement.noise_multiplier {
        plan.sigma.gradient = sigma;
    }
    let mut written = Statement::new(
        config,
        &plan,
        &statement.chain()?,
        statement.steps,
        statement.isolation,
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
        return Ok("written again from config.toml and the ledger, it is the same".into());
    }
    let (Ok(Value::Object(written)), Ok(Value::Object(stated))) =
        (serde_json::to_value(&written), serde_json::to_value(statement))
    else {
        return Err("it cannot be written again".into());
    };
    let differ: Vec<&str> = stated
        .iter()
        .filter(|(key, value)| written.get(*key) != Some(value))
        .map(|(key, _)| key.as_str())
        .collect();
    Err(format!(
        "written again from config.toml and the ledger, it has another {}",
        differ.join(", ")
    ))
}

/// The ledger that was kept on the way is the one that is stated, and closes with this statement.
fn ledger(folder: &Folder, statement: &Statement) -> Found {
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
        "{LEDGER} says the same, and closes with the hashes of weights, configuration and statement"
    ))
}

/// The mark of a run whose sealed folder is still there.
fn mark(folder: &Folder) -> Found {
    let text = folder
        .read(LEDGER)
        .map_err(|failed| failed.to_string())?
        .ok_or_else(|| format!("{LEDGER} is not there"))?;
    let chain = Chain::parse(&text).map_err(|what| format!("{LEDGER}: {what}"))?;
    let mark = SealedMark::read(folder).map_err(|failed| failed.to_string())?;
    chain.check(&mark.ledger, "the sealed mark")?;
    Ok("the ledger contains it; the run has not removed what is sealed yet (muffle resume does)"
        .into())
}

/// What `result.json` says of privacy is what the statement says.
fn result(folder: &Folder, config: &Config, statement: &Statement) -> Found {
    let text = folder.read(RESULT).map_err(|failed| failed.to_string())?.unwrap_or_default();
    let result: Value =
        serde_json::from_str(&text).map_err(|error| format!("{RESULT}: {error}"))?;
    let closing = statement.closing().map_err(|failed| failed.to_string())?;
    let mut chain = statement.chain()?;
    chain.close(closing.clone())?;
    let expected = json!({
        "epsilon": statement.epsilon.map_or_else(|| json!("inf"), |epsilon| json!(epsilon)),
        "delta": statement.delta,
        "sigma": statement.noise_multiplier,
        "steps": statement.steps,
        "records": statement.records,
        "lot_size": statement.lot_size,
        "optimizer": config.optimizer.name(),
        "private": statement.private,
        "run_id": statement.run_id,
        "sessions": statement.sessions.len(),
        "ledger_head": chain.head(),
        "weights_sha256": statement.weights_sha256,
        "statement_sha256": closing.statement_sha256,
        "figures": if config.data.publicity() == Publicity::Public { "public" } else { "NON-PRIVATE" },
    });
    let (Value::Object(result), Value::Object(expected)) = (result, expected) else {
        return Err(format!("{RESULT}: an object expected"));
    };
    let other = expected.iter().find(|(key, value)| result.get(*key) != Some(value));
    match other {
        Some((key, value)) => Err(format!(
            "{RESULT}: {key} is {}, {value} is stated",
            result.get(key).unwrap_or(&Value::Null)
        )),
        None => Ok(format!("{RESULT} says the same")),
    }
}

/// ε on the way begins at nothing, stays within the promise and ends at what is stated.
fn looks(folder: &Folder, config: &Config, statement: &Statement) -> Found {
    let text = folder.read(history::FILE).map_err(|failed| failed.to_string())?.unwrap_or_default();
    let looks = text.lines().map(serde_json::from_str::<Look>).collect::<Result<Vec<_>, _>>();
    let looks = looks.map_err(|error| format!("{}: {error}", history::FILE))?;
    let wrong =
        |look: &Look, what: &str| Err(format!("{}, step {}: {what}", history::FILE, look.step));
    for (index, look) in looks.iter().enumerate() {
        if look.step > statement.steps || index > 0 && look.step <= looks[index - 1].step {
            return wrong(look, "out of order");
        }
        if look.figures != config.data.publicity() {
            return wrong(look, "figures are marked other than config.toml says");
        }
        let kept = match (look.epsilon, statement.promised_epsilon) {
            // Before the first step something was spent only if steps were lost in an interruption.
            (Some(epsilon), Some(promised)) => {
                let lost = super::lost(statement) > 0;
                epsilon <= promised
                    && if look.step == 0 && !lost {
                        epsilon == 0.0
                    } else {
                        epsilon > 0.0 || look.step == 0
                    }
            }
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => {
                look.step == 0 && statement.promised_epsilon.is_none()
            }
        };
        if !kept {
            return wrong(look, "ε is not within what was promised");
        }
    }
    let Some(last) = looks.last() else { return Err(format!("{} is empty", history::FILE)) };
    if let (Some(seen), Some(stated)) = (last.epsilon, statement.epsilon)
        && last.step == statement.steps
        // What was charged after it and lost in an interruption was not seen yet.
        && !(close(seen, stated) || super::lost(statement) > 0 && seen < stated)
    {
        return wrong(last, &format!("ε is {seen}, {stated} is stated"));
    }
    Ok(format!("{} looks, the last after step {}", looks.len(), last.step))
}

fn has_checkpoints(folder: &Folder) -> bool {
    std::fs::read_dir(folder.join(CHECKPOINTS)).is_ok_and(|entries| entries.count() > 0)
}

/// The last checkpoint is that of the last step, was made under this configuration, has a position
/// of the stated ledger, and holds the model's weights.
fn checkpoint(folder: &Folder, config: &Config, statement: &Statement) -> Found {
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
    let subject = Subject::look_at(&folder.path().to_string_lossy(), &mut |_| ())
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

/// The report, made again, is the same but for the machine it was made on.
fn page(folder: &Folder) -> Found {
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
        None => Ok("report.html, made again, is the same".into()),
        Some(index) => Err(format!(
            "report.html says something else than the files it is made of, about line {}",
            index + 1
        )),
    }
}
