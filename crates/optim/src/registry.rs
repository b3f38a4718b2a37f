//! The optimizers by name: one row each.
//!
//! A row has the variant of [`Method`] with the type of its hyperparameters, the name in a
//! configuration, and the default learning rate and clip bound.

use crate::adam::{AdamBcConfig, AdamConfig, AdamWConfig};
use crate::config::{Clipped, Hyperparameters};
use crate::{adaclip, macadam, muon, prism, sgd};
use DefaultRate::{Distance, Fixed};
use serde::{Deserialize, Serialize};

/// One row of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name in a configuration.
    pub name: &'static str,
    /// Whether gradients are clipped and noised.
    pub private: bool,
    /// Whether it trains low-rank pairs and requires a model that has them.
    pub needs_pairs: bool,
    /// The default learning rate.
    pub learning_rate: DefaultRate,
    /// The default clip bound.
    pub clip: f64,
    /// Whether the default clip bound follows from the head, if a model predicts labels.
    ///
    /// For methods that clip all tensors together.
    pub label_clip: bool,
    /// A factor of the largest default rate of pretrained parameters.
    pub pretrained_limit: f64,
    /// Creates the method with the defaults of its hyperparameters.
    pub defaults: fn() -> Method,
}

/// A default learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultRate {
    /// The same rate in runs of any length: for steps proportional to the gradient.
    ///
    /// By the origin of the parameters it is limited as `Distance(0.8)` is, and by the number of
    /// inputs of a head that predicts labels.
    Fixed(f64),
    /// The sum of the rates of all steps: for steps whose size does not depend on the gradient's.
    ///
    /// A parameter moves by about the rate in each step of Adam, so the sum is the distance that it
    /// can move in a run. How far it must move depends little on the number of steps: Kim and Fan
    /// (2026) tuned DP-Adam to sums of 0.82 (410 steps) and 0.66 (885 steps).
    ///
    /// Short runs are limited: to the rate of 30 steps, and by the origin of the parameters. Larger steps destroy what pretrained parameters represent.
    Distance(f64),
}

impl DefaultRate {
    /// The least sum of factors for which a distance is divided by it, so that rates stay moderate.
    const SHORTEST: f64 = 30.0;

    /// Returns the peak of a schedule.
    ///
    /// `factors` is the sum of the schedule's factors over all steps, `limit` the largest rate per
    /// unit of distance. A rate r of Adam corresponds to `scale` · r.
    pub fn peak(self, factors: f64, limit: f64, scale: f64) -> f64 {
        match self {
            Self::Fixed(rate) => rate.min(0.8 * limit * scale),
            Self::Distance(distance) => {
                distance * (1.0 / factors.max(Self::SHORTEST)).min(limit) * scale
            }
        }
    }
}

macro_rules! row {
    ($variant:ident $name:literal $($field:ident: $value:expr),+) => {
        Entry {
            name: $name,
            defaults: || Method::$variant(Default::default()),
            $($field: $value,)+
            ..DEFAULT_ROW
        }
    };
}

macro_rules! registry {
    ($(
        $(#[$doc:meta])*
        $variant:ident($config:ty) = $name:literal { $($field:ident: $value:expr),+ $(,)? }
    )+) => {
        /// A method with its hyperparameters, tagged by its name.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "name")]
        pub enum Method {
            $($(#[$doc])* #[serde(rename = $name)] $variant($config)),+
        }

        /// All optimizers.
        pub const ALL: &[Entry] = &[$(row!($variant $name $($field: $value),+)),+];

        impl Method {
            /// Returns the row of this method.
            pub fn entry(&self) -> &'static Entry {
                match self {
                    $(Self::$variant(_) => const { &row!($variant $name $($field: $value),+) }),+
                }
            }

            /// Returns the hyperparameters of the method.
            pub(crate) fn hyperparameters(&self) -> &dyn Hyperparameters {
                match self {
                    $(Self::$variant(config) => config),+
                }
            }
        }
    };
}

/// Defaults of the fields that a row does not set.
const DEFAULT_ROW: Entry = Entry {
    name: "",
    private: true,
    needs_pairs: false,
    learning_rate: Fixed(1e-3),
    clip: 1.0,
    label_clip: false,
    pretrained_limit: 1.0,
    defaults: || Method::Sgd(Default::default()),
};

registry! {
    /// SGD with momentum, without privacy.
    Sgd(sgd::Config) = "sgd" { private: false, learning_rate: Fixed(0.05) }
    /// Adam without privacy.
    Adam(AdamConfig) = "adam" { private: false, learning_rate: Distance(0.2) }
    /// AdamW without privacy.
    AdamW(AdamWConfig) = "adamw" { private: false, learning_rate: Distance(0.2) }
    /// Muon without privacy.
    Muon(muon::Config) = "muon" { private: false, learning_rate: Distance(0.3), clip: 0.1 }
    /// DP-SGD.
    DpSgd(Clipped<sgd::Config>) = "dp-sgd" { learning_rate: Fixed(6.0), clip: 0.1, label_clip: true }
    /// DP-Adam.
    DpAdam(Clipped<AdamConfig>) = "dp-adam" { learning_rate: Distance(0.8), clip: 0.1, label_clip: true }
    /// DP-AdamW.
    DpAdamW(Clipped<AdamWConfig>) = "dp-adamw" { learning_rate: Distance(0.8), clip: 0.1, label_clip: true }
    /// DP-AdamBC.
    DpAdamBc(Clipped<AdamBcConfig>) = "dp-adam-bc" {
        learning_rate: Distance(0.65), clip: 0.1, label_clip: true, pretrained_limit: 0.5
    }
    /// DP-Muon.
    DpMuon(Clipped<muon::Config>) = "dp-muon" {
        learning_rate: Distance(1.25), clip: 0.1, pretrained_limit: 0.65
    }
    /// DP-MuonBC.
    DpMuonBc(Clipped<muon::CorrectedConfig>) = "dp-muon-bc" {
        learning_rate: Distance(1.25), clip: 0.1, pretrained_limit: 0.65
    }
    /// AdaCliP.
    DpAdaClip(adaclip::Config) = "dp-adaclip" { learning_rate: Fixed(10.0), clip: 0.1 }
    /// DP-MacAdam.
    DpMacAdam(macadam::Config) = "dp-macadam" { learning_rate: Distance(0.5), clip: 1.0 }
    /// PRISM.
    DpPrism(Clipped<prism::Config>) = "dp-prism" {
        learning_rate: Distance(1.2), clip: 1.0, needs_pairs: true
    }
}

/// Returns the names of all optimizers, in the order of the registry.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|entry| entry.name)
}

/// Returns the entry of the optimizer of this name.
///
/// # Errors
/// If there is none; the error suggests the most similar name and lists all.
pub fn find(name: &str) -> Result<&'static Entry, String> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let lower = name.to_lowercase().replace('_', "-");
        let similarity = |other: &str| strsim::jaro_winkler(&lower, other);
        let similar = names().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        format!(
            "unknown optimizer {name:?}: did you mean {:?}? expected one of {}",
            similar.unwrap_or_default(),
            names().collect::<Vec<_>>().join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OptimizerConfig;
    use toml::Table;

    #[test]
    fn every_optimizer_is_read_as_it_is_written() {
        for entry in ALL {
            let config = OptimizerConfig::named(entry.name).unwrap();
            assert_eq!(config.name(), entry.name);
            assert_eq!(config.entry().learning_rate, entry.learning_rate);
            assert_eq!(entry.name.starts_with("dp-"), entry.private);
            let text = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<OptimizerConfig>(&text).unwrap(), config, "{text}");
            // The name alone means the defaults.
            let alone = format!("name = {:?}", entry.name);
            assert_eq!(toml::from_str::<OptimizerConfig>(&alone).unwrap(), config);
        }
    }

    /// Default rates of runs of any length have the same sum, unless the run is very short.
    #[test]
    fn a_distance_does_not_depend_on_the_length() {
        let dp_adam = find("dp-adam").unwrap().learning_rate;
        for steps in [30.0, 410.0, 10_000.0] {
            assert!((dp_adam.peak(steps, f64::INFINITY, 1.0) * steps - 0.8).abs() < 1e-12);
        }
        let free = f64::INFINITY;
        assert_eq!(dp_adam.peak(1.0, free, 1.0), dp_adam.peak(30.0, free, 1.0));
        let dp_sgd = find("dp-sgd").unwrap().learning_rate;
        assert_eq!(dp_sgd.peak(7.0, free, 5.0), 6.0);
        // A limit applies in runs that are short enough for it to matter.
        assert!((dp_adam.peak(40.0, 0.0015, 1.0) - 0.8 * 0.0015).abs() < 1e-12);
        assert!((dp_sgd.peak(40.0, 0.0015, 300.0) - 300.0 * 0.8 * 0.0015).abs() < 1e-12);
        assert_eq!(dp_adam.peak(10_000.0, 0.0015, 1.0), dp_adam.peak(10_000.0, free, 1.0));
    }

    #[test]
    fn keys_of_other_optimizers_are_not_written() {
        let has = |name: &str, key: &str| {
            Table::try_from(OptimizerConfig::named(name).unwrap()).unwrap().contains_key(key)
        };
        assert!(has("dp-adamw", "weight_decay") && !has("dp-adam", "weight_decay"));
        assert!(has("dp-muon-bc", "probes") && !has("dp-muon", "probes"));
        assert!(has("dp-sgd", "clip") && !has("sgd", "clip") && has("dp-macadam", "clip"));
        assert!(has("dp-prism", "clipping") && !has("dp-macadam", "clipping"));
    }

    #[test]
    fn values_and_integers_are_read() {
        let text = "name = \"dp-muon-bc\"\nclip = 1\nmomentum = \"auto\"\nbetas = [0, 0.5]\n\
                    newton_schulz_degree = \"quintic\"\nlearning_rate = \"hyfree\"\n\
                    [hyfree]\npoints = 5\nlot = \"same\"";
        let config: OptimizerConfig = toml::from_str(text).unwrap();
        assert!(config.finds_rate() && config.clip() == 1.0);
        assert_eq!(u64::from(config.hyfree.points), 5);
        let Method::DpMuonBc(muon) = &config.method else { panic!("{config:?}") };
        assert_eq!(muon.own.muon.betas, (0.0, 0.5));
        assert_eq!(muon.own.correction.probes, 1);
    }

    #[test]
    fn unknown_names_get_a_suggestion() {
        let refused = find("dp-moun").unwrap_err();
        assert!(refused.contains("did you mean \"dp-muon\"?"), "{refused}");
        assert!(refused.contains("dp-prism"), "{refused}");
    }
}
