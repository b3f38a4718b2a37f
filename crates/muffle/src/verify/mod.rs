//! Verification of privacy statements: a statement is recomputed from its ledger and compared with
//! every other file of the run.
//!
//! A consistent statement may still be false. Files cannot show whether the run did what its ledger
//! says, and hashes without a secret can be recomputed by anyone who changes the files.
//! [`Verdict::unchecked`] lists what was not checked: missing evidence, and what no file can show.

pub mod signature;
pub mod spent;

mod run;
mod verdict;

pub use verdict::{Check, Conclusion, Unchecked, UncheckedReason, Verdict};

use crate::Error;
use crate::Statement;
use crate::config::{PersonRows, Select};
use crate::report::digits::{up, up_e};
use crate::report::statement::{self, RandomnessSource};
use crate::run::folder::Folder;
use crate::run::model_files::ADAPTER_FILE;
use crate::run::snapshot;
use crate::verify::signature::PublicKey;
use accounting::{Accountant, Composition, Delta, Epsilon, Event, Guarantee, Release};
use std::path::{Path, PathBuf};
use verdict::{Failure, Finding, OUT_OF_REACH};

/// The largest relative difference between a stated figure and the recomputed one.
///
/// ε is written with all its digits, so that on one machine it is the same to the last bit. Other
/// processors use other Fourier transforms and logarithms: over 90 runs with and without AVX in the
/// FFT and FMA in the C library, the largest difference was 2.6e-11. Reports round ε up to three
/// places, which allows for 1e-9 as well.
pub const TOLERANCE: f64 = 1e-9;

/// Verifies a statement, in the folder of a run or beside the weights of a model.
///
/// `path` is the folder of a run, a folder with a model and its statement, or a statement.
///
/// # Errors
/// If there is nothing to verify: the path does not exist, or is not a finished run. A damaged
/// statement is not an error but a check that fails.
pub fn verify(path: &Path) -> Result<Verdict, Error> {
    verify_signed(path, None)
}

/// Verifies a statement and, with a key, its signature by that key.
///
/// # Errors
/// As [`verify()`].
pub fn verify_signed(path: &Path, key: Option<&PublicKey>) -> Result<Verdict, Error> {
    let (file, run) = locate(path)?;
    let bytes = std::fs::read(&file).map_err(Error::io(&file))?;
    let mut verdict = Verdict {
        path: file,
        statement: None,
        price: None,
        signer: None,
        checks: Vec::new(),
        unchecked: Vec::new(),
    };
    let statement = match parse(bytes) {
        Ok(statement) => statement,
        Err(failure) => {
            verdict.add("form", Err(failure));
            return Ok(verdict);
        }
    };
    verdict.add("form", Ok("every field is present once, and no other".into()));
    verdict.add("software", check_software(&statement));
    verdict.add("ledger", check_ledger(&statement));
    verdict.add("private", check_private(&statement));
    verdict.add("sampling", check_sampling(&statement));
    verdict.add("noise", check_noise(&statement));
    verdict.add("steps", check_steps(&statement));
    let price = recompute_price(&statement);
    verdict.add("epsilon", check_epsilon(&statement, price.as_ref()));
    verdict.add("promise", check_promise(&statement, price.as_ref()));
    verdict.add("summary", check_summary(&statement));
    let model = verdict.path.parent().unwrap_or(Path::new("")).to_path_buf();
    match has_no_weights(&statement, &model) {
        true => verdict.add_missing("weights", "no file of weights is beside the statement"),
        false => verdict.add("weights", check_weights(&statement, &model)),
    }
    match key {
        Some(key) => {
            let signed = signature::check(&verdict.path, &statement, key);
            verdict.signer = signed.is_ok().then(|| key.fingerprint());
            let finding = signed.map(|()| format!("by the key {}", key.fingerprint()));
            verdict.add("signature", finding.map_err(Failure::from));
        }
        None => verdict.add_out_of_reach(
            "signature",
            "no key was given (--key): without a signature, all files can be rewritten to fit \
             together",
        ),
    }
    match &run {
        Some(folder) => run::check(&mut verdict, folder, &statement),
        None => verdict.add_missing(
            "run",
            "only the statement and the weights beside it were checked; the folder of the run \
             has more evidence",
        ),
    }
    OUT_OF_REACH.iter().for_each(|(name, detail)| verdict.add_out_of_reach(name, detail));
    verdict.price = price.ok();
    verdict.statement = Some(statement);
    Ok(verdict)
}

/// Parses a statement and checks its form.
fn parse(bytes: Vec<u8>) -> Result<Statement, Failure> {
    let text = String::from_utf8(bytes).map_err(|_| Failure::new("expected UTF-8"))?;
    let statement = Statement::parse(&text)?;
    check_form(&statement)?;
    Ok(statement)
}

/// Locates the statement at a path, and the folder of its run.
fn locate(path: &Path) -> Result<(PathBuf, Option<Folder>), Error> {
    if path.is_file() {
        return Ok((path.into(), None));
    }
    std::fs::read_dir(path).map_err(Error::io(path))?;
    if let Ok(folder) = Folder::open_read_only(path) {
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
            "expected a run (config.toml) or a model with a privacy statement ({})",
            statement::FILE
        ),
    ))
}

/// Checks ranges, and that a guarantee is stated completely or not at all.
fn check_form(statement: &Statement) -> Result<(), Failure> {
    let stated = [
        statement.epsilon.is_some(),
        statement.delta.is_some(),
        statement.promised_epsilon.is_some(),
        statement.unit.is_some(),
        statement.accountant.is_some(),
        statement.noise_multiplier.is_some(),
        statement.coverage.noise.is_some(),
    ];
    if stated.contains(&true) && stated.contains(&false) {
        return Err(Failure::new(
            "epsilon, delta, promised_epsilon, unit, accountant, noise_multiplier and \
            coverage.noise: expected all of them, or none",
        ));
    }
    for (name, value) in
        [("epsilon", statement.epsilon), ("promised_epsilon", statement.promised_epsilon)]
    {
        value
            .map_or(Ok(()), |value| Epsilon::new(value).map(|_| ()))
            .map_err(|error| Failure::new(format!("{name}: {error}")))?;
    }
    statement.delta.map_or(Ok(()), |delta| Delta::new(delta).map(|_| ()))?;
    // Every comparison with NaN is false, so that NaN is refused. The tolerance is for a lot size
    // that is a rate times a number of records.
    if !(statement.lot_size >= 1.0 - 1e-9
        && statement.lot_size <= statement.records as f64 * (1.0 + 1e-9))
    {
        return Err(Failure::new(format!(
            "lot_size: expected 1 to {} records, got {}",
            statement.records, statement.lot_size
        )));
    }
    if statement.weights_sha256.is_empty() {
        return Err(Failure::new("weights_sha256: expected at least 1 file, got 0"));
    }
    for (name, sum) in &statement.weights_sha256 {
        let is_file_name = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
        if !is_file_name && name != ADAPTER_FILE {
            return Err(Failure::new(format!(
                "weights_sha256: expected a file name, got {name:?}"
            )));
        }
        if !is_sha256(sum) {
            return Err(Failure::new(format!(
                "weights_sha256: expected 64 hexadecimal digits for {name}, got {sum:?}"
            )));
        }
    }
    match is_sha256(&statement.config_sha256) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "config_sha256: expected 64 hexadecimal digits, got {:?}",
            statement.config_sha256
        ))),
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

/// Checks that this version of the program wrote the statement.
fn check_software(statement: &Statement) -> Finding {
    match statement.is_of_this_version() {
        true => Ok(statement.software.clone()),
        false => Err(Failure::new(format!(
            "version {} by {:?} is not of this program; verify it with the version that wrote it",
            statement.version, statement.software
        ))),
    }
}

/// Checks that the hash chain over sessions and charges has the stated head.
fn check_ledger(statement: &Statement) -> Finding {
    let chain = statement.chain()?;
    Ok(format!(
        "{} charges in {} sessions, head {}…",
        chain.charges(),
        chain.sessions().len(),
        &chain.head()[..12]
    ))
}

/// Checks that a guarantee is stated exactly if every charge has noise from a secret source.
///
/// A guarantee for persons with several records also needs a column that names them.
fn check_private(statement: &Statement) -> Finding {
    if statement.person_column.is_some() != statement.person_rows.is_some() {
        return Err(Failure::new("expected person_column and person_rows, or neither"));
    }
    if let Some(unit) = statement.unit
        && unit.rows != 1
        && statement.person_rows != Some(PersonRows::Separate)
    {
        return Err(Failure::new(format!(
            "unit.rows: expected 1 without separate rows of named persons, got {}",
            unit.rows
        )));
    }
    let secret = statement.randomness == RandomnessSource::OperatingSystem;
    let events = statement.ledger.events();
    let non_private = events.has_non_private();
    if statement.epsilon.is_some() == non_private || events.is_empty() {
        return Err(Failure::new(match (non_private, events.is_empty()) {
            (_, true) => "the ledger has no charges",
            (true, _) => "an ε is stated, but the ledger has charges without a guarantee",
            _ => "no ε is stated, but every charge in the ledger has a guarantee",
        }));
    }
    match (statement.private, statement.epsilon.is_some() && secret) {
        (true, true) => Ok("private: secret noise in every charge".into()),
        (false, false) if !secret && !non_private => {
            Ok("not private, as stated: the seed of the noise is fixed".into())
        }
        (false, false) => Ok("not private, as stated: trained without noise".into()),
        (true, false) => {
            Err(Failure::new("stated as private, but the seed is known or there is no noise"))
        }
        (false, true) => {
            Err(Failure::new("stated as not private, but nothing contradicts a guarantee"))
        }
    }
}

/// Checks that stated sampling, lot size and records agree with one another and with every charge.
fn check_sampling(statement: &Statement) -> Finding {
    let sampling = statement.sampling_of_lots()?;
    let lot = sampling.lot_size(statement.records);
    if lot != statement.lot_size {
        return Err(Failure::new(format!(
            "lot_size: expected {lot} of {} records, got {}",
            statement.records, statement.lot_size
        )));
    }
    // The expected lot size is a whole number; a rate times the number of records is rounded.
    if !((lot - lot.round()).abs() <= 1e-9 * lot) {
        return Err(Failure::new(format!("lot_size: expected a whole number, got {lot}")));
    }
    for (event, _) in statement.ledger.events().runs() {
        match event {
            Event::Gaussian { lots, .. } if *lots != sampling => {
                return Err(Failure::new(format!(
                    "charges: expected {}, got {event}",
                    statement.sampling_in_words()
                )));
            }
            Event::Gaussian { .. } | Event::NonPrivate => {}
            _ => return Err(Failure::new(format!("charges: a run never charges {event}"))),
        }
    }
    Ok(format!("{} of {} records, as charged", lot.round(), statement.records))
}

/// Returns how many of the first blocks of a release have this noise multiplier jointly.
///
/// These are the blocks of the gradient; the others are probes of the loss.
fn gradient_blocks(release: &Release, sigma: f64) -> Option<u64> {
    let (mut count, mut precision_before) = (0u64, 0.0);
    for &(block, equal_blocks) in release.blocks() {
        let precision = block.get().powi(-2);
        // A probe may have the same noise as a block: then only some of the equal blocks are the
        // gradient's.
        let needed = ((sigma.powi(-2) - precision_before) / precision).round();
        if needed >= 1.0
            && needed <= equal_blocks as f64
            && close((precision_before + needed * precision).powf(-0.5), sigma)
        {
            return count.checked_add(needed as u64);
        }
        count = count.checked_add(equal_blocks)?;
        precision_before += equal_blocks as f64 * precision;
    }
    None
}

/// Whether two figures agree up to [`TOLERANCE`]. No figure is close to ∞.
fn close(a: f64, b: f64) -> bool {
    b.is_finite() && (a - b).abs() <= TOLERANCE * b.abs()
}

/// The number of gradients that were charged with this noise multiplier.
fn count_gradients(events: &Composition, sigma: f64) -> u64 {
    let count = |(event, count): &(Event, u64)| match event {
        Event::Gaussian { release, .. } if gradient_blocks(release, sigma).is_some() => *count,
        _ => 0,
    };
    events.runs().iter().map(count).sum()
}

/// Checks that every gradient was charged with the stated noise multiplier.
fn check_noise(statement: &Statement) -> Finding {
    let events = statement.ledger.events();
    let Some(sigma) = statement.noise_multiplier else {
        return match events.runs().iter().all(|(event, _)| *event == Event::NonPrivate) {
            true => Ok("none".into()),
            false => Err(Failure::new("no noise is stated, but some was charged")),
        };
    };
    let has_gradient = |event: &Event| match event {
        Event::Gaussian { release, .. } => gradient_blocks(release, sigma).is_some(),
        _ => false,
    };
    let mut kinds: Vec<&Event> = Vec::new();
    for (event, _) in events.runs() {
        if !kinds.contains(&event) {
            kinds.push(event);
        }
    }
    let (with, without): (Vec<&Event>, Vec<&Event>) =
        kinds.into_iter().partition(|event| has_gradient(event));
    // A run has no other kinds than: a gradient with or without probes, and probes alone.
    match (with.len(), without.len()) {
        (0, _) => Err(Failure::new(format!("no charge has the stated noise multiplier {sigma}"))),
        (1..=2, 0..=1) => Ok(format!("σ = {sigma} in {} charges", count_gradients(events, sigma))),
        _ => Err(Failure::new(format!(
            "{} kinds of charges with the stated noise multiplier {sigma}, {} with another",
            with.len(),
            without.len()
        ))),
    }
}

/// The number of steps that were charged.
fn charged_steps(statement: &Statement) -> u64 {
    let lots = statement.sampling_of_lots().map_or(1, |sampling| sampling.lots_per_event());
    match statement.noise_multiplier {
        Some(sigma) => count_gradients(statement.ledger.events(), sigma).saturating_mul(lots),
        None => statement.ledger.events().len(),
    }
}

/// The number of charged steps that are not in the model.
///
/// They were lost in an interruption, or are the rest of an epoch.
fn lost_steps(statement: &Statement) -> u64 {
    charged_steps(statement).saturating_sub(statement.steps)
}

/// Checks that at most the charged steps are in the model.
fn check_steps(statement: &Statement) -> Finding {
    let charged = charged_steps(statement);
    let (step, steps) = (statement.model_step, statement.steps);
    if step > steps || statement.selection == Select::Last && step != steps {
        return Err(Failure::new(format!(
            "model_step: expected {} {steps}, got {step}",
            if statement.selection == Select::Last { "the last step," } else { "at most" }
        )));
    }
    match statement.steps >= 1 && statement.steps <= charged {
        true => Ok(format!("{} in the model, {charged} charged", statement.steps)),
        false => Err(Failure::new(format!("{} in the model, {charged} charged", statement.steps))),
    }
}

/// Recomputes the cost of the ledger.
fn recompute_price(statement: &Statement) -> Result<Guarantee, Failure> {
    let unit = statement.unit.unwrap_or(accounting::Adjacency::AddRemove.into());
    let delta = Delta::new(statement.delta.unwrap_or(0.5))?;
    let cost = statement.ledger.cost(unit)?;
    let stated = match statement.accountant {
        Some(stated @ (Accountant::Pld | Accountant::Rdp)) => stated,
        Some(other) => {
            return Err(Failure::new(format!("accountant: expected pld or rdp, got {other}")));
        }
        None => Accountant::Best,
    };
    // The better figure of the two, if its accountant is the stated one.
    let best = cost.epsilon(Accountant::Best, delta)?;
    if best.accountant == stated || statement.accountant.is_none() {
        Ok(best)
    } else {
        Ok(cost.epsilon(stated, delta)?)
    }
}

/// Copies the recomputed cost or the failure to compute it, which several checks report.
fn copy_price(price: Result<&Guarantee, &Failure>) -> Result<Guarantee, Failure> {
    price.copied().map_err(|failure| Failure::new(failure.to_string()))
}

/// Checks that the stated ε is the cost of the ledger, up to [`TOLERANCE`] in both directions.
fn check_epsilon(statement: &Statement, price: Result<&Guarantee, &Failure>) -> Finding {
    let price = copy_price(price)?;
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
                false => Err(Failure::new(format!(
                    "the ledger costs ε = {} at δ = {delta}, not the stated {stated}",
                    price.epsilon
                ))),
            }
        }
        _ if price.epsilon == f64::INFINITY => Ok("∞: no guarantee, as stated".into()),
        _ => {
            Err(Failure::new(format!("no ε is stated, but the ledger costs ε = {}", price.epsilon)))
        }
    }
}

/// Checks that stated and recomputed ε are within the promise.
fn check_promise(statement: &Statement, price: Result<&Guarantee, &Failure>) -> Finding {
    let (Some(promised), Some(stated)) = (statement.promised_epsilon, statement.epsilon) else {
        return Ok("nothing was promised".into());
    };
    let price = copy_price(price)?;
    match stated <= promised && price.epsilon <= promised * (1.0 + TOLERANCE) {
        true => Ok(format!("ε ≤ {promised}, as promised before the run")),
        false => Err(Failure::new(format!(
            "ε = {} was spent, {promised} was promised",
            stated.max(price.epsilon)
        ))),
    }
}

/// Checks that the sentences are those that this program renders from the fields.
fn check_summary(statement: &Statement) -> Finding {
    match statement.summary == statement.rendered() {
        true => Ok("the sentences are those of the fields".into()),
        false => Err(Failure::new("the sentences are not those of the fields")),
    }
}

/// Extensions of files that a program might load as the model's weights.
const WEIGHTS: [&str; 10] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "gguf", "onnx", "h5", "msgpack", "npz"];

/// The names of files that might be weights.
pub(crate) fn weight_files(folder: &Path) -> Result<Vec<String>, Error> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(folder).map_err(Error::io(folder))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let weights = paths.filter(|path| {
        path.extension().and_then(|kind| kind.to_str()).is_some_and(|kind| WEIGHTS.contains(&kind))
    });
    Ok(weights.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
}

/// Whether a folder has no file of weights.
fn has_no_weights(statement: &Statement, folder: &Path) -> bool {
    let named = statement.weights_sha256.iter().any(|(name, _)| folder.join(name).exists());
    !named && weight_files(folder).is_ok_and(|files| files.is_empty())
}

/// Checks that the files of weights have the stated digests, and that there are no others.
fn check_weights(statement: &Statement, folder: &Path) -> Finding {
    for (name, stated) in &statement.weights_sha256 {
        let path = folder.join(name);
        // The adapter repeats what the weights contain; a model without it is complete.
        if name == ADAPTER_FILE && !path.exists() {
            continue;
        }
        if !path.is_file() {
            return Err(Failure::new(format!("{} is missing", path.display())));
        }
        let sum = snapshot::digest_file(&path)?;
        if sum != *stated {
            return Err(Failure::new(format!("{name}: expected SHA-256 {stated}, got {sum}")));
        }
    }
    let adapter = folder.join(ADAPTER_FILE).exists().then(|| ADAPTER_FILE.to_string());
    for name in weight_files(folder)?.into_iter().chain(adapter) {
        if !statement.weights_sha256.iter().any(|(known, _)| *known == name) {
            return Err(Failure::new(format!("{name} is not listed in the statement")));
        }
    }
    let list: Vec<String> = statement
        .weights_sha256
        .iter()
        .map(|(name, sum)| format!("{name} {}…", &sum[..12]))
        .collect();
    Ok(list.join(", "))
}
