//! Commands without training: arguments, text and JSON output, exit codes.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::{Command, Output};

fn muffle(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_muffle")).args(arguments.split_whitespace()).output().unwrap()
}

/// Parses standard output, which must be one JSON object.
fn json(arguments: &str) -> Value {
    let output = muffle(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(arguments: &str) -> String {
    let output = muffle(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn account_has_the_fields_of_the_contract() {
    let object =
        json("account --noise-multiplier 1 --sampling-rate 1/100 --steps 1000 --delta 1e-5");
    assert!((number(&object["epsilon"]) - 1.82824).abs() < 1e-4);
    assert_eq!(
        (number(&object["delta"]), number(&object["noise_multiplier_effective"])),
        (1e-5, 1.0)
    );
    assert_eq!(
        (object["accountant"].as_str(), object["sampling"].as_str(), object["adjacency"].as_str()),
        (Some("pld"), Some("poisson"), Some("add-remove"))
    );
}

#[test]
fn account_gives_delta_for_epsilon() {
    let object =
        json("account --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --epsilon 1.828244");
    assert!((number(&object["delta"]) / 1e-5 - 1.0).abs() < 1e-3, "{object}");
    assert_eq!(number(&object["epsilon"]), 1.828244);
}

#[test]
fn blocks_are_joint_and_the_invalid_count_is_marked() {
    let object = json(
        "account --noise-multiplier 2.3395 --blocks 49 --sampling-rate 1024/42043 --steps 410 \
         --delta 8e-6",
    );
    assert!((number(&object["epsilon"]) - 61.98).abs() < 0.01);
    assert!((number(&object["invalid_per_block"]["epsilon"]) - 7.985).abs() < 5e-4);
    assert_eq!(object["invalid_per_block"]["valid"], Value::Bool(false));
    let shown = text(
        "account --noise-multiplier 2.3395 --blocks 49 --sampling-rate 1024/42043 --steps 410 \
         --delta 8e-6",
    );
    assert!(
        shown.starts_with("ε = 61.97") && shown.contains("INVALID") && shown.contains("7.985"),
        "{shown}"
    );
}

#[test]
fn every_sampling_and_adjacency_has_its_price() {
    let at = |more: &str| {
        number(
            &json(&format!(
                "account --noise-multiplier 1.5 --dataset-size 10000 --lot-size 100 --steps 500 \
                 --delta 1e-6 {more}"
            ))["epsilon"],
        )
    };
    let (poisson, fixed, shuffled, full) =
        (at(""), at("--sampling fixed"), at("--sampling shuffled"), at("--sampling full"));
    assert!(
        poisson < fixed && fixed < full && poisson < shuffled && shuffled < full,
        "{poisson} {fixed} {shuffled} {full}"
    );
    let replace = at("--adjacency replace-one");
    assert!(replace > poisson);
    assert!(at("--sampling fixed --adjacency replace-one") >= fixed);
    assert!(at("--rows-per-person 4") > poisson);
    let object = json(
        "account --noise-multiplier 1.5 --sampling-rate 0.01 --steps 500 --delta 1e-6 --adjacency \
         replace-one",
    );
    assert_eq!(
        (object["adjacency"].as_str(), number(&object["noise_multiplier_effective"])),
        (Some("replace-one"), 0.75)
    );
    // 500 steps of lots of 100 from 10,000 are 5 epochs.
    let five = number(
        &json("account --noise-multiplier 1.5 --sampling full --steps 5 --delta 1e-6")["epsilon"],
    );
    assert_eq!(shuffled, five);
}

#[test]
fn accountants_can_be_chosen() {
    let at = |name: &str| {
        json(&format!(
            "account --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5 \
             --accountant {name}"
        ))
    };
    let (pld, rdp, gdp, best) = (at("pld"), at("rdp"), at("gdp"), at("best"));
    assert!(number(&pld["epsilon"]) < number(&rdp["epsilon"]));
    assert_eq!(best["epsilon"], pld["epsilon"]);
    assert_eq!((gdp["estimate"].as_bool(), pld["estimate"].as_bool()), (Some(true), Some(false)));
    assert!(number(&rdp["order"]) > 1.0);
}

#[test]
fn the_trade_off_is_shown_on_request() {
    let object = json(
        "account --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5 --trade-off",
    );
    assert!(number(&object["gdp_mu"]) > 0.3 && number(&object["gdp_mu"]) < 1.0, "{object}");
    for point in object["trade_off"].as_array().unwrap() {
        assert!(number(&point["tpr"]) >= number(&point["fpr"]));
    }
}

#[test]
fn account_prices_repeated_runs() {
    let object = json(
        "account --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5 --runs 10",
    );
    let (once, random, all) = (
        number(&object["epsilon"]),
        number(&object["repeated"]["epsilon_best_of_random"]),
        number(&object["repeated"]["epsilon_all"]),
    );
    assert!(once < random && random < all, "{object}");
    let composed =
        json("account --noise-multiplier 1 --sampling-rate 0.01 --steps 10000 --delta 1e-5");
    assert_eq!(object["repeated"]["epsilon_all"], composed["epsilon"]);
}

#[test]
fn calibrate_keeps_the_promise() {
    let object = json("calibrate --epsilon 8 --delta 8e-6 --sampling-rate 1024/42043 --steps 410");
    let sigma = number(&object["noise_multiplier"]);
    assert!(number(&object["epsilon"]) <= 8.0 && number(&object["epsilon"]) > 7.9999);
    let back = json(&format!(
        "account --noise-multiplier {sigma} --sampling-rate 1024/42043 --steps 410 --delta 8e-6"
    ));
    assert_eq!(back["epsilon"], object["epsilon"]);
    let rdp = json(
        "calibrate --epsilon 8 --delta 8e-6 --sampling-rate 1024/42043 --steps 410 --accountant \
         rdp",
    );
    assert!((number(&rdp["noise_multiplier"]) - 0.7189).abs() < 2e-3, "{rdp}");
    let steps = json(
        "calibrate --find steps --epsilon 3 --delta 1e-5 --dataset-size 50000 --lot-size 1000 \
         --noise-multiplier 1",
    );
    assert!(number(&steps["epsilon"]) <= 3.0 && number(&steps["steps"]) > 500.0);
    let lot = json(
        "calibrate --find lot-size --epsilon 3 --delta 1e-5 --dataset-size 50000 --steps 1000 \
         --noise-multiplier 1",
    );
    assert!(number(&lot["epsilon"]) <= 3.0 && number(&lot["lot_size"]) > 500.0);
}

#[test]
fn plan_has_rows_and_a_chart() {
    let folder = std::env::temp_dir().join(format!("muffle-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let chart = folder.join("plan.svg");
    let object = json(&format!(
        "plan --dataset-size 20000 --lot-size 500 --epochs 5 --epsilon 3 --chart {}",
        chart.display()
    ));
    let rows = object["rows"].as_array().unwrap();
    for over in ["steps", "lot_size", "dataset_size"] {
        let sigmas: Vec<f64> = rows
            .iter()
            .filter(|row| row["over"] == over)
            .map(|row| number(&row["noise_multiplier"]))
            .collect();
        assert_eq!(sigmas.len(), 7, "{over}");
        let rising = sigmas.windows(2).all(|pair| pair[0] < pair[1]);
        let falling = sigmas.windows(2).all(|pair| pair[0] > pair[1]);
        assert!(if over == "dataset_size" { falling } else { rising }, "{over}: {sigmas:?}");
    }
    assert!(rows.iter().all(|row| number(&row["epsilon"]) <= 3.0));
    assert_eq!(number(&object["delta"]), 0.1 / 20_000.0);
    let repeated = object["repeated"].as_array().unwrap();
    assert!(
        repeated
            .windows(2)
            .all(|pair| number(&pair[0]["epsilon_all"]) < number(&pair[1]["epsilon_all"]))
    );
    assert!(std::fs::read_to_string(&chart).unwrap().starts_with("<svg"));
    std::fs::remove_dir_all(&folder).unwrap();
    let shown = text("plan --dataset-size 20000 --noise-multiplier 1.2 --steps 100");
    assert!(
        shown.contains("◆") && shown.contains("└─") && shown.contains("best of random"),
        "{shown}"
    );
}

/// Invalid input gives a message on standard error, exit code 2 and no standard output.
#[test]
fn bad_input_is_refused() {
    let run = "--sampling-rate 0.01 --steps 10 --delta 1e-5";
    for (arguments, word) in [
        (format!("account --noise-multiplier nan {run}"), "noise multiplier"),
        (format!("account --noise-multiplier -1 {run}"), "noise multiplier"),
        (format!("account --noise-multiplier 0 {run}"), "noise multiplier"),
        (format!("account --noise-multiplier inf {run}"), "noise multiplier"),
        (format!("account --noise-multiplier x {run}"), "expected a number"),
        ("account --noise-multiplier 1 --sampling-rate 1.5 --steps 10 --delta \
            1e-5".into(), "sampling rate"),
        ("account --noise-multiplier 1 --sampling-rate 0 --steps 10 --delta \
            1e-5".into(), "sampling rate"),
        ("account --noise-multiplier 1 --sampling-rate 0/0 --steps 10 --delta \
            1e-5".into(), "sampling rate"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps -10 --delta \
            1e-5".into(), "whole number"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 1.5 --delta \
            1e-5".into(), "whole number"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta 0".into(), "delta"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta 1".into(), "delta"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta nan".into(), "delta"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --epsilon \
            -1".into(), "epsilon"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta 1e-5 --blocks \
            0".into(), "blocks"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta 1e-5 \
            --rows-per-person 0".into(), "rows"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10".into(), "--delta"),
        ("account --noise-multiplier 1 --steps 10 --delta 1e-5".into(), "--sampling-rate"),
        ("account --noise-multiplier 1 --sampling fixed --sampling-rate 0.1 --steps 10 --delta \
            1e-5".into(), "--dataset-size"),
        ("account --noise-multiplier 1 --sampling fixed --dataset-size 5 --lot-size 6 --steps 1 \
            --delta 1e-5".into(), "lot size"),
        ("account --noise-multiplier 1 --dataset-size 0 --lot-size 0 --steps 1 --delta \
            1e-5".into(), "sampling rate"),
        ("account --noise-multiplier 1 --sampling-rate 0.1 --steps 10 --delta 1e-5 --runs \
            0".into(), "runs"),
        ("calibrate --epsilon nan --delta 1e-5 --sampling-rate 0.1 --steps 1".into(), "epsilon"),
        ("plan --dataset-size 0".into(), "dataset-size"),
        ("plan --dataset-size 10 --lot-size 11".into(), "lot-size"),
        ("plan --dataset-size 1000 --epochs -1".into(), "epochs"),
    ] {
        let output = muffle(&arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {message}");
        assert!(message.contains(word), "{arguments}: {message}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}

#[test]
fn a_promise_that_cannot_be_kept_has_its_own_code() {
    let output = muffle(
        "calibrate --find steps --epsilon 0.1 --delta 1e-5 --sampling full --noise-multiplier 1e-2 \
         --json",
    );
    // Zero steps are a valid number; a lot has at least one example.
    assert!(output.status.success());
    let output = muffle(
        "calibrate --find lot-size --epsilon 0.01 --delta 1e-9 --dataset-size 10 --steps 1000 \
         --noise-multiplier 0.5",
    );
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

/// At extreme settings ε is infinite or large, never small.
#[test]
fn extremes_are_infinite_or_large() {
    let at = |arguments: &str| json(&format!("account {arguments}"))["epsilon"].clone();
    assert_eq!(
        at("--noise-multiplier 1e-300 --sampling-rate 0.01 --steps 10 --delta 1e-5"),
        Value::from("inf")
    );
    assert!(
        number(&at("--noise-multiplier 0.01 --sampling-rate 0.01 --steps 10 --delta 1e-5"))
            > 1000.0
    );
    assert!(
        number(&at(
            "--noise-multiplier 1 --sampling-rate 0.01 --steps 18446744073709551615 --delta 1e-5"
        )) > 1e12
    );
    assert!(
        number(&at("--noise-multiplier 1 --sampling-rate 0.001 --steps 1000000 --delta 1e-6"))
            < 7.2
    );
    assert!(
        number(&at("--noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-300")) > 50.0
    );
    assert_eq!(
        number(&at("--noise-multiplier 1 --sampling-rate 0.01 --steps 0 --delta 1e-5")),
        0.0
    );
}

#[test]
fn a_delta_of_one_row_is_warned_about() {
    let output = muffle(
        "account --noise-multiplier 1 --dataset-size 1000 --lot-size 10 --steps 10 --delta 1e-3 \
         --json",
    );
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("1/N"));
    let output = muffle(
        "account --noise-multiplier 1 --dataset-size 1000 --lot-size 10 --steps 1000 --epsilon 0.1 \
         --json",
    );
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("1/N"));
    let output = muffle(
        "account --noise-multiplier 1 --dataset-size 1000 --lot-size 10 --steps 10 --delta 1e-4 \
         --json",
    );
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn bench_measures_queries_and_calibrations() {
    for what in ["--noise-multiplier 1", "--epsilon 2"] {
        let object = json(&format!(
            "bench account {what} --sampling-rate 0.01 --steps 100 --delta 1e-5 --repeats 3"
        ));
        assert!(
            number(&object["ms_first"]) > 0.0
                && number(&object["ms_min"]) <= number(&object["ms_median"]),
            "{object}"
        );
    }
}

#[test]
fn bench_measures_steps() {
    for how in [
        "--mode plain",
        "--mode private",
        "--mode private --lora 2",
        "--mode private --keep little --per-tensor",
        "--threads 1",
    ] {
        let object = json(&format!("bench step --model tiny --batch 3 --seq 9 --repeats 2 {how}"));
        assert!(
            number(&object["ms_min"]) > 0.0
                && number(&object["ms_min"]) <= number(&object["ms_median"]),
            "{how}: {object}"
        );
        assert!(
            number(&object["gflops"]) > 0.0 && number(&object["tokens_per_second"]) > 0.0,
            "{how}: {object}"
        );
        assert!(
            object["peak_rss_mb"].is_null() || number(&object["peak_rss_mb"]) > 1.0,
            "{how}: {object}"
        );
    }
    let both = json("bench step --model tiny --batch 3 --seq 9 --repeats 2 --mode both");
    assert!(number(&both["ratio"]) > 0.0 && number(&both["plain_ms_min"]) > 0.0, "{both}");
    for bad in [
        "--model nonsense",
        "--model tiny --lora 0",
        "--model tiny --seq 1000000",
        "--lengths no-such-file",
    ] {
        let output = muffle(&format!("bench step {bad}"));
        assert_eq!(output.status.code(), Some(2), "{bad}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{bad}");
    }
}

#[test]
fn bench_measures_noise_and_updates() {
    let noise = json("bench noise --numbers 100000 --repeats 2 --threads 2");
    assert!(
        number(&noise["million_per_second"]) >= number(&noise["million_per_second_median"]),
        "{noise}"
    );
    let muon = json("bench muon --model tiny --repeats 1 --steps 2 --degree 3");
    // 2 layers of 4 matrices.
    assert!(number(&muon["seconds_min"]) > 0.0 && number(&muon["matrices"]) == 8.0, "{muon}");
    assert_eq!(muffle("bench muon --model nonsense").status.code(), Some(2));
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "account",
        "calibrate",
        "plan",
        "generate",
        "score",
        "bench account",
        "bench muon",
        "bench noise",
        "bench step",
    ] {
        let shown = text(&format!("{command} --help"));
        assert!(
            shown.contains("Example") && shown.contains(&format!("muffle {command}")),
            "{shown}"
        );
    }
    assert_eq!(muffle("").status.code(), Some(2));
    assert_eq!(muffle("nonsense").status.code(), Some(2));
}

#[test]
fn texts_are_scored() {
    let dir = std::env::temp_dir().join(format!("muffle-score-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let one = file(
        "one.txt",
        b"The Eagle is a coffee shop near Burger King .\nBlue Spice serves cheap food .\n",
    );
    let same = file(
        "same.txt",
        b"Another text\tThe Eagle is a coffee shop near Burger King \
        .\t\r\nBlue Spice serves cheap food .",
    );
    let other = file("other.txt", b"Nothing of the kind\nat all\n");
    let score = |h: &str, r: &str| json(&format!("score --hypotheses {h} --references {r}"));
    let perfect = score(&one, &same);
    assert!(
        (number(&perfect["bleu"]) - 100.0).abs() < 1e-9
            && (number(&perfect["rouge_l"]) - 100.0).abs() < 1e-9,
        "{perfect}"
    );
    assert!(number(&score(&one, &other)["bleu"]) < 5.0);
    assert!(text(&format!("score -y {one} -r {same}")).contains("BLEU"));
    let (short, empty, bad) = (
        file("short.txt", b"one line\n"),
        file("empty.txt", b""),
        file("bad.txt", b"\xff\xfe\nx\n"),
    );
    for (h, r, part) in [
        (&one, &short, "short.txt ends before line 2"),
        (&short, &one, "short.txt ends"),
        (&empty, &empty, "expected at least 1 line"),
        (&one, &bad, "bad.txt:1"),
        (&one, &"nowhere.txt".to_string(), "nowhere.txt"),
    ] {
        let output = muffle(&format!("score --hypotheses {h} --references {r}"));
        let stderr = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(
            output.status.code() == Some(2) && stderr.contains(part) && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The output of a new, untrained model is deterministic.
#[test]
fn texts_are_generated() {
    let dir = std::env::temp_dir().join(format!("muffle-generate-{}", std::process::id()));
    let config = model::hf::Config {
        architecture: model::Preset::Tiny.architecture(),
        loss: model::Loss::CrossEntropy,
        other_keys: serde_json::Map::new(),
    };
    let (config, network, at) =
        model::Checkpoint::new(config, None, 1).unwrap().network(&cpu::Cpu, |_| true).unwrap();
    model::Checkpoint::save(&dir, &config, &network, &at, &model::hf::SaveOptions::default())
        .unwrap();
    text::Tokenizer::train(
        ["the river runs", "the river sleeps"].into_iter().cycle().take(20),
        300,
        &["<eos>"],
    )
    .unwrap()
    .save(&dir.join("tokenizer.json"))
    .unwrap();
    let dir = dir.display().to_string();
    for how in ["", "--beam 3", "--temperature 0.7 --top-k 5 --seed 3", "--one-line"] {
        let ask = || {
            json(&format!(
                "generate {dir} --prompt river --prompt the --min-new-tokens 6 --max-new-tokens 6 \
                 {how}"
            ))
        };
        let first = ask();
        assert_eq!(first["outputs"].as_array().unwrap().len(), 2, "{first}");
        assert_eq!(first["tokens"], serde_json::json!([6, 6]), "{first}");
        assert_eq!(first, ask(), "{how}");
    }
    assert!(
        text(&format!("generate {dir} --prompt river --max-new-tokens 3")).starts_with("river")
    );
    for (bad, part) in [
        (format!("generate {dir} --prompt river --temperature 0"), "temperature"),
        (format!("generate {dir} --prompt river --beam 0"), "beam"),
        ("generate no/such/directory --prompt river".into(), "no/such/directory"),
    ] {
        let output = muffle(&bad);
        let stderr = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(output.status.code() == Some(2) && stderr.contains(part), "{bad}: {stderr}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn bench_measures_whole_steps() {
    let object = json("bench ranks --model tiny --lot 4 --seq 8 --repeats 1 --threads 1");
    assert!(
        object["ranks"] == 1
            && object["threads"] == 1
            && object["lot"] == 4
            && object["sent"].is_null(),
        "{object:#}"
    );
    assert!(number(&object["step_s"]) > 0.0 && number(&object["records_per_second"]) > 0.0);
}

/// Several processes that cannot communicate are refused: each would train alone. One prints the
/// error.
#[cfg(not(feature = "mpi"))]
#[test]
fn unconnected_processes_are_refused() {
    let place = tempfile::tempdir().unwrap();
    for (rank, lines) in [("0", 1), ("1", 0)] {
        for (of, count) in [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_muffle"));
            let output = command
                .args(["train", "--steps", "1"])
                .env(of, rank)
                .env(count, "2")
                .current_dir(place.path())
                .output()
                .unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(
                (output.status.code(), stderr.lines().count()),
                (Some(2), lines),
                "{stderr}"
            );
            assert!(lines == 0 || stderr.contains("--features mpi"), "{stderr}");
        }
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

/// The codes are documented in help and guide, and a fault of the machine is not invalid input.
#[test]
fn faults_have_their_own_code() {
    let help = text("--help");
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for code in ["0", "1", "2", "3", "4", "5", "130"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{code} "))));
        assert!(guide.contains(&format!("\n| {code} | ")), "{code}");
    }
    let plan = "plan --dataset-size 100 --noise-multiplier 1 --steps 2 --chart";
    #[cfg(target_os = "linux")]
    {
        let output = muffle(&format!("{plan} /dev/full"));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(stderr.contains("/dev/full") && stderr.lines().count() == 1, "{stderr}");
    }
    assert_eq!(muffle(&format!("{plan} /nowhere/plan.svg")).status.code(), Some(2));
}
