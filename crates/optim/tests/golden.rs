//! Every optimizer against an independent transcription of its formulas: trajectories of 25 steps
//! made by `python3 peers/golden_optim.py`, with the noise given.

#![allow(clippy::unwrap_used)]

use optim::adam::Denominator;
use optim::hyfree::{self, Points, ProbeLot};
use optim::macadam::Variance;
use optim::muon::{self, BlockRule, Correction, EvaluateAt, Group, ShapeScale};
use optim::newton_schulz::{Normaliser, Polynomial};
use optim::{
    AdaClip, Adam, Auto, Descent, FoundRate, GradientNoise, HyFree, MacAdam, Muon, Optimizer,
    Prism, Probes, Schedule, Search, Sgd, State,
};
use optim::{adaclip, adam, macadam, prism, sgd};
use protocol::{
    Announcement, Bound, Clipping, GradientQuery, LossQuery, Noisy, Oracle, Params, Positive,
    Refused, Role, TensorMap, Trainable,
};
use serde_json::Value;
use tensor::Array;

/// A case as the script wrote it.
struct Case {
    name: &'static str,
    all: Value,
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn places(value: &Value) -> Vec<usize> {
    list(value).iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

impl Case {
    fn read(name: &'static str) -> Self {
        let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
        Self { name, all: serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() }
    }

    fn number(&self, key: &str) -> f64 {
        self.all["config"][key].as_f64().unwrap_or_else(|| panic!("{}: no {key}", self.name))
    }

    fn positive(&self, key: &str) -> Positive {
        Positive::new("golden", self.number(key)).unwrap()
    }

    fn text(&self, key: &str) -> &str {
        self.all["config"][key].as_str().unwrap()
    }

    fn batch(&self) -> f64 {
        self.all["batch"].as_f64().unwrap()
    }

    fn units(&self) -> Vec<Vec<usize>> {
        list(&self.all["units"]).iter().map(places).collect()
    }

    fn tensors(&self) -> Vec<Trainable> {
        let units = self.units();
        let of = |(k, tensor): (usize, &Value)| {
            let pair = units.iter().find(|unit| unit.contains(&k)).unwrap();
            let role = match tensor["role"].as_str().unwrap() {
                "weight" => Role::Hidden,
                "bias" => Role::Vector,
                "embedding" => Role::Table,
                "head" => Role::Head,
                "factor_a" => Role::Left(pair[1]),
                "factor_b" => Role::Right(pair[0]),
                other => panic!("{other}"),
            };
            Trainable::new(tensor["name"].as_str().unwrap(), places(&tensor["shape"]), role)
        };
        list(&self.all["tensors"]).iter().enumerate().map(of).collect()
    }

    fn params(&self, of: &Value) -> Params {
        let tensor = |(tensor, flat): (Trainable, &Value)| {
            Array::new(tensor.shape, floats(flat).iter().map(|&x| x as f32).collect()).unwrap()
        };
        Params::new(self.tensors().into_iter().zip(list(of)).map(tensor).collect())
    }

    fn noise(&self) -> GradientNoise {
        let clipping = match self.text("clipping") {
            "flat" => Clipping::Cut,
            "automatic" => Clipping::Automatic { gamma: self.positive("automatic_gamma") },
            other => panic!("{other}"),
        };
        GradientNoise {
            bound: Bound { clip: self.positive("clip"), sigma: self.positive("sigma") },
            clipping,
        }
    }

    fn adam(&self) -> adam::Rule {
        let denominator = match self.all["config"].get("floor") {
            Some(floor) => Denominator::Corrected { floor: Auto::Value(floor.as_f64().unwrap()) },
            None => Denominator::Plain { epsilon: self.number("eps") },
        };
        adam::Rule {
            betas: (self.number("beta1"), self.number("beta2")),
            weight_decay: self.number("weight_decay"),
            denominator,
        }
    }

    fn sgd(&self) -> Sgd {
        let config = sgd::Config {
            momentum: Auto::Value(self.number("momentum")),
            weight_decay: Auto::Value(self.number("weight_decay")),
        };
        Sgd::new(config, self.noise(), &self.params(&self.all["initial"])).unwrap()
    }

    fn muon(&self) -> Muon {
        let newton_schulz_degree = match self.text("polynomial") {
            "kappa" => Polynomial::Newton { degree: self.number("kappa") as usize },
            "quintic" => Polynomial::Quintic,
            other => panic!("{other}"),
        };
        let normaliser = match self.text("normalizer") {
            "frobenius" => Normaliser::Frobenius,
            "max1" => Normaliser::AtLeastOne,
            other => panic!("{other}"),
        };
        let config = muon::Config {
            momentum: Auto::Value(self.number("momentum")),
            newton_schulz_steps: self.number("iterations") as usize,
            newton_schulz_degree,
            normaliser,
            shape_scale: match self.text("shape_scale") {
                "none" => ShapeScale::None,
                "rows-over-cols" => ShapeScale::RowsOverCols,
                "larger-side" => ShapeScale::LargerSide,
                other => panic!("{other}"),
            },
            weight_decay: Auto::Value(self.number("weight_decay")),
            muon_group: match self.text("group") {
                "all" => Group::AllMatrices,
                "paper" => Group::Paper,
                _ => Group::Hidden,
            },
            blocks: self.block_rules(),
            betas: (self.number("aux_beta1"), self.number("aux_beta2")),
            epsilon: self.number("aux_eps"),
            auxiliary_ratio: Auto::Value(self.number("aux_ratio")),
        };
        assert_eq!(self.number("aux_weight_decay"), 0.0);
        let at_average = self.all["config"].get("evaluate_at").is_some_and(|at| at == "average");
        let evaluate_at = if at_average { EvaluateAt::Average } else { EvaluateAt::Momentum };
        let correction = Correction { probes: self.number("probes") as usize, evaluate_at };
        let given = self.all["probes"].clone();
        let matrices = places(&self.all["debug"]["matrices"]);
        let probes = Probes::given(move |step, tensor, probe, out| {
            let matrix = matrices.iter().position(|&k| k == tensor).unwrap();
            let numbers = floats(&given[step as usize][matrix][probe]);
            out.iter_mut().zip(numbers).for_each(|(out, x)| *out = x as f32);
        });
        Muon::new(&config, Some(correction), self.noise(), &self.tensors(), probes).unwrap()
    }

    /// Clip bounds and noise shares of single blocks, if the case has any.
    fn block_rules(&self) -> Vec<BlockRule> {
        let Some(rules) = self.all["config"].get("blocks") else { return Vec::new() };
        let rule = |rule: &Value| BlockRule {
            tensors: rule["tensors"].as_str().unwrap().into(),
            clip: rule["clip"].as_f64().into(),
            weight: rule["weight"].as_f64().into(),
        };
        list(rules).iter().map(rule).collect()
    }

    fn macadam(&self) -> MacAdam {
        let config = macadam::Config {
            betas: (self.number("beta1"), self.number("beta2")),
            epsilon: self.number("gamma"),
            clip: Auto::Auto,
            clips: Auto::Value((self.number("clip_min"), self.number("clip_max"))),
            variance: match self.text("variance") {
                "tensor" => Variance::Tensor,
                "exact" => Variance::Exact,
                "literal" => Variance::Literal,
                other => panic!("{other}"),
            },
            variance_scale: self.all["config"]["variance_scale"].as_f64().into(),
        };
        let bound = Bound { clip: self.positive("clip_initial"), sigma: self.positive("sigma") };
        MacAdam::new(config, bound, self.batch(), &self.params(&self.all["initial"])).unwrap()
    }

    fn adaclip(&self) -> AdaClip {
        let config = adaclip::Config {
            clip: Auto::Auto,
            clips: Auto::Value((self.number("clip_min"), self.number("clip_max"))),
            mean_decay: self.number("beta1"),
            variance_decay: self.number("beta2"),
            variance_scale: self.number("variance_scale"),
            momentum: Auto::Value(self.number("momentum")),
        };
        let bound = Bound { clip: self.positive("clip_initial"), sigma: self.positive("sigma") };
        AdaClip::new(config, bound, &self.params(&self.all["initial"])).unwrap()
    }

    fn prism(&self) -> Prism {
        let config = prism::Config {
            betas: (self.number("beta1"), self.number("beta2")),
            ridge: self.number("ridge"),
            subtract_noise: self.all["config"]["subtract_noise"].as_bool().unwrap(),
            auxiliary_ratio: Auto::Value(self.number("head_ratio")),
            epsilon: self.number("head_eps"),
        };
        Prism::new(config, self.noise(), &self.tensors(), Probes::from_seed(0)).unwrap()
    }

    fn hyfree(&self) -> HyFree {
        let config = hyfree::Config {
            start: Auto::Value(self.number("rate")),
            rule: hyfree::Rule::Gated,
            every: self.number("every") as u64,
            points: if self.number("points") == 3.0 { Points::Three } else { Points::Five },
            lot: if self.text("probe") == "same-lot" { ProbeLot::Same } else { ProbeLot::Fresh },
            gradient_factor: 1.01,
            gate: self.number("gate"),
            smoothing: Auto::Value(0.1),
            max_change: Auto::Value(2.0),
            loss_clip: self.number("loss_clip"),
            loss_clip_factor: 3.0,
            loss_clip_fall: 1.0,
            lowest_loss_clip: Auto::Value(self.number("loss_clip_min")),
        };
        HyFree::new(&config, Schedule::constant(1.0).unwrap(), self.positive("loss_sigma")).unwrap()
    }

    fn given_rates(&self) -> Given {
        Given(floats(&self.all["rates"]))
    }

    /// Follows the trajectory; `reload` puts the state away and takes it out again in the middle.
    fn follow(&self, make: impl Fn() -> Optimizer) {
        let mut oracle = Given25 {
            case: self,
            step: 0,
            asked: 0,
            probes: 0,
            lot: Vec::new(),
            left: Announcement::default(),
        };
        let mut params = self.params(&self.all["initial"]);
        let mut optimizer = make();
        let rates = floats(&self.all["rates"]);
        assert_eq!(rates.len(), 25);
        for (step, expected) in list(&self.all["expected"]).iter().enumerate() {
            if step == 12 {
                let state: State = optimizer.save().unwrap();
                optimizer = make();
                optimizer.load(state).unwrap();
            }
            oracle.step = step;
            let done = optimizer.step(&mut params, &mut oracle).unwrap();
            assert!(
                (done.rate / rates[step] - 1.0).abs() < 1e-5,
                "{} step {step}: rate {} expected {}",
                self.name,
                done.rate,
                rates[step]
            );
            for (k, expected) in list(expected).iter().enumerate() {
                for (i, (&got, expected)) in
                    params[k].data().iter().zip(floats(expected)).enumerate()
                {
                    let error = (f64::from(got) - expected).abs();
                    assert!(
                        error < 1e-5,
                        "{} step {step} tensor {k} number {i}: {got} expected {expected}",
                        self.name
                    );
                }
            }
        }
    }
}

/// Rates from the file.
struct Given(Vec<f64>);

impl Search for Given {
    fn rate(
        &mut self,
        step: u64,
        _: &mut dyn FnMut(f64) -> Result<Params, Refused>,
        _: &mut dyn Oracle,
    ) -> Result<FoundRate, Refused> {
        Ok(FoundRate { rate: self.0[step as usize], notes: Vec::new() })
    }

    fn save(&self) -> State {
        State::new("given")
    }

    fn load(&mut self, state: State) -> Result<(), Refused> {
        assert_eq!(state.kind, "given");
        Ok(())
    }
}

/// Answers from the file's problem with the file's lots and noise, in f64.
struct Given25<'a> {
    case: &'a Case,
    step: usize,
    /// Gradients asked so far, and probes begun.
    asked: usize,
    probes: usize,
    lot: Vec<usize>,
    left: Announcement,
}

impl Given25<'_> {
    /// Half of Σ s (θ − target)² of one example, and its gradient, by tensor.
    fn example(&self, at: &Params, example: usize) -> (f64, Vec<Vec<f64>>) {
        let mut gradients: Vec<Vec<f64>> =
            at.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        let mut loss = 0.0;
        for (u, unit) in self.case.units().iter().enumerate() {
            let (curvature, target) = (
                floats(&self.case.all["curvature"][u]),
                floats(&self.case.all["targets"][example][u]),
            );
            let of = |i: usize, theta: f64| {
                (
                    curvature[i] * (theta - target[i]),
                    0.5 * curvature[i] * (theta - target[i]).powi(2),
                )
            };
            if let [a, b] = unit[..] {
                let (m, n, rank) = (at[a].rows(), at[b].rows(), at[a].cols());
                let get = |k: usize, i: usize, l: usize| f64::from(at[k].data()[i * rank + l]);
                for i in 0..m {
                    for j in 0..n {
                        let z = (0..rank).map(|l| get(a, i, l) * get(b, j, l)).sum::<f64>();
                        let (g, part) = of(i * n + j, z);
                        loss += part;
                        for l in 0..rank {
                            gradients[a][i * rank + l] += g * get(b, j, l);
                            gradients[b][j * rank + l] += g * get(a, i, l);
                        }
                    }
                }
            } else {
                for (i, &theta) in at[unit[0]].data().iter().enumerate() {
                    let (g, part) = of(i, f64::from(theta));
                    gradients[unit[0]][i] = g;
                    loss += part;
                }
            }
        }
        (loss, gradients)
    }
}

impl Oracle for Given25<'_> {
    fn draw(&mut self, announced: &Announcement) -> Result<(), Refused> {
        // A second lot in one step is a probe's.
        self.lot = if self.asked > self.step {
            places(&self.case.all["probe_lots"][self.probes])
        } else {
            places(&self.case.all["lots"][self.step])
        };
        self.left = announced.clone();
        Ok(())
    }

    fn gradient(&mut self, query: &GradientQuery<'_>) -> Result<Noisy<TensorMap>, Refused> {
        self.asked += 1;
        let (blocks, bounds) = (query.blocks, query.bounds);
        assert!(bounds.iter().all(|bound| self.left.take(bound.sigma)), "announced");
        let mut sum: Vec<Vec<f64>> =
            query.at.iter().map(|tensor| vec![0.0; tensor.len()]).collect();
        for &example in &self.lot {
            let (_, gradient) = self.example(query.at, example);
            let encoded = query.geometry.encode(blocks, gradient);
            for (block, bound) in bounds.iter().enumerate() {
                let mine = |k: &usize| blocks.of(*k) == block;
                let norm = (0..encoded.len())
                    .filter(mine)
                    .flat_map(|k| &encoded[k])
                    .map(|x| x * x)
                    .sum::<f64>()
                    .sqrt();
                let factor = query.clipping.factor(norm, bound.clip.get());
                for k in (0..encoded.len()).filter(mine) {
                    sum[k].iter_mut().zip(&encoded[k]).for_each(|(sum, x)| *sum += factor * x);
                }
            }
        }
        let batch = self.case.batch();
        let noise = &self.case.all["noise"][self.step];
        let tensors = sum.iter().enumerate().map(|(k, sum)| {
            let bound = bounds[blocks.of(k)];
            let noise = floats(&noise[k]);
            Array::from_fn(query.at[k].shape(), |i| {
                ((sum[i] + bound.sigma.get() * bound.clip.get() * noise[i]) / batch) as f32
            })
        });
        let answer: TensorMap = tensors.enumerate().collect();
        let mut released = answer.clone();
        if matches!(query.geometry, protocol::Geometry::Tangent { .. }) {
            query.geometry.decode(&mut released);
        }
        for (k, expected) in list(&self.case.all["released"][self.step]).iter().enumerate() {
            for (&got, expected) in released[k].data().iter().zip(floats(expected)) {
                assert!(
                    (f64::from(got) - expected).abs() < 1e-4,
                    "{} step {} release {k}: {got} {expected}",
                    self.case.name,
                    self.step
                );
            }
        }
        Ok(Noisy {
            value: answer,
            std: bounds.iter().map(|b| b.sigma.get() * b.clip.get() / batch).collect(),
        })
    }

    fn loss(&mut self, query: &LossQuery<'_>) -> Result<Noisy<f64>, Refused> {
        assert!(self.left.take(query.bound.sigma), "announced");
        let clip = query.bound.clip.get();
        let noise = floats(&self.case.all["loss_noise"][self.probes]);
        // The releases of a probe, counted by what is left of its announcement.
        let points = self.case.number("points") as u64;
        let left = self
            .left
            .sigmas()
            .iter()
            .find(|(sigma, _)| *sigma == query.bound.sigma)
            .map_or(0, |&(_, count)| count);
        let point = (points - 1 - left) as usize;
        let sum: f64 = self
            .lot
            .iter()
            .map(|&example| self.example(query.at, example).0.clamp(-clip, clip))
            .sum();
        let deviation = query.bound.sigma.get() * clip;
        if left == 0 {
            self.probes += 1;
        }
        Ok(Noisy {
            value: (sum + deviation * noise[point]) / self.case.batch(),
            std: vec![deviation / self.case.batch()],
        })
    }
}

fn follows(name: &'static str, make: impl Fn(&Case) -> Optimizer) {
    let case = Case::read(name);
    case.follow(|| make(&case));
}

fn with_rates<D: Descent + 'static>(make: impl Fn(&Case) -> D) -> impl Fn(&Case) -> Optimizer {
    move |case| Optimizer::new(make(case), case.given_rates())
}

fn adam_of(case: &Case) -> Adam {
    Adam::new(case.adam(), case.noise(), &case.params(&case.all["initial"])).unwrap()
}

#[test]
fn sgd_follows() {
    for name in ["sgd", "sgd-decay"] {
        follows(name, with_rates(Case::sgd));
    }
}

#[test]
fn adam_follows() {
    for name in ["adam", "adamw", "adam-bc"] {
        follows(name, with_rates(adam_of));
    }
}

#[test]
fn muon_follows() {
    for name in [
        "muon-k1",
        "muon-k2",
        "muon-k3",
        "muon-quintic",
        "muon-max1",
        "muon-scaled",
        "muon-scaled-02",
        "muon-k2-all",
        "muon-paper",
    ] {
        follows(name, with_rates(Case::muon));
    }
}

#[test]
fn muon_with_bias_correction_follows() {
    for name in ["muon-bc", "muon-bc-max1", "muon-bc-paper", "muon-bc-average-max1", "muon-blocks"]
    {
        follows(name, with_rates(Case::muon));
    }
}

#[test]
fn macadam_follows() {
    for name in ["macadam-literal", "macadam-exact", "macadam-tensor"] {
        follows(name, with_rates(Case::macadam));
    }
}

#[test]
fn adaclip_follows() {
    for name in ["adaclip", "adaclip-momentum"] {
        follows(name, with_rates(Case::adaclip));
    }
}

#[test]
fn prism_follows() {
    for name in ["prism", "prism-narrow", "prism-subtract-noise", "prism-unbalanced"] {
        follows(name, with_rates(Case::prism));
    }
}

#[test]
fn hyfree_follows() {
    follows("hyfree-sgd", |case| Optimizer::new(case.sgd(), case.hyfree()));
    follows("hyfree-adam", |case| Optimizer::new(adam_of(case), case.hyfree()));
}
