//! Runs: configuration, and the files of their folders.

use super::models::strip;
use super::{done, text};
use crate::scratch::Scratch;
use crate::shape::shape;
use crate::structure::{FILES, unpack};
use crate::target::ReadOutcome;
use muffle::Config;
use muffle::Plan;
use muffle::Statement;
use muffle::accounting::{Accountant, Adjacency, Delta, Ledger, Unit};
use muffle::config::Auto;
use muffle::curator::PrivateState;
use muffle::optim::{Multipliers, Optimizer, Setting, registry};
use muffle::protocol::{Params, Refused, Role, Trainable};
use muffle::report;
use muffle::run::chain::Chain;
use muffle::run::folder::Folder;
use muffle::run::history as looks;
use muffle::run::result;
use muffle::run::snapshot::Snapshot;
use muffle::verify::signature::{PublicKey, SecretKey};
use std::io;
use tensor::Array;

pub(crate) const TOML: &[&str] = &[
    "[model]",
    "[data]",
    "[privacy]",
    "[optimizer]",
    "[training]",
    "[evaluation]",
    "[optimizer.hyfree]",
    "\"auto\"",
    "\"hyfree\"",
    "\"embedded\"",
    "\"dp-sgd\"",
    "\"sgd\"",
    "\"dp-prism\"",
    "\"dp-adaclip\"",
    "\"dp-macadam\"",
    "\"dp-muon-bc\"",
    "\"poisson\"",
    "\"fixed\"",
    "\"shuffled\"",
    "\"full\"",
    "\"rdp\"",
    "\"pld\"",
    "\"quintic\"",
    "epsilon = 8.0",
    "sigma = 1.0",
    "steps = 3",
    "lot_size = 4",
    "epochs = 2.0",
    "probes = 1",
    "newton_schulz_degree = 2",
    "nan",
    "inf",
    "true",
    "\"\"\"",
    "'''",
    "= ",
    "privacy.epsilon=",
    "training.steps=",
    "optimizer.betas=",
    "[0.9, 0.99]",
    "\n",
    "1979-05-27",
];
pub(crate) const LEDGER: &[&str] = &[
    "\"version\":1",
    "\"events\":",
    "\"non-private\"",
    "\"gaussian\"",
    "\"lots\":",
    "\"full\"",
    "{\"poisson\":{\"rate\":0.5}}",
    "{\"shuffled\":{\"dataset\":10,\"lot\":4}}",
    "{\"fixed-size\":{\"dataset\":10,\"lot\":2}}",
    "\"release\":",
    "[[1.0,1]]",
    "[]",
    "null",
    "1e-300",
    "1e300",
];
pub(crate) const CHAIN: &[&str] = &[
    "\"version\":2",
    "\"run_id\":",
    "\"events\":",
    "\"sessions\":",
    "\"charges\":",
    "\"from\":",
    "\"closing\":null",
    "\"closing\":{\"weights_sha256\":[],\"config_sha256\":\"\",\"statement_sha256\":\"\"}",
    "\"head\":",
    "\"non-private\"",
    "00000000000000000000000000000000",
    "[]",
    "null",
];
pub(crate) const KEYS: &[&str] = &[
    "muffle-ed25519-secret ",
    "muffle-ed25519-public ",
    "muffle-ed25519-signature ",
    "00",
    "ff",
    "\n",
];
pub(crate) const SEALED: &[&str] = &[
    "\"version\":1",
    "\"draws\":",
    "\"epoch\":",
    "null",
    "\"key\":",
    "\"done\":",
    "\"paid\":",
    "[[1.0,1]]",
    "QWXZVJKQ",
];
pub(crate) const SNAPSHOT: &[&str] = &[
    "\"version\": 2",
    "\"step\":",
    "\"optimizer\":",
    "\"kind\":",
    "\"numbers\":",
    "\"tensors\":",
    "\"parts\":",
    "\"first\":",
    "\"belongs\":",
    "\"files\":",
    "\"selection\": {\"rule\": \"best-nll\", \"best\": [1, 0], \"chosen\": 1, \"latest\": null}",
    "{}",
    "[]",
    "\"F32\"",
    "\"F64\"",
    "\"shape\":",
    "\"data_offsets\":",
    "\"m.0\":",
    "\"0\":",
    "9218868437227405312",
    "\"adam\"",
    "\"sgd\"",
    "\"schedule\"",
];
pub(crate) const STATEMENT: &[&str] = &[
    "\"private\":true",
    "\"epsilon\":",
    "\"delta\":",
    "null",
    "\"unit\":",
    "{\"adjacency\":\"replace-one\",\"rows\":2}",
    "\"accountant\":\"pld\"",
    "\"ledger\":",
    "\"records\":",
    "\"lot_size\":",
    "\"noise_multiplier\":",
    "\"promised_epsilon\":",
    "\"person_column\":\"who\"",
    "\"person_rows\":\"combined\"",
    "\"sampling\":\"shuffled\"",
    "\"randomness\":{\"fixed-seed\":7}",
    "\"operating-system\"",
    "\"noise\":\"float\"",
    "\"isolation\":\"up-to-rounding\"",
    "\"figures\":\"NON-PRIVATE\"",
    "\"summary\":[]",
    "1e308",
    "0.0",
];
pub(crate) const HISTORY: &[&str] = &[
    "\"step\":",
    "\"epsilon\":",
    "\"learning_rate\":",
    "\"figures\":\"public\"",
    "\"figures\":\"NON-PRIVATE\"",
    "\"nll\":",
    "\"accuracy\":",
    "\"bleu\":",
    "null",
    "1e308",
    "-1e308",
    "5e-324",
];
pub(crate) const RESULT: &[&str] = &[
    "\"epsilon\":\"inf\"",
    "\"metrics\":",
    "\"nll\":",
    "\"perplexity\":",
    "\"accuracy\":",
    "\"bleu\":",
    "\"rouge_l\":",
    "null",
    "1e308",
    "{}",
    "[]",
];

/// Tensors of every kind that an optimizer knows, and their values.
pub fn tensors(pairs: bool) -> (Vec<Trainable>, Params) {
    let tensor = |name: &str, shape: &[usize], role| Trainable::new(name, shape, role);
    let list = if pairs {
        vec![
            tensor("a.lora_left", &[3, 2], Role::Left(1)),
            tensor("a.lora_right", &[4, 2], Role::Right(0)),
            tensor("head", &[2, 3], Role::Head),
        ]
    } else {
        vec![
            tensor("a", &[3, 4], Role::Hidden),
            tensor("table", &[4, 3], Role::Table),
            tensor("bias", &[3], Role::Vector),
        ]
    };
    let values = list
        .iter()
        .map(|tensor| Array::from_fn(tensor.shape.as_slice(), |i| 0.1 * i as f32 - 0.2))
        .collect();
    (list, Params::new(values))
}

/// Builds the optimizer of a configuration for these tensors, with unit noise.
///
/// # Errors
/// If a hyperparameter is out of range, or the tensors do not fit the optimizer.
pub fn build(
    config: &Config,
    tensors: &[Trainable],
    params: &Params,
) -> Result<Optimizer, Refused> {
    config.optimizer.build(&Setting {
        tensors,
        params,
        lot_size: 4.0,
        steps: 10,
        sigma: Multipliers { gradient: 1.0, probe: 1.0 },
        origin: Default::default(),
        seed: config.model.seed,
    })
}

/// The optimizer that a configuration asks for.
pub(crate) fn optimizer(config: &Config) -> Result<Optimizer, String> {
    let (tensors, params) = tensors(config.optimizer.entry().needs_pairs);
    build(config, &tensors, &params).map_err(|refused| refused.to_string())
}

/// An error as the program prints it: without control characters.
fn printed(error: impl ToString) -> String {
    muffle::Error::Audit(error.to_string()).to_string()
}

/// One input in so many.
fn chosen(input: &[u8], seldom: u64) -> bool {
    input
        .iter()
        .fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)))
        .is_multiple_of(seldom)
}

/// `RUN.toml`, and what follows from it as far as that is cheap.
pub(crate) fn config(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    match Config::parse(text) {
        Err(error) => {
            let error = error.to_string();
            assert!(!error.contains('\n'), "an error has several lines");
            ReadOutcome { accepted: false, message: printed(error) }
        }
        Ok(config) => {
            ReadOutcome { accepted: true, message: consequences(&config, chosen(input, 512)) }
        }
    }
}

/// Whether it makes sense; if so its optimizer and its plan. Unless `exact`, noise is given and
/// priced by RDP: to find it takes long.
fn consequences(config: &Config, exact: bool) -> String {
    let printed = config.print();
    assert_eq!(
        done(Config::parse(&printed)).print(),
        printed,
        "the configuration does not round-trip"
    );
    if let Err(failed) = Plan::check(config) {
        return shape(&failed.to_string());
    }
    let optimizer = match optimizer(config) {
        Ok(optimizer) => optimizer,
        Err(refused) => return shape(&refused),
    };
    optimizer.lots(0);
    let mut config = config.clone();
    if !exact {
        config.privacy.accountant = Accountant::Rdp;
        config.privacy.epsilon = Auto::Auto;
        config.privacy.sigma = Auto::Value(config.privacy.sigma.or(1.0));
    }
    let (tensors, _) = tensors(config.optimizer.entry().needs_pairs);
    Plan::new(&config, 50, &tensors)
        .map_or_else(|unplanned| shape(&unplanned.to_string()), |_| "planned".into())
}

/// `--set KEY=VALUE`.
pub(crate) fn set(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let change = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    ReadOutcome::of(Config::embedded().with(change).map_err(printed), |config| {
        consequences(&config, false)
    })
}

/// `ledger.json`: all hashes are recomputed.
pub(crate) fn chain(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    ReadOutcome::of(Chain::parse(text).map_err(printed), |chain| {
        assert_eq!(done(Chain::parse(&done(chain.to_text()))), chain, "it does not round-trip");
        done(chain.check(&chain.mark(), "it"));
        format!("{} {}", chain.sessions().len(), chain.closing().is_some())
    })
}

/// A public key, a line with its signature, and a secret key, none of which may be shown.
pub(crate) fn keys(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    let path = scratch.at("key");
    done(scratch.put("key", input));
    #[cfg(unix)]
    done(std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)));
    let secret = SecretKey::read(&path).map_err(|failed| strip(scratch, &failed.to_string()));
    let (public, message) = match (PublicKey::parse(text), secret) {
        (Ok(key), _) => (key, "public".to_string()),
        (_, Ok(key)) => (key.public(), "secret".to_string()),
        (Err(public), Err(secret)) => {
            return ReadOutcome {
                accepted: false,
                message: printed(format!("{public}; {secret}")),
            };
        }
    };
    let statement: Statement = done(Statement::of_run(&scratch.at("run")));
    let signed = format!("muffle-ed25519-signature {} {text}", public.fingerprint());
    assert!(public.check(&statement, &signed).is_err(), "an invalid signature was accepted");
    ReadOutcome { accepted: true, message }
}

/// The charges of a statement; for some of them, what they cost.
pub(crate) fn ledger(_: &Scratch, input: &[u8]) -> ReadOutcome {
    ReadOutcome::of(serde_json::from_slice::<Ledger>(input).map_err(printed), |ledger| {
        let text = done(serde_json::to_string(&ledger));
        assert_eq!(done(serde_json::from_str::<Ledger>(&text)), ledger);
        let unit = Unit { adjacency: Adjacency::ReplaceOne, rows: 1 };
        let cost = match ledger.cost(unit) {
            Ok(cost) => cost,
            Err(error) => return shape(&error.to_string()),
        };
        if !chosen(input, 4) {
            return format!("{}", ledger.events().has_non_private());
        }
        let accountant = if chosen(input, 64) { Accountant::Pld } else { Accountant::Rdp };
        match Delta::new(1e-5).and_then(|delta| cost.epsilon(accountant, delta)) {
            Ok(guarantee) => {
                assert!(guarantee.epsilon >= 0.0, "ε = {}", guarantee.epsilon);
                format!(
                    "costs {}",
                    if guarantee.epsilon.is_finite() { "something" } else { "everything" }
                )
            }
            Err(error) => shape(&error.to_string()),
        }
    })
}

/// The curator's saved state. The message must not show it.
pub(crate) fn sealed(_: &Scratch, input: &[u8]) -> ReadOutcome {
    let text = match text(input) {
        Ok(text) => text,
        Err(seen) => return seen,
    };
    ReadOutcome::of(PrivateState::from_text(text), |sealed| {
        let again = done(PrivateState::from_text(&done(sealed.to_text())));
        assert!(again == sealed, "it does not round-trip");
        assert_eq!(format!("{sealed:?}"), "PrivateState(…)");
        format!("{}", sealed.draws() > 0)
    })
}

/// A snapshot, and the optimizer's part of it.
pub(crate) fn snapshot(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    for (name, file) in FILES.iter().zip(unpack(input)) {
        done(scratch.put(&format!("checkpoints/step-000000001/{name}"), file));
    }
    let mut warnings = String::new();
    let newest = Snapshot::newest(&scratch.at("checkpoints"), &mut |line| warnings += line);
    let Ok(Some(snapshot)) = newest else {
        return ReadOutcome { accepted: false, message: strip(scratch, &warnings) };
    };
    let kind =
        snapshot.optimizer.parts.get("descent").map(|part| part.kind.clone()).unwrap_or_default();
    let name = registry::names().find(|name| name.contains(&kind)).unwrap_or("dp-sgd");
    let mut config = done(Config::embedded().with(&format!("optimizer.name={name}")));
    if snapshot.optimizer.parts.get("search").is_some_and(|part| part.kind.contains("hyfree")) {
        config = done(config.with("optimizer.learning_rate=hyfree"));
    }
    let mut optimizer = done(optimizer(&config));
    let message = match optimizer.load(snapshot.optimizer.clone()) {
        Ok(()) => {
            optimizer.lots(optimizer.steps());
            format!("{} resumes", shape(&kind))
        }
        Err(refused) => shape(&format!("{kind}: {refused}")),
    };
    ReadOutcome { accepted: true, message }
}

/// Documents of a run without privacy, which `corpus.py` writes.
const RESULT_WITHOUT_PRIVACY: &[u8] = include_bytes!("../../corpus/result/none.json");
const STATEMENT_WITHOUT_PRIVACY: &[u8] = include_bytes!("../../corpus/statement/plain.json");

/// The folder of a run without privacy, whose report is cheap.
pub(crate) fn prepare(scratch: &Scratch) -> io::Result<()> {
    scratch.put("run/config.toml", Config::embedded().print().as_bytes())?;
    scratch.put("run/result.json", RESULT_WITHOUT_PRIVACY)?;
    scratch.put("run/model/privacy.json", STATEMENT_WITHOUT_PRIVACY)?;
    Ok(())
}

/// The report of the folder, with one file replaced.
fn reported(scratch: &Scratch, name: &str, input: &[u8]) -> Result<usize, String> {
    done(scratch.put(&format!("run/{name}"), input));
    let folder = done(Folder::open_read_only(&scratch.at("run")));
    let page = report::page(&folder, &report::Redaction::default())
        .map_err(|failed| strip(scratch, &failed.to_string()))?;
    Ok(page.html().len())
}

/// `history.jsonl`: invalid lines are ignored.
pub(crate) fn history(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    let page = reported(scratch, looks::FILE, input);
    let folder = done(Folder::open_read_only(&scratch.at("run")));
    let all = looks::read(&folder, u64::MAX).unwrap_or_default();
    let some = |some: bool| if some { "+" } else { "-" };
    let has = [
        all.iter().any(|look| look.nll.is_some()),
        all.iter().any(|look| look.epsilon.is_some()),
        all.iter().any(|look| look.step > 1 << 40),
    ];
    let message = page.map_or_else(|error| error, |_| has.map(some).concat());
    ReadOutcome { accepted: !all.is_empty(), message }
}

pub(crate) fn result(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    ReadOutcome::of(reported(scratch, result::RESULT, input), |length| format!("{}", length / 4096))
}

pub(crate) fn samples(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    ReadOutcome::of(reported(scratch, result::SAMPLES, input), |length| {
        format!("{}", length / 4096)
    })
}

/// `privacy.json`; its report where nothing has to be priced.
pub(crate) fn statement(scratch: &Scratch, input: &[u8]) -> ReadOutcome {
    done(scratch.put("run/model/privacy.json", input));
    let read: Result<Statement, _> = Statement::of_run(&scratch.at("run"));
    let seen = ReadOutcome::of(read, |statement| {
        let words = statement.words().concat();
        let text = done(serde_json::to_string(&statement));
        let priced = statement.unit.is_some() && statement.delta.is_some();
        let page =
            if priced { Ok(0) } else { reported(scratch, result::RESULT, RESULT_WITHOUT_PRIVACY) };
        assert!(text.contains("ledger"));
        format!(
            "{} {} {}",
            words.len() / 256,
            priced,
            page.map_or_else(|error| shape(&error), |_| "reported".into())
        )
    });
    ReadOutcome { message: strip(scratch, &seen.message), ..seen }
}
