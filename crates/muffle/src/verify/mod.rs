//! Whether a privacy statement is consistent: everything in it is recomputed from its ledger, and
//! compared with every file that says the same.
//!
//! Consistent is not true. Files cannot show whether the run did what its ledger says, and hashes
//! without a secret can be computed by anyone who changes the files. [`Verdict::unchecked`] lists
//! what was not checked: evidence that is missing, and what no file can show.

pub mod signature;
pub mod spent;

mod run;
mod verdict;

pub use verdict::{Check, Conclusion, Reason, Unchecked, Verdict};

use crate::Failed;
use crate::Statement;
use crate::report::digits::{up, up_e};
use crate::report::statement;
use crate::run::folder::Folder;
use crate::run::snapshot;
use crate::verify::signature::PublicKey;
use accounting::{Accountant, Composition, Delta, Epsilon, Event, Guarantee, Release};
use std::path::{Path, PathBuf};
use verdict::{Found, OUT_OF_REACH};

/// How far a figure may be from the one computed again, as a part of it.
///
/// ε is written with all its digits, so that on one machine it comes out the same to the last bit.
/// Other processors have other Fourier transforms and logarithms: over 90 runs with FFTs for AVX
/// and without, and with the C library's functions with and without FMA, the largest difference was
/// 2.6e-11. Reports round ε up to three places, which allows for 1e-9 as well.
pub const TOLERANCE: f64 = 1e-9;

/// Looks at the folder of a run, at a folder with a model and its statement, or at a statement by
/// itself with the weights beside it.
///
/// # Errors
/// If there is nothing to look at: no such path, no run, or a run that is not finished. A statement
/// that is damaged is not an error but a check that fails.
pub fn verify(path: &Path) -> Result<Verdict, Failed> {
    verify_signed(path, None)
}

/// The same; with a key, the statement must have been signed by it.
///
/// # Errors
/// As [`verify()`].
pub fn verify_signed(path: &Path, key: Option<&PublicKey>) -> Result<Verdict, Failed> {
    let (file, run) = place(path)?;
    let bytes = std::fs::read(&file).map_err(Failed::at(&file))?;
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
        .and_then(|text| Statement::parse(&text));
    let statement = match parsed.and_then(|statement| sensible(&statement).map(|()| statement)) {
        Ok(statement) => statement,
        Err(what) => {
            verdict.check("form", Err(what));
            return Ok(verdict);
        }
    };
    verdict.check("form", Ok("every field is there, once, and there is no other".into()));
    verdict.check("software", software(&statement));
    verdict.check("ledger", ledger(&statement));
    verdict.check("private", private(&statement));
    verdict.check("sampling", sampling(&statement));
    verdict.check("noise", noise(&statement));
    verdict.check("steps", steps(&statement));
    let price = price(&statement);
    verdict.check("epsilon", epsilon(&statement, &price));
    verdict.check("promise", promise(&statement, &price));
    verdict.check("words", words(&statement));
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
            "no key was given (--key): anyone who can write these files can write others that fit \
             together as well",
        ),
    }
    match &run {
        Some(folder) => run::check(&mut verdict, folder, &statement),
        None => verdict.miss(
            "run",
            "only the statement and the weights beside it were looked at; the folder of the run \
             has more to compare them with",
        ),
    }
    OUT_OF_REACH.iter().for_each(|(name, detail)| verdict.out_of_reach(name, detail));
    verdict.price = price.ok();
    verdict.statement = Some(statement);
    Ok(verdict)
}

/// The statement that a path means, and the run around it.
fn place(path: &Path) -> Result<(PathBuf, Option<Folder>), Failed> {
    if path.is_file() {
        return Ok((path.into(), None));
    }
    std::fs::read_dir(path).map_err(Failed::at(path))?;
    if let Ok(folder) = Folder::look_at(path) {
        let file = folder.join("model").join(statement::FILE);
        if file.is_file() {
            return Ok((file, Some(folder)));
        }
        return Err(Failed::Input(format!(
            "{}: the run is not finished, so that there is no statement to verify yet; go on with \
             it: muffle resume {0}",
            path.display()
        )));
    }
    let file = path.join(statement::FILE);
    if file.is_file() {
        return Ok((file, None));
    }
    Err(Failed::Input(format!(
        "{}: neither a run (config.toml) nor a model with a privacy statement ({})",
        path.display(),
        statement::FILE
    )))
}

/// Numbers that can be meant, and all of a guarantee or nothing of it.
fn sensible(statement: &Statement) -> Result<(), String> {
    let there = [
        statement.epsilon.is_some(),
        statement.delta.is_some(),
        statement.promised_epsilon.is_some(),
        statement.unit.is_some(),
        statement.accountant.is_some(),
        statement.noise_multiplier.is_some(),
        statement.noise.is_some(),
    ];
    if there.contains(&true) && there.contains(&false) {
        return Err("epsilon, delta, promised_epsilon, unit, accountant, noise_multiplier and \
            noise: all of them expected, or none"
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
    // Written for the good case, so that what is no number is refused.
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

fn software(statement: &Statement) -> Found {
    match statement.is_ours() {
        true => Ok(statement.software.clone()),
        false => Err(format!(
            "version {} by {:?}: not what this program writes; verify it with the one that wrote \
             it",
            statement.version, statement.software
        )),
    }
}

/// The hash chain over sessions and charges has the stated head.
fn ledger(statement: &Statement) -> Found {
    let chain = statement.chain()?;
    Ok(format!(
        "{} charges in {} sessions, head {}…",
        chain.charges(),
        chain.sessions().len(),
        &chain.head()[..12]
    ))
}

/// A guarantee needs noise in every charge, and nobody who knows it.
fn private(statement: &Statement) -> Found {
    let seed = statement.seed().ok_or_else(|| {
        format!("randomness: {:?} is not where noise can come from", statement.randomness)
    })?;
    let events = statement.ledger.events();
    let non_private = events.has_non_private();
    if statement.epsilon.is_some() == non_private || events.is_empty() {
        return Err(match (non_private, events.is_empty()) {
            (_, true) => "nothing was charged".into(),
            (true, _) => "the ledger has charges without any guarantee, and an ε is stated".into(),
            _ => "the ledger has a guarantee, and none is stated".into(),
        });
    }
    match (statement.private, statement.epsilon.is_some() && seed.is_none()) {
        (true, true) => Ok("yes: noise from the operating system in every charge".into()),
        (false, false) if seed.is_some() && !non_private => {
            Ok("no, and it says so: the seed of the noise is fixed".into())
        }
        (false, false) => Ok("no, and it says so: trained without noise".into()),
        (true, false) => {
            Err("it says yes, but the seed of the noise is known or there is none".into())
        }
        (false, true) => Err("it says no, and nothing speaks against a guarantee".into()),
    }
}

/// Stated sampling, lot size and records agree with one another and with every charge.
fn sampling(statement: &Statement) -> Found {
    let sampling = statement
        .lots()
        .ok_or_else(|| format!("{:?} is no way of drawing lots", statement.sampling))?;
    let lot = sampling.lot_size(statement.records);
    if lot != statement.lot_size {
        return Err(format!(
            "a lot would have {lot} of {} records, not the stated {}",
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
                return Err(format!("{event} was charged, which is not {:?}", statement.sampling));
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

fn noise(statement: &Statement) -> Found {
    let events = statement.ledger.events();
    let Some(sigma) = statement.noise_multiplier else {
        return match events.runs().iter().all(|(event, _)| *event == Event::NonPrivate) {
            true => Ok("none".into()),
            false => Err("none is stated, and some was charged".into()),
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

/// Steps that were paid for.
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
fn steps(statement: &Statement) -> Found {
    let charged = paid(statement);
    match statement.steps >= 1 && statement.steps <= charged {
        true => Ok(format!("{} in the model, {charged} paid for", statement.steps)),
        false => Err(format!("{} in the model, {charged} paid for", statement.steps)),
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
fn epsilon(statement: &Statement, price: &Result<Guarantee, String>) -> Found {
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
                    "the ledger comes to ε = {} at δ = {delta}, not the stated {stated}",
                    price.epsilon
                )),
            }
        }
        _ if price.epsilon == f64::INFINITY => Ok("∞: no guarantee, and none is stated".into()),
        _ => Err(format!("none is stated, and the ledger comes to ε = {}", price.epsilon)),
    }
}

fn promise(statement: &Statement, price: &Result<Guarantee, String>) -> Found {
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

/// What is covered and what is not, in the words that the program has for these numbers.
fn words(statement: &Statement) -> Found {
    let (covered, not_covered) =
        statement.told().ok_or("a person has several rows, and no column says whose a row is")?;
    for (name, stated, expected) in [
        ("covered", &statement.covered, &covered),
        ("not_covered", &statement.not_covered, &not_covered),
    ] {
        if let Some(index) = (0..stated.len().max(expected.len()))
            .find(|&index| stated.get(index) != expected.get(index))
        {
            let shown = |line: Option<&String>| {
                line.map_or("nothing".to_string(), |line| format!("{line:?}"))
            };
            return Err(format!(
                "{name}: {} is stated, {} follows",
                shown(stated.get(index)),
                shown(expected.get(index))
            ));
        }
    }
    Ok("what is covered and what is not are the words for these numbers".into())
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
fn weights(statement: &Statement, folder: &Path) -> Found {
    for (name, stated) in &statement.weights_sha256 {
        let path = folder.join(name);
        if !path.is_file() {
            return Err(format!("{} is not there", path.display()));
        }
        let sum = snapshot::digest_file(&path).map_err(|failed| failed.to_string())?;
        if sum != *stated {
            return Err(format!("{name} is another file: its SHA-256 is {sum}"));
        }
    }
    for name in weight_files(folder)? {
        if !statement.weights_sha256.iter().any(|(known, _)| *known == name) {
            return Err(format!("{name} lies beside them, and the statement does not speak of it"));
        }
    }
    let list: Vec<String> = statement
        .weights_sha256
        .iter()
        .map(|(name, sum)| format!("{name} {}…", &sum[..12]))
        .collect();
    Ok(list.join(", "))
}
