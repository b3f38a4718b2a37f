//! Generation against `transformers` (`python3 peers/golden_generation.py`), and its limits.

#![allow(clippy::unwrap_used)]

use model::Checkpoint;
use serde_json::Value;
use std::path::PathBuf;
use text::generate::{GenerateOptions, Search, Stopping, generate};

fn open(name: &str) -> Checkpoint {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
    Checkpoint::open(dir, None, 0).unwrap()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

#[test]
fn generated_texts_match_transformers() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/generation.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let prompts: Vec<Vec<u32>> = golden["prompts"].as_array().unwrap().iter().map(tokens).collect();
    for case in golden["cases"].as_array().unwrap() {
        let (_, mut network, at) =
            open(case["model"].as_str().unwrap()).network(&cpu::Cpu, |_| true).unwrap();
        let mut decoder = network.decoder(&at).unwrap();
        let vocab = decoder.vocab() as u32;
        let prompts: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| prompt.iter().map(|token| token % vocab).collect())
            .collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let beams = case["beams"].as_u64().unwrap() as usize;
        let stopping = if case["early"].as_bool().unwrap() {
            Stopping::Early
        } else {
            Stopping::NoImprovement
        };
        let search = Search::Beam {
            beams,
            length_penalty: case["length_penalty"].as_f64().unwrap(),
            stopping,
        };
        let options = GenerateOptions {
            max_new_tokens: case["max"].as_u64().unwrap() as usize,
            min_new_tokens: case["min"].as_u64().unwrap() as usize,
            stop: tokens(&case["stop"]),
            banned: tokens(&case["banned"]),
            search: if beams == 1 { Search::Greedy } else { search },
            batch_size: 64,
        };
        let expected: Vec<Vec<u32>> =
            case["outputs"].as_array().unwrap().iter().map(tokens).collect();
        let shown = format!("{} {:?} {}", case["model"], options, case["stop"]);
        assert_eq!(generate(&mut *decoder, &prompts, &options).unwrap(), expected, "{shown}");
        // Independently of the batch.
        let one_by_one = GenerateOptions { batch_size: 1, ..options.clone() };
        assert_eq!(
            generate(&mut *decoder, &prompts, &one_by_one).unwrap(),
            expected,
            "{shown}, one by one"
        );
        if beams == 1 {
            let beam = GenerateOptions { search, ..options };
            assert_eq!(
                generate(&mut *decoder, &prompts, &beam).unwrap(),
                expected,
                "{shown}, as one beam"
            );
        }
    }
}

#[test]
fn samples_depend_on_the_seed_and_the_options() {
    let (_, mut network, at) = open("gpt2-untied").network(&cpu::Cpu, |_| true).unwrap();
    let mut decoder = network.decoder(&at).unwrap();
    let prompts: [&[u32]; 3] = [&[1, 2], &[3], &[1, 2]];
    let mut sample = |temperature, top_k, top_p, seed, batch_size| {
        let search = Search::Sample { temperature, top_k, top_p, seed };
        generate(
            &mut *decoder,
            &prompts,
            &GenerateOptions {
                max_new_tokens: 8,
                banned: vec![4],
                search,
                batch_size,
                ..GenerateOptions::default()
            },
        )
        .unwrap()
    };
    let texts = sample(1.0, 0, 1.0, 7, 64);
    assert_eq!(texts, sample(1.0, 0, 1.0, 7, 1));
    assert_ne!(texts, sample(1.0, 0, 1.0, 8, 64));
    assert_ne!(texts[0], texts[2], "texts of one seed differ");
    assert!(texts.iter().all(|text| text.len() == 8 && !text.contains(&4)));
    // With a low temperature, a small top_k or a small top_p it is the likeliest token.
    let likeliest = sample(1e-6, 0, 1.0, 7, 64);
    assert_eq!(likeliest, sample(1.0, 1, 1.0, 9, 64));
    assert_eq!(likeliest, sample(1.0, 0, 1e-9, 9, 64));
    assert_eq!(likeliest[0], likeliest[2]);
}

/// The frequencies of the first token are its probabilities.
#[test]
fn samples_have_the_models_probabilities() {
    let (_, mut network, at) = open("gpt2-untied").network(&cpu::Cpu, |_| true).unwrap();
    let mut decoder = network.decoder(&at).unwrap();
    let logits = decoder.start(&[&[1, 2]]).unwrap();
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let count = 4000;
    let prompts = vec![&[1u32, 2][..]; count];
    let search = Search::Sample { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 3 };
    let texts = generate(
        &mut *decoder,
        &prompts,
        &GenerateOptions { max_new_tokens: 1, search, ..GenerateOptions::default() },
    )
    .unwrap();
    for (token, &logit) in logits.iter().enumerate() {
        let p = f64::from(logit).exp() / total;
        let seen =
            texts.iter().filter(|text| text[0] == token as u32).count() as f64 / count as f64;
        assert!(
            (seen - p).abs() < 5.5 * (p * (1.0 - p) / count as f64).sqrt() + 1e-3,
            "{token}: {seen} {p}"
        );
    }
}

#[test]
fn limits_of_length_and_options_are_kept() {
    let (_, mut network, at) = open("gpt2-tied").network(&cpu::Cpu, |_| true).unwrap();
    let mut decoder = network.decoder(&at).unwrap();
    let max_length = decoder.max_length();
    let prompt = vec![1u32; max_length - 3];
    let all: Vec<u32> = (0..decoder.vocab() as u32).collect();
    for search in
        [Search::Greedy, Search::Beam { beams: 3, length_penalty: 1.0, stopping: Stopping::Early }]
    {
        let options = GenerateOptions { search, ..GenerateOptions::default() };
        assert_eq!(
            generate(&mut *decoder, &[&prompt], &options).unwrap()[0].len(),
            3,
            "no further than the model goes"
        );
        assert!(
            generate(
                &mut *decoder,
                &[&prompt],
                &GenerateOptions { max_new_tokens: 0, ..options.clone() }
            )
            .unwrap()[0]
                .is_empty()
        );
        assert!(
            generate(
                &mut *decoder,
                &[&[1]],
                &GenerateOptions { stop: all.clone(), ..options.clone() }
            )
            .unwrap()[0]
                .is_empty()
        );
        let patient = GenerateOptions {
            stop: all[1..].to_vec(),
            min_new_tokens: 4,
            max_new_tokens: 9,
            ..options.clone()
        };
        assert_eq!(generate(&mut *decoder, &[&[1]], &patient).unwrap()[0][..4], [0; 4]);
        assert!(generate(&mut *decoder, &[], &options).unwrap().is_empty());
        assert!(generate(&mut *decoder, &[&[]], &options).is_err());
    }
    for search in [
        Search::Beam { beams: 0, length_penalty: 1.0, stopping: Stopping::Early },
        Search::Beam { beams: 2, length_penalty: f64::NAN, stopping: Stopping::Early },
        Search::Sample { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 },
        Search::Sample { temperature: 1.0, top_k: 0, top_p: f64::NAN, seed: 0 },
    ] {
        assert!(
            generate(
                &mut *decoder,
                &[&[1]],
                &GenerateOptions { search, ..GenerateOptions::default() }
            )
            .is_err(),
            "{search:?}"
        );
    }
}
