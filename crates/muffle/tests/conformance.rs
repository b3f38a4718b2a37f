//! One suite for all optimizers, each with the real curator: what every one of them must do,
//! whatever its formulas.

#![allow(clippy::unwrap_used)]

mod support;

use accounting::{Composition, SamplingRate};
use curator::{Curator, Door, NonPrivateOracle, Randomness, Records, Sampling, lot_event};
use distributed::{LotReducer, Ownership, Ranks, ShardedDescent};
use engine::{Engine, Example};
use optim::{Optimizer, State};
use protocol::{Announcement, GradientQuery, LossQuery, Noisy, Oracle, Params, Refused, TensorMap};
use std::collections::BTreeSet;
use support::quadratic::Quadratic;
use support::{Setting, cases, make, needs_pairs, perceptron, state_tensors, tensors};

const PEOPLE: u64 = 40;

fn poisson(rate: f64) -> Sampling {
    Sampling::Poisson { rate: SamplingRate::new(rate).unwrap() }
}

/// An optimizer, its curator and its parameters.
struct Run {
    optimizer: Optimizer,
    curator: Curator<Quadratic>,
    params: Params,
}

/// What differs between runs.
#[derive(Clone)]
struct Setup {
    name: &'static str,
    people: Vec<Option<Example>>,
    sampling: Sampling,
    clip: f64,
    sigma: f64,
    rate: f64,
    seed: u64,
}

impl Setup {
    fn new(name: &'static str) -> Self {
        let people = engine(name).examples(PEOPLE, 1.0, 0.3).into_iter().map(Some).collect();
        Self { name, people, sampling: poisson(0.5), clip: 1.0, sigma: 0.5, rate: 0.02, seed: 3 }
    }

    fn curator(&self) -> Curator<Quadratic> {
        let records = Records::with_vacancies(self.people.clone());
        Curator::new(
            engine(self.name),
            records,
            self.sampling,
            Door::unlimited(),
            Randomness::fixed(self.seed),
        )
        .unwrap()
    }

    fn optimizer(&self, params: &Params) -> Optimizer {
        let lot_size = self.sampling.lot_size(self.people.len());
        let tensors = tensors(needs_pairs(self.name));
        make(
            self.name,
            &Setting {
                tensors: &tensors,
                params,
                clip: self.clip,
                sigma: self.sigma,
                lot_size,
                rate: self.rate,
            },
        )
    }

    fn run(&self) -> Run {
        let params = engine(self.name).start(5);
        Run { optimizer: self.optimizer(&params), curator: self.curator(), params }
    }
}

impl Run {
    fn steps(&mut self, count: usize) -> &Params {
        (0..count)
            .for_each(|_| drop(self.optimizer.step(&mut self.params, &mut self.curator).unwrap()));
        &self.params
    }
}

fn engine(name: &str) -> Quadratic {
    Quadratic::new(tensors(needs_pairs(name)))
}

fn finite(params: &Params) -> bool {
    params.iter().all(|tensor| tensor.data().iter().all(|x| x.is_finite()))
}

#[test]
fn a_state_put_away_and_taken_out_goes_on_the_same() {
    for name in cases() {
        let setup = Setup::new(name);
        let mut straight = setup.run();
        straight.steps(7);
        let mut broken = setup.run();
        broken.steps(4);
        let state = broken.optimizer.save().unwrap();
        broken.optimizer = setup.optimizer(&broken.params);
        broken.optimizer.load(state.clone()).unwrap();
        assert_eq!(broken.optimizer.save().unwrap(), state);
        broken.steps(3);
        assert_eq!(broken.params, straight.params, "{name}");
        // And the state of another optimizer is refused.
        let other = if name.contains("sgd") { "dp-adam" } else { "dp-sgd" };
        for steps in [0, 1] {
            let mut foreign = Setup::new(other).run();
            foreign.steps(steps);
            let foreign = foreign.optimizer.save().unwrap();
            assert!(setup.run().optimizer.load(foreign).is_err(), "{name}");
        }
    }
}

/// Threads stand for processes: each works on tensors of its own and remembers nothing of the
/// others, and all of them get to where one gets, but for rounding.
#[test]
fn several_processes_get_to_the_same_place() {
    for name in cases() {
        let mut setup = Setup::new(name);
        setup.people = engine(name).examples(200, 1.0, 0.3).into_iter().map(Some).collect();
        let mut alone = setup.run();
        alone.steps(6);
        for count in [2, 3] {
            let one = |ranks: Ranks| {
                let mut run = setup.run();
                let tensors = tensors(needs_pairs(name));
                let ownership =
                    Ownership::divide(&tensors, &run.optimizer.work(&run.params), count);
                let owned = ownership.owned_by(ranks.rank());
                let reducer = LotReducer::new(ranks.clone(), ownership.clone()).unwrap();
                run.curator.set_reducer(Box::new(reducer)).unwrap();
                run.optimizer = run.optimizer.wrap_descent(|descent| {
                    Box::new(ShardedDescent::new(descent, ranks, ownership))
                });
                run.steps(6);
                let state = run.optimizer.save().unwrap();
                (run, owned, state)
            };
            let all: Vec<(Run, BTreeSet<usize>, State)> = std::thread::scope(|scope| {
                let threads: Vec<_> = distributed::threads(count)
                    .unwrap()
                    .into_iter()
                    .map(|ranks| scope.spawn(|| one(ranks)))
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (run, _, _) in &all {
                assert_eq!(run.params, all[0].0.params, "{name}: not the same on all processes");
                assert_eq!(run.curator.ledger(), alone.curator.ledger(), "{name}");
                for (a, b) in run.params.iter().zip(alone.params.iter()) {
                    let apart = a
                        .data()
                        .iter()
                        .zip(b.data())
                        .map(|(a, b)| (a - b).abs())
                        .fold(0.0, f32::max);
                    assert!(apart < 1e-4, "{name} on {count}: {apart:e}");
                }
            }
            // Rank 0 has gathered the state of all tensors; the others have that of their own.
            let expected = alone.optimizer.save().unwrap();
            support::assert_close(&all[0].2, &expected, name);
            let expected = state_tensors(&expected);
            for (rank, (_, owned, state)) in all.iter().enumerate() {
                let tensors = state_tensors(state);
                let complete = rank == 0;
                assert!(
                    tensors
                        .keys()
                        .eq(expected.keys().filter(|key| complete || owned.contains(&key.1))),
                    "{name}: rank {rank} of {count}"
                );
            }
        }
    }
}

#[test]
fn empty_lots_and_no_people_are_no_trouble() {
    for name in cases() {
        // 0.08 people are expected: nearly every lot is empty.
        let empty = Setup { sampling: poisson(2e-3), ..Setup::new(name) };
        assert!(finite(empty.run().steps(6)), "{name}: empty lots");
        let mut vacant = Setup::new(name);
        vacant.people.fill(None);
        assert!(finite(vacant.run().steps(6)), "{name}: no records");
    }
}

/// No gradient and no noise: nothing moves, and nothing is divided by zero.
#[test]
fn a_zero_gradient_moves_nothing() {
    for name in cases() {
        let setup = Setup::new(name);
        let quadratic = engine(name);
        let start = quadratic.start(5);
        let records = Records::with_vacancies(vec![None; 10]);
        let mut exact =
            NonPrivateOracle::new(quadratic, records, Sampling::Full, Randomness::fixed(1))
                .unwrap();
        let (mut params, mut optimizer) = (start.clone(), setup.optimizer(&start));
        for _ in 0..6 {
            optimizer.step(&mut params, &mut exact).unwrap();
        }
        if needs_pairs(name) || name == "dp-adamw" {
            // Factors are balanced, weights decay: the model does not move far.
            assert!(finite(&params), "{name}");
        } else {
            assert_eq!(params, start, "{name}");
        }
    }
}

#[test]
fn a_poisoned_record_changes_nothing() {
    for name in cases() {
        let setup = Setup { sampling: Sampling::Full, ..Setup::new(name) };
        let numbers = engine(name).numbers();
        let end = |extra: Option<Example>| {
            let mut setup = setup.clone();
            setup.people.push(extra);
            setup.run().steps(5).clone()
        };
        let healthy = end(None);
        assert!(finite(&healthy), "{name}");
        for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut point = vec![0.5; numbers];
            point[numbers / 2] = poison;
            let poisoned = end(Some(Example::features(point, 0)));
            assert!(finite(&poisoned), "{name} {poison}");
            // What is not finite is as if it were not there; what is merely huge is clipped like
            // anything else. A loss that is infinite counts as its clip bound in a probe.
            if poison.is_nan() {
                assert_eq!(poisoned, healthy, "{name} {poison}");
            }
        }
    }
}

#[test]
fn huge_and_tiny_scales_stay_finite() {
    for name in cases() {
        for scale in [1e-8f32, 1e6] {
            let mut setup = Setup { clip: f64::from(scale), ..Setup::new(name) };
            setup.people =
                engine(name).examples(PEOPLE, scale, scale).into_iter().map(Some).collect();
            assert!(finite(setup.run().steps(8)), "{name} {scale}");
        }
    }
}

#[test]
fn micro_batches_and_threads_do_not_matter() {
    for name in cases() {
        let end = |micro: usize, threads: usize| {
            let mut run = Setup::new(name).run();
            run.curator.set_micro_batch(micro);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run.steps(5).clone())
        };
        let whole = end(1000, 2);
        for (micro, threads) in [(1, 1), (7, 3)] {
            let other = end(micro, threads);
            for (a, b) in
                whole.iter().flat_map(|t| t.data()).zip(other.iter().flat_map(|t| t.data()))
            {
                assert!(
                    (a - b).abs() <= 2e-4 * (1.0 + a.abs()),
                    "{name} {micro} {threads}: {a} {b}"
                );
            }
        }
        assert_eq!(end(7, 1), end(7, 3), "{name}: threads change not one bit");
    }
}

#[test]
fn the_ledger_holds_what_was_declared() {
    for name in cases() {
        let setup = Setup::new(name);
        let mut run = setup.run();
        let mut declared = Composition::new();
        for step in 0..7 {
            for announced in run.optimizer.lots(step) {
                declared.push(lot_event(setup.sampling, &announced).unwrap(), 1).unwrap();
            }
        }
        run.steps(7);
        assert_eq!(run.curator.ledger().events(), &declared, "{name}");
        // All blocks of a gradient together cost what one release with σ costs.
        let own = &run.optimizer.lots(0)[0];
        let precision: f64 =
            own.sigmas().iter().map(|&(sigma, count)| count as f64 / sigma.get().powi(2)).sum();
        assert!((precision * setup.sigma.powi(2) - 1.0).abs() < 1e-9, "{name}: {precision}");
    }
}

/// Two curators with neighbouring data and the same randomness; the optimizer follows the first.
struct PairedOracles {
    one: Curator<Quadratic>,
    other: Curator<Quadratic>,
    /// The largest share of the declared sensitivity seen.
    farthest: f64,
}

impl Oracle for PairedOracles {
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        self.other.draw(announced)?;
        self.one.draw(announced)
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        let (one, other) = (self.one.gradient(query)?, self.other.gradient(query)?);
        assert_eq!(one.std, other.std);
        let size = self.one.lot_size();
        for (block, bound) in query.bounds.iter().enumerate() {
            let mine = |k: &usize| query.blocks.of(*k) == block;
            let pairs = (0..one.value.len())
                .filter(mine)
                .flat_map(|k| one.value[k].data().iter().zip(other.value[k].data()));
            let apart = pairs.map(|(a, b)| (f64::from(a - b) * size).powi(2)).sum::<f64>().sqrt();
            self.farthest = self.farthest.max(apart / bound.clip.get());
        }
        Ok(one)
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        let (one, other) = (self.one.loss(query)?, self.other.loss(query)?);
        // Released losses are rounded to f32, after the noise.
        let rounding = 1e-6 * one.value.abs().max(other.value.abs());
        let apart = ((one.value - other.value).abs() - rounding) * self.one.lot_size();
        self.farthest = self.farthest.max(apart / query.bound.clip.get());
        Ok(one)
    }
}

#[test]
fn neighbours_are_within_the_declared_sensitivity() {
    for name in cases() {
        let mut most = 0.0f64;
        for (victim, scale) in [(0usize, 1.0f32), (3, 1e4), (7, 1e-4), (11, 1e30)] {
            let mut setup = Setup { sigma: 0.05, ..Setup::new(name) };
            let mut point = vec![0.0; engine(name).numbers()];
            noise::PublicRandom::from_seed(victim as u64).normals(0, &mut point);
            setup.people[victim] =
                Some(Example::features(point.iter().map(|z| scale * z).collect(), 0));
            let mut removed = setup.clone();
            removed.people[victim] = None;
            let mut twins =
                PairedOracles { one: setup.curator(), other: removed.curator(), farthest: 0.0 };
            let mut params = engine(name).start(5);
            let mut optimizer = setup.optimizer(&params);
            for _ in 0..8 {
                optimizer.step(&mut params, &mut twins).unwrap();
            }
            assert_eq!(twins.one.ledger(), twins.other.ledger(), "{name}: the same control flow");
            assert!(twins.farthest <= 1.0, "{name}: {} of the sensitivity", twins.farthest);
            most = most.max(twins.farthest);
        }
        assert!(most > 0.9, "{name}: only {most} of the sensitivity is ever used");
    }
}

#[test]
fn every_one_descends_through_noise() {
    for name in cases() {
        // Far from the optimum, and with noise that a single record would drown in.
        let mut setup =
            Setup { clip: 2.0, sigma: 1.0, rate: 0.03, sampling: poisson(0.8), ..Setup::new(name) };
        let quadratic = engine(name);
        let people = quadratic.examples(200, 1.0, 0.2);
        setup.people = people.iter().cloned().map(Some).collect();
        let mut run = setup.run();
        let before = quadratic.mean_loss(&run.params, &people);
        run.steps(120);
        let after = quadratic.mean_loss(&run.params, &people);
        let least = quadratic.mean_loss_floor(0.2);
        // To the letter of its paper, MacAdam's scale falls to its floor and little is learnt.
        let share = if name == "macadam-literal" { 0.95 } else { 0.35 };
        assert!(
            after - least < share * (before - least),
            "{name}: from {before} to {after}, at least {least} is left"
        );
    }
}

/// The same optimizers without privacy, and saying so.
#[test]
fn twins_without_privacy_descend_further() {
    for name in cases() {
        let setup = Setup { clip: 2.0, sigma: 1.0, rate: 0.03, ..Setup::new(name) };
        let quadratic = engine(name);
        let people = quadratic.examples(100, 1.0, 0.2);
        let start = quadratic.start(5);
        let before = quadratic.mean_loss(&start, &people);
        let mut exact = NonPrivateOracle::new(
            engine(name),
            Records::new(people.clone()),
            Sampling::Full,
            Randomness::fixed(1),
        )
        .unwrap();
        let (mut params, mut optimizer) = (start.clone(), setup.optimizer(&start));
        for _ in 0..150 {
            optimizer.step(&mut params, &mut exact).unwrap();
        }
        let after = quadratic.mean_loss(&params, &people);
        let least = quadratic.mean_loss_floor(0.2);
        assert!(
            after - least < 0.2 * (before - least),
            "{name}: from {before} to {after}, at least {least} is left"
        );
        assert!(
            exact
                .ledger()
                .events()
                .runs()
                .iter()
                .all(|(event, _)| *event == accounting::Event::NonPrivate)
        );
    }
}

/// Three clouds of points, to be told apart.
#[test]
fn every_one_learns_to_classify() {
    let person = |seed: u64| {
        let mut numbers = vec![0.0; 4];
        noise::PublicRandom::from_seed(seed).normals(0, &mut numbers);
        let class = (seed % 3) as usize;
        numbers
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = 0.5 * *x + if i == class { 2.0 } else { 0.0 });
        Example::features(numbers, class as u32)
    };
    let people: Vec<Example> = (0..600).map(person).collect();
    for name in cases() {
        let (network, mut params) = perceptron(needs_pairs(name));
        let (tensors, sampling) = (network.trainable(), poisson(0.2));
        let setting = Setting {
            tensors: &tensors,
            params: &params,
            clip: 0.5,
            sigma: 0.8,
            lot_size: sampling.lot_size(600),
            rate: 0.03,
        };
        let mut optimizer = make(name, &setting);
        let mut curator = Curator::new(
            network,
            Records::new(people.clone()),
            sampling,
            Door::unlimited(),
            Randomness::fixed(2),
        )
        .unwrap();
        for _ in 0..100 {
            optimizer.step(&mut params, &mut curator).unwrap();
        }
        let logits = perceptron(needs_pairs(name))
            .0
            .logits(&params, &people.iter().collect::<Vec<_>>())
            .unwrap();
        let right = |(row, example): (&[f32], &Example)| {
            let best = (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            example.parts()[0].target == engine::Target::Class(best as u32)
        };
        let share =
            logits.chunks_exact(3).zip(&people).filter(|&pair| right(pair)).count() as f64 / 600.0;
        let enough = if name == "macadam-literal" { 0.6 } else { 0.9 };
        assert!(share > enough, "{name}: {share} right");
    }
}
