//! Verification of privacy statements: everything in one is recomputed from its ledger, and
//! compared with every other file of the run.
//!
//! Consistent does not mean true. Files cannot show whether the run did what its ledger says, and
//! hashes without a secret can be recomputed by anyone who changes the files.
//! [`Verdict::unchecked`] lists what was not checked: missing evidence, and what no file can show.

pub mod signature;
pub mod spent;

mod run;
mod verdict;

pub use verdict::{Check, Conclusion, Reason, Unchecked, Verdict};

use crate::Error;
use crate::Statement;
use crate::report::digits::{up, up_e};
use crate::report::statement::{self, RandomnessSource};
use crate::run::folder::Folder;
use crate::run::snapshot;
use crate::verify::signature::PublicKey;
use accounting::{Accountant, Composition, Delta, Epsilon, Event, Guarantee, Release};
use std::path::{Path, PathBuf};
use verdict::{Finding, OUT_OF_REACH};

/// The largest relative difference between a stated figure and the recomputed one.
///
/// ε is written with all its digits, so that on one machine it comes out the same to the last bit.
/// Other processors have other Fourier transforms and logarithms: over 90 runs with FFTs for AVX
/// and without, and with the C library's functions with and without FMA, the largest difference was
/// 2.6e-11. Reports round ε up to three places, which allows for 1e-9 as well.
pub const TOLERANCE: f64 = 1e-9;

/// Verifies the folder of a run, a folder with a model and its statement, or a statement with the
/// weights beside it.
///
/// # Errors
/// If there is nothing to verify: no such path, no run, or a run that is not finished. A statement
/// that is damaged is not an error but a check that fails.
pub fn verify(path: &Path) -> Result<Verdict, Error> {
    verify_signed(path, None)
}

/// The same; with a key, the statement must have been signed by it.
///
/// # Errors
/// As [`verify()`].
pub fn verify_signed(path: &Path, key: Option<&PublicKey>) -> Result<Verdict, Error> {
    let (file, run) = place(path)?;
    let bytes = std::fs::read(&file).map_err(Error::io(&file))?;
    let mut verdict = Verdict {
        path: file,
        statement: None,
        price: None,
        signer: None,
        checks: Vec::new(),
        unchecked: Vec::new(),
    };
    let parsed = String::from_utf8(bytes)
        .map_err(|_| "not UTF-8".to_string())
        .and_then(|text| Statement::parse(&text).map_err(|error| error.to_string()));
    let statement = match parsed.and_then(|statement| well_formed(&statement).map(|()| statement)) {
        Ok(statement) => statement,
        Err(what) => {
            verdict.check("form", Err(what));
            return Ok(verdict);
        }
    };
    verdict.check("form", Ok("every field is present once, and no other".into()));
    verdict.check("software", software(&statement));
    verdict.check("ledger", ledger(&statement));
    verdict.check("private", private(&statement));
    verdict.check("sampling", sampling(&statement));
    verdict.check("noise", noise(&statement));
    verdict.check("steps", steps(&statement));
    let price = price(&statement);
    verdict.check("epsilon", epsilon(&statement, &price));
    verdict.check("promise", promise(&statement, &price));
    verdict.check("summary", summary(&statement));
    let model = verdict.path.parent().unwrap_or(Path::new("")).to_path_buf();
    match no_weights(&statement, &model) {
        true => verdict.miss("weights", "no file of weights is beside the statement"),
        false => verdict.check("weights", weights(&statement, &model)),
    }
    match key {
        Some(key) => {
            let signed = signature::check(&verdict.path, &statement, key);
            verdict.signer = signed.is_ok().then(|| key.fingerprint());
            verdict.check(
                "signature",
                signed.map(|()| {
                    format!(
                        "by the key \
                {}",
                        key.fingerprint()
                    )
                }),
            );
        }
        None => verdict.out_of_reach(
            "signature",
            "no key was given (--key): without a signature, all files can be rewritten to fit \
             together",
        ),
    }
    match &run {
        Some(folder) => run::check(&mut verdict, folder, &statement),
        None => verdict.miss(
            "run",
            "only the statement and the weights beside it were checked; the folder of the run \
             has more evidence",
        ),
    }
    OUT_OF_REACH.iter().for_each(|(name, detail)| verdict.out_of_reach(name, detail));
    verdict.price = price.ok();
    verdict.statement = Some(statement);
    Ok(verdict)
}

/// The statement at a path, and the folder of its run.
fn place(path: &Path) -> Result<(PathBuf, Option<Folder>), Error> {
    if path.is_file() {
        return Ok((path.into(), None));
    }
    std::fs::read_dir(path).map_err(Error::io(path))?;
    if let Ok(folder) = Folder::look_at(path) {
        let file = folder.join("model").join(statement::FILE);
        if file.is_file() {
            return Ok((file, Some(folder)));
        }
        return Err(Error::folder(
            path,
            format!(
                "the run is not finished and has no statement yet; resume it: muffle resume {}",
                path.display()
            ),
        ));
    }
    let file = path.join(statement::FILE);
    if file.is_file() {
        return Ok((file, None));
    }
    Err(Error::folder(
        path,
        format!(
            "neither a run (config.toml) nor a model with a privacy statement ({})",
            statement::FILE
        ),
    ))
}

/// Checks ranges, and that a guarantee is stated completely or not at all.
fn well_formed(statement: &Statement) -> Result<(), String> {
    let there = [
        statement.epsilon.is_some(),
        statement.delta.is_some(),
        statement.promised_epsilon.is_some(),
        statement.unit.is_some(),
        statement.accountant.is_some(),
        statement.noise_multiplier.is_some(),
        statement.coverage.noise.is_some(),
    ];
    if there.contains(&true) && there.contains(&false) {
        return Err("epsilon, delta, promised_epsilon, unit, accountant, noise_multiplier and \
            coverage.noise: expected all of them, or none"
            .into());
    }
    for (name, value) in
        [("epsilon", statement.epsilon), ("promised_epsilon", statement.promised_epsilon)]
    {
        value
            .map_or(Ok(()), |value| Epsilon::new(value).map(|_| ()))
            .map_err(|error| format!("{name}: {error}"))?;
    }
    statement
        .delta
        .map_or(Ok(()), |delta| Delta::new(delta).map(|_| ()))
        .map_err(|error| error.to_string())?;
    // Tests the good case, so that NaN is refused.
    // A rate times a number of records may be a hair off.
    if !(statement.lot_size >= 1.0 - 1e-9
        && statement.lot_size <= statement.records as f64 * (1.0 + 1e-9))
    {
        return Err(format!(
            "lot_size: from 1 to the {} records expected, got {}",
            statement.records, statement.lot_size
        ));
    }
    if statement.weights_sha256.is_empty() {
        return Err("weights_sha256: no file of weights is named".into());
    }
    for (name, sum) in &statement.weights_sha256 {
        if Path::new(name).file_name().is_none_or(|plain| plain != name.as_str()) {
            return Err(format!("weights_sha256: the name of a file expected, got {name:?}"));
        }
        if !is_sha256(sum) {
            return Err(format!(
                "weights_sha256: 64 hexadecimal digits expected for {name}, got {sum:?}"
            ));
        }
    }
    match is_sha256(&statement.config_sha256) {
        true => Ok(()),
        false => Err(format!(
            "config_sha256: 64 hexadecimal digits expected, got {:?}",
            statement.config_sha256
        )),
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

fn software(statement: &Statement) -> Finding {
    match statement.is_ours() {
        true => Ok(statement.software.clone()),
        false => Err(format!(
            "version {} by {:?} is not written by this program; verify it with the version that \
             wrote it",
            statement.version, statement.software
        )),
    }
}

/// The hash chain over sessions and charges has the stated head.
fn ledger(statement: &Statement) -> Finding {
    let chain = statement.chain()?;
    Ok(format!(
        "{} charges in {} sessions, head {}…",
        chain.charges(),
        chain.sessions().len(),
        &chain.head()[..12]
    ))
}

/// A guarantee needs noise in every charge, from a secret source. One for persons with several rows
/// needs a column that names them.
fn private(statement: &Statement) -> Finding {
    if let Some(unit) = statement.unit
        && unit.rows != 1
        && statement.person_column.is_none()
    {
        return Err(format!("unit.rows: expected 1 without person_column, got {}", unit.rows));
    }
    let secret = statement.randomness == RandomnessSource::OperatingSystem;
    let events = statement.ledger.events();
    let non_private = events.has_non_private();
    if statement.epsilon.is_some() == non_private || events.is_empty() {
        return Err(match (non_private, events.is_empty()) {
            (_, true) => "nothing was charged".into(),
            (true, _) => "an ε is stated, but the ledger has charges without a guarantee".into(),
            _ => "no ε is stated, but every charge in the ledger has a guarantee".into(),
        });
    }
    match (statement.private, statement.epsilon.is_some() && secret) {
        (true, true) => Ok("private: secret noise in every charge".into()),
        (false, false) if !secret && !non_private => {
            Ok("not private, as stated: the seed of the noise is fixed".into())
        }
        (false, false) => Ok("not private, as stated: trained without noise".into()),
        (true, false) => {
            Err("stated as private, but the seed is known or there is no noise".into())
        }
        (false, true) => Err("stated as not private, but nothing contradicts a guarantee".into()),
    }
}

/// Stated sampling, lot size and records agree with one another and with every charge.
fn sampling(statement: &Statement) -> Finding {
    let sampling = statement.lots().map_err(|error| error.to_string())?;
    let lot = sampling.lot_size(statement.records);
    // A lot has a whole number of records; a rate times their number is rounded.
    if lot != statement.lot_size {
        return Err(format!(
            "lots of {} records have {lot} of them, not the stated {}",
            statement.records, statement.lot_size
        ));
    }
    // A rate is a whole number over the records.
    if !((lot - lot.round()).abs() <= 1e-9 * lot) {
        return Err(format!("{lot} of {} records: a whole number expected", statement.records));
    }
    for (event, _) in statement.ledger.events().runs() {
        match event {
            Event::Gaussian { lots, .. } if *lots != sampling => {
                return Err(format!(
                    "{event} was charged, which is not {}",
                    statement.sampling_in_words()
                ));
            }
            _ => {}
        }
    }
    Ok(format!("{} of {} records, as charged", lot.round(), statement.records))
}

/// How many of the first blocks of a release have this noise together: those of the gradient; the
/// others are probes of the loss.
fn gradient_blocks(release: &Release, sigma: f64) -> Option<u64> {
    let (mut count, mut before) = (0u64, 0.0);
    for &(block, more) in release.blocks() {
        let precision = block.get().powi(-2);
        // A probe may have the noise of a block: then only some of a run are the gradient's.
        let some = ((sigma.powi(-2) - before) / precision).round();
        if some >= 1.0
            && some <= more as f64
            && close((before + some * precision).powf(-0.5), sigma)
        {
            return count.checked_add(some as u64);
        }
        count = count.checked_add(more)?;
        before += more as f64 * precision;
    }
    None
}

/// Near, and finite: no figure is near ∞.
fn close(a: f64, b: f64) -> bool {
    b.is_finite() && (a - b).abs() <= TOLERANCE * b.abs()
}

/// How often a gradient was charged with this noise.
fn gradients(events: &Composition, sigma: f64) -> u64 {
    let of = |(event, count): &(Event, u64)| match event {
        Event::Gaussian { release, .. } if gradient_blocks(release, sigma).is_some() => *count,
        _ => 0,
    };
    events.runs().iter().map(of).sum()
}

fn noise(statement: &Statement) -> Finding {
    let events = statement.ledger.events();
    let Some(sigma) = statement.noise_multiplier else {
        return match events.runs().iter().all(|(event, _)| *event == Event::NonPrivate) {
            true => Ok("none".into()),
            false => Err("no noise is stated, but some was charged".into()),
        };
    };
    let kinds = |gradient: bool| {
        let of = |event: &Event| matches!(event, Event::Gaussian { release, .. } if gradient_blocks(release, sigma).is_some());
        let mut kinds: Vec<&Event> = Vec::new();
        events
            .runs()
            .iter()
            .map(|(event, _)| event)
            .filter(|event| of(event) == gradient)
            .for_each(|event| {
                if !kinds.contains(&event) {
                    kinds.push(event);
                }
            });
        kinds
    };
    let (with, without) = (kinds(true), kinds(false));
    // A gradient by itself or with probes, and probes by themselves: a run has no other kinds.
    match (with.len(), without.len()) {
        (0, _) => Err(format!("no charge has the stated noise multiplier {sigma}")),
        (1..=2, 0..=1) => Ok(format!("σ = {sigma} in {} charges", gradients(events, sigma))),
        _ => Err(format!(
            "{} kinds of charges with the stated noise multiplier {sigma}, {} with another",
            with.len(),
            without.len()
        )),
    }
}

/// Steps that were charged.
fn paid(statement: &Statement) -> u64 {
    let lots = statement.lots().map_or(1, |sampling| sampling.lots_per_event());
    match statement.noise_multiplier {
        Some(sigma) => gradients(statement.ledger.events(), sigma).saturating_mul(lots),
        None => statement.ledger.events().len(),
    }
}

/// Steps that were paid for and are not in the model: they were lost in an interruption, or are the
/// rest of an epoch.
fn lost(statement: &Statement) -> u64 {
    paid(statement).saturating_sub(statement.steps)
}

/// No more steps are in the model than were charged.
fn steps(statement: &Statement) -> Finding {
    let charged = paid(statement);
    match statement.steps >= 1 && statement.steps <= charged {
        true => Ok(format!("{} in the model, {charged} charged", statement.steps)),
        false => Err(format!("{} in the model, {charged} charged", statement.steps)),
    }
}

/// What the ledger costs.
fn price(statement: &Statement) -> Result<Guarantee, String> {
    let (unit, delta) = (
        statement.unit.unwrap_or(accounting::Adjacency::AddRemove.into()),
        statement.delta.unwrap_or(0.5),
    );
    let (cost, delta) = (
        statement.ledger.cost(unit).map_err(|error| error.to_string())?,
        Delta::new(delta).map_err(|error| error.to_string())?,
    );
    let asked = match statement.accountant {
        Some(asked @ (Accountant::Pld | Accountant::Rdp)) => asked,
        Some(other) => {
            return Err(format!("accountant: {other} gives no guarantee; pld or rdp expected"));
        }
        None => Accountant::Best,
    };
    // A figure of the better of the two, if it was the one that is named.
    let best = cost.epsilon(Accountant::Best, delta).map_err(|error| error.to_string())?;
    if best.accountant == asked || statement.accountant.is_none() {
        Ok(best)
    } else {
        cost.epsilon(asked, delta).map_err(|error| error.to_string())
    }
}

/// The stated ε is the one that the ledger comes to: not below it, and not above it either, beyond
/// what computing it on another machine can change.
fn epsilon(statement: &Statement, price: &Result<Guarantee, String>) -> Finding {
    let price = price.as_ref().map_err(Clone::clone)?;
    match (statement.epsilon, statement.delta) {
        (Some(stated), Some(delta)) => {
            match close(stated, price.epsilon) || stated == price.epsilon {
                true => Ok(format!(
                    "{} at δ = {} ({}, by {})",
                    up(price.epsilon, 6),
                    up_e(delta),
                    price.unit,
                    price.accountant
                )),
                false => Err(format!(
                    "the ledger costs ε = {} at δ = {delta}, not the stated {stated}",
                    price.epsilon
                )),
            }
        }
        _ if price.epsilon == f64::INFINITY => Ok("∞: no guarantee, as stated".into()),
        _ => Err(format!("no ε is stated, but the ledger costs ε = {}", price.epsilon)),
    }
}

fn promise(statement: &Statement, price: &Result<Guarantee, String>) -> Finding {
    let (Some(promised), Some(stated)) = (statement.promised_epsilon, statement.epsilon) else {
        return Ok("nothing was promised".into());
    };
    let price = price.as_ref().map_err(Clone::clone)?;
    match stated <= promised && price.epsilon <= promised * (1.0 + TOLERANCE) {
        true => Ok(format!("ε ≤ {promised}, as promised before the run")),
        false => {
            Err(format!("ε = {} was spent, {promised} was promised", stated.max(price.epsilon)))
        }
    }
}

/// The sentences of the statement are those that this program renders from its fields.
fn summary(statement: &Statement) -> Finding {
    match statement.summary == statement.rendered() {
        true => Ok("the sentences are those of the fields".into()),
        false => Err("the sentences are not those of the fields".into()),
    }
}

/// Files that a program might take for the model's weights.
const WEIGHTS: [&str; 10] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "gguf", "onnx", "h5", "msgpack", "npz"];

/// Files that might be weights.
fn weight_files(folder: &Path) -> Result<Vec<String>, String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let weights = paths.filter(|path| {
        path.extension().and_then(|kind| kind.to_str()).is_some_and(|kind| WEIGHTS.contains(&kind))
    });
    Ok(weights.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
}

/// Whether there are none at all.
fn no_weights(statement: &Statement, folder: &Path) -> bool {
    let named = statement.weights_sha256.iter().any(|(name, _)| folder.join(name).exists());
    !named && weight_files(folder).is_ok_and(|files| files.is_empty())
}

/// The weights are those that the statement is about, and there are no others.
fn weights(statement: &Statement, folder: &Path) -> Finding {
    for (name, stated) in &statement.weights_sha256 {
        let path = folder.join(name);
        if !path.is_file() {
            return Err(format!("{} is missing", path.display()));
        }
        let sum = snapshot::digest_file(&path).map_err(|failed| failed.to_string())?;
        if sum != *stated {
            return Err(format!("{name} has another SHA-256 than stated: {sum}"));
        }
    }
    for name in weight_files(folder)? {
        if !statement.weights_sha256.iter().any(|(known, _)| *known == name) {
            return Err(format!("{name} is beside the statement, which does not name it"));
        }
    }
    let list: Vec<String> = statement
        .weights_sha256
        .iter()
        .map(|(name, sum)| format!("{name} {}…", &sum[..12]))
        .collect();
    Ok(list.join(", "))
}
