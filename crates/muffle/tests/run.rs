//! Runs on disk: results, interruptions and refusals.

#![allow(clippy::unwrap_used)]

#[path = "support/folders.rs"]
mod folders;

use accounting::{Composition, Ledger};
use folders::copy;
use muffle::Error;
use muffle::Statement;
use muffle::config::Config;
use muffle::load::data::Split;
use muffle::report::Marking;
use muffle::report::statement::RandomnessSource;
use muffle::run::chain::Chain;
use muffle::run::{Progress, RunObserver, RunStart, Silent, resume, train};
use std::path::{Path, PathBuf};

/// A run of a few steps on the embedded corpus: small enough for tests.
fn config(more: &str) -> Config {
    let mut config = Config::default();
    config.privacy.epsilon = muffle::config::Auto::Value(8.0);
    config.evaluation.beams = 1;
    config.training.steps = muffle::config::Auto::Value(6);
    config.training.lot_size = muffle::config::Auto::Value(20);
    config.training.checkpoint_every = 2;
    config.data.max_length = muffle::config::Auto::Value(129);
    config.data.train = corpus(Split::Train, 400);
    config.data.validation = Some(corpus(Split::Validation, 40).into());
    config.data.evaluation_data = muffle::config::Auto::Value(muffle::config::Publicity::Public);
    config.model.source = "tiny".into();
    config.model.tokenizer = muffle::config::Auto::Value(tokenizer());
    config.evaluation.samples = 1;
    config.evaluation.examples = 20;
    config.evaluation.max_new_tokens = 8;
    more.lines()
        .filter(|line| !line.trim().is_empty())
        .fold(config, |config, change| config.with(change).unwrap())
}

/// Pairs of the embedded corpus, as a file.
fn corpus(split: Split, count: usize) -> String {
    let path = std::env::temp_dir().join(format!("muffle-{split:?}-{}.txt", std::process::id()));
    if !path.exists() {
        let line =
            |pair: muffle::load::corpus::CorpusPair| format!("{}||{}\n", pair.source, pair.target);
        let text: String =
            muffle::load::corpus::pairs(split, count).into_iter().map(line).collect();
        let beside = path.with_extension(format!("{:?}", std::thread::current().id()));
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &path).unwrap();
    }
    path.to_string_lossy().into_owned()
}

fn tokenizer() -> PathBuf {
    let path = std::env::temp_dir().join(format!("muffle-tokenizer-{}.json", std::process::id()));
    if !path.exists() {
        let texts: Vec<String> = muffle::load::corpus::pairs(Split::Validation, 300)
            .into_iter()
            .map(|pair| pair.source + &pair.target)
            .collect();
        let made =
            text::Tokenizer::train(texts.iter().map(String::as_str), 400, &["<bos>", "<eos>"])
                .unwrap();
        let beside = path.with_extension(format!("{:?}", std::thread::current().id()));
        made.save(&beside).unwrap();
        std::fs::rename(&beside, &path).unwrap();
    }
    path
}

/// An observer that stops after a step and records progress and messages.
#[derive(Default)]
struct Stopping {
    after: u64,
    steps: Vec<u64>,
    epsilons: Vec<f64>,
    first_step: u64,
    messages: Vec<String>,
}

impl RunObserver for Stopping {
    fn message(&mut self, line: &str) {
        self.messages.push(line.into());
    }
    fn started(&mut self, start: &RunStart<'_>) {
        self.first_step = start.step;
    }
    fn stepped(&mut self, progress: &Progress) {
        self.steps.push(progress.step);
        self.epsilons.extend(progress.latest.epsilon);
    }
    fn should_stop(&mut self) -> bool {
        self.steps.last() == Some(&self.after)
    }
}

/// All files of a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

fn chain(folder: &Path) -> Chain {
    Chain::parse(&std::fs::read_to_string(folder.join("ledger.json")).unwrap()).unwrap()
}

fn ledger(folder: &Path) -> Ledger {
    chain(folder).ledger().clone()
}

/// Replaces the ledger by one with fewer charges and matching hashes.
fn truncate_ledger(folder: &Path, charges: u64) {
    let whole = chain(folder);
    let (mut events, mut left) = (Composition::new(), charges);
    for (event, count) in whole.ledger().events().runs() {
        events.push(event.clone(), left.min(*count)).unwrap();
        left -= left.min(*count);
    }
    assert!(left == 0 && charges < whole.charges());
    let sessions: Vec<_> =
        whole.sessions().iter().filter(|session| session.charges <= charges).cloned().collect();
    let older = Chain::rebuild(whole.run_id(), &events, &sessions).unwrap();
    std::fs::write(folder.join("ledger.json"), older.to_text().unwrap()).unwrap();
}

#[test]
fn a_run_writes_a_model_with_a_reproducible_statement() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let outcome = train(&config("evaluation.score=true"), &out, &mut Silent).unwrap();
    let statement = outcome.statement;
    assert_eq!((statement.steps, statement.records, statement.private), (6, 400, true));
    assert_eq!(statement.ledger, ledger(&out));
    let text = std::fs::read_to_string(out.join("model/privacy.json")).unwrap();
    let read: Statement = serde_json::from_str(&text).unwrap();
    let unit = read.unit.unwrap();
    let again = read
        .ledger
        .cost(unit)
        .unwrap()
        .epsilon(accounting::Accountant::Best, accounting::Delta::new(read.delta.unwrap()).unwrap())
        .unwrap();
    assert!(
        (again.epsilon - read.epsilon.unwrap()).abs() < 1e-9 && again.epsilon <= 8.0,
        "{again:?}"
    );
    // Some of the 400 have more tokens than the model takes; their sources are cut.
    assert_eq!(read.delta, Some(0.1 / 400.0));
    assert!(!out.join("sealed").exists(), "nothing is sealed when it is over");
    // The saved model, loaded again, has the same scores.
    let mut config = Config::default().data;
    config.train = corpus(Split::Validation, 40);
    let model =
        muffle::LoadedModel::open_for_inference(out.to_str().unwrap(), &mut |_| ()).unwrap();
    let preparation = model.preparation(&[], model.max_tokens() + 1);
    let rows = muffle::load::data::rows(&config, Split::Train).unwrap().unwrap();
    let scores = muffle::evaluate::rows(
        &mut model.network.new_instance(),
        &model.params,
        &preparation,
        rows,
        usize::MAX,
    )
    .unwrap();
    let known = outcome.scores.unwrap();
    assert!(
        (scores.nll.unwrap() - known.nll.unwrap()).abs() < 1e-6 && scores.tokens == known.tokens,
        "{scores:?} {known:?}"
    );
    assert!(outcome.texts.is_some() && outcome.samples.len() == 1);
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(
        html.contains("<i>ε</i> = 8.000<")
            && html.contains(&outcome.samples[0].source)
            && !html.contains("NON-PRIVATE")
    );
    // No row is in any file that is released.
    let people = std::fs::read_to_string(corpus(Split::Train, 400)).unwrap();
    for entry in walk(&out) {
        let bytes = std::fs::read(&entry).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            people.lines().all(|line| !text.contains(line.split("||").nth(1).unwrap())),
            "{}",
            entry.display()
        );
    }
    assert!(matches!(
        resume(&out, &mut Silent),
        Err(Error::Folder { message, .. }) if message.contains("complete")
    ));
    assert!(matches!(
        train(&self::config(""), &out, &mut Silent),
        Err(Error::Folder { message, .. }) if message.contains("muffle resume")
    ));
}

/// A stopped run loses no step; its ledger is the same as without the stop.
#[test]
fn a_stopped_run_is_resumed() {
    for (name, more) in [
        ("poisson", ""),
        ("shuffled", "privacy.sampling=shuffled"),
        ("hyfree", "optimizer.learning_rate=hyfree\noptimizer.hyfree.every=2"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let (out, whole) = (place.path().join("run"), place.path().join("whole"));
        let mut first = Stopping { after: 3, ..Stopping::default() };
        assert!(matches!(train(&config(more), &out, &mut first), Err(Error::Stopped)), "{name}");
        assert!(out.join("sealed").is_dir() && !out.join("model").exists());
        let mut second = Stopping::default();
        let outcome = resume(&out, &mut second).unwrap();
        assert_eq!((second.first_step, second.steps.as_slice()), (3, &[4, 5, 6][..]), "{name}");
        assert_eq!(outcome.statement.steps, 6);
        let uninterrupted = train(&config(more), &whole, &mut Silent).unwrap();
        assert_eq!(outcome.statement.ledger, uninterrupted.statement.ledger, "{name}");
        assert_eq!(
            (outcome.statement.sessions.len(), uninterrupted.statement.sessions.len()),
            (2, 1)
        );
        // The history has one entry for each evaluated step.
        let history = std::fs::read_to_string(out.join("history.jsonl")).unwrap();
        let steps: Vec<u64> = history
            .lines()
            .map(|line| {
                serde_json::from_str::<muffle::run::history::HistoryEntry>(line).unwrap().step
            })
            .collect();
        assert_eq!(steps, (0..=6).collect::<Vec<_>>(), "{name}");
        assert!(first.epsilons.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
    }
}

/// After a kill between a charge and the next checkpoint, the charge counts and the run ends
/// earlier.
#[test]
fn charged_and_lost_steps_are_not_repeated() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let mut first = Stopping { after: 3, ..Stopping::default() };
    assert!(train(&config(""), &out, &mut first).is_err());
    // The state after a kill in step 4, before the checkpoint of step 3 was written.
    std::fs::remove_dir_all(out.join("checkpoints/step-000000003")).unwrap();
    let mut spent = chain(&out);
    let event = spent.ledger().events().runs()[0].0.clone();
    spent.charge(&event).unwrap();
    std::fs::write(out.join("ledger.json"), spent.to_text().unwrap()).unwrap();
    let mut second = Stopping::default();
    let outcome = resume(&out, &mut second).unwrap();
    assert_eq!(second.first_step, 2);
    // 6 steps were planned and 4 charged, of which 2 are in the model: the budget has 2 more.
    assert_eq!((outcome.statement.steps, outcome.statement.ledger.events().len()), (4, 6));
    assert!(outcome.statement.epsilon.unwrap() <= 8.0);
    assert!(
        second.messages.iter().any(|line| line.contains("2 steps were charged and lost")),
        "{:?}",
        second.messages
    );
}

/// An older ledger, other data and damaged private state are refused.
#[test]
fn replaced_files_are_refused() {
    let stopped = |more: &str| {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("run");
        let config = config(more);
        let data = place.path().join("people.txt");
        std::fs::copy(&config.data.train, &data).unwrap();
        let config = Config {
            data: muffle::config::Data {
                train: data.to_string_lossy().into(),
                ..config.data.clone()
            },
            ..config
        };
        assert!(train(&config, &out, &mut Stopping { after: 3, ..Stopping::default() }).is_err());
        (place, out, data)
    };
    let refused = |out: &Path, part: &str| {
        let failed = resume(out, &mut Silent).unwrap_err().to_string();
        assert!(failed.contains(part) && failed.lines().count() == 1, "{failed}");
    };
    let (_temporary, out, _) = stopped("");
    truncate_ledger(&out, 0);
    refused(&out, "replaced by an older one");
    for after in [1, 3] {
        // Before the first checkpoint as well as after it.
        let (_temporary, out, _) = stopped(&format!("training.checkpoint_every={}", 10 * after));
        std::fs::remove_file(out.join("ledger.json")).unwrap();
        refused(&out, "missing");
    }
    let (_temporary, out, _) = stopped("privacy.seed=5");
    std::fs::remove_dir_all(out.join("sealed")).unwrap();
    refused(&out, "sealed/ is missing");
    // Twice as many lots as steps: one charge less is still detected.
    let (_temporary, out, _) = stopped("optimizer.learning_rate=hyfree\noptimizer.hyfree.every=1");
    let charges = chain(&out).charges();
    assert!(charges > 4, "{charges}");
    truncate_ledger(&out, charges - 1);
    refused(&out, "replaced by an older one");
    // A sampler from before the checkpoint.
    let (_temporary, out, _) = stopped("privacy.sampling=shuffled");
    let sampler = out.join("sealed/sampler.json");
    let text = std::fs::read_to_string(&sampler).unwrap();
    let older = text.replacen("\\\"draws\\\":3", "\\\"draws\\\":2", 1);
    assert_ne!(older, text);
    std::fs::write(&sampler, older).unwrap();
    refused(&out, "the file was replaced by an older one");
    for (from, to) in [
        ("name = \"dp-adam\"", "name = \"adam\""),
        ("steps = 6", "steps = 9"),
        ("adjacency = \"add-remove\"", "adjacency = \"replace-one\""),
    ] {
        let (_temporary, out, _) = stopped("");
        let text = std::fs::read_to_string(out.join("config.toml")).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(out.join("config.toml"), text.replace(from, to)).unwrap();
        assert!(resume(&out, &mut Silent).is_err(), "{to}");
    }
    let (_temporary, out, _) = stopped("");
    std::fs::write(out.join("ledger.json"), "{").unwrap();
    refused(&out, "ledger.json: invalid JSON");
    let (_temporary, out, data) = stopped("");
    std::fs::write(
        &data,
        std::fs::read_to_string(&data).unwrap().replacen("name : ", "name : X", 1),
    )
    .unwrap();
    refused(&out, "not the data");
    let (_temporary, out, _) = stopped("privacy.sampling=shuffled");
    std::fs::write(out.join("sealed/sampler.json"), "{}").unwrap();
    refused(&out, "not the state of a sampler");
    let (_temporary, out, _) = stopped("");
    let text = std::fs::read_to_string(out.join("config.toml")).unwrap();
    std::fs::write(out.join("config.toml"), text.replace("lot_size = 20", "lot_size = 21"))
        .unwrap();
    refused(&out, "not the configuration");
    // Performance and evaluation settings may change.
    let (_temporary, out, _) = stopped("");
    let text = std::fs::read_to_string(out.join("config.toml")).unwrap();
    std::fs::write(
        out.join("config.toml"),
        text.replace("micro_batch = \"auto\"", "micro_batch = 7")
            .replace("samples = 1", "samples = 2"),
    )
    .unwrap();
    assert_eq!(resume(&out, &mut Silent).unwrap().samples.len(), 2);
}

/// Copies the folder before the first charge.
struct Copying {
    from: PathBuf,
    to: PathBuf,
}

impl RunObserver for Copying {
    fn message(&mut self, _: &str) {}
    fn started(&mut self, _: &RunStart<'_>) {}
    fn stepped(&mut self, progress: &Progress) {
        if progress.step == 0 {
            copy(&self.from, &self.to);
        }
    }
    fn should_stop(&mut self) -> bool {
        true
    }
}

/// A run that was killed before its first lot was drawn is resumed.
#[test]
fn a_run_without_a_completed_step_is_resumed() {
    for more in ["", "privacy.sampling=shuffled", "privacy.seed=4"] {
        let place = tempfile::tempdir().unwrap();
        let (out, early) = (place.path().join("run"), place.path().join("early"));
        assert!(
            train(&config(more), &out, &mut Copying { from: out.clone(), to: early.clone() })
                .is_err()
        );
        assert_eq!(chain(&early).charges(), 0);
        let outcome = resume(&early, &mut Silent).unwrap();
        assert_eq!(outcome.statement.steps, 6, "{more}");
        let history = std::fs::read_to_string(early.join("history.jsonl")).unwrap();
        assert_eq!(history.matches("\"step\":0,").count(), 1);
    }
}

/// A ledger that is replaced by the one of the last checkpoint is refused: the charges since then
/// would be missing.
#[test]
fn an_older_ledger_is_refused() {
    let killed = || {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("run");
        assert!(
            train(&config(""), &out, &mut Stopping { after: 3, ..Stopping::default() }).is_err()
        );
        std::fs::remove_dir_all(out.join("checkpoints/step-000000003")).unwrap();
        assert_eq!(chain(&out).charges(), 3);
        (place, out)
    };
    let refused = |out: &Path, part: &str| {
        let before = std::fs::read(out.join("ledger.json")).unwrap();
        let failed = resume(out, &mut Silent).unwrap_err().to_string();
        assert!(failed.contains(part) && failed.lines().count() == 1, "{failed}");
        assert_eq!(
            std::fs::read(out.join("ledger.json")).unwrap(),
            before,
            "a refused process leaves no trace"
        );
    };
    // With matching hashes.
    let (_temporary, out) = killed();
    truncate_ledger(&out, 2);
    refused(
        &out,
        "the ledger has 2 charges, but the sealed mark was written after 3: the ledger was \
         replaced by an older one",
    );
    // With changed numbers and unchanged hashes.
    let (_temporary, out) = killed();
    let text = std::fs::read_to_string(out.join("ledger.json")).unwrap();
    std::fs::write(out.join("ledger.json"), text.replacen(",3]]", ",2]]", 1)).unwrap();
    refused(&out, "an entry was changed");
    // Without the mark, or with the mark of another run.
    let (_temporary, out) = killed();
    std::fs::remove_file(out.join("sealed/mark.json")).unwrap();
    refused(&out, "mark.json: missing");
    let (_temporary, out) = killed();
    let (_other, theirs) = killed();
    std::fs::copy(theirs.join("sealed/mark.json"), out.join("sealed/mark.json")).unwrap();
    refused(&out, "files of two runs were mixed");
    // With a checkpoint or the ledger of another run.
    let (_temporary, out) = killed();
    std::fs::remove_dir_all(out.join("checkpoints")).unwrap();
    copy(&theirs.join("checkpoints"), &out.join("checkpoints"));
    refused(&out, "files of two runs were mixed");
    let (_temporary, out) = killed();
    std::fs::copy(theirs.join("ledger.json"), out.join("ledger.json")).unwrap();
    refused(&out, "files of two runs were mixed");
}

/// A sampler that is replaced by the one of the last checkpoint is refused: the lots drawn since
/// then would be drawn again without a charge.
#[test]
fn an_older_sampler_is_refused() {
    /// Copies a file after the second step, and stops after the third.
    struct Keeping(PathBuf, u64);
    impl RunObserver for Keeping {
        fn message(&mut self, _: &str) {}
        fn started(&mut self, _: &RunStart<'_>) {}
        fn stepped(&mut self, progress: &Progress) {
            self.1 = progress.step;
            if progress.step == 2 {
                std::fs::copy(&self.0, self.0.with_extension("old")).unwrap();
            }
        }
        fn should_stop(&mut self) -> bool {
            self.1 == 3
        }
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let sampler = out.join("sealed/sampler.json");
    assert!(
        train(&config("privacy.sampling=shuffled"), &out, &mut Keeping(sampler.clone(), 0))
            .is_err()
    );
    std::fs::remove_dir_all(out.join("checkpoints/step-000000003")).unwrap();
    assert_eq!(chain(&out).charges(), 1, "one epoch pays for all three");
    let present = std::fs::read(&sampler).unwrap();
    std::fs::copy(sampler.with_extension("old"), &sampler).unwrap();
    let refused = resume(&out, &mut Silent).unwrap_err().to_string();
    assert!(refused.contains("drawn 2 lots, but the sealed mark was written after 3"), "{refused}");
    std::fs::remove_file(&sampler).unwrap();
    assert!(resume(&out, &mut Silent).unwrap_err().to_string().contains("drawn 0 lots"));
    std::fs::write(&sampler, present).unwrap();
    assert!(resume(&out, &mut Silent).is_ok());
}

/// Both copies have the same run id, but different ledger heads; their files cannot be mixed.
#[test]
fn two_resumed_copies_are_distinguished() {
    let place = tempfile::tempdir().unwrap();
    let (out, other) = (place.path().join("run"), place.path().join("other"));
    assert!(train(&config(""), &out, &mut Stopping { after: 3, ..Stopping::default() }).is_err());
    copy(&out, &other);
    let (a, b) = (resume(&out, &mut Silent).unwrap(), resume(&other, &mut Silent).unwrap());
    assert_eq!((a.chain.run_id(), a.chain.ledger()), (b.chain.run_id(), b.chain.ledger()));
    assert_eq!((a.chain.sessions().len(), &a.chain.sessions()[0]), (2, &b.chain.sessions()[0]));
    assert_ne!(a.chain.sessions()[1].id, b.chain.sessions()[1].id);
    assert_eq!(
        a.chain.sessions()[1].from,
        b.chain.sessions()[1].from,
        "both went on from the same head"
    );
    assert_ne!(a.statement.ledger_head, b.statement.ledger_head);
    assert!(
        a.statement.covered()[1].contains("2 sessions (the run was resumed)"),
        "{:?}",
        a.statement.summary
    );
    let verdict = muffle::verify::verify(&out).unwrap();
    assert!(verdict.consistent(), "{:#?}", verdict.checks);
    std::fs::copy(other.join("ledger.json"), out.join("ledger.json")).unwrap();
    assert!(!muffle::verify::verify(&out).unwrap().consistent());
}

#[test]
fn invalid_input_is_refused_and_leaves_no_folder() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = place.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_string_lossy().into_owned()
    };
    let (empty, binary, few) = (
        file("empty.txt", b""),
        file("binary.txt", b"a || \xff\xfe\n"),
        file("few.txt", b"name : A||A is here.\nname : B||B is here.\n"),
    );
    let short = file("short.txt", b"a b\n");
    for (changes, part) in [
        (format!("data.train={empty}"), "no records"),
        (format!("data.train={binary}\ndata.format=e2e"), "expected UTF-8"),
        (
            format!("data.train={few}"),
            "training.lot_size: expected at least 1 and at most 2, the number of records; got 20",
        ),
        ("data.train=/nowhere/x.txt".into(), "/nowhere/x.txt"),
        ("data.max_length=2".into(), "data.max_length: expected at least 4, got 2"),
        (
            "data.max_length=4\ndata.too_long=drop".into(),
            "data.validation: every row is empty or has 4 tokens",
        ),
        (
            format!(
                "data.max_length=4\ndata.too_long=drop\ndata.dropped_rows=public\n\
                 data.validation={short}"
            ),
            ".txt: every row is empty or has 4 tokens",
        ),
        ("data.max_length=5000".into(), "expected at most 129"),
        ("data.format=dart".into(), "line 1"),
        ("optimizer.name=dp-prism".into(), "model.lora_rank"),
        ("model.source=preset:gpt3".into(), "expected a preset"),
        ("model.source=/nowhere/at all".into(), "/nowhere/at all"),
        ("privacy.epsilon=1e-9\nprivacy.delta=1e-30".into(), "no noise multiplier"),
        (
            "privacy.sampling=shuffled\noptimizer.learning_rate=hyfree\n\
             optimizer.hyfree.every=1500"
                .into(),
            "drawn independently",
        ),
        ("data.test=/nowhere/test.txt".into(), "/nowhere/test.txt"),
        (format!("data.validation={}", corpus(Split::Train, 400)), "is the training data"),
        ("model.also_train=[\"x\"]".into(), "all parameters are trained"),
        (
            "model.lora_rank=2\nmodel.lora_on=[\"nothing\"]".into(),
            "model.lora_on: no weight that takes low-rank adapters",
        ),
    ] {
        let out = place.path().join("run");
        let failed = train(&config(&changes), &out, &mut Silent).unwrap_err().to_string();
        assert!(failed.contains(part) && failed.lines().count() == 1, "{changes}: {failed}");
        assert!(!out.exists(), "{changes}");
    }
}

/// The guarantee is for the person: with all rows as one record, or with up to k records.
#[test]
fn rows_per_person_are_limited() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("people.jsonl");
    let row = |i: usize| {
        format!(
            "{{\"prompt\":\"a {i}\",\"completion\":\"b {i}\",\"who\":\"person {}\"}}\n",
            if i < 50 { 0 } else { i }
        )
    };
    std::fs::write(&path, (0..150).map(row).collect::<String>()).unwrap();
    let outcome = train(
        &config(&format!(
            "data.train={}\ndata.group=who\ndata.person_rows=separate\ndata.rows_per_person=3\n\
             privacy.epsilon=8\ntraining.lot_size=20",
            path.display()
        )),
        &place.path().join("run"),
        &mut Silent,
    )
    .unwrap();
    assert_eq!(outcome.statement.records, 150);
    assert_eq!(outcome.statement.unit.unwrap().rows, 3);
    assert!(outcome.statement.covered()[0].contains("\"who\""));
    assert_eq!(outcome.statement.person_column.as_deref(), Some("who"));
    let combined = train(
        &config(&format!(
            "data.train={}\ndata.group=who\nprivacy.epsilon=8\ntraining.lot_size=20",
            path.display()
        )),
        &place.path().join("combined"),
        &mut Silent,
    )
    .unwrap()
    .statement;
    assert_eq!((combined.records, combined.unit.unwrap().rows), (101, 1));
    assert!(combined.covered()[0].contains("\"who\"") && combined.covered()[0].contains("as one"));
    assert!(combined.words()[0].contains("tests whether a person took part"));
    assert!(combined.words()[1].contains("all rows of one person"));
    let page = std::fs::read_to_string(place.path().join("combined/report.html")).unwrap();
    assert!(page.contains("whether a given person was in the data"));
    let folder = muffle::run::folder::Folder::open_read_only(&place.path().join("combined"));
    let hidden = muffle::report::Redaction::parse("names").unwrap();
    let hidden = muffle::report::page(&folder.unwrap(), &hidden).unwrap().html();
    assert!(page.contains("&quot;who&quot;") && !hidden.contains("who&quot;"));
    // The noise for three records per person is larger than for one.
    assert!(outcome.statement.noise_multiplier.unwrap() > 1.5 * combined.noise_multiplier.unwrap());
}

/// Figures on records outside the guarantee are marked.
#[test]
fn private_validation_data_is_marked() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let outcome = train(&config("data.evaluation_data=private"), &out, &mut Silent).unwrap();
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(html.contains("NON-PRIVATE"));
    assert!(outcome.statement.not_covered().iter().any(|line| line.contains("validation")));
    assert_eq!(outcome.statement.coverage.figures, Marking::NonPrivate);
    assert!(outcome.samples.is_empty(), "no row of theirs is shown");
    assert!(
        std::fs::read_to_string(out.join("history.jsonl"))
            .unwrap()
            .lines()
            .all(|line| line.contains("\"figures\":\"NON-PRIVATE\""))
    );
    assert_eq!(outcome.result().figures, Marking::NonPrivate);
    let result = std::fs::read_to_string(out.join("result.json")).unwrap();
    assert!(result.contains("\"figures\":\"NON-PRIVATE\""), "{result}");
    // Files are private unless they are declared public.
    let undeclared = Config {
        data: muffle::config::Data {
            evaluation_data: muffle::config::Auto::Auto,
            ..config("").data
        },
        ..config("")
    };
    assert_eq!(undeclared.data.publicity(), muffle::config::Publicity::Private);
    assert_eq!(Config::embedded().data.publicity(), muffle::config::Publicity::Public);
}

#[test]
fn a_non_private_run_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let mut first = Stopping { after: 2, ..Stopping::default() };
    assert!(train(&config("optimizer.name=adam"), &out, &mut first).is_err());
    let outcome = resume(&out, &mut Silent).unwrap();
    assert_eq!(
        (outcome.statement.private, outcome.statement.epsilon, outcome.statement.steps),
        (false, None, 6)
    );
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    // What the model says may reveal its training data, even on public prompts.
    assert!(page.contains("Not private") && page.contains(">NON-PRIVATE<"));
}

/// The same seed gives the same run up to rounding, for any micro-batch size, without a guarantee.
#[test]
fn a_fixed_seed_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &str| {
        train(&config(more), &place.path().join(name), &mut Silent).unwrap()
    };
    let nll = |outcome: &muffle::Outcome| outcome.scores.as_ref().unwrap().nll.unwrap();
    let (a, b) = (run("a", "privacy.seed=5"), run("b", "privacy.seed=5\ntraining.micro_batch=3"));
    assert!((nll(&a) - nll(&b)).abs() < 1e-4);
    assert!(
        a.statement.randomness == RandomnessSource::FixedSeed(5)
            && !a.statement.private
            && a.statement.covered().is_empty()
    );
    let page = std::fs::read_to_string(place.path().join("a/report.html")).unwrap();
    assert!(page.contains("Not private") && !page.contains("Membership tests"));
    assert!(!page.contains("Privacy cost") && page.contains(">NON-PRIVATE<"));
    let c = run("c", "");
    assert!((nll(&a) - nll(&c)).abs() > 1e-6);
}

/// Labels need public names; a language model predicts them as text, a CNN classifies images.
#[test]
fn labelled_texts_and_images() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let row =
        |i: usize| format!("{} is here\t{}\n", ["Ines", "Nils"][i % 2], ["good", "bad"][i % 2]);
    std::fs::write(
        at("people.tsv"),
        "sentence\tlabel\n".to_string() + &(0..60).map(row).collect::<String>(),
    )
    .unwrap();
    std::fs::write(
        at("public.tsv"),
        "sentence\tlabel\n".to_string() + &(1..11).map(row).collect::<String>(),
    )
    .unwrap();
    let texts = format!(
        "data.train={}\ndata.validation={}\noptimizer.name=adam",
        at("people.tsv").display(),
        at("public.tsv").display()
    );
    let outcome = train(&config(&texts), &at("texts"), &mut Silent).unwrap();
    // With two labels, a random guess is correct half of the time.
    let scores = outcome.scores.unwrap();
    assert!((0.0..=1.0).contains(&scores.accuracy.unwrap()) && scores.examples == 10);
    // A language model has a perplexity, and the metrics of its predicted labels.
    assert!(scores.perplexity.is_some() && scores.macro_f1.is_some() && scores.auroc.is_some());
    let matrix = scores.confusion_matrix.unwrap();
    assert_eq!(matrix.labels, ["bad", "good"]);
    assert_eq!(matrix.counts.iter().flatten().sum::<u64>(), 10);
    let model = muffle::LoadedModel::open_for_inference(at("texts").to_str().unwrap(), &mut |_| ())
        .unwrap();
    assert_eq!(model.labels(), ["bad", "good"]);
    let undeclared = texts.clone() + "\ndata.evaluation_data=private";
    let failed = train(&config(&undeclared), &at("x"), &mut Silent).unwrap_err().to_string();
    assert!(failed.contains("data.labels"), "{failed}");
    let failed =
        train(&config(&(texts + "\ndata.labels=[\"good\", \"worse\"]")), &at("x"), &mut Silent)
            .unwrap_err()
            .to_string();
    assert!(
        failed.contains("expected a label of data.labels") && !failed.contains("Nils"),
        "{failed}"
    );

    let idx = |name: &str, count: u8, shift: u8| {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 8, 0, 0, 0, 8];
        images.extend((0..count).flat_map(|i| {
            (0..64u8).map(move |pixel| if (pixel / 32) == (i + shift) % 2 { 200 } else { pixel })
        }));
        std::fs::write(at(&format!("{name}-images-idx3-ubyte")), images).unwrap();
        let mut labels = vec![0, 0, 8, 1, 0, 0, 0, count];
        labels.extend((0..count).map(|i| (i + shift) % 2));
        std::fs::write(at(&format!("{name}-labels-idx1-ubyte")), labels).unwrap();
        at(&format!("{name}-images-idx3-ubyte")).display().to_string()
    };
    let images = format!(
        "model.source=cnn\nmodel.tokenizer=auto\ndata.max_length=auto\ndata.train={}\n\
         data.validation={}\ndata.labels=[\"low\", \"high\"]\noptimizer.name=adam\n\
         training.steps=30",
        idx("train", 100, 0),
        idx("t10k", 20, 1)
    );
    let outcome = train(&config(&images), &at("images"), &mut Silent).unwrap();
    let scores = outcome.scores.clone().unwrap();
    assert!(scores.accuracy > Some(0.9) && scores.auroc > Some(0.9), "{scores:?}");
    assert_eq!(scores.perplexity, None);
    let written = std::fs::read_to_string(at("images/result.json")).unwrap();
    assert!(!written.contains("perplexity"), "{written}");
    assert_eq!(outcome.result().metrics.confusion_matrix, scores.confusion_matrix);
    let report = std::fs::read_to_string(at("images/report.html")).unwrap();
    assert!(report.contains("macro-F1") && report.contains("AUROC"), "{report}");
    assert!(
        muffle::LoadedModel::open_for_inference(at("images").to_str().unwrap(), &mut |_| ())
            .unwrap()
            .tokenizer
            .is_none()
    );
}
