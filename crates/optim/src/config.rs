//! The section `[optimizer]` of a configuration, and how an optimizer is built from it.
//!
//! Each optimizer declares its own hyperparameters beside its formulas; [`registry`] lists the
//! optimizers by name. This file has the keys that they share: step size and clip bound.

use crate::auto::NumberOrName;
use crate::registry::{DefaultRate, Entry, Method};
use crate::schedule::{Shape, WarmUp};
use crate::{
    Auto, Descent, GradientNoise, HyFree, Key, Keys, Optimizer, Probes, Schedule, Search,
    elementwise, hyfree, keys, registry, within,
};
use protocol::{Bound, Clipping, Params, Positive, Refused, Trainable};
use serde::{Deserialize, Serialize};
use tensor::Array;

keys! {
    /// The section `[optimizer]`: the method with its hyperparameters, and the step size.
    ///
    /// ```
    /// use optim::config::Clipped;
    /// use optim::{Auto, Method, OptimizerConfig, sgd};
    ///
    /// let own = sgd::Config { momentum: Auto::Value(0.8), ..sgd::Config::default() };
    /// let config = OptimizerConfig::new(Method::DpSgd(Clipped { own, ..Clipped::default() }));
    /// assert_eq!((config.name(), config.clip()), ("dp-sgd", 0.1));
    /// assert!(OptimizerConfig::named("dp-sdg").is_err());
    /// ```
    #[derive(Clone, Debug)]
    pub struct OptimizerConfig {
        /// The learning rate; found privately if it is "hyfree".
        ///
        /// The default depends on method, model, noise and number of steps.
        #[serde(default)]
        pub learning_rate: Auto<LearningRate> = Auto::Auto,
        /// How the learning rate decreases: constant, linear or cosine.
        #[serde(default)]
        pub schedule: Shape = Shape::Constant,
        /// Steps in which the learning rate increases to its peak: a whole number of steps, or a
        /// number between 0 and 1 for a share of all steps; 0.1 by default.
        #[serde(default)]
        pub warm_up: Auto<WarmUp> = Auto::Auto,
        /// The learning rate at the end of a decreasing schedule, as a fraction of the peak.
        #[serde(default)]
        pub end: f64 = 0.0,
        /// Decay of the moving average of the parameters that is released; 0 releases the last ones.
        #[serde(default)]
        pub ema_decay: f64 = 0.0,
    }
    with {
        /// The method: its name (see [`registry`](crate::registry::ALL)) and its hyperparameters.
        #[serde(flatten)]
        pub method: Method = Method::DpAdam(Default::default()),
        /// Hyperparameters of HyFreeDP, used if the learning rate is "hyfree".
        #[serde(default)]
        pub hyfree: hyfree::Config = hyfree::Config::default(),
    }
}

impl Keys for OptimizerConfig {
    /// The name, the hyperparameters of the method and the shared keys, without `[optimizer.hyfree]`.
    fn keys(&self) -> Vec<Key> {
        let name = Key { name: "name", text: "The optimizer.", example: None };
        let own = self.method.hyperparameters().keys();
        [vec![name], Self::KEYS.to_vec(), own].concat()
    }
}

/// A learning rate, or how it is found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "NumberOrName<f64>", into = "NumberOrName<f64>")]
pub enum LearningRate {
    /// The peak of a schedule.
    Fixed(f64),
    /// Found by HyFreeDP.
    HyFree,
}

impl TryFrom<NumberOrName<f64>> for LearningRate {
    type Error = String;
    fn try_from(raw: NumberOrName<f64>) -> Result<Self, String> {
        match raw {
            NumberOrName::Number(rate) => Ok(Self::Fixed(rate)),
            NumberOrName::Name(name) if name == "hyfree" => Ok(Self::HyFree),
            NumberOrName::Name(name) => {
                Err(format!("expected a number, \"hyfree\" or \"auto\", got {name:?}"))
            }
        }
    }
}

impl From<LearningRate> for NumberOrName<f64> {
    fn from(rate: LearningRate) -> Self {
        match rate {
            LearningRate::Fixed(rate) => Self::Number(rate),
            LearningRate::HyFree => Self::Name("hyfree".into()),
        }
    }
}

/// The model, the noise and the length of the run for which an optimizer is built.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The trained tensors.
    pub tensors: &'a [Trainable],
    /// Their values.
    pub params: &'a Params,
    /// The public lot size.
    pub lot_size: f64,
    /// Number of steps.
    pub steps: u64,
    /// Noise multipliers.
    pub sigma: Multipliers,
    /// The origin of the parameters, which default learning rates depend on.
    pub origin: Origin,
    /// Seed of public randomness.
    pub seed: u64,
}

impl Setting<'_> {
    /// Returns the public randomness of this run.
    pub(crate) fn probes(&self) -> Probes {
        Probes::from_seed(self.seed ^ 0x4d55_4646)
    }

    /// Returns the learning rate of SGD that moves parameters as far as a rate of 1 of Adam.
    ///
    /// Where noise dominates, Adam divides by its standard deviation σC/B, so that one draw of the
    /// noise moves an element by about the rate, over all steps in which it is in the average. With
    /// momentum μ, SGD moves it by σC/(B (1 − μ)) times the rate.
    pub(crate) fn sgd_scale(&self, clip: f64, momentum: f64) -> f64 {
        (1.0 - momentum) * self.lot_size / (self.sigma.gradient * clip)
    }

    /// Returns the clip bound for models that predict labels; none for others.
    ///
    /// For inputs of a head whose root mean square is about 1, the gradient of the head has a norm
    /// of √inputs times the error of the prediction, which is 1 at most for a class. This bound
    /// clips errors above ½.
    ///
    /// # Why not less
    /// Below all norms, every example has the same weight, however well it is predicted. The sum of
    /// the gradients in the direction that all examples share is then proportional to the
    /// difference between the numbers of examples of two classes. It does not vanish, and the model
    /// predicts the larger class with growing certainty. If errors are clipped above ½, it vanishes:
    /// for a class with a share s > ½, where s (1 − p) = (1 − s)/2, at the mean prediction
    /// p = 1 − (1 − s)/(2s), and without clipping at s.
    fn label_clip(&self) -> Option<f64> {
        Some(0.5 * self.label_inputs()?.sqrt())
    }

    /// Returns the number of inputs of the head of a model that predicts labels; none for others.
    fn label_inputs(&self) -> Option<f64> {
        let mut heads = self.tensors.iter().filter(|tensor| tensor.predicts_labels);
        heads.find_map(Trainable::inputs).map(|inputs| inputs as f64)
    }

    /// Returns the largest rate per unit of distance that the origin of the parameters allows.
    fn rate_limit(&self, entry: &Entry) -> f64 {
        match self.origin {
            Origin::New if !entry.private => f64::INFINITY,
            Origin::New => {
                let inputs = self.mean_inputs();
                if inputs > 0.0 { NEW / (self.steps as f64 * inputs).sqrt() } else { f64::INFINITY }
            }
            Origin::Adapters if entry.needs_pairs => f64::INFINITY,
            Origin::Adapters => ADAPTERS,
            Origin::Pretrained => {
                let rms = self.root_mean_square();
                // Tests for the valid case: without matrices it is NaN, and there is no limit.
                if rms > 0.0 { PRETRAINED * entry.pretrained_limit * rms } else { f64::INFINITY }
            }
        }
    }

    /// Returns the number of inputs of a weight, on average over the elements of all weights.
    fn mean_inputs(&self) -> f64 {
        let (mut inputs, mut elements) = (0.0, 0.0);
        for (tensor, count) in self.tensors.iter().filter_map(|t| Some((t, t.inputs()?))) {
            let size = tensor.shape.iter().product::<usize>() as f64;
            inputs += size * count as f64;
            elements += size;
        }
        inputs / elements
    }

    /// Returns the root mean square of the elements of all matrices.
    fn root_mean_square(&self) -> f64 {
        let matrices = || self.params.iter().filter(|tensor| tensor.shape().len() > 1);
        let squares: f64 = matrices().map(|tensor| elementwise::sum(tensor, |x| x * x)).sum();
        let elements: usize = matrices().map(Array::len).sum();
        (squares / elements as f64).sqrt()
    }
}

/// The origin of the parameters that are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Origin {
    /// They are new.
    #[default]
    New,
    /// They are those of a trained model.
    Pretrained,
    /// They are new low-rank adapters of a trained model.
    Adapters,
}

/// The largest rate per unit of distance of new parameters, times √(steps · inputs).
///
/// Where noise dominates, it moves an element by about √steps times the rate of Adam, and an output
/// of a layer whose inputs have about unit size by √inputs times as much. This keeps the noise of an
/// output moderate: it matters for wide inputs. Linear classifiers of scattering features of
/// Fashion-MNIST (ε = 3, 110 steps of 8192) were best at 1.6 (DP-Adam, NLL; 3.3 in accuracy), in the
/// same unit. Convolutional networks on MNIST are best at 6, so this is a compromise.
const NEW: f64 = 3.0;

/// The largest default rate for steps proportional to the gradient, times the inputs of a head that
/// predicts labels.
///
/// The curvature of its loss grows with the squared length of the inputs. On scattering features at
/// ε = 3, the best of rates that differ by factors of 2 were 38 / 3969 (Fashion-MNIST, 293 steps of
/// 4096), 75 / 15,552 and 38 / 15,552 (CIFAR-10, 92 and 183 steps of 8192), with a momentum of 0.9.
const HEAD: f64 = 50.0;

/// The largest rate per unit of distance of pretrained parameters, relative to their root mean
/// square.
const PRETRAINED: f64 = 0.0375;

/// The largest rate per unit of distance of low-rank adapters.
///
/// Not for methods whose steps follow the geometry of the product. The weights of the trained model
/// are not known here; the product of two factors moves by the product of their movements.
const ADAPTERS: f64 = 0.005;

/// The noise multipliers of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Joint multiplier of all blocks of a gradient.
    pub gradient: f64,
    /// Multiplier of each probed loss.
    pub probe: f64,
}

impl From<Method> for OptimizerConfig {
    fn from(method: Method) -> Self {
        Self::new(method)
    }
}

impl OptimizerConfig {
    /// Creates the configuration of a method with defaults for the shared keys.
    pub fn new(method: Method) -> Self {
        Self { method, ..Self::default() }
    }

    /// Creates the configuration of the method of this name, with its defaults.
    ///
    /// # Errors
    /// If no optimizer has this name; the error suggests one.
    pub fn named(name: &str) -> Result<Self, String> {
        Ok(Self::new((registry::find(name)?.defaults)()))
    }

    /// Returns the registry entry of the method.
    pub fn entry(&self) -> &'static Entry {
        self.method.entry()
    }

    /// Returns the name of the method.
    pub fn name(&self) -> &'static str {
        self.entry().name
    }

    /// Whether gradients are clipped and noised.
    pub fn is_private(&self) -> bool {
        self.entry().private
    }

    /// Whether the learning rate is found by probing the loss.
    pub fn finds_rate(&self) -> bool {
        self.learning_rate == Auto::Value(LearningRate::HyFree)
    }

    /// Returns the clip bound of each block: the given one, or the default of the method.
    ///
    /// For models that predict labels, some methods have [another default](Entry::label_clip).
    pub fn clip(&self) -> f64 {
        self.given_clip().or(self.entry().clip)
    }

    /// Returns the clip bound, if it is given.
    pub fn given_clip(&self) -> Auto<f64> {
        self.method.hyperparameters().clip()
    }

    /// Returns the clip bound of each block for a model.
    pub fn clip_for(&self, setting: &Setting<'_>) -> f64 {
        let for_labels = if self.entry().label_clip { setting.label_clip() } else { None };
        self.given_clip().or_else(|| for_labels.unwrap_or(self.entry().clip))
    }

    /// Builds the optimizer.
    ///
    /// # Errors
    /// If a hyperparameter is out of range, or the model does not fit the method.
    pub fn build(&self, setting: &Setting<'_>) -> Result<Optimizer, Refused> {
        let bound = Bound {
            clip: Positive::new("optimizer.clip", self.clip_for(setting))?,
            sigma: Positive::new("the noise multiplier", setting.sigma.gradient)?,
        };
        // Automatic clipping is part of HyFreeDP.
        let clipping = if self.finds_rate() {
            Clipping::Automatic { gamma: Positive::new("γ", DEFAULT_GAMMA)? }
        } else {
            Clipping::Cut
        };
        let noise = GradientNoise { bound, clipping };
        // First the method: default learning rates are computed from its hyperparameters.
        let descent = self.method.hyperparameters().build(noise, setting)?;
        let optimizer = Optimizer::boxed(descent, self.search(setting)?);
        match self.ema_decay {
            0.0 => Ok(optimizer),
            decay => optimizer.with_averaging(decay, setting.params),
        }
    }

    fn search(&self, setting: &Setting<'_>) -> Result<Box<dyn Search>, Refused> {
        let rate = match self.learning_rate {
            Auto::Value(LearningRate::HyFree) => {
                let sigma =
                    Positive::new("the noise multiplier of the probes", setting.sigma.probe)?;
                if self.schedule != Shape::Constant {
                    return Err(Refused::Query(
                        "optimizer.schedule: expected \"constant\", because the learning rate is \
                         found by probing the loss (learning_rate = \"hyfree\")"
                            .into(),
                    ));
                }
                let schedule = match self.hyfree.rule {
                    hyfree::Rule::Adaptive => {
                        self.schedule(setting.steps, self.default_rate(setting)?)?
                    }
                    // The first rate of the paper, which has no warm-up.
                    hyfree::Rule::Gated | hyfree::Rule::Literal => Schedule {
                        warm_up: self.warm_up.or(WarmUp::Steps(0)).of(setting.steps),
                        ..Schedule::constant(1e-4)?
                    },
                };
                return Ok(Box::new(HyFree::new(&self.hyfree, schedule, sigma)?));
            }
            Auto::Value(LearningRate::Fixed(rate)) => rate,
            Auto::Auto => self.default_rate(setting)?,
        };
        Ok(Box::new(self.schedule(setting.steps, rate)?))
    }

    /// Returns the default learning rate of the method for a run.
    fn default_rate(&self, setting: &Setting<'_>) -> Result<f64, Refused> {
        let sum = self.schedule(setting.steps, 1.0)?.sum();
        let clip = self.clip_for(setting);
        let scale = self.method.hyperparameters().rate_scale(clip, setting);
        let limit = setting.rate_limit(self.entry());
        let rate = match self.entry().learning_rate {
            // Gradients at the bound move parameters as far as with the default bound.
            DefaultRate::Fixed(rate) if self.is_private() => DefaultRate::Fixed(
                (rate * (self.entry().clip / clip)).min(self.head_limit(setting)),
            ),
            DefaultRate::Fixed(rate) => DefaultRate::Fixed(rate.min(self.head_limit(setting))),
            rate => rate,
        };
        Ok(rate.peak(sum, limit, scale))
    }

    /// Returns the largest rate for steps proportional to the gradient that a head allows.
    fn head_limit(&self, setting: &Setting<'_>) -> f64 {
        let (Some(inputs), Some(for_labels)) = (setting.label_inputs(), setting.label_clip())
        else {
            return f64::INFINITY;
        };
        match (self.is_private(), self.entry().label_clip) {
            (false, _) => HEAD / inputs,
            // Below the bound for labels, all gradients are shorter.
            (true, true) => HEAD / inputs * (for_labels / self.clip_for(setting)).max(1.0),
            // The bound is not that of the gradient itself.
            (true, false) => f64::INFINITY,
        }
    }

    /// Returns the schedule of a run with this peak.
    fn schedule(&self, steps: u64, peak: f64) -> Result<Schedule, Refused> {
        Ok(Schedule {
            peak: Positive::new("optimizer.learning_rate", peak)?,
            shape: self.schedule,
            end: within("optimizer.end", self.end, 0.0, f64::INFINITY)?,
            warm_up: self.warm_up.given().map_or(steps / 10, |warm_up| warm_up.of(steps)),
            steps,
        })
    }
}

/// The interface of a method's hyperparameters to the registry.
pub trait Hyperparameters: Keys {
    /// Returns the clip bound; `Auto` for methods without the key `clip`.
    fn clip(&self) -> Auto<f64> {
        Auto::Auto
    }

    /// Returns the factor from Adam's learning rate to this method's, for equal movement.
    fn rate_scale(&self, clip: f64, setting: &Setting<'_>) -> f64 {
        let _ = (clip, setting);
        1.0
    }

    /// Builds the method. `noise` has the clip bound and the default clipping rule.
    ///
    /// # Errors
    /// If a hyperparameter is out of range, or the model does not fit the method.
    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused>;
}

/// Hyperparameters `H` of a private method, with the clip bound and the clipping rule.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Clipped<H> {
    /// The clip bound.
    #[serde(flatten)]
    pub clip: ClipConfig,
    /// The method's own hyperparameters.
    #[serde(flatten)]
    pub own: H,
}

keys! {
    /// How per-example gradients are clipped.
    #[derive(Clone, Copy, Debug)]
    #[serde(default, deny_unknown_fields)]
    pub struct ClipConfig {
        /// The clip bound C of each block.
        pub clip: Auto<f64> = Auto::Auto,
        /// The clipping rule: flat or automatic; flat by default, and automatic with HyFreeDP.
        pub clipping: Auto<ClippingRule> = Auto::Auto,
        /// γ of automatic clipping; by default 0.01, and 0.3 C for models that predict labels.
        pub automatic_gamma: Auto<f64> = Auto::Auto,
    }
}

/// γ of automatic clipping by default.
const DEFAULT_GAMMA: f64 = 0.01;

/// γ of automatic clipping for models that predict labels, relative to the clip bound.
///
/// With a small γ every example has the same weight: see [`Setting::label_clip`].
const LABEL_GAMMA: f64 = 0.3;

/// A clipping rule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClippingRule {
    /// min(1, C/‖g‖)
    #[default]
    Flat,
    /// C/(‖g‖ + γ): every gradient is scaled to about the bound.
    Automatic,
}

impl<H: Keys> Keys for Clipped<H> {
    fn keys(&self) -> Vec<Key> {
        [self.clip.keys(), self.own.keys()].concat()
    }
}

impl<H: Hyperparameters> Hyperparameters for Clipped<H> {
    fn clip(&self) -> Auto<f64> {
        self.clip.clip
    }

    fn rate_scale(&self, clip: f64, setting: &Setting<'_>) -> f64 {
        self.own.rate_scale(clip, setting)
    }

    fn build(
        &self,
        noise: GradientNoise,
        setting: &Setting<'_>,
    ) -> Result<Box<dyn Descent>, Refused> {
        let default = match noise.clipping {
            Clipping::Cut => ClippingRule::Flat,
            Clipping::Automatic { .. } => ClippingRule::Automatic,
        };
        let clipping = match self.clip.clipping.or(default) {
            ClippingRule::Flat => Clipping::Cut,
            ClippingRule::Automatic => Clipping::Automatic {
                gamma: Positive::new(
                    "optimizer.automatic_gamma",
                    self.clip.automatic_gamma.or(match setting.label_clip() {
                        Some(_) => LABEL_GAMMA * noise.bound.clip.get(),
                        None => DEFAULT_GAMMA,
                    }),
                )?,
            },
        };
        self.own.build(GradientNoise { clipping, ..noise }, setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Role;

    /// The setting of a run on one new weight.
    fn on<T>(tensor: Trainable, ask: impl Fn(&Setting<'_>) -> T) -> T {
        let params = Params::new(vec![Array::zeros(tensor.shape.clone())]);
        ask(&Setting {
            tensors: &[tensor],
            params: &params,
            lot_size: 4096.0,
            steps: 60,
            sigma: Multipliers { gradient: 1.845, probe: 1.845 },
            origin: Origin::New,
            seed: 0,
        })
    }

    /// Where a model predicts labels, methods with one block clip at half of √inputs of the head.
    #[test]
    fn labels_have_a_clip_bound_of_their_own() {
        let clip_for = |keys: &str, labels: bool, inputs: usize| {
            let config: OptimizerConfig = toml::from_str(keys).unwrap();
            let head = Trainable::new("head", [2, inputs], Role::Head);
            let head = if labels { head.predicting_labels() } else { head };
            on(head, |setting| {
                let rate = config.default_rate(setting).unwrap();
                (config.clip_for(setting), rate)
            })
        };
        let clip = |keys: &str, labels: bool| clip_for(keys, labels, 64);
        for name in ["dp-sgd", "dp-adam", "dp-adamw", "dp-adam-bc"] {
            let named = |more: &str, labels| clip(&format!("name = {name:?}\n{more}"), labels);
            assert_eq!((named("", true).0, named("", false).0), (4.0, 0.1), "{name}");
            assert_eq!(named("clip = 0.7", true).0, 0.7, "{name}");
        }
        assert_eq!(clip("name = \"dp-macadam\"", true).0, 1.0);
        // Steps proportional to the gradient have the same length at the bound.
        let sgd = |more: &str| clip(&format!("name = \"dp-sgd\"\n{more}"), true).1;
        assert!((sgd("") * 4.0 - 0.6).abs() < 1e-12 && (sgd("clip = 0.1") - 6.0).abs() < 1e-12);
        // A head of many inputs has a steep loss.
        let wide = |labels| clip_for("name = \"dp-sgd\"", labels, 5000).1;
        assert!((wide(true) - 0.01).abs() < 1e-12 && (wide(false) - 6.0).abs() < 1e-12);
        assert!((clip_for("name = \"sgd\"", true, 5000).1 - 0.01).abs() < 1e-12);
        let adaclip = |inputs| clip_for("name = \"dp-adaclip\"", true, inputs).1;
        assert_eq!(adaclip(5000), adaclip(50));
        let short = clip_for("name = \"dp-sgd\"\nclip = 0.1", true, 5000).1;
        assert!((short - 0.01 * 0.5 * 5000f64.sqrt() / 0.1).abs() < 1e-12);
    }

    /// Wide inputs and many steps limit the rate of new parameters; for methods without noise
    /// nothing does.
    #[test]
    fn new_parameters_have_a_limit() {
        let rate = |name: &str, shape: [usize; 2], transposed: bool, steps: u64| {
            let tensor = Trainable { transposed, ..Trainable::new("w", shape, Role::Hidden) };
            let params = Params::new(vec![Array::zeros(shape.to_vec())]);
            let setting = Setting {
                tensors: &[tensor],
                params: &params,
                lot_size: 4096.0,
                steps,
                sigma: Multipliers { gradient: 1.845, probe: 1.845 },
                origin: Origin::New,
                seed: 0,
            };
            OptimizerConfig::named(name).unwrap().default_rate(&setting).unwrap()
        };
        let expected = 2.4 / (293.0 * 39_690.0f64).sqrt() * 0.1 * 4096.0 / (0.1 * 1.845);
        assert!((rate("dp-sgd", [10, 39_690], false, 293) - expected).abs() < 1e-9 * expected);
        assert!((rate("dp-sgd", [39_690, 10], true, 293) - expected).abs() < 1e-9 * expected);
        assert_eq!(rate("dp-sgd", [10, 64], false, 60), 6.0);
        assert_eq!(rate("sgd", [10, 39_690], false, 293), rate("sgd", [10, 64], false, 60));
        // The distance decides for Adam in long runs, the inputs in short ones.
        let long = rate("dp-adam", [10, 3969], false, 2000);
        assert_eq!(long, rate("dp-adam", [10, 64], false, 2000));
        let short = rate("dp-adam", [10, 15_552], false, 24);
        assert!((short - 2.4 / (24.0 * 15_552.0f64).sqrt()).abs() < 1e-12, "{short}");
    }
}
