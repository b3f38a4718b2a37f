//! A run in memory, shared by several: threads stand for processes.

#![allow(clippy::unwrap_used)]

mod support;

use cpu::Network;
use distributed::Ranks;
use engine::Example;
use model::activation::Activation;
use model::hf::{Architecture, Gpt2Config};
use model::{Lora, Mlp};
use muffle::Config;
use muffle::Session;
use muffle::curator::Records;
use muffle::run::session::ResumeState;
use protocol::Params;

/// A model for an optimizer, and records for it. One number is enough for a factor's second moment.
fn model(optimizer: &str) -> (Network, Params, Vec<Example>) {
    if optimizer == "dp-prism" {
        let config = Gpt2Config {
            vocab: 11,
            positions: 16,
            width: 8,
            layers: 2,
            heads: 2,
            inner: 16,
            activation: Activation::GeluTanh,
            epsilon: 1e-5,
            tied: true,
        };
        let graph =
            Architecture::Gpt2(config).graph(Some(Lora { rank: 1, alpha: 2.0, on: Vec::new() }));
        let mut values = graph.init(3).unwrap();
        // No factor is zero, so that every tensor gets a gradient.
        values
            .iter_mut()
            .flat_map(|value| value.data_mut())
            .enumerate()
            .for_each(|(i, x)| *x += 0.1 * (i as f32).sin());
        let (network, params) =
            Network::new(graph, values, |name| name.contains(".lora_")).unwrap();
        let text = |i: u32| {
            Example::continuation((0..2 + i % 7).map(|t| (i * 5 + t * t) % 11).collect(), 1)
        };
        return (network, params, (0..120).map(text).collect());
    }
    let graph =
        Mlp { input: 3, hidden: vec![8, 6], classes: 2, activation: Activation::Tanh }.graph();
    let values = graph.init(0).unwrap();
    let (network, params) = Network::new(graph, values, |_| true).unwrap();
    let point =
        |i: u32| Example::features(vec![(i as f32).sin(), (i as f32 * 0.7).cos(), 1.0], i % 2);
    (network, params, (0..120).map(point).collect())
}

/// What a run leaves for another to go on with.
struct Left {
    past: ResumeState,
    params: Params,
}

/// Some steps on so many.
fn steps(count: usize, optimizer: &str, steps: u64, from: Option<Left>) -> Left {
    let rate = if optimizer == "dp-adam-bc" { "\"hyfree\"" } else { "0.01" };
    let config = format!(
        "[optimizer]\nname = {optimizer:?}\nlearning_rate = {rate}\n[privacy]\nepsilon = 8.0\nseed \
         = 7\n[training]\nsteps = 9\nlot_size = 80"
    );
    let config = Config::parse(&config).unwrap();
    let one = |ranks: Ranks| {
        let (network, params, people) = model(optimizer);
        let (params, past) = match &from {
            None => (params, None),
            Some(Left { past, params }) => {
                let past = ResumeState {
                    ledger: past.ledger.clone(),
                    private_state: None,
                    optimizer: past.optimizer.clone(),
                    params: Params::default(),
                };
                (params.clone(), Some(past))
            }
        };
        let mut session =
            Session::among(&ranks, &config, network, params, Records::new(people), past).unwrap();
        (0..steps).for_each(|_| drop(session.step().unwrap().unwrap()));
        let optimizer = session.optimizer().unwrap();
        let past = ResumeState {
            ledger: session.ledger().clone(),
            private_state: None,
            optimizer: Some(optimizer),
            params: Params::default(),
        };
        Left { past, params: session.params().clone() }
    };
    let mut all: Vec<Left> = std::thread::scope(|scope| {
        let threads: Vec<_> = distributed::threads(count)
            .unwrap()
            .into_iter()
            .map(|ranks| scope.spawn(|| one(ranks)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        all.iter()
            .all(|left| left.params == all[0].params && left.past.ledger == all[0].past.ledger)
    );
    all.swap_remove(0)
}

/// RunStart by two, gone on with by three, by one and by four: each begins with all that the
/// optimizer remembered, and comes to where one process comes alone.
#[test]
fn any_number_goes_on_with_what_others_left() {
    for optimizer in
        ["dp-sgd", "dp-adam-bc", "dp-muon-bc", "dp-adaclip", "dp-macadam", "dp-prism", "adamw"]
    {
        let (mut alone, mut shared) = (None, None);
        for count in [2, 3, 1, 4] {
            alone = Some(steps(1, optimizer, 2, alone));
            shared = Some(steps(count, optimizer, 2, shared));
        }
        let (alone, shared) = (alone.unwrap(), shared.unwrap());
        assert_eq!(alone.past.ledger, shared.past.ledger, "{optimizer}");
        let (a, b) = (alone.past.optimizer.unwrap(), shared.past.optimizer.unwrap());
        support::assert_close(&a, &b, optimizer);
        let apart = alone
            .params
            .iter()
            .zip(shared.params.iter())
            .flat_map(|(a, b)| a.data().iter().zip(b.data()).map(|(a, b)| (a - b).abs()));
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-3, "{optimizer}: {apart:e}");
    }
}

/// Another past on one of them is noticed before anything is computed.
#[test]
fn another_past_is_noticed() {
    let left = steps(1, "dp-sgd", 2, None);
    let config = Config::parse(
        "[optimizer]\nname = \"dp-sgd\"\n[privacy]\nepsilon = \
        8.0\n[training]\nsteps = 9\nlot_size = 80",
    )
    .unwrap();
    let one = |ranks: Ranks| {
        let (network, params, people) = model("dp-sgd");
        let past = ResumeState {
            ledger: left.past.ledger.clone(),
            private_state: None,
            optimizer: None,
            params: Params::default(),
        };
        let past = (!ranks.is_first()).then_some(past);
        let mut session =
            Session::among(&ranks, &config, network, params, Records::new(people), past).unwrap();
        session.step().unwrap_err().to_string()
    };
    let said: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = distributed::threads(2)
            .unwrap()
            .into_iter()
            .map(|ranks| scope.spawn(|| one(ranks)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(said.iter().all(|said| said.contains("not doing the same")), "{said:?}");
}
