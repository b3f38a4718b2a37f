//! Writes the seeds of snapshots, one for each optimizer, and checks the size of all seeds.

#![allow(clippy::unwrap_used)]

use fuzz::structure::{FILES, pack};
use fuzz::target::ALL;
use fuzz::{build, tensors};
use muffle::run::chain::Mark;
use muffle::run::snapshot::{RunIdentity, Snapshot};
use std::fs;
use std::path::Path;

/// To be run by hand when the format of snapshots has changed.
#[test]
#[ignore = "writes into the corpus"]
fn write_snapshots_of_every_optimizer() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/snapshot");
    fs::create_dir_all(&place).unwrap();
    for (name, rate) in [
        ("dp-sgd", "0.1"),
        ("dp-adam", "0.1"),
        ("dp-muon-bc", "0.1"),
        ("dp-adaclip", "0.1"),
        ("dp-macadam", "0.1"),
        ("dp-prism", "0.1"),
        ("dp-sgd", "hyfree"),
    ] {
        let config = muffle::Config::embedded()
            .with_optimizer(name)
            .unwrap()
            .with(&format!("optimizer.learning_rate={rate}"))
            .unwrap();
        let (tensors, params) = tensors(name == "dp-prism");
        let optimizer = build(&config, &tensors, &params).unwrap();
        // Before the first step the state of most optimizers has no tensors.
        let mut state = optimizer.save().unwrap();
        let descent = state.parts.get_mut("descent").unwrap();
        descent.set_tensors("moments", &params.clone().into());
        let ledger = Mark { run_id: "0".repeat(32), entries: 2, charges: 1, head: "0".repeat(64) };
        let identity = RunIdentity { config: "x".into(), frozen: 7, ledger, draws: 2 };
        let folder = tempfile::tempdir().unwrap();
        Snapshot {
            step: 1,
            params,
            optimizer: state,
            initial_fingerprints: vec![1, 2, 3],
            identity,
            selection: None,
        }
        .save(folder.path())
        .unwrap();
        let files =
            FILES.map(|file| fs::read(folder.path().join("step-000000001").join(file)).unwrap());
        let suffix = if rate == "hyfree" { "-hyfree" } else { "" };
        fs::write(place.join(format!("{name}{suffix}")), pack([&files[0], &files[1], &files[2]]))
            .unwrap();
    }
}

#[test]
fn every_target_has_small_seeds() {
    let mut all = 0;
    for target in ALL {
        let seeds = fuzz::fuzz_loop::committed("corpus", target.name).unwrap();
        assert!(seeds.len() >= 2, "{}", target.name);
        for (path, seed) in seeds {
            assert!(
                seed.len() <= 4096 && seed.len() <= target.max_length,
                "{}: {} bytes",
                path.display(),
                seed.len()
            );
            all += seed.len();
        }
    }
    assert!(all < 200 << 10, "{all} bytes of seeds");
}
